"""Tiny tasks for the tests: a linear fit that can be held in the middle of its run, and what can be wrong with a task.

They are loaded as `tests/tasks.py:Name` by the command line, and imported by tests.
"""

import os
import signal
import sys
import time
from collections import namedtuple
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit.data.standardize import Scaler
from spectrakit.task.task import Task

SAMPLES, VALIDATION = 40, 12
Weighted = namedtuple("Weighted", "total weight")


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    "Inputs [52, 3] and targets [52]."
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES + VALIDATION, 3, generator=generator)
    return x, x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(len(x), generator=generator)


def rows(dataset: TensorDataset) -> list:
    "A data set of tensors as a list of samples, which the kit reads with a loader."
    return list(zip(*dataset.tensors, strict=False))


def in_sanity_check() -> bool:
    "Whether the contract is tried, before the first step."
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "try_contract":
        frame = frame.f_back
    return frame is not None


class Line(Task):
    """A linear relation, learned by a net whose dropout makes the random state matter.

    With TINY_HOLD=N:FOLDER in the environment the N-th training loss makes the file FOLDER/held and waits for
    FOLDER/go, so that a test can act in the middle of a run without racing it.
    """

    options = {"width": 8}
    losses = 0

    def datasets(self, cfg):
        x, y = tensors()
        return TensorDataset(x[:SAMPLES], y[:SAMPLES]), TensorDataset(x[SAMPLES:], y[SAMPLES:])

    def model(self, cfg):
        width = self.option(cfg, "width")
        return nn.Sequential(nn.Linear(3, width), nn.Dropout(0.2), nn.Linear(width, 1), nn.Flatten(0))

    def loss(self, model, batch):
        if model.training and not in_sanity_check():
            self.losses += 1
            self.during(self.losses)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"mae": ((outputs - batch[1]).abs().sum(), len(outputs))}

    def during(self, number):
        "Called before the `number`-th training loss."
        when, _, folder = os.environ.get("TINY_HOLD", "").partition(":")
        if when != str(number):
            return
        (Path(folder) / "held").touch()
        end = time.monotonic() + 120
        while not (Path(folder) / "go").exists():
            if time.monotonic() > end:
                raise TimeoutError("nobody let this run go on")
            time.sleep(0.01)


class Listed(Line):
    "The same samples, read by a loader."

    def datasets(self, cfg):
        return tuple(rows(part) for part in super().datasets(cfg))


class Submitting(Line):
    "With a test set of five samples and a table of its own."

    def test_dataset(self, cfg):
        return TensorDataset(tensors()[0][:5])

    def submission(self, predictions):
        return {"id": [f"s{i}" for i in range(len(predictions))], "y": predictions}


# wrong from the start


class Forgetful(Line):
    "Its optimizer cannot load what it has saved."

    def optimizer(self, model, cfg):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.load_state_dict = lambda state: state["rates"]
        return optimizer


class ByMethod(Line):
    "Its loss calls another method of the model than `forward`."

    def loss(self, model, batch):
        return (model.predict_one(batch[0]) - batch[1]).square().mean()


class NoLoss:
    "It lacks `loss`."

    datasets, model = Line.datasets, Line.model


class EmptyTraining(Line):
    def datasets(self, cfg):
        return TensorDataset(*(t[:0] for t in tensors())), super().datasets(cfg)[1]


class EmptyValidation(Line):
    def datasets(self, cfg):
        return super().datasets(cfg)[0], []


class OneDataset(Line):
    def datasets(self, cfg):
        return super().datasets(cfg)[0]


class Stream(Line):
    def datasets(self, cfg):
        return iter(rows(super().datasets(cfg)[0])), None


class NotAModel(Line):
    def model(self, cfg):
        return "resnet"


class Frozen(Line):
    def model(self, cfg):
        return super().model(cfg).requires_grad_(False)


def spoiled(dataset: TensorDataset, value: float, row: int) -> TensorDataset:
    "A copy whose sample `row` holds `value`."
    x = dataset.tensors[0].clone()
    x[row, 1] = value
    return TensorDataset(x, *dataset.tensors[1:])


class NanTraining(Line):
    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        return spoiled(train, float("nan"), 11), valid


class InfiniteValidation(Line):
    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        return train, spoiled(valid, float("inf"), 3)


class NanTrainingListed(Line):
    "One sample of a data set that is no tensor is NaN: seen only when it is read."

    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        return rows(spoiled(train, float("nan"), 11)), valid


class NanValidationListed(Line):
    def datasets(self, cfg):
        train, valid = super().datasets(cfg)
        return train, rows(spoiled(valid, float("nan"), 3))


class LossIsNone(Line):
    def loss(self, model, batch):
        return None


class LossIsVector(Line):
    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]) ** 2


class LossIsNumber(Line):
    def loss(self, model, batch):
        return super().loss(model, batch).item()


class LossIsDetached(Line):
    def loss(self, model, batch):
        return super().loss(model, batch).detach()


class LossIsMapping(Line):
    def loss(self, model, batch):
        return {"loss": super().loss(model, batch)}


class LossIsTriple(Line):
    def loss(self, model, batch):
        return super().loss(model, batch), 1, 2


class LossWithoutWeight(Line):
    def loss(self, model, batch):
        return super().loss(model, batch), None


class LossWithTextWeight(Line):
    def loss(self, model, batch):
        return super().loss(model, batch), "4"


