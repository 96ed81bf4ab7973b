"""Runs that an earlier version has left open with this one: read, resumed, predicted with, compared, reported, plotted.

What stands here as a number is what that version has written. The folders in tests/old_runs/ are never written anew;
where a format changes, this version learns to read the old one.
"""

import importlib
import json
import shutil
from pathlib import Path

import pytest

import spectrakit as sk
from helpers import TESTS, tree_hashes
from spectrakit.checkpoint.store import checkpoints, verify
from spectrakit.cli.main import main
from spectrakit.config.compose import sha256
from spectrakit.system.errors import RequestError

OLD = TESTS / "old_runs" / "v0.1"
(FINISHED,), (INTERRUPTED,) = (sorted(OLD.glob(f"{name}-*")) for name in ("finished", "interrupted"))
BOTH = pytest.mark.parametrize("old", [FINISHED, INTERRUPTED], ids=lambda path: path.name.partition("-")[0])
BEST = {"val_loss": 0.09753372520208359, "val_mae": 0.30455635488033295}  # after the first epoch, of both
PREDICTED = [0.0886, 0.0972, 0.1054, 0.1131]


@pytest.fixture(autouse=True)
def place(here, monkeypatch):
    "An empty folder to work in, where the old runs' task can be imported, here and in processes that are started."
    monkeypatch.syspath_prepend(str(OLD))
    monkeypatch.setenv("PYTHONPATH", str(OLD))


@pytest.fixture
def copy(here):
    "A function that copies an old run to ./runs, as one that has been brought along."

    def make(old: Path) -> Path:
        return Path(shutil.copytree(old, here / "runs" / old.name))

    return make


def losses(run: sk.Run) -> dict[int, float]:
    "The loss at each step; the newest where a step was made twice."
    return {event["step"]: event["loss"] for event in run.events if event["type"] == "step"}


@pytest.mark.slow
@BOTH
def test_it_is_opened_where_nothing_can_be_written(old, read_only, copy):
    folder = read_only(copy(old))
    before = tree_hashes(folder)
    run = sk.open_run(folder)
    status, step = ("completed", 12) if old == FINISHED else ("interrupted", 7)
    assert (run.status, run.error, run.metrics) == (status, None, BEST)
    assert (run.best.monitor, run.best.epoch, run.best.value) == ("val_loss", 1, BEST["val_loss"])
    assert run.events[-1]["type"] == "end" and run.events[-1]["step"] == step
    assert (run.config.task["name"], run.config.trainer.max_epochs) == ("plane:Plane", 3)
    assert (run.config.training.ema_decay, run.config.data.micro_batch_size) == (0.9, 4)
    assert [path.name for path in checkpoints(folder / "checkpoints")] == ["step-00000004", f"step-{step:08d}"]
    assert not any(verify(path) for path in checkpoints(folder / "checkpoints"))
    with pytest.raises(RequestError, match="Nothing proves that"):  # that version left no proof of who made it
        run.load_model()
    assert not run.load_model(trust=True).training
    assert tree_hashes(folder) == before


@BOTH
def test_its_settings_have_the_hash_that_was_written_down(old):
    known = json.loads((old / "environment.json").read_text())
    run = sk.open_run(old)
    assert sha256(run.config) == known["config_sha256"] == known["decided"]["config_sha256"]


def test_both_are_found_in_their_folder():
    assert {run.path.name for run in sk.list_runs(OLD)} == {FINISHED.name, INTERRUPTED.name}


@BOTH
def test_it_is_shown(old, capsys):
    assert main(["show", str(old)]) == 0
    shown = capsys.readouterr().out
    status = "completed" if old == FINISHED else "interrupted"
    assert status in shown and "plane:Plane" in shown and "0.09753" in shown
    assert main(["runs", str(OLD)]) == 0
    assert status in capsys.readouterr().out


@pytest.mark.slow
def test_it_goes_on_to_the_end_in_its_own_folder(copy):
    run = sk.resume(copy(INTERRUPTED), show=False, trust=True)
    whole = sk.open_run(FINISHED)
    assert (run.path.name, run.status, run.events[-1]["step"]) == (INTERRUPTED.name, "completed", 12)
    assert losses(run) == pytest.approx(losses(whole), rel=1e-4)  # as if it had not been interrupted
    assert run.events[-1]["metrics"] == pytest.approx(whole.events[-1]["metrics"], rel=1e-4)
    assert run.metrics == pytest.approx(BEST, rel=1e-4)
    assert [event["step"] for event in run.events if event["type"] == "restart"] == [7]


@pytest.mark.slow
def test_a_new_run_goes_on_from_it_where_it_cannot_be_written(copy, read_only):
    folder = read_only(copy(INTERRUPTED))
    before = tree_hashes(folder)
    run = sk.resume(folder, show=False, trust=True)
    assert (run.status, run.events[-1]["step"]) == ("completed", 12) and run.path.parent != folder
    assert losses(run) == pytest.approx(losses(sk.open_run(FINISHED)), rel=1e-4)
    assert tree_hashes(folder) == before


def test_other_data_than_it_had_are_refused(copy, monkeypatch):
    task, folder = importlib.import_module("plane").Plane, copy(INTERRUPTED)
    x, y = task().samples()
    monkeypatch.setattr(task, "samples", lambda self: (x, y + 1))
    with pytest.raises(RequestError, match="training data set is not the one that step-00000007 was made with"):
        sk.resume(folder, show=False, trust=True)


def test_one_that_is_done_is_not_trained_again(copy):
    folder = copy(FINISHED)
    before = tree_hashes(folder / "checkpoints")
    assert sk.resume(folder, show=False).status == "completed"
    assert tree_hashes(folder / "checkpoints") == before


def test_it_predicts_what_it_has_predicted(copy):
    import numpy

    folder = copy(FINISHED)
    with numpy.load(FINISHED / "predictions.npz") as kept:
        before = kept["predictions"]
    made = sk.predict("plane:Plane", folder, out="table.csv")
    assert made.values == pytest.approx(before, rel=1e-5) and before.round(4) == pytest.approx(PREDICTED)
    rows = Path("table.csv").read_text().split()
    assert rows == ["id,y", *(f"s{i},{value:.4f}" for i, value in enumerate(PREDICTED))]


def test_it_is_compared(here):
    comparison = sk.compare(FINISHED, INTERRUPTED)
    assert {line["run"] for line in comparison.table} == {FINISHED.name, INTERRUPTED.name}
    assert [line["status"] for line in comparison.table] == ["completed", "interrupted"]
    assert [line["val_loss"] for line in comparison.table] == [BEST["val_loss"]] * 2
    assert all(line.get("launch.mode") for line in comparison.table)  # the setting in which they differ


@pytest.mark.slow
@BOTH
def test_it_is_reported(old, here):
    page = sk.report(old, here / "page.html").read_text(encoding="utf-8")
    assert "could not be made" not in page and "0.09753" in page and "plane:Plane" in page
    assert ("completed" if old == FINISHED else "interrupted") in page


@pytest.mark.slow
@BOTH
def test_it_is_plotted(old, here):
    assert len(sk.open_run(old).plot()._repr_png_()) > 10_000
    assert main(["plot", str(old), "--out", "curves.png"]) == 0
    assert Path("curves.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_its_snapshot_repeats_it(here):
    config = sk.compose(f"run.dir={here}/runs", "launch.mode=inline", config=FINISHED / "config.yaml")
    again = sk.fit("plane:Plane", config, show=False)
    assert again.status == "completed" and losses(again) == pytest.approx(losses(sk.open_run(FINISHED)), rel=1e-4)
