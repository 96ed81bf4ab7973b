"""The clock of a run: what is held back, what is not begun, what is stopped inside, and what a bad loss leads to."""

import itertools
import math
import os
import time

import pytest
import torch

from rank_tasks import Curve
from spectrakit.api.actions import fit
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.distributed.hang_detector import HURRY, STOP
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.train.loop import train_run
from spectrakit.train.parts import clock as clock_part
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit, make_budget, time_limit
from tasks import in_sanity_check

SETTINGS = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "trainer.accelerator=cpu",
    "data.micro_batch_size=8",
    "trainer.max_epochs=4",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "run.console=none",
)
pytestmark = pytest.mark.usefixtures("here")


class Clock:
    "A clock that a test sets."

    def __init__(self):
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def budget(self, limit_s: float = 1000.0, **held: float) -> Budget:
        budget = Budget(TimeLimit(limit_s, 0.0, "a test"), grace_s=0.0, clock=self.read, wall=lambda: 0.0)
        budget.parts["margin"] = 0.0
        for kind, seconds in held.items():
            budget.expect(kind, seconds, at_least=True)
        return budget


@pytest.fixture
def clock(monkeypatch) -> Clock:
    "The clock of the whole process: it moves where the test moves it."
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.read)
    return clock


@pytest.fixture
def train(tmp_path):
    "A function that trains in this process: (status, reason, events, folder)."

    def run(task, *words, budget=None, stop=lambda: 0, name="run", resume=False):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        config = compose(*SETTINGS, *words)
        context = create_run_context(config, detect({"PATH": ""}, shell=""))
        execution = Execution(context, folder, budget or Budget(TimeLimit(None, 0.0, "none")), stop)
        ended = train_run(task, config, execution, resume)
        return *ended, read_events(folder / "events.jsonl"), folder

    return run


def texts(events) -> str:
    return "\n".join(e["text"] for e in events if e["type"] == "message")


def saved(folder) -> str:
    return find_checkpoint(folder / "checkpoints")[0].name


class Ticking(Curve):
    "A training batch takes `step_s` of a test's clock, an evaluation batch `eval_s`."

    def __init__(self, clock, step_s=1.0, eval_s=0.0):
        self.clock, self.step_s, self.eval_s, self.passes = clock, step_s, eval_s, 0

    def loss(self, model, batch):
        if not in_sanity_check():
            self.clock.now += self.step_s if model.training else self.eval_s
            self.passes += not model.training
        return super().loss(model, batch)


# what fits


def test_an_evaluation_that_would_not_end_in_time_is_not_begun(train):
    clock = Clock()
    task = Ticking(clock)
    status, reason, events, folder = train(
        task, "trainer.check_val_every_n_steps=3", budget=clock.budget(8.5, eval=5.0, save=1.0)
    )
    assert status == "out_of_time" and "the last evaluation (5 s)" in reason
    assert (
        columns(events, "eval", "step")["step"] == [] and saved(folder) == "step-00000003"
    )  # 5.5 s are left, and 6 s are held back
    assert "no time for a last evaluation" in texts(events)


def test_an_evaluation_is_stopped_inside_and_its_half_result_is_nobodys(train):
    clock = Clock()

    class Late(Ticking):
        def loss(self, model, batch):
            if not model.training and self.passes > 0:
                self.clock.now += 40.0  # much longer than the one that was timed
            return super().loss(model, batch)

    task = Late(clock)
    status, _reason, events, folder = train(task, "data.eval_batch_size=4", budget=clock.budget(60.0, save=1.0))
    assert status == "out_of_time" and "was stopped after" in texts(events)
    assert columns(events, "eval", "step")["step"] == [] and saved(folder) == f"step-{events[-1]['step']:08d}"
    assert not (folder / "checkpoints" / "BEST").exists()


