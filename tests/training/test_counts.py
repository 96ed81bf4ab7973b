"""What a step costs in counts that no machine changes: calls of the kit's functions, files opened, bytes written."""

import os
import sys
from pathlib import Path

import pytest
import torch

import spectrakit
from spectrakit.config.compose import compose, override
from spectrakit.contract.task import Task
from spectrakit.distributed.context import create_run_context
from spectrakit.steps.state import Execution
from spectrakit.system.platforms.detect import detect
from spectrakit.training.loop import train_run
from spectrakit.watchdog.budget import Budget, TimeLimit

OWN = str(Path(spectrakit.__file__).parent)
STEPS = 100  # between the two lengths that are compared


class Line(Task):
    weighted = False

    def datasets(self, cfg):
        x = torch.linspace(0, 1, 1600)[:, None]  # one epoch of 200 steps
        return torch.utils.data.TensorDataset(x, 2 * x), None

    def model(self, cfg):
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch):
        losses = (model(batch[0]) - batch[1]).square()
        return (losses.sum(), len(losses)) if self.weighted else losses.mean()


class Counts:
    "Calls of functions of spectrakit, files opened and bytes appended to logs, as long as it is entered."

    def __init__(self, monkeypatch):
        self.calls = self.opened = self.written = 0
        write = os.write

        def counted(file, data):
            self.written += len(data)
            return write(file, data)

        monkeypatch.setattr(os, "write", counted)

    def __enter__(self):
        sys.setprofile(self.note)
        return self

    def note(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            self.calls += 1
        elif event == "c_call" and argument in (open, os.open):
            self.opened += 1

    def __exit__(self, *error):
        sys.setprofile(None)


def counted(folder: Path, monkeypatch, task: Task, words: tuple, steps: int) -> Counts:
    cfg = override(
        compose(
            "local/accumulate_grad_batches=debug",
            "trainer.accelerator=cpu",
            "checkpoint.enabled=false",
            "data.micro_batch_size=8",
        ),
        *words,
    )
    cfg = override(cfg, f"trainer.max_steps={steps}")
    context, limit = create_run_context(cfg, detect({"PATH": ""}, shell="")), TimeLimit(None, 0.0, "none")
    folder.mkdir()
    with monkeypatch.context() as patch, Counts(patch) as counts:
        ended = train_run(task, cfg, Execution(context, folder, Budget(limit), lambda: False))
    assert ended[0] == "completed"
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "weighted", "most_calls"),
    [((), False, 33), (("training.nan_policy=skip",), False, 43), ((), True, 33)],
    ids=["all guards", "skip", "weighted"],
)
def test_a_step_makes_few_calls_and_opens_nothing(tmp_path, monkeypatch, words, weighted, most_calls):
    task = Line()
    task.weighted = weighted
    words = (*words, "trainer.log_every_n_steps=100000")
    counted(tmp_path / "first", monkeypatch, task, words, 2)  # with the imports
    short = counted(tmp_path / "short", monkeypatch, task, words, 50)
    long = counted(tmp_path / "long", monkeypatch, task, words, 50 + STEPS)
    assert (long.calls - short.calls) / STEPS <= most_calls
    assert long.opened == short.opened and long.written - short.written < 100  # the end says how many steps there were
