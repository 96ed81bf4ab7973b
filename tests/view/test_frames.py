"""What people see of a run in each of its states, in one page of headless Chromium, by structure: text that can be
read, nothing clipped, nothing on top of another, one height from start to end.
"""

import io
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from frames import NOW, Shown, all_states, state_of
from matplotlib.image import imread

from lab import LOOK, PICTURES
from spectrakit.train.parts.pictures import as_pngs
from spectrakit.view.cell.cards import pictures_card
from spectrakit.view.cell.frame import FrameContext, header, page, toggles
from spectrakit.view.run_state import RunState, apply_event

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the browser of a Linux distribution"),
]

# what JupyterLab's themes have: the page and its ink
THEMES = {"light": ("#ffffff", "rgba(0,0,0,0.87)"), "dark": ("#111111", "rgba(255,255,255,0.87)")}
# the width of an output, the theme, and so many panels side by side; 310 is what a window of 420 leaves
PAGES = ((1270, "light", 4), (900, "dark", 2), (560, "light", 1), (310, "dark", 1))
LEAST_CONTRAST, TOLERANCE = 4.5, 8  # pixels
LIGHT = (0.2126, 0.7152, 0.0722)  # how bright red, green and blue are


@pytest.fixture(scope="module")
def states() -> dict[str, Shown]:
    return all_states()


def shown(browser, states):
    "A page with all states below each other."
    opened = browser.new_page(viewport={"width": 1290, "height": 900})
    opened.on("dialog", lambda dialog: pytest.fail(f"a name is run: {dialog.message}"))
    frames = "".join(f'<section id="{name}">{state.html()}</section><hr>' for name, state in states.items())
    opened.set_content(f"<body>{frames}</body>")
    dress(opened, 1270, "light")
    return opened


def dress(opened, width, theme) -> None:
    "Give the page another width and another theme."
    paper, ink = THEMES[theme]
    opened.set_viewport_size({"width": width + 20, "height": 900})
    style = f"margin:10px;width:{width}px;background:{paper};color:{ink}"
    opened.evaluate("style => { document.body.style = style }", style)


@pytest.fixture(scope="module")
def every_state(browser, states):
    with shown(browser, states) as opened:
        yield opened


@pytest.mark.parametrize(("width", "theme", "columns"), PAGES)
def test_each_state_can_be_read(every_state, states, width, theme, columns):
    opened = every_state
    dress(opened, width, theme)
    seen = {name: opened.evaluate(LOOK, opened.query_selector(f'[id="{name}"] .frame')) for name in states}
    PICTURES.mkdir(parents=True, exist_ok=True)
    opened.screenshot(path=PICTURES / f"states-{width}-{theme}.png", full_page=True)
    for problem in ("small", "faint", "overlaps", "clipped", "out"):
        found = {name: look[problem] for name, look in seen.items() if look[problem]}
        assert not found, problem
    assert not any(look["wide"] for look in seen.values())
    assert min(look["drawn"] for look in seen.values()) >= LEAST_CONTRAST
    with_panels = {name: look for name, look in seen.items() if look["reach"]}
    assert {look["columns"] for look in with_panels.values()} == {columns}
    assert all(look["right"] - look["reach"] < 2 for look in with_panels.values())  # the whole width is used
    heights = {name: round(look["height"]) for name, look in seen.items()}
    assert max(heights.values()) - min(heights.values()) <= TOLERANCE, heights


LINES = """() => {
  const found = {}
  for (const frame of document.querySelectorAll('.frame')) for (const pair of frame.firstChild.firstChild.children)
    for (const text of pair.children) {
      const box = text.getBoundingClientRect()
      if (!box.width) continue  // a compact view
      ;(found[box.top] ||= []).push(Math.round(box.left))
    }
  return Object.values(found)
}"""


@pytest.mark.parametrize(
    ("width", "texts"), [(1270, 4), (1010, 4), (980, 2), (600, 2), (500, 2), (440, 2), (400, 1), (310, 1)]
)
def test_the_first_line_is_one_or_stands_in_columns(every_state, states, width, texts):
    opened = every_state
    dress(opened, width, "light")
    lines = opened.evaluate(LINES)
    parts = 4 if width >= 600 else 2  # of the line: a narrow view is compact
    assert {len(line) for line in lines} == {texts} and len(lines) == len(states) * parts // texts
    assert all(max(places) - min(places) <= 2 for places in zip(*lines, strict=True)), lines[:4]


@pytest.mark.parametrize(("name", "goes_on"), [("running", True), ("completed", False), ("failed", False)])
def test_a_frame_says_its_time_and_a_live_one_when_nothing_draws_it(browser, states, name, goes_on):
    run = states[name]
    context = replace(run.context, now=NOW, page="runs/my%20run/dashboard.html")
    opened = browser.new_page()
    opened.set_content(header(run.state, context) + toggles(run.state))
    moment = time.strftime("%H:%M:%S", time.localtime(NOW))
    assert opened.get_by_text(f"{'as of' if goes_on else 'last event at'} {moment}").is_visible()
    assert opened.locator("a").get_attribute("href") == "runs/my%20run/dashboard.html"
    stale = opened.get_by_text("not drawn since")
    assert stale.count() == goes_on and not any(text.is_visible() for text in stale.all())
    opened.evaluate("() => document.getAnimations().forEach(animation => animation.finish())")  # 30 s later
    assert all(text.is_visible() for text in stale.all())
    opened.close()


