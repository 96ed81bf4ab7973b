"""A small model on a GPU: `python bench/graphs.py [--rounds N] [--json FILE]`. Where there is no GPU it says so.

The network of peers.py, fp32, batches of 32 on the GPU, fused AdamW. A step of such a model is short beside what
it takes to ask the GPU for it, so a captured graph, which is asked for at once, is the best that can be had by hand.

- **by hand**: forward, backward, step; the loss is never looked at
- **by hand, captured**: the same step as a CUDA graph, replayed with each batch copied into its inputs
- **sk.fit**: in fp32, in this process, without checkpoints: by default but for graphs, with `trainer.compile=true`, and
  with `trainer.cuda_graphs=true`

Microseconds a step by the clock over the last 20 of 25 epochs: by hand between two synchronizations, in a run by the
times of its log points, each of which reads a loss. And the seconds of the whole call besides steps of that length,
which are what a compiler takes; from them follows after how many steps it has paid. The ways take turns.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from gpu import capture
from peers import EPOCHS, STEPS, Sliced, adamw, network, spectrakit
from torch.nn.functional import mse_loss

WARM, ALL = EPOCHS
Timed = tuple[float, float]  # seconds of a step, and of the call without its steps


def batches() -> list[tuple]:
    "Those of an epoch, on the GPU."
    return [(x.cuda(), y.cuda()) for x, y in Sliced()]


@contextlib.contextmanager
def clocked() -> Iterator[list[float]]:
    "The seconds of what is done inside, once the GPU is done with it."
    torch.cuda.synchronize()
    took = [time.perf_counter()]
    yield took
    torch.cuda.synchronize()
    took.append(time.perf_counter() - took.pop())


def by_hand(epoch: Callable[[], None], began: float) -> Timed:
    "`epoch` is made again and again; the call began at `began`."
    for _ in range(WARM):
        epoch()
    with clocked() as took:
        for _ in range(ALL - WARM):
            epoch()
    step_s = took[0] / (ALL - WARM) / STEPS
    return step_s, time.perf_counter() - began - ALL * STEPS * step_s


def plain() -> Timed:
    began = time.perf_counter()
    model, every = network().cuda(), batches()
    optimizer = adamw(model.parameters())

    def epoch() -> None:
        for x, y in every:
            mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return by_hand(epoch, began)


def captured() -> Timed:
    began = time.perf_counter()
    model, every = network().cuda(), batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=True)
    x, y = (column.clone() for column in every[0])

    def step() -> None:
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()

    graph = capture(step)

    def epoch() -> None:
        for one, other in every:
            x.copy_(one)
            y.copy_(other)
            graph.replay()

    return by_hand(epoch, began)


def kit(*words: str) -> Timed:
    "A run in this process; its log says when which step was done."
    before, began = set(Path("runs").glob("*")), time.perf_counter()
    spectrakit(ALL, "trainer.accelerator=gpu", "trainer.devices=1", "trainer.precision=32", *words)
    took = time.perf_counter() - began
    (folder,) = set(Path("runs").glob("*")) - before
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    points = [(e["step"], e["t"]) for e in events if e["type"] == "step" and e["step"] >= WARM * STEPS]
    step_s = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    return step_s, took - ALL * STEPS * step_s


WAYS: dict[str, Callable[[], Timed]] = {
    "by hand": plain,
    "by hand, captured": captured,
    "sk.fit, by default": lambda: kit("trainer.cuda_graphs=false"),
    "sk.fit, compiled": lambda: kit("trainer.compile=true", "trainer.cuda_graphs=false"),
    "sk.fit, captured": lambda: kit("trainer.cuda_graphs=true"),
}


def measured(rounds: int) -> dict[str, dict]:
    "Of each way: microseconds a step, × the median ratio to the first, each round with itself, and what it costs."
    found: dict[str, list[Timed]] = {name: [] for name in WAYS}
    kit("trainer.cuda_graphs=false")  # torch and the GPU are loaded
    for number in range(rounds):
        for name in [*WAYS] if number % 2 else [*reversed(WAYS)]:
            found[name].append(WAYS[name]())
    first = found[next(iter(WAYS))]
    return {
        name: {
            "us": 1e6 * statistics.median(step_s for step_s, _ in each),
            "ratio": statistics.median(one / other for (one, _), (other, _) in zip(each, first, strict=True)),
            "else_s": statistics.median(else_s for _, else_s in each),
        }
        for name, each in found.items()
    }


def pays_after(row: dict, default: dict) -> float | None:
    "After how many steps a way has made up for what it takes before them; None where it never does."
    saved_s = 1e-6 * (default["us"] - row["us"])
    return max(0.0, (row["else_s"] - default["else_s"]) / saved_s) if saved_s > 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    target = options.json and options.json.absolute()
    if not torch.cuda.is_available():
        found: dict = {"not_run": "there is no GPU here"}
        print("bench/graphs.py: there is no GPU here, so nothing was measured")
    else:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            found = {"device": torch.cuda.get_device_name(), "results": measured(options.rounds)}
        default = found["results"]["sk.fit, by default"]
        for name, row in found["results"].items():
            row["pays_after_steps"] = pays_after(row, default) if name.startswith("sk.fit,") else None
            paid = f"  pays after {row['pays_after_steps']:,.0f} steps" if row["pays_after_steps"] else ""
            print(f"{name:20} {row['us']:8.1f} µs a step  × {row['ratio']:.2f}  {row['else_s']:5.1f} s besides{paid}")
    if target:
        target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
