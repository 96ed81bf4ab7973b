"What is slow only the first time, as what compiles, counts once in a forecast, in a plan and in what is held back."

from types import SimpleNamespace

import pytest

from spectrakit.config.compose import compose
from spectrakit.distributed.hang_detector import Pace
from spectrakit.jobs import measurement
from spectrakit.train import time_plan
from spectrakit.view.run_state import RunState, apply_event, estimate_left_s
from spectrakit.view.tiles import finish
from spectrakit.watchdog.time_budget import Budget, TimeLimit


class Clock:
    "Seconds that pass only where a test says so; takes the place of a module's `time`."

    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def budget(self, limit_s: float = 10_000.0) -> Budget:
        return Budget(TimeLimit(limit_s, 0.0, "a test"), clock=self.monotonic, wall=lambda: 0.0)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measurement, "time", clock)
    monkeypatch.setattr(time_plan, "time", clock)
    return clock


def paced(*seconds: float) -> Pace:
    pace = Pace()
    for each in seconds:
        pace.add(each)
    return pace


# --- measured before a run --------------------------------------------------------------------------------------------


def measuring(expected_s: float) -> SimpleNamespace:
    "A train state of which an evaluation is expected to take so long."
    return SimpleNamespace(
        data=SimpleNamespace(valid=None),
        budget=SimpleNamespace(parts={"eval": expected_s}),
        context=SimpleNamespace(broadcast=lambda value: value, plain=lambda model: model, world_size=1),
        learner=SimpleNamespace(model=None),
        config=compose("checkpoint.mirror=null"),
        task=None,
    )


@pytest.mark.parametrize(("first", "later"), [(50.0, 2.0), (3.0, 3.0), (1.0, 4.0)])
def test_only_what_each_evaluation_takes_is_multiplied(monkeypatch, clock, first, later):
    took = iter([first, later])

    def evaluates(state):
        assert state.data.valid == "valid"
        clock.now += next(took)

    monkeypatch.setattr(measurement, "run_evaluation", evaluates)
    state = measuring(first)
    assert measurement.time_evaluation(state, "valid") == (later, max(0.0, first - later))
    assert state.data.valid is None


@pytest.mark.parametrize(
    ("expected", "again", "whole", "found"),
    [
        (300.0, 2.0, [40.0, 3.0], (3.0, 37.0)),  # five minutes were the compiler's
        (90.0, 1.0, [1.0, 1.0], (1.0, 0.0)),
        (600.0, 500.0, [], (500.0, 0.0)),  # it is long each time, and is not made whole
    ],
)
def test_an_evaluation_that_only_compiles_for_minutes_is_repeated(monkeypatch, clock, expected, again, whole, found):
    took, valid = iter(whole), SimpleNamespace(dataset=range(100))

    def evaluates(state):
        clock.now += next(took)

    monkeypatch.setattr(measurement, "run_evaluation", evaluates)
    monkeypatch.setattr(measurement, "first_evaluation", lambda *_: ({}, again, []))
    assert measurement.time_evaluation(measuring(expected), valid) == found
    assert next(took, None) is None


@pytest.mark.parametrize(
    ("first", "last", "found"), [(9.0, 2.0, (2.0, 7.0)), (2.0, 2.0, (2.0, 0.0)), (1.0, 6.0, (1.0, 0.0))]
)
def test_the_first_save_counts_once(monkeypatch, clock, tmp_path, first, last, found):
    def steps(state, count):
        clock.now += count * 0.5 + (last if count == 2 else 0.0)  # the second of two saves once more
        return count * 0.5

    def saves(state, best):
        clock.now += first

    monkeypatch.setattr(measurement, "make_steps", steps)
    monkeypatch.setattr(measurement, "save", saves)
    monkeypatch.setattr(measurement, "_steps_while_written", lambda *_: 0.0)
    monkeypatch.setattr(measurement, "finish_saving", lambda _: None)
    state = measuring(0.0)
    state.schedule, state.progress, state.checkpoints = SimpleNamespace(), SimpleNamespace(step=4), tmp_path
    assert measurement.time_save(state, state.config)[:2] == found


@pytest.mark.parametrize(
    ("seconds", "each", "once"),
    [
        ([60.0, *[0.5] * 9], 0.5, 59.5),
        ([60.0, 0.5, 30.0, *[0.5] * 7], 0.5, 89.0),  # the third batch is of another size
        ([*[0.5] * 20, 40.0, *[0.5] * 30], 0.5, 39.5),  # the first epoch's last one
        ([3.0, 0.5, 0.5, 3.0, 0.5, 0.5, 3.0, 0.5, 0.5], 9.0 / 8, 3.0 - 9.0 / 8),  # each epoch begins slowly
    ],
)
def test_steps_that_compile_are_no_part_of_what_a_step_takes(seconds, each, once):
    pace = paced(*seconds)
    assert pace.mean() == pytest.approx(each) and pace.once_s == pytest.approx(once)


