"""Time and CPU to the first step of a run, cold and with a process that waits: `python bench/start.py [--json FILE]`.

Both take turns in one process, as two `fit` in one notebook: with launch.warm_worker=false, and with true after a pause
in which the process has made its imports. CPU is that of the training process once it has its job: what it took before
is subtracted, since nobody waits for it.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from pathlib import Path

import psutil

import spectrakit as sk
from spectrakit.launch import warm_worker

TASK = """
import json, os, time
import torch
from spectrakit import Task


class Small(Task):
    def datasets(self, cfg):
        x = torch.linspace(0, 1, 64)[:, None]
        data = torch.utils.data.TensorDataset(x, x)
        return data, data

    def model(self, cfg):
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch):
        if model.training and not os.path.exists("first.json"):
            with open("first.json", "w") as file:
                json.dump([time.time(), time.process_time()], file)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""
WAYS = {"cold": "launch.warm_worker=false", "warm": "launch.warm_worker=true"}


def ready_cpu_s() -> float:
    "CPU seconds that the waiting process has taken, once it has made its imports."
    process = psutil.Process(warm_worker._SPARES[0].process.pid)
    before = -1.0
    while (now := sum(process.cpu_times()[:2])) > before:
        before = now
        time.sleep(1)
    return now


def first_step(way: str) -> tuple[float, float]:
    "Wall-clock and CPU seconds from `fit` to the first loss."
    spent_s = 0.0
    if way == "warm":
        fit_once(WAYS["warm"])  # its end has one wait
        spent_s = ready_cpu_s()
    return fit_once(WAYS[way], spent_s)


def fit_once(word: str, spent_s: float = 0.0) -> tuple[float, float]:
    Path("first.json").unlink(missing_ok=True)
    began = time.time()
    sk.fit(
        "task.py:Small",
        sk.compose(
            "local/accumulate_grad_batches=debug",
            "trainer.max_epochs=1",
            "run.console=none",
            "trainer.accelerator=cpu",
            word,
        ),
    )
    at, cpu_s = json.loads(Path("first.json").read_text())
    return at - began, cpu_s - spent_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way (5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    target = options.json and options.json.absolute()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("task.py").write_text(TASK)
        for _ in range(options.rounds):
            for way in WAYS:
                found[way].append(first_step(way))
        warm_worker.drop_spare()
    results = {}
    print("to the first loss         wall-clock s: median, least    CPU s: median, least")
    for way, pairs in found.items():
        wall, cpu = zip(*pairs, strict=True)
        results[way] = {"wall_s": wall, "cpu_s": cpu}
        print(f"{way:25} {statistics.median(wall):10.2f} {min(wall):8.2f}", end="")
        print(f" {statistics.median(cpu):20.2f} {min(cpu):7.2f}")
    if target:
        target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