class LossIsNamedPair(Line):
    "(sum, weight) as a named tuple, which is a tuple of two."

    def loss(self, model, batch):
        return Weighted(super().loss(model, batch) * len(batch[0]), len(batch[0]))


# wrong later on: each raises in the middle of its run, or before


class RaisesInModel(Line):
    def model(self, cfg):
        raise FileNotFoundError("weights.bin is not here")


class RaisesInDatasets(Line):
    def datasets(self, cfg):
        raise PermissionError("the spectra are locked")


class RaisesInLoss(Line):
    def during(self, number):
        if number == 7:
            raise ZeroDivisionError("in the seventh loss")


class Exits(Line):
    def during(self, number):
        if number == 7:
            raise SystemExit(0)


class Vanishes(Line):
    "The process ends without a word, as native code can make it."

    def during(self, number):
        if number == 7:
            os._exit(0)


# ranks that come to grief


class Troubled(Line):
    """Without dropout, so that a run that was disturbed can equal one that was not. What TINY_TROUBLE says goes wrong.

    `RANK NUMBER WHAT`, divided by `;`: before the NUMBER-th training loss of a process that is rank RANK (0 where there
    is only one). It happens once, in all starts together, unless WHAT ends with `!`. What happened is a file
    `trouble-RANK-NUMBER`.
    """

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))

    def during(self, number):
        super().during(number)
        for trouble in filter(None, os.environ.get("TINY_TROUBLE", "").split(";")):
            rank, when, what = trouble.split()
            mark = Path(f"trouble-{rank}-{when}")
            if (rank, when) != (os.environ.get("RANK", "0"), str(number)) or (mark.exists() and not what.endswith("!")):
                continue
            mark.write_text(str(os.getpid()))
            getattr(self, what.rstrip("!"))()

    def divide(self):
        return 1 / 0

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)
        self.sleep()  # it is woken up to say where it is

    def sleep(self):
        time.sleep(600)

    def vanish(self):
        os._exit(0)

    def refuse(self):
        from spectrakit.system.errors import RequestError

        raise RequestError("this came late. Fix it.")

    def lost(self):
        "Waits in gloo for what nobody sends, while the others wait in gloo for this rank's gradients."
        torch.distributed.recv(torch.zeros(1), src=0)

    def fill(self):
        "Leaves no room in the folder for temporary files."
        with open(Path(os.environ["TMPDIR"]) / "filled", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(2**16))
            except OSError:
                pass

    def linger(self):
        "A thread that keeps its process from ending."
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()


class Steady(Troubled):
    "Each training loss takes 0.3 s, and each process counts its own in a file."

    def during(self, number):
        super().during(number)
        time.sleep(0.3)
        Path(f"seen-{os.environ.get('RANK', '0')}").write_text(str(number))


class Scaled(Task):
    "Inputs and targets far from zero, and a model that standardizes both by what it trains on."

    def datasets(self, cfg):
        x = 100 + 5 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).cumsum(0)
        return TensorDataset(x, 1000 * x.sum(1, keepdim=True)), None

    def test_dataset(self, cfg):
        return TensorDataset(self.datasets(cfg)[0].tensors[0][:10])

    def model(self, cfg):
        return nn.Sequential(Scaler(3), nn.Linear(3, 1), Scaler(1, of="targets", undo=True))

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def predict(self, model, batch):
        return model(batch[0])


class Late(Troubled):
    """Rank 1 does not meet the others: it sleeps in its first start and is killed in those that follow.

    There rank 0 goes nowhere before: it would wait, and be told that they do not meet, where rank 1 is slow to begin.
    """

    def __init__(self):
        rank, start = os.environ.get("RANK"), os.getppid()  # the ranks of a start have one parent
        asleep, killed = Path(f"late-asleep-{start}"), Path(f"late-killed-{start}")
        if rank == "1":
            first = not Path("late").exists()
            (asleep if first else killed).touch()
            Path("late").touch()
            self.sleep() if first else self.kill()
        while rank is not None and not (asleep.exists() or killed.exists()):
            time.sleep(0.01)


class Waiting(Troubled):
    "Waits for a file `go`: rank 1 before it meets the others, or all where they prepare their data."

    def __init__(self):
        if os.environ.get("RANK") == "1" and os.environ["TINY_WAIT"] == "meeting":
            self.wait()

    def datasets(self, cfg):
        if os.environ["TINY_WAIT"] == "preparing":
            self.wait()
        return super().datasets(cfg)

    def wait(self):
        Path("waits").touch()
        while not Path("go").exists():
            time.sleep(0.02)


class RefusedOnRank1(Troubled):
    def loss(self, model, batch):
        result = super().loss(model, batch)
        return {"loss": result} if os.environ.get("RANK") == "1" else result


class Planned(Line):
    """A task whose metric `val_score` is what its option `quality` says.

    `slow_s`: seconds of each loss where that is 9 or worse. `fails`: on which rank it raises.
    """

    options = {"quality": 1.0, "slow_s": 0.0, "fails": -1}

    def model(self, cfg):
        self.said = {name: self.option(cfg, name) for name in self.options}
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1), nn.Flatten(0))

    def loss(self, model, batch):
        if model.training and not in_sanity_check():
            if self.said["fails"] == int(os.environ.get("RANK", 0)):
                raise ValueError("this rank fails")
            time.sleep(self.said["slow_s"] if self.said["quality"] >= 9 else 0)
        return super().loss(model, batch)

    def metrics_all(self, predictions, targets):
        return {"score": self.said["quality"]}
