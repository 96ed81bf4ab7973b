"""Forecast against truth: `python bench/forecast.py [--rows 24] [--quick] [--json FILE]`.

A grid of networks, optimizers, precisions and micro batches, each in fresh processes: `spectrakit preflight`, and then
the run that it was asked about. Memory is the highest use of the training process (on a GPU what torch's allocator had
reserved, on a CPU the resident memory above that of a process that has imported torch alone), time is that of an epoch
with a save, disk what lies in the run's checkpoints at its end. Nothing in the forecast was fitted to these rows.
bench/README.md says how to read the table.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit import Task

BATCHES = {16: 64, 256: 24}  # of an epoch, by micro batch size: a checkpoint is written within one
WIDTH, OUT = 2048, 16


class Wide(Task):
    "A stack of square layers of so many megabytes of weights, which `megabytes` in its options says."

    options: ClassVar = {"megabytes": 8}

    def datasets(self, cfg: Any) -> tuple[TensorDataset, TensorDataset]:
        "Numbers that nobody can learn; what they cost is the point."
        draws = torch.Generator().manual_seed(0)
        samples = BATCHES[cfg.data.micro_batch_size] * cfg.data.micro_batch_size
        train = torch.randn(samples, WIDTH, generator=draws), torch.randn(samples, OUT, generator=draws)
        return TensorDataset(*train), TensorDataset(*(part[: 4 * cfg.data.micro_batch_size] for part in train))

    def model(self, cfg: Any) -> nn.Module:
        "As many layers as the megabytes need."
        layers = max(1, round(cfg.task["megabytes"] * 1e6 / (4 * WIDTH * (WIDTH + 1))))
        square = [layer for _ in range(layers) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        return nn.Sequential(*square, nn.Linear(WIDTH, OUT))

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        "A mean square."
        return ((model(batch[0]).float() - batch[1]) ** 2).mean()


def rows(count: int, quick: bool) -> list[tuple[str, ...]]:
    "Settings of each row: all combinations, spread over the grid where fewer are wanted."
    sizes = (8, 16) if quick else (200, 320)
    ways = (
        ("optimizer.name=sgd", "optimizer.momentum=0.9"),
        ("optimizer.name=adamw",),
        ("optimizer.name=adamw", "training.ema_decay=0.99"),
    )
    grid = list(itertools.product(sizes, ways, ("no", "bf16"), (16, 256)))
    step = max(1, len(grid) // count)
    return [
        (f"task.megabytes={size}", *way, f"distributed.mixed_precision={precision}", f"data.micro_batch_size={batch}")
        for size, way, precision, batch in grid[::step][:count]
    ]


def spectrakit(folder: Path, *words: str) -> str:
    "What a command prints, in a process of its own."
    done = subprocess.run(
        [sys.executable, "-m", "spectrakit", *words], cwd=folder, capture_output=True, text=True, env=os.environ
    )
    if done.returncode:
        raise SystemExit(f"spectrakit {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def baseline_bytes() -> int:
    "Resident memory of a process that has imported what a training process imports."
    code = (
        "import torch, accelerate, spectrakit.train.loop\n"
        "print(int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) * 1024)"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def one_row(words: tuple[str, ...], base: int, seconds: float) -> dict[str, Any]:
    "Forecast and truth of one row."
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = f"{Path(__file__).resolve()}:Wide"
        once = f"trainer.log_every_n_steps={BATCHES[int(words[-1].rpartition('=')[2])]}"
        common = (
            "local/accumulate_grad_batches=debug",
            "trainer.max_epochs=2",
            once,
            "checkpoint.keep_last=1",
            "launch.warm_worker=false",
            *words,
        )
        asked = spectrakit(folder, "preflight", task, f"preflight.seconds={seconds:g}", "--json", *common)
        forecast = json.loads(asked.strip().splitlines()[-1])
        spectrakit(folder, "train", task, *common, "--quiet")
        (run,) = (folder / "runs").glob("*/events.jsonl")
        events = [json.loads(line) for line in run.read_text().splitlines()]
        used = events[-1]["used"]
        ends = [event["t"] for event in events if event["type"] == "step" and event["epoch"] in (1.0, 2.0)]
        evals = [event["seconds"] for event in events if event["type"] == "eval"]
        epoch_s = ends[1] - ends[0] - evals[0]  # with the save that begins with it
        gpu = forecast["gpu_bytes"]
        above = 0 if gpu else base
        pairs = {
            "memory": ((gpu or forecast["host_bytes"]) - above, (used["gpu_bytes"] or used["host_bytes"]) - above),
            "epoch_s": (forecast["epoch_s"] + max(r["save_s"] for r in forecast["ranks"]), epoch_s),
            "disk": (max(r["checkpoint_bytes"] for r in forecast["ranks"]), newest_bytes(run.parent / "checkpoints")),
        }
        return {"row": list(words), **{name: {"forecast": f, "used": u} for name, (f, u) in pairs.items()}}


def newest_bytes(checkpoints: Path) -> int:
    "Bytes of the newest checkpoint."
    folder = checkpoints / (checkpoints / "LATEST").read_text().strip()
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def summary(found: list[dict[str, Any]]) -> list[str]:
    "For each figure, how many forecasts came true within its aim."
    lines = []
    for name, aim in (("memory", 0.10), ("epoch_s", 0.10), ("disk", 0.01)):
        ratios = [row[name]["forecast"] / row[name]["used"] for row in found]
        within = sum(abs(ratio - 1) <= aim for ratio in ratios) / len(ratios)
        lines.append(
            f"{name}: {within:.0%} of {len(ratios)} within {aim:.0%}; forecast / used: "
            f"median {statistics.median(ratios):.3f}, lowest {min(ratios):.3f}, highest {max(ratios):.3f}"
        )
    return lines


def main() -> None:
    "Print the table, row by row, and what came of it."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="small networks, to try the script")
    parser.add_argument("--seconds", type=float, default=6.0, help="preflight.seconds")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    base, found = baseline_bytes(), []
    for words in rows(options.rows, options.quick):
        row = one_row(words, base, options.seconds)
        found.append(row)
        shown = "  ".join(
            f"{name} {row[name]['forecast'] / row[name]['used']:.3f}" for name in ("memory", "epoch_s", "disk")
        )
        mb = row["memory"]["used"] / 1e6
        print(f"{' '.join(words):110}  {mb:7.0f} MB  {shown}", flush=True)
    lines = summary(found)
    print(*lines, sep="\n")
    if options.json:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        text = json.dumps({"device": device, "torch": torch.__version__, "summary": lines, "rows": found}, indent=1)
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
