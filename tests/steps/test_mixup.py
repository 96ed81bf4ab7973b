"Mixup: one setting, for classes and for numbers, exact over a resume."

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.contract.task import Task
from spectrakit.system.errors import RequestError
from tasks import Line

pytestmark = pytest.mark.slow
WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=8",
    "accumulate_grad_batches=1",
    "run.dir=runs",
)
MIXED = (*WORDS, "training.mixup=0.4", "scheduler.name=constant")


class Classes(Task):
    def datasets(self, cfg):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, (x.sum(1) > 0).long())
        return data, data

    def model(self, cfg):
        return nn.Linear(4, 2)

    def loss(self, model, batch):
        outputs = model(batch[0])
        return sk.Loss(F.cross_entropy(outputs, batch[1]), outputs=outputs)

    def metrics(self, outputs, batch):
        return {"accuracy": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}


@pytest.mark.parametrize("make", [Classes, Line])
def test_what_follows_a_resume_is_what_would_have_been(here, make):
    whole = sk.fit(make(), compose(*MIXED, "trainer.max_epochs=4"), show=False)
    half = sk.fit(make(), compose(*MIXED, "trainer.max_epochs=2"), show=False)
    words = ("trainer.max_epochs=4", "resume.allow=[trainer.max_epochs]")
    more = sk.resume(half, make(), *words, show=False)
    plain = sk.fit(make(), compose(*MIXED, "trainer.max_epochs=4", "training.mixup=0"), show=False)
    last = [[row["loss"] for row in run.events if row["type"] == "step"][-1] for run in (whole, more, plain)]
    assert last[0] == last[1] != last[2] and whole.metrics == more.metrics


def test_inputs_that_cannot_be_mixed_are_refused_before_a_run(here):
    class Tokens(Classes):
        def datasets(self, cfg):
            data = TensorDataset(torch.arange(64).reshape(16, 4), torch.arange(16) % 2)
            return data, None

        def loss(self, model, batch):
            return F.cross_entropy(model(batch[0].float()), batch[1])

    with pytest.raises(RequestError, match="training.mixup mixes inputs that are floats"):
        sk.fit(Tokens(), compose(*MIXED), show=False)
