"""Time and CPU to the first step of a run, cold and with a process that waits: `python bench/start.py [--json FILE]`.

Both take turns in one process, as two `fit` in one notebook: with launch.warm_worker=false, and with true after a pause
in which the process has made its imports. CPU is that of the training process once it has its job: what it took before
is subtracted, since nobody waits for it.

Then comes a run in this process (launch.mode=inline) on `--rows` rows of 20 bytes in memory, after one on 640 rows,
so that imports are done: seconds to the first loss of a step, and most memory of the process beside the data.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psutil
import torch
from torch.utils.data import Subset, TensorDataset

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


class Rows(sk.Task):
    "A line through `data`; `first` has the clocks at the first loss with gradients."

    first: tuple = ()

    def __init__(self, data):
        self.data = data

    def datasets(self, cfg):
        return self.data, None

    def model(self, cfg):
        return torch.nn.Linear(4, 1)

    def loss(self, model, batch):
        if torch.is_grad_enabled() and not Rows.first:
            Rows.first = time.time(), time.process_time()
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def data_of(form: str, rows: int) -> TensorDataset | sk.ArrayDataset | Subset:
    whole = TensorDataset(torch.ones(rows, 4), torch.ones(rows, 1))
    if form == "columns":
        return TensorDataset(*torch.ones(rows, 5).split([4, 1], 1))
    return Subset(whole, torch.arange(rows * 9 // 10)) if form == "subset" else whole


def large_start(form: str, rows: int) -> tuple[float, float, float]:
    "Wall-clock and CPU seconds to the first loss, and MiB of memory beside the data at the most."
    task, process, peak, ended = Rows(data_of(form, rows)), psutil.Process(), [0], threading.Event()
    before, Rows.first = process.memory_info().rss, ()

    def watch() -> None:
        while not ended.wait(0.002):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, began_cpu = time.time(), time.process_time()
    words = "trainer.max_steps=5", "run.console=none", "trainer.accelerator=cpu", "launch.mode=inline"
    sk.fit(task, sk.compose(*words), show=False).raise_for_status()
    ended.set()
    watcher.join()
    return Rows.first[0] - began, Rows.first[1] - began_cpu, (peak[0] - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way (5)")
    parser.add_argument(
        "--rows", type=lambda text: int(float(text)), default=10**8, help="rows of 20 bytes (10⁸: 2 GB)"
    )
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
        large_start("tensors", 640)
        large = {form: large_start(form, int(options.rows)) for form in ("tensors", "subset", "columns")}
    results: dict[str, dict] = {"rows": {"rows": options.rows, **large}}
    print("to the first loss         wall-clock s: median, least    CPU s: median, least")
    for way, pairs in found.items() if options.rounds else ():
        wall, cpu = zip(*pairs, strict=True)
        results[way] = {"wall_s": wall, "cpu_s": cpu}
        print(f"{way:25} {statistics.median(wall):10.2f} {min(wall):8.2f}", end="")
        print(f" {statistics.median(cpu):20.2f} {min(cpu):7.2f}")
    print(f"{options.rows:.0e} rows, to the first loss beyond imports")
    for form, (wall_s, cpu_s, mib) in large.items():
        print(
            f"{form:25} {wall_s:10.2f} s, {cpu_s:6.2f} s of CPU, {mib:6.0f} MiB beside {options.rows * 20 / 2**20:.0f}"
        )
    if target:
        target.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
