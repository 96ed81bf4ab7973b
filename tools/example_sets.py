"""Data sets in the form of competitions: `python tools/example_sets.py images|cells OUT [--owner NAME]`.

`images`: digit-images, 1,797 handwritten digits as PNG files of 8 × 8 pixels in train/ and test/, with train.csv (id,
label) and sample_submission.csv (id, label). `cells`: cell-table, 569 tumour cells with 30 measurements each in
train.csv and test.csv, and a sample submission that asks for the probability of a malignant one. Both come inside
scikit-learn. A fourth is the test; its labels are not written anywhere. The same bytes every time.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from spectrakit.system.errors import RequestError
from spectrakit.tasks.spectra import demo_package

OWNER = "INSERT-YOUR-NAME"
ABOUT = {
    "images": ("digit images", "Handwritten digits as files of 8 x 8 pixels", "The digits of scikit-learn"),
    "cells": ("cell table", "Thirty measurements of tumour cells", "The breast cancer data of scikit-learn"),
}


def parted(count: int) -> tuple[np.ndarray, np.ndarray]:
    "Places for training and for the test, a fourth, in one random order."
    order = np.random.default_rng(0).permutation(count)
    return np.sort(order[count // 4 :]), np.sort(order[: count // 4])


def write_images(folder: Path) -> None:
    "PNG files and the two tables."
    pandas, image = demo_package("pandas"), demo_package("PIL.Image")
    pixels, digits = demo_package("sklearn.datasets").load_digits(return_X_y=True)
    for name, places in zip(("train", "test"), parted(len(digits)), strict=True):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in places:
            grey = (255 - pixels[place].reshape(8, 8) * 15.9375).round().astype(np.uint8)
            image.fromarray(grey).save(folder / name / f"{place:04d}.png")
        ids = [f"{place:04d}" for place in places]
        table = pandas.DataFrame({"id": ids, "label": digits[places] if name == "train" else 0})
        target = folder / ("train.csv" if name == "train" else "sample_submission.csv")
        table.to_csv(target, index=False, lineterminator="\n")


def write_cells(folder: Path) -> None:
    "The three tables of a competition."
    pandas, data = demo_package("pandas"), demo_package("sklearn.datasets").load_breast_cancer()
    columns = [name.replace(" ", "_") for name in data.feature_names]
    whole = pandas.DataFrame(data.data.round(6), columns=columns)
    whole.insert(0, "id", np.arange(len(whole)))
    train, test = parted(len(whole))
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "train": whole.iloc[train].assign(malignant=1 - data.target[train]),
        "test": whole.iloc[test],
        "sample_submission": pandas.DataFrame({"id": test, "malignant": 0.5}),
    }
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")


WRITERS = {"images": write_images, "cells": write_cells}


def metadata(name: str, owner: str) -> dict[str, Any]:
    "What dataset-metadata.json says."
    title, subtitle, description = ABOUT[name]
    return {
        "title": title,
        "id": f"{owner}/{title.replace(' ', '-')}",
        "licenses": [{"name": "other"}],
        "subtitle": subtitle,
        "description": f"{description}, in the form of a small competition.",
    }


def write(name: str, folder: Path, owner: str = OWNER) -> Path:
    "Write the data set `name` into `folder`, which is made; returns it."
    WRITERS[name](folder)
    (folder / "dataset-metadata.json").write_text(json.dumps(metadata(name, owner), indent=2) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(WRITERS))
    parser.add_argument("out", type=Path, help="the folder, such as build/digit-images")
    parser.add_argument("--owner", default=OWNER, help="your name on Kaggle; default: %(default)s")
    arguments = parser.parse_args()
    try:
        folder = write(arguments.name, arguments.out, arguments.owner)
    except (RequestError, OSError) as error:
        sys.exit(f"{error}")
    print(f"{folder}: {sum(path.is_file() for path in folder.rglob('*'))} files")


if __name__ == "__main__":
    main()
