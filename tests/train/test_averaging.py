"`training.average`: which checkpoints, their exact mean, batch norm, and what a run that goes on makes of it."

import os
import shutil

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

import spectrakit as sk
from helpers import TESTS
from in_process import vector
from spectrakit.checkpoint import async_writer
from spectrakit.checkpoint.store import (
    CheckpointError,
    checkpoints,
    find_checkpoint,
    load_state,
    load_weights,
    read_manifest,
    read_pointer,
    verify,
)
from spectrakit.config.compose import compose
from spectrakit.jobs.prediction import trained_model
from spectrakit.runs.events import last_event
from spectrakit.task.task import Task

ONE_STEP = ("data.batch_size=4", "optimizer.lr=1", "checkpoint.keep_last=1", "dataloader.num_workers=0")
X = torch.zeros(4, 1, dtype=torch.float64)


class Path(Task):
    "One weight that visits the places of `path`, one in each epoch of one step; its loss is its distance to `target`."

    options = {"path": [2.0, -0.5, 5.0, 0.7], "target": 0.0}
    metric_modes = {"near": "max"}

    def __init__(self, after_step=lambda step: None):
        self.after_step = after_step

    def datasets(self, cfg):
        self.path, self.target = self.option(cfg, "path"), self.option(cfg, "target")
        return TensorDataset(X), TensorDataset(X)

    def model(self, cfg):
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.zeros_(model.weight)
        return model

    def loss(self, model, batch, moment=None):
        if moment is None:
            return ((model.weight - self.target) ** 2).sum()
        self.after_step(moment.step)
        before = self.path[moment.step - 1] if moment.step else 0.0
        return (before - self.path[min(moment.step, len(self.path) - 1)]) * model.weight.sum()

    def metrics(self, outputs, batch):
        return {"near": (-(outputs[0, 0] - self.target).abs() * len(batch[0]), len(batch[0]))}

    def predict(self, model, batch):
        return model(torch.ones_like(batch[0]))


def average(run) -> float | None:
    "The one averaged weight that BEST leads to; None where BEST leads to a plain checkpoint."
    path, notes = find_checkpoint(run.folder / "checkpoints", "BEST")
    assert not notes and not verify(path)
    return load_weights(path)["weight"].item() if "averaged" in read_manifest(path) else None


def told(run) -> str:
    return next(text for text in run.column("message", "text") if text.startswith("training.average="))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["training.average=last:2"], [3, 4]),
        (["training.average=last:3"], [2, 3, 4]),
        (["training.average=last:9"], [1, 2, 3, 4]),
        (["training.average=best:2", "task.target=0.1"], [2, 4]),
        (["training.average=best:3", "checkpoint.monitor=near", "task.target=1.0"], [1, 2, 4]),
        (["training.average=best:2", "trainer.max_epochs=3", "task.target=3.5"], [1, 3]),
    ],
)
def test_the_mean_is_that_of_the_checkpoints_that_were_asked_for(train, words, steps):
    target = {"training.average=last:2": "2.85", "training.average=last:3": "1.74", "training.average=last:9": "1.79"}
    aim = [f"task.target={target[words[0]]}"] if words[0] in target else []
    run = train(Path(), *ONE_STEP, "trainer.max_epochs=4", *words, *aim)
    assert run.status == "completed", run.reason
    expected = sum(Path.options["path"][step - 1] for step in steps) / len(steps)
    assert average(run) == pytest.approx(expected, rel=1e-6), told(run)
    assert f"steps {', '.join(map(str, steps))} has val_" in told(run) and "predictions use the mean" in told(run)
    best = last_event(run.events, "eval")
    assert best["best"] and best["averaged"] == steps


def test_a_worse_mean_is_not_kept(train):
    run = train(Path(), *ONE_STEP, "trainer.max_epochs=4", "training.average=last:2")
    assert average(run) is None and read_pointer(run.folder / "checkpoints", "BEST") == "step-00000002"
    assert "has val_loss 8.1225, the best single one 0.25; predictions use the single one" in told(run)
    assert not last_event(run.events, "eval").get("averaged")


