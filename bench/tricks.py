"""What each trick brings: `python bench/tricks.py [--folds 5] [--json FILE]`.

The same folds of 1,797 images of digits, trained without anything, and with one line of settings or one method more.
Of each row the log loss of all held-out samples, and by how much it is less than that of the plain row, paired over
folds: the mean, its standard error, and in how many folds it was less. bench/README.md says how to read the table.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import spectrakit as sk
from spectrakit.tasks.digits import Digits, digits_data

QUIET = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=32",
    "trainer.max_epochs=60",
    "optimizer.lr=0.01",
    "run.console=none",
)


class Folded(Digits):
    "The images, without a division of their own."

    options: ClassVar = {}

    def datasets(self, cfg: Any) -> tuple:
        "All of them."
        images, digits = digits_data()
        return torch.utils.data.TensorDataset(torch.tensor(images, dtype=torch.float32), torch.tensor(digits)), None

    def predict(self, model: Any, batch: Any) -> torch.Tensor:
        "Probabilities, so that their mean is one."
        return model(batch[0]).softmax(1)


class Shifted(Folded):
    "Predicted as it is, and shifted by a pixel to each side."

    def views(self, batch: Any) -> list:
        "Five looks at each image."
        image = batch[0].reshape(-1, 8, 8)
        moved = [image, *(image.roll(by, axis) for by in (1, -1) for axis in (1, 2))]
        return [[each.reshape(len(image), 64), batch[1]] for each in moved]


ROWS: dict[str, tuple[type, tuple[str, ...]]] = {
    "plain": (Folded, ()),
    "training.mixup=0.2": (Folded, ("training.mixup=0.2",)),
    "training.ema_decay=0.99": (Folded, ("training.ema_decay=0.99",)),
    "training.average=last:5": (Folded, ("training.average=last:5", "checkpoint.keep_last=6")),
    "folds.seeds=3": (Folded, ("folds.seeds=3",)),
    "views: shifted by a pixel": (Shifted, ()),
}


def losses(cv: Any) -> np.ndarray:
    "The log loss of each fold's held-out samples [folds]."
    right = cv.values[np.arange(len(cv.targets)), cv.targets.astype(int)]
    each = -np.log(np.clip(right, 1e-7, None))
    total = cv.folds.held.shape[0] * cv.folds.count
    return np.array([each[cv.folds.held_out(fold)].mean() for fold in range(total)])


def measured(folds: int, home: str) -> dict[str, dict[str, Any]]:
    "Each row: its losses by fold, and seconds."
    found = dict[str, dict[str, Any]]()
    for name, (task, words) in ROWS.items():
        began = time.monotonic()
        cv = sk.cross_validate(task(), sk.compose(*QUIET, f"run.dir={home}", *words), folds=folds, show=False)
        found[name] = {"losses": losses(cv), "seconds": time.monotonic() - began}
    return found


def main() -> None:
    "Print the table."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        rows = measured(options.folds, home)
    plain = rows["plain"]["losses"]
    print(f"{'':28} {'log loss':>9} {'less by':>9} {'± error':>8}  better in")
    for name, row in rows.items():
        less = plain - row["losses"]
        error = less.std(ddof=1) / np.sqrt(len(less))
        told = "" if name == "plain" else f"{less.mean():9.4f} {error:8.4f}  {(less > 0).sum()} of {len(less)} folds"
        print(f"{name:28} {row['losses'].mean():9.4f} {told}  {row['seconds']:.0f} s")
    if options.json:
        text = json.dumps({name: {**row, "losses": row["losses"].tolist()} for name, row in rows.items()}, indent=1)
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
