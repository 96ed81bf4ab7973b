"`sk.preflight`: what it counts is what a run does, nothing stays behind, and what will not fit is a sentence."

import json

import pytest

from helpers import TESTS, only_run, run_cli, task, tree_hashes
from spectrakit.api.actions import fit
from spectrakit.api.preflight import preflight
from spectrakit.config.compose import compose
from spectrakit.forecast.run_forecast import disk_bytes, host_bytes, problems
from spectrakit.system.errors import RequestError
from tasks import Line

SHORT = ("trainer.accelerator=cpu", "preflight.seconds=0.2", "trainer.max_epochs=4", "data.batch_size=8")


@pytest.mark.slow
def test_the_forecast_counts_what_a_run_on_two_ranks_does_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = compose(*SHORT, "distributed.world_size=2", "checkpoint.every_n_epochs=1", "checkpoint.keep_last=1")
    before = tree_hashes(tmp_path)
    forecast = preflight(task("Line"), config, show=False)
    assert tree_hashes(tmp_path) == before
    assert forecast.fits and [m.rank for m in forecast.ranks] == [0, 1] and set(forecast.slowest.peaks) == {4, 8}
    assert forecast.static["bytes"]["param"] == forecast.slowest.sizes["parameters"]
    run = fit(task("Line"), config, show=False)
    assert run.status == "completed"
    work, kinds = forecast.workload, [event["type"] for event in run.events]
    assert (work.steps, work.evaluations) == (run.events[-1]["step"], kinds.count("eval"))
    newest = run.path / "checkpoints" / (run.path / "checkpoints" / "LATEST").read_text().strip()
    size = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file())
    assert forecast.slowest.checkpoint_bytes == pytest.approx(size, rel=0.01)
    assert disk_bytes(forecast) >= work.kept * 0.99 * size and host_bytes(forecast) > 2 * 2**27
    assert json.loads(json.dumps(forecast.to_dict()))["workload"]["world_size"] == 2
    assert sum("with ddp and" in note and ": take d" in note for note in forecast.notes) == 1  # what the link costs


@pytest.mark.slow
def test_in_a_shell_what_will_not_fit_is_a_sentence_and_exit_status_1(tmp_path):
    words = ("launch.mode=inline", "trainer.max_epochs=4000000", "watchdog.limit=60s", "watchdog.since=run")
    done = run_cli(tmp_path, "preflight", task("Line"), *SHORT, *words)
    assert done.returncode == 1, done.stderr
    (fault,) = [line for line in done.stdout.splitlines() if line.startswith("✗")]
    assert "are left:" in fault and "sessions, each continued with resume.source=auto" in fault
    assert "trainer.max_epochs=" in fault and list(tmp_path.iterdir()) == []


def test_a_run_that_costs_more_than_allowed_is_refused_before_it_has_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = compose(*SHORT, "launch.mode=inline", "preflight.max_cost=0.000001")
    with pytest.raises(RequestError, match=r"needs a price.*preflight\.price_per_hour"):
        fit(Line(), config, show=False)
    with pytest.raises(RequestError, match=r"^The run costs up to .* more than preflight\.max_cost=1e-06\."):
        fit(Line(), compose(*SHORT, "launch.mode=inline", "preflight.max_cost=0.000001", *PRICE), show=False)
    assert list(tmp_path.iterdir()) == []
    run = fit(Line(), compose(*SHORT, "launch.mode=inline", "preflight.max_cost=1", *PRICE), show=False)
    assert run.status == "completed" and run.path.absolute() == only_run(tmp_path)


PRICE = ("preflight.price_per_hour=0.35",)


def test_a_task_that_cannot_train_is_refused_with_its_own_sentence(tmp_path, monkeypatch):
    class Broken(Line):
        def loss(self, model, batch):
            raise ValueError("no such band")

    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="no such band"):
        preflight(Broken(), compose(*SHORT, "launch.mode=inline"), show=False)
    assert list(tmp_path.iterdir()) == []


def test_predictions_are_counted_where_the_task_has_test_data(tmp_path, monkeypatch):
    class Tested(Line):
        def test_dataset(self, cfg):
            return self.datasets(cfg)[1]

    monkeypatch.chdir(tmp_path)
    forecast = preflight(Tested(), compose(*SHORT, "launch.mode=inline"), show=False)
    assert forecast.workload.predicts and forecast.parts_s["prediction"] > 0 and not problems(forecast)


def test_places_of_ones_own_are_compared_with_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "profiles"
    folder.mkdir()
    mine = folder / "places.yaml"
    mine.write_text("club:\n  hardware: RTX-5090\n  speed: 4\n  dollars: 2\n  session_h: 1\n", encoding="utf-8")
    config = compose(*SHORT, "launch.mode=inline", "trainer.max_epochs=4000000")
    forecast = preflight(Line(), config, show=False)
    assert [e.place.name for e in forecast.elsewhere] == ["kaggle", "colab", "cloud", "club"]
    kaggle, _, cloud, club = forecast.elsewhere
    assert club.hours[1] < forecast.total_s / 3600 and club.dollars[1] == 2 * club.hours[1] and club.sessions[1] > 1
    assert kaggle.fits and kaggle.dollars == (0, 0) and 0 < cloud.hours[0] < cloud.hours[1]
    shown = str(forecast)
    assert "RTX-5090" in shown and "2 × T4" in shown and "RTX-5090" in forecast._repr_html_()
    assert json.loads(json.dumps(forecast.to_dict()))["elsewhere"][3]["place"]["speed"] == 4
    mine.write_text("club:\n  hardware: T5\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"club\.hardware is 'T5'.* write `speed:`"):
        preflight(Line(), config)


@pytest.mark.long
@pytest.mark.slow
def test_measuring_takes_its_own_time_where_the_run_has_none(tmp_path):
    slow = ("task.quality=9", "task.slow_s=0.4", "checkpoint.monitor=val_score", "checkpoint.mode=min")
    words = ("watchdog.limit=10s", "watchdog.since=run", "trainer.max_epochs=1000", *slow)
    done = run_cli(tmp_path, "preflight", task("Planned"), *SHORT, *words)
    assert done.returncode == 1 and "will not fit" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_step_that_hangs_ends_with_a_sentence(tmp_path):
    (tmp_path / "hangs.py").write_text(
        "import time\nfrom tasks import Line, in_sanity_check\n\n\nclass Hangs(Line):\n    def during(self, number):\n"
        "        time.sleep(600 if not in_sanity_check() else 0)\n"
    )
    words = ("launch.hang_floor_s=2", "launch.hang_factor=2")
    done = run_cli(tmp_path, "preflight", "hangs.py:Hangs", *SHORT, *words, env={"PYTHONPATH": str(TESTS)})
    assert done.returncode == 2 and "could not be measured" in done.stderr and "stacks" not in done.stderr, done.stderr