@pytest.mark.slow
def test_without_validation_the_mean_is_kept_and_predicted_with(tmp_path):
    class Alone(Path):
        def datasets(self, cfg):
            return super().datasets(cfg)[0], None

        def test_dataset(self, cfg):
            return TensorDataset(X)

    words = (
        *ONE_STEP,
        "optimizer.name=sgd",
        "optimizer.momentum=0",
        "optimizer.weight_decay=0",
        "scheduler.name=constant",
        "trainer.max_epochs=4",
    )
    where = ("trainer.accelerator=cpu", "launch.mode=inline", f"run.dir={tmp_path}")
    run = sk.fit(Alone(), compose(*words, *where, "swa=last:2"), show=False).raise_for_status()
    assert run.load_model(Alone()).weight.item() == pytest.approx(2.85, rel=1e-6)
    assert sk.predict(Alone(), run).values == pytest.approx(2.85, rel=1e-6)
    assert trained_model(Alone(), run.config, run.path)[1] == "step-00000004, the mean of 2 checkpoints"


@pytest.mark.parametrize(
    "words", [["trainer.max_epochs=1", "training.average=last:2"], ["checkpoint.every_n_epochs=9"]]
)
def test_one_checkpoint_is_no_mean(train, words):
    run = train(Path(), *ONE_STEP, "trainer.max_epochs=3", "training.average=last:2", *words)
    assert run.status == "completed" and average(run) is None
    assert "one checkpoint was saved for it" in told(run)


class Normed(Task):
    "A regression with batch norm."

    def datasets(self, cfg):
        draw = torch.Generator().manual_seed(3)
        x = torch.randn(20, 3, generator=draw)
        return TensorDataset(x * 2 + 1, x.sum(1, keepdim=True)), None

    def model(self, cfg):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_batch_norm_gets_the_statistics_of_the_mean(train):
    words = ("data.batch_size=5", "trainer.max_epochs=3", "checkpoint.keep_last=3", "training.average=last:3")
    run, task = train(Normed(), *words), Normed()
    parts = [load_weights(path, averaged=False) for path in checkpoints(run.folder / "checkpoints")]
    by_hand = task.model(None)
    by_hand.load_state_dict({name: sum(p[name] for p in parts) / 3 for name in parts[0]}, strict=True)
    update_bn(DataLoader(task.datasets(None)[0], batch_size=5), by_hand)
    kept = load_weights(find_checkpoint(run.folder / "checkpoints", "BEST")[0])
    assert kept["1.num_batches_tracked"] == 4
    torch.testing.assert_close(vector(kept), vector(by_hand), rtol=1e-5, atol=1e-6)


def test_batch_norm_has_the_momentum_it_had_and_the_random_numbers_are_untouched(train):
    words = ("data.batch_size=5", "trainer.max_epochs=3")
    plain, averaged = (
        train(Normed(), *words, *more, name=more[-1]) for more in (["seed=0"], ["training.average=last:2"])
    )
    assert torch.equal(
        plain.weights(), vector(load_weights(find_checkpoint(averaged.folder / "checkpoints")[0], ema=False))
    )


def test_a_run_that_goes_on_is_as_if_it_had_never_been_averaged(train):
    words = (*ONE_STEP, "training.average=best:2", "task.target=0.1", "task.path=[2.0,-0.5,5.0,0.7,0.3,0.4]")
    long = train(Path(), *words, "trainer.max_epochs=6", name="long")
    assert train(Path(), *words, "trainer.max_epochs=4", name="parts").status == "completed"
    parts = train(Path(), *words, "trainer.max_epochs=6", name="parts", resume=True)
    assert average(long) is None and average(parts) is None
    folders = [run.folder / "checkpoints" for run in (long, parts)]
    assert [[p.name for p in checkpoints(folder)] for folder in folders] == [["step-00000005", "step-00000006"]] * 2
    assert not [path for path in folders[1].rglob("averaged.safetensors")]
    assert told(long) == [t for t in parts.column("message", "text") if t.startswith("training.average")][-1]


