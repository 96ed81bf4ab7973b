"Optimizers that hold others, with a state of their own form: they are restored through their own `load_state_dict`."

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from in_process import vector
from spectrakit.task.task import Task
from tasks import in_sanity_check


class Named:
    "Two optimizers by name; groups are asked for."

    def __init__(self, first, second):
        self.a, self.b = first, second

    @property
    def param_groups(self):
        return self.a.param_groups + self.b.param_groups

    def zero_grad(self, set_to_none=True):
        self.a.zero_grad(), self.b.zero_grad()

    def step(self, closure=None):
        self.a.step(), self.b.step()

    def state_dict(self):
        return {"a": self.a.state_dict(), "b": self.b.state_dict()}

    def load_state_dict(self, state):
        self.a.load_state_dict(state["a"]), self.b.load_state_dict(state["b"])


class Listed(torch.optim.Optimizer):
    "A list of optimizers in a subclass of torch's, with one list of groups that was made at the beginning."

    def __init__(self, *parts):
        self.parts = list(parts)
        super().__init__([q for part in parts for group in part.param_groups for q in group["params"]], {"lr": 0.0})
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self, closure=None):
        for part in self.parts:
            part.step()

    def state_dict(self):
        return {"inner": [part.state_dict() for part in self.parts], "kind": "listed"}

    def load_state_dict(self, state):
        for part, own in zip(self.parts, state["inner"], strict=True):
            part.load_state_dict(own)


class Counted(Named):
    "With a count of its own, by which the second optimizer steps every other time."

    count = 0

    def step(self, closure=None):
        self.count += 1
        self.a.step()
        if self.count % 2:
            self.b.step()

    def state_dict(self):
        return {**super().state_dict(), "count": self.count}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.count = state["count"]


def optimizer_of(kind, model):
    first = torch.optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)
    return kind(first, torch.optim.AdamW(model[2].parameters(), lr=0.01))


class Combined(Task):
    "A small net; the loss of one pass may be NaN."

    passes = 0

    def __init__(self, kind, bad=None):
        self.kind, self.bad = kind, bad

    def datasets(self, cfg):
        g = torch.Generator().manual_seed(0)
        x, y = torch.randn(64, 4, generator=g), torch.randn(64, generator=g)
        return TensorDataset(x, y), TensorDataset(x[:16], y[:16])

    def model(self, cfg):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))

    def optimizer(self, model, cfg):
        return optimizer_of(self.kind, model)

    def loss(self, model, batch):
        loss = F.mse_loss(model(batch[0]), batch[1])
        if model.training and not in_sanity_check():
            self.passes += 1
            return loss * math.nan if self.passes == self.bad else loss
        return loss


KINDS = [Named, Listed, Counted]
EXTRAS = {
    "plain": (),
    "schedule": ("scheduler.name=cosine", "scheduler.warmup_steps=2"),
    "clip and averages": ("trainer.gradient_clip_val=0.5", "training.ema_decay=0.6"),
    "skip": ("training.nan_policy=skip",),
}


def by_hand(task, steps):
    model, (x, y) = task.model(None), task.datasets(None)[0].tensors
    optimizer = optimizer_of(task.kind, model)
    for step in range(steps):
        first = step % 8 * 8
        optimizer.zero_grad()
        F.mse_loss(model(x[first : first + 8]), y[first : first + 8]).backward()
        optimizer.step()
    return vector(model)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extra", EXTRAS)
def test_a_run_that_is_cut_goes_on_to_the_bit(train, kind, extra):
    words = ("data.batch_size=8", *EXTRAS[extra], "trainer.check_val_every_n_steps=3")
    whole = train(Combined(kind), *words, "trainer.max_epochs=2", name="whole")
    asked = []
    task = Combined(kind)
    task.stop_at, plain = 11, task.loss

    def loss(model, batch):
        result = plain(model, batch)
        asked.extend([1] if task.passes == 11 else [])
        return result

    task.loss = loss
    cut = train(task, *words, "trainer.max_epochs=2", name="cut", stop=lambda: bool(asked))
    rest = train(Combined(kind), *words, "trainer.max_epochs=2", name="cut", resume=True)
    assert (whole.status, cut.status, rest.status) == ("completed", "interrupted", "completed"), rest.reason
    for ema in (False, True):
        assert torch.equal(rest.weights(ema=ema), whole.weights(ema=ema))
    if extra in ("plain", "skip"):
        assert torch.equal(whole.weights(), by_hand(Combined(kind), 16))


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_brings_back_the_state(train, kind):
    words = ("data.batch_size=8", "training.nan_policy=rollback", "training.rollback_lr_factor=1")
    run = train(Combined(kind, bad=11), *words, "checkpoint.every_n_steps=4", "trainer.max_epochs=2")
    assert run.status == "completed" and [e for e in run.events if e["type"] == "nan"], run.reason
    assert torch.equal(run.weights(), by_hand(Combined(kind), 16))
