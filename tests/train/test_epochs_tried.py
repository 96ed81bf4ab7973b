"What `on_epoch` does in any epoch is tried before the first step, and a run that is resumed in a later phase is exact."

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
from spectrakit.task.task import Moment, Task

DRAW = torch.Generator().manual_seed(3)
X, Y = torch.randn(32, 4, generator=DRAW), torch.randn(32, generator=DRAW)
QUICK = (
    *INLINE,
    "trainer.max_epochs=4",
    "scheduler.name=constant",
    "checkpoint.max_share=1",
)


class Phases(Task):
    frozen = False

    def datasets(self, cfg):
        return TensorDataset(X, Y), TensorDataset(X[:8], Y[:8])

    def model(self, cfg):
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
        net[0].requires_grad_(not self.frozen)
        return net

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


class Thawed(Phases):
    "Frozen by `model`, and thawed once."

    frozen = True

    def on_epoch(self, model, moment):
        if moment.epoch == 2:
            model[0].requires_grad_(True)


class FrozenFirst(Phases):
    "Frozen in the first epoch alone, which a run that goes on in the second has to know."

    def on_epoch(self, model, moment):
        if moment.epoch in (0, 2):
            model[0].requires_grad_(moment.epoch == 2)


class Nothing(Phases):
    def on_epoch(self, model, moment):
        model.requires_grad_(moment.epoch < 3)


class Fails(Phases):
    def on_epoch(self, model, moment):
        if moment.epoch == 3:
            model.head.requires_grad_(False)


@pytest.mark.parametrize(("kind", "text"), [(Nothing, "froze every parameter, so that epoch 3"), (Fails, "on_epoch")])
def test_what_a_later_epoch_would_end_with_is_told_before_the_first_step(kind, text, tmp_path):
    why_failed(sk.fit(kind(), *QUICK, f"run.dir={tmp_path / 'run'}", show=False), text)
    assert text in str(sk.check(kind(), compose(*QUICK)))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [6, 10])
@pytest.mark.parametrize("kind", [Thawed, FrozenFirst])
def test_a_run_of_two_phases_goes_on_as_it_would_have(kind, steps, tmp_path):
    words = (*QUICK, "optimizer.name=adamw", "optimizer.lr=0.01", "training.ema_decay=0.9")
    whole = sk.fit(kind(), *words, f"run.dir={tmp_path / 'whole'}", show=False)
    half = sk.fit(kind(), *words, f"trainer.max_steps={steps}", f"run.dir={tmp_path / 'half'}", show=False)
    rest = sk.resume(half, kind(), "trainer.max_steps=16", "resume.allow=[trainer.max_steps]", show=False)
    assert whole.status == rest.status == "completed"
    last, again = (load_weights(find_checkpoint(run.path / "checkpoints")[0]) for run in (whole, rest))
    begun = kind().model(compose()).state_dict()
    assert furthest(last, again) == 0 and not torch.equal(last["0.weight"], begun["0.weight"])


class Later(FrozenFirst):
    "In the third of four epochs nothing is called for what was set in the second."

    def on_epoch(self, model, moment):
        if moment.epoch in (0, 1):
            model[0].requires_grad_(moment.epoch == 1)
            model[2].requires_grad_(moment.epoch == 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FrozenFirst, Later])
def test_two_ranks_go_on_in_a_later_phase_as_one_run(kind, tmp_path):
    words = (*QUICK, "launch.mode=auto", "trainer.devices=2", "data.batch_size=4", "optimizer.name=adamw")
    whole = sk.fit(kind(), *words, f"run.dir={tmp_path / 'whole'}", show=False)
    steps = next(e for e in whole.events if e["type"] == "start")["steps_per_epoch"]
    early = steps + steps // 2 if kind is FrozenFirst else 2 * steps + 1
    half = sk.fit(kind(), *words, f"trainer.max_steps={early}", f"run.dir={tmp_path / 'half'}", show=False)
    rest = sk.resume(half, kind(), f"trainer.max_steps={4 * steps}", "resume.allow=[trainer.max_steps]", show=False)
    assert whole.status == rest.status == "completed", rest.error
    last, again = (load_weights(find_checkpoint(run.path / "checkpoints")[0]) for run in (whole, rest))
    assert furthest(last, again) == 0


class Normed(Phases):
    "A batch norm in eval mode, as from `on_epoch`, so that one sample is enough."

    def model(self, cfg):
        torch.manual_seed(cfg.seed)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1), nn.Flatten(0))

    def on_epoch(self, model, moment):
        model[1].eval()


class Weighed(Normed):
    "Its loss reads an attribute that `on_epoch` sets, and the whole model is in eval mode."

    def on_epoch(self, model, moment):
        model.eval()
        self.weight = 1.0 / (1 + moment.epoch)

    def loss(self, model, batch):
        return self.weight * super().loss(model, batch)


class ThawedFirst(Normed):
    "Returned frozen as a whole: the head learns from the first epoch on, the rest later."

    def model(self, cfg):
        return super().model(cfg).requires_grad_(False)

    def on_epoch(self, model, moment):
        model[1].eval()
        model[3].requires_grad_(True)
        model[0].requires_grad_(moment.epoch >= 2)


@pytest.mark.parametrize("kind", [Normed, Weighed, ThawedFirst])
def test_the_first_batch_is_tried_as_the_first_epoch_finds_the_model(kind, tmp_path):
    words = (*QUICK, "data.batch_size=1", "optimizer.name=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0")
    words += ("data.shuffle=false", "trainer.gradient_clip_val=null")
    run = sk.fit(kind(), *words, "trainer.max_epochs=3", f"run.dir={tmp_path}", show=False)
    assert run.status == "completed"
    assert not [e["text"] for e in run.events if e["type"] == "message" and "eval mode" in e["text"]]
    task = kind()
    plain, rate = task.model(compose(*words)), run.config.optimizer.lr
    for epoch in range(3):
        plain.train()
        task.on_epoch(plain, Moment(epoch, 32 * epoch, 96))
        for row in range(32):
            plain.zero_grad()
            task.loss(plain, (X[row : row + 1], Y[row : row + 1])).backward()
            with torch.no_grad():
                for q in plain.parameters():
                    if q.requires_grad:
                        q.sub_(rate * q.grad)
    learned = run.load_model().state_dict()
    assert all(
        torch.allclose(learned[name].float(), value.float(), atol=1e-5) for name, value in plain.state_dict().items()
    )
