"What goes wrong in predicting is one sentence that names the method, and costs the run nothing."

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from helpers import why_failed
from spectrakit.api import actions
from spectrakit.api.run import summarize
from spectrakit.checkpoint.store import find_checkpoint, verify
from spectrakit.prediction.submission_file import read_record
from spectrakit.runs.events import read_events
from spectrakit.system.errors import RequestError

X = torch.randn(12, 3, generator=torch.Generator().manual_seed(1))


class Mine(sk.Task):
    "A sum of three numbers. What is wrong is given as keywords."

    def datasets(self, cfg):
        data = TensorDataset(X, X.sum(1, keepdim=True))
        return data, data

    def model(self, cfg):
        return nn.Linear(3, 1)

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


def mine(**methods):
    return type("Mine", (Mine,), {name: lambda self, *a, f=f: f(*a) for name, f in methods.items()})()


def config(tmp_path, *words):
    where = ("trainer.accelerator=cpu", "launch.mode=inline", f"run.dir={tmp_path}", "dataloader.num_workers=0")
    return sk.compose(*where, "data.batch_size=6", "trainer.max_epochs=1", *words)


class Late(torch.utils.data.Dataset):
    "Samples that can be read in the sanity check, and no longer afterwards."

    def __init__(self):
        self.read = 0

    def __len__(self):
        return 12

    def __getitem__(self, i):
        self.read += 1
        if self.read > 18:
            raise KeyError("star 7")
        return (X[i],)


def nan(model, batch):
    return model(batch[0]) * float("nan")


class Dying(Mine):
    "100 samples to predict, of which the last 40 end the process."

    def test_dataset(self, cfg):
        return TensorDataset(torch.arange(100.0)[:, None].expand(-1, 3))

    def predict(self, model, batch):
        if batch[0].max() >= 60:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch[0][:, 0]

    def sample_submission(self, cfg):
        return {"id": range(100), "answer": [0.5] * 100}

    def submission(self, predictions):
        return {"answer": predictions, "id": np.arange(len(predictions), dtype=float)}


def messages(run):
    return [event["text"] for event in read_events(run.path / "events.jsonl") if event["type"] == "message"]


