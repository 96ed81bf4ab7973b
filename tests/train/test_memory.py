"Memory that runs out in the passes of a step: the step is undone, and trained again in smaller micro batches."

import gc
import json
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helpers import TESTS
from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.runs.events import columns, read_events
from spectrakit.task.task import Task
from spectrakit.train.parts import out_of_memory
from tasks import in_sanity_check

NO_ROOM = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Full(torch.autograd.Function):
    "Passes its input on, and has no memory for its gradient."

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise torch.OutOfMemoryError(NO_ROOM)


class Blocks(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Hungry(Task):
    """A small net with dropout and, without `blocks`, batch norm.

    Passes of the `call`-th micro batch of training (from 1 on, without those of the sanity check) have no memory, and
    with `most` from then on those of any with more samples.
    """

    def __init__(self, call=0, where="forward", most=0, blocks=False):
        self.call, self.where, self.most, self.blocks = call, where, most, blocks
        self.calls, self.held, self.freed = 0, None, []

    def datasets(self, cfg):
        x = torch.randn(32, 3, generator=torch.Generator().manual_seed(5))
        return TensorDataset(x, x[:, :1]), None

    def model(self, cfg):
        torch.manual_seed(3)
        first, last = nn.Linear(3, 8), nn.Linear(8, 1)
        return Blocks(first, last) if self.blocks else nn.Sequential(first, nn.BatchNorm1d(8), nn.Dropout(0.2), last)

    def loss(self, model, batch):
        self.calls += not in_sanity_check()
        found = model(batch[0])
        if self.call and self.calls >= self.call and (self.calls == self.call or len(batch[0]) > self.most > 0):
            if self.where == "forward":
                activation = torch.zeros(1000)
                self.held = weakref.ref(activation)
                raise torch.OutOfMemoryError(NO_ROOM)
            found = Full.apply(found)
        return ((found - batch[1]) ** 2).mean()


WORDS = ("data.micro_batch_size=8", "training.gradient_accumulation_steps=2", "checkpoint.every_n_steps=1")


def ooms(events: list) -> list[tuple]:
    "(step, micro batch, accumulated) of each time that memory ran out."
    names = ("step", "micro_batch_size", "gradient_accumulation_steps")
    return [tuple(e[name] for name in names) for e in events if e["type"] == "oom"]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_the_step_is_undone_to_the_bit(train, where):
    "As a run that was stopped before that step, and went on with the smaller micro batch."
    words = (*WORDS, "data.shuffle=true", "optimizer.name=adamw", "optimizer.momentum=0.9")
    found = train(
        Hungry(call=6, where=where), *words, "trainer.max_steps=6", name="again"
    )  # in step 3, its second part
    assert found.status == "completed", found.reason
    assert ooms(found.events) == [(2, 4, 4)]
    anew = "training.oom_recovery=false"  # or it would begin with what fitted
    small = (*words[2:], "data.micro_batch_size=4", "training.gradient_accumulation_steps=4", anew)
    assert train(Hungry(), *words, anew, "trainer.max_steps=2", name="other").status == "completed"
    other = train(Hungry(), *small, "trainer.max_steps=6", name="other", resume=True)
    assert other.status == "completed", other.reason
    assert torch.equal(found.weights(), other.weights())
    assert found.column("step", "loss") == other.column("step", "loss")
    assert [e["text"] for e in found.events if e["type"] == "message" and "is repeated" in e["text"]] == [
        "the memory ran out at step 3: Tried to allocate 2.00 GiB.; the step is repeated in micro batches of 4, "
        "4 of them per step"
    ]


def test_what_the_step_had_allocated_is_free_before_it_is_trained_again(train, monkeypatch):
    task, seen = Hungry(call=3), []

    def train_smaller(part, lost):
        seen.append(task.held())  # nothing was collected yet: the frames are gone with the error
        return real(part, lost)

    real = out_of_memory.train_smaller
    monkeypatch.setattr(out_of_memory, "train_smaller", train_smaller)
    gc.disable()
    try:
        assert train(task, *WORDS, "trainer.max_steps=3").status == "completed"
    finally:
        gc.enable()
    assert seen == [None]


@pytest.mark.slow
def test_down_to_the_least_then_gradient_checkpointing_then_a_clear_end_with_a_checkpoint(train):
    "Batch norm needs two samples; 32 samples in micro batches of 3 would end with two, of 5 as well."
    words = ("data.micro_batch_size=6", "trainer.max_steps=4", "checkpoint.every_n_steps=1")
    for blocks, sizes, least in ((False, [3], "3 samples"), (True, [3, 1, 1], "one sample")):
        task = Hungry(call=3, most=0.5, blocks=blocks)  # from the third on no micro batch is small enough
        found = train(task, *words, name=f"run-{blocks}")
        assert found.status == "failed"
        said = f"There is no memory for {least} at optimizer step 3 (Tried to allocate 2.00 GiB.)."
        assert found.reason.startswith(said), found.reason
        assert [row[1] for row in ooms(found.events)] == sizes
        assert ("nn.ModuleList would allow" in found.reason) is not blocks
        assert (found.folder / "checkpoints" / "LATEST").read_text().strip() == "step-00000002"
        texts = " ".join(e["text"] for e in found.events if e["type"] == "message")
        assert ("with gradient checkpointing" in texts) is blocks


def test_a_resumed_run_and_the_next_one_begin_with_what_fitted(train, tmp_path):
    assert train(Hungry(call=3), *WORDS, "trainer.max_steps=2").status == "completed"
    assert next(iter(json.loads((tmp_path / ".micro_batches.json").read_text()).values())) == 4
    going_on = train(Hungry(), *WORDS, "trainer.max_steps=3", resume=True)
    again = train(Hungry(), *WORDS, "trainer.max_steps=1", name="next")
    for run in (going_on, again):
        texts = [e["text"] for e in run.events if e["type"] == "message" and "instead of 8" in e["text"]]
        assert len(texts) == 1 and "micro batches of 4 instead of 8" in texts[0]
    assert "delete" in texts[0] and ".micro_batches.json" in texts[0]
    other = train(Hungry(), *WORDS, "trainer.max_steps=1", "training.oom_recovery=false", name="as-asked")
    assert not [e for e in other.events if e["type"] == "message" and "instead of" in e["text"]]


def test_what_a_loss_logged_in_an_undone_step_is_not_counted(train):
    class Logs(Hungry):
        def loss(self, model, batch):
            from spectrakit.task.loss import Loss

            return Loss(super().loss(model, batch), logs={"samples": (len(batch[0]), 1)})

    found = train(
        Logs(call=4), *WORDS, "trainer.max_steps=2", "trainer.log_every_n_steps=2", "trainer.log_min_seconds=0"
    )
    # step 1: two of 8 samples; step 2, after its first 8 were undone: four of 4
    assert found.column("step", "train_samples") == [pytest.approx((8 + 8 + 4 * 4) / 6)]


def test_without_recovery_and_for_another_error_the_run_ends(train):
    found = train(Hungry(call=4), *WORDS, "trainer.max_steps=3", "training.oom_recovery=false")
    assert found.status == "failed" and "out of memory" in found.reason and not ooms(found.events)

    class Wrong(Hungry):
        def loss(self, model, batch):
            if self.calls == 3:
                raise ValueError("as planned")
            return super().loss(model, batch)

    found = train(Wrong(), *WORDS, "trainer.max_steps=3", name="wrong")
    assert found.status == "failed" and "as planned" in found.reason


PAIR = """
import os
import torch
from rank_tasks import Curve

class Full(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()

    @staticmethod
    def backward(ctx, grad): raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

class Hungry(Curve):
    "From step 3 on, rank 1 has no memory for more than one sample, {where}; not in the first part of a step."
    parts = 0

    def loss(self, model, batch, moment=None):
        found = super().loss(model, batch)
        if moment is None or not model.training: return found
        self.parts = self.parts + 1 if getattr(self, "step", None) == moment.step else 1
        self.step = moment.step
        if os.environ.get("RANK") != "1" or moment.step < 2 or len(batch[0]) <= 1 or self.parts < 2: return found
        if "{where}" == "forward": raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return Full.apply(found)
"""

TWO = (
    "trainer.accelerator=cpu",
    "trainer.devices=2",
    "trainer.max_epochs=2",
    "training.gradient_accumulation_steps=2",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "distributed.gradient_exchange=after_backward",
)


@pytest.mark.slow
@pytest.mark.parametrize("where", [pytest.param("forward", marks=pytest.mark.long), "backward"])
def test_memory_that_runs_out_on_one_rank_of_two_costs_no_start(tmp_path, monkeypatch, where):
    "In the middle of an accumulation window: the losses are those of a run that had the smaller micro batch all along."
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hungry.py").write_text(PAIR.format(where=where))
    run = fit(f"{tmp_path / 'hungry.py'}:Hungry", compose(*TWO, "data.micro_batch_size=4"), show=False)
    assert run.status == "completed", run.error
    events = read_events(run.path / "events.jsonl")
    assert ooms(events) == [(3, 2, 4), (3, 1, 8)]
    assert [e["ranks"] for e in events if e["type"] == "oom"] == [[1], [1]]
    assert json.loads((run.path / "summary.json").read_text())["launch"]["restarts"] == 0, [
        event for event in events if event["type"] == "restart"
    ]
    small = (
        "data.micro_batch_size=1",
        "training.gradient_accumulation_steps=8",
        *TWO[:3],
        *TWO[4:],
        "training.oom_recovery=false",
    )
    alike = fit(f"{TESTS / 'rank_tasks.py'}:Curve", compose(*small), show=False)
    found, expected = (columns(r.events, "step", "step", "loss") for r in (run, alike))
    assert found["step"] == expected["step"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


AUTO = """
import os
import torch
from rank_tasks import Curve

class Narrow(Curve):
    "Rank 1 has room for five samples, the others for all."

    def loss(self, model, batch):
        if model.training and os.environ.get("RANK") == "1" and len(batch[0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().loss(model, batch)
"""


@pytest.mark.slow
def test_the_largest_micro_batch_is_looked_for_and_the_run_is_that_of_it(tmp_path, monkeypatch):
    "Bit for bit, with dropout and batch norm: what was tried has left nothing."
    monkeypatch.chdir(tmp_path)
    words = (
        "launch.mode=inline",
        "trainer.accelerator=cpu",
        "trainer.max_epochs=3",
        "trainer.log_every_n_steps=1",
        "trainer.log_min_seconds=0",
    )
    found = fit(Hungry(), compose(*words, "batch_size=auto", "global_batch_size=16"), show=False)
    given = fit(Hungry(), compose(*words, "batch_size=16", "accumulate_grad_batches=1"), show=False)
    said = [event["text"] for event in found.events if event["type"] == "message"]
    assert said == [
        "data.micro_batch_size=auto: micro batches of 16, 1 of them per step; the largest that divides "
        "the effective batch"
    ]
    losses = [columns(run.events, "step", "step", "loss") for run in (found, given)]
    assert losses[0] == losses[1] and found.status == given.status == "completed"


@pytest.mark.slow
def test_ranks_look_together_for_what_fits_on_each_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "narrow.py").write_text(AUTO)
    two = [word for word in TWO if "accumulation" not in word and "exchange" not in word]
    words = ("batch_size=auto", "global_batch_size=16", "trainer.max_epochs=2")
    run = fit(f"{tmp_path / 'narrow.py'}:Narrow", compose(*two, *words), show=False)
    assert run.status == "completed", run.error
    assert not ooms(run.events) and (run.path / "summary.json").is_file()
    (said,) = [e["text"] for e in run.events if e["type"] == "message" and "auto" in e["text"]]
    assert said == "data.micro_batch_size=auto: micro batches of 4, 2 of them per step; larger ones do not fit"
