"What batches are answered with, and how long the process is waited for, beside a process that never comes."

import time
from multiprocessing.connection import Client
from types import SimpleNamespace

import pandas as pd
import pytest

import spectrakit as sk
from helpers import wait_for
from spectrakit.serving import answering
from spectrakit.serving.answering import Answers
from spectrakit.serving.standing_answer import StandingAnswer
from spectrakit.system.errors import RequestError

BATCH = pd.DataFrame({"id": [7, 8, 9], "size": [1.0, 2.0, 3.0]})


def answers(prior, batch_s=240.0):
    "Answers of nobody; how long each batch was waited for, in seconds; and what was said."
    waited, said = [], []

    def wait(until):
        waited.append(until - time.monotonic())

    nobody = SimpleNamespace(model="", failed="", notes=[], wait=wait)
    return Answers(nobody, StandingAnswer(prior), batch_s, lambda: None, said.append), waited, said


def test_only_the_first_batch_waits_for_the_model_to_be_loaded():
    "A gateway has no limit for its first call, and one for all others."
    asked, waited, _ = answers(0.5)
    for _ in range(3):
        assert asked.answer(BATCH) == 0.5
    assert waited[0] > 480 and max(waited[1:]) <= 240


def test_where_the_function_of_a_prior_fails_what_is_usual_is_answered():
    def prior(batch):
        raise KeyError("colour")

    asked, _, said = answers(prior)
    asked.standing.learn(pd.DataFrame({"id": [1, 2], "y": [4.0, 4.0]}))
    assert list(asked.answer(BATCH)["y"]) == [4.0] * 3
    assert "`prior` raised KeyError: 'colour'. The usual value is answered in its place" in said


@pytest.mark.parametrize("batch_s", [0, -1, float("nan"), float("inf"), "4m", True, None])
def test_a_time_for_a_batch_that_is_none_is_refused(batch_s):
    with pytest.raises(RequestError, match="batch_s"):
        sk.serve("table", "nowhere", batch_s=batch_s)


@pytest.mark.parametrize("status", ["failed", "completed"])
def test_a_process_that_leaves_by_itself_is_started_again(monkeypatch, status):
    "As with `os._exit`, which no supervisor takes for a crash; a process that never came is not started again."
    starts, made = [], []

    def launch(job, task, tick):
        starts.append(task)
        if len(starts) <= 3:
            Client(job.extra["address"]).send((0, f"start {len(starts)}", []))
            wait_for(lambda: made and made[0].model == f"start {len(starts)}", "the process is taken")
        return SimpleNamespace(status=status, reason="exit status 7")

    monkeypatch.setattr(answering, "launch", launch)
    made.append(worker := answering.Worker(SimpleNamespace(extra={}), "task"))
    worker.threads[0].join(60)
    assert len(starts) == 4 and worker.failed == "the process that predicts has ended: exit status 7"
    worker.close()


def test_a_mended_answer_is_counted_and_told_once():
    asked, _, said = answers(0.5)
    asked._predicted = lambda given, began: (float("nan"), [])
    assert [asked.answer(BATCH) for _ in range(3)] == [0.5] * 3
    assert said == ["batch 1: it was nan, and was mended"] and "3 mended: it was nan" in str(asked.served)
