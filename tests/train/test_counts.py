"""What a step costs in counts that no machine changes: calls of the kit's functions, files opened, bytes written."""

import os
import sys
from pathlib import Path

import pytest
import torch

import spectrakit
from spectrakit.config.compose import compose, override
from spectrakit.distributed.context import create_run_context
from spectrakit.system.platforms.detect import detect
from spectrakit.task.task import Task
from spectrakit.train import remaining_time as run_forecast
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit

OWN = str(Path(spectrakit.__file__).parent)
STEPS = 100  # between the two lengths that are compared


@pytest.fixture(autouse=True)
def no_forecast(monkeypatch):
    "It is made once in a run that has taken two seconds, and so in the longer of two alone on a slow machine."
    monkeypatch.setattr(run_forecast, "MIN_S", float("inf"))


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
            "trainer.log_max_seconds=null",
        ),
        *words,
    )
    cfg = override(cfg, f"trainer.max_steps={steps}")
    context, limit = create_run_context(cfg, detect({"PATH": ""}, shell="")), TimeLimit(None, 0.0, "none")
    folder.mkdir(parents=True)
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
    found = {deeper: page_faults_a_step(tmp_path / "1", monkeypatch, deeper) for deeper in range(0, 132, 6)}
    for again in ("2", "3"):  # a system that is short of memory takes pages away, but seldom twice at one place
        for deeper in [deeper for deeper, faults in found.items() if faults >= 2]:
            found[deeper] = page_faults_a_step(tmp_path / again, monkeypatch, deeper)
    assert max(found.values()) < 2, found


class Short(Line):
    "Epochs of ten steps, each with an evaluation of two batches."

    def datasets(self, cfg):
        x = torch.linspace(0, 1, 96)[:, None]
        whole = torch.utils.data.TensorDataset
        return whole(x[:80], 2 * x[:80]), whole(x[80:], 2 * x[80:])


@pytest.mark.slow
def test_an_epoch_of_ten_steps_with_its_evaluation_makes_few_calls(tmp_path, monkeypatch):
    words = ("trainer.log_every_n_steps=10", "trainer.log_min_seconds=0")
    counted(tmp_path / "first", monkeypatch, Short(), words, 20)  # with the imports
    short = counted(tmp_path / "short", monkeypatch, Short(), words, 50)
    long = counted(tmp_path / "long", monkeypatch, Short(), words, 250)
    # 20 of them read the states of Python's and NumPy's generators at each step, 20 keep log points from waiting
    assert (long.calls - short.calls) / 20 <= 470 and long.opened == short.opened


class Exchanging(Line):
    "Rank 0 counts what it asks of torch.distributed, and writes down how much that was at its 31st and 131st step."

    def __init__(self, file):
        self.file, self.asked, self.steps = str(file), 0, 0

    def model(self, cfg):
        import torch.distributed

        exchanges = "all_reduce reduce gather all_gather broadcast barrier all_to_all scatter send recv isend irecv"
        for name in exchanges.split():
            for each in (name, f"{name}_object", f"{name}_object_list", f"{name}_into_tensor"):
                if callable(function := getattr(torch.distributed, each, None)):
                    setattr(torch.distributed, each, self.counted(function))
        return super().model(cfg)

    def counted(self, function):
        def asked(*args, **options):
            self.asked += 1
            return function(*args, **options)

        return asked

    def loss(self, model, batch):
        self.steps += model.training
        if os.environ["RANK"] == "0" and model.training and self.steps in (31, 131):
            with open(self.file, "a") as file:
                file.write(f"{self.asked}\n")
        return super().loss(model, batch)


@pytest.mark.slow
def test_two_ranks_exchange_nothing_but_gradients_between_log_points(tmp_path, monkeypatch):
    "Those travel without being asked for: DDP sends them while it goes back through the model."
    monkeypatch.chdir(tmp_path)
    words = ("trainer.accelerator=cpu", "trainer.devices=2", "data.micro_batch_size=4", "trainer.max_steps=160")
    fixed = (
        "checkpoint.enabled=false",
        "trainer.log_every_n_steps=10",
        "trainer.log_min_seconds=0",
        "trainer.log_max_seconds=null",
    )
    task = Exchanging(tmp_path / "asked")
    run = spectrakit.fit(task, compose("local/accumulate_grad_batches=debug", *words, *fixed), show=False)
    assert run.status == "completed"
    before, after = map(int, (tmp_path / "asked").read_text().split())
    assert 0 < after - before <= 2 * 100 / 10
