"""Before there is a run: an interrupt is a sentence and leaves nothing behind; where no time is left to train, what can
be handed in is there.
"""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import spectrakit as sk
import spectrakit.api.actions as actions
import spectrakit.api.run as running
from odd_runs import plain_run
from spectrakit.config.compose import compose
from spectrakit.runs.events import log_file, read_events
from spectrakit.system.errors import RequestError
from spectrakit.watchdog.time_budget import NoTimeLeft
from tasks import Line

WORDS = ("trainer.accelerator=cpu", "trainer.max_epochs=1", "run.console=none", "launch.mode=inline")


@pytest.fixture(autouse=True)
def interrupts_arrive():
    "A shell starts what runs in its background with interrupts ignored; a notebook's kernel does not."
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["new_request", "plan_resume", "with_task"])
def test_an_interrupt_before_the_run_began_is_a_sentence(here, monkeypatch, name):
    real = getattr(actions, name)

    def pressed(*words):
        os.kill(os.getpid(), signal.SIGINT)
        return real(*words)

    config = compose(*WORDS)
    with monkeypatch.context() as changed:
        changed.setattr(actions, name, pressed)
        with pytest.raises(KeyboardInterrupt, match="before the run began: nothing was trained"):
            actions.fit(Line(), config)
    assert not list(here.glob("runs/*"))
    assert actions.fit(Line(), config).status == "completed"


class Handed(Line):
    "With test data and a sample of what is to be handed in."

    sample = True

    def test_dataset(self, cfg):
        return TensorDataset(torch.zeros(2, 3))

    def sample_submission(self, cfg):
        return {"id": [1, 2], "y": [7, 7]} if self.sample else None

    def submission(self, predictions):
        return {"id": [1, 2], "y": predictions[:, 0]}


LATE = ("watchdog.since=run", "watchdog.limit=1s")


def test_without_time_to_train_there_is_a_submission_nevertheless(here):
    run = actions.fit(Handed(), compose(*WORDS, *LATE), predict="submission.csv")
    assert run.status == "out_of_time" and "no time to train" in read_events(log_file(run.path))[-1]["reason"]
    assert Path("submission.csv").read_text() == "id,y\n1,7\n2,7\n" and run.submission.predicted == 0


def test_without_time_to_train_a_run_that_goes_on_keeps_what_it_has(here):
    class Stopped(Handed):
        def on_epoch(self, model, moment):
            next(here.glob("runs/*/events.jsonl")).with_name("STOP").touch()
            time.sleep(1.0)  # a thread looks for it four times a second

    words = (*WORDS, "trainer.max_epochs=50")
    first = actions.fit(Stopped(), compose(*words), show=False)
    saved = sorted(path.name for path in (first.path / "checkpoints").iterdir())
    late = actions.fit(Stopped(), compose(*words, *LATE), resume=first, predict="submission.csv", show=False)
    assert first.path == late.path and late.status == "out_of_time" and "step-" in saved[-1]
    assert saved == sorted(path.name for path in (first.path / "checkpoints").iterdir())
    assert read_events(log_file(late.path))[-1]["step"] > 0 and Path("submission.csv").exists()


@pytest.mark.parametrize("predict", [None, "submission.csv"])
def test_without_time_and_without_anything_to_hand_in_nothing_is_left_behind(here, predict):
    task = Handed()
    task.sample = False
    with pytest.raises(NoTimeLeft, match="no time to train"):
        actions.fit(task, compose(*WORDS, *LATE), predict=predict, show=False)
    assert not list(here.glob("runs/*")) and not Path("submission.csv").exists()


@pytest.mark.parametrize("name", ["made.parquet", "made.csv.gz", "made.XLSX"])
@pytest.mark.parametrize("begin", [sk.fit, sk.cross_validate])
def test_a_file_that_is_named_as_no_csv_is_refused_before_anything_trains(here, begin, name):
    with pytest.raises(RequestError, match=r"is not a name for CSV, the format of submissions. Name it made\.csv"):
        begin(Handed(), compose(*WORDS), predict=name, show=False)
    assert not list(here.iterdir())


def test_a_kill_in_the_final_summary_leaves_nothing_once_the_run_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "save_figure", lambda figure, path: path.write_bytes(b"drawn"))
    run = plain_run(tmp_path / "run")
    torn = run / f".summary.json.{'0' * 12}.{2**31 - 1}"
    torn.write_text('{"status": "compl')
    assert actions._finish_done(sk.open_run(run)).status == "completed"
    assert (run / "summary.json").is_file() and not torn.exists()
