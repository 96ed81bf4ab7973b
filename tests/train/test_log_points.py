"""A log point costs nearly nothing: no wait for the device, no call of a file system, no query of a driver."""

import builtins
import json
import os
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

import spectrakit
from in_process import trainer_in
from spectrakit.config.compose import compose
from spectrakit.distributed import hang_detector
from spectrakit.distributed.hang_detector import STOP, checkpoint_file, stop_file, watched_requests
from spectrakit.runs.events import EventLog, read_events
from spectrakit.task.task import Task
from spectrakit.train.evaluation import HostCopy
from spectrakit.train.parts.logging import Logging

CALLS = ("stat", "lstat", "open", "write", "listdir", "scandir", "fsync", "replace", "unlink")


class Plain(Task):
    "A line through made-up points; `at_step` is called at the beginning of each loss."

    def __init__(self, at_step=lambda number: None, bad_at: int | None = None):
        self.number, self.at_step, self.bad_at = 0, at_step, bad_at

    def datasets(self, cfg):
        x = torch.linspace(-1, 1, 64).reshape(64, 1)
        return TensorDataset(x, 3 * x), TensorDataset(x[:8], 3 * x[:8])

    def model(self, cfg):
        torch.manual_seed(cfg.seed)
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        if model.training:
            self.number += 1
            self.at_step(self.number)
        loss = (model(batch[0]) - batch[1]).square().mean()
        return loss * float("nan") if self.number == self.bad_at and model.training else loss


@pytest.fixture
def train(tmp_path):
    return trainer_in(tmp_path)


FEW = ("data.batch_size=8", "trainer.max_epochs=20", "checkpoint.enabled=false", "trainer.check_val_every_n_epoch=100")


@pytest.fixture
def slow_files(monkeypatch):
    "Calls of the file system by this thread while the list is not None; each takes 5 ms."
    made: dict = {"calls": None}
    here = threading.get_ident()

    def slow(call, name):
        def slowly(*args, **options):
            if made["calls"] is not None and threading.get_ident() == here:
                made["calls"].append((name, str(args[0])[:80]))
            if made["calls"] is not None:
                time.sleep(0.005)
            return call(*args, **options)

        return slowly

    for name in CALLS:
        monkeypatch.setattr(os, name, slow(getattr(os, name), name))
    monkeypatch.setattr(builtins, "open", slow(builtins.open, "builtins.open"))
    return made


def test_a_log_point_makes_no_file_call_on_the_thread_that_trains(train, slow_files, tmp_path):
    def at_step(number: int) -> None:
        if number == 40:
            slow_files["calls"] = []
        if number == 120:
            slow_files["seen"], slow_files["calls"] = slow_files["calls"], None

    with watched_requests(tmp_path / "run") as requests:
        result = train(Plain(at_step), *FEW, stop=requests)
    assert result.status == "completed" and slow_files["seen"] == []
    assert result.column("step", "step") == list(range(1, 161))  # nothing is lost, nothing out of order
    lines = (result.folder / "events.jsonl").read_bytes().splitlines()
    size = [len(line) for line in lines if json.loads(line)["type"] == "step"]
    assert max(size) < 200  # bytes of a log point


class FakeEvent:
    "An event of a device that is `late` steps behind the host."

    late, steps, waits = 0, 0, 0

    def __init__(self):
        self.at = FakeEvent.steps + FakeEvent.late

    def query(self) -> bool:
        return FakeEvent.steps >= self.at

    def synchronize(self) -> None:
        FakeEvent.waits += not self.query()


class Reads(TorchDispatchMode):
    "Counter of tensors read as Python numbers, each of which waits for a GPU."

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.fixture
def device(monkeypatch):
    "Losses that stay tensors, copied by events of FakeEvent: the way of a GPU, without one."
    FakeEvent.steps = FakeEvent.waits = 0
    FakeEvent.late = 3
    monkeypatch.setattr("spectrakit.train.evaluation.to_host", lambda tensor: (tensor.clone(), FakeEvent()))
    after_step = Logging.after_step

    def as_tensor(part) -> None:
        FakeEvent.steps += 1
        part.s.window.loss = torch.as_tensor(part.s.window.loss, dtype=torch.float64)
        after_step(part)

    monkeypatch.setattr(Logging, "after_step", as_tensor)
    return FakeEvent


@pytest.mark.parametrize("late", [0, 1, 7, 10**9])
def test_a_late_loss_is_the_same_in_the_same_order(train, device, late):
    plain = train(Plain(), *FEW, "trainer.check_val_every_n_epoch=5", name="plain")
    device.late = late
    result = train(Plain(), *FEW, "trainer.check_val_every_n_epoch=5", name="late")
    for name in ("step", "loss", "epoch", "lr"):
        assert result.column("step", name) == plain.column("step", name), name
    kinds = [(e["type"], e["step"]) for e in result.events if e["type"] in ("step", "eval")]
    assert kinds == [(e["type"], e["step"]) for e in plain.events if e["type"] in ("step", "eval")]


