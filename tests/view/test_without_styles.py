"""Displays as GitHub shows them: without `style`, `class` and `id`, and without style sheets."""

from html.parser import HTMLParser

import pytest
from frames import all_states

from spectrakit.picker.picker import ProfilePicker
from spectrakit.system.tables import html_sortable, html_table
from spectrakit.view.cell.frame import body, header, text_table, toggles
from spectrakit.view.cell.many_runs import Piece, strip
from spectrakit.view.picture import plot_curves

LINES = {"div", "p", "tr", "details", "summary", "h1", "h2", "pre", "li"}
VOID = {"img", "input", "br", "wbr", "meta", "hr"}


class Stripped(HTMLParser):
    "Text of HTML by lines, with cells apart by tabs; styles are gone, `hidden` and style sheets are not shown."

    def __init__(self, html: str):
        super().__init__()
        self.text, self.open, self.pictures = "", [], []
        self.feed(html)
        self.lines = [line.strip() for line in self.text.splitlines() if line.strip()]

    @property
    def unseen(self) -> bool:
        return any(unseen for _, unseen in self.open)

    def handle_starttag(self, tag, attributes):
        kept = {name: value for name, value in attributes if name not in ("style", "class", "id")}
        if tag == "img" and not self.unseen:
            self.pictures.append(kept["alt"])
        if tag not in VOID:
            self.open.append((tag, "hidden" in kept or tag in ("style", "script")))
        self.text += "\n" if tag in LINES and not self.in_a_cell else "\t" if tag in ("td", "th") else " "

    def handle_endtag(self, tag):
        while tag not in VOID and self.open and self.open.pop()[0] != tag:
            pass
        self.text += "\n" if tag in LINES and not self.in_a_cell else " "

    @property
    def in_a_cell(self) -> bool:
        return any(tag in ("td", "th") for tag, _ in self.open)

    def handle_data(self, data):
        self.text += "" if self.unseen else data


@pytest.fixture(scope="module")
def states():
    return all_states()


def test_the_last_frame_is_a_line_of_tiles_a_picture_and_a_table(states):
    run = states["completed"]
    shown = Stripped(header(run.state, run.context) + toggles(run.state) + body(run.state, run.context, None, b"png"))
    assert "completed" in shown.lines[0] and shown.pictures == ["curves"]
    (tiles,) = (line.split("\t") for line in shown.lines if "samples/s" in line)
    assert len(tiles) == 6 and tiles[0].startswith("best")
    head = next(line.split("\t") for line in shown.lines if "train loss" in line)
    rows = [line.split("\t") for line in shown.lines if line.count("\t") == len(head) - 1 and line != "\t".join(head)]
    assert len(rows) == len(text_table(run.state).splitlines()) - 1 and any("★" in row[0] for row in rows)
    assert not any(word in shown.text for word in ("nnn", "other scale", "raw values", "no values yet"))


def test_a_picture_is_one_picture_and_no_words(states):
    shown = Stripped(plot_curves(states["completed"].state)._repr_html_())
    assert len(shown.pictures) == 1 and "loss" in shown.pictures[0] and not shown.lines


def test_a_frame_that_was_saved_in_the_middle_of_a_run_has_its_time_once(states):
    run = states["running"]
    shown = Stripped(header(run.state, run.context))
    assert "nnn" not in shown.text and sum("as of" in line or "not drawn" in line for line in shown.lines) <= 1


def test_folds_are_a_line_each(states):
    pieces = [Piece("fold 0", "completed", 0.5), Piece("fold 1", "running")]
    assert Stripped(strip(pieces)).lines == [str(piece) for piece in pieces]


@pytest.mark.parametrize("shown_as", [html_table, html_sortable])
def test_a_table_of_runs_has_its_columns_and_nothing_to_click(shown_as):
    rows = [("coffee-2", "completed", "loss=0.1"), ("coffee-1", "failed", "–")]
    shown = Stripped(shown_as(rows, ("run", "status", "best")))
    read = [tuple(cell.strip() for cell in line.split("\t")) for line in shown.lines]
    assert read == [("run", "status", "best"), *rows]


def test_the_form_is_tables_with_a_call_to_copy():
    shown = Stripped(ProfilePicker(samples=640, file=None)._repr_mimebundle_()["text/html"])
    rows = [[cell.strip() for cell in line.split("\t")] for line in shown.lines if "\t" in line]
    assert {"GPU", "effective batch", "learning rate", "→ defaults"} <= {row[0] for row in rows}
    assert min(map(len, rows)) >= 2 and any(line.startswith("sk.compose(") for line in shown.lines)
