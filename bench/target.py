"""Time to a target loss on a held-out part: `python bench/target.py [--rounds N] [--tasks NAME …] [--json FILE]`.

The built-in tasks `digits` (real images) and `coffee` (real spectra), and a made-up table of 10⁶ rows. Each way trains
the same model on the same samples with the same loss, fused AdamW and constant rate, evaluates after each epoch, and is
done at the first evaluation that reaches the target. A round is one seed, the ways take turns within it.

- **barest**: slices of tensors that were shuffled for the epoch; neither saves, nor logs, nor looks at a loss
- **DataLoader**: the same with torch's loader
- **sk.fit**: by default, in this process: guards, events, curves, checkpoints and the choice of the best one

Seconds of the processor, of all threads of the process, from the call to the end of that evaluation, and seconds of the
clock. What was imported before is not counted.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spectrakit as sk
from spectrakit.tasks.coffee import Coffee
from spectrakit.tasks.digits import Digits


class Million(sk.Task):
    "A number from 20 columns of 1,000,000 rows, made up: a sum of products, a step and noise."

    def datasets(self, cfg: Any) -> tuple:
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(1_050_000, 20, generator=draw)
        y = x[:, :1] * x[:, 1:2] + (x[:, 2:3] > 0) + 0.1 * torch.randn(len(x), 1, generator=draw)
        return TensorDataset(x[:1_000_000], y[:1_000_000]), TensorDataset(x[1_000_000:], y[1_000_000:])

    def model(self, cfg: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])


@dataclass(frozen=True)
class Problem:
    "A task, its batch, the learning rate, the most epochs, and the loss to reach."

    task: type
    batch: int
    lr: float
    epochs: int
    target: float
    options: tuple[str, ...] = ()


PROBLEMS = {
    "digits": Problem(Digits, 32, 1e-3, 40, 0.16),
    "coffee": Problem(Coffee, 32, 1e-3, 16, 0.02, ("task.views=8",)),
    "10⁶ rows": Problem(Million, 1024, 1e-3, 6, 0.0135),
}
Reached = tuple[float, float, int] | None  # seconds of the processor, of the clock, epochs


def config_of(problem: Problem, seed: int) -> Any:
    return sk.compose(
        "local/accumulate_grad_batches=debug",
        "trainer.accelerator=cpu",
        "launch.mode=inline",
        "launch.threads=1",
        "run.console=none",
        f"data.micro_batch_size={problem.batch}",
        "data.eval_batch_size=4096",
        f"trainer.max_epochs={problem.epochs}",
        "optimizer.name=adamw",
        f"optimizer.lr={problem.lr}",
        "optimizer.weight_decay=0.01",
        "scheduler.name=constant",
        f"seed={seed}",
        *problem.options,
    )


def sliced(columns: tuple, size: int) -> Iterator[list]:
    order = torch.randperm(len(columns[0]))
    shuffled = [column[order] for column in columns]
    for start in range(0, len(order), size):
        yield [column[start : start + size] for column in shuffled]


def by_hand(problem: Problem, seed: int, loader: bool) -> Reached:
    "A loop as short as it can be."
    began = time.process_time(), time.monotonic()
    torch.manual_seed(seed)
    task, config = problem.task(), config_of(problem, seed)
    train, valid = task.datasets(config)
    model = task.model(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=problem.lr, weight_decay=0.01, fused=True)
    batches = DataLoader(train, batch_size=problem.batch, shuffle=True) if loader else None
    for epoch in range(problem.epochs):
        model.train()
        for batch in batches or sliced(train.tensors, problem.batch):
            task.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            parts = zip(*(column.split(4096) for column in valid.tensors), strict=True)
            total = sum(task.loss(model, part).item() * len(part[0]) for part in parts)
        if total / len(valid) <= problem.target:
            return time.process_time() - began[0], time.monotonic() - began[1], epoch + 1
    return None


def by_kit(problem: Problem, seed: int) -> Reached:
    "`fit`, by default."
    ends: list[tuple[float, float]] = []

    class Timed(problem.task):  # type: ignore[name-defined]  # a class that is chosen at run time
        def loss(self, model: nn.Module, batch: Any) -> Any:
            found = super().loss(model, batch)
            if not model.training:
                ends.append((time.process_time(), time.monotonic()))
            return found

    Timed.__name__ = problem.task.__name__
    began = time.process_time(), time.monotonic()
    run = sk.fit(Timed(), config_of(problem, seed), show=False).raise_for_status()
    losses = [event["metrics"]["val_loss"] for event in run.events if event["type"] == "eval"]
    batches = -(-len(Timed().datasets(config_of(problem, seed))[1]) // 4096)
    assert len(losses) == problem.epochs, "there is an evaluation after each epoch"
    if not (good := [number for number, loss in enumerate(losses) if loss <= problem.target]):
        return None
    cpu, wall = ends[-batches * problem.epochs :][batches * (good[0] + 1) - 1]  # those before it are of the first look
    return cpu - began[0], wall - began[1], good[0] + 1


WAYS: dict[str, Callable[[Problem, int], Reached]] = {
    "barest": lambda problem, seed: by_hand(problem, seed, loader=False),
    "DataLoader": lambda problem, seed: by_hand(problem, seed, loader=True),
    "sk.fit": by_kit,
}


def measured(problem: Problem, rounds: int) -> dict[str, dict[str, Any]]:
    "What each way took, and × the median ratio to the first way, each seed compared with itself."
    found: dict[str, list[Reached]] = {name: [] for name in WAYS}
    for seed in range(rounds):
        for name in [*WAYS] if seed % 2 else [*reversed(WAYS)]:
            found[name].append(WAYS[name](problem, seed))
    table = {}
    for name, each in found.items():
        reached = [one for one in each if one is not None]
        if len(reached) < rounds:
            table[name] = {"reached": len(reached)}
            continue
        pairs = zip(reached, found[next(iter(WAYS))], strict=True)
        table[name] = {
            "reached": rounds,
            "cpu_s": statistics.median(cpu for cpu, _, _ in reached),
            "wall_s": statistics.median(wall for _, wall, _ in reached),
            "epochs": statistics.median(epochs for _, _, epochs in reached),
            "ratio": statistics.median(one[0] / other[0] for one, other in pairs if other is not None),
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="seeds (5)")
    parser.add_argument("--tasks", nargs="*", choices=PROBLEMS, default=[*PROBLEMS])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables, here = {}, Path.cwd()
    for name in options.tasks:
        problem = PROBLEMS[name]
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            by_kit(replace(problem, epochs=1), 0)  # what is imported and made once
            tables[name] = measured(problem, options.rounds)
            os.chdir(here)
        print(f"{name}: to a held-out loss of {problem.target}")
        for way, row in tables[name].items():
            if row["reached"] < options.rounds:
                print(f"  {way:12} reached it in {row['reached']} of {options.rounds} runs")
            else:
                print(
                    f"  {way:12} {row['cpu_s']:7.2f} CPU s  {row['wall_s']:7.2f} s  {row['epochs']:4.0f} epochs  "
                    f"× {row['ratio']:.2f}"
                )
    if options.json:
        targets = {name: problem.target for name, problem in PROBLEMS.items()}
        options.json.write_text(json.dumps({"targets": targets, "tables": tables}, indent=1) + "\n")


if __name__ == "__main__":
    main()
