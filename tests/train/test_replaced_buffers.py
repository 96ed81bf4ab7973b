"Modules that put another tensor in a buffer's place in each pass: the run is that of a plain loop, to the bit."

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import in_process
import spectrakit as sk
from in_process import PLAIN, vector
from spectrakit.checkpoint.store import checkpoints, load_weights
from spectrakit.config.compose import compose
from spectrakit.launch.job import Job
from spectrakit.launch.job_kind import kind_named
from spectrakit.launch.launcher import launch
from spectrakit.launch.request import new_request
from spectrakit.system.platforms.detect import detect
from spectrakit.task.task import Task
from tasks import in_sanity_check

WORDS = ("data.batch_size=8", "optimizer.lr=0.05", "trainer.deterministic=false")


class Mean(nn.Module):
    "A running mean, which is a new tensor after each pass in train mode."

    def __init__(self, width=6, persistent=True):
        super().__init__()
        self.register_buffer("mu", torch.zeros(width), persistent=persistent)

    def forward(self, x):
        if self.training:
            self.mu = 0.9 * self.mu + 0.1 * x.detach().mean(0)
        return x - self.mu


class Queue(nn.Module):
    "The last rows that it has seen, whose mean is subtracted; a pointer counts them."

    def __init__(self, width=6):
        super().__init__()
        self.register_buffer("rows", torch.zeros(20, width))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        if self.training:
            self.rows, self.seen = torch.cat([x.detach(), self.rows])[:20], self.seen + len(x)
        return x - self.rows.mean(0)


class Both(nn.Module):
    "A mean of parts of its own and of batch norm, which changes its buffers in place."

    def __init__(self, width=6):
        super().__init__()
        self.first, self.norm, self.last = Mean(width), nn.BatchNorm1d(width), Queue(width)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Wide(nn.Module):
    "A mean that has another type once it was computed."

    def __init__(self, width=6):
        super().__init__()
        self.register_buffer("mu", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.mu = 0.9 * self.mu.double() + 0.1 * x.detach().double().mean(0)
        return (x - self.mu).to(x.dtype)


class Hidden(Mean):
    "The same as `Mean`, in no checkpoint, and of no use in eval mode."

    def __init__(self):
        super().__init__(persistent=False)

    def forward(self, x):
        return super().forward(x) if self.training else x


class Late(nn.Module):
    "A mean that is there after the first pass, and one that is deleted when it is large."

    def __init__(self):
        super().__init__()
        self.register_buffer("once", torch.zeros(6), persistent=False)

    def forward(self, x):
        if not hasattr(self, "mu"):
            self.register_buffer("mu", torch.zeros(6), persistent=False)
        if not self.training:
            return x
        self.mu = 0.9 * self.mu + 0.1 * x.detach().mean(0)
        self.once = None if self.mu.abs().max() > 0.6 else self.once
        return x - self.mu + (1.0 if self.once is None else self.once)


class Growing(nn.Module):
    "Rows that become more with each pass, up to a number; no checkpoint has them."

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(0, 6), persistent=False)

    def forward(self, x):
        if not self.training:
            return x
        self.rows = torch.cat([self.rows, x.detach()])[-30:]
        return x - self.rows.sum(0) / 30


class Sparse(Mean):
    "A mean, and a sparse matrix that no checkpoint has."

    def __init__(self):
        super().__init__()
        self.register_buffer("links", torch.eye(6).roll(1, 0).to_sparse(), persistent=False)

    def forward(self, x):
        return super().forward(x) + (self.links @ x.T).T


KEPT = [Mean, Queue, Both, Wide, Sparse]
UNKEPT = [Hidden, Late, Growing]


