"A search: each trial once, within the time, ended early on all ranks, and gone on with after any end."

import contextlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
import tasks
from helpers import run_cli, start_cli, task, tree_hashes, wait_for
from spectrakit.api.run import RunFailed
from spectrakit.checkpoint.store import find_checkpoint
from spectrakit.config.compose import compose
from spectrakit.launch.request import new_request
from spectrakit.runs.events import last_event, log_file, read_events
from spectrakit.runs.run_dir import read_environment
from spectrakit.runs.run_groups import read_group
from spectrakit.system.errors import RequestError
from spectrakit.tuning.search import search as search_module
from spectrakit.tuning.search import search_loop
from spectrakit.tuning.search.study import open_study
from spectrakit.tuning.search.study_file import give_back, open_journal
from spectrakit.tuning.trial import TrialResult
from spectrakit.watchdog.time_budget import NoTimeLeft
from tasks import Line, Planned

pytestmark = pytest.mark.slow
SHORT = ("trainer.accelerator=cpu", "data.batch_size=10", "trainer.max_epochs=3", "accumulate_grad_batches=1")
SCORE = ("checkpoint.monitor=val_score", "checkpoint.mode=min")
INLINE = (*SHORT, "launch.mode=inline", "run.dir=runs")


def events_of(study, row) -> list[dict]:
    (run,) = study.runs_of(row)
    return read_events(log_file(run.path))


def status_line(study) -> list[str]:
    return [row.status for row in study.trials]


def folder_of(here: Path) -> Path:
    return next((here / "runs").glob("*-search-*"))


def grid(*qualities: float) -> str:
    return "task.quality=" + ",".join(map(str, qualities))


@pytest.mark.long
def test_a_trial_that_is_worse_than_the_others_ends_at_the_same_step_on_all_ranks(here):
    words = (*SHORT, *SCORE, "trainer.max_epochs=40", "trainer.devices=2", "task.slow_s=0.2", "search.sampler=grid")
    done = run_cli(here, "search", task("Planned"), grid(1.0, 2.0, 9.0), "search.startup_trials=2", *words, "--json")
    assert done.returncode == 0, done.stderr
    study = open_study(folder_of(here))
    assert status_line(study) == ["completed", "completed", "pruned"] and study.trials[2].value is None
    events = events_of(study, study.trials[2])
    assert last_event(events, "start")["world_size"] == 2 and events[-1]["status"] == "interrupted"
    assert not [event for event in events if event["type"] == "restart"]  # no rank waited for one that had left
    evaluated = [event["metrics"]["val_score"] for event in events if event["type"] == "eval"]
    assert list(study.trials[2].curve) == evaluated and f"after {len(evaluated)} evaluations" in study.trials[2].note
    assert study.best.number == 0 and json.loads(done.stdout.splitlines()[-1])["best"] == 0


@pytest.mark.long
def test_an_error_on_one_rank_is_a_line_of_the_table(here):
    words = (
        *SHORT,
        *SCORE,
        "trainer.max_epochs=1",
        "trainer.devices=2",
        "search.sampler=grid",
        "launch.max_restarts=0",
    )
    done = run_cli(here, "search", task("Planned"), "task.fails=-1,1", *words)
    study = open_study(folder_of(here))
    assert done.returncode == 0 and status_line(study) == ["completed", "failed"]
    assert "this rank fails" in study.trials[1].note and "this rank fails" in done.stdout


