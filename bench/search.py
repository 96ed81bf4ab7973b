"""What a search costs: `python bench/search.py [--trials 12] [--studies 20] [--json FILE]`.

Trials a minute of a tiny task through `sk.search`, whose trials train in processes of their own, against the same loop
in one process by Optuna's `optimize`, and against a new process for each trial. Then, of so many short studies with a
limit of time, by how much each went over it. bench/README.md says how to read the table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.runs.events import log_file, read_events
from spectrakit.tuning.search.study_file import open_journal

EPOCHS, BATCH = 3, 32
SPACE = "tag(log,interval(1e-4,1e-1))"
QUIET = (
    "trainer.accelerator=cpu",
    f"trainer.max_epochs={EPOCHS}",
    f"data.micro_batch_size={BATCH}",
    "search.pruner=none",
)


class Tiny(sk.Task):
    "A small net on 2,000 rows."

    def datasets(self, cfg: Any) -> tuple[TensorDataset, TensorDataset]:
        "Rows that can be learned."
        x = torch.randn(2400, 16, generator=torch.Generator().manual_seed(0))
        y = torch.sin(x.sum(1, keepdim=True))
        return TensorDataset(x[:2000], y[:2000]), TensorDataset(x[2000:], y[2000:])

    def model(self, cfg: Any) -> nn.Module:
        "Two layers."
        return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        "A mean square."
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def by_hand(lr: float) -> float:
    "The same training as a plain loop; the validation loss."
    task = Tiny()
    train, valid = task.datasets(None)
    torch.manual_seed(0)
    model = task.model(None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(EPOCHS):
        order = torch.randperm(len(train))
        for rows in order.split(2 * BATCH):  # two micro batches a step, as the usual policy has it
            for part in rows.split(BATCH):
                loss = task.loss(model, train[part])
                (loss / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        return float(task.loss(model, valid[:]))


def around() -> dict[str, int]:
    "What processes may leave behind them."
    me = psutil.Process()
    return {
        "processes": len(me.children(recursive=True)),
        "threads": threading.active_count(),
        "open files": me.num_fds(),
        "files in memory": len(list(Path("/dev/shm").glob(f"spectrakit-page-{me.pid}-*"))),
        "job folders": len(list(Path(os.environ["TMPDIR"]).glob("spectrakit-job-*"))),
    }


def searched(trials: int) -> tuple[float, list[float], list[float], dict[str, int]]:
    """Seconds of a search; of each trial but the first two those beside its steps, and from asked to its first step.

    And what there is more of afterwards than before.
    """
    with tempfile.TemporaryDirectory() as home:
        os.environ["TMPDIR"] = home
        before, began = around(), time.monotonic()
        words = (*QUIET, f"search.trials={trials}", f"run.dir={home}", "search.sampler=random")
        study = sk.search(
            f"{Path(__file__).resolve()}:Tiny", sk.compose(*words), space={"optimizer.lr": SPACE}, show=False
        )
        took, beside, starts = time.monotonic() - began, list[float](), list[float]()
        left = {what: count - before[what] for what, count in around().items() if count > before[what]}
        journal = open_journal(study.path, "minimize", create=False)
        asked = [trial.datetime_start.timestamp() for trial in journal.get_trials() if trial.datetime_start]
        for row, when in zip(study.trials, asked, strict=True):
            (run,) = study.runs_of(row)
            events = read_events(log_file(run.path))
            first = next(event["t"] for event in events if event["type"] in ("step", "eval"))
            trained = events[-1]["t"] - first
            beside.append(row.seconds - trained)
            starts.append(log_file(run.path).stat().st_mtime - trained - when)
        del os.environ["TMPDIR"]
        return took, beside[2:], starts[2:], left


def optimized(trials: int) -> float:
    "Seconds of Optuna's `optimize` in this process."
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    began = time.monotonic()
    study.optimize(lambda trial: by_hand(trial.suggest_float("lr", 1e-4, 1e-1, log=True)), n_trials=trials)
    return time.monotonic() - began


def in_processes(trials: int) -> float:
    "Seconds of a new process for each trial."
    folder = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); from search import by_hand; print(by_hand(0.01))"
    began = time.monotonic()
    for _ in range(trials):
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.monotonic() - began


def overrun(limit_s: int) -> float:
    "Seconds by which a short study went over its limit of time; below 0: it kept to it."
    with tempfile.TemporaryDirectory() as home:
        words = (*QUIET, f"run.dir={home}", f"watchdog.limit={limit_s}s", "watchdog.since=run", "search.trials=1000")
        began = time.monotonic()
        sk.search(f"{Path(__file__).resolve()}:Tiny", sk.compose(*words), space={"optimizer.lr": SPACE}, show=False)
        return time.monotonic() - began - limit_s


def main() -> None:
    "Print the table."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optimized(1)  # warms up
    searched(2)  # and opens fonts, one of a thread
    rows: dict[str, Any] = {"trials": options.trials}
    rows["search_s"], rows["beside_s"], rows["starts_s"], rows["left_behind"] = searched(options.trials)
    rows["optimize_s"], rows["processes_s"] = optimized(options.trials), in_processes(options.trials)
    for name, label in (
        ("search_s", "sk.search"),
        ("optimize_s", "optimize, one process"),
        ("processes_s", "a process each"),
    ):
        print(f"{label:24} {60 * options.trials / rows[name]:7.1f} trials a minute", flush=True)
    if rows["beside_s"]:
        print(f"a trial takes {statistics.median(rows['beside_s']):.2f} s beside its steps (median)")
        print(f"and begins {statistics.median(rows['starts_s']):.2f} s after it was asked for (median)")
    left = ", ".join(f"{count} {what}" for what, count in rows["left_behind"].items())
    print(f"{options.trials} trials leave behind: {left or 'nothing'}")
    rows["overruns_s"] = [overrun(15) for _ in range(options.studies)]
    if rows["overruns_s"]:
        worst, late = max(rows["overruns_s"]), sum(s > 0 for s in rows["overruns_s"])
        print(f"of {options.studies} studies of 15 s {late} went over; the latest ended {worst:+.2f} s from its limit")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
