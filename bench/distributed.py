"""Two ranks over gloo, side by side with what a person writes: `python bench/distributed.py [--pairs N] [--json FILE]`.

- steps/s: `spectrakit` with one rank and with two (`trainer.devices`) and a loop by hand under `torchrun`, DDP where
  there are two, over the same network, data, batch and optimizer. They take turns; the ratio is the median over pairs.
  Aim: 0.98 or more. Beside it the processor time of rank 0 a step, and the samples of two ranks in the time of one.
- time to the first step: from the call to the end of the first optimizer step, for `spectrakit`, `torchrun`, and
  `accelerate.notebook_launcher`. Each starts from a fresh interpreter, but for spectrakit, whose caller runs.
- what the signs of life cost a step: writing the page, looking at the other rank, keeping the step's time. Aim: < 2 µs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit import Task, compose
from spectrakit.distributed.hang_detector import Heartbeat, Pace, SharedPage
from spectrakit.launch.job import Job
from spectrakit.launch.job_kind import TRAIN
from spectrakit.launch.launcher import launch
from spectrakit.launch.request import new_request

BATCH, SAMPLES, WIDTH, WARM, STEPS = 64, 6400, 768, 20, 220
LOG_EVERY = 10  # steps: both exchange the mean loss so often, and write it down


class Net(Task):
    "An MLP of about 1.2 million weights. Rank 0 writes the times at which its steps end, as the loops by hand do."

    def __init__(self, file):
        self.file, self.times = str(file), []

    def datasets(self, cfg):
        x = torch.randn(SAMPLES, 256, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x[:, :1]), None

    def model(self, cfg):
        return network()

    def loss(self, model, batch):
        if model.training and os.environ.get("RANK", "0") == "0":
            self.times.append((time.time(), time.process_time()))
            if len(self.times) in (2, STEPS):
                Path(self.file).write_text(json.dumps(self.times))
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def network():
    return nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


BY_HAND = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
sys.path.insert(0, {folder!r})

def train(file, steps):
    torch.set_num_threads(1)
    from distributed import BATCH, LOG_EVERY, SAMPLES, network
    if not dist.is_initialized(): dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model, ranks = network(), dist.get_world_size()
    if ranks > 1: model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(SAMPLES, 256, generator=torch.Generator().manual_seed(0))
    y, times, total = x[:, :1], [], 0.0
    while len(times) < steps:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(len(times)))
        for index in order.split(ranks * BATCH):
            mine = index[rank * BATCH:(rank + 1) * BATCH]
            times.append((time.time(), time.process_time()))
            if rank == 0 and len(times) in (2, steps): open(file, "w").write(json.dumps(times))
            if len(times) == steps: break
            loss = nn.functional.mse_loss(model(x[mine]), y[mine])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
            if len(times) % LOG_EVERY == 0:
                mean, total = torch.tensor(total / LOG_EVERY / ranks), 0.0
                dist.all_reduce(mean)
                if rank == 0: print(len(times), mean.item(), flush=True)
    dist.destroy_process_group()
"""
UNDER_TORCHRUN = BY_HAND + "\ntrain(sys.argv[1], int(sys.argv[2]))\n"
UNDER_NOTEBOOK_LAUNCHER = (
    BY_HAND
    + """
from accelerate import notebook_launcher
notebook_launcher(
    train, (sys.argv[1], int(sys.argv[2])), num_processes=2,
    rdzv_backend="c10d", rdzv_endpoint="localhost:0", rdzv_id="bench",
)
"""
)


Times = list[tuple[float, float]]  # by the clock, and of the processor of rank 0


def by_kit(folder: Path, steps: int, ranks: int = 2) -> Times:
    "[when it was called, then the beginnings of steps]"
    words = (
        "trainer.accelerator=cpu",
        f"trainer.devices={ranks}",
        f"data.micro_batch_size={BATCH}",
        f"trainer.max_steps={steps}",
        "checkpoint.enabled=false",
        "scheduler.name=constant",
        "trainer.deterministic=false",
    )
    called = time.time()
    job = Job(TRAIN, folder / "run", new_request(compose("local/accumulate_grad_batches=debug", *words)))
    outcome = launch(job, Net(folder / "times.json"), lambda: None)
    assert outcome.status == "completed", outcome
    return [(called, 0.0), *json.loads((folder / "times.json").read_text())]


