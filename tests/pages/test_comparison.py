"""`compare` and `spectrakit compare`: which runs, curves over what, the table of what differs, runs of every condition,
plain HTML.
"""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import spectrakit as sk
from helpers import clean_environ
from odd_runs import ODD, SCRIPT, START, evaluation, odd_run, plain_run, step, write_run
from spectrakit.cli.main import main
from spectrakit.config.compose import diff
from spectrakit.runs.run_dir import locked
from spectrakit.system.errors import RequestError
from spectrakit.view.picture import Picture

pytestmark = pytest.mark.slow  # every test here reads and draws runs


class Parsed(HTMLParser):
    "The tags and attributes of HTML, and what it would load."

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.attributes, self.loads = set(), set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}
        self.loads += [
            value
            for name, value in attributes
            if name in ("src", "href", "srcset") and not value.startswith(("#", "data:"))
        ]


@pytest.fixture
def two(here) -> list[Path]:
    "Two runs in ./runs that differ in the learning rate and in the batch."
    return [
        plain_run(here / "runs" / "one"),
        plain_run(
            here / "runs" / "two", "optimizer.lr=0.5", "data.micro_batch_size=16", steps=30, effective_batch_size=16
        ),
    ]


def lines_of(comparison, panel: int = 0) -> list[tuple[list, list]]:
    "The curves in a panel."
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in comparison.figure.axes[panel].lines]


# which runs


def test_a_run_is_a_run_a_folder_a_name_or_in_a_list(two):
    one, other = two
    for runs in ((sk.Run(one), other), (str(one), "two"), ([one, "two"],), (sk.list_runs(), one)):
        assert {line["run"] for line in sk.compare(*runs).table} == {"one", "two"}
    assert len(sk.compare(one, str(one), sk.Run(one)).table) == 1


def test_what_is_no_run_is_refused_with_its_nearest_neighbour(two, tmp_path):
    (tmp_path / "pictures").mkdir()
    for wrong, words in (
        (["runs/onne"], "Did you mean 'one'"),
        (["twoo"], "Did you mean 'two'"),
        (["runs"], "a folder of 2 runs"),
        (["pictures"], "is not a run"),
        ([3], "int is not a run"),
        ([], "two or more"),
        (["runs/one/config.yml"], "no run"),
        ([two[0], None], "NoneType is not a run"),
    ):
        with pytest.raises(RequestError) as caught:
            sk.compare(*wrong)
        assert words in str(caught.value), wrong


def test_runs_of_one_name_are_told_apart(here):
    paths = [plain_run(here / day / "coffee") for day in ("monday", "tuesday")]
    assert [line["run"] for line in sk.compare(*paths).table] == ["monday/coffee", "tuesday/coffee"]


# curves


def test_over_steps_over_time_and_over_samples(two):
    ends = {
        x: [curve[0][-1] for curve in lines_of(sk.compare(*two, x=x, metric="val_loss"))[:2]]
        for x in ("step", "time", "samples")
    }
    assert ends == {"step": [20, 30], "time": [2, 3], "samples": [160, 480]}
    assert lines_of(sk.compare(*two, metric="val_loss"))[0] == ([10, 20], [0.2, 0.1])


def test_samples_count_the_batch_that_each_step_had(here):
    restarts = [
        {"t": 1, "type": "restart", "step": 10, "effective_batch_size": 32},
        {"t": 2, "type": "restart", "step": 20, "effective_batch_size": 16},
        {"t": 2, "type": "restart", "step": 15},
    ]
    events = [
        START,
        *(step(n) for n in range(1, 15)),
        restarts[0],
        *(step(n) for n in range(11, 21)),
        restarts[1],
        step(21),
        restarts[2],
        *(step(n) for n in range(16, 26)),
    ]
    comparison = sk.compare(write_run(here / "run", events), x="samples", metric="loss", smooth=0)
    places = dict(zip(range(1, 26), lines_of(comparison)[0][0], strict=False))
    assert [places[n] for n in (1, 10, 11, 15, 16, 25)] == [
        8,
        80,
        112,
        240,
        256,
        400,
    ]  # back before the second change: it did not happen
    assert comparison.table[0]["restarts"] == 3


