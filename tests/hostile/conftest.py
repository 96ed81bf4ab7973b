"""What the hostile cases share: a folder, a canary among the variables, and the counts at the end."""

import pytest
from hostile_harness import COUNTS, KINDS, SECRET

import helpers


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    "An empty folder to work in, with a secret in the environment and a state folder of its own."
    import os

    for name in filter(helpers.foreign, list(os.environ)):
        monkeypatch.delenv(name)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("KAGGLE_KEY", SECRET)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    return folder


def pytest_terminal_summary(terminalreporter):
    "What `make hostile` ends with."
    if COUNTS["cases"]:
        counts = ", ".join(f"{kind} {COUNTS[kind]}" for kind in KINDS)
        terminalreporter.line(f"hostile: {COUNTS['cases']} cases; {counts}; training allowed {COUNTS['trains']}")
