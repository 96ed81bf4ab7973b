"Runs of the task `lm` on a tiny corpus: in this process and on two ranks, cut where a test wants it."

import os
import signal
from dataclasses import replace
from pathlib import Path

import tiny_lm
from spectrakit.config.compose import compose
from spectrakit.launch.job import Job
from spectrakit.launch.job_kind import kind_named
from spectrakit.launch.launcher import launch
from spectrakit.launch.request import new_request
from spectrakit.lm.language_model import LanguageModel
from spectrakit.runs.events import columns, read_events
from spectrakit.system.platforms.detect import detect
from tasks import in_sanity_check

BASE = (
    "trainer.accelerator=cpu",
    "data.micro_batch_size=4",
    "accumulate_grad_batches=2",
    "scheduler.name=constant",
    "optimizer.lr=0.003",
    "optimizer.momentum=0.9",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "trainer.max_steps=12",
    "checkpoint.every_n_steps=3",
    "checkpoint.every_n_epochs=null",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "data.shuffle_buffer=50",
    "task.seq_len=32",
    "task.valid_rows=40",
    "launch.max_restarts=0",
)
TWO = ("trainer.devices=2", "accumulate_grad_batches=1")
DILOCO = ("distributed.strategy=diloco", "diloco.max_steps=4")


def save_corpus(folder: Path) -> Path:
    "A folder with `tiny`, a model; `texts.jsonl`; and `parts`, Parquet files."
    tiny_lm.save_model(folder / "tiny")
    tiny_lm.save_lines(folder / "texts.jsonl")
    tiny_lm.save_parquet(folder / "parts")
    return folder


def words(corpus: Path, *more: str) -> tuple[str, ...]:
    "The settings of a run on the lines of a corpus."
    return (*BASE, f"task.model={corpus / 'tiny'}", f"task.data={corpus / 'texts.jsonl'}", *more)


def run(folder: Path, task, *overrides: str, kind: str = "train"):
    "What launching a run, or going on with it (`kind`: resume), comes to, with its events."
    request = new_request(compose(*overrides), replace(detect(environ={}), cores=4))
    outcome = launch(Job(kind_named(kind), folder, request), task, lambda: None)
    return outcome, read_events(folder / "events.jsonl")


class Cut(LanguageModel):
    "Every process of its session breaks at loss number `at`; None: it is not cut. The check before is the first."

    def __init__(self, at: int | None = None, **options):
        super().__init__(**options)
        self.at, self.losses = at, 0

    def loss(self, model, batch, moment=None):
        if moment is not None:
            self.losses = 1 if in_sanity_check() else self.losses + 1
            if self.losses == self.at:
                raise RuntimeError("cut")
        return super().loss(model, batch)


class Killed(LanguageModel):
    "Every process of its session is killed at the loss that the environment numbers, as `Cut` counts; 0: none."

    losses = 0

    def loss(self, model, batch, moment=None):
        if moment is not None:
            self.losses = 1 if in_sanity_check() else self.losses + 1
            if self.losses == int(os.environ["TINY_KILL_AT"]):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


def steps_and_losses(events) -> dict[int, float]:
    "The loss of each step that was written down."
    found = columns(events, "step", "step", "loss")
    return dict(zip(found["step"], found["loss"], strict=True))