class Moving(Task):
    "A small net with one of these parts; some batches may hold NaN, which spoils what they touch."

    def __init__(self, part=Mean, bad=()):
        self.part, self.bad = part, bad

    def datasets(self, cfg):
        g = torch.Generator().manual_seed(0)
        x, y = torch.randn(64, 4, generator=g) * 3 + 2, torch.randn(64, generator=g)
        for step in self.bad:
            x[8 * step + 3] = math.nan
        return TensorDataset(x, y), TensorDataset(torch.randn(16, 4, generator=g), torch.zeros(16))

    def model(self, cfg):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), self.part(), nn.ReLU(), nn.Linear(6, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


def by_hand(task, steps=16):
    "A plain loop that goes back to its copy of the model where the loss is not finite; weights, buffers, averages."
    model = task.model(None)
    (x, y), losses = task.datasets(None)[0].tensors, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        before, first = copy.deepcopy(model), step % 8 * 8
        optimizer.zero_grad()
        loss = F.mse_loss(model.train()(x[first : first + 8]), y[first : first + 8])
        if not loss.detach().isfinite():
            model = before
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            continue
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model


@pytest.mark.parametrize("part", [*KEPT, *UNKEPT])
def test_a_run_is_that_of_a_plain_loop(train, part):
    run = train(Moving(part), *WORDS, "trainer.max_epochs=2")
    assert run.status == "completed", run.reason
    assert torch.equal(run.weights(), vector(by_hand(Moving(part))))


@pytest.mark.parametrize("part", [*KEPT, *UNKEPT])
@pytest.mark.parametrize("bad", [pytest.param((2,), marks=pytest.mark.long), (3, 4, 7)])
def test_a_step_that_is_skipped_leaves_no_trace_in_the_buffers(train, part, bad):
    task = Moving(part, bad)
    run = train(task, *WORDS, "trainer.max_epochs=2", "training.nan_policy=skip", "data.allow_nan=true")
    assert run.status == "completed", run.reason
    wanted = vector(by_hand(task))
    assert wanted.isfinite().all() and torch.equal(run.weights(), wanted)


OFTEN = ("checkpoint.every_n_steps=1", "checkpoint.keep_last=99")


def averages_by_hand(run, task, decay=0.6):
    "Averages of weights and buffers from the checkpoints of all steps; those of a new type begin anew."
    mean = {name: value.clone() for name, value in task.model(None).state_dict().items()}
    for number, path in enumerate(checkpoints(run.folder / "checkpoints"), 1):
        stays = min(decay, (1 + number) / (10 + number))
        for name, now in load_weights(path, ema=False).items():
            moves = now.is_floating_point() and mean[name].dtype == now.dtype
            mean[name] = mean[name].lerp(now, 1 - stays) if moves else now
    return mean


@pytest.mark.parametrize("part", KEPT)
@pytest.mark.parametrize("skips", [False, True])
def test_moving_averages_follow_the_tensors_that_are_there(train, part, skips):
    task = Moving(part, (3,) if skips else ())
    words = (*WORDS, *OFTEN, "trainer.max_epochs=1", "training.ema_decay=0.6", "training.ema_buffers=true")
    words = (*words, "training.nan_policy=skip", "data.allow_nan=true") if skips else words
    run = train(task, *words)
    assert run.status == "completed", run.reason
    kept, wanted = load_weights(checkpoints(run.folder / "checkpoints")[-1]), averages_by_hand(run, task)
    for name, value in wanted.items():
        torch.testing.assert_close(kept[name], value)
    assert torch.equal(run.weights(), vector(by_hand(task, 8)))


EXTRAS = {
    "plain": (),
    "averages": ("training.ema_decay=0.6", "training.ema_buffers=true"),
    "skip": ("training.nan_policy=skip", "data.allow_nan=true"),
    "recompute": ("training.gradient_checkpointing=['1']",),
    "accumulation": ("training.gradient_accumulation_steps=2",),
}


@pytest.mark.parametrize(
    ("part", "extra"),
    [  # each twice in `make test`
        pytest.param(part, extra, marks=[pytest.mark.long] * ((row + column) % 5 not in (0, 2)))
        for row, part in enumerate(KEPT)
        for column, extra in enumerate(EXTRAS)
    ],
)
def test_a_run_that_is_cut_goes_on_to_the_bit(train, part, extra):
    task = Moving(part, (3,) if extra == "skip" else ())
    words = (*WORDS, *EXTRAS[extra], "trainer.check_val_every_n_steps=3")
    whole = train(task, *words, "trainer.max_steps=9", name="whole")
    train(task, *words, "trainer.max_steps=5", name="cut")
    rest = train(task, *words, "trainer.max_steps=9", name="cut", resume=True)
    assert whole.status == rest.status == "completed", (whole.reason, rest.reason)
    for ema in (False, True):
        assert torch.equal(rest.weights(ema=ema), whole.weights(ema=ema))


@pytest.mark.parametrize("part", [*KEPT, *UNKEPT])
def test_evaluations_and_saves_leave_no_trace(train, part):
    words = (*WORDS, "trainer.max_epochs=2", "training.ema_decay=0.6", "training.ema_buffers=true")
    often = train(Moving(part), *words, *OFTEN, "trainer.check_val_every_n_steps=1", name="often")
    once = train(Moving(part), *words, "trainer.check_val_every_n_epoch=2", name="once")
    assert often.status == once.status == "completed", (often.reason, once.reason)
    for ema in (False, True):
        assert torch.equal(often.weights(ema=ema), once.weights(ema=ema))


class Spoiled(Moving):
    "The loss of one pass in training is NaN, and so are the buffers of that pass."

    passes = 0

    def loss(self, model, batch):
        x = batch[0]
        if model.training and not in_sanity_check():
            self.passes += 1
            x = x * math.nan if self.passes == 11 else x
        return F.mse_loss(model(x), batch[1])


@pytest.mark.parametrize("part", [*KEPT, *UNKEPT])
def test_a_rollback_brings_back_the_buffers(train, part):
    words = (*WORDS, "trainer.max_epochs=2", "training.nan_policy=rollback", "training.rollback_lr_factor=1")
    run = train(Spoiled(part), *words, "checkpoint.every_n_steps=4")
    assert run.status == "completed", run.reason
    assert len([e for e in run.events if e["type"] == "nan"]) == 1
    if part in KEPT:
        assert torch.equal(run.weights(), vector(by_hand(Moving(part))))
    assert run.weights().isfinite().all()


class Full(Moving):
    "Passes of one micro batch of eight have no memory."

    passes = 0

    def loss(self, model, batch):
        result = super().loss(model, batch)
        if model.training and not in_sanity_check():
            self.passes += 1
            if self.passes == 5:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return result


@pytest.mark.parametrize("part", [*KEPT, *UNKEPT])
def test_a_step_without_memory_is_made_again_from_the_same_buffers(train, part):
    run = train(Full(part), *WORDS, "trainer.max_epochs=1")
    assert run.status == "completed" and [e for e in run.events if e["type"] == "oom"], run.reason
    model, (x, y) = Moving(part).model(None), Moving(part).datasets(None)[0].tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        optimizer.zero_grad()
        size = 8 if step < 4 else 4
        for first in range(8 * step, 8 * step + 8, size):
            loss = F.mse_loss(model(x[first : first + size]), y[first : first + size])
            (loss * size / 8).backward()
        optimizer.step()
    torch.testing.assert_close(run.weights(), vector(model))


@pytest.mark.parametrize("part", [Mean, Queue, Both, Wide])
def test_blocks_that_are_computed_again_move_their_buffers_once(train, part):
    found = train(Moving(part), *WORDS, "trainer.max_epochs=1", "training.gradient_checkpointing=['1']", name="lean")
    plain = train(Moving(part), *WORDS, "trainer.max_epochs=1", name="plain")
    assert found.status == "completed", found.reason
    assert torch.equal(found.weights(), plain.weights())


class Unseen(Moving):
    "Without validation, so that the last checkpoint is the best, and with rows to predict on."

    def datasets(self, cfg):
        return super().datasets(cfg)[0], None

    def test_dataset(self, cfg):
        return TensorDataset(torch.randn(5, 4, generator=torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("part", KEPT)
def test_what_is_loaded_predicts_as_the_model_of_the_run(part, tmp_path):
    task, words = Unseen(part), (*PLAIN, *WORDS, "trainer.max_epochs=2", f"run.dir={tmp_path / 'run'}")
    run = sk.fit(task, *words, show=False).raise_for_status()
    (x,), wanted, model = task.test_dataset(None).tensors, by_hand(task).eval(), run.load_model()
    assert [(b.dtype, b.shape) for b in model.buffers()] == [(b.dtype, b.shape) for b in wanted.buffers()]
    assert torch.equal(model(x), wanted(x))
    predicted = sk.predict(task, run).arrays
    assert torch.equal(torch.as_tensor(predicted["predictions"]), wanted(x))


# two ranks

TWO = ("trainer.devices=2", "data.batch_size=4", "local/accumulate_grad_batches=debug", "checkpoint.max_share=1")


def on_two(folder, task, *words, kind="train"):
    "The weights of a run on two ranks, and how it ended."
    config = compose(*PLAIN, *WORDS, *TWO, "launch.mode=auto", *words)
    request = new_request(config, replace(detect(environ={}), cores=4))
    outcome = launch(Job(kind_named(kind), folder, request), task, lambda: None)
    assert outcome.status == "completed", outcome
    return in_process.weights(folder)


def two_by_hand(task, steps=16):
    "A plain loop over the halves of each batch: gradients are means, and the buffers of the first half count."
    model, (x, y) = task.model(None), task.datasets(None)[0].tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        start, kept, losses = step % 8 * 8, None, []
        held = [dict(part._buffers) for part in model.modules()]
        values = [(b, b.clone()) for b in model.buffers() if not b.is_sparse]
        for first in (start, start + 4):
            for part, own in zip(model.modules(), held, strict=True):
                part._buffers.clear()
                part._buffers.update(own)
            for buffer, value in values:
                buffer.data.copy_(value)
            losses.append(F.mse_loss(model(x[first : first + 4]), y[first : first + 4]))
            kept = kept or copy.deepcopy([dict(part._buffers) for part in model.modules()])
        for part, own in zip(model.modules(), kept, strict=True):
            part._buffers.clear()
            part._buffers.update(own)
        if sum(losses).isfinite():
            (sum(losses) / 2).backward()
            optimizer.step()
        else:
            for part, own in zip(model.modules(), held, strict=True):
                part._buffers.clear()
                part._buffers.update(own)
            for buffer, value in values:
                buffer.data.copy_(value)
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "part"),
    [
        *(("after_backward", part) for part in (Mean, Both, Sparse)),
        *(("overlap", part) for part in (Queue, Wide, Both)),
        *(pytest.param("after_backward", part, marks=pytest.mark.long) for part in (Queue, Wide)),
        *(pytest.param("overlap", part, marks=pytest.mark.long) for part in (Mean, Sparse)),
    ],
)
def test_two_ranks_have_the_buffers_of_the_first(tmp_path, part, way):
    task, way = Moving(part, (3,)), f"distributed.gradient_exchange={way}"
    words = (way, "trainer.max_epochs=2", "training.nan_policy=skip", "data.allow_nan=true")
    found, wanted = on_two(tmp_path / "run", task, *words), two_by_hand(task)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


SAMPLED = [("ddp", Queue), ("fsdp", Growing), ("diloco", Hidden)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "part"),
    [
        pytest.param(strategy, part, marks=[pytest.mark.long] * ((strategy, part) not in SAMPLED))
        for strategy in ("ddp", "fsdp", "diloco")
        for part in (*UNKEPT, Queue)
    ],
)
def test_two_ranks_go_on_after_a_stop(tmp_path, part, strategy):
    words = (f"trainer.strategy.name={strategy}", "training.ema_decay=0.6", "training.ema_buffers=true")
    words = (*words, *(("diloco.max_steps=3",) if strategy == "diloco" else ()), "trainer.check_val_every_n_steps=3")
    whole = on_two(tmp_path / "whole", Moving(part), *words, "trainer.max_steps=10")
    on_two(tmp_path / "cut", Moving(part), *words, "trainer.max_steps=6")
    rest = on_two(tmp_path / "cut", Moving(part), *words, "trainer.max_steps=10", kind="resume")
    if part is Queue:
        assert all(torch.equal(rest[name], value) for name, value in whole.items())
    assert all(value.isfinite().all() for value in whole.values())
