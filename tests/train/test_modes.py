"The mode of each module, and buffers: what an evaluation changes is taken back."

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import in_process
from spectrakit.task.task import Task

OFTEN = ("trainer.max_epochs=2", "data.batch_size=8", "trainer.val_check_interval=0.25")


class Normed(Task):
    "A small net with batch norm and dropout; which of its parts are in eval mode is the tests' matter."

    validates = True

    def datasets(self, cfg):
        g = torch.Generator().manual_seed(0)
        x, y = torch.randn(64, 4, generator=g) * 3 + 2, torch.randn(64, generator=g)
        return TensorDataset(x, y), TensorDataset(x[:16] * 5, y[:16]) if self.validates else None

    def model(self, cfg):
        torch.manual_seed(1)
        parts = nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.0))
        return nn.Sequential(nn.Linear(4, 6), parts, nn.Linear(6, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


def by_hand(prepare, epochs=2):
    "A plain loop: train mode, then `prepare`, at each epoch."
    model = Normed().model(None)
    x, y = Normed().datasets(None)[0].tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        model.train()
        prepare(model, epoch)
        for i in range(0, 64, 8):
            optimizer.zero_grad()
            F.mse_loss(model(x[i : i + 8]), y[i : i + 8]).backward()
            optimizer.step()
    return in_process.vector(model)


def norm_fixed(model, epoch):
    model[1][0].eval()


def part_fixed_at_first(model, epoch):
    if epoch == 0:
        model[1].eval()


@pytest.mark.parametrize("prepare", [norm_fixed, part_fixed_at_first])
@pytest.mark.parametrize("words", [(), ("training.ema_decay=0.9",), ("training.average=last:2",)])
def test_modes_of_on_epoch_hold_over_evaluations(train, prepare, words):
    class Fixed(Normed):
        def on_epoch(self, model, moment):
            prepare(model, moment.epoch)

    found = train(Fixed(), *OFTEN, *words, "optimizer.lr=0.01")
    assert found.status == "completed"
    assert torch.equal(found.weights(), by_hand(prepare))


def test_a_resumed_run_has_the_modes_of_its_epoch(train):
    class Fixed(Normed):
        def on_epoch(self, model, moment):
            part_fixed_at_first(model, moment.epoch)

    stops = iter([False] * 13)  # within the second epoch
    words = (*OFTEN, "optimizer.lr=0.01", "checkpoint.every_n_steps=1")
    train(Fixed(), *words, stop=lambda: next(stops, True), name="half")
    more = train(Fixed(), *words, name="half", resume=True)
    assert more.status == "completed" and torch.equal(more.weights(), by_hand(part_fixed_at_first))


class Detects(Normed):
    "Its loss is there in train mode alone, as that of torchvision's detectors; the metric is of eval mode."

    switches_back = True

    def switched(self, model):
        return model

    def loss(self, model, batch):
        part = self.switched(model)
        was = part.training
        part.train()
        loss = super().loss(model, batch)
        if self.switches_back:
            part.train(was)
        return loss

    def metrics(self, outputs, batch):
        return {"mean": (outputs.double().sum(), len(outputs))}


class LeavesTrainMode(Detects):
    switches_back = False


class SwitchesPart(Detects):
    switches_back = False

    def switched(self, model):
        return model[1]


@pytest.mark.parametrize("kind", [Detects, LeavesTrainMode, SwitchesPart])
def test_a_loss_in_train_mode_learns_nothing_from_validation_data(train, kind):
    task, blind = kind(), kind()
    blind.validates = False
    found, wanted = train(task, *OFTEN), train(blind, *OFTEN, name="blind")
    assert found.status == wanted.status == "completed"
    assert torch.equal(found.weights(), wanted.weights())
    model = task.model(None)
    model.load_state_dict(in_process.weights(found.folder))
    x = task.datasets(None)[1].tensors[0]
    with torch.no_grad():  # what the checkpoint predicts, whichever batches the loss has seen before
        mean = float(model.eval()(x).double().mean())
    assert found.column("eval", "metrics")[-1]["val_mean"] == pytest.approx(mean, rel=1e-6)


class Running(nn.Module):
    "A statistic that is assigned anew, and a cache that grows; both are there in eval mode, too."

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.length = 1

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        if len(x) > self.length:
            self.seen, self.length = torch.zeros(len(x)), len(x)
        return x - self.mean + self.seen[: len(x), None]


def test_buffers_that_are_replaced_come_back(train):
    class Counts(Normed):
        def model(self, cfg):
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(4, 6), Running(), nn.Linear(6, 1), nn.Flatten(0))

    blind = Counts()
    blind.validates = False
    words = (
        *OFTEN,
        "data.eval_batch_size=16",
        "optimizer.lr=0.001",
        "training.ema_decay=0.9",
        "training.ema_buffers=true",
    )
    found, wanted = train(Counts(), *words), train(blind, *words, name="blind")
    assert found.status == wanted.status == "completed"
    assert torch.equal(found.weights(), wanted.weights())


class Folded(nn.Linear):
    "Has a `train` of its own, which keeps it in eval mode, as people write it."

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize(
    ("prepared", "said"),
    [
        (lambda model: model[1][0].eval(), "the module 1.0"),
        (lambda model: (model[0].eval(), model[1].eval()), "the modules 0, 1"),
        (lambda model: model.eval(), "a model"),
        (lambda model: model, None),
        (lambda model: model.__setitem__(0, Folded(4, 6).eval()), None),  # it stays as it is
    ],
)
def test_what_model_returns_in_eval_mode_is_told(train, prepared, said):
    class Prepared(Normed):
        def model(self, cfg):
            model = super().model(cfg)
            prepared(model)
            return model

    found = train(Prepared(), "trainer.max_epochs=1", "data.batch_size=8")
    told = [text for text in found.column("message", "text") if "in eval mode" in text]
    assert len(told) == (said is not None)
    assert said is None or f"Prepared.model returned {said} in eval mode" in told[0]
