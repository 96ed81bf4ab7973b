"""Sets of pictures from packages: `spectrakit train images` with no setting beside a plain loop with the same network.

`python bench/images.py [SET ...] [--md FILE]`. digits: scikit-learn's, 1,797 grey pictures of 8 × 8 pixels. crops: 600
pictures of 40 × 40 pixels, each from the left or right half of one of scikit-learn's photographs. A third is held back.
The plain loop decodes each picture with Pillow whenever it needs it, mirrors at random except for digits, trains on all
labelled pictures for 20 epochs with AdamW, and takes the last weights. OMP_NUM_THREADS holds for both.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from spectrakit.tasks.images.net import small_net
from spectrakit.tasks.images.pixels import SIZES, Form

EPOCHS = 20


def digits() -> tuple[np.ndarray, np.ndarray]:
    "Grey pictures and their digits."
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return (pixels.reshape(-1, 8, 8) * 15.9).astype(np.uint8), labels.astype(str)


def crops() -> tuple[np.ndarray, np.ndarray]:
    "Colour crops of two photographs, each cut into a left and a right half."
    from sklearn.datasets import load_sample_images

    rng, found = np.random.default_rng(0), []
    for name, photo in zip(("flower", "china"), reversed(load_sample_images().images), strict=True):
        middle = photo.shape[1] // 2
        for side, half in (("left", photo[:, :middle]), ("right", photo[:, middle:])):
            for _ in range(150):
                top, left = rng.integers(0, half.shape[0] - 40), rng.integers(0, half.shape[1] - 40)
                found.append((half[top : top + 40, left : left + 40], f"{name}-{side}"))
    return np.stack([pixels for pixels, _ in found]), np.array([name for _, name in found])


SETS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {"digits": digits, "crops": crops}


def make(folder: Path, name: str) -> pd.DataFrame:
    "Write train/CLASS/, test/ and a sample submission into `folder`; return the hidden labels."
    pixels, labels = SETS[name]()
    order = np.random.default_rng(1).permutation(len(labels))
    test = set(order[: len(order) // 3].tolist())
    for i in order.tolist():
        place = folder / ("test" if i in test else f"train/{labels[i]}")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[i]).save(place / f"{i:05}.png")
    truth = pd.DataFrame({"file": [f"{i:05}.png" for i in sorted(test)], "label": labels[sorted(test)]})
    truth.assign(label=labels[0]).to_csv(folder / "sample_submission.csv", index=False)
    return truth


def ours(folder: Path) -> pd.Series:
    "The submission of the command, with no setting but the data and the folder of runs."
    with tempfile.TemporaryDirectory() as place:
        out = Path(place, "submission.csv")
        words = [f"task.data={folder}", f"task.cache={place}", f"run.dir={place}/runs", "--predict", str(out)]
        command = [sys.executable, "-m", "spectrakit", "train", "images", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{folder.name}: the run failed.\n{done.stderr[-2000:]}")
        return pd.read_csv(out, dtype=str)["label"]


class Files(Dataset):
    "Pictures that are decoded whenever they are read."

    def __init__(self, paths: list[Path], codes: list[int], size: int, grey: bool, mirror: bool):
        self.paths, self.codes, self.size, self.mode, self.mirror = paths, codes, size, "L" if grey else "RGB", mirror

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[i]) as image:
            pixels = np.asarray(image.convert(self.mode).resize((self.size, self.size)), np.float32)
        x = torch.from_numpy(pixels / 127.5 - 1).reshape(self.size, self.size, -1).permute(2, 0, 1)
        return (x.flip(2) if self.mirror and torch.rand(()) < 0.5 else x), self.codes[i]


def plain(folder: Path) -> list[str]:
    "The answer of a plain loop."
    torch.manual_seed(0)
    paths = sorted((folder / "train").glob("*/*.png"))
    classes = sorted({path.parent.name for path in paths})
    with Image.open(paths[0]) as image:
        grey, side = image.mode == "L", max(image.size)
    size = next(each for each in SIZES if each >= side)
    codes = [classes.index(path.parent.name) for path in paths]
    train = Files(paths, codes, size, grey, mirror=not grey)
    tests = sorted((folder / "test").glob("*.png"))
    net = small_net(Form(size, 1 if grey else 3), len(classes))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for x, y in DataLoader(train, 64, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        loader = DataLoader(Files(tests, [0] * len(tests), size, grey, mirror=False), 256)
        return [classes[code] for x, _ in loader for code in net(x).argmax(1).tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", choices=[[], *SETS], metavar="SET", help=", ".join(SETS))
    parser.add_argument("--md", type=Path, metavar="FILE", help="also write the table there")
    options = parser.parse_args()
    lines = ["| set | network | accuracy | seconds |", "|---|---|---|---|"]
    for name in options.sets or SETS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, name)
            truth = make(folder, name)
            for who, answer in (("`images`", ours), ("plain loop", plain)):
                began = time.perf_counter()
                right = np.asarray(answer(folder), str) == truth["label"].to_numpy(str)
                lines.append(f"| {name} | {who} | {right.mean():.4f} | {time.perf_counter() - began:.0f} |")
                print(lines[-1], flush=True)
    text = f"# Pictures\n\ntorch {torch.__version__}, {torch.get_num_threads()} threads.\n\n" + "\n".join(lines) + "\n"
    print(text)
    if options.md:
        options.md.write_text(text)


if __name__ == "__main__":
    main()