def test_a_run_that_does_not_tell_its_batch_is_named(two, here):
    silent = write_run(
        here / "silent", [{k: v for k, v in START.items() if k != "effective_batch_size"}, step(1), step(2)]
    )
    comparison = sk.compare(two[0], silent, x="samples")
    assert any("silent" in note and "samples" in note for note in comparison.notes) and lines_of(comparison)[1] == (
        [],
        [],
    )


def test_wrong_words_are_refused(two):
    for wrong, words in (
        ({"x": "tiem"}, "Did you mean 'time'"),
        ({"metric": "val_los"}, "Did you mean 'val_loss'"),
        ({"smooth": 1.5}, "below 1"),
        ({"metric": "auc"}, "No run has the metric"),
        ({"metric": []}, "Give a name, or a list of names"),
        ({"metric": 5}, "Give a name, or a list of names"),
        ({"x": ["step"]}, "Give one of step"),
    ):
        with pytest.raises(RequestError, match=words):
            sk.compare(*two, **wrong)


def test_a_metric_may_be_named_without_its_prefix(here):
    run = write_run(
        here / "run",
        [
            START,
            evaluation(1, val_loss=1.0, val_accuracy=0.5),
            evaluation(2, val_loss=2.0, val_accuracy=0.75, best=False),
        ],
    )
    assert lines_of(sk.compare(run, metric="accuracy"))[0] == ([1, 2], [0.5, 0.75])
    assert [ax.get_title(loc="left") for ax in sk.compare(run, metric=["loss", "val_loss"]).figure.axes] == [
        "training loss",
        "val_loss",
    ]


# the table


def test_the_table_has_what_differs_and_what_came_of_it(two):
    comparison = sk.compare(*two)
    one, other = comparison.table
    configs = [sk.open_run(path).config for path in two]
    assert {key: (one[key], other[key]) for key in diff(*configs)} == diff(*configs) and set(diff(*configs)) == {
        "optimizer.lr",
        "data.micro_batch_size",
    }
    assert (
        one["status"],
        one["val_loss"],
        one["best_step"],
        one["steps"],
        one["seconds"],
        one["samples_per_s"],
        one["restarts"],
    ) == ("completed", 0.1, 20, 20, 2, 80, 0)
    assert (one["effective_batch_size"], other["effective_batch_size"]) == (8, 16) and "seed" not in one
    assert "0.06667 ★" in str(comparison) and comparison.winner == ("val_loss", 1)
    assert sk.compare(*two, plain_run(two[0].parent / "other", task="digits")).winner is None  # of another task
    assert (
        len(sk.compare(*two, *(plain_run(two[0].parent / f"more-{n}") for n in range(6))).rows()) == 9
    )  # a row for each of many runs


def test_a_setting_that_may_be_secret_is_not_shown(here):
    runs = [plain_run(here / name, f"+extra.api_key={name}-0123456789") for name in ("one", "two")]
    comparison = sk.compare(*runs)
    assert [line["extra.api_key"] for line in comparison.table] == [
        "<hidden>"
    ] * 2 and "0123456789" not in comparison._repr_html_() + str(comparison)


# runs of every condition


@pytest.mark.parametrize("kind", ODD)
def test_a_run_of_any_condition_is_shown_as_what_it_is(two, here, kind):
    odd = odd_run(here, kind)
    for x in ("step", "time", "samples"):
        comparison = sk.compare(two[0], odd, x=x)
        shown = comparison._repr_html_()
        assert (
            [line["run"] for line in comparison.table] == ["one", odd.name]
            and "<script" not in shown.lower()
            and "1b[31m" not in str(comparison)
        )
    assert comparison.save(here / "out.html").stat().st_size > 1000
    expected = {
        "empty": "no events yet",
        "torn": "5 lines of the log are no event",
        "newer": "schema 9",
        "words": "2 lines of the log",
        "many": "more metrics",
        "huge": "not drawn",
    }.get(kind, "")
    assert any(expected in note for note in comparison.notes) or not expected, comparison.notes