def test_a_mirror_holds_the_mean_and_what_a_run_that_goes_on_from_it_averages(train, tmp_path):
    words = (*ONE_STEP, "training.average=last:3", "trainer.max_epochs=4", "task.target=1.74")
    words, asked = (*words, f"checkpoint.mirror={tmp_path / 'drive'}"), []
    run = train(Path(lambda step: asked.append(1) if step == 2 else None), *words, stop=lambda: bool(asked))
    here, there = run.folder / "checkpoints", tmp_path / "drive" / "run" / "checkpoints"
    assert run.status == "interrupted" and [p.name for p in checkpoints(there)] == [p.name for p in checkpoints(here)]
    shutil.rmtree(run.folder)  # the machine is gone
    shutil.copytree(there.parent, run.folder)
    run = train(Path(), *words, resume=True)
    assert run.status == "completed" and "steps 2, 3, 4 has" in told(run) and average(run) is not None
    path = find_checkpoint(there, "BEST")[0]
    assert not verify(path) and load_weights(path)["weight"].item() == average(run) == pytest.approx(5.2 / 3, rel=1e-6)


def test_a_stop_in_the_middle_changes_nothing(train):
    asked = []
    words = (*ONE_STEP, "data.batch_size=2", "optimizer.lr=0.5", "task.path=[2.0,1.0,0.0,2.0,4.0,1.0,1.0,6.0]")
    words = (*words, "trainer.max_epochs=4", "task.target=3.0", "training.average=last:3")

    class Half(Path):
        def loss(self, model, batch, moment=None):
            return super().loss(model, batch, moment) * (1 if moment is None else 2)

    first = train(Half(lambda step: asked.append(1) if step == 4 else None), *words, name="b", stop=lambda: bool(asked))
    assert first.status == "interrupted" and not [t for t in first.column("message", "text") if "training.average" in t]
    whole, parts = train(Half(), *words, name="a"), train(Half(), *words, name="b", resume=True)
    assert average(whole) == average(parts) == pytest.approx((2 + 1 + 6) / 3, rel=1e-6)


def test_a_mean_that_cannot_be_saved_costs_nothing(train, monkeypatch):
    def full(*_):
        raise CheckpointError("step-00000004 needs 9.0 MiB and 1.0 MiB are free")

    monkeypatch.setattr(async_writer, "add_average", full)
    run = train(Path(), *ONE_STEP, "trainer.max_epochs=4", "training.average=last:2", "task.target=2.85")
    assert run.status == "completed" and average(run) is None and not last_event(run.events, "eval").get("averaged")
    texts = run.column("message", "text")
    assert any(text.startswith("the averaged weights are not saved: step-00000004 needs 9.0 MiB") for text in texts)
    assert told(run).endswith("predictions use the single one")


def test_max_bytes_comes_before_the_mean(train):
    run = train(Path(), *ONE_STEP, "trainer.max_epochs=4", "training.average=last:4", "checkpoint.max_bytes=1KB")
    assert run.status == "completed" and "steps 2, 4" in told(run), told(run)  # the best one and the last


