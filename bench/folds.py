"""What all folds and seeds of a small net cost: `python bench/folds.py [--epochs 100] [--turns 3] [--cpu]`.

Five folds with three seeds each of a net with 5,500 weights on 1,000 rows: trained at once (`folds.stacked=true`) and
one by one, each whole with its start, evaluations, checkpoints and out-of-fold predictions; and one fold alone. Turns
are paired. `--cpu` counts the CPU's seconds of one thread, which a busy machine changes less, in this process alone;
`--json FILE` keeps the numbers. The last column says how far the out-of-fold predictions of the two are apart.
bench/README.md says how to read the table.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk

FOLDS, SEEDS = 5, 3
THREADS = "1" if "--cpu" in sys.argv else "auto"  # threads that wait for one another count as busy


class Rows(sk.Task):
    "A net of three layers on 1,003 rows of 20 numbers."

    def datasets(self, cfg: Any) -> tuple:
        "Rows that can be learned."
        made = torch.Generator().manual_seed(0)
        x = torch.randn(1003, 20, generator=made)
        return TensorDataset(x, torch.sin(x[:, :3].sum(1)) + 0.1 * torch.randn(1003, generator=made)), None

    def model(self, cfg: Any) -> nn.Module:
        "Three layers."
        hidden = [nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
        return nn.Sequential(*hidden, nn.Linear(64, 1), nn.Flatten(0))

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        "A mean square."
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def words(epochs: int, mode: str) -> list[str]:
    "What all ways have in common, in a folder of their own."
    return [
        "trainer.accelerator=cpu",
        "data.batch_size=64",
        f"trainer.max_epochs={epochs}",
        "optimizer.lr=0.003",
        "run.console=none",
        f"launch.mode={mode}",
        f"launch.threads={THREADS}",
        f"folds.count={FOLDS}",
        f"run.dir={tempfile.mkdtemp()}/runs",
    ]


def one_fold(epochs: int, mode: str, clock: Callable[[], float]) -> float:
    "Seconds of one fold, whole."
    began = clock()
    result = sk.run_single_trial(sk.compose(*words(epochs, mode)), fold=0, task=Rows())
    assert result.done
    return clock() - began


def all_folds(epochs: int, mode: str, stacked: bool, clock: Callable[[], float]) -> tuple[float, np.ndarray]:
    "Seconds of all of them, and what they predict of what was held out."
    asked = [*words(epochs, mode), f"folds.seeds={SEEDS}", f"folds.stacked={str(stacked).lower()}"]
    began = clock()
    cv = sk.cross_validate(Rows(), *asked, show=False)
    assert cv.status == "completed"
    return clock() - began, cv.values


def main() -> None:
    "Print the table, and write it where --json says so."
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clock, modes = (time.process_time, ("inline",)) if given.cpu else (time.perf_counter, ("auto", "inline"))
    rows = {}
    unit = "CPU seconds" if given.cpu else "seconds"
    print(f"{FOLDS} folds with {SEEDS} seeds, {given.epochs} epochs; {unit}, medians of {given.turns} turns")
    print(f"{'launch.mode':<12}{'one fold':>10}{'at once':>10}{'one by one':>12}{'by one fold':>13}{'apart':>10}")
    for mode in modes:
        all_folds(1, mode, True, clock)  # what is imported once
        turns = [
            (
                one_fold(given.epochs, mode, clock),
                *all_folds(given.epochs, mode, True, clock),
                *all_folds(given.epochs, mode, False, clock),
            )
            for _ in range(given.turns)
        ]
        one, at_once, by_one = (statistics.median(turn[i] for turn in turns) for i in (0, 1, 3))
        ratio = statistics.median(turn[1] / turn[0] for turn in turns)
        apart = max(float(np.abs(turn[2] - turn[4]).max()) for turn in turns)
        rows[mode] = {"one_s": one, "at_once_s": at_once, "one_by_one_s": by_one, "ratio": ratio, "apart": apart}
        print(f"{mode:<12}{one:>10.2f}{at_once:>10.2f}{by_one:>12.2f}{ratio:>12.1f}x{apart:>10.0e}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"epochs": given.epochs, **rows}, indent=1))


if __name__ == "__main__":
    main()
