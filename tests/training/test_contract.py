"The contract test: what would fail, or mislead, is told in one sentence before the first step; and the trial leaves no trace."

import shutil
from collections import namedtuple

import numpy as np
import pytest
import torch
from test_loop import train, vector  # noqa: F401  train is a fixture
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from spectrakit.checkpoint.store import find_checkpoint
from spectrakit.contract.loss import Loss
from spectrakit.contract.task import Task
from spectrakit.runs.events import last_event
from spectrakit.system.errors import RequestError
from spectrakit.training import setup

DRAW = torch.Generator().manual_seed(11)
X, Y = torch.randn(24, 4, generator=DRAW), torch.randint(0, 3, (24,), generator=DRAW)
QUICK = ("data.batch_size=8", "trainer.max_epochs=1")


class Mine(Task):
    "Three classes from four numbers. What is wrong with a task is given as keywords: data, net, loss and other methods."

    def datasets(self, cfg):
        data = TensorDataset(X, Y)
        return data, data

    def model(self, cfg):
        return nn.Linear(4, 3)

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])


def mine(data=None, net=None, **methods) -> Task:
    "A task called Mine with these methods in place of its own; `data` is both data sets, `net` makes the model."
    if data is not None:
        methods["datasets"] = lambda self, cfg: (data, data)
    if net is not None:
        methods["model"] = lambda self, cfg: net()
    return type("Mine", (Mine,), methods)()


def of(*arrays) -> TensorDataset:
    return TensorDataset(*arrays)


def fit(loss):
    "A method `loss` that compares the outputs with the second part of the batch."
    return lambda self, model, batch: loss(model(batch[0]), batch[1])


class Table:
    "What a pandas table looks like from outside."

    columns = ("a", "b")

    def to_numpy(self):
        return X.numpy()


class Pair(nn.Module):
    "Returns its outputs and something beside."

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x), x


class Rows:
    "A data set of the samples in a list."

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def of_dicts():
    return Rows([{"x": x, "label": y} for x, y in zip(X, Y, strict=True)])


def wrong_key(self, model, batch):
    return F.cross_entropy(model(batch[0]), {"y": batch[1]}["labels"])


def own_words(self, model, batch):
    raise ValueError("the palette has no green")


def carried(self, model, batch):
    self.kept = getattr(self, "kept", 0.0) + model(batch[0]).mean()
    return self.kept


def in_place(self, model, batch):
    out = model(batch[0]).exp()
    out += 1
    return out.mul(out).mean() + out.add_(1).mean()


def stranger(self, model, cfg):
    "An optimizer over another model, as after a deepcopy."
    return torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1)


def adamw(self, model, cfg):
    return torch.optim.AdamW(model.parameters())


def two(self, model, cfg):
    return [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())]


BAG = lambda: nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(12, 3))  # noqa: E731
NORMED = lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))  # noqa: E731
IDS = torch.randint(0, 5, (24, 4), generator=DRAW)
FLAT = lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))  # noqa: E731
SHORT = of(X[:17], Y[:17])
Out = namedtuple("Out", "logits hidden")

