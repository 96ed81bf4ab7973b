"""A small model on a GPU: `python bench/graphs.py [--rounds N] [--json FILE]`. Where there is no GPU it says so.

The network of peers.py, fp32, batches of 32 on the GPU, fused AdamW. A step of such a model is short beside what
it takes to ask the GPU for it, so a captured graph, which is asked for at once, is the best that can be had by hand.

- **by hand**: forward, backward, step; the loss is never looked at
- **by hand, captured**: the same step as a CUDA graph, replayed with each batch copied into its inputs
- **sk.fit**: by default, in this process, without checkpoints; with `trainer.compile=true`, and with
  `trainer.cuda_graphs=true`

Microseconds a step by the clock, between two synchronizations, from the difference of two lengths; the ways take turns.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peers import EPOCHS, STEPS, Sliced, adamw, network, spectrakit
from torch.nn.functional import mse_loss


def batches() -> list[tuple]:
    "Those of an epoch, on the GPU."
    return [(x.cuda(), y.cuda()) for x, y in Sliced()]


def plain(epochs: int) -> None:
    model = network().cuda()
    optimizer, every = adamw(model.parameters()), batches()
    for _ in range(epochs):
        for x, y in every:
            mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def captured(epochs: int) -> None:
    model, every = network().cuda(), batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=True)
    x, y = (column.clone() for column in every[0])

    def step() -> None:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # torch asks for some steps before a capture, on another stream
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(epochs):
        for one, other in every:
            x.copy_(one)
            y.copy_(other)
            graph.replay()


def kit(epochs: int, *words: str) -> None:
    spectrakit(epochs, "trainer.accelerator=gpu", "trainer.devices=1", *words)


WAYS: dict[str, Callable[[int], None]] = {
    "by hand": plain,
    "by hand, captured": captured,
    "sk.fit, by default": kit,
    "sk.fit, compiled": lambda epochs: kit(epochs, "trainer.compile=true"),
    "sk.fit, captured": lambda epochs: kit(epochs, "trainer.cuda_graphs=true"),
}


def timed(way: Callable[[int], None], epochs: int) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    way(epochs)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measured(rounds: int) -> dict[str, dict]:
    "Microseconds a step of each way, and × the median ratio to the first, each round compared with itself."
    short, long = EPOCHS
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for way in WAYS.values():
        way(1)
    for number in range(rounds):
        for name in [*WAYS] if number % 2 else [*reversed(WAYS)]:
            seconds = timed(WAYS[name], long) - timed(WAYS[name], short)
            found[name].append(1e6 * seconds / (long - short) / STEPS)
    first = found[next(iter(WAYS))]
    return {
        name: {
            "us": statistics.median(each),
            "ratio": statistics.median(one / other for one, other in zip(each, first, strict=True)),
        }
        for name, each in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        found: dict = {"not_run": "there is no GPU here"}
        print("bench/graphs.py: there is no GPU here, so nothing was measured")
    else:
        here = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found = {"device": torch.cuda.get_device_name(), "results": measured(options.rounds)}
            os.chdir(here)
        for name, row in found["results"].items():
            print(f"{name:20} {row['us']:8.1f} µs a step  × {row['ratio']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
