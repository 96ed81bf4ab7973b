"""The built-in coffee spectra as a data set of a competition: `python tools/coffee_table.py OUT [--parquet] [--owner
NAME]`.

Writes train.csv (id, 1841 absorbances, origin), test.csv (the same without the origin), sample_submission.csv (a
probability for each origin), and the dataset-metadata.json with which `kaggle datasets create -p OUT` uploads the
folder. A fourth of the spectra are the test; what grew there is not written anywhere. The same bytes every time.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from spectrakit.system.errors import RequestError
from spectrakit.tasks.spectra import ORIGINS, coffee_data, demo_package, fold_of_samples

DECIMALS = 6  # of an absorbance; the spectra have no more to tell
OWNER = "INSERT-YOUR-NAME"


def tables() -> dict[str, Any]:
    "The three tables by name."
    pandas = demo_package("pandas")
    spectra, origins = coffee_data()
    order = np.random.default_rng(0).permutation(len(spectra))  # the file that they come in is sorted by origin
    is_test = fold_of_samples(origins, 4)[order] == 0
    names = [f"a{channel:04d}" for channel in range(spectra.shape[1])]
    whole = pandas.DataFrame(spectra[order].round(DECIMALS), columns=names)
    whole.insert(0, "id", np.arange(1, len(order) + 1))
    train, test = whole[~is_test].copy(), whole[is_test]
    train["origin"] = [ORIGINS[origins[i]] for i in order[~is_test]]
    sample = pandas.DataFrame({"id": test["id"], **dict.fromkeys(ORIGINS, round(1 / len(ORIGINS), 4))})
    return {"train": train, "test": test, "sample_submission": sample}


def metadata(owner: str = OWNER) -> dict[str, Any]:
    "What dataset-metadata.json says."
    return {
        "title": "coffee table",
        "id": f"{owner}/coffee-table",
        "licenses": [{"name": "other"}],
        "subtitle": "Infrared spectra of 60 coffees from three origins",
        "description": "ATR-FTIR spectra from the Python package chemotools, under its MIT licence, "
        "as the tables of a small competition.",
    }


def write(folder: Path, parquet: bool = False, owner: str = OWNER) -> list[Path]:
    "Write the data set into `folder`, which is made; returns its files."
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, table in tables().items():
        files.append(folder / f"{name}.{'parquet' if parquet else 'csv'}")
        if parquet:
            table.to_parquet(files[-1], index=False)
        else:
            table.to_csv(files[-1], index=False, lineterminator="\n")
    files.append(folder / "dataset-metadata.json")
    files[-1].write_text(json.dumps(metadata(owner), indent=2) + "\n", encoding="utf-8")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder, such as build/coffee-table")
    parser.add_argument("--parquet", action="store_true", help="Parquet in place of CSV; needs pyarrow")
    parser.add_argument(
        "--owner", default=OWNER, help="your name on Kaggle; %(default)s is to be replaced before the upload"
    )
    arguments = parser.parse_args()
    if arguments.parquet and importlib.util.find_spec("pyarrow") is None:
        sys.exit("--parquet needs pyarrow, which is not installed. Run: pip install pyarrow")
    try:
        files = write(arguments.out, arguments.parquet, arguments.owner)
    except (RequestError, OSError) as error:
        sys.exit(f"{error}")
    print(*(f"{file}: {file.stat().st_size:,} bytes" for file in files), sep="\n")


if __name__ == "__main__":
    main()
