"""`sk.serve` before a stand-in for a competition's evaluation API: row groups, limits, a hidden set, and faults.

The stand-in (tools/kaggle_sim/stand_in) has Kaggle's names and asks from another process.
"""

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import spectrakit as sk
from helpers import clean_environ, run_script
from spectrakit.system.errors import RequestError

pytestmark = pytest.mark.slow
STAND_IN = Path(__file__).resolve().parents[2] / "tools" / "kaggle_sim" / "stand_in" / "kaggle_evaluation"
WORDS = ("trainer.accelerator=cpu", "launch.mode=inline", "data.micro_batch_size=16", "dataloader.num_workers=0")

TASK = """
import os
import signal
import time
from pathlib import Path

from spectrakit.tasks.table.table import Table


def once(name):
    "True the first time, over all processes."
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Moody(Table):
    "A table whose odd rows make trouble."

    def serve_dataset(self, cfg, rows):
        ids = set(rows["id"])
        if 1004 in ids:
            raise KeyError("size")
        if 1008 in ids and once("died"):
            os.kill(os.getpid(), signal.SIGKILL)
        if 1028 in ids:
            time.sleep(600)
        return super().serve_dataset(cfg, rows)
"""
FRAMED = """
import polars

from spectrakit.tasks.table.table import Table


class Framed(Table):
    "A table that is served frames of polars alone."

    def serve_dataset(self, cfg, rows):
        if not isinstance(rows, polars.DataFrame):
            raise TypeError(type(rows))
        return super().serve_dataset(cfg, rows)
"""
PICKY = """
import time

from spectrakit.tasks.table.table import Table


class Picky(Table):
    "A table that the model of seed 2 cannot read once, and on which that of seed 3 hangs."

    def serve_dataset(self, cfg, rows):
        ids = set(rows["id"])
        if cfg.seed == 2 and 1004 in ids:
            raise KeyError("size")
        if cfg.seed == 3 and 1008 in ids:
            time.sleep(600)
        return super().serve_dataset(cfg, rows)
"""
SCRIPT = """
import json
import sys
import spectrakit as sk

if __name__ == "__main__":
    words, named = json.loads(sys.argv[1])
    served = sk.serve(*words, **named)
    print("SERVED", served.predicted, "OF", served.batches)
"""


def rows(first: int, count: int, colours=("red", "blue")) -> pd.DataFrame:
    "Rows of the competition; prices follow from sizes."
    draw = np.random.default_rng(first)
    found = pd.DataFrame({"id": range(first, first + count), "size": draw.normal(size=count).round(4)})
    return found.assign(colour=draw.choice(colours, count))


@pytest.fixture(scope="module")
def cup(tmp_path_factory) -> tuple[Path, Path]:
    "The competition's data, and a run that has learned from them."
    folder = tmp_path_factory.mktemp("cup")
    data = folder / "cup"
    data.mkdir()
    train = rows(0, 200)
    train.assign(price=100 + 20 * train["size"]).to_csv(data / "train.csv", index=False)
    rows(200, 10).to_csv(data / "test.csv", index=False)
    rows(200, 10)[["id"]].assign(price=100.0).to_csv(data / "sample_submission.csv", index=False)
    shutil.copytree(STAND_IN, data / "kaggle_evaluation")
    words = (*WORDS, f"run.dir={folder / 'runs'}", f"task.data={data}", "trainer.max_epochs=10", "optimizer.lr=0.01")
    return data, sk.fit("table", *words, show=False).raise_for_status().path


def serve(folder: Path, task: str, run: Path, data: Path, batch_s: float = 60, **environ: str) -> str:
    "Serve a run in a process of its own, and return what it printed."
    return serve_with(folder, [task, str(run)], {"data": str(data), "batch_s": batch_s}, **environ)


