"""What one optimizer step costs in spectrakit beyond a loop written by hand: `python bench/loop.py [--json FILE]`.

The same tiny network, data and optimizer run in three loops on the CPU, on one thread:

- `barest`: one shuffled copy an epoch, slices of it, forward, backward, step, zero_grad. Nothing is watched.
- `plain`: what a person writes: randperm, an index for each batch, and the loss added up with `.item()`.
- `kit`: `spectrakit.trainer.train_run` with every guard on: NaN guard, look at the stop file, time budget, cosine schedule,
  a log point every 50 steps, events on disk. No evaluation and no checkpoints: those are not costs of a step.

Each loop runs N1 and N2 steps; (T(N2) - T(N1)) / (N2 - N1) is its time per step, free of start-up. bench/README.md says more.
"""
import argparse
import gc
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit import Config, Task, compose, detect, override
from spectrakit.data import epoch_order
from spectrakit.distributed import RunContext, create_run_context
from spectrakit.launch import stop_file
from spectrakit.task import build_optimizer
from spectrakit.trainer import train_run
from spectrakit.watchdog import Budget, TimeLimit

AIM_US = 20.0
BATCH, SAMPLES = 32, 6400
LOOPS = ("barest", "plain", "kit")


@dataclass(frozen=True)
class Variant:
    "One row of the table: what the settings ask of the kit, and of the loops by hand."
    name: str
    overrides: tuple[str, ...] = ()
    lengths: tuple[int, int] = (200, 1200)  # optimizer steps


VARIANTS = (
    Variant("all guards"),
    Variant("+ clipping", ("trainer.gradient_clip_val=1.0",)),
    Variant("+ accumulation 4", ("training.gradient_accumulation_steps=4",), (50, 350)),
    Variant("+ EMA of weights", ("training.ema_decay=0.99",)),
)


class Tiny(Task):
    "An MLP 32-64-1 on made-up numbers. Each run starts from the same weights; `trained` is the model of the newest one."

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(SAMPLES, 32, generator=draw)
        self.y = self.x.square().mean(1, keepdim=True)

    def datasets(self, cfg: Config) -> tuple:
        "Training data alone: an evaluation is no part of a step."
        return TensorDataset(self.x, self.y), None

    def model(self, cfg: Config) -> nn.Module:
        "A new model. torch's generator is left as it was."
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.trained = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
        return self.trained

    def loss(self, model: nn.Module, batch: tuple) -> torch.Tensor:
        "Mean squared error: a scalar."
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def by_hand(task: Tiny, config: Config, steps: int, watched: bool, draw: Callable[[int], torch.Tensor]) -> None:
    "Train without the kit for `steps` optimizer steps. `watched`: index and `.item()` as in `plain`; `draw(epoch)`: the order."
    x, y, model = task.x, task.y, task.model(config)
    optimizer, params = build_optimizer(model, config), list(model.parameters())
    parts, clip = config.training.gradient_accumulation_steps, config.trainer.gradient_clip_val
    decay = config.training.ema_decay
    ema = None if decay is None else [p.detach().clone() for p in params]
    total, step, part, epoch = 0.0, 0, 0, 0
    model.train()
    while True:
        order = draw(epoch)
        if not watched: epoch_x, epoch_y = x[order], y[order]
        for start in range(0, SAMPLES, BATCH):
            if watched:
                index = order[start:start + BATCH]
                bx, by = x[index], y[index]
            else: bx, by = epoch_x[start:start + BATCH], epoch_y[start:start + BATCH]
            loss = nn.functional.mse_loss(model(bx), by)
            if parts > 1: loss = loss / parts
            loss.backward()
            if watched: total += loss.item()
            part += 1
            if part % parts: continue
            if clip is not None: nn.utils.clip_grad_norm_(params, clip)
            optimizer.step()
            optimizer.zero_grad()
            if ema is not None: torch._foreach_lerp_(ema, [p.detach() for p in params], 1 - decay)
            step += 1
            if step == steps: return
        epoch += 1


def by_kit(task: Tiny, config: Config, context: RunContext, folder: Path) -> None:
    "Train with the kit's own loop for trainer.max_steps optimizer steps, in a new run folder below `folder`."
    steps, run_dir = config.trainer.max_steps, Path(tempfile.mkdtemp(dir=folder))
    budget = Budget(TimeLimit(9 * 3600.0, time.time(), "a limit for the benchmark"))
    status, reason = train_run(task, config, context, run_dir, budget, lambda: stop_file(run_dir).exists())
    if (status, reason) != ("completed", f"all {steps} optimizer steps done"): raise SystemExit(f"{status}: {reason}")


