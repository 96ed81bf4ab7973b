"All folds of a small net at once: the same predictions as one by one, whatever happens on the way."

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import helpers
import spectrakit as sk
from helpers import start_cli, wait_for
from in_process import stopped_clock
from spectrakit.checkpoint.store import find_checkpoint
from spectrakit.config.compose import compose

pytestmark = pytest.mark.slow
SMALL = ("trainer.accelerator=cpu", "data.micro_batch_size=4", "accumulate_grad_batches=2", "run.dir=runs")
INLINE = (*SMALL, "launch.mode=inline", "folds.seeds=2")
RULES = (
    "trainer.gradient_clip_val=0.1",
    "scheduler.warmup_steps=3",
    "training.ema_decay=0.9",
    "optimizer.weight_decay=0.1",
)
ONE_BY_ONE, STACKED = "folds.stacked=false", "folds.stacked=true"


class Waves(sk.Task):
    "A sine of three numbers, learned by a net of two layers."

    def datasets(self, cfg):
        made = torch.Generator().manual_seed(0)
        inputs = torch.randn(46, 3, generator=made)
        self.fold = cfg.folds.fold
        return TensorDataset(inputs, torch.sin(inputs.sum(1))), None

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def test_dataset(self, cfg):
        return TensorDataset(torch.ones(3, 3))


def cross_validated(*words, task=None, folds=4, **options):
    return sk.cross_validate(task or Waves(), compose(*words), folds=folds, show=False, **options)


def test_the_same_out_of_fold_predictions_as_one_by_one(here):
    words = (*INLINE, *RULES, "trainer.max_epochs=4")
    one, stacked = cross_validated(*words, ONE_BY_ONE), cross_validated(*words, STACKED)
    assert one.status == stacked.status == "completed" and len(stacked.trials) == 8
    assert np.abs(one.values - stacked.values).max() < 1e-5
    assert np.abs(one.test["predictions"] - stacked.test["predictions"]).max() < 1e-5
    assert np.allclose(one.scores, stacked.scores, atol=1e-5) and np.isclose(one.score, stacked.score, atol=1e-5)
    for alone, together in zip(one.runs, stacked.runs, strict=True):
        kinds = [event["type"] for event in together.events if event["type"] in ("start", "step", "eval", "end")]
        assert kinds == [event["type"] for event in alone.events if event["type"] in ("start", "step", "eval", "end")]
        rates = [[event["lr"] for event in run.events if event["type"] == "step"] for run in (alone, together)]
        assert rates[0] == rates[1]
    assert all((run.path / "summary.json").is_file() for run in stacked.runs)
    assert (
        not (stacked.runs[2].path / "curves.png").exists() and stacked.runs[2].plot() is not None
    )  # drawn when asked for
    again = sk.resume(stacked.runs[3], Waves())  # each is a run like any other
    assert again.status == "completed" and again.load_model(Waves()) is not None


class Stopping(Waves):
    "The same, during whose training somebody asks for a stop, once a checkpoint is there."

    def loss(self, model, batch):
        for saved in Path("runs").glob("*-cv-*/fold-0/*/checkpoints/LATEST"):
            folder = saved.parents[3]
            if not (folder / "STOPPED").exists():
                (folder / "STOPPED").touch()
                (folder / "STOP").touch()
        return super().loss(model, batch)


def test_a_stop_saves_all_runs_at_one_step_and_they_go_on_together(here):
    words = (*INLINE, *RULES, STACKED, "trainer.max_epochs=60", "checkpoint.every_n_steps=5")
    whole = cross_validated(*words, folds=2)
    cut = cross_validated(*words, task=Stopping(), folds=2)
    assert cut.status == "interrupted" and {run.status for run in cut.runs} == {"interrupted"}
    assert len({find_checkpoint(run.path / "checkpoints")[0].name for run in cut.runs}) == 1
    done = cross_validated(*words, task=Stopping(), folds=2, resume=cut.path)
    assert done.status == "completed" and [run.path for run in done.runs] == [run.path for run in cut.runs]
    assert all(any(event["type"] == "restart" for event in run.events) for run in done.runs)
    assert (done.values == whole.values).all()


def test_a_kill_leaves_runs_that_go_on(here):
    folders = [str(Path(file).parent) for file in (__file__, helpers.__file__)]
    source = f"import sys\nsys.path[:0] = {folders!r}\nfrom test_stacked_training import Waves\n"
    (here / "waves.py").write_text(source)
    words = (*SMALL, "folds.count=2", STACKED, "trainer.max_epochs=400")
    started = start_cli(here, "cross-validate", f"{here / 'waves.py'}:Waves", *words)
    try:
        wait_for(lambda: list(here.glob("runs/*/fold-1/*/checkpoints/LATEST")), "a checkpoint of the last fold")
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
    done = sk.cross_validate(f"{here / 'waves.py'}:Waves", compose(*words), resume="auto", show=False)
    assert done.status == "completed" and np.isfinite(done.values).all()
    assert all(any(event["type"] == "restart" for event in run.events) for run in done.runs)


class Broken(Waves):
    "The same, with one fold whose loss becomes infinite while it trains."

    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        inputs, targets = train.tensors
        targets = targets.clone()
        targets[0] = 1e30
        return TensorDataset(inputs, targets), valid


