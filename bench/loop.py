"""What one optimizer step costs in spectrakit beyond a loop written by hand: `python bench/loop.py [--json FILE]`.

The same tiny network, data and optimizer run in three loops on the CPU, on one thread:

- `barest`: one shuffled copy an epoch, slices of it, forward, backward, step, zero_grad. Nothing is watched.
- `plain`: what a person writes: randperm, an index for each batch, and the loss added up with `.item()`.
- `kit`: `spectrakit.train.loop.train_run` with every guard on: NaN guard, look at the stop file, time budget, cosine
  schedule, a log point every 50 steps, events on disk. No evaluation and no checkpoint: they are no costs of a step.

Then an evaluation with five metrics: microseconds a batch, by the kit's `evaluate` and by hand, where each metric's sum
is read at the end; and how often the model runs.

Each loop runs N1 and N2 steps; (T(N2) - T(N1)) / (N2 - N1) is its time per step, free of start-up.
bench/README.md says how to read the table.
"""

import argparse
import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit import Config, Task, compose, detect, override
from spectrakit.data.loaders import eval_batches
from spectrakit.data.sample_order import epoch_order
from spectrakit.distributed.context import RunContext, create_run_context
from spectrakit.distributed.hang_detector import stop_file
from spectrakit.train.evaluation import evaluate
from spectrakit.train.learner.optimizer import build_optimizer
from spectrakit.train.loop import train_run
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit

AIM_US = 20.0
BATCH, SAMPLES = 32, 6400
LOOPS, CLOCKS = ("barest", "plain", "kit"), ("cpu", "wall")


@dataclass(frozen=True)
class Variant:
    "One row of the table: what the settings ask of the kit, and of the loops by hand."

    name: str
    overrides: tuple[str, ...] = ()
    lengths: tuple[int, int] = (20, 220)  # optimizer steps, whole epochs apart
    weighted: bool = False  # whether the loss is (sum, weight)


VARIANTS = (
    Variant("all guards"),
    Variant("nan_policy=skip", ("training.nan_policy=skip",)),
    Variant("(sum, weight)", weighted=True),
    Variant("+ clipping", ("trainer.gradient_clip_val=1.0",)),
    Variant("+ accumulation 4", ("training.gradient_accumulation_steps=4",), (10, 110)),
    Variant("+ EMA of weights", ("training.ema_decay=0.99",)),
)


class Tiny(Task):
    "An MLP 32-64-1 on made-up numbers. Each run starts from the same weights; `trained` is the newest model."

    weighted = False

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

    def loss(self, model: nn.Module, batch: tuple) -> torch.Tensor | tuple:
        "Mean squared error: a scalar, or a sum and its weight."
        if self.weighted:
            return nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"), len(batch[1])
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def by_hand(task: Tiny, config: Config, steps: int, watched: bool, draw: Callable[[int], torch.Tensor]) -> None:
    "Train without the kit for `steps` optimizer steps, as `plain` where `watched`; `draw(epoch)` gives the order."
    x, y, model = task.x, task.y, task.model(config)
    optimizer, params = build_optimizer(model, config), list(model.parameters())
    parts, clip = config.training.gradient_accumulation_steps, config.trainer.gradient_clip_val
    decay = config.training.ema_decay
    ema = None if decay is None else [p.detach().clone() for p in params]
    total, step, part, epoch = 0.0, 0, 0, 0
    model.train()
    while True:
        order = draw(epoch)
        if not watched:
            epoch_x, epoch_y = x[order], y[order]
        for start in range(0, SAMPLES, BATCH):
            if watched:
                index = order[start : start + BATCH]
                bx, by = x[index], y[index]
            else:
                bx, by = epoch_x[start : start + BATCH], epoch_y[start : start + BATCH]
            loss = task.loss(model, (bx, by))
            if task.weighted:
                loss = loss[0] / loss[1]
            if parts > 1:
                loss = loss / parts
            loss.backward()
            if watched:
                total += loss.item()
            part += 1
            if part % parts:
                continue
            if clip is not None:
                nn.utils.clip_grad_norm_(params, clip)
            optimizer.step()
            optimizer.zero_grad()
            if ema is not None:
                torch._foreach_lerp_(ema, [p.detach() for p in params], 1 - decay)
            step += 1
            if step == steps:
                return
        epoch += 1


