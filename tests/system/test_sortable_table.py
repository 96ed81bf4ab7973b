"""A table that a notebook sorts without a script, in headless Chromium."""

import sys

import pytest

from spectrakit.system.tables import html_sortable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the browser of a Linux distribution"),
]

ROWS = [("new", "loss=0.5", "0:00:09"), ("mid", "loss=0.25", "0:10:00"), ("old", "–", "12:00:00")]
SEEN = """n => [...document.querySelectorAll('tbody')[n].children].sort((a, b) => a.getBoundingClientRect().top -
    b.getBoundingClientRect().top).map(row => row.cells[0].textContent).join(' ')"""
EDGES = "() => [...document.querySelectorAll('tr')].map(row => [...row.cells].map(c => c.getBoundingClientRect().left))"


def test_a_head_sorts_and_reverses_and_columns_stay_aligned(browser):
    opened = browser.new_page()
    opened.set_content(html_sortable(ROWS, ("run", "best", "time")))
    assert opened.evaluate(SEEN, 0) == "new mid old"
    for head, order in {"best": "mid new old", "time": "new mid old", "run": "mid new old"}.items():
        opened.get_by_label(head).check()
        assert opened.evaluate(SEEN, 0) == order, head
    opened.get_by_label("reversed").check()
    assert opened.evaluate(SEEN, 0) == "old new mid"
    assert len({tuple(edges) for edges in opened.evaluate(EDGES)}) == 1
    opened.close()


def test_two_tables_are_sorted_on_their_own_and_without_styles_they_have_no_boxes(browser):
    opened = browser.new_page()
    opened.set_content(html_sortable(ROWS, ("run", "best", "time")) + html_sortable(ROWS[:2], ("run", "best", "time")))
    opened.get_by_label("best").first.check()
    assert [opened.evaluate(SEEN, number) for number in (0, 1)] == ["mid new old", "new mid"]
    opened.evaluate("() => document.querySelectorAll('style').forEach(style => style.remove())")
    assert not any(box.is_visible() for box in opened.locator("input").all())
    opened.close()
