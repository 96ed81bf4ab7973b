"""trackio and Aim: what a run gives them, where it goes, and that nothing of theirs costs the run.

The real packages are tried where they are installed; elsewhere stand-ins with the same calls take their place."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from accelerate import PartialState

from spectrakit.config.aliases import parse_overrides
from spectrakit.config.compose import compose
from spectrakit.runs.trackers.registry import TRACKERS, start_trackers
from spectrakit.runs.trackers.tracker import hyperparameters, installed


class Written:
    "What a stand-in was given, in a file of the folder that it was told."

    def __init__(self, folder, **facts):
        self.file, self.hash = folder / "written.json", facts.get("run_hash") or "f00d"
        known = json.loads(self.file.read_text()) if self.file.is_file() else {"opened": [], "points": [], "facts": {}}
        self.known, self.name = known, ""
        known["opened"].append(facts)
        self.save()

    def save(self):
        self.file.write_text(json.dumps(self.known, default=str))

    def __setitem__(self, key, value):  # Aim's parameters
        self.known["facts"][key] = value
        self.save()

    def track(self, value, name, step):  # Aim's numbers
        self.known["points"].append([name, step, value])
        self.save()

    def log(self, values, step):  # trackio's numbers
        self.known["points"] += [[name, step, value] for name, value in values.items()]
        self.save()

    def close(self):
        self["closed"] = True

    finish = close


def stand_in(monkeypatch, name):
    "A package with the calls that a run makes of `name`."
    module, made = ModuleType(name), []
    if name == "aim":
        module.Run = lambda repo, **facts: made.append(Written(Path(repo), **facts)) or made[-1]
    else:
        module.init = lambda **facts: made.append(Written(Path(os.environ["TRACKIO_DIR"]), **facts)) or made[-1]
        module.config = SimpleNamespace(update=lambda values, **_: made[-1].__setitem__("hparams", values))
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("spectrakit.runs.trackers.registry.installed", lambda package: True)
    if name == "trackio":  # it is imported by the run, not before
        monkeypatch.setattr("spectrakit.runs.trackers.trackio.sys", SimpleNamespace(modules={}, stderr=sys.stderr))
    return made


@pytest.fixture(autouse=True)
def nothing_is_told(monkeypatch):
    PartialState(cpu=True)
    for name in ("TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "AIM_REPO"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["trackio", "aim"])
def test_a_run_is_written_and_goes_on_as_the_same_run(name, tmp_path, monkeypatch, capsys):
    stand_in(monkeypatch, name)
    config, run, said = compose(f"tracking.names=[{name}]", "tracking.project=lab"), tmp_path / "coffee-1", []
    first = start_trackers(config, run, said.append)
    first.log(1, {"loss": 0.5, "val_loss": float("nan")})
    first.close()
    again = start_trackers(config, run, said.append, step=1)
    again.log(2, {"loss": 0.25})
    again.close(failed=True)
    known = json.loads((run / "trackers" / name / "written.json").read_text())
    assert known["points"] == [["loss", 1, 0.5], ["loss", 2, 0.25]]  # what is no number is nowhere
    assert known["facts"]["hparams"] == json.loads(json.dumps(hyperparameters(config), default=str))
    assert known["facts"]["closed"] is True
    opened = known["opened"]
    if name == "aim":
        assert [facts["run_hash"] for facts in opened] == [None, "f00d"] and opened[0]["experiment"] == "lab"
        assert opened[0]["capture_terminal_logs"] is False and known["facts"]["failed"] is True
    else:
        assert [facts["name"] for facts in opened] == ["coffee-1"] * 2 and opened[1]["resume"] == "allow"
        assert opened[0]["project"] == "lab" and opened[0]["auto_log_gpu"] is False
    assert any(text.startswith(f"{name} writes to trackers/{name}") for text in said) and capsys.readouterr().out == ""


def test_runs_of_a_search_share_a_repository(tmp_path, monkeypatch):
    stand_in(monkeypatch, "aim")
    study = tmp_path / "mystudy"
    config = compose("tracking.names=[aim]", f"tracking.group={study}")
    for trial in ("trial-0000", "trial-0001"):
        start_trackers(config, study / trial / "coffee-1", print).close()
    assert len(json.loads((study / "trackers" / "aim" / "written.json").read_text())["opened"]) == 2


@pytest.mark.parametrize("name", ["trackio", "aim"])
def test_one_that_does_not_open_costs_a_sentence(name, tmp_path, monkeypatch):
    stand_in(monkeypatch, name)
    what = "Run" if name == "aim" else "init"
    monkeypatch.setattr(sys.modules[name], what, lambda **_: (_ for _ in ()).throw(OSError("no space left")))
    said = []
    assert start_trackers(compose(f"tracking.names=[{name}]"), tmp_path / "run", said.append).opened == {}
    assert said == [f"{name} is not written: OSError: no space left; the run's own log continues"]


def test_all_is_what_is_installed():
    asked = dict(parse_overrides(["report_to=all"], groups={}).pairs)
    names = compose(*(f"{key}={value}" for key, value in asked.items())).tracking.names
    assert names == ["csv", *(name for name in TRACKERS if installed(name))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trackio", "aim"])
def test_the_real_one_takes_a_run_where_it_is_installed(name, tmp_path):
    pytest.importorskip(name)
    said = []
    trackers = start_trackers(compose(f"tracking.names=[{name}]"), tmp_path / "coffee-1", said.append)
    assert list(trackers.opened) == [name], said
    trackers.log(1, {"loss": 0.5})
    trackers.close()
    assert not [text for text in said if "no longer" in text], said
    assert [path for path in (tmp_path / "coffee-1" / "trackers" / name).rglob("*") if path.is_file()]
