"""Predictions that are many go through a file, and come out as those that are few."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch import nn

from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.jobs.prediction import not_finite, predict_dataset, save_arrays
from spectrakit.prediction.prediction_spool import PredictionSpool
from spectrakit.system.array_archive import read_arrays
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.task.task import Task

KINDS = {
    "fractions": [np.arange(6.0).reshape(2, 3), np.ones((1, 3)), np.zeros((0, 3)), np.ones((4, 3))],
    "half precision": [torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(1, 3, dtype=torch.bfloat16)],
    "masks": [np.ones((2, 4, 4), bool), np.zeros((3, 4, 4), bool)],
    "complex": [np.ones(3, "c8"), np.zeros(2, "c8")],
    "not in order of memory": [np.arange(6.0).reshape(2, 3).T, np.ones((1, 2))],
    "texts": [["a", "bä"], ["longer"]],
    "of another length later": [np.ones((2, 3)), np.ones((2, 3)), np.ones((1, 5)), np.ones((2, 3))],
    "of other lengths at once": [[np.ones(2), np.ones(3)], np.ones((2, 3)), [np.ones(1)]],
    "of another type later": [np.ones((2, 3), "f4"), np.ones((1, 3), "f8"), np.ones((1, 3), "f4")],
    "no values": [np.zeros((2, 0)), np.zeros((1, 0))],
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_what_memory_gives(tmp_path, monkeypatch, kind):
    held = PredictionSpool(Task())
    monkeypatch.setattr("spectrakit.prediction.prediction_spool.IN_MEMORY", 0)
    spooled = PredictionSpool(Task(), tmp_path)
    for part in KINDS[kind]:
        held.add({"predictions": part})
        spooled.add({"predictions": part})
    expected, found = held.arrays(), spooled.arrays()
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
    assert list(tmp_path.iterdir()) == []  # the file has no name


class Wide(Task):
    def predict(self, model, batch):
        return model(batch[0]).expand(-1, 2**16)  # a quarter of a megabyte a sample


def test_what_is_held_does_not_grow_with_the_predictions(tmp_path, monkeypatch):
    monkeypatch.setattr("spectrakit.prediction.prediction_spool.IN_MEMORY", 2**22)
    cfg = compose("trainer.accelerator=cpu", "data.micro_batch_size=4")
    context = create_run_context(cfg, detect({"PATH": ""}, shell=""))
    data = torch.utils.data.TensorDataset(torch.arange(200.0)[:, None])
    tracemalloc.start()  # NumPy's arrays are counted; torch's few batches are not
    arrays = predict_dataset(Wide(), nn.Identity().eval(), data, cfg, context, tmp_path)
    assert not_finite(arrays) == []
    save_arrays(tmp_path / "predictions.npz", arrays)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert arrays["predictions"].nbytes == 50 * 2**20 and most < 45 * 2**20
    with np.load(tmp_path / "predictions.npz") as stored:
        assert (stored["predictions"][:, -1] == np.arange(200)).all()


def test_a_full_disk_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("spectrakit.prediction.prediction_spool.IN_MEMORY", 0)
    with pytest.raises(RequestError, match="predictions do not fit into .*nowhere.*Make room"):
        PredictionSpool(Task(), tmp_path / "nowhere").add({"predictions": np.ones((2, 3))})


def test_what_is_mapped_is_what_numpy_reads_and_stays_when_the_file_is_replaced(tmp_path, monkeypatch):
    arrays = {
        "predictions": np.arange(24.0).reshape(2, 3, 4),
        "mask": np.ones((3, 5), bool),
        "ids": np.array(["a", "bä"]),
    }
    arrays |= {"columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "complex": np.ones(3, "c8")}
    file = tmp_path / "predictions.npz"
    save_arrays(file, arrays)
    found = read_arrays(file, in_memory=0)
    assert [name for name, values in found.items() if isinstance(values, np.memmap)] == [
        "predictions",
        "columns",
        "complex",
    ]
    save_arrays(file, {"predictions": np.zeros((2, 3, 4))})
    found["predictions"][1] = 7  # in memory alone
    arrays["predictions"][1] = 7
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
    assert read_arrays(file)["predictions"].sum() == 0