def test_a_loss_that_is_not_finite_ends_all_and_folds_go_on_one_by_one(here):
    cv = cross_validated(*INLINE, STACKED, "optimizer.name=sgd", "optimizer.lr=1e6", task=Broken())
    assert cv.status == "failed"
    assert "not finite" in json.loads((cv.path / "cv.json").read_text())["one_by_one"]


class Normed(Waves):
    "The same, with batch norm."

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1), nn.Flatten(0))


class Looks(Waves):
    "The same, whose loss looks at its value, which no stack can, while it trains; evaluated it does not."

    def loss(self, model, batch):
        value = super().loss(model, batch)
        return value * 1 if model.training and float(value.detach()) > 0 else value


class Scaled(Waves):
    "The same, whose loss depends on what the task keeps of its fold."

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + (self.fold or 0))


@pytest.mark.parametrize(
    "task, words, why",
    [
        (Normed(), (), "BatchNorm1d"),
        (Scaled(), (), "another loss"),
        (Looks(), (), "Trying it raised RuntimeError"),
        (Waves(), ("training.mixup=0.2",), "mixup"),
        (Waves(), ("optimizer.name=adafactor",), "Adafactor"),
    ],
)
def test_what_cannot_be_stacked_is_trained_one_by_one(here, capsys, task, words, why):
    settled = compose(*SMALL, "launch.mode=inline", STACKED, "trainer.max_epochs=1", *words)
    cv = sk.cross_validate(task, settled, folds=3)
    assert cv.status == "completed" and len(cv.runs) == 3
    assert "trained one by one" in (out := capsys.readouterr().out) and why in out
    assert why in json.loads((cv.path / "cv.json").read_text())["one_by_one"]
    assert all(len(list((cv.path / f"fold-{fold}").iterdir())) == 1 for fold in range(3))  # nothing of the try is left


def test_the_clock_ends_all_runs_with_checkpoints(here, monkeypatch):
    now = stopped_clock(monkeypatch)

    class Slow(Waves):
        def loss(self, model, batch):
            now[0] += 0.05
            return super().loss(model, batch)

    words = (*INLINE, STACKED, "trainer.max_epochs=100000", "watchdog.limit=9s", "watchdog.since=run")
    cv = cross_validated(*words, folds=2, task=Slow())
    assert cv.status == "out_of_time" and {run.status for run in cv.runs} == {"out_of_time"}
    assert all(find_checkpoint(run.path / "checkpoints")[0] is not None for run in cv.runs)


class Measured(Waves):
    "The same with a metric, and targets that no net can learn: each fold stops early, at a step of its own."

    def datasets(self, cfg):
        drawn = torch.Generator().manual_seed(5)
        self.fold = cfg.folds.fold
        return TensorDataset(torch.randn(46, 3, generator=drawn), torch.randn(46, generator=drawn)), None

    def metrics(self, outputs, batch):
        return {"mae": ((outputs - batch[1]).abs().sum(), len(batch[1]))}


def test_folds_that_stop_early_end_where_they_do_one_by_one(here):
    words = (*INLINE, "early_stopping.enabled=true", "early_stopping.patience=2", "trainer.max_epochs=25")
    words = (*words, "checkpoint.monitor=val_mae", "trainer.gradient_clip_val=0.05", "optimizer.lr=0.05")
    words = (*words, "trainer.gradient_clip_algorithm=value", "optimizer.name=sgd", "optimizer.momentum=0.9")
    one, stacked = (cross_validated(*words, how, task=Measured(), folds=3) for how in (ONE_BY_ONE, STACKED))
    ends = [[run.events[-1]["status"] for run in cv.runs] for cv in (one, stacked)]
    assert ends[0] == ends[1] and "early_stopped" in ends[0]
    steps = [[max(e["step"] for e in run.events if e["type"] == "eval") for run in cv.runs] for cv in (one, stacked)]
    assert steps[0] == steps[1] and len(set(steps[0])) > 1
    assert np.abs(one.values - stacked.values).max() < 1e-5 and np.allclose(one.scores, stacked.scores, atol=1e-5)


class Dropped(Waves):
    "The same net with dropout, whose folds all train on the same samples: only the masks can tell them apart."

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))


class Large(Waves):
    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 1001), nn.Linear(1001, 1001), nn.Linear(1001, 1), nn.Flatten(0))


def test_each_model_of_a_stack_has_masks_of_its_own_and_a_large_net_is_left_alone(here, capsys):
    from spectrakit.training.stack import stack_models, stacked_losses

    torch.manual_seed(0)
    net = Dropped().model(None)
    batch = (torch.ones(8, 3), torch.zeros(8))
    stack = stack_models([net, *(Dropped().model(None) for _ in range(2))], Dropped().loss)
    with torch.no_grad():
        for whole in stack.weights.values():
            whole.copy_(whole[:1].expand_as(whole))  # three times the same net
    stack.call.train()
    values, _ = stacked_losses(stack, [batch] * 3)
    assert len(set(values.tolist())) == 3
    done = cross_validated(*SMALL, "launch.mode=inline", STACKED, "trainer.max_epochs=2", task=Dropped(), folds=3)
    assert done.status == "completed" and "one_by_one" not in json.loads((done.path / "cv.json").read_text())
    words = compose(*SMALL, "launch.mode=inline", STACKED, "trainer.max_epochs=1")
    assert sk.cross_validate(Large(), words, folds=2).status == "completed"
    assert "parameters, more than 1,000,000" in capsys.readouterr().out