LATE = Late()
EMPTY = TensorDataset(X[:0])
BEFORE = {
    "nothing": ({"submission": lambda p: None}, ["`submission` returned NoneType"]),
    "a number for a column": ({"submission": lambda p: {"a": 1.0}}, ["`submission`", "'a' as float", "an array"]),
    "a text for a column": ({"submission": lambda p: {"a": "xyz"}}, ["`submission`", "'a' as str"]),
    "no columns": ({"submission": lambda p: {}}, ["`submission`", "without columns"]),
    "a wrong key": ({"submission": lambda p: p["id"]}, ["Mine.submission raised IndexError", "on.py, line"]),
    "a name that is not there": ({"submission": lambda p: no_such_name(p)}, ["Mine.submission raised NameError"]),  # noqa: F821  # that is it
    "too few rows, and all are there": (
        {"submission": lambda p: {"id": range(7), "y": p[:, 0]}, "test_dataset": lambda cfg: (X[:6],)},
        ["different lengths: {'id': 7, 'y': 6}"],
    ),
    "a name of another library": (
        {"test_data": lambda cfg: (X,)},
        ["has a method `test_data`", "meant as `test_dataset`"],
    ),
    "no test data": ({"test_dataset": lambda cfg: EMPTY}, ["Mine.test_dataset returned no samples"]),
    "no data at all": (
        {"datasets": lambda cfg: (TensorDataset(X, X[:, :1]), None)},
        ["Mine has no data to predict", "`test_dataset(cfg)`"],
    ),
    "complex numbers": (
        {"predict": lambda model, batch: model(batch[0]).to(torch.complex64)},
        ["Mine.predict returned complex64", "`submission(predictions)`"],
    ),
}
AFTER = {
    "a bad column of a table": (
        {"submission": lambda p: type("Table", (), {"to_csv": lambda self, index: 1 / 0})()},
        ["Mine.submission raised ZeroDivisionError", "predictions.npz"],
    ),
    "columns of other lengths": ({"submission": lambda p: {"id": [1, 2], "y": p[:, 0]}}, ["different lengths"]),
    "samples that cannot be read": ({"test_dataset": lambda cfg: LATE}, ["Mine.test_dataset", "star 7"]),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_would_fail_after_training_is_told_before(tmp_path, name):
    methods, words = BEFORE[name]
    arguments = (mine(**methods), config(tmp_path))
    if "test_data" in methods:  # this is found before a process is started
        with pytest.raises(RequestError) as refusal:
            sk.fit(*arguments, predict=tmp_path / "table.csv", show=False)
        told = str(refusal.value)
    else:
        told = why_failed(sk.fit(*arguments, predict=tmp_path / "table.csv", show=False))
    assert [word for word in words if word not in told] == [], told


@pytest.mark.parametrize("name", AFTER)
def test_what_fails_after_training_is_a_sentence_and_the_run_stays(tmp_path, capsys, name):
    methods, words = AFTER[name]
    run = sk.fit(mine(**methods), config(tmp_path), predict=tmp_path / "table.csv", show=False)
    told = [line for line in capsys.readouterr().err.splitlines() if "no predictions were made" in line]
    assert len(told) == 1 and [word for word in words if word not in told[0]] == [], told
    state = read_record(run.path)  # nothing, or one guess for all, or what was predicted before
    assert (
        run.status == "completed"
        and (state is None or not state.is_whole)
        and bool(state) == (tmp_path / "table.csv").exists()
    )
    best, notes = find_checkpoint(run.path / "checkpoints", "BEST")
    assert not notes and not verify(best)


def test_what_needs_all_predictions_is_not_refused_and_nobody_is_bothered_who_did_not_ask(tmp_path):
    sample = {"id": [f"star {i}" for i in range(12)]}
    whole = mine(submission=lambda p: {**sample, "y": [p[i, 0] for i in range(12)]})
    run = sk.fit(whole, config(tmp_path), predict=tmp_path / "table.csv", show=False)
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 13
    assert any("could not be checked on one batch: Mine.submission raised IndexError" in m for m in messages(run))
    run = sk.fit(mine(submission=lambda p: None, predict=nan), config(tmp_path), show=False)
    assert run.status == "completed" and any("`submission` returned NoneType" in m for m in messages(run))


def test_predictions_that_are_no_numbers_are_counted(tmp_path, capsys):
    task = mine(predict=nan, test_dataset=lambda cfg: (X,))
    run = sk.fit(task, config(tmp_path), predict=tmp_path / "table.csv", show=False)
    assert any(m.startswith("The result of Mine.predict for a test batch holds 6 values that") for m in messages(run))
    assert "12 of 12 values of predictions are not finite" in capsys.readouterr().err


def test_a_table_of_the_validation_data_says_that_it_is_one(tmp_path, capsys):
    run, words = sk.fit(mine(), config(tmp_path), predict=tmp_path / "table.csv", show=False), "the validation data"
    assert words in capsys.readouterr().err and [words in note for note in run.submission.notes] == [True]
    assert words in json.loads((run.path / "summary.json").read_text())["submission"]["notes"][0]
    sk.predict(mine(), run, out=tmp_path / "again.csv")
    assert words in capsys.readouterr().err
    sk.predict(mine(), run)  # no table that could be handed in
    sk.predict(mine(test_dataset=lambda cfg: (X,)), run, out=tmp_path / "tested.csv")
    assert words not in capsys.readouterr().err


def test_predictions_are_shown_by_their_shapes(tmp_path):
    run = sk.fit(mine(), config(tmp_path), predict=tmp_path / "table.csv", show=False)
    shown = repr(sk.predict(mine(), run, out=tmp_path / "table.csv"))
    assert shown.startswith("Predictions: predictions [12, 1], targets [12, 1]; in ") and "\n" not in shown
    assert shown.endswith("predictions.npz; table.csv: 12 of 12 samples are predicted")


def test_predict_on_its_own_says_the_same(tmp_path):
    run = sk.fit(Mine(), config(tmp_path), show=False)
    with pytest.raises(RequestError, match=r"Mine\.submission raised IndexError.*Correct it there"):
        sk.predict(mine(submission=lambda p: p["id"]), run, out=tmp_path / "table.csv")
    with pytest.raises(RequestError, match=r"Mine\.predict raised ValueError: .* on a test batch"):
        sk.predict(mine(predict=lambda model, batch: int("no")), run)
    with pytest.raises(RequestError, match=r"Mine\.test_dataset raised FileNotFoundError.*when it was called"):
        sk.predict(mine(test_dataset=lambda cfg: Path("no-such-file").read_text()), run)


@pytest.mark.slow
@pytest.mark.parametrize("given", [X.double().numpy(), (X.double().numpy(),), (X.double().numpy(), np.zeros((12, 1)))])
def test_arrays_to_predict_on_are_wrapped(tmp_path, given):
    task = mine(test_dataset=lambda cfg: given)
    run = sk.fit(task, config(tmp_path), predict=tmp_path / "table.csv", show=False)
    with torch.no_grad():
        expected = run.load_model(task)(X).numpy()
    # a processor may add in another order where a batch has another size
    np.testing.assert_allclose(sk.predict(task, run).values, expected, rtol=1e-4, atol=1e-6)
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 13


def test_validation_arrays_are_predicted_on(tmp_path):
    arrays = X.numpy(), X.sum(1, keepdim=True).numpy()
    task = mine(datasets=lambda cfg: (arrays, arrays))
    found = sk.predict(task, sk.fit(task, config(tmp_path), show=False))
    np.testing.assert_array_equal(found.targets, arrays[1])


def test_a_table_to_predict_on_is_refused_before_training(tmp_path):
    pandas = pytest.importorskip("pandas")
    task = mine(test_dataset=lambda cfg: pandas.DataFrame(X.numpy()))
    why_failed(
        sk.fit(task, config(tmp_path), predict=tmp_path / "table.csv", show=False),
        r"test_dataset returned a DataFrame.*TensorDataset\(.*float32\"\)\)\)\.$",
    )


def test_an_error_in_a_process_that_reads_samples_is_one_line(tmp_path):
    class Broken(Late):
        def __getitem__(self, i):
            raise KeyError("star 9")

    words = ("dataloader.num_workers=1", "data.resident_gib=0")
    why_failed(
        sk.fit(mine(datasets=lambda cfg: (Broken(), None)), config(tmp_path, *words), show=False),
        r"Mine\.datasets raised KeyError: 'star 9', at sample \d+ of the data set .*\(test_prediction\.py, line",
    )


@pytest.mark.slow
def test_single_samples_and_batch_norm_are_not_answered_with_drop_last(tmp_path):
    task = mine(model=lambda cfg: nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)))
    told = why_failed(
        sk.fit(task, config(tmp_path, "data.batch_size=1"), show=False), "batch norm.*data.micro_batch_size to 2"
    )
    assert "drop_last" not in told