def by_hand(folder: Path, steps: int, script: str, ranks: int = 2) -> Times:
    "The same for a script."
    (folder / "by_hand.py").write_text(script.format(folder=str(Path(__file__).resolve().parent)))
    start = (
        [
            "-m",
            "torch.distributed.run",
            f"--nproc-per-node={ranks}",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
        ]
        if script is UNDER_TORCHRUN
        else []
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    called = time.time()
    done = subprocess.run(
        [sys.executable, *start, "by_hand.py", str(folder / "times.json"), str(steps)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [(called, 0.0), *json.loads((folder / "times.json").read_text())]


WAYS = {
    "spectrakit": by_kit,
    "torchrun": lambda f, n, ranks=2: by_hand(f, n, UNDER_TORCHRUN, ranks),
    "notebook_launcher": lambda f, n, ranks=2: by_hand(f, n, UNDER_NOTEBOOK_LAUNCHER, ranks),
}


def measured(way: str, steps: int, ranks: int = 2) -> Times:
    folder = Path(tempfile.mkdtemp())
    try:
        return WAYS[way](folder, steps, ranks)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def steps_per_s(pairs: int) -> dict:
    "Steady steps of both, with one rank and with two, by pairs that take turns: a second, and processor time each."
    rates: dict[tuple[str, int], list[float]] = {
        (way, ranks): [] for ranks in (1, 2) for way in ("spectrakit", "torchrun")
    }
    cpu: dict[tuple[str, int], list[float]] = {key: [] for key in rates}
    for pair in range(pairs):
        for way, ranks in list(rates) if pair % 2 else list(rates)[::-1]:
            times = measured(way, STEPS, ranks)[1:]
            steps = STEPS - WARM - 1
            rates[way, ranks].append(steps / (times[-1][0] - times[WARM][0]))
            cpu[way, ranks].append(1000 * (times[-1][1] - times[WARM][1]) / steps)
    found = {}
    for ranks in (1, 2):
        ours, others = ("spectrakit", ranks), ("torchrun", ranks)
        ratios = [a / b for a, b in zip(rates[ours], rates[others], strict=True)]
        costs = [a / b for a, b in zip(cpu[ours], cpu[others], strict=True)]
        found[f"{ranks} rank{'s' * (ranks > 1)}"] = {
            "spectrakit": statistics.median(rates[ours]),
            "by hand": statistics.median(rates[others]),
            "ratio": statistics.median(ratios),
            "ratios": [round(r, 3) for r in ratios],
            "cpu_ms": {"spectrakit": statistics.median(cpu[ours]), "by hand": statistics.median(cpu[others])},
            "cpu_ratio": statistics.median(costs),
            "cpu_ratios": [round(r, 3) for r in costs],
        }
    # samples a second with two ranks over those of one, of two that there could be
    scaling = {
        way: statistics.median(2 * b / a for a, b in zip(rates[way, 1], rates[way, 2], strict=True))
        for way in ("spectrakit", "torchrun")
    }
    return {**found, "scaling": scaling}


def first_step(rounds: int) -> dict:
    "Seconds from the call to the end of the first optimizer step (the beginning of the second)."
    found = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            called, _, second = measured(way, 2)[:3]
            found[way].append(second[0] - called[0])
    return {way: statistics.median(values) for way, values in found.items()}


def signs_of_life_us(steps: int = 200_000) -> float:
    "Microseconds a step of what the loop does for heartbeat and agreement, the other rank being ahead."
    page = SharedPage(None, 2)
    heartbeat, other, pace = Heartbeat(page, 0), Heartbeat(page, 1), Pace()
    other.begin(10 * steps)
    heartbeat.begin(0)
    step, add, best = heartbeat.step, pace.add, float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _number in range(1, steps + 1):
            pass
        empty = time.perf_counter() - began
        began = time.perf_counter()
        for number in range(1, steps + 1):
            add(0.001)
            step(number)
        best = min(best, (time.perf_counter() - began - empty) / steps)
    return 1e6 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rate, first, sign = steps_per_s(options.pairs), first_step(max(1, options.pairs // 2)), signs_of_life_us()
    print(f"DDP over gloo, {os.cpu_count()} cores, torch {torch.__version__}")
    for ranks in ("1 rank", "2 ranks"):
        row = rate[ranks]
        print(
            f"  {ranks}, steps/s: spectrakit {row['spectrakit']:.1f}, by hand {row['by hand']:.1f}, ratio "
            f"{row['ratio']:.3f} (pairs: {row['ratios']}); CPU ms a step of rank 0: {row['cpu_ms']['spectrakit']:.2f}, "
            f"{row['cpu_ms']['by hand']:.2f}, ratio {row['cpu_ratio']:.3f} (pairs: {row['cpu_ratios']})"
        )
    print(
        "  samples/s of two ranks over one: "
        + ", ".join(f"{way} {times:.2f}" for way, times in rate["scaling"].items())
    )
    print(
        "  seconds to the end of the first step: " + ", ".join(f"{way} {seconds:.2f}" for way, seconds in first.items())
    )
    print(f"  signs of life: {sign:.2f} µs a step")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"steps_per_s": rate, "first_step_s": first, "signs_of_life_us": sign}, indent=1)
        )


if __name__ == "__main__":
    main()