# name: (the task, what the sentence says, settings)
BROKEN = {
    # types
    "float64 inputs": (mine(of(X.double(), Y)), ["Mine.loss", "float64", "x.float()"]),
    "float64 model": (mine(net=lambda: nn.Linear(4, 3).double()), ["Mine.loss", "weights are float64", ".double()"]),
    "integer inputs": (mine(of(IDS, Y)), ["Mine.loss", "x.float()"]),
    "int32 classes": (mine(of(X, Y.int())), ["Mine.loss", "y.long()", "int32 [8]"]),
    "float classes": (mine(of(X, Y.float())), ["Mine.loss", "y.long()"]),
    "integer targets of a regression": (
        mine(of(X, Y), FLAT, loss=fit(F.binary_cross_entropy_with_logits)),
        ["Mine.loss", "y.float()"],
    ),
    "a class too many": (mine(of(X, Y + 1)), ["Mine.loss", "class 3", "at least 4"]),
    "classes from -1": (mine(of(X, Y - 1)), ["Mine.loss", "class -1", "from 0"]),
    "an index beyond the table": (
        mine(of(IDS + 3, Y), lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3))),
        ["Mine.loss", "num_embeddings"],
    ),
    "string labels": (mine(Rows([(x, "cat") for x in X])), ["Mine.loss", "texts", "classes.index(label)"]),
    # shapes
    "wrong width": (mine(net=lambda: nn.Linear(5, 3)), ["Mine.loss", "takes 5 features and was given 4"]),
    "wrong channels": (
        mine(
            of(torch.zeros(24, 8, 8, 3), Y),
            lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(3)),
        ),
        ["Mine.loss", "takes 3 channels and was given 8", "[samples, channels, height, width]"],
    ),
    "[n] against [n, 1]": (
        mine(of(X, X[:, 0]), lambda: nn.Linear(4, 1), loss=fit(F.mse_loss)),
        ["Mine.loss", "[8, 1]", "[8]", "squeeze(1)"],
    ),
    "outputs of another number": (
        mine(net=lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.Flatten(0, 1))),
        ["Mine.loss", "16 outputs and 8 targets"],
    ),
    "widths that do not meet": (mine(of(X, X), loss=fit(lambda o, y: (o - y).abs().mean())), ["Mine.loss", "(3 and 4)"]),
    "one-hot columns": (
        mine(of(X, F.one_hot(Y, 3)), loss=fit(F.cross_entropy)),
        ["Mine.loss", "int64 [8, 3]"],
    ),
    "ragged samples": (mine(Rows([(torch.ones(1 + i % 3), 1) for i in range(24)])), ["[1]", "collate(samples)", "pad"]),
    "objects as samples": (mine(Rows([(x, object()) for x in X])), ["object", "collate(samples)"]),
    # batches and outputs
    "a model of two outputs": (mine(net=Pair), ["Mine.loss", "tuple", "outputs[0]"]),
    "two outputs into the default predict": (
        mine(
            net=Pair,
            loss=lambda self, model, batch: F.cross_entropy(model(batch[0])[0], batch[1]),
            test_dataset=lambda self, cfg: of(X, Y),
        ),
        ["predict", "tuple", "predict(self, model, batch)"],
    ),
    "dicts without predict": (
        mine(
            of_dicts(),
            loss=lambda self, model, batch: F.cross_entropy(model(batch["x"]), batch["label"]),
            metrics=lambda self, outputs, batch: {"n": (len(outputs), 1)},
        ),
        ["Mine.predict", "predict(self, model, batch)", "'x'"],
    ),
    "dicts without predict, and test data": (
        mine(
            of_dicts(),
            loss=lambda self, model, batch: F.cross_entropy(model(batch["x"]), batch["label"]),
            test_dataset=lambda self, cfg: of_dicts(),
        ),
        ["Mine.predict", "predict(self, model, batch)", "'x'"],
    ),
    # the loss
    "no gradient": (mine(loss=lambda s, m, b: F.cross_entropy(m(b[0]), b[1]).detach()), ["Mine.loss", "detach"]),
    "a number": (mine(loss=lambda s, m, b: F.cross_entropy(m(b[0]), b[1]).item()), ["Mine.loss", "float", "scalar"]),
    "nothing": (mine(loss=lambda s, m, b: None), ["Mine.loss", "NoneType"]),
    "one loss a sample": (
        mine(loss=lambda s, m, b: F.cross_entropy(m(b[0]), b[1], reduction="none")),
        ["Mine.loss", "shape [8]"],
    ),
    "loss and outputs": (
        mine(loss=lambda s, m, b: (F.cross_entropy(m(b[0]), b[1]), m(b[0]))),
        ["Mine.loss", "[8, 3]", "sk.Loss(loss, outputs="],
    ),
    "a log named loss": (
        mine(loss=lambda s, m, b: Loss(F.cross_entropy(m(b[0]), b[1]), logs={"loss": (1, 1)})),
        ["Mine.loss", "'loss'"],
    ),
    "a missing key": (mine(loss=wrong_key), ["Mine.loss", "KeyError", "'labels'", "test_contract.py, line", '["labels"]']),
    "the task's own error": (mine(loss=own_words), ["Mine.loss", "ValueError", "the palette has no green"]),
    "changed in place": (mine(loss=in_place), ["Mine.loss", "in place"]),
    "another batch": (mine(loss=lambda s, m, b: F.cross_entropy(m(b["x"]), b["y"])), ["Mine.loss", "TypeError"]),
    # metrics
    "metrics as numbers": (mine(metrics=lambda s, o, b: {"acc": 0.5}), ["Mine.metrics", "'acc'", "float"]),
    "metrics as a tensor": (mine(metrics=lambda s, o, b: o.mean()), ["Mine.metrics", "Tensor", "(sum, count)"]),
    "a metric of each sample": (
        mine(metrics=lambda s, o, b: {"acc": (o.argmax(1) == b[1], 8)}),
        ["Mine.metrics", "'acc'", "shape [8]", ".sum()"],
    ),
    "metrics that break": (mine(metrics=lambda s, o, b: {"acc": o.nope}), ["Mine.metrics", "nope"]),
    "a metric named loss": (
        mine(metrics=lambda s, o, b: {"loss": (o.sum(), len(o))}),
        ["Mine.metrics", "'loss'", "another name"],
    ),
    # models
    "a meta model": (mine(net=lambda: nn.Linear(4, 3, device="meta")), ["Mine.", "meta", "weights"]),
    "no module": (mine(net=lambda: (lambda x: x)), ["Mine.model", "function", "Module"]),
    "nothing to train": (mine(net=lambda: nn.Linear(4, 3).requires_grad_(False)), ["weights"]),
    "one sample is left over": (
        mine(SHORT, NORMED),
        ["Mine.model", "batch norm (1)", "17 samples", "drop_last"],
    ),
    "a batch of one": (mine(net=NORMED), ["Mine.model", "batch norm", "micro_batch_size"], "data.batch_size=1"),
    # optimizer and scheduler
    "LBFGS": (mine(optimizer=lambda s, m, c: torch.optim.LBFGS(m.parameters())), ["Mine.optimizer", "LBFGS", "closure"]),
    "two optimizers": (mine(optimizer=two), ["Mine.optimizer", "2 objects", "groups"]),
    "no optimizer": (mine(optimizer=lambda s, m, c: 0.1), ["Mine.optimizer", "float"]),
    "another model's optimizer": (mine(optimizer=stranger), ["Mine.optimizer", "none of the model's parameters"]),
    "sparse gradients": (mine(of(IDS, Y), BAG), ["sparse=False"], "optimizer.name=adamw"),
    "sparse gradients, own AdamW": (mine(of(IDS, Y), BAG, optimizer=adamw), ["AdamW", "sparse=False"]),
    "a scheduler without its arguments": (
        mine(scheduler=lambda self, optimizer: None),
        ["Mine.scheduler", "(self, optimizer, cfg, total_steps)"],
    ),
    "an optimizer without its arguments": (
        mine(optimizer=lambda self, model: None),
        ["Mine.optimizer", "(self, model, cfg)"],
    ),
    "a scheduler that breaks": (
        mine(scheduler=lambda s, o, c, t: torch.optim.lr_scheduler.LambdaLR(o, [len, len, len])),
        ["Mine.scheduler", "ValueError"],
    ),
    # data
    "a table": (mine(Table()), ["Mine.datasets", "Table", "to_numpy"]),
    "a loader": (mine(DataLoader(of(X, Y), 4)), ["Mine.datasets", "loader.dataset"]),
    "a mapping": (mine({"x": X, "y": Y}), ["Mine.datasets", "'x', 'y'", "TensorDataset"]),
    "arrays of unequal length": (mine((X.numpy(), Y.numpy()[:5])), ["Mine.datasets", "[24, 5]"]),
    "arrays of texts": (mine((X.numpy(), np.array(["a"] * 24))), ["Mine.datasets", "numpy.unique"]),
    "one data set": (mine(datasets=lambda self, cfg: of(X, Y)), ["Mine.datasets", "(train, valid)"]),
    "no samples": (mine(of(X[:0], Y[:0])), ["no samples"]),
    "NaN": (mine(of(X / 0, Y)), ["allow_nan"]),
}


class Extra(nn.Linear):
    "A layer with something in its state that is no tensor."

    def get_extra_state(self):
        return {"classes": ["a", "b"], "seen": 3}

    def set_extra_state(self, state):
        assert state["seen"] == 3


class Complex(nn.Linear):
    "A layer with a complex buffer."

    def __init__(self, width, out):
        super().__init__(width, out)
        self.register_buffer("phase", torch.full((2,), 1 + 2j, dtype=torch.complex128))


@pytest.mark.parametrize("name", BROKEN)
def test_what_would_fail_is_told_with_the_method_and_the_mend(train, name):  # noqa: F811
    task, words, *settings = BROKEN[name]
    with pytest.raises(RequestError) as caught:
        train(task, *QUICK, *settings)
    text = str(caught.value)
    print(text)
    assert [word for word in words if word not in text] == [], text
    assert "Traceback" not in text and "Error(s) in" not in text and "site-packages" not in text and "\n" not in text
