"What `datasets` writes into a module, and `model` reads there, is there wherever a run is loaded or predicted with."

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.task.task import Task

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(5))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
QUICK = (
    "local/accumulate_grad_batches=debug",
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=8",
    "trainer.max_epochs=1",
)
N_CLASSES = 2  # another number than the data have, so that nothing fails by itself
FOUND: dict[str, int] = {}


class CFG:
    classes = 2


def head():
    return nn.Linear(4, FOUND.get("classes", 2))


class Global(Task):
    def datasets(self, cfg):
        global N_CLASSES
        N_CLASSES = int(Y.max()) + 1
        return TensorDataset(X, Y), TensorDataset(X[:8], Y[:8])

    def test_dataset(self, cfg):
        return TensorDataset(X[:8])

    def model(self, cfg):
        return nn.Linear(4, N_CLASSES)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])


class OfClass(Global):
    def datasets(self, cfg):
        CFG.classes = 3
        return TensorDataset(X, Y), None

    def model(self, cfg):
        return nn.Linear(4, CFG.classes)


class InMapping(Global):
    def datasets(self, cfg):
        FOUND["classes"] = 3
        return TensorDataset(X, Y), None

    def model(self, cfg):
        return head()


class New(Global):
    def datasets(self, cfg):
        global LATE
        LATE = 3
        return TensorDataset(X, Y), None

    def model(self, cfg):
        return nn.Linear(4, LATE)


@pytest.fixture
def forget():
    def as_new():
        global N_CLASSES
        N_CLASSES, CFG.classes = 2, 2
        FOUND.clear()
        globals().pop("LATE", None)

    as_new()
    yield as_new
    as_new()


@pytest.mark.parametrize("kind", [Global, OfClass, InMapping, New])
def test_a_new_task_has_what_datasets_writes_into_a_module(kind, tmp_path, forget):
    run = sk.fit(kind(), *QUICK, f"run.dir={tmp_path / 'run'}", show=False)
    assert run.status == "completed"
    forget()
    assert run.load_model(kind()).out_features == 3
    forget()
    with np.load(sk.predict(kind(), run).path) as arrays:
        assert {arrays[name].shape for name in arrays.files if arrays[name].ndim == 2} == {(8, 3)}