@pytest.mark.long
def test_side_by_side_each_has_its_share_of_the_cores(here):
    words = (*SHORT, *SCORE, "search.parallel=2", "search.sampler=grid", "search.pruner=none")
    done = run_cli(here, "search", task("Planned"), grid(1.0, 2.0, 3.0, 4.0), *words)
    assert done.returncode == 0, done.stderr
    study = open_study(folder_of(here))
    assert sorted(row.value for row in study.trials) == [1.0, 2.0, 3.0, 4.0]
    starts = [last_event(events_of(study, row), "start") for row in study.trials]
    threads = {event["threads"] for event in starts}
    assert threads == {max(1, len(os.sched_getaffinity(0)) // 2)}
    began = sorted(log_file(study.runs_of(row)[0].path).stat().st_mtime for row in study.trials)
    assert len(began) == 4 and "4 trials, 2 at a time" in done.stdout
    assert all(f"trial {number}: completed, val_score={number + 1}" in done.stdout for number in range(4))
    kept = [
        row.number for row in study.trials if find_checkpoint(study.runs_of(row)[0].path / "checkpoints", "BEST")[0]
    ]
    assert kept == [0]  # the others' are gone
    line = read_group(study.path)
    assert (line.status, line.value, line.best, line.done, line.total) == ("completed", 1.0, 0, 4, 4)
    assert line.metric == "val_score" and line.seconds > 0


@pytest.mark.long  # the same for folds: test_cross_validation.py
def test_processes_that_do_not_come_about_are_tried_once_in_a_study(here):
    (here / "late").touch()
    words = (*SHORT, "trainer.devices=2", "launch.mode=torchrun", "run.dir=runs", "search.sampler=grid", "seed=3")
    study = sk.search(task("Late"), compose(*words), "optimizer.lr=0.1,0.2,0.3", "search.trials=2", show=False)
    assert status_line(study) == ["completed", "completed", "waiting"]
    first, second = (read_environment(study.runs_of(row)[0].path) for row in study.trials[:2])
    assert first["launch"]["fallback"].startswith("rank 1 was killed") and second["launch"]["fallback"] is None
    assert [facts["launch"]["world_size"] for facts in (first, second)] == [1, 1]
    assert first["decided"]["effective_batch_size"] == second["decided"]["effective_batch_size"] == 20
    facts = json.loads((study.path / "study.json").read_text())
    assert facts["fallback"] == first["launch"]["fallback"] and "one process each" in facts["places"]
    again = sk.search(task("Late"), compose(*words), "optimizer.lr=0.1,0.2,0.3", resume=study.path, show=False)
    last = read_environment(again.runs_of(again.trials[2])[0].path)
    assert again.trials[2].status == "completed" and last["launch"]["fallback"] is None  # not tried again


def test_the_clock_cuts_a_trial_and_the_next_session_goes_on_with_it(here):
    words = (*SHORT, *SCORE, "trainer.max_epochs=30", "task.slow_s=0.1", "search.sampler=grid", "watchdog.since=run")
    words = (*words, "checkpoint.max_share=1", "watchdog.reserve=2s")
    done = run_cli(here, "search", task("Planned"), grid(9.0, 1.0), *words, "watchdog.limit=8s")
    study = open_study(folder_of(here))
    assert status_line(study)[-1] == "waiting" and "cut" in status_line(study), done.stdout + done.stderr
    assert study.status == "out_of_time" and "the same call with resume=" in done.stderr
    cut = next(row for row in study.trials if row.status == "cut")
    reached = events_of(study, cut)[-1]
    assert reached["status"] == "out_of_time"
    again = run_cli(here, "search", task("Planned"), grid(9.0, 1.0), *words, "watchdog.limit=5m", "--resume", "auto")
    assert again.returncode == 0, again.stdout + again.stderr
    study = open_study(folder_of(here))
    assert study.status == "completed" and sorted(status_line(study)) == ["completed", "completed", "cut"]
    row = next(row for row in study.trials if row.status == "completed" and row.folder == cut.folder)
    assert row.params == cut.params and row.number != cut.number
    steps = [event["step"] for event in events_of(study, row) if event["type"] == "eval"]
    assert steps == sorted(steps) and len(set(steps)) == 30  # each epoch once: it went on


@pytest.mark.long  # a kill at any line of the journal
def test_a_killed_search_is_gone_on_with_though_its_journal_is_torn(here):
    words = (*SHORT, *SCORE, "search.sampler=grid", "checkpoint.max_share=1", grid(1.0, 2.0))
    held = {"TINY_HOLD": f"6:{here}"}  # in the second epoch of the first trial
    first = start_cli(here, "search", task("Planned"), *words, env=held)
    try:
        wait_for(lambda: list(here.glob("runs/*/trial-0000/run-*/checkpoints/LATEST")), "a checkpoint")
        wait_for((here / "held").exists, "the second epoch")
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    folder = folder_of(here)
    with open(folder / "journal.jsonl", "ab") as journal:
        journal.write(b'{"op_code": 6, "worker_id": "x')
    again = run_cli(here, "search", task("Planned"), *words, "--resume", folder)
    assert again.returncode == 0, again.stdout + again.stderr
    study = open_study(folder)
    done = [row for row in study.trials if row.status == "completed"]
    assert sorted(row.value for row in done) == [1.0, 2.0] and study.trials[0].status == "cut"
    gone_on = next(row for row in done if row.folder == "trial-0000")
    assert gone_on.number != 0 and gone_on.params == study.trials[0].params and len(study.runs_of(gone_on)) == 1
    kinds = [event["type"] for event in events_of(study, gone_on)]
    assert "restart" in kinds and kinds.count("eval") == 3  # it went on from its checkpoint


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_stopped_by_hand_or_by_a_closed_terminal_it_saves_and_goes_on(here, number):
    words = (*SHORT, *SCORE, "trainer.max_epochs=200", "task.slow_s=0.05", "search.sampler=grid", "run.dir=runs")
    first = start_cli(here, "search", task("Planned"), grid(9.0, 1.0), *words)
    wait_for(lambda: list(here.glob("runs/*/trial-0000/run-*/checkpoints/BEST")), "a checkpoint")
    first.send_signal(number)
    out, err = first.communicate(timeout=120)
    study = open_study(folder_of(here))
    assert study.status == "interrupted" and status_line(study) == ["cut", "waiting", "waiting"], out + err
    assert "Traceback" not in err and first.returncode not in (0, 2)
    (run,) = study.runs_of(study.trials[0])
    assert find_checkpoint(run.path / "checkpoints", "LATEST")[0] is not None


@pytest.mark.long
def test_two_searches_on_one_study_train_each_trial_once(here):
    words = (*SHORT, *SCORE, "search.sampler=grid", "search.pruner=none", "task.slow_s=0.05", "run.dir=runs")
    space = grid(1.0, 2.0, 3.0, 4.0, 5.0)
    first = start_cli(here, "search", task("Planned"), space, *words)
    wait_for(lambda: list(here.glob("runs/*/trial-0000/lease.json")), "the first trial")
    second = run_cli(here, "search", task("Planned"), space, *words, "--resume", folder_of(here))
    out, err = first.communicate(timeout=180)
    study = open_study(folder_of(here))
    assert first.returncode == 0 and second.returncode == 0, out + err + second.stdout + second.stderr
    assert sorted(row.value for row in study.trials) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert all(len(study.runs_of(row)) == 1 for row in study.trials)


def test_folds_are_the_same_in_each_trial_and_a_bad_one_ends_after_some(here):
    class Folded(Planned):
        def datasets(self, cfg):
            return super().datasets(cfg)[0], None

    words = (
        *INLINE,
        *SCORE,
        "trainer.max_epochs=1",
        "search.folds=3",
        "search.startup_trials=2",
        "search.sampler=grid",
    )
    study = sk.search(Folded(), compose(*words), grid(1.0, 2.0, 9.0), show=False)
    assert status_line(study) == ["completed", "completed", "pruned"] and "1 of 3 folds" in study.trials[2].note
    assert "fold-0/run-" in (study.path / "study.html").read_text()  # runs of folds may have one name
    assert [row.value for row in study.trials[:2]] == [1.0, 2.0]
    divisions = {run.config.folds.file for row in study.trials for run in study.runs_of(row)}
    assert divisions == {str(study.path.absolute() / "folds.npz")}
    assert [len(study.runs_of(row)) for row in study.trials] == [3, 3, 1]


def test_the_best_settings_are_trained_at_the_end_and_predict(here):
    words = (*INLINE, *SCORE, "search.sampler=grid", "search.final_share=0.5", "search.trial.trainer.max_epochs=1")
    study = sk.search(Submits(), compose(*words), grid(2.0, 1.0), predict="out.csv", show=False)
    assert [len(row.curve) for row in study.trials] == [1, 1] and study.run.path.parent == study.path / "final"
    assert study.run.config.trainer.max_epochs == 3 and study.run.config.task["quality"] == 1.0
    assert Path("out.csv").read_text().startswith("id,") and study.submission.predicted == study.submission.samples > 0
    assert study.raise_for_status() is study
    again = sk.search(Submits(), compose(*words), grid(2.0, 1.0), resume="auto", show=False)
    assert again.path == study.path and again.run.path == study.run.path and len(again.trials) == 2


def test_predictions_without_test_data_are_refused_before_anything_is_trained(here):
    with pytest.raises(RequestError, match="no `test_dataset"):
        sk.search(Untested(), compose(*INLINE), grid(1.0, 2.0), predict="out.csv", show=False)
    assert not list(here.iterdir())


class Untested(Planned):
    test_dataset = None


class Submits(Planned):
    def test_dataset(self, cfg):
        return TensorDataset(torch.zeros(4, 3))

    def predict(self, model, batch):
        return model(batch[0])

    def submission(self, predictions):
        return {"id": range(len(predictions)), "y": predictions}


def test_values_reach_the_run_to_the_last_bit_and_the_draws_are_optunas(here):
    import optuna

    space = {"optimizer.lr": "tag(log,interval(1e-4,1e-1))", "task.width": "range(4,9)", "extra.note": ["a,b=c", "d"]}
    study = sk.search(
        Line(),
        compose(*INLINE, "trainer.max_epochs=1", "search.trials=7", "search.startup_trials=2", "search.pruner=none"),
        space=space,
        show=False,
    )
    for row in study.trials:
        config = study.runs_of(row)[0].config
        told = {
            "optimizer.lr": config.optimizer.lr,
            "task.width": config.task["width"],
            "extra.note": config.extra["note"],
        }
        assert told == row.params
    values = iter([row.value for row in study.trials])

    def objective(trial):
        trial.suggest_float("optimizer.lr", 1e-4, 1e-1, log=True)
        trial.suggest_int("task.width", 4, 8)
        trial.suggest_categorical("extra.note", ["a,b=c", "d"])
        return next(values)

    theirs = optuna.create_study(sampler=optuna.samplers.TPESampler(n_startup_trials=4, seed=0))
    theirs.optimize(objective, n_trials=7)
    assert [trial.params for trial in theirs.trials] == [row.params for row in study.trials]


def test_what_has_changed_is_refused(here, monkeypatch):
    words = (*INLINE, "trainer.max_epochs=1", "search.trials=1")
    study = sk.search(Line(), compose(*words), "optimizer.lr=interval(0.001,0.1)", show=False)
    for config, space, said in (
        (compose(*words), "optimizer.lr=interval(0.001,0.2)", "another space"),
        (compose(*words, "trainer.max_epochs=2"), "optimizer.lr=interval(0.001,0.1)", "other settings"),
        (compose(*words, "search.folds=3"), "optimizer.lr=interval(0.001,0.1)", "search.folds=1"),
    ):
        with pytest.raises(RequestError, match=said):
            sk.search(Line(), config, space, resume=study.path, show=False)

    monkeypatch.setattr(tasks, "SAMPLES", 30)
    with pytest.raises(RequestError, match="data of .* have changed"):
        sk.search(
            Line(),
            compose(*words, "search.trials=2"),
            "optimizer.lr=interval(0.001,0.1)",
            resume=study.path,
            show=False,
        )


def test_a_study_that_lies_elsewhere_is_copied_before_it_goes_on(here):
    words = (*INLINE, "trainer.max_epochs=1")
    space = "optimizer.lr=interval(0.001,0.1)"
    study = sk.search(Line(), compose(*words, "search.trials=2"), space, show=False)
    os.rename("runs", "input")
    old = here / "input" / study.path.name
    before = sorted(path for path in old.rglob("*") if path.name != "lock")
    more = sk.search(Line(), compose(*words, "search.trials=3"), space, resume=old, show=False)
    assert more.path.parent == Path("runs") and [row.status for row in more.trials] == ["completed"] * 3
    assert [row.params for row in more.trials[:2]] == [row.params for row in study.trials]
    assert sorted(path for path in old.rglob("*") if path.name != "lock") == before


def test_what_cannot_work_is_a_sentence(here):
    class Broken(Line):
        def loss(self, model, batch):
            if model.training and self.breaks and not tasks.in_sanity_check():
                raise ValueError("the loss is broken")
            return nn.functional.mse_loss(model(batch[0]), batch[1])

        breaks = False

    words = compose(*INLINE, "search.trials=9")
    space = {"optimizer.lr": "interval(0.001,0.1)"}
    with pytest.raises(RequestError, match="val_nothing"):
        sk.search(
            Line(), compose(*INLINE, "checkpoint.monitor=val_nothing", "checkpoint.mode=min"), space=space, show=False
        )
    with pytest.raises(RequestError, match="is out of range"):
        sk.search(Line(), words, space={"optimizer.lr": [-1.0, 0.1]}, show=False)
    with pytest.raises(RequestError, match="Did you mean"):
        sk.search(Line(), words, space={"optimizer.lrr": [0.1]}, show=False)
    with pytest.raises(RequestError, match="contradict"):
        sk.search(Line(), compose(*INLINE, "search.direction=max", "checkpoint.mode=min"), space=space, show=False)
    broken = Broken()
    broken.breaks = True
    with contextlib.redirect_stdout(io.StringIO()) as out:
        study = sk.search(broken, words, space=space)
    assert study.status == "failed" and study.best is None and len(study.trials) < 9
    assert "the loss is broken" in study.reason and "the loss is broken" in out.getvalue()
    with pytest.raises(RunFailed, match="the loss is broken"):
        sk.search(broken, words, space=space, show=False, on_error="raise")


def test_values_that_the_task_refuses_cost_only_their_trial(here):
    class Even(Line):
        def model(self, cfg):
            if self.option(cfg, "width") % 2:
                raise ValueError("an odd width")
            return super().model(cfg)

    words = compose(*INLINE, "search.sampler=grid")
    study = sk.search(Even(), words, space={"task.width": [3, 4]}, show=False)
    assert status_line(study) == ["failed", "completed"] and "an odd width" in study.trials[0].note
    study = sk.search(Even(), words, space={"task.width": [3, 5]}, show=False)
    assert study.status == "failed" and "no trial was completed: Even.model raised" in str(study)


@pytest.mark.long  # folds are children, too: test_cross_validation.py
@pytest.mark.filterwarnings("ignore")  # of MLflow's own tables
def test_each_trial_is_a_child_of_the_search_in_every_tracker(here):
    words = (*SHORT, *SCORE, "search.parallel=2", "search.sampler=grid", "report_to=all", "trainer.max_epochs=1")
    done = run_cli(here, "search", task("Planned"), grid(1.0, 2.0), "search.pruner=none", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    from mlflow import MlflowClient

    folder = folder_of(here)
    client = MlflowClient(f"sqlite:///{folder / 'trackers' / 'mlflow' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'spectrakit'")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert parent.info.run_name == folder.name
    assert sorted(run.info.run_name for run in children) == ["trial-0000", "trial-0001"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert sorted(run.data.metrics["val_score"] for run in children) == [1.0, 2.0]
    records = b"".join(file.read_bytes() for file in folder.rglob("run-*.wandb"))
    assert folder.name.encode() in records and b"trial-0001" in records


def test_an_error_of_our_own_leaves_no_trial_that_runs_for_ever(here, monkeypatch):
    import spectrakit.tuning.search.search as search

    def breaks(view, s):
        if any(a.log.values for a in s.active.values()):
            raise OSError("the cell is gone")

    monkeypatch.setattr(search.StudyView, "tick", breaks)
    words = compose(*SHORT, *SCORE, "trainer.max_epochs=200", "task.slow_s=0.05", "search.sampler=grid", "run.dir=runs")
    with pytest.raises(OSError, match="the cell is gone"):
        sk.search(task("Planned"), words, grid(9.0, 1.0), show=False)
    study = open_study(folder_of(here))
    assert (
        status_line(study) == ["cut", "waiting", "waiting"] and events_of(study, study.trials[0])[-1]["type"] == "end"
    )


def test_without_optuna_the_extra_is_named(here):
    code = "import sys; sys.modules['optuna'] = None; from spectrakit.cli.main import main; sys.exit(main())"
    done = run_cli(here, "search", "digits", "optimizer.lr=0.1,0.2", command=("-c", code))
    assert done.returncode == 2 and "extra `hpo`" in done.stderr and not (here / "runs").exists()
    plain = run_cli(here, "search", "digits")
    assert plain.returncode == 2 and "The search space is empty" in plain.stderr


def test_the_lease_of_a_trial_that_trains_is_renewed(here, monkeypatch):
    import spectrakit.tuning.search.search_loop as loop

    taken, take = [], loop.take_lease

    def counted(folder):
        taken.append(folder.name)
        take(folder)

    monkeypatch.setattr(loop, "take_lease", counted)
    monkeypatch.setattr(loop, "LEASE_S", 0.0)  # at each look, and not once a minute
    words = compose(*SHORT, *SCORE, "trainer.max_epochs=1", "search.sampler=grid", "run.dir=runs")
    study = sk.search(task("Planned"), words, grid(1.0, 2.0), show=False)
    assert status_line(study) == ["completed", "completed"] and taken.count("trial-0000") > 2
    assert not list(study.path.glob("trial-*/lease.json"))


def test_the_best_settings_have_the_batch_of_their_trial_on_more_gpus(here, monkeypatch):
    words = (*SHORT, "run.dir=runs", "trainer.accelerator=auto", "search.trials=1", "distributed.world_size=auto")
    study = sk.search(task("Planned"), compose(*words), "optimizer.lr=0.1,0.2", show=False)
    assert study.best_config.data.micro_batch_size == 10

    def on_two_gpus(config):
        request = new_request(config)
        return replace(request, platform=replace(request.platform, gpus=(None, None)))

    monkeypatch.setattr("spectrakit.tuning.search.study.new_request", on_two_gpus)
    assert study.best_config.data.micro_batch_size == 5


@pytest.mark.long
def test_a_second_stop_ends_trials_at_once_and_they_are_queued(here):
    words = (*SHORT, *SCORE, "search.sampler=grid", "trainer.max_epochs=400", "checkpoint.max_share=1", "run.dir=runs")
    held = {"TINY_HOLD": f"9:{here}"}  # a step of the first trial that does not end
    first = start_cli(here, "search", task("Planned"), grid(1.0, 2.0), *words, env=held)
    try:
        wait_for(lambda: list(here.glob("runs/*/trial-0000/run-*/checkpoints/LATEST")), "a checkpoint")
        wait_for((here / "held").exists, "a step that does not end")
        first.send_signal(signal.SIGINT)
        wait_for(lambda: list(here.glob("runs/*/trial-0000/run-*/STOP")), "the trial to be asked")
        first.send_signal(signal.SIGINT)
        out, err = first.communicate(timeout=60)
    finally:
        (here / "go").touch()
        first.kill()
    assert first.returncode == 130 and "Traceback" not in err, out + err
    study = open_study(folder_of(here))
    assert study.status == "interrupted" and status_line(study) == ["cut", "waiting", "waiting"]
    assert "interrupted a second time" in last_event(events_of(study, study.trials[0]), "end")["reason"]
    assert not any((study.path / row.folder / "lease.json").exists() for row in study.trials)


def test_spaces_of_python_and_both_names_of_a_setting(here):
    import numpy

    space = {"optimizer.lr": numpy.array([0.1, 0.2]), "data.batch_size": range(5, 11, 5)}
    with pytest.raises(RequestError, match="Omit one of them"):
        sk.search(Line(), compose(*INLINE), "data.micro_batch_size=5,10", "data.batch_size=4", show=False)
    words = (*INLINE, "trainer.max_epochs=1", "search.sampler=grid")
    study = sk.search(Line(), compose(*words), space=space, show=False)
    found = sorted((row.params["optimizer.lr"], row.params["data.micro_batch_size"]) for row in study.trials)
    assert found == [(0.1, 5), (0.1, 10), (0.2, 5), (0.2, 10)]
    assert {run.config.data.micro_batch_size for row in study.trials for run in study.runs_of(row)} == {5, 10}


def test_a_metric_that_is_never_a_number_and_data_without_validation_are_sentences(here):
    class Unsure(Planned):
        def metrics_all(self, predictions, targets):
            return {"score": float("nan")}

    class Alone(Line):
        def datasets(self, cfg):
            return super().datasets(cfg)[0], None

    words = (*INLINE, "trainer.max_epochs=1", "search.trials=4")
    study = sk.search(Unsure(), compose(*words, *SCORE), "optimizer.lr=0.1,0.2", show=False)
    assert study.status == "failed" and "val_score was never a finite number" in study.trials[0].note
    alone = sk.search(Alone(), compose(*words), "optimizer.lr=0.1,0.2", show=False)
    assert len(alone.trials) == 1 and "search.folds=5" in alone.reason  # no other would have a value


def test_how_long_trials_of_earlier_sessions_took_is_known(here):
    words = (*INLINE, "trainer.max_epochs=1", "search.trials=2", "watchdog.since=run")
    space = "optimizer.lr=interval(0.001,0.1)"
    first = sk.search(Line(), compose(*words, "watchdog.limit=2h"), space, show=False)
    journal = first.path / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if "seconds" in line.get("user_attr", {}):
            line["user_attr"]["seconds"] = 5000.0
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = compose(*words, "watchdog.limit=1h", "search.trials=3")
    again = sk.search(Line(), words, space, resume=first.path, show=False)
    assert again.status == "out_of_time" and "would take 83 min" in again.reason and len(again.trials) == 2


class FailsLong(Planned):
    "Fails where it is trained for more than an epoch, as by the run at the end."

    def loss(self, model, batch):
        if model.training and self.epochs > 1 and not tasks.in_sanity_check():
            raise ValueError("too long for this one")
        return super().loss(model, batch)

    def model(self, cfg):
        self.epochs = cfg.trainer.max_epochs
        return super().model(cfg)


def test_a_study_whose_run_at_the_end_failed_has_not_come_to_its_end(here):
    words = (*INLINE, *SCORE, "search.sampler=grid", "search.final_share=0.5", "search.trial.trainer.max_epochs=1")
    study = sk.search(FailsLong(), compose(*words), grid(2.0, 1.0), show=False)
    assert status_line(study) == ["completed", "completed"] and study.best.value == 1.0
    assert study.status == "failed" and "too long for this one" in study.reason


def test_a_study_that_may_not_be_written_goes_on_in_a_copy(here, monkeypatch, capsys):
    words = (*INLINE, "trainer.max_epochs=1")
    space = "optimizer.lr=interval(0.001,0.1)"
    study = sk.search(Line(), compose(*words, "search.trials=1"), space, show=False)
    before = tree_hashes(study.path)
    own, real = study.path.resolve(), os.access

    def access(path, mode):
        forbidden = mode == os.W_OK and Path(path).resolve().is_relative_to(own)
        return False if forbidden else real(path, mode)

    monkeypatch.setattr(os, "access", access)
    more = sk.search(Line(), compose(*words, "search.trials=2"), space, resume=study.path, show=False)
    assert more.path != study.path and [row.status for row in more.trials] == ["completed"] * 2
    assert tree_hashes(study.path) == before and "the folder is not writable" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK and access(path, mode))
    with pytest.raises(RequestError, match="a search of another user and not readable"):
        sk.search(Line(), compose(*words, "search.trials=2"), space, resume=study.path, show=False)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("settings.yaml", b"trainer: [", "settings.yaml, line 1 is not valid YAML"),
        ("settings.yaml", b"", "contains no settings"),
        ("journal.jsonl", b"spoiled\n{}\n", "The journal of"),
        ("journal.jsonl", b"\0" * 100, "has trial-0000, which is missing in its journal.jsonl"),
        ("folds.npz", b"PK\x03\x04 cut off", "folds.npz holds no folds"),
    ],
)
def test_a_spoiled_study_is_left_alone_by_auto_and_refused_by_name(here, name, content, said, capsys):
    words = (*INLINE, *SCORE, "trainer.max_epochs=1", "search.sampler=grid")
    first = sk.search(Planned(), *words, grid(1.0, 2.0), show=False)
    (first.path / name).write_bytes(content)
    before = tree_hashes(first.path)
    with pytest.raises(RequestError, match=re.escape(said)):
        sk.search(Planned(), *words, grid(1.0, 2.0), show=False, resume=first.path)
    again = sk.search(Planned(), *words, grid(1.0, 2.0), show=False, resume="auto")
    assert again.path != first.path and status_line(again) == ["completed"] * 2 and again.status == "completed"
    assert f"{first.path.name} is not used" in (err := capsys.readouterr().err) and said in err
    assert tree_hashes(first.path) == before
    assert sk.search(Planned(), *words, grid(1.0, 2.0), show=False, resume="auto").path == again.path


STOPS = """
import sys
from spectrakit.cli.main import main
import spectrakit.tuning.search.search as search
import spectrakit.tuning.cross_validation as folds

def stop(*_, **__):
    raise KeyboardInterrupt

setattr(search if sys.argv[1] == "search" else folds, sys.argv[2], stop)
raise SystemExit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("command", "where", "said"),
    [
        ("search", "asked_for", "stopped before the search started; nothing was trained. Call it again"),
        ("search", "_start", "stopped before the first trial: finished trials in runs/line-search-"),
        ("folds", "open_folder", "stopped before the cross-validation started"),
        ("folds", "_begin", "--resume auto in a shell"),
    ],
)
def test_a_stop_before_the_first_run_says_what_stands(here, command, where, said):
    words = (
        ["search", task("Line"), "optimizer.lr=0.1,0.01"] if command == "search" else ["cross-validate", task("Line")]
    )
    call = [sys.executable, "-c", STOPS, command, where, *words, *INLINE]
    done = subprocess.run(call, cwd=here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130 and said in done.stderr and "Traceback" not in done.stderr


def test_of_several_studies_auto_takes_the_one_of_the_same_space(here, capsys):
    words = (*INLINE, *SCORE, "trainer.max_epochs=1", "search.sampler=grid")
    first = sk.search(Planned(), *words, grid(1.0, 2.0), show=False)
    other = sk.search(Planned(), *words, grid(3.0, 4.0), show=False)
    again = sk.search(Planned(), *words, grid(1.0, 2.0), resume="auto", show=False)
    assert again.path == first.path != other.path and len(again.trials) == 2
    capsys.readouterr()
    new = sk.search(Planned(), *words, grid(5.0, 6.0), resume="auto", show=False)
    assert new.path not in (first.path, other.path) and len(new.trials) == 2
    assert f"{other.path.name} is not used: {other.path.name} searches another space" in capsys.readouterr().err


def test_a_trial_that_finds_no_time_left_waits_for_the_next_session(here, monkeypatch):
    "Between the question whether a trial fits and its start some time goes by."
    train, begun = search_loop.run_single_trial, []

    def late(config, **more):
        begun.append(config.task["quality"])
        if len(begun) == 2:
            raise NoTimeLeft("There is no time to train.")
        return train(config, **more)

    monkeypatch.setattr(search_loop, "run_single_trial", late)
    words = (*INLINE, *SCORE, "trainer.max_epochs=1", "search.sampler=grid", grid(1.0, 2.0, 3.0))
    study = sk.search(Planned(), *words, show=False)
    assert study.status == "out_of_time" and "no time to train" in study.reason
    assert [row.status for row in study.trials][:2] == ["completed", "cut"]
    again = sk.search(Planned(), *words, resume="auto", show=False)
    assert again.status == "completed" and [row.status for row in again.trials].count("completed") == 3


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 6)) for seed in range(20)])
def test_no_study_goes_over_its_limit(here, monkeypatch, seed):
    "Trials that take what they like, up to the limit that each is given, on a clock that only they move."
    draw, limit, spent, late = random.Random(seed), 40 + 7 * seed, [0.0], []
    began = time.monotonic()

    def trains(config, **_):
        given, wanted = float(config.watchdog.limit[:-1]), draw.uniform(1, 30)
        late.extend([spent[0]] if spent[0] + given > limit else [])
        spent[0] += min(given, wanted)
        status = "completed" if wanted <= given else "out_of_time"
        return TrialResult(status, "val_score", draw.random(), min(given, wanted), None)

    monkeypatch.setattr(search_loop, "run_single_trial", trains)
    for module in (search_loop, search_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: began + spent[0], time=time.time))
    words = (*INLINE, "watchdog.since=run", f"watchdog.limit={limit}s", "search.trials=500")
    study = sk.search(Planned(), *words, space={"task.quality": "interval(1,2)"}, show=False)
    assert study.status == "out_of_time" and study.best is not None
    assert not late and limit / 2 < spent[0] <= limit


@pytest.mark.long
def test_a_kill_at_any_line_of_the_journal_loses_no_trial_and_tells_none_twice(tmp_path, monkeypatch):
    "A search, and the next one that gives its trials back, are killed at each line that they write, one after another."
    import optuna
    from optuna.storages.journal import JournalFileBackend

    append, left = JournalFileBackend.append_logs, [0]

    def killed(self, logs):
        left[0] -= 1
        if left[0] == 0:
            raise SystemExit
        append(self, logs)

    monkeypatch.setattr(JournalFileBackend, "append_logs", killed)
    space = {"a": optuna_range(), "b": optuna_range()}
    points = [{"a": a, "b": b} for a in (0, 1) for b in (0, 1)]

    def session(folder: Path, lines: int) -> bool:
        "Give back, queue what is not, and train the rest; whether it came to its end within so many lines."
        left[0] = lines
        try:
            study = open_journal(folder, "minimize")
            study.sampler = optuna.samplers.RandomSampler(seed=1)
            give_back(study, folder)
            for point in points:
                study.enqueue_trial(point, skip_if_exists=True)
            while any(trial.state.name == "WAITING" for trial in study.trials):
                trial = study.ask(space)
                study.tell(trial, trial.params["a"] + 2 * trial.params["b"])
        except SystemExit:
            return False
        finally:
            left[0] = 0
        return True

    for number, (first, second) in enumerate((first, second) for first in range(1, 24) for second in range(1, 9)):
        folder = tmp_path / str(number)
        folder.mkdir()
        session(folder, first), session(folder, second)
        assert session(folder, 10**6)
        done = [trial.params for trial in open_journal(folder, "minimize").trials if trial.state.name == "COMPLETE"]
        assert sorted(map(str, done)) == sorted(map(str, points)), (first, second)


def test_a_disk_that_is_full_for_a_while_spoils_no_journal(tmp_path):
    "The line that does not fit is gone; what is written once there is room again can be read, and so can the rest."
    import resource

    study, space = open_journal(tmp_path, "minimize"), {"a": optuna_range()}
    for value in (3.0, 2.0):
        study.tell(study.ask(space), value)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (1, 60, 200):
        size = (tmp_path / "journal.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, limits[1]))  # half a line fits
        try:
            with pytest.raises(OSError, match="File too large"):
                study.tell(study.ask(space), 1.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        study.tell(study.ask(space), 1.0)
    again = open_journal(tmp_path, "minimize", create=False).trials
    assert [trial.value for trial in again if trial.value is not None] == [3.0, 2.0, 1.0, 1.0, 1.0]


def test_whoever_waits_for_the_journal_sees_how_old_its_lock_is(tmp_path, monkeypatch):
    "Also where the study is named by a relative path: else a lock of a killed search would hang the others for ever."
    monkeypatch.chdir(tmp_path)
    Path("study").mkdir()
    study, seen, flush = open_journal(Path("study"), "minimize"), [], os.fsync

    def fsync(handle):
        seen.append(Path("study/journal.jsonl.lock").exists())  # of what the link leads to
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    study.ask({"a": optuna_range()})
    assert seen and all(seen)


def optuna_range():
    import optuna

    return optuna.distributions.IntDistribution(0, 9)


SMALL = {
    "words": ({"task.quality": [1.0, 2.0, 3.0]}, 3),
    "numbers": ({"task.quality": "range(1,4)"}, 3),
    "steps": ({"task.quality": "range(0.1,0.5,0.1)"}, 4),
    "several": ({"task.quality": [1.0, 2.0], "seed": "range(1,3)"}, 4),
    "said twice": ({"task.quality": [1.0, 1.0, 2.0]}, 2),
}


@pytest.fixture
def scored(monkeypatch):
    "Trials without training: those with the quality 2 fail, those above it are pruned."

    def trains(config, **_):
        quality = config.task["quality"]
        if quality == 2:
            raise RuntimeError("this value fails")
        return TrialResult("completed", "val_score", quality, 0.1, None)

    monkeypatch.setattr(search_loop, "run_single_trial", trains)


def tried(study) -> list[tuple]:
    return sorted(tuple(sorted(row.params.items())) for row in study.trials)


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
@pytest.mark.parametrize("name", SMALL)
def test_no_value_of_a_small_space_is_left_out_or_tried_twice(here, scored, capsys, name, sampler):
    space, points = SMALL[name]
    words = (*INLINE, *SCORE, f"search.sampler={sampler}", "search.trials=20")
    study = sk.search(Planned(), *words, space=space, show=True)
    said = capsys.readouterr().out
    assert len(study.trials) == len(set(tried(study))) == points and study.status == "completed"
    assert f": {points} trials, " in said and ("the space has no more values" in said) == (sampler != "grid")
    more = sk.search(Planned(), *words, space=space, resume=study.path, show=False)
    assert tried(more) == tried(study) and read_group(study.path).total == points


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_study_that_goes_on_tries_what_is_left_once(here, scored, parallel):
    words, space = (*SHORT, *SCORE, f"search.parallel={parallel}"), {"task.quality": "range(1,9)"}
    first = sk.search(Planned(), *words, "search.trials=5", space=space, show=False)
    assert len(set(tried(first))) == len(first.trials) == 5
    second = sk.search(Planned(), *words, "search.trials=7", space=space, resume=first.path, show=False)
    third = sk.search(Planned(), *words, "search.trials=70", space=space, resume=first.path, show=False)
    assert len(set(tried(second))) == 7 and tried(third) == [(("task.quality", k),) for k in range(1, 9)]


def test_a_cut_trial_of_a_small_space_goes_on(here, scored, monkeypatch):
    train, begun = search_loop.run_single_trial, []

    def late(config, **more):
        begun.append(config.task["quality"])
        if len(begun) == 2:
            raise NoTimeLeft("There is no time to train.")
        return train(config, **more)

    monkeypatch.setattr(search_loop, "run_single_trial", late)
    words, space = (*INLINE, *SCORE, "search.trials=9"), {"task.quality": [1.0, 3.0, 4.0]}
    assert sk.search(Planned(), *words, space=space, show=False).status == "out_of_time"
    again = sk.search(Planned(), *words, space=space, resume="auto", show=False)
    done = [row.params["task.quality"] for row in again.trials if row.status == "completed"]
    assert sorted(done) == [1.0, 3.0, 4.0] and sorted(begun) == sorted([*done, begun[1]])


def test_values_of_another_space_count_beside_those_of_this_one(here, scored):
    words = (*INLINE, *SCORE)
    first = sk.search(Planned(), *words, "search.trials=2", space={"task.quality": "interval(1.1,1.9)"}, show=False)
    space = {"task.quality": "interval(5.1,5.9)"}
    assert len(sk.search(Planned(), *words, "search.trials=3", space=space, show=False).trials) == 3
    assert len(first.trials) == 2