TWO = """
from test_averaging import Normed

class Valid(Normed):
    def datasets(self, cfg):
        train = super().datasets(cfg)[0]
        return train, train
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_make_the_same_mean(tmp_path, monkeypatch, strategy):
    (tmp_path / "two.py").write_text(TWO)
    folders = [str(TESTS / "training"), str(TESTS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
    words = (
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "data.batch_size=5",
        "accumulate_grad_batches=1",
        "trainer.max_epochs=3",
        "checkpoint.keep_last=3",
    )
    config = compose(*words, f"distributed.strategy={strategy}", "training.average=last:3", f"run.dir={tmp_path}")
    run = sk.fit(f"{tmp_path / 'two.py'}:Valid", config, show=False).raise_for_status()
    text = next(e["text"] for e in run.events if "training.average" in e.get("text", ""))
    assert "the mean of the checkpoints of steps 2, 4, 6 has val_loss" in text
    parts = [load_weights(path, averaged=False) for path in checkpoints(run.path / "checkpoints")]
    newest = find_checkpoint(run.path / "checkpoints")[0]
    if (newest / "averaged.safetensors").is_file():
        mean = load_weights(newest)
        torch.testing.assert_close(mean["4.weight"], sum(p["4.weight"] for p in parts) / 3)
        assert mean["1.num_batches_tracked"] == 2


# moving averages of buffers


@pytest.mark.slow
def test_moving_averages_of_buffers_are_exact_and_go_on(train):
    words = ("data.batch_size=5", "trainer.max_epochs=3", "training.ema_decay=0.6", "checkpoint.every_n_steps=1")
    words = (*words, "checkpoint.keep_last=99", "training.ema_buffers=true")
    whole = train(Normed(), *words, name="whole")
    start, steps = Normed().model(None).state_dict(), checkpoints(whole.folder / "checkpoints")
    mean, var = start["1.running_mean"], start["1.running_var"]
    for number, path in enumerate(steps, 1):
        now, weights = min(0.6, (1 + number) / (10 + number)), load_weights(path, ema=False)
        mean = now * mean + (1 - now) * weights["1.running_mean"]
        var = now * var + (1 - now) * weights["1.running_var"]
    kept, plain = load_weights(steps[-1]), load_weights(steps[-1], ema=False)
    assert len(steps) == 12 and kept["1.num_batches_tracked"] == 12
    torch.testing.assert_close(kept["1.running_mean"], mean)
    torch.testing.assert_close(kept["1.running_var"], var)
    assert not torch.allclose(kept["1.running_mean"], plain["1.running_mean"], rtol=1e-3)
    train(Normed(), *words, "trainer.max_epochs=2", name="parts")
    parts = train(Normed(), *words, name="parts", resume=True)
    assert torch.equal(parts.weights(ema=True), whole.weights(ema=True)) and torch.equal(
        parts.weights(), whole.weights()
    )
    off = train(Normed(), *words, "training.ema_buffers=false", name="off")
    of_off = load_weights(find_checkpoint(off.folder / "checkpoints")[0])
    assert torch.equal(of_off["1.running_mean"], plain["1.running_mean"]) and torch.equal(
        off.weights(), whole.weights()
    )


class LaterThawed(Normed):
    "The last layer is frozen as `model` returns it, in the optimizer, and learns from the second epoch on."

    def model(self, cfg):
        model = super().model(cfg)
        model[4].requires_grad_(False)
        return model

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def on_epoch(self, model, moment):
        model[4].requires_grad_(moment.epoch >= 1)


def test_a_parameter_that_thaws_joins_the_moving_averages_with_its_value_of_that_moment(train):
    words = ("data.batch_size=5", "training.ema_decay=0.6", "checkpoint.every_n_steps=1", "checkpoint.keep_last=99")
    words = (*words, "trainer.max_epochs=3", "training.ema_buffers=true")
    whole = train(LaterThawed(), *words, name="whole")
    steps, mean = checkpoints(whole.folder / "checkpoints"), LaterThawed().model(None).state_dict()["4.weight"]
    for number, path in enumerate(steps, 1):
        now, weights = min(0.6, (1 + number) / (10 + number)), load_weights(path, ema=False)
        mean = now * mean + (1 - now) * weights["4.weight"]
        if path.name in ("step-00000004", "step-00000007", "step-00000012"):
            torch.testing.assert_close(load_weights(path)["4.weight"], mean)
    assert not torch.allclose(mean, weights["4.weight"], rtol=1e-3)
    thawed = [load_state(steps[k])[0]["parts"]["ema"]["thawed"] for k in (3, 4)]
    assert not thawed[0] and len(thawed[1]) == 2
    for ends, name in (("trainer.max_epochs=1", "before"), ("trainer.max_epochs=2", "after")):
        train(LaterThawed(), *words, ends, name=name)
        parts = train(LaterThawed(), *words, name=name, resume=True)
        assert torch.equal(parts.weights(ema=True), whole.weights(ema=True))


class ThawedByDefault(LaterThawed):
    "The built-in optimizer, which takes what learns."

    optimizer = None


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_longer_run_lets_more_parameters_join_the_optimizer_of_a_resumed_one(train, epochs):
    words = ("data.batch_size=5", "training.ema_decay=0.6", "optimizer.name=adamw")
    whole = train(ThawedByDefault(), *words, "trainer.max_epochs=3", name="whole")
    train(ThawedByDefault(), *words, f"trainer.max_epochs={epochs}", name="parts")
    parts = train(ThawedByDefault(), *words, "trainer.max_epochs=3", name="parts", resume=True)
    assert torch.equal(parts.weights(), whole.weights())
    assert torch.equal(parts.weights(ema=True), whole.weights(ema=True))
