"""A package that lacks a part: imports each of its modules, trains, stops and resumes with all other parts on, and runs
tests.

`python without_part.py FOLDER TEST…`, with the package of that folder first on the path.
"""

import contextlib
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import read_events
from spectrakit.system.platforms.detect import detect
from spectrakit.task.task import Task
from spectrakit.train.loop import train_run
from spectrakit.train.parts_table import PARTS
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit

SETTINGS = (  # of every part that one process on a CPU can have
    "local/accumulate_grad_batches=debug",
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.micro_batch_size=8",
    "accumulate_grad_batches=2",
    "trainer.max_epochs=4",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "training.ema_decay=0.9",
    "training.average=best:2",
    "training.mixup=0.2",
    "training.nan_policy=skip",
    "training.oom_recovery=true",
    "trainer.gradient_clip_val=1.0",
    "trainer.cuda_graphs=auto",
    "trainer.strategy.name=diloco",
    "diloco.max_steps=5",
    "tracking.names=[csv]",
    "checkpoint.every_n_steps=1",
    "checkpoint.max_share=1",
    "checkpoint.keep_last=99",
)


class Points(Task):
    "A classifier with batch norm and dropout; it asks for a stop after so many micro batches."

    def __init__(self, stops: int = 0):
        self.stops, self.seen = stops, 0

    def datasets(self, cfg):
        x = torch.randn(120, 3, generator=torch.Generator().manual_seed(1))
        whole = TensorDataset(x, (x.sum(1) > 0).long())
        return torch.utils.data.Subset(whole, range(90)), torch.utils.data.Subset(whole, range(90, 120))

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    def loss(self, model, batch):
        self.seen += model.training
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def targets(self, batch):
        return batch[1]

    def pictures(self, predictions):
        return {}

    def asked(self) -> int:
        return int(bool(self.stops) and self.seen >= self.stops)


def trained(folder: Path, task: Task, resume: bool = False) -> tuple[str, list, dict]:
    folder.mkdir(exist_ok=True)
    config = compose(*SETTINGS)
    context = create_run_context(config, detect({"PATH": ""}, shell=""))
    execution = Execution(context, folder, Budget(TimeLimit(None, 0.0, "none")), task.asked)
    status, reason = train_run(task, config, execution, resume)
    events = read_events(folder / "events.jsonl")
    losses = [(event["step"], event["loss"]) for event in events if event["type"] == "step"]
    path, notes = find_checkpoint(folder / "checkpoints")
    assert path is not None and not notes, (status, reason, notes)
    return status, losses, load_weights(path)


def main(folder: Path) -> None:
    for module in pkgutil.walk_packages(spectrakit.__path__, "spectrakit."):
        if not module.name.endswith("__main__"):
            with (
                contextlib.suppress(ImportError)
                if module.name.startswith("spectrakit.runs.trackers.")
                else contextlib.nullcontext()
            ):
                importlib.import_module(module.name)
    whole = trained(folder / "whole", Points())
    cut = trained(folder / "cut", Points(stops=17))
    rest = trained(folder / "cut", Points(), resume=True)
    assert (whole[0], cut[0], rest[0]) == ("completed", "interrupted", "completed"), (whole[0], cut[0], rest[0])
    assert rest[1][-5:] == whole[1][-5:] and all(torch.equal(rest[2][name], whole[2][name]) for name in whole[2])
    print(" ".join(kind.__name__ for kind in PARTS), flush=True)


main(Path(sys.argv[1]))
assert Path(spectrakit.__file__).parent.parent == Path(sys.argv[1])
words = ["-q", "-p", "no:cacheprovider", f"--rootdir={Path(__file__).parents[2]}", f"--basetemp={sys.argv[1]}/tests"]
words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # pytest has plugins of packages that are imported already
sys.exit(pytest.main([*words, *(f"{Path(__file__).parent}/{test}" for test in sys.argv[2:])]))