def test_what_is_too_long_is_cut_and_told_whole_where_one_points_at_it(browser):
    state = RunState("a-run-with-a-name-that-somebody-has-thought-about-for-a-long-time-20261120-120000")
    name = "val_the_mean_absolute_error_of_everything_that_was_measured"
    start = {"schema": 1, "total_steps": 10**9, "monitor": name, "task": "x" * 90}
    apply_event(state, {"t": 1.0, "type": "start", **start})
    for n in (10**8, 2 * 10**8):
        apply_event(state, {"t": 2.0, "type": "step", "step": n, "epoch": 1e5, "loss": 1e30, "lr": 1e-30})
        apply_event(state, {"t": 2.0, "type": "eval", "step": n, "epoch": 1e5, "metrics": {name: 1e-30}, "best": True})
    opened = shown(browser, {"long": Shown(state, FrameContext(3.0))})
    dress(opened, 310, "light")
    seen = opened.evaluate(LOOK, opened.query_selector('[id="long"] .frame'))
    titles = opened.evaluate("() => [...document.querySelectorAll('[title]')].map(e => e.title)")
    opened.close()
    assert not seen["wide"] and not seen["out"] and seen["overlaps"] == []
    assert any(name in title for title in titles)


def test_boxes_choose_what_is_seen_and_a_redraw_keeps_the_choice(browser, states):
    opened = shown(browser, {"running": states["running"]})
    groups = """() => [...document.querySelectorAll('.p')].map(p => [...p.querySelectorAll('g.a, g.z')]
        .filter(g => getComputedStyle(g).display !== 'none').map(g => g.getAttribute('class')))"""
    box = {key: opened.locator(f"input[value={key}]") for key in "yzr"}
    first = opened.evaluate(groups)
    assert [len(g) for g in first] == [1, 1, 1, 1] and first[0] == ["a f"]
    box["z"].check()
    assert [g[0].split()[0] for g in opened.evaluate(groups)] == ["z", "z", "z", "z"]
    box["y"].check()
    assert opened.evaluate(groups)[0] == ["z y"] and all(len(g) == 1 for g in opened.evaluate(groups))
    redrawn = opened.evaluate("""() => { const body = document.querySelector('.p').closest('[class^=sk-]')
        body.outerHTML = body.outerHTML; return true }""")
    assert redrawn and opened.evaluate(groups)[0] == ["z y"]
    box["z"].uncheck()
    assert opened.evaluate(groups)[0] == ["a y"]
    box["y"].uncheck()
    assert opened.evaluate(groups) == first
    raw = "() => getComputedStyle(document.querySelector('g.a.f g.smooth')).display"
    assert opened.evaluate(raw) != "none"
    box["r"].check()
    assert opened.evaluate(raw) == "none"
    opened.close()


GROUPS = """() => [...document.querySelectorAll('.p')].map(p => [...p.querySelectorAll('g.a, g.z')]
    .filter(g => getComputedStyle(g).display !== 'none').map(g => g.getAttribute('class')).join(' | '))"""


def test_a_panel_has_boxes_of_its_own_and_every_metric_can_be_seen(browser, states):
    opened = shown(browser, {"13 metrics": states["13 metrics"]})
    opened.evaluate("() => document.querySelectorAll('details').forEach(details => details.open = true)")
    before = opened.evaluate(GROUPS)
    opened.locator('input[value="1"]').check()  # the loss: its last tenth
    opened.locator('input[value="6"]').check()  # the metric: its other scale
    assert opened.evaluate(GROUPS) == ["z f", "a y", *before[2:]]
    metrics = opened.locator(".s")
    assert metrics.count() == 11 and sum(each.is_visible() for each in metrics.all()) == 6
    for each in metrics.all():
        name, low = each.locator("span").inner_text(), each.locator("svg").bounding_box()
        opened.get_by_role("group", name="enlarge").get_by_label(f"val_{name}", exact=True).check()
        high = each.locator("svg").bounding_box()
        assert each.is_visible() and (low is None or high["height"] > 3 * low["height"])
    opened.close()


@pytest.mark.parametrize(("width", "is_narrow"), [(310, True), (380, True), (590, True), (610, False), (1270, False)])
def test_a_narrow_view_is_compact_and_either_can_be_the_other(browser, states, width, is_narrow):
    opened = shown(browser, {"running": states["running"], "starting": states["starting"]})
    dress(opened, width, "light")
    high = "() => [...document.querySelectorAll('.frame')].map(frame => frame.getBoundingClientRect().height)"
    panels = "() => [...document.querySelectorAll('.p')].filter(panel => panel.offsetParent).length"
    for compact in (is_narrow, not is_narrow):
        heights = opened.evaluate(high)
        assert (max(heights) <= 400) == compact and max(heights) - min(heights) <= TOLERANCE
        assert opened.evaluate(panels) == (1 if compact else 4)
        assert opened.get_by_text("whole view").first.is_visible() == is_narrow
        opened.locator("input[value=k]").first.check()
    opened.close()