def test_odd_runs_are_compared_with_each_other(here):
    comparison = sk.compare([odd_run(here, kind) for kind in ODD])
    assert len(comparison.table) == len(ODD) and SCRIPT not in comparison._repr_html_()
    assert comparison.table[2]["optimizer.lr"] == 3  # of another version, and still told


def test_a_run_that_goes_on_has_no_torn_line(two):
    with open(two[0] / "events.jsonl", "a") as log:
        log.write('{"t": 99, "type": "st')
    assert "no event" in str(sk.compare(two[0]).notes)
    (two[0] / "events.jsonl").write_text((two[0] / "events.jsonl").read_text().replace('"end"', '"other"'))
    with locked(two[0]):
        comparison = sk.compare(two[0])
    assert comparison.notes == [] and comparison.table[0]["status"] == "running"


# what is shown and written


def test_the_html_of_a_cell_survives_a_notebook_that_is_not_trusted(two):
    shown = sk.compare(*two)._repr_html_()
    kept = re.sub(r"<(style|svg).*</\1>", "", shown, flags=re.S)  # a sanitizer takes styles and drawings away
    (image,) = re.findall("<img[^>]*>", kept)
    assert "display:none" not in image and "hidden" not in image
    parsed = Parsed(kept)
    assert (
        parsed.tags <= {"img", "div", "span", "b", "i", "table", "tr", "th", "td", "br"}
        and parsed.attributes
        <= {"alt", "style", "src", "scope", "aria-label", "aria-hidden", "role", "class", "tabindex", "title", "hidden"}
        and parsed.loads == []
    )


def test_what_is_saved_opens_offline_and_a_wrong_file_is_refused(two, here):
    comparison = sk.compare(*two)
    text = comparison.save(here / "page.html").read_text()
    parsed = Parsed(text)
    assert (
        "://" not in text
        and parsed.loads == []
        and "script" not in parsed.tags
        and {"svg", "table"} <= parsed.tags
        and "prefers-color-scheme" in text
    )
    assert comparison.save(str(here / "curves.PNG")).read_bytes()[:4] == b"\x89PNG" and isinstance(
        comparison.plot(), Picture
    )
    for wrong in ("curves.doc", "curves", "no/such/folder.svg", "no/such/folder.html"):
        with pytest.raises(RequestError):
            comparison.save(here / wrong)
    assert sorted(p.name for p in here.iterdir()) == ["curves.PNG", "page.html", "runs"]


def test_it_stays_a_function_and_imports_no_torch(two):
    code = (
        "import sys, spectrakit as sk, spectrakit.pages.comparison, spectrakit.pages.run_report\n"
        "sk.compare('one', 'two')._repr_html_(); sk.report('one'); assert callable(sk.compare) and "
        "callable(sk.report)\n"
        "assert not {'torch', 'accelerate', 'pandas'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=two[0].parent.parent,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


# the command


def test_the_command_prints_the_table_and_draws(two, capsys):
    assert (
        main(
            ["compare", "one", str(two[1]), "--x", "time", "--metric", "val_loss", "--metric", "lr", "--out", "out.svg"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "optimizer.lr" in out and out.rstrip().endswith("out.svg")
    assert ElementTree.parse("out.svg").getroot().tag.endswith("svg")
    for words in (
        ["compare", "runs/onne"],
        ["compare", "one", "two", "--out", "x.doc"],
        ["compare", "one", "--x", "day"],
        ["compare"],
    ):
        try:
            status = main(words)
        except SystemExit as ending:
            status = ending.code
        captured = capsys.readouterr()
        assert status == 2 and captured.out == "" and captured.err.count("\n") == 1, words
