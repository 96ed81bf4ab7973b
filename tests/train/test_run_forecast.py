"A run says after its first steps what it will take, and its summary puts beside it what came true."

import json

import pytest

from spectrakit.api.actions import fit, resume
from spectrakit.config.compose import compose
from spectrakit.runs.events import last_event
from spectrakit.train import remaining_time as run_forecast
from tasks import Line

WORDS = (
    "launch.mode=inline",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=6",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
)


@pytest.fixture
def at_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_forecast, "MIN_S", 0.0)


def test_forecast_and_truth_stand_side_by_side_in_the_summary(at_once):
    run = fit(Line(), compose(*WORDS), show=False)
    made = last_event(run.events, "forecast")
    assert made["step"] == run_forecast.MIN_STEPS + 1 and made["steps"] == run.events[-1]["step"]
    sides = json.loads((run.path / "summary.json").read_text())["forecast"]
    assert set(sides) == {"seconds", "gpu_bytes", "host_bytes", "disk_bytes"}
    assert sides["seconds"]["forecast"] > 0 and sides["gpu_bytes"] == {"forecast": None, "used": None}
    assert sides["host_bytes"]["used"] >= sides["host_bytes"]["forecast"] > 2**26
    files = [file.stat().st_size for file in (run.path / "checkpoints").rglob("*") if file.is_file()]
    assert sides["disk_bytes"]["used"] == sum(files)


def test_a_run_that_goes_on_makes_no_forecast_of_its_rest_as_if_it_were_all(at_once):
    run = fit(Line(), compose(*WORDS), show=False)
    steps = run.events[-1]["step"]
    done = resume(run, Line(), "trainer.max_epochs=8", "resume.allow=[trainer.max_epochs]", show=False)
    assert done.status == "completed" and done.events[-1]["step"] > steps
    assert [event["type"] for event in done.events].count("forecast") == 1
