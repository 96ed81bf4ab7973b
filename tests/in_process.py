"Training in the process of the test, on one CPU, with plain settings."

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import columns, read_events
from spectrakit.system.platforms.detect import detect
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit

PLAIN = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.shuffle=false",
    "optimizer.name=sgd",
    "optimizer.momentum=0",
    "optimizer.weight_decay=0",
    "optimizer.lr=0.1",
    "scheduler.name=constant",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
)


INLINE = (  # of small tasks that are trained in the process of the test by `sk.fit`
    "local/accumulate_grad_batches=debug",
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=8",
)


@dataclass
class Result:
    status: str
    reason: str
    folder: Path
    events: list = field(default_factory=list)

    def weights(self, ema: bool = False) -> torch.Tensor:
        "All weights of the newest checkpoint as one vector."
        path, notes = find_checkpoint(self.folder / "checkpoints")
        assert path is not None and not notes
        return vector(load_weights(path, ema=ema))

    def column(self, kind: str, name: str) -> list:
        return columns(self.events, kind, name)[name]


def stopped_clock(monkeypatch) -> list[float]:
    "From now on the monotonic clock of this process, and of budgets, is the one number of this list."
    now, real = [time.monotonic()], time.monotonic

    def read() -> float:
        return now[0]

    known = tuple(read if value is real else value for value in Budget.__init__.__defaults__ or ())
    monkeypatch.setattr(Budget.__init__, "__defaults__", known)
    monkeypatch.setattr(time, "monotonic", read)
    return now


def vector(weights) -> torch.Tensor:
    "A module, or a mapping of tensors, as one float64 vector in the order of the names."
    weights = weights.state_dict() if isinstance(weights, nn.Module) else weights
    return torch.cat([weights[name].detach().flatten().double() for name in sorted(weights)])


def weights(folder) -> dict:
    "The weights of the newest checkpoint of the run in `folder`, which no other had to stand in for."
    path, notes = find_checkpoint(folder / "checkpoints")
    assert path is not None and not notes
    return load_weights(path)


def furthest(one: dict, other: dict) -> float:
    "The greatest difference of two mappings of tensors."
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


def trainer_in(parent: Path) -> Callable[..., Result]:
    "A function that trains a task in this process with PLAIN settings and overrides on top, in a folder of `parent`."

    def run(task, *overrides, name="run", context=None, stop=lambda: False, resume=False, budget=None) -> Result:
        config = compose(*PLAIN, *overrides)
        folder = parent / name
        folder.mkdir(exist_ok=True)
        context = context or create_run_context(config, detect({"PATH": ""}, shell=""))
        execution = Execution(context, folder, budget or Budget(TimeLimit(None, 0.0, "none")), stop)
        ended = train_run(task, config, execution, resume)
        return Result(*ended, folder, read_events(folder / "events.jsonl"))

    return run
