"Tasks for tests of several processes: no dropout and no batch norm, so that one process and two compute the same."

import os
import random
import time

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from spectrakit.task.loss import Loss
from spectrakit.task.task import Task

TRAINING, VALIDATION = 37, 13  # neither divides by two processes, nor by micro batches of four


class Curve(Task):
    "A smooth function of three numbers, learned by a small net of blocks."

    def datasets(self, cfg):
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(TRAINING + VALIDATION, 3, generator=generator)
        data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)), torch.arange(len(x)))
        return TensorDataset(*(t[:TRAINING] for t in data.tensors)), TensorDataset(
            *(t[TRAINING:] for t in data.tensors)
        )

    def model(self, cfg):
        return Blocks()

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"mae": ((outputs - batch[1]).abs().sum(), len(outputs))}

    def metrics_all(self, predictions, targets):
        "`targets` are the samples' numbers: in their order, each once."
        assert targets.tolist() == list(range(TRAINING, TRAINING + VALIDATION))
        return {"last": predictions[-1], "middle": predictions.median()}

    def test_dataset(self, cfg):
        return self.datasets(cfg)[1]


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class Weighted(Curve):
    "A loss of (sum, weight), some samples without weight."

    def loss(self, model, batch):
        weight = (batch[2] % 3).float()
        return (weight * (model(batch[0]) - batch[1]).square()[:, 0]).sum(), weight.sum()


class Noisy(Dataset):
    "Samples with noise from the global generators, which the kit seeds for each sample."

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y, number = self.data[index]
        return x + 0.1 * torch.randn(3) + 0.1 * random.random(), y, number


class Augmented(Curve):
    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        return Noisy(train), valid


class Logged(Curve):
    "Logs the mean of the samples' numbers, how many there were in a batch, and what only some batches have."

    def loss(self, model, batch):
        logs = {"number": (batch[2].sum(), len(batch[2])), "batch": (len(batch[2]), 1)}
        if (late := batch[2] >= TRAINING - 2).any():
            logs["late"] = (batch[2][late].sum(), late.sum())
        return Loss(super().loss(model, batch), logs=logs)


class Thawing(Curve):
    "The first layer learns from epoch 1 on, and the last one no longer from epoch 2 on; the blocks always do."

    def on_epoch(self, model, moment):
        model.first.requires_grad_(moment.epoch >= 1)
        model.last.requires_grad_(moment.epoch < 2)


class ThawingOwn(Thawing):
    "The model comes with its first layer frozen; an optimizer of the task's own has it all the same."

    def model(self, cfg):
        model = Blocks()
        model.first.requires_grad_(False)
        return model

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=0.05)


class NanOnOneRank(Curve):
    "A sample without a number, seen by one rank only."

    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        rows = [list(train[i]) for i in range(len(train))]
        rows[20][0] = rows[20][0] * float("nan")
        return rows, valid


class Slow(Curve):
    "A tenth of a second for each training batch, so that a test can act in the middle."

    def loss(self, model, batch):
        if model.training:
            time.sleep(0.1)
        return super().loss(model, batch)


class Normed(Curve):
    "With batch norm, whose running statistics differ from rank to rank."

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


class Named(Curve):
    "Its own optimizer, with a rate by the parameters' names; and a variable from distributed.env."

    def optimizer(self, model, cfg):
        assert os.environ["TORCH_MINE"] == "7" and os.environ["OMP_NUM_THREADS"] == "2"
        last = [p for n, p in model.named_parameters() if n.startswith("last")]
        assert len(last) == 2 and model.first.weight.requires_grad  # the task's own module, not a wrapper
        rest = [p for n, p in model.named_parameters() if not n.startswith("last")]
        return torch.optim.SGD([{"params": rest, "lr": 0.1}, {"params": last, "lr": 0.01}])


class NoRoom(Curve):
    "A file stands where the checkpoints should go."

    def __init__(self, run_dir):
        self.run_dir = run_dir

    def model(self, cfg):
        (self.run_dir / "checkpoints").touch()
        return super().model(cfg)


class FailsAtTheEnd(Slow):
    "A metric that fails on rank 1 once somebody has asked for a stop."

    def __init__(self, run_dir):
        self.run_dir = run_dir

    def metrics(self, outputs, batch):
        if os.environ.get("RANK") == "1" and (self.run_dir / "STOP").exists():
            raise ArithmeticError("at the end")
        return super().metrics(outputs, batch)
