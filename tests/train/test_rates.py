"The learning rate of every parameter group is logged where groups differ."

import csv

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.task.task import Task
from spectrakit.view.figures import figures
from spectrakit.view.run_state import RunState, apply_event


class Parts(Task):
    def datasets(self, cfg):
        x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x.sum(1, keepdim=True)), None

    def model(self, cfg):
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


class Named(Parts):
    def optimizer(self, model, cfg):
        groups = [{"params": model[0].parameters(), "name": "body"}, {"params": model[2].parameters(), "lr": 0.2}]
        return torch.optim.SGD(groups, lr=0.1)


class Scheduled(Parts):
    "Groups that begin at one rate, and move apart."

    def optimizer(self, model, cfg):
        groups = [{"params": model[0].parameters(), "name": "body"}, {"params": model[2].parameters(), "name": "head"}]
        return torch.optim.SGD(groups, lr=0.1)

    def scheduler(self, optimizer, cfg, total_steps):
        return LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.5 ** (step // 2)])


GROUPS = "optimizer.groups=[{match: '0.*', lr_factor: 0.5}]"


@pytest.mark.parametrize(
    ("task", "words", "wanted"),
    [
        (Named(), (), [{"body": 0.1, "1": 0.2}] * 4),
        (Scheduled(), (), [{}, {}, {"body": 0.1, "head": 0.05}, {"body": 0.1, "head": 0.05}]),
        (Parts(), (GROUPS, "optimizer.lr=0.1"), [{"0": 0.1, "1": 0.1, "0.*": 0.05}] * 4),
        (Parts(), ("optimizer.lr=0.1",), [{}] * 4),
    ],
)
def test_rates_of_all_groups(here, task, words, wanted):
    plain = ("trainer.accelerator=cpu", "launch.mode=inline", "scheduler.name=constant", "accumulate_grad_batches=1")
    steps = (
        "data.batch_size=8",
        "trainer.max_epochs=1",
        "trainer.log_every_n_steps=1",
        "trainer.log_min_seconds=0",
        "run.dir=runs/one",
    )
    run = sk.fit(task, compose(*plain, *steps, *words), show=False)
    points = [event for event in run.events if event["type"] == "step"]
    found = [point.get("lrs", {}) for point in points]
    assert len(found) == 4 and all(("lrs" in point) == bool(point.get("lrs")) for point in points)
    assert all(
        {k: v for k, v in rates.items() if k in w} == pytest.approx(w) for rates, w in zip(found, wanted, strict=True)
    )
    assert all(point["lr"] == pytest.approx(0.1) for point in points)  # the first group's
    with open(run.path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    for row, rates in zip(rows, found, strict=True):
        assert {k: float(v) for k, v in row.items() if k.startswith("lr_") and v} == {
            f"lr_{k}": v for k, v in rates.items()
        }
    state = RunState()
    for event in run.events:
        apply_event(state, event)
    assert ("lr: " in figures(state)) == bool(found[-1])