def test_an_error_in_model_names_it(tmp_path):
    why_failed(
        sk.fit(mine(model=lambda cfg: nn.Linear(3, 1)[0]), config(tmp_path), show=False),
        r"Mine\.model raised TypeError: 'Linear' object is not .*line",
    )


@pytest.mark.slow
def test_a_process_that_dies_while_it_predicts_leaves_a_submission(tmp_path, capsys):
    """The sample is there before the training; what was predicted is in it, and the rest holds the mean. The process
    that has trained predicts, dies, and another tries again.
    """
    out = tmp_path / "submission.csv"
    run = sk.fit(Dying(), config(tmp_path, "launch.mode=auto", "trainer.devices=1"), predict=out, show=False)
    state, rows = read_record(run.path, out), out.read_text().splitlines()
    assert run.status == "completed" and state.source == "predictions" and 6 <= state.predicted < 60
    assert rows[:3] == ["id,answer", "0,0.0", "1,1.0"] and len(rows) == 101
    mean = (state.predicted - 1) / 2
    assert [float(row.split(",")[1]) for row in rows[1:]] == [*range(state.predicted)] + [mean] * (
        100 - state.predicted
    )
    assert f"{state.predicted} of 100 samples are predicted" in capsys.readouterr().err
    assert json.loads((run.path / "summary.json").read_text())["submission"]["predicted"] == state.predicted
    assert (run.path / "logs" / "rank-0.log").is_file() and not (run.path / "predictions.npz").exists()


@pytest.mark.slow
def test_no_time_is_held_back_for_a_start_that_is_not_needed(tmp_path):
    """The processes that train predict as well, where that was asked for in the same call; else another process has to
    start.
    """
    kept = []
    for number, out in enumerate((tmp_path / "table.csv", None)):
        words = ("launch.mode=auto", "trainer.devices=1", "watchdog.limit=1h", "watchdog.since=run")
        task = mine(test_dataset=lambda cfg: (X,))
        run = sk.fit(task, config(tmp_path / str(number), *words), predict=out, show=False)
        kept.append(next(e["held"] for e in read_events(run.path / "events.jsonl") if e["type"] == "budget"))
    assert ["starting to predict" in held for held in kept] == [False, True]


def test_the_submission_comes_before_the_summary_and_the_pictures(tmp_path, monkeypatch):
    out, seen, launch = tmp_path / "submission.csv", [], actions.launch

    def without_predictions(job, *rest):
        "As if the time or a fault had ended the training process before it could predict."
        return launch(replace(job, out=None) if job.kind.name == "train" else job, *rest)

    def looking(run, draw=True):
        seen.append((read_record(run.path, out).source, draw))
        return summarize(run, draw)

    monkeypatch.setattr(actions, "launch", without_predictions)
    monkeypatch.setattr(actions, "summarize", looking)
    run = sk.fit(mine(), config(tmp_path), predict=out, show=False)
    assert seen == [("predictions", True)]
    assert json.loads((run.path / "summary.json").read_text())["submission"]["predicted"] == 12
    assert (run.path / "curves.png").is_file()
