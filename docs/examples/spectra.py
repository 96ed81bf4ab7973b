"""Classify spectra: a small convolution over the wavelengths of real coffee spectra, with views at prediction."""

import sys

import torch
from torch import nn

import spectrakit as sk
from spectrakit.tasks.coffee import Coffee


class Convolution(Coffee):
    "The built-in data with a network of our own."

    def model(self, cfg):
        return nn.Sequential(
            sk.Scaler(1841),  # by the samples that its own run trains on
            nn.Unflatten(1, (1, -1)),
            nn.Conv1d(1, 8, 9, stride=4),
            nn.GELU(),
            nn.Conv1d(8, 16, 9, stride=4),
            nn.GELU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(64, 3),
        )

    def views(self, batch):  # predictions are means over slightly noisy copies
        spectra, *rest = batch
        return [batch, *([spectra + 1e-3 * torch.randn_like(spectra), *rest] for _ in range(2))]


run = sk.fit(Convolution(), "trainer.max_epochs=6", "optimizer.lr=0.005", "data.batch_size=16", *sys.argv[1:])
predictions = sk.predict(Convolution(), run)
print(run.status, run.metrics, len(predictions.values))
