"Before the first step a run is loaded, predicted with and resumed as its next process will: by new objects."

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from helpers import why_failed
from in_process import INLINE, furthest
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.task.task import Task

DRAW = torch.Generator().manual_seed(2)
X, Y = torch.randn(32, 4, generator=DRAW), torch.randn(32, generator=DRAW)
QUICK = (
    *INLINE,
    "trainer.max_epochs=2",
    "scheduler.name=linear",
    "checkpoint.max_share=1",
)


class Base(Task):
    def datasets(self, cfg):
        return TensorDataset(X, Y), TensorDataset(X[:8], Y[:8])

    def model(self, cfg):
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, x):
        return self.line(x)[:, 0]


class Bank(Line):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.zeros(0, 4))

    def forward(self, x):
        if self.training:
            self.bank = torch.cat([self.bank, x.detach()])
        return super().forward(x)


class Late(Line):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", None)

    def forward(self, x):
        self.centre = x.detach().mean(0) if self.centre is None else self.centre
        return super().forward(x - self.centre)


class Mask(Line):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.eye(4).to_sparse())


class Moving(Line):
    "A mean that is an attribute, and no buffer."

    centre = 0.0

    def forward(self, x):
        if self.training:
            self.centre = 0.5 * self.centre + x.detach().mean(0)
        return super().forward(x - self.centre)


class Unseeded(Line):
    def __init__(self):
        super().__init__()
        self.turn = torch.from_numpy(np.random.default_rng().normal(size=(4, 4)).astype(np.float32))

    def forward(self, x):
        return super().forward(x @ self.turn)


class Broken(torch.optim.SGD):
    def state_dict(self):
        raise ValueError("no state today")


class Nameless(Line):
    def state_dict(self, *args, **options):
        raise ValueError("no weights today")


class Together:
    "Two optimizers in one, with a list for a state and groups in a list of its own."

    def __init__(self, *parts):
        self.parts, self.param_groups = parts, [group for part in parts for group in part.param_groups]

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()

    def step(self):
        for part in self.parts:
            part.step()

    def state_dict(self):
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, state):
        for part, own in zip(self.parts, state, strict=True):
            part.load_state_dict(own)


class Inheriting(torch.optim.Optimizer):
    "The same as one of torch's, with a mapping for a state, and groups that are asked for."

    def __init__(self, first, second):
        self.first, self.second = first, second

    @property
    def param_groups(self):
        return self.first.param_groups + self.second.param_groups

    def zero_grad(self, set_to_none=True):
        self.first.zero_grad(), self.second.zero_grad()

    def step(self, closure=None):
        self.first.step(), self.second.step()

    def state_dict(self):
        return {"first": self.first.state_dict(), "second": self.second.state_dict()}

    def load_state_dict(self, state):
        self.first.load_state_dict(state["first"]), self.second.load_state_dict(state["second"])


def latest(run):
    "The weights of the last step, the best or not."
    return load_weights(find_checkpoint(run.path / "checkpoints")[0])


def task_with(**methods):
    return type("Mine", (Base,), methods)()


REFUSED = {
    "a bank that grows": (Bank, "model cannot load", "bank"),
    "a buffer that comes later": (Late, "model cannot load", "centre"),
    "a sparse buffer": (Mask, "layout torch.sparse_coo", "to_dense"),
    "a mean that is no buffer": (Moving, "predicts differently", "buffer"),
    "numbers from no seed": (Unseeded, "predicts differently", "seed"),
    "a state_dict of the model that fails": (Nameless, "Mine.model raised ValueError", "no weights today"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_next_process_could_not_load_is_refused_by_run_and_check(case, tmp_path):
    net, *texts = REFUSED[case]
    task = task_with(model=lambda self, cfg: net())
    refusal = why_failed(sk.fit(task, *QUICK, f"run.dir={tmp_path / 'run'}", show=False))
    report = sk.check(task, compose(*QUICK))
    for text in texts:
        assert text in refusal and text in str(report), refusal
    assert not list((tmp_path / "run").glob("*/checkpoints/step-*"))


def test_an_optimizer_that_cannot_be_saved_is_blamed_itself(tmp_path):
    task = task_with(
        optimizer=lambda self, model, cfg: Broken(model.parameters(), lr=0.1),
        test_dataset=lambda self, cfg: TensorDataset(X[:8], Y[:8]),
    )
    why_failed(
        sk.fit(task, *QUICK, f"run.dir={tmp_path / 'run'}", show=False),
        "Mine.optimizer raised ValueError: no state today when its state_dict",
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Together, Inheriting])
def test_a_run_with_two_optimizers_in_one_is_resumed_as_if_it_had_not_stopped(kind, tmp_path):
    def optimizer(self, model, cfg):
        first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        return kind(first, torch.optim.AdamW(model[2].parameters(), lr=0.01))

    task = task_with(optimizer=optimizer)
    words = (*QUICK, "scheduler.name=constant")
    whole = sk.fit(task, *words, f"run.dir={tmp_path / 'whole'}", show=False)
    half = sk.fit(task, *words, "trainer.max_steps=3", f"run.dir={tmp_path / 'half'}", show=False)
    rest = sk.resume(half, task, "trainer.max_steps=8", "resume.allow=[trainer.max_steps]", show=False)
    assert whole.status == rest.status == "completed" and not [e for e in whole.events if e["type"] == "message"]
    assert furthest(latest(rest), latest(whole)) == 0


@pytest.mark.slow
def test_a_count_that_no_checkpoint_holds_is_told_and_a_teacher_goes_on(tmp_path):
    class Teaching(Base):
        def model(self, cfg):
            net = super().model(cfg)
            self.teacher = copy.deepcopy(net)
            return net

        def loss(self, model, batch):
            with torch.no_grad():
                for old, new in zip(self.teacher.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.5 if model.training else 0.0)
            return F.mse_loss(model(batch[0]), batch[1]) + (model(batch[0]) - self.teacher(batch[0])).square().mean()

    class Counting(Base):
        calls = 0

        def loss(self, model, batch):
            self.calls += model.training
            return F.mse_loss(model(batch[0]), batch[1]) / self.calls

    told = [
        [e["text"] for e in run.events if e["type"] == "message"]
        for run in (
            sk.fit(task(), *QUICK, f"run.dir={tmp_path / 'run'}", show=False) for task in (Base, Teaching, Counting)
        )
    ]
    assert told[0] == told[1] == [] and "its next step differs" in told[2][0]


class Counting(Base):
    calls, made = [], 0

    def __init__(self):
        self.seen, self.draws = {"rows": [0]}, np.random.default_rng(1)

    def model(self, cfg):
        Counting.made += 1
        return super().model(cfg)

    def loss(self, model, batch):
        self.seen["rows"][0] += 1
        self.calls.append(float(self.draws.random()))
        return super().loss(model, batch)


def test_the_check_leaves_no_trace_on_the_task_its_class_and_its_generators():
    task = Counting()
    first = copy.deepcopy(task.draws).random()
    assert sk.check(task, compose(*QUICK)).ok
    assert task.seen == {"rows": [0]} and Counting.calls == [] and Counting.made == 0
    assert task.draws.random() == first


def test_a_predict_that_draws_or_changes_its_batch_is_no_other_model():
    def noisy(self, model, batch):
        return model(batch[0].mul_(2)) + torch.randn(len(batch[0])) + float(np.random.default_rng().normal())

    assert sk.check(task_with(predict=noisy, test_dataset=lambda self, cfg: TensorDataset(X, Y)), compose(*QUICK)).ok
