"Without validation or test data, what needs them is tried on a training batch before the first step."

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from helpers import why_failed
from in_process import INLINE
from spectrakit.config.compose import compose
from spectrakit.task.task import Task

DRAW = torch.Generator().manual_seed(3)
X, Y = torch.randn(24, 4, generator=DRAW), torch.randn(24, generator=DRAW)
QUICK = (
    *INLINE,
    "trainer.max_epochs=1",
)


class Alone(Task):
    def datasets(self, cfg):
        return TensorDataset(X, Y), None

    def model(self, cfg):
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


class Fine(Alone):
    def predict(self, model, batch):
        assert not model.training
        return {"mean": model(batch[0])}

    def metrics(self, outputs, batch):
        return {"mae": ((outputs["mean"] - batch[1]).abs().sum(), len(batch[1]))}


class NoCount(Fine):
    def metrics(self, outputs, batch):
        return {"mae": (outputs["mean"] - batch[1], len(batch[1]))}


class OneRow(Alone):
    def predict(self, model, batch):
        return model(batch[0]).mean(0, keepdim=True)


class WholeBatch(Alone):
    def predict(self, model, batch):
        return model(batch)


class OtherKeys(Fine):
    "Its validation batches would have a third part."

    def metrics(self, outputs, batch):
        return {"mae": ((outputs["mean"] - batch[2]).abs().sum(), len(batch[1]))}


@pytest.mark.parametrize(
    ("kind", "text"), [(NoCount, "as its sum"), (OneRow, "for a batch of 8 samples"), (WholeBatch, "predict")]
)
def test_what_could_not_be_evaluated_or_predicted_is_refused(kind, text, tmp_path):
    why_failed(sk.fit(kind(), *QUICK, f"run.dir={tmp_path / 'run'}", show=False), text)
    assert text in str(sk.check(kind(), compose(*QUICK)))


@pytest.mark.parametrize("kind", [Alone, Fine, OtherKeys])
def test_what_may_be_due_to_the_batch_is_no_reason_to_refuse(kind, tmp_path):
    run = sk.fit(kind(), *QUICK, f"run.dir={tmp_path / 'run'}", show=False)
    assert run.status == "completed"
    told = [
        e["text"] for e in run.events if e["type"] == "message" and "could not be checked on a training" in e["text"]
    ]
    assert bool(told) == (kind is OtherKeys)
    plain = sk.fit(Alone(), *QUICK, f"run.dir={tmp_path / 'plain'}", show=False)
    losses = [[e["loss"] for e in each.events if e["type"] == "step"] for each in (run, plain)]
    assert losses[0] == losses[1]
