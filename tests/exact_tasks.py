"""A task whose numbers can be worked out by hand, and a scaler that notes what is asked of it."""

import contextlib
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit.distributed.context import RunContext
from spectrakit.task.task import Task


class Exact(Task):
    "Weighted regression in float64 on 23 samples; `form` says what its loss returns."

    def __init__(self, form: str = "mean", samples: int = 23):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(samples, 3, dtype=torch.float64, generator=generator)
        self.y = torch.randn(samples, dtype=torch.float64, generator=generator)
        self.w = torch.rand(samples, dtype=torch.float64, generator=generator) * 3 + 0.1
        self.form, self.seen = form, []

    def datasets(self, cfg):
        dataset = TensorDataset(self.x, self.y, self.w, torch.arange(len(self.x)))
        return dataset, dataset

    def model(self, cfg):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0)).double()

    def errors(self, model, rows):
        return (model(self.x[rows]) - self.y[rows]) ** 2

    def loss(self, model, batch):
        x, y, w, index = batch
        if model.training:
            self.seen.append(index.tolist())
        errors = (model(x) - y) ** 2
        if self.form == "mean":
            return errors.mean()
        if self.form == "sum and count":
            return errors.sum(), len(errors)
        return (w * errors).sum(), w.sum()


@dataclass
class StandIn:
    "What the loop asks of an Accelerator, with a gradient scaler on the CPU: fp16's path without a GPU."

    scaler: object
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def prepare_model(self, model, evaluation_mode=False):
        return model

    def autocast(self):
        return contextlib.nullcontext()


class CountedScaler(torch.amp.GradScaler):
    "A scaler that notes what is asked of it."

    def __init__(self, **keywords):
        super().__init__("cpu", init_scale=1024.0, **keywords)
        self.calls = []

    def scale(self, outputs):
        self.calls.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer):
        self.calls.append("unscale")
        return super().unscale_(optimizer)

    def step(self, optimizer, *args, **kwargs):
        self.calls.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale=None):
        self.calls.append("update")
        return super().update(new_scale)


def scaled(scaler: CountedScaler) -> RunContext:
    "The context of an fp16 run with this scaler."
    return RunContext(StandIn(scaler), "fp16", {"mixed_precision": "fp16: a test"})