def settings_of(variant: Variant) -> Config:
    "The settings of a variant: on the CPU, one number format, no checkpoints."
    return compose("trainer=defaults", "trainer.accelerator=cpu", "trainer.deterministic=false", "distributed.mixed_precision=no",
                   f"data.micro_batch_size={BATCH}", "training.gradient_accumulation_steps=1", "trainer.log_every_n_steps=50",
                   "scheduler.name=cosine", "optimizer.name=adamw", "checkpoint.enabled=false", *variant.overrides)


def check_same_work(task: Tiny, folder: Path) -> None:
    "The kit and both loops by hand, given one order of samples and a constant rate, reach the same weights bit for bit."
    for variant in VARIANTS[:2]:
        config = override(settings_of(variant), "scheduler.name=constant")
        by_kit(task, config, 250, folder)
        wanted = [p.detach().clone() for p in task.trained.parameters()]
        for watched in (False, True):
            by_hand(task, config, 250, watched, lambda epoch: epoch_order(SAMPLES, config.seed, epoch))
            same = all(torch.equal(a, b) for a, b in zip(wanted, task.trained.parameters(), strict=True))
            if not same: raise SystemExit(f"{variant.name}: the loops do not do the same work, so their times say nothing.")


def timed_s(run: Callable[[], None]) -> float:
    "Wall-clock seconds of one run."
    gc.collect()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(variant: Variant, task: Tiny, folder: Path, rounds: int) -> dict[str, list[float]]:
    "Microseconds per optimizer step of each loop, one number a round. A round runs there and back: A B C C B A."
    config = settings_of(variant)
    draw = lambda epoch: torch.randperm(SAMPLES)
    runs: dict[str, Callable[[int], None]] = {
        "barest": lambda steps: by_hand(task, config, steps, False, draw),
        "plain": lambda steps: by_hand(task, config, steps, True, draw),
        "kit": lambda steps: by_kit(task, config, steps, folder),
    }
    short, long = variant.lengths
    for run in runs.values(): run(short)  # warm up
    found: dict[str, list[float]] = {name: [] for name in LOOPS}
    for number in range(rounds):
        there = LOOPS if number % 2 == 0 else LOOPS[::-1]
        slopes: dict[str, list[float]] = {name: [] for name in LOOPS}
        for order, steps in ((there, (short, long)), (there[::-1], (long, short))):
            for name in order:
                seconds = {n: timed_s(lambda: runs[name](n)) for n in steps}
                slopes[name].append((seconds[long] - seconds[short]) / (long - short) * 1e6)
        for name in LOOPS: found[name].append(statistics.mean(slopes[name]))
    return found


def spread(values: list[float]) -> dict[str, float]:
    "Median and quartiles."
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "q1": low, "q3": high}


def summary(found: dict[str, list[float]]) -> dict[str, Any]:
    "Medians of the loops, and of what the kit adds to each loop by hand, paired round by round."
    result: dict[str, Any] = {name: spread(values) for name, values in found.items()}
    for name in ("plain", "barest"):
        result[f"kit - {name}"] = spread([kit - hand for kit, hand in zip(found["kit"], found[name], strict=True)])
    return result


def shown(s: dict[str, float]) -> str:
    "A paired difference with its quartiles."
    return f"{s['median']:+6.1f} ({s['q1']:+.1f} to {s['q3']:+.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each variant (9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if options.rounds < 2: parser.error("--rounds needs a number from 2 up")
    torch.set_num_threads(1)
    task, results = Tiny(), {}
    print(f"µs per optimizer step: MLP 32-64-1, batch {BATCH}, fused AdamW, one CPU thread; medians of {options.rounds} rounds")
    print(f"{'':18} {'barest':>7} {'plain':>7} {'kit':>7}   {'kit - plain (quartiles)':27} {'kit - barest (quartiles)'}")
    with tempfile.TemporaryDirectory() as folder:
        check_same_work(task, Path(folder))
        for variant in VARIANTS:
            s = results[variant.name] = summary(measure(variant, task, Path(folder), options.rounds))
            medians = " ".join(f"{s[name]['median']:7.1f}" for name in LOOPS)
            print(f"{variant.name:18} {medians}   {shown(s['kit - plain']):27} {shown(s['kit - barest'])}", flush=True)
    over = [name for name, s in results.items() if s["kit - plain"]["median"] > AIM_US]
    print(f"aim: kit - plain ≤ {AIM_US:.0f} µs. " + (f"Missed by: {', '.join(over)}." if over else "All are within it."))
    if options.json:
        content = {"unit": "us per optimizer step", "rounds": options.rounds, "torch": torch.__version__, "aim": AIM_US, "results": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__": main()