def by_kit(task: Tiny, config: Config, context: RunContext, folder: Path) -> None:
    "Train with the kit's own loop for trainer.max_steps optimizer steps, in a new run folder below `folder`."
    steps, run_dir = config.trainer.max_steps, Path(tempfile.mkdtemp(dir=folder))
    budget = Budget(TimeLimit(9 * 3600.0, time.time(), "a limit for the benchmark"))
    status, reason = train_run(task, config, Execution(context, run_dir, budget, lambda: stop_file(run_dir).exists()))
    if (status, reason) != ("completed", f"all {steps} optimizer steps done"):
        raise SystemExit(f"{status}: {reason}")


def settings_of(variant: Variant) -> Config:
    "The settings of a variant: on the CPU, in fp32, without checkpoints."
    return compose(
        "trainer=defaults",
        "trainer.accelerator=cpu",
        "trainer.deterministic=false",
        "distributed.mixed_precision=no",
        f"data.micro_batch_size={BATCH}",
        "training.gradient_accumulation_steps=1",
        "trainer.log_every_n_steps=50",
        "scheduler.name=cosine",
        "optimizer.name=adamw",
        "checkpoint.enabled=false",
        *variant.overrides,
    )


def make_loops(task: Tiny, variant: Variant, context: RunContext, folder: Path) -> dict[str, Callable[[int], None]]:
    "The three loops of a variant as functions of the number of optimizer steps, which is one of its two lengths."
    config, task.weighted = settings_of(variant), variant.weighted
    # made once: a change of settings costs more than a run
    lengths = {n: override(config, f"trainer.max_steps={n}") for n in variant.lengths}

    def draw(epoch: int) -> torch.Tensor:
        return torch.randperm(SAMPLES)

    return {
        "barest": lambda steps: by_hand(task, config, steps, False, draw),
        "plain": lambda steps: by_hand(task, config, steps, True, draw),
        "kit": lambda steps: by_kit(task, lengths[steps], context, folder),
    }


def check_same_work(task: Tiny, context: RunContext, folder: Path) -> None:
    "With one order of samples and a constant rate, the three loops reach the same weights bit for bit."
    for variant in VARIANTS:
        config = override(settings_of(variant), "scheduler.name=constant", "trainer.max_steps=230")
        task.weighted = variant.weighted
        by_kit(task, config, context, folder)
        wanted = [p.detach().clone() for p in task.trained.parameters()]
        for watched in (False, True):
            by_hand(task, config, 230, watched, lambda epoch, seed=config.seed: epoch_order(SAMPLES, seed, epoch))
            same = all(torch.equal(a, b) for a, b in zip(wanted, task.trained.parameters(), strict=True))
            if not same:
                raise SystemExit(f"{variant.name}: the loops differ in their work; their times say nothing.")


def timed(run: Callable[[int], None], steps: int) -> tuple[float, float]:
    "Seconds of one run: of this thread on the processor, and on the wall."
    gc.collect()
    wall, cpu = time.perf_counter(), time.thread_time()
    run(steps)
    return time.thread_time() - cpu, time.perf_counter() - wall


def measure(variant: Variant, runs: dict[str, Callable[[int], None]], seconds: float) -> dict[str, dict]:
    """{clock: {loop: microseconds per optimizer step, one number a round}}; at least 8 rounds, that fill `seconds`.

    A round goes there and back, A B C C B A: a machine that slows down meanwhile does so for all three alike.
    """
    short, long = variant.lengths
    for run in runs.values():
        run(long)  # warm up
    gc.freeze()  # what torch and Hydra have made: looking through it between two runs would take longer than a run
    found: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in LOOPS} for clock in CLOCKS}
    orders, until = itertools.cycle(itertools.permutations(LOOPS)), time.monotonic() + seconds
    while len(found["cpu"]["kit"]) < 8 or time.monotonic() < until:
        there = next(orders)
        slopes: dict[str, list[tuple[float, ...]]] = {name: [] for name in LOOPS}
        for order, lengths in ((there, (short, long)), (there[::-1], (long, short))):
            for name in order:
                took = {n: timed(runs[name], n) for n in lengths}
                slopes[name].append(
                    tuple((b - a) / (long - short) * 1e6 for a, b in zip(took[short], took[long], strict=False))
                )
        for name, (first, second) in slopes.items():
            for i, clock in enumerate(CLOCKS):
                found[clock][name].append((first[i] + second[i]) / 2)
    return found


