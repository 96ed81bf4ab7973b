"""The task of the runs in this folder, as small as a task with every part can be."""

import os
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit import Task


class Plane(Task):
    """A linear relation, by a net with dropout, so that the random state matters.

    With PLANE_STOP=N in the environment the N-th training loss asks the run to stop, as a person does with a file.
    """

    options: ClassVar = {"width": 6}

    def __init__(self):
        self.losses = 0

    def samples(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.linspace(-1, 1, 132).reshape(44, 3).roll(1, 1).sin()
        return x, x @ torch.tensor([1.0, -2.0, 0.5])

    def datasets(self, cfg):
        x, y = self.samples()
        return TensorDataset(x[:32], y[:32]), TensorDataset(x[32:40], y[32:40])

    def test_dataset(self, cfg):
        return TensorDataset(self.samples()[0][40:])

    def model(self, cfg):
        width = self.option(cfg, "width")
        return nn.Sequential(nn.Linear(3, width), nn.Dropout(0.2), nn.Linear(width, 1), nn.Flatten(0))

    def loss(self, model, batch):
        if model.training:
            self.losses += 1
            if str(self.losses) == os.environ.get("PLANE_STOP"):
                for run in Path("runs").iterdir():
                    (run / "STOP").touch()
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"mae": ((outputs - batch[1]).abs().sum(), len(outputs))}

    def submission(self, predictions):
        return {"id": [f"s{i}" for i in range(len(predictions))], "y": predictions.round(4)}
