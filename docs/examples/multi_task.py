"""Learn several targets with one network: the digit and its ink, where half of the digits are unlabelled."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk

UNKNOWN = -1


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.digit, self.ink = nn.Linear(64, 10), nn.Linear(64, 1)

    def forward(self, x):
        body = self.body(x)
        return {"digit": self.digit(body), "ink": self.ink(body).squeeze(1)}


class Both(sk.Task):
    def datasets(self, cfg):
        digits = load_digits()
        x = torch.tensor(digits.data, dtype=torch.float32) / 16
        y, ink = torch.tensor(digits.target), x.mean(1)
        y[:600:2] = UNKNOWN
        return TensorDataset(x[:1200], y[:1200], ink[:1200]), TensorDataset(x[1200:], y[1200:], ink[1200:])

    def model(self, cfg):
        return Heads()

    def loss(self, model, batch):
        x, y, ink = batch
        out = model(x)
        # sums over samples, with their number as weight: a step is exact, however few labels a micro batch has
        digit = F.cross_entropy(out["digit"], y, ignore_index=UNKNOWN, reduction="sum")
        total = digit + 10 * F.mse_loss(out["ink"], ink, reduction="sum")
        return sk.Loss(total, weight=len(x), outputs=out)

    def metrics(self, outputs, batch):
        known = batch[1] != UNKNOWN
        right = (outputs["digit"].argmax(1) == batch[1])[known]
        return {
            "accuracy": (right.sum(), known.sum()),
            "ink_mae": ((outputs["ink"] - batch[2]).abs().sum(), len(batch[2])),
        }


run = sk.fit(Both(), "trainer.max_epochs=10", "optimizer.lr=0.005", *sys.argv[1:])
print(run.status, run.metrics)