def spread(values: list[float]) -> dict[str, float]:
    "Median, its standard error and the quartiles."
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "error": 0.93 * (high - low) / len(values) ** 0.5, "q1": low, "q3": high}


def summary(found: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    "Spread of the loops, and of what the kit adds to each loop by hand, paired round by round."
    result = {name: spread(values) for name, values in found.items()}
    for name in ("plain", "barest"):
        result[f"kit - {name}"] = spread([kit - hand for kit, hand in zip(found["kit"], found[name], strict=True)])
    return result


def shown(s: dict[str, float], quartiles: bool = False) -> str:
    "A paired difference with the error of its median."
    return f"{s['median']:+6.1f} ± {s['error']:4.1f}" + (f" ({s['q1']:+.0f} to {s['q3']:+.0f})" if quartiles else "")


class Scored(Tiny):
    "The same with five metrics; the model counts its passes."

    def metrics(self, outputs: torch.Tensor, batch: tuple) -> dict[str, tuple]:
        "Five sums over the samples of a batch."
        errors, count = outputs - batch[1], len(outputs)
        squares, sizes = errors.square(), errors.abs()
        sums = (errors.sum(), sizes.sum(), squares.sum(), (sizes < 1).sum(), squares.square().sum())
        return {f"metric_{i}": (value, count) for i, value in enumerate(sums)}


def evaluation_by_hand(task: Scored, model: nn.Module) -> dict[str, float]:
    "The same evaluation without the kit."
    model.eval()
    total, sums = torch.zeros((), dtype=torch.float64), {}
    with torch.no_grad():
        for start in range(0, SAMPLES, BATCH):
            batch = task.x[start : start + BATCH], task.y[start : start + BATCH]
            outputs = model(batch[0])
            total += nn.functional.mse_loss(outputs, batch[1]).double() * len(outputs)
            for name, (value, count) in task.metrics(outputs, batch).items():
                before = sums.get(name, (0.0, 0))
                sums[name] = before[0] + value, before[1] + count
    model.train()
    return {"val_loss": float(total) / SAMPLES} | {f"val_{k}": float(v) / n for k, (v, n) in sums.items()}


def measure_evaluation(seconds: float) -> dict[str, dict]:
    "{loop: spread of the microseconds a batch, processor time}, alternating, and {'passes': {loop: forward passes}}."
    task, config = Scored(), settings_of(VARIANTS[0])
    model, passes = task.model(config), [0]
    model.register_forward_pre_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    batches = eval_batches(TensorDataset(task.x, task.y), config)
    loops = {"hand": lambda: evaluation_by_hand(task, model), "kit": lambda: evaluate(task, model, batches)}
    results, counts = {}, {}
    for name, run in loops.items():
        passes[0] = 0
        results[name], counts[name] = run(), passes[0]
    if any(abs(value - results["hand"][name]) > 1e-5 * abs(value) for name, value in results["kit"].items()):
        raise SystemExit(f"the evaluations differ: {results}")
    found: dict[str, list[float]] = {name: [] for name in loops}
    until = time.monotonic() + seconds
    while len(found["kit"]) < 8 or time.monotonic() < until:
        for name, run in loops.items():
            found[name].append(timed(lambda _, run=run: run(), 0)[0] / (SAMPLES // BATCH) * 1e6)
    differences = [kit - hand for kit, hand in zip(found["kit"], found["hand"], strict=True)]
    spreads = {name: spread(values) for name, values in {**found, "kit - hand": differences}.items()}
    return {**spreads, "passes": counts}


EPOCH_STEPS, EPOCHS = 10, (10, 90)


class Short(Tiny):
    "Epochs of ten steps, each with an evaluation that is better than the one before."

    def datasets(self, cfg: Config) -> tuple:
        "As many samples as ten batches have, and two batches for validation."
        return TensorDataset(self.x[: EPOCH_STEPS * BATCH], self.y[: EPOCH_STEPS * BATCH]), TensorDataset(
            self.x[-2 * BATCH :], self.y[-2 * BATCH :]
        )


def epochs_by_hand(task: Short, config: Config, epochs: int) -> None:
    "The same by hand: a loss that is looked at, and an evaluation after each epoch; nothing is saved."
    (train, valid), model = task.datasets(config), task.model(config)
    optimizer, (x, y) = build_optimizer(model, config), train.tensors
    for _ in range(epochs):
        total = 0.0
        for index in torch.randperm(len(x)).split(BATCH):
            loss = task.loss(model, (x[index], y[index]))
            loss.backward()
            total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            sum(task.loss(model, batch).item() for batch in zip(*(t.split(BATCH) for t in valid.tensors), strict=True))
        model.train()


def measure_epochs(seconds: float) -> dict[str, dict]:
    "{loop: spread of the milliseconds an epoch}, processor time, paired; with checkpoints as they are by default."
    task, config = (
        Short(),
        override(settings_of(VARIANTS[0]), "checkpoint.enabled=true", "trainer.log_every_n_steps=10"),
    )
    context = create_run_context(config, detect())
    lengths = {n: override(config, f"trainer.max_steps={n * EPOCH_STEPS}") for n in EPOCHS}
    found: dict[str, list[float]] = {"hand": [], "kit": [], "kit / hand": []}
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        loops = {
            "hand": lambda epochs: epochs_by_hand(task, config, epochs),
            "kit": lambda epochs: by_kit(task, lengths[epochs], context, Path(name)),
        }
        while len(found["kit"]) < 8 or time.monotonic() < until:
            for loop, run in loops.items():
                short, long = (timed(run, n)[0] for n in EPOCHS)
                found[loop].append((long - short) / (EPOCHS[1] - EPOCHS[0]) * 1e3)
            found["kit / hand"].append(found["kit"][-1] / found["hand"][-1])
    return {loop: spread(values) for loop, values in found.items()}


HEAD = """
                   processor time        kit - plain                  kit - barest   by the wall clock
                   barest  plain    kit  median ± error (quartiles)   median ± err   kit - plain        rounds"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="time for each variant (20)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task, results = Tiny(), {}
    print(f"µs per optimizer step: MLP 32-64-1, batch {BATCH}, fused AdamW, one CPU thread, torch {torch.__version__}")
    print(HEAD)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        context = create_run_context(settings_of(VARIANTS[0]), detect())
        check_same_work(task, context, folder)
        for variant in VARIANTS:
            found = measure(variant, make_loops(task, variant, context, folder), options.seconds)
            cpu, wall = (summary(found[clock]) for clock in CLOCKS)
            rounds = len(found["cpu"]["kit"])
            results[variant.name] = {"rounds": rounds, "cpu": cpu, "wall": wall}
            medians = " ".join(f"{cpu[name]['median']:6.1f}" for name in LOOPS)
            print(
                f"{variant.name:18} {medians}  {shown(cpu['kit - plain'], quartiles=True):28} "
                f"{shown(cpu['kit - barest']):14} {shown(wall['kit - plain']):18} {rounds:6}",
                flush=True,
            )
    task.weighted = False
    epochs = measure_epochs(options.seconds / 4)
    print(
        f"\nAn epoch of {EPOCH_STEPS} steps with its evaluation and its checkpoints, ms: by hand "
        f"{epochs['hand']['median']:.2f}, kit {epochs['kit']['median']:.2f}, kit ÷ by hand "
        f"{epochs['kit / hand']['median']:.2f} ± {epochs['kit / hand']['error']:.2f}; the aim is 1.3"
    )
    scored = measure_evaluation(options.seconds / 4)
    print(
        f"\nAn evaluation with five metrics, µs a batch: by hand {scored['hand']['median']:.1f}, kit "
        f"{scored['kit']['median']:.1f}, kit - by hand {shown(scored['kit - hand'])}; forward passes of "
        f"{SAMPLES // BATCH} batches: by hand {scored['passes']['hand']}, kit {scored['passes']['kit']}"
    )
    over = [name for name, s in results.items() if s["cpu"]["kit - plain"]["median"] > AIM_US]
    verdict = f"Missed by: {', '.join(over)}." if over else "All are within it."
    print(f"\nThe aim is kit - plain ≤ {AIM_US:.0f} µs. {verdict}")
    if options.json:
        content = {
            "unit": "microseconds per optimizer step",
            "torch": torch.__version__,
            "aim": AIM_US,
            "results": results,
            "evaluation": scored,
            "epochs": epochs,
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