def serve_with(folder: Path, words: list[str], named: dict[str, Any], **environ: str) -> str:
    "Serve in a process of its own with these arguments, and return what it printed."
    (folder / "script.py").write_text(SCRIPT)
    env = {**clean_environ(), "CUP_PORT": "0", "SPECTRAKIT_SESSION_START": str(time.time()), **environ}
    done = run_script(folder, folder / "script.py", json.dumps([words, named]), env=env, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_local_gateway_gets_what_predict_says(cup, tmp_path):
    data, run = cup
    said = serve(tmp_path, "table", run, data, KAGGLE_IS_COMPETITION_RERUN="")  # an empty one says no
    assert "SERVED 3 OF 3" in said
    found = pd.read_csv(tmp_path / "submission.csv")
    expected = pd.read_csv(sk.predict("table", run, out=tmp_path / "expected.csv").table)
    assert list(found["id"]) == list(expected["id"]) == list(range(200, 210))
    assert np.allclose(found["price"], expected["price"], atol=1e-3)


@pytest.mark.long
def test_batches_of_polars_are_answered_in_polars(cup, tmp_path):
    data, run = cup
    pytest.importorskip("polars", reason="polars is not installed")
    (tmp_path / "framed.py").write_text(FRAMED)
    told = serve(
        tmp_path, f"{tmp_path / 'framed.py'}:Framed", run, data, KAGGLE_IS_COMPETITION_RERUN="", CUP_TABLES="polars"
    )
    assert "SERVED 3 OF 3" in told, told
    found = pd.read_csv(tmp_path / "submission.csv")
    expected = pd.read_csv(sk.predict("table", run, out=tmp_path / "expected.csv").table)
    assert list(found["id"]) == list(expected["id"]) and np.allclose(found["price"], expected["price"], atol=1e-3)


def test_a_rerun_with_a_hidden_set_ends_with_an_answer_for_each_row(cup, tmp_path):
    """More rows, other ids, a new colour. One batch has an error, with one the process that predicts is killed, and the
    last one (1028) sleeps for 600 s, so that `batch_s` cuts it: these have the prior, all others are predicted.

    Where it takes a machine longer than `batch_s` to start the next process, the batches in between have the prior too.
    """
    data, run = cup
    hidden = rows(1000, 30, ("red", "green"))
    hidden.to_csv(tmp_path / "hidden.csv", index=False)
    (tmp_path / "moody.py").write_text(TASK)
    told = {"CUP_HIDDEN": str(tmp_path / "hidden.csv"), "KAGGLE_IS_COMPETITION_RERUN": "1", "CUP_LIMIT_S": "300"}
    said = serve(tmp_path, f"{tmp_path / 'moody.py'}:Moody", run, data, batch_s=30, **told)
    found = pd.read_csv(tmp_path / "submission.csv").set_index("id")["price"]
    assert list(found.index) == list(range(1000, 1030)) and found.notna().all()
    groups = [found.loc[first : first + 3] for first in range(1000, 1030, 4)]
    waited = re.search(r"(\d) with the standing answer: the process that predicts is not there yet", said)
    late = int(waited[1]) if waited else 0
    assert f"SERVED {5 - late} OF 8" in said and late < 4, said
    assert [group.nunique() for group in groups] == [4, 1, 1, *[1] * late, *[4] * (4 - late), 1], said
    assert set(groups[1]) == {100.0}  # as in the sample submission
    for word in ("serve_dataset raised KeyError: 'size'", "has died; another one is started", "not answered in time"):
        assert word in said


@pytest.fixture(scope="module")
def three(cup) -> list[Path]:
    "Runs of the seeds 1 to 3, which predict other things."
    data, run = cup
    words = (*WORDS, f"run.dir={run.parent}", f"task.data={data}", "trainer.max_epochs=2", "optimizer.lr=0.01")
    return [sk.fit("table", *words, f"seed={seed}", show=False).raise_for_status().path for seed in (1, 2, 3)]


@pytest.mark.long
def test_several_runs_answer_as_predict_averages_them(cup, three, tmp_path):
    "On two devices; a run that has lost its checkpoints is named and left out."
    data, _ = cup
    broken = shutil.copytree(three[2], tmp_path / "broken")
    shutil.rmtree(broken / "checkpoints")
    runs, named = [str(three[0]), str(three[1]), str(broken)], {"data": str(data), "how": [3, 1, 2]}
    said = serve_with(tmp_path, ["table", "trainer.devices=2"], {"runs": runs, **named})
    assert "SERVED 3 OF 3" in said and "broken is left out: broken has no valid checkpoint" in said, said
    found = pd.read_csv(tmp_path / "submission.csv")
    expected = pd.read_csv(sk.predict("table", runs=three[:2], how=[3, 1], out=tmp_path / "expected.csv").table)
    single = pd.read_csv(sk.predict("table", three[0], out=tmp_path / "single.csv").table)
    assert list(found["id"]) == list(expected["id"]) and np.allclose(found["price"], expected["price"], atol=1e-3)
    assert not np.allclose(found["price"], single["price"], atol=1e-3)


@pytest.mark.long
def test_models_that_fail_or_hang_leave_the_answers_to_the_others(cup, three, tmp_path):
    data, _ = cup
    rows(1000, 16).to_csv(tmp_path / "hidden.csv", index=False)
    (tmp_path / "picky.py").write_text(PICKY)
    told = {"CUP_HIDDEN": str(tmp_path / "hidden.csv"), "KAGGLE_IS_COMPETITION_RERUN": "1", "CUP_LIMIT_S": "300"}
    named = {"runs": list(map(str, three)), "data": str(data), "batch_s": 30}
    said = serve_with(tmp_path, [f"{tmp_path / 'picky.py'}:Picky", "trainer.devices=2"], named, **told)
    found = pd.read_csv(tmp_path / "submission.csv")
    assert "SERVED 4 OF 4" in said and found["price"].nunique() == 16, said
    names = [run.name for run in three]
    assert f"{names[1]} did not answer: Picky.serve_dataset raised KeyError: 'size'" in said
    assert f"{names[2]} did not answer in time" in said and f"{names[0]} was busy with an earlier batch" in said


@pytest.mark.parametrize(
    "hours, told, predicted",
    [(8.95, "no batch is predicted: the session ends soon", 0), (10, "the limit is long over, so it is not this", 3)],
    ids=["ends_soon", "outlived"],
)
def test_the_end_of_the_session_follows_from_its_start(cup, tmp_path, hours, told, predicted):
    "Kaggle's usual 9 hours; a session that is there after them has another limit."
    data, run = cup
    began = {"SPECTRAKIT_SESSION_START": str(time.time() - hours * 3600), "CUP_HIDDEN": str(data / "test.csv")}
    said = serve(tmp_path, "table", run, data, KAGGLE_IS_COMPETITION_RERUN="1", **began)
    assert told in said and f"SERVED {predicted} OF 3" in said, said
    assert len(pd.read_csv(tmp_path / "submission.csv")) == 10


def test_the_time_limit_of_the_training_is_not_that_of_serving(cup, tmp_path):
    data, _ = cup
    words = (*WORDS, f"run.dir={tmp_path}", f"task.data={data}", "trainer.max_steps=1")
    words = (*words, "watchdog.limit=10m", "watchdog.since=run")
    run = sk.fit("table", *words, show=False).raise_for_status().path
    said = serve(tmp_path, "table", run, data, SPECTRAKIT_SESSION_START=str(time.time() - 3600))
    assert "no time limit (no limit on local)" in said and "SERVED 3 OF 3" in said, said


def test_what_cannot_be_served_is_said_before_the_server_begins(cup, tmp_path, monkeypatch):
    data, run = cup
    with pytest.raises(RequestError, match=r"Write `serve_dataset\(cfg, \*given\)`"):
        sk.serve("digits", run, data=data)
    for given in ({}, {"run": run, "runs": [run]}, {"runs": [run], "how": "rank"}, {"runs": [run], "how": [1, 2]}):
        with pytest.raises(RequestError):
            sk.serve("table", data=data, **given)
    with pytest.raises(RequestError, match="no evaluation API"):
        sk.serve("table", run, data=tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="No kaggle_evaluation was found among the inputs"):
        sk.serve("table", run)
