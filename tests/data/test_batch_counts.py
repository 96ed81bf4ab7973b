"What a batch costs in counts that no machine changes: calls of the kit's functions, reads, states of generators."

import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import spectrakit
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.array_rows import ArrayDataset
from spectrakit.data.loaders import train_batches

OWN = str(Path(spectrakit.__file__).parent)
SAMPLES, BATCHES = 4096, 20
X = torch.arange(float(SAMPLES))[:, None].repeat(1, 8)


class OneByOne:
    "A row at a time, as most data sets are written; it counts what it is asked."

    def __init__(self):
        self.asked = Counter()

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.asked["one"] += 1
        return X[index]


class Together(OneByOne):
    def __getitems__(self, indices):
        self.asked["many"] += 1
        return list(X[torch.tensor(indices)])


class Drawing(OneByOne):
    def __getitem__(self, index):
        return super().__getitem__(index) + torch.rand(())


def calls(dataset, size: int, *words: str) -> dict[str, float]:
    "What BATCHES batches of `size` samples take, each: calls in the kit, and states of generators that are set."
    config = compose("dataloader.num_workers=0", f"data.micro_batch_size={size}", *words)
    batches = train_batches(dataset, BatchPlan(SAMPLES, size), config).epoch(0)
    next(batches)
    found: Counter = Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OWN):
            found["calls"] += 1
        if event == "c_call" and getattr(argument, "__name__", "") in ("manual_seed", "set_state", "setstate", "seed"):
            found["seeds"] += 1

    sys.setprofile(note)
    try:
        for _ in islice(batches, BATCHES):
            pass
    finally:
        sys.setprofile(None)
    return {name: found[name] / BATCHES for name in ("calls", "seeds")}


@pytest.mark.parametrize(
    ("dataset", "words", "most"),
    [
        (lambda: TensorDataset(X), (), 1),
        (lambda: TensorDataset(X), ("data.resident_gib=1e-9",), 3),
        (lambda: ArrayDataset(X.numpy()), ("data.resident_gib=1e-9",), 8),
        (OneByOne, (), 27),
        (Together, (), 26),
    ],
    ids=["on the device", "above the limit", "arrays above the limit", "one by one", "__getitems__"],
)
def test_a_batch_takes_as_many_calls_whatever_its_size(dataset, words, most):
    small, large = (calls(dataset(), size, *words) for size in (16, 64))
    assert small["calls"] == large["calls"] <= most and large["seeds"] == 0


def test_generators_are_seeded_for_samples_that_draw_alone():
    assert calls(OneByOne(), 32)["seeds"] == 0 and 32 <= calls(Drawing(), 32)["seeds"] <= 66


def test_what_can_be_read_together_is_asked_for_once_a_batch():
    dataset = Together()
    calls(dataset, 64)
    assert dataset.asked["many"] == BATCHES + 2 and dataset.asked["one"] <= 1  # two are looked at with the first batch
