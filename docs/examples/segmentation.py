"""Segment images: ink of noisy digits, pixel by pixel, with a Dice metric over all samples."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk


class Net(nn.Module):
    "A U-Net of two levels."

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 16, 2, stride=2), nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x):
        fine = self.down(x).relu()
        coarse = self.deep(F.max_pool2d(fine, 2)).relu()
        return self.out(torch.cat([fine, self.up(coarse)], 1))


class Ink(sk.Task):
    metric_modes = {"dice": "max"}

    def datasets(self, cfg):
        images = torch.tensor(load_digits().images, dtype=torch.float32)[:600, None] / 16
        masks = (images > 0.4).float()
        noisy = images + 0.4 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        return TensorDataset(noisy[:500], masks[:500]), TensorDataset(noisy[500:], masks[500:])

    def model(self, cfg):
        return Net()

    def loss(self, model, batch):
        return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])

    def predict(self, model, batch):
        return model(batch[0]).sigmoid()

    def targets(self, batch):
        return batch[1]

    def metrics_all(self, predictions, targets):
        found = (predictions > 0.5).float()
        return {"dice": 2 * (found * targets).sum() / (found.sum() + targets.sum())}


run = sk.fit(Ink(), "trainer.max_epochs=12", "optimizer.lr=0.01", *sys.argv[1:])
print(run.status, run.metrics)
