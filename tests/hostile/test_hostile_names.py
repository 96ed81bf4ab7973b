"""Names that a stranger gave: to folders of runs, metrics, tasks and kernels, in all that prints or draws them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_harness import Case, Place, check
from test_hostile_runs import ACTS, shell, their_run

import odd_runs
from spectrakit.config.compose import compose, snapshot
from spectrakit.kaggle.metadata import slug_of

NAMES = {
    "a new line": "a\nb",
    "a return": "a\rb",
    "a tab": "a\tb",
    "a bell": "a\x07b",
    "colours": "\x1b[31mred\x1b[0m",
    "a title": "\x1b]0;x\x07",
    "turned round": "a\u202egnp.exe",
    "no width": "a\u200bb\ufeff",
    "half a letter": "a\udc80b",
    "long": "x" * 250,
    "long letters": "ü" * 120,
    "dots": "..x..",
    "an option": "-rf",
    "a long option": "--help",
    "a command": "$(touch EXECUTED)",
    "another command": "`touch EXECUTED`;touch EXECUTED",
    "quotes": "'\"><script>alert(1)<",
    "a form": "%s%n{0}{x}",
    "a resolver": "${oc.env:KAGGLE_KEY}",
    "a sum": "=cmd|' C'!A0",
    "a home": "~root",
    "a star": "*?[x]",
    "a slash": "a\\b",
    "mathematics": "$\\frac{1}{$",
    "spaces": "   ",
}
UNPRINTABLE = "a\0b"  # no file may have it


def run_named(name: str) -> Callable[[Place], Path]:
    "A run in a folder of that name."

    def made(place: Place) -> Path:
        run = their_run(place, snapshot(compose("task.name=coffee")), cut=False)
        return Path(shutil.move(run, run.with_name(name)))

    return made


def metric_named(name: str) -> Callable[[Place], Path]:
    "A run with a metric, a reason and a message of that name."

    def made(place: Place) -> Path:
        events = [odd_runs.START, odd_runs.step(1), odd_runs.evaluation(1, **{name: 0.5, "val_loss": 1.0})]
        events += [{"t": 1, "type": "message", "text": name}, odd_runs.end(1, "failed", name)]
        return odd_runs.write_run(place.folder / "theirs" / "spectra-20261120-101500", events)

    return made


def task_named(name: str) -> Callable[[Place], Path]:
    "A run whose settings and log have that name for its task, its monitor and itself."

    def made(place: Place) -> Path:
        text = snapshot(compose("task.name=coffee"))
        text = text.replace("name: coffee", f"name: {json.dumps(name)}", 1)
        run = their_run(place, text, cut=False)
        lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
        start = json.loads(lines[0]) | {"task": name, "monitor": name}
        (run / "events.jsonl").write_text(json.dumps(start) + "\n" + "".join(lines[1:]))
        return run

    return made


LOOKS = ("look", "runs", "show", "plot", "report", "compare", "trust", "resume")
MAKERS = {"a run named": run_named, "a metric named": metric_named, "a task named": task_named}


def cases() -> list[Any]:
    found = []
    for turn, (what, name) in enumerate(NAMES.items()):
        for row, (kind, make) in enumerate(MAKERS.items()):
            for number, how in enumerate(LOOKS):
                case = Case(f"{kind} {what}: {how}", make(name), ACTS[how])
                quick = not turn % 5 and number == (turn // 5 + row * 3) % len(LOOKS)
                found.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return found


@pytest.mark.parametrize("case", cases())
def test_names_in_a_run_of_a_stranger(case, hostile):
    check(case, hostile)


WORDS: dict[str, Callable[[str], Any]] = {
    "slug": slug_of,
    "init": lambda name: shell("kaggle", "init", "mine", "--title", name, "--owner", "ada")(Path()),
    "init in": lambda name: shell("kaggle", "init", f"in-{name}", "--owner", "ada")(Path()),
    "owner": lambda name: shell("kaggle", "init", "mine", "--owner", name)(Path()),
    "status": lambda name: shell("kaggle", "status", "--dry-run", "--", f"ada/{name}")(Path()),
    "pull": lambda name: shell("kaggle", "pull", "--dry-run", "ada/kernel", f"./{name}")(Path()),
    "output": lambda name: shell("kaggle", "output", "--dry-run", "ada/kernel", "out", f"--files={name}")(Path()),
    "check": lambda name: shell("kaggle", "check", "--", name)(Path()),
    "show": lambda name: shell("show", "--", name)(Path()),
    "run name": lambda name: compose(f"run.name={name}").run.name,
    "profile": lambda name: shell("profiles", "--", name)(Path()),
    "train": lambda name: shell("train", "--", name)(Path()),
}


def words() -> list[Any]:
    found = []
    for turn, (what, name) in enumerate(
        {**NAMES, "a zero": UNPRINTABLE, "nothing": "", "a folder above": ".."}.items()
    ):
        for number, (how, act) in enumerate(WORDS.items()):
            case = Case(f"{what}: {how}", lambda place, name=name: name, lambda name, act=act: act(name) and None)
            quick = number == turn % len(WORDS) and not turn % 4
            found.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return found


@pytest.mark.parametrize("case", words())
def test_names_as_words(case, hostile):
    check(case, hostile)