def test_a_value_is_read_where_one_points(browser, states):
    opened = shown(browser, {"running": states["running"]})
    panel = opened.locator(".p").first.bounding_box()
    opened.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    opened.mouse.move(panel["x"] + panel["width"] * 0.5, panel["y"] + panel["height"] * 0.5)  # over what was painted
    told = """() => [...document.querySelectorAll('.h text')].filter(t => getComputedStyle(t).display !== 'none')
        .map(t => t.textContent)"""
    opened.wait_for_function(f"() => ({told})().length")
    (text,) = opened.evaluate(told)
    assert text.startswith("step ") and "train 0." in text and "valid 0." in text
    opened.close()


def test_the_page_runs_its_own_script_and_nothing_else(browser, tmp_path, states):
    whole = page(states["running"].state, FrameContext(210.0, running=False))
    evil = '<script>document.title="evil"</script><img src=x onerror="document.title=\'evil\'">'
    (tmp_path / "dashboard.html").write_text(whole.replace("</body>", f"{evil}</body>"))
    context = browser.new_context()
    opened = context.new_page()
    with opened.expect_console_message(lambda message: "Content Security Policy" in message.text):
        opened.goto((tmp_path / "dashboard.html").as_uri())
    assert "evil" not in opened.title()
    opened.locator("input[value=z]").check()
    for _ in range(3):
        opened.reload()  # as it does by itself while the run goes on
        assert [opened.locator(f"input[value={key}]").is_checked() for key in "yzr"] == [False, True, False]
    opened.locator("input[value=z]").uncheck()
    opened.reload()
    assert not opened.locator("input[value=z]").is_checked()
    context.close()


def test_a_reader_without_styles_sees_the_picture(browser, states):
    "What JupyterLab leaves of a notebook that it does not trust: no style, no SVG."
    from spectrakit.view.cell.frame import body, header

    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500f0003860180"
        "5a347d6b0000000049454e44ae426082"
    )
    run = states["completed"]
    opened = browser.new_page()
    opened.set_content(header(run.state, run.context) + body(run.state, run.context, picture=pixel))
    opened.evaluate("() => document.querySelectorAll('svg, style').forEach(e => e.remove())")
    assert not opened.locator(".p").first.is_visible()  # the texts of its SVG are left, and not to be seen
    assert all(opened.locator(seen).is_visible() for seen in ("img.k", "table[aria-label^=evaluations]"))
    opened.close()


@pytest.fixture(scope="module")
def predictions(tmp_path_factory):
    "A card with the picture of a curve, as a run draws it."
    from matplotlib.figure import Figure

    folder, figure = tmp_path_factory.mktemp("run"), Figure(figsize=(3, 2))
    figure.subplots().set(title="origins", xlabel="wavenumber", ylabel="absorbance")
    (folder / "pictures").mkdir()
    for suffix, png in zip((".png", ".dark.png"), as_pngs(figure), strict=True):
        (folder / "pictures" / f"origins{suffix}").write_bytes(png)
    return pictures_card(folder, {"step": 40, "files": ["origins.png"]})


PAGES_BY_THEME = {  # what says the theme → whether it is dark
    '<body data-jp-theme-light="false" style="background:#111">': True,
    '<body data-jp-theme-light="true" style="background:#fff">': False,
    '<body class="vscode-body vscode-dark" style="background:#1e1e1e">': True,
    '<body class="vscode-body vscode-light" style="background:#fff">': False,
    '<html theme=dark><body style="background:#383838">': True,
    '<html theme=light><body style="background:#fff">': False,
    '<body style="background:#111">': None,  # dark, without a word of it: the picture brings its paper
    '<body class="sk-page" style="background:Canvas"><style>:root{color-scheme:light dark}</style>': True,
}


@pytest.mark.parametrize("before", PAGES_BY_THEME)
def test_the_ink_of_a_picture_stands_out_from_what_is_under_it(browser, predictions, before):
    opened = browser.new_page(color_scheme="dark")
    opened.set_content(f"<!doctype html>{before}{predictions}")
    seen = opened.locator("img:visible")
    assert seen.count() == 1 and seen.get_attribute("class") == ("sk-night" if PAGES_BY_THEME[before] else "sk-paper")
    pixels = imread(io.BytesIO(seen.screenshot()))[..., :3]
    opened.close()
    light = np.sort((np.where(pixels <= 0.03928, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4) @ LIGHT).ravel())
    paper = np.median(light)
    assert max((light[-1] + 0.05) / (paper + 0.05), (paper + 0.05) / (light[0] + 0.05)) >= LEAST_CONTRAST


def test_a_point_of_a_run_that_has_one_is_seen():
    from spectrakit.view.panels import plots

    state = state_of(
        [{"t": 1.0, "type": "step", "step": 1, "epoch": 0.1, "loss": 2.0, "lr": 0.1, "samples_per_s": 9.0}]
    )
    assert plots(state).count("<circle") >= 3
