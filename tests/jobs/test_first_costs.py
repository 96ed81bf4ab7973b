"An evaluation that is slow only the first time, as one that compiles, counts once in a forecast."

from types import SimpleNamespace

import pytest

from spectrakit.jobs import measurement


@pytest.mark.parametrize(("first", "later"), [(50.0, 2.0), (3.0, 3.0), (1.0, 4.0)])
def test_only_what_each_evaluation_takes_is_multiplied(monkeypatch, first, later):
    clock, took = [0.0], iter([first, later])

    def evaluates(state):
        assert state.data.valid == "valid"
        clock[0] += next(took)

    monkeypatch.setattr(measurement, "run_evaluation", evaluates)
    monkeypatch.setattr(measurement, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    state = SimpleNamespace(
        data=SimpleNamespace(valid=None),
        budget=SimpleNamespace(parts={"eval": first}),
        context=SimpleNamespace(broadcast=lambda value: value),
    )
    assert measurement.time_evaluation(state, "valid") == (later, max(0.0, first - later))
    assert state.data.valid is None