def test_no_epoch_is_begun_that_would_not_end_where_that_is_wanted(train, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(clock_part, "step_cost", lambda s: 1.0)  # as the clock of this test goes
    words = ("trainer.max_epochs=1000", "checkpoint.enabled=false", "watchdog.whole_epochs=true")
    status, reason, events, _ = train(Ticking(clock), *words, budget=clock.budget(14.0))
    per_epoch = last_event(events, "start")["steps_per_epoch"]
    assert per_epoch == 5 and status == "out_of_time" and "an epoch takes 5 s" in reason and events[-1]["step"] == 10


# plans


@pytest.mark.parametrize("plan", ["anneal", "fit_epochs"])
def test_the_schedule_ends_when_the_time_does(train, plan, clock):
    budget = Budget(TimeLimit(5.0, 0.0, "a test"), reserve_s=1.0, clock=clock.read, wall=lambda: 0.0)
    status, reason, events, _ = train(
        Ticking(clock, 0.01),
        f"watchdog.plan={plan}",
        "trainer.max_epochs=1000",
        "checkpoint.enabled=false",
        "scheduler.name=cosine",
        "optimizer.lr=0.1",
        budget=budget,
    )
    start, rates, steps = last_event(events, "start"), columns(events, "step", "lr")["lr"], events[-1]["step"]
    assert status == "completed" and f"of {start['total_steps']} requested" in reason, reason
    assert 50 < steps < start["total_steps"] / 4 and rates[-1] < 0.1 * max(rates) / 5
    assert max(abs(a - b) for a, b in itertools.pairwise(rates)) < 0.05  # it never jumps
    if plan == "fit_epochs":
        assert steps % start["steps_per_epoch"] == 0
    assert f"watchdog.plan={plan}" in texts(events) and budget.left_s() > 0


def test_a_plan_with_enough_time_changes_nothing(train):
    with_time = train(
        Curve(), "watchdog.plan=anneal", budget=Budget(TimeLimit(3600.0, time.time(), "a test")), name="with"
    )
    without = train(Curve(), name="without")
    assert columns(with_time[2], "step", "lr") == columns(without[2], "step", "lr")
    a, b = (load_weights(find_checkpoint(folder / "checkpoints")[0]) for folder in (with_time[3], without[3]))
    assert all(torch.equal(a[name], b[name]) for name in a)


# what is held back


class Predicted(Curve):
    "With test data."

    def test_dataset(self, cfg):
        return self.datasets(cfg)[1]


class SlowlyPredicted(Predicted):
    "Each batch of its test data takes 0.05 s of a test's clock."

    def __init__(self, clock):
        self.clock = clock

    def predict(self, model, batch):
        self.clock.now += 0.05
        return super().predict(model, batch)


def test_the_time_of_the_test_predictions_is_measured_and_held_back(train, clock):
    budget = Budget(TimeLimit(3600.0, 0.0, "a test"), clock=clock.read, wall=lambda: 0.0)
    _, _, events, _ = train(SlowlyPredicted(clock), "data.micro_batch_size=1", "trainer.max_steps=2", budget=budget)
    samples = len(Predicted().test_dataset(compose()))
    assert 0.05 * samples < budget.parts["predict"] < 0.1 * samples + 1
    first, *_, last = [e for e in events if e["type"] == "budget"]
    assert "the test predictions" in first["told"] and last["held"]["the test predictions"] == pytest.approx(
        budget.parts["predict"]
    )


class NoTestData(Curve):
    def test_dataset(self, cfg):
        raise FileNotFoundError("test.csv")


def test_test_data_that_are_not_there_are_told_and_refused_only_where_they_were_asked_for(train):
    budget = Budget(TimeLimit(3600.0, time.time(), "a test"))
    status, _, events, _ = train(NoTestData(), "trainer.max_steps=2", budget=budget, name="told")
    assert status == "completed" and "because there are no test data: FileNotFoundError: test.csv" in texts(events)
    budget.predictions = True
    status, reason, *_ = train(NoTestData(), "trainer.max_steps=2", budget=budget, name="refused")
    assert status == "failed" and "FileNotFoundError: test.csv" in reason


def test_the_users_reserve_and_grace_replace_what_is_measured():
    config = compose("watchdog.limit=1h", "watchdog.since=run", "watchdog.reserve=20m", "watchdog.grace=5s")
    budget = make_budget(config, time_limit(config, detect()))
    budget.observe("eval", 3000)
    assert budget.reserve_s() == 1200 and budget.parts["grace"] == 5 and not budget.should_stop()
    inline = compose("watchdog.limit=1h", "watchdog.since=run", "launch.mode=inline")
    assert make_budget(inline, time_limit(inline, detect())).parts["grace"] == 0


@pytest.mark.parametrize("said", ["9:00", "540", "8", "soon", "-3h"])
def test_a_limit_that_could_mean_two_things_is_refused(said):
    with pytest.raises(RequestError, match="watchdog.limit"):
        compose(f"watchdog.limit='{said}'")


@pytest.mark.parametrize("said", ["17:30", "tomorrow", "2026-13-01T10:00", "12"])
def test_a_deadline_that_is_no_moment_is_refused(said):
    with pytest.raises(RequestError, match="2026-11-21T17:30"):
        compose(f"watchdog.deadline='{said}'")


def test_a_deadline_in_yaml_needs_no_quotes(tmp_path):
    (tmp_path / "mine.yaml").write_text("watchdog:\n  deadline: 2099-11-21T17:30:00\n")
    assert compose(config=tmp_path / "mine.yaml").watchdog.deadline.startswith("2099-11-21")


# SIGTERM


def test_sigterm_saves_at_once_and_leaves_out_an_evaluation_that_takes_too_long(train):
    clock = Clock()
    task = Ticking(clock)
    budget = clock.budget(1e6, eval=30.0, save=1.0)
    status, reason, events, folder = train(task, budget=budget, stop=lambda: STOP | HURRY if task.clock.now > 3 else 0)
    assert status == "interrupted" and "SIGTERM" in reason and columns(events, "eval", "step")["step"] == []
    assert saved(folder) == f"step-{events[-1]['step']:08d}" and "no time for a last evaluation" in texts(events)


# a loss that is not finite


class Poisoned(Curve):
    "Its loss is not finite in the training batches `bad`, counted from 0; each of them once, or every time (`always`)."

    def __init__(self, bad, value=math.nan, always=False):
        self.bad, self.value, self.always, self.count, self.seen = set(bad), value, always, 0, []

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if not model.training:
            return loss
        number, self.count = self.count, self.count + 1
        if number not in self.bad:
            return loss
        if not self.always:
            self.bad.discard(number)
        return loss * self.value


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_skip_leaves_out_the_step_and_nothing_else(train, value):
    status, reason, events, folder = train(
        Poisoned({3, 7}, value), "training.nan_policy=skip", "scheduler.name=constant", "optimizer.weight_decay=0"
    )
    assert status == "completed", reason
    assert [e["skipped"] for e in events if e["type"] == "nan"] == [
        1,
        1,
    ] and "1 of the last 1 updates were skipped" in texts(events)
    losses = [e["loss"] for e in events if e["type"] == "step"]
    assert losses.count(None) == 2 and all(loss > 0 for loss in losses if loss is not None)  # no loss of 0 for nothing
    assert all(w.isfinite().all() for w in load_weights(find_checkpoint(folder / "checkpoints")[0]).values())


def test_skip_gives_up_where_no_update_is_left(train):
    status, reason, _events, _ = train(Poisoned(range(1000)), "training.nan_policy=skip", "trainer.max_epochs=30")
    assert status == "failed" and "The loss became nan" in reason


def test_rollback_goes_back_with_half_the_rate_and_ends_well(train):
    words = (
        "training.nan_policy=rollback",
        "checkpoint.every_n_steps=2",
        "optimizer.lr=0.01",
        "scheduler.name=constant",
    )
    status, reason, events, _folder = train(Poisoned({5, 9}), *words)
    assert status == "completed", reason
    restarts = [e for e in events if e["type"] == "restart"]
    assert [e["step"] for e in restarts] == [
        5,
        8,
    ] and "back to step 5 with 0.5 of the learning rate (1 of 3)" in restarts[0]["notes"][-1]
    assert columns(events, "step", "lr")["lr"][-1] == pytest.approx(0.01 / 4)
    assert len(events) and last_event(events, "end")["status"] == "completed"
    again = train(Curve(), *words, "trainer.max_epochs=5", resume=True)  # what is left of the rate is remembered
    assert again[0] == "completed"


def test_a_round_that_fails_names_the_outer_rate(train):
    failed = train(Poisoned({7}), "trainer.strategy.name=diloco", name="fails")
    assert failed[0] == "failed" and ", diloco.outer_lr (now 0.7) or set trainer.gradient_clip_val" in failed[1]


def test_rollback_says_that_there_was_nothing_to_go_back_to(train):
    status, reason, events, _ = train(
        Poisoned({3}), "training.nan_policy=rollback", "checkpoint.every_n_steps=50", "checkpoint.every_n_epochs=null"
    )
    assert status == "failed" and "no checkpoint to roll back to; set checkpoint.every_n_steps" in reason
    assert not [e for e in events if e["type"] == "restart"]


def test_rollback_gives_up_after_as_many_times_as_it_was_told(train):
    status, reason, events, folder = train(
        Poisoned(range(5, 1000), always=True),
        "training.nan_policy=rollback",
        "checkpoint.every_n_steps=2",
        "training.max_rollbacks=2",
    )
    assert (
        status == "failed"
        and "rolled back 2 times" in reason
        and len([e for e in events if e["type"] == "restart"]) == 2
    )
    assert all(w.isfinite().all() for w in load_weights(find_checkpoint(folder / "checkpoints")[0]).values())


def test_rollback_without_a_checkpoint_is_the_end(train):
    status, reason, _, _ = train(Poisoned({1}), "training.nan_policy=rollback")
    assert status == "failed" and "The loss became nan" in reason


class PoisonedRank(Poisoned):
    "Only on rank 1."

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss if os.environ.get("RANK") == "1" or math.isfinite(loss.item()) else Curve.loss(self, model, batch)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_two_ranks_do_the_same_about_a_loss_that_only_one_of_them_sees(policy):
    words = ("trainer.devices=2", "checkpoint.every_n_steps=2", "optimizer.lr=0.01", "scheduler.name=constant")
    run = fit(PoisonedRank({5}), compose(*SETTINGS, *words, f"training.nan_policy={policy}"), show=False)
    assert run.status == "completed", run.error
    if policy == "skip":
        assert [e["skipped"] for e in run.events if e["type"] == "nan"] == [1]
    else:
        assert last_event(run.events, "restart")["step"] == 4 and columns(run.events, "step", "lr")["lr"][
            -1
        ] == pytest.approx(0.005)
    assert all(w.isfinite().all() for w in run.load_model(Curve()).state_dict().values())


# the whole, in real time


class Stuck(Predicted):
    "Its training hangs at the second batch."

    def loss(self, model, batch):
        if model.training and not in_sanity_check():
            self.count = getattr(self, "count", 0) + 1
            if self.count == 2:
                time.sleep(3600)
        return super().loss(model, batch)


@pytest.fixture
def slow(here) -> float:
    "How many times as long as usual a run takes on this machine now."
    began = time.monotonic()
    assert fit(Predicted(), compose(*SETTINGS), predict="table.csv", show=False).status == "completed"
    return max(1.0, (time.monotonic() - began) / 4)  # two seconds on an idle machine


@pytest.mark.slow
def test_a_training_that_hangs_is_ended_from_outside_and_predicted_in_time(tmp_path):
    began = time.monotonic()
    run = fit(
        Stuck(),
        compose(*SETTINGS, "watchdog.limit=40s", "watchdog.since=run", "checkpoint.every_n_steps=1"),
        predict=tmp_path / "table.csv",
        show=False,
    )
    assert time.monotonic() - began < 40 and run.status == "out_of_time", run.error
    reason = last_event(run.events, "end")["reason"]
    # whichever comes first: that it gives no sign of life, or that its time is over
    assert (
        "did not stop by itself" in reason and "step-0000000" in reason
    ) or "no time is left to start again" in reason
    assert (
        find_checkpoint(run.path / "checkpoints")[0].name.startswith("step-0000000")
        and (tmp_path / "table.csv").is_file()
    )
    assert (
        "time.sleep(3600)" in (run.path / "logs" / "stacks-rank-0.txt").read_text()
        or "loss" in (run.path / "logs" / "stacks-rank-0.txt").read_text()
    )


@pytest.mark.slow
def test_without_a_checkpoint_a_training_that_hangs_has_failed_in_time(slow):
    limit_s, began = round(25 * slow), time.monotonic()
    run = fit(
        Stuck(),
        compose(*SETTINGS, f"watchdog.limit={limit_s}s", "watchdog.since=run", "checkpoint.enabled=false"),
        show=False,
    )
    assert (
        time.monotonic() - began < limit_s and run.status == "failed" and "no checkpoint was saved before" in run.error
    )
