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


def page_faults_a_step(folder: Path, monkeypatch, deeper: int) -> float:
    "Pages that the system had to find for a step, with so many more calls beneath the loop."
    import resource

    def beneath(calls: int, steps: int) -> int:
        if calls:
            return beneath(calls - 1, steps)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        counted(folder / f"{deeper}-{steps}", monkeypatch, Line(), ("trainer.log_every_n_steps=100000",), steps)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    return (beneath(deeper, 150) - beneath(deeper, 50)) / 100


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="its system counts the faults of a process")
def test_a_step_asks_for_no_memory_whatever_called_the_loop(tmp_path, monkeypatch):
    "Python's chunks of frames are mapped anew with each call where one is just full: up to 16 pages a step."
    counted(tmp_path / "first", monkeypatch, Line(), (), 2)  # with the imports
    found = {deeper: page_faults_a_step(tmp_path, monkeypatch, deeper) for deeper in range(0, 132, 6)}
    assert max(found.values()) < 2, found