def test_values_are_read_only_when_they_have_arrived(device):
    device.late = 4
    with Reads() as reads:
        copy = HostCopy([torch.tensor(2.5), 1, torch.tensor(3)])
        assert copy.on_device and not copy.arrived()
    assert reads.count == 0 and device.waits == 0
    assert copy.read() == [2.5, 1.0, 3.0] and device.waits == 1
    device.steps += 4
    assert copy.arrived() and copy.read() == [2.5, 1.0, 3.0] and device.waits == 1


def test_only_an_evaluation_and_the_end_wait(train, device):
    result = train(Plain(), *FEW, "trainer.check_val_every_n_epoch=10")
    assert result.status == "completed" and len(result.column("step", "step")) == 160
    assert device.waits <= 2 * (device.late + 3)  # log points on their way at the evaluations, and their metrics


def test_a_late_loss_that_is_not_finite_ends_the_run_with_its_own_step(train, device, monkeypatch):
    monkeypatch.setattr("spectrakit.train.parts.nan_guard.NanGuard.at_bad_loss", lambda *args: None)  # as on a GPU
    device.late = 0
    soon = train(Plain(bad_at=21), *FEW, "trainer.log_every_n_steps=10", name="soon")
    device.late = 5
    late = train(Plain(bad_at=21), *FEW, "trainer.log_every_n_steps=10", name="late")
    assert soon.status == late.status == "failed" and "at optimizer step 25 of epoch 4" in soon.reason
    assert late.reason == soon.reason


def test_a_stopped_run_with_late_losses_has_them_all(train, device):
    device.late = 10**9  # never by itself
    seen = []

    def at_step(number: int) -> None:
        seen.append(number)

    result = train(Plain(at_step), *FEW, stop=lambda: STOP if len(seen) >= 30 else 0)
    steps = result.column("step", "step")
    assert result.status == "interrupted" and steps == list(range(1, result.events[-1]["step"] + 1))


def test_the_driver_is_asked_by_another_thread(tmp_path, monkeypatch):
    asked, over = [], threading.Event()

    def utilization(device) -> int:
        asked.append(threading.get_ident())
        over.set()
        return 40

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**30)
    context = SimpleNamespace(device=torch.device("cuda", 0), world_size=1)
    part = Logging(SimpleNamespace(context=context))
    for _ in range(1000):
        part._load(0.1)
    assert over.wait(60)
    while part._load(0.1).memory_gib < 0:
        time.sleep(0.01)
    part.close(failed=False)
    assert part._load(0.1) == (1.0, 0.4) and threading.get_ident() not in asked and len(asked) < 100


def test_fast_steps_are_bounded_by_time_but_not_at_evaluations_and_the_end(train):
    words = ("trainer.log_every_n_steps=2", "trainer.log_min_seconds=3600", "trainer.check_val_every_n_epoch=5")
    result = train(Plain(), *FEW, *words, "trainer.max_epochs=19")
    assert result.column("step", "step") == [2, 32, 40, 72, 80, 112, 120, 144, 152]  # an evaluated epoch has its own
    whole = train(Plain(), *FEW, "trainer.check_val_every_n_epoch=5", "trainer.max_epochs=19", name="whole")
    losses = dict(zip(whole.column("step", "step"), whole.column("step", "loss"), strict=True))
    means = [sum(losses[i] for i in range(a + 1, b + 1)) / (b - a) for a, b in [(0, 2), (2, 32), (32, 40)]]
    assert result.column("step", "loss")[:3] == pytest.approx(means, rel=1e-12)


class Known(Task):
    "Losses that are the means of known numbers, 7 in an epoch, whatever the model does; some are not finite."

    epoch = 0

    def __init__(self, bad: float | None = None):
        self.bad = bad

    def datasets(self, cfg):
        x = torch.arange(7.0)[:, None]
        return TensorDataset(x), TensorDataset(x[:2])

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        known = batch[0] + self.epoch if model.training else batch[0]
        if model.training and self.bad is not None and (batch[0] == self.bad).any():
            known = known * float("nan")
        return 0 * model(batch[0]).mean() + known.mean()

    def on_epoch(self, model, moment):
        self.epoch = moment.epoch


KNOWN = ("data.batch_size=2", "trainer.max_epochs=6")


