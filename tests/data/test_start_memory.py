"Before the first step no temporary is larger than a twentieth of the data, in any form of it."

import tracemalloc
from array import array

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import Subset, TensorDataset

from spectrakit import ArrayDataset, compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.fingerprint import dataset_fingerprint
from spectrakit.data.loaders import check_finite_dataset, limit_samples, noticing_changes, train_batches

ROWS, WIDTH = 50_000, 128
SIZE = 4 * ROWS * WIDTH


def mapped(folder):
    path = folder / "x.npy"
    numpy.save(path, numpy.zeros((ROWS, WIDTH + 1), numpy.float32))
    return numpy.load(path, mmap_mode="r")


FORMS = {
    "tensor": lambda folder: TensorDataset(torch.zeros(ROWS, WIDTH)),
    "columns of one tensor": lambda folder: TensorDataset(torch.zeros(ROWS, WIDTH + 1)[:, :WIDTH]),
    "transposed": lambda folder: TensorDataset(torch.zeros(WIDTH, ROWS).t()),
    "half": lambda folder: TensorDataset(torch.zeros(ROWS, 2 * WIDTH, dtype=torch.float16)),
    "subset by a tensor": lambda folder: Subset(TensorDataset(torch.zeros(ROWS, WIDTH)), torch.arange(ROWS - 9)),
    "subset by an array": lambda folder: Subset(TensorDataset(torch.zeros(ROWS, WIDTH)), array("q", range(ROWS - 9))),
    "a part": lambda folder: limit_samples(TensorDataset(torch.zeros(ROWS, WIDTH)), compose("limits.train_frac=0.9")),
    "arrays": lambda folder: ArrayDataset(numpy.zeros((ROWS, WIDTH), numpy.float32)),
    "a file": lambda folder: ArrayDataset(mapped(folder)),
    "columns of a file": lambda folder: ArrayDataset(mapped(folder)[:, :WIDTH]),
}


class Temporaries(TorchDispatchMode):
    "Bytes of the largest storage that an operation made."

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        there = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if torch.is_tensor(t)}
        result = function(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if torch.is_tensor(made) and made.untyped_storage().data_ptr() not in there:
                self.largest = max(self.largest, made.untyped_storage().nbytes())
        return result


def start(dataset, config):
    "All that reads the data before the first step; return the first batch."
    dataset_fingerprint(dataset, 0)
    check_finite_dataset(dataset, "training")
    batches = train_batches(dataset, BatchPlan(len(dataset), 32), config)
    with noticing_changes(batches):
        return next(iter(batches.epoch(0)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("resident_gib", ["1", "0.001"])
def test_no_temporary_before_the_first_batch_is_large(tmp_path, form, resident_gib):
    "Storages of torch and the memory of NumPy and Python are counted, from the fingerprint to the first batch."
    if "file" in form and resident_gib == "1":
        pytest.skip("read into memory as a whole: that is no temporary")
    dataset = FORMS[form](tmp_path)
    config = compose(f"data.resident_gib={resident_gib}", "dataloader.num_workers=0")
    with Temporaries():
        start(TensorDataset(torch.zeros(32, WIDTH)), config)  # imports
    tracemalloc.start()
    try:
        with Temporaries() as temporaries:
            first = start(dataset, config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(first.data[0]) == 32
    assert 0 < temporaries.largest <= SIZE / 20 and peak <= SIZE / 20