def test_the_compilation_is_remembered_when_its_step_is_forgotten():
    pace = paced(60.0, *[0.5] * 3000)
    assert pace.mean() == 0.5 and pace.once_s == 59.5 and pace.quantile(0.95) == 0.5


def test_timed_steps_that_compile_count_once(monkeypatch, clock):
    "Recorded: the step with the last, smaller batch of an epoch compiles for 20 s among the timed ones."
    from spectrakit.config.effective_batch import BatchPlan

    state = SimpleNamespace(
        data=SimpleNamespace(plan=BatchPlan(64, 8), train=SimpleNamespace(plan=None)),
        context=SimpleNamespace(device=SimpleNamespace(type="cpu"), broadcast=lambda value: value, rank=0),
        record=SimpleNamespace(pace=Pace()),
    )

    def steps(s, count):
        s.data.train.first_s.append(0.0)
        took = [0.1] * count
        if count > 2:
            took[4] += 20.0
        for each in took:
            s.record.pace.add(each)
        return sum(took)

    monkeypatch.setattr(measurement, "make_steps", steps)
    monkeypatch.setattr(measurement, "smaller_micro_batches", lambda plan: None)
    monkeypatch.setattr(measurement, "begin_peak", lambda device: None)
    monkeypatch.setattr(measurement, "device_peak", lambda device: 1)
    timed = measurement.time_steps(state, 2.0)
    assert timed.steps == 20 and timed.steps_s == pytest.approx(2.0) and timed.once_s == pytest.approx(20.1)
    assert timed.spread_s == pytest.approx(0.0)


# --- while a run trains -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["eval", "save"])
def test_the_first_one_is_held_back_only_until_there_is_another(clock, kind):
    budget = clock.budget()
    for seconds, held in [(60.0, 60.0), (2.0, 2.0), (5.0, 5.0), (2.0, 5.0)]:
        budget.observe(kind, seconds)
        assert budget.parts[kind] == held
    assert budget.costs[kind].once_s == 55.0


def test_what_is_asked_for_stays_held_back(clock):
    budget = clock.budget()
    budget.expect("eval", 30.0, at_least=True)
    for seconds in (1.0, 2.0, 1.0):
        budget.observe("eval", seconds)
        assert budget.parts["eval"] == 30.0
    budget.observe("eval", 40.0)
    assert budget.parts["eval"] == 40.0


def training(clock: Clock, steps: list[float], expected_s: float, evaluations: list[float]) -> SimpleNamespace:
    "A train state after these steps and evaluations, one in ten steps."
    budget = clock.budget()
    budget.expect("eval", expected_s)
    for seconds in evaluations:
        budget.observe("eval", seconds)
    clock.now = sum(steps) + sum(evaluations)
    return SimpleNamespace(
        record=SimpleNamespace(began=(0.0, 0), pace=paced(*steps)),
        config=compose("trainer.check_val_every_n_steps=10"),
        progress=SimpleNamespace(step=len(steps)),
        data=SimpleNamespace(valid="valid", plan=SimpleNamespace(steps_per_epoch=10)),
        budget=budget,
    )


@pytest.mark.parametrize("steps", [12, 25, 1100])
@pytest.mark.parametrize("compiles_s", [0.0, 100.0])
def test_a_plan_of_the_time_that_is_left_multiplies_no_compilation(clock, steps, compiles_s):
    count = steps // 10
    evaluations = [3.0 + compiles_s, *[3.0] * (count - 1)]
    state = training(clock, [0.5 + compiles_s, *[0.5] * (steps - 1)], 3.0, evaluations)
    assert time_plan.step_cost(state) == pytest.approx(0.8)


def test_the_live_view_multiplies_no_evaluation_that_compiles(clock):
    def seen(first_s: float) -> RunState:
        state, t = RunState(), 0.0
        apply_event(state, {"type": "start", "t": t, "total_steps": 100, "steps_per_epoch": 10})
        for step in range(5, 45, 5):
            t += 5.0
            apply_event(state, {"type": "step", "t": t, "step": step, "loss": 1.0})
            if step % 10 == 0:
                took = first_s if step == 10 else 2.0
                t += took
                apply_event(state, {"type": "eval", "t": t, "step": step, "metrics": {}, "seconds": took})
        return state

    usual, compiled = seen(2.0), seen(60.0)
    assert finish(compiled, compiled.t).left_s == pytest.approx(finish(usual, usual.t).left_s)
    assert estimate_left_s(compiled.step, 100, *compiled.pace_from, compiled.t) > 2 * finish(usual, usual.t).left_s