@pytest.mark.parametrize(
    "words",
    [
        ("trainer.log_every_n_steps=50",),
        ("trainer.log_every_n_steps=3", "trainer.log_min_seconds=3600"),
        ("trainer.log_every_n_steps=1",),
        ("data.batch_size=1", "training.gradient_accumulation_steps=3"),
        ("trainer.check_val_every_n_epoch=2", "trainer.log_every_n_steps=50", "trainer.log_min_seconds=3600"),
    ],
)
def test_each_evaluation_shows_the_mean_train_loss_of_its_own_epoch(train, words):
    "By samples: the last step of an epoch has one sample."
    result = train(Known(), *KNOWN, *words, "checkpoint.enabled=false")
    shown = {e["epoch"]: e["epoch_loss"] for e in result.events if e["type"] == "eval"}
    assert (
        result.reason.startswith("all")
        and shown == pytest.approx({epoch: 3 + epoch - 1 for epoch in shown})
        and 6 in shown
    )
    assert len({int(e["epoch"] - 1e-6) for e in result.events if e["type"] == "step"}) >= len(shown)


def test_an_evaluation_within_an_epoch_shows_its_part_and_skipped_steps_do_not_count(train):
    words = (
        "trainer.check_val_every_n_steps=2",
        "trainer.log_every_n_steps=50",
    )
    result = train(Known(bad=2), *KNOWN, *words, "checkpoint.enabled=false", "training.nan_policy=skip")
    shown = [(e["step"], e["epoch_loss"]) for e in result.events if e["type"] == "eval"][:4]
    means = [(0 + 1) / 2, (0 + 1 + 4 + 5 + 6) / 5, 1 + (0 + 1) / 2, 1 + (0 + 1 + 4 + 5 + 6) / 5]
    assert shown == [(2 * k, pytest.approx(mean)) for k, mean in enumerate(means, 1)]


@pytest.mark.parametrize("stop_at", [5, 6, 8])
def test_a_run_resumed_within_an_epoch_shows_the_same_train_loss(train, stop_at):
    words = (*KNOWN, "trainer.log_every_n_steps=3", "checkpoint.every_n_steps=1")
    whole = train(Known(), *words, name="whole")
    steps = []

    class Counting(Known):
        def loss(self, model, batch):
            steps.append(1) if model.training else None
            return super().loss(model, batch)

    first = train(Counting(), *words, name="parts", stop=lambda: STOP if len(steps) >= stop_at else 0)
    assert first.status == "interrupted" and first.events[-1]["step"] < 24
    resumed = train(Known(), *words, name="parts", resume=True)
    rows = {e["epoch"]: e["epoch_loss"] for e in resumed.events if e["type"] == "eval" and e["epoch"] % 1 == 0}
    assert rows == pytest.approx({e["epoch"]: e["epoch_loss"] for e in whole.events if e["type"] == "eval"})


def test_a_request_is_found_by_a_thread_and_served_once(tmp_path, monkeypatch):
    looks, real = [], hang_detector.requested_by_files

    def look(folder):
        looks.append(threading.get_ident())
        return real(folder)

    monkeypatch.setattr(hang_detector, "requested_by_files", look)
    monkeypatch.setattr(hang_detector, "LOOK_S", 0.01)
    here = threading.get_ident()
    with watched_requests(tmp_path) as requests:
        assert [requests() for _ in range(1000)] == [0] * 1000 and here not in looks
        checkpoint_file(tmp_path).touch()
        stop_file(tmp_path).touch()
        while not requests():
            time.sleep(0.001)
        checkpoint_file(tmp_path).unlink()
        assert requests() == STOP
        stop_file(tmp_path).unlink()
        assert requests() == 0


def test_a_log_behind_keeps_order_and_loses_nothing(tmp_path, monkeypatch):
    write = os.write

    def slow(handle, data):
        time.sleep(0.002)
        return write(handle, data)

    monkeypatch.setattr(os, "write", slow)
    log = EventLog(tmp_path / "events.jsonl", behind=True)
    for step in range(300):
        log.write("step", step=step, epoch=0.5)
        if step % 50 == 0:
            log.write("eval", step=step, epoch=0.5, metrics={})
            assert read_events(log.path)[-1]["type"] == "eval"  # with everything before it
    log.close()
    events = read_events(log.path)
    assert [e["step"] for e in events if e["type"] == "step"] == list(range(300))
    assert [e["t"] for e in events] == sorted(e["t"] for e in events)
    log.close()  # again


@pytest.mark.slow
def test_two_ranks_show_the_mean_train_loss_over_the_samples_of_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("data.micro_batch_size=2", "trainer.devices=2", "trainer.max_epochs=3", "trainer.log_every_n_steps=50")
    fixed = ("local/accumulate_grad_batches=debug", "trainer.accelerator=cpu", "checkpoint.enabled=false")
    run = spectrakit.fit(Known(), compose(*fixed, *words), show=False)
    shown = [event["epoch_loss"] for event in run.events if event["type"] == "eval"]
    assert run.status == "completed" and shown == pytest.approx([3, 4, 5])  # 7 samples: 4, then 2 and 1
