"""Forecast a time series: twelve months ahead from three years, validated on the later part."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk

PAST, AHEAD = 36, 12


def monthly(months=600):
    "A trend, a year, eleven years and noise."
    t, draw = torch.arange(months), torch.Generator().manual_seed(0)
    wave = torch.sin(t * torch.pi / 6) + 0.5 * torch.sin(t * torch.pi / 66)
    return 0.002 * t + wave + 0.2 * torch.randn(months, generator=draw)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.GRU(1, 32, batch_first=True), nn.Linear(32, AHEAD)

    def forward(self, past):
        level = past[:, -1:]  # the network learns the difference from the last month
        return level + self.head(self.memory((past - level)[..., None])[0][:, -1])


class Months(sk.Task):
    def datasets(self, cfg):
        windows = monthly().unfold(0, PAST + AHEAD, 1)
        train, valid = windows[: -2 * AHEAD - 60], windows[-60:]  # no training month is also a validation target
        return tuple(TensorDataset(part[:, :PAST], part[:, PAST:]) for part in (train, valid))

    def model(self, cfg):
        return Forecaster()

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        usual = batch[0][:, -AHEAD:]  # the same month of the last year
        error, plain = (outputs - batch[1]).abs(), (usual - batch[1]).abs()
        return {"mae": (error.sum(), error.numel()), "mae_last_year": (plain.sum(), plain.numel())}


run = sk.fit(Months(), "trainer.max_epochs=15", "optimizer.lr=0.01", *sys.argv[1:])
print(run.status, run.metrics)
