"""Data sets that kernels learn from: `python tools/example_sets.py images|cells|model|texts OUT [--owner NAME]`.

`images`: digit-images, 1,797 handwritten digits as PNG files of 8 × 8 pixels in train/ and test/, with train.csv (id,
label) and sample_submission.csv (id, label). `cells`: cell-table, 569 tumour cells with 30 measurements each in
train.csv and test.csv, and a sample submission that asks for the probability of a malignant one. Both come inside
scikit-learn. A fourth is the test; its labels are not written anywhere. `model`: counting-model, an untrained language
model of some hundred thousand parameters with its tokenizer; `texts`: counting-texts, 400 documents that count upwards
in words, as JSON lines. The same bytes every time.
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
    "model": ("counting model", "An untrained language model of a hundred thousand weights", "A model of two layers"),
    "texts": ("counting texts", "Documents that count upwards, in words", "Four hundred short texts"),
}
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


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


def write_model(folder: Path) -> None:
    "A Llama of two layers, as `save_pretrained` writes it, and a tokenizer that knows the words of the texts."
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    known = {word: n for n, word in enumerate(["<unk>", "</s>", *WORDS])}
    tokens = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(vocab_size=len(known), eos_token_id=1, **shape)).save_pretrained(folder)


def write_texts(folder: Path) -> None:
    "texts.jsonl, whose field `text` counts from some word on."
    folder.mkdir(parents=True, exist_ok=True)
    lengths = np.random.default_rng(0).integers(4, 30, size=400).tolist()
    texts = [" ".join(WORDS[(first + n) % 12] for n in range(length)) for first, length in enumerate(lengths)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "texts.jsonl").write_text(lines, encoding="utf-8", newline="\n")


WRITERS = {"images": write_images, "cells": write_cells, "model": write_model, "texts": write_texts}


def slug(name: str) -> str:
    "What the data set is called on Kaggle."
    return ABOUT[name][0].replace(" ", "-")


def metadata(name: str, owner: str) -> dict[str, Any]:
    "What dataset-metadata.json says."
    title, subtitle, description = ABOUT[name]
    return {
        "title": title,
        "id": f"{owner}/{slug(name)}",
        "licenses": [{"name": "other"}],
        "subtitle": subtitle,
        "description": f"{description}, for an example of spectrakit.",
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
