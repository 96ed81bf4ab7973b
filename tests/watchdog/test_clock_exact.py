"""The clock, to the step: at which optimizer step a run ends, with a clock that only the test moves."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rank_tasks import Curve
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import read_events
from spectrakit.system.platforms.detect import detect
from spectrakit.system.platforms.platform import Platform
from spectrakit.train import loop
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit, fits, hurry, kill_at, make_budget, time_limit, usable_s
from tasks import in_sanity_check

pytestmark = pytest.mark.usefixtures("here")


class Clock:
    "Seconds that pass only where a test says so."

    def __init__(self):
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def budget(self, limit_s: float | None, reserve_s: float | None = None, **measured: float) -> Budget:
        "Time until `limit_s`, of which only what is `measured`, or `reserve_s`, is held back."
        budget = Budget(TimeLimit(limit_s, 0.0, "a test"), None, reserve_s, 0.0, clock=self.read, wall=lambda: 0.0)
        budget.parts["margin"] = 0.0
        budget.observe("step", 0.0)  # sums up anew
        for kind, seconds in measured.items():
            budget.observe(kind, seconds)
        return budget


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Ticking(Curve):
    "Each training batch takes `step_s` of the test's clock. There is no validation: only the clock ends it early."

    def __init__(self, clock: Clock, step_s: float):
        self.clock, self.step_s = clock, step_s

    def datasets(self, cfg):
        return super().datasets(cfg)[0], None

    def loss(self, model, batch):
        if model.training and not in_sanity_check():
            self.clock.now += self.step_s
        return super().loss(model, batch)


@pytest.fixture
def train(tmp_path):
    "A function that trains 40 steps, or fewer where the clock says so: (status, the last step, events)."

    def run(task: Curve, budget: Budget, *words: str) -> tuple[str, int, list[dict]]:
        config = compose(
            "local/accumulate_grad_batches=debug",
            "trainer.accelerator=cpu",
            "data.micro_batch_size=8",
            "trainer.max_steps=40",
            "checkpoint.every_n_epochs=null",
            "run.console=none",
            *words,
        )
        context = create_run_context(config, detect({"PATH": ""}, shell=""))
        status, _ = train_run(task, config, Execution(context, tmp_path, budget))
        events = read_events(tmp_path / "events.jsonl")
        return status, events[-1]["step"], events

    return run


EACH_STEP = ("trainer.log_every_n_steps=1", "trainer.log_min_seconds=0")


def test_the_clock_is_asked_at_every_step(train, clock):
    # after the tenth step no second is left; the loop asks nothing else in this run
    assert train(Ticking(clock, 10.0), clock.budget(100.0, reserve_s=0.0), *EACH_STEP)[:2] == ("out_of_time", 10)


@pytest.mark.parametrize(("reserve_s", "last"), [(0.0, 10), (20.0, 8), (25.0, 8), (30.0, 7), (89.0, 2)])
def test_what_is_reserved_is_not_trained_with(train, clock, reserve_s, last):
    status, step, events = train(Ticking(clock, 10.0), clock.budget(100.0, reserve_s), *EACH_STEP)
    assert (status, step) == ("out_of_time", last)
    assert 100.0 - clock.now <= reserve_s < 100.0 - clock.now + 10.0  # one step more would have eaten of it
    assert {event["reserve_s"] for event in events if event["type"] == "budget"} == {reserve_s}


def test_what_is_measured_is_reserved(train, clock):
    budget = clock.budget(100.0, submit=12.0, start=13.0)
    budget.observe = lambda kind, seconds: None  # real seconds of this machine are not the test's
    assert train(Ticking(clock, 10.0), budget, *EACH_STEP)[:2] == ("out_of_time", 8)  # 25 s are held back


def test_without_a_limit_nothing_ends_it(train, clock):
    assert train(Ticking(clock, 1e6), clock.budget(None), *EACH_STEP)[:2] == ("completed", 40)


def test_between_log_points_the_clock_is_asked_five_times_a_second(train, clock, monkeypatch):
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=clock.read, process_time=time.process_time))
    task = Ticking(clock, 0.0625)  # four steps are a quarter of a second
    status, step, _ = train(task, clock.budget(1.0, reserve_s=0.0), "trainer.log_every_n_steps=1000")
    assert status == "out_of_time" and 16 <= step <= 19  # asked at least at every fourth step


# the reserve


def test_the_reserve_is_the_sum_of_its_parts(clock):
    budget = clock.budget(1000.0)
    for kind, seconds in {"step": 1.0, "eval": 2.0, "save": 4.0, "start": 8.0, "predict": 16.0, "submit": 32.0}.items():
        before = budget.reserve_s()
        budget.observe(kind, seconds)
        assert budget.reserve_s() == before + seconds
    assert budget.reserve_s() == 63.0 and usable_s(budget) == 937.0


def test_the_longest_evaluation_counts_and_the_newest_step(clock):
    budget = clock.budget(1000.0)
    for seconds in (5.0, 9.0, 7.0):
        for kind in ("eval", "save", "step", "predict"):
            budget.observe(kind, seconds)
    assert [budget.parts[kind] for kind in ("eval", "save", "step", "predict")] == [9.0, 9.0, 7.0, 7.0]


def test_training_ends_when_what_is_left_is_what_is_reserved(clock):
    budget = clock.budget(100.0, reserve_s=40.0)
    clock.now = 59.99
    assert not budget.should_stop()
    clock.now = 60.0
    assert budget.should_stop() and budget.left_s() == 40.0 and usable_s(budget) == 0.0


def test_an_unmeasured_run_holds_back_a_margin_a_grace_and_its_end():
    budget = Budget(TimeLimit(1000.0, 0.0, "a test"), clock=lambda: 0.0, wall=lambda: 0.0)
    assert {k: v for k, v in budget.parts.items() if v} == {"margin": 20.0, "grace": 20.0, "end": 3.0}
    assert budget.reserve_s() == 43.0
    short = Budget(TimeLimit(50.0, 0.0, "a test"), clock=lambda: 0.0, wall=lambda: 0.0)
    assert (short.parts["margin"], short.parts["grace"]) == (3.0, 2.0)


def test_an_evaluation_is_begun_only_where_a_save_fits_after_it(clock):
    budget = clock.budget(100.0, eval=10.0, save=5.0, predict=20.0)
    clock.now = 65.0  # 35 s are left: 10 + 5 + 20
    assert fits(budget, "eval") and fits(budget, "save")
    clock.now = 65.5
    assert not fits(budget, "eval") and fits(budget, "save")
    clock.now = 75.5
    assert not fits(budget, "save")


def test_an_epoch_is_begun_only_where_it_leaves_the_reserve(clock):
    budget = clock.budget(100.0, reserve_s=30.0)
    assert fits(budget, "epoch", 69.0) and not fits(budget, "epoch", 70.0)


def test_a_training_that_does_not_end_is_killed_in_time_for_the_predictions(clock):
    budget = clock.budget(100.0, eval=10.0, save=5.0, start=2.0, predict=20.0, submit=3.0)
    assert kill_at(budget) == 75.0 and kill_at(clock.budget(None)) is None


def test_after_sigterm_only_the_grace_of_the_system_is_left(clock):
    budget = clock.budget(1000.0, eval=2.0, save=1.0, predict=20.0)
    clock.now = 100.0
    hurry(budget, 10.0)
    assert budget.left_s() == 10.0 and budget.reserve_s() == 3.0 and kill_at(budget) == 110.0


# whose limit


def platform(limit_s: float | None, source: str = "batch sessions last 12 h") -> Platform:
    "A machine whose session began at 1000 s."
    return replace(
        detect({"PATH": ""}, shell=""),
        name="kaggle",
        session_start=1000.0,
        session_start_source="a test",
        limit_s=limit_s,
        limit_source=source,
    )


def test_the_clock_runs_from_the_sessions_start():
    limit = time_limit(compose("watchdog.limit=1h"), platform(12 * 3600.0))
    assert (limit.session_start, limit.end, limit.set_by) == (1000.0, 4600.0, "watchdog.limit")
    assert time_limit(compose(), platform(12 * 3600.0)).end == 44200.0
    assert time_limit(compose("watchdog.limit=none"), platform(12 * 3600.0)).limit_s is None


def test_since_run_counts_from_the_run_and_never_past_a_session_that_goes_on():
    config = compose("watchdog.limit=1h", "watchdog.since=run")
    assert time_limit(config, platform(None), began=5000.0).end == 8600.0
    assert time_limit(config, platform(6000.0), began=5000.0).end == 7000.0
    assert time_limit(config, platform(2000.0), began=5000.0).end == 8600.0  # a session that outlived its limit


def test_what_the_user_set_for_the_session_is_never_exceeded():
    own = platform(1800.0, "SPECTRAKIT_TIME_LIMIT=30m")
    for words in (("watchdog.limit=1h",), ("watchdog.limit=none",), ("watchdog.limit=1h", "watchdog.since=run"), ()):
        assert time_limit(compose(*words), own, began=1000.0).end == 2800.0, words
    assert time_limit(compose("watchdog.limit=10m"), own).end == 1600.0


def test_a_deadline_counts_only_where_it_comes_sooner():
    soon, late = "1970-01-01T00:50:00+00:00", "2099-01-01T00:00:00+00:00"
    assert time_limit(compose(f"watchdog.deadline='{soon}'"), platform(12 * 3600.0)).end == 3000.0
    assert time_limit(compose(f"watchdog.deadline='{late}'"), platform(12 * 3600.0)).end == 44200.0


def test_the_users_reserve_replaces_what_is_measured():
    limit = TimeLimit(3600.0, 0.0, "a test")
    budget = make_budget(compose("watchdog.reserve=20m", "watchdog.grace=5s"), limit, ends=3600.0)
    budget.observe("eval", 3000.0)
    assert budget.reserve_s() == 1200.0 and budget.parts["grace"] == 5.0
