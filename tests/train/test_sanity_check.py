"What would fail, or mislead, is told in one sentence before the first step; and the sanity check leaves no trace."

import itertools
import os
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

import spectrakit as sk
from exact_tasks import CountedScaler, scaled
from helpers import TESTS, why_failed
from in_process import vector
from spectrakit.api.run import Run
from spectrakit.checkpoint import async_writer
from spectrakit.checkpoint.store import find_checkpoint, load_weights, verify
from spectrakit.config.compose import compose
from spectrakit.distributed.context import RunContext
from spectrakit.runs.events import last_event
from spectrakit.system.errors import RequestError
from spectrakit.task.loss import Loss
from spectrakit.task.task import Task
from spectrakit.train.start import sanity_check, setup
from spectrakit.train.start.sanity_check import check_exchange

DRAW = torch.Generator().manual_seed(11)
X, Y = torch.randn(24, 4, generator=DRAW), torch.randint(0, 3, (24,), generator=DRAW)
QUICK = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "data.batch_size=8",
    "trainer.max_epochs=1",
)


class Mine(Task):
    "Three classes from four numbers. What is wrong is given as keywords: data, net, loss and other methods."

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


class Roots(nn.Module):
    def forward(self, x):
        return x.sqrt()


class Rows:
    "A data set of the samples in a list."

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class TooLong(Rows):
    def __len__(self):
        return len(self.rows) + 1


def of_dicts():
    return Rows([{"x": x, "label": y} for x, y in zip(X, Y, strict=True)])


def wrong_key(self, model, batch):
    return F.cross_entropy(model(batch[0]), {"y": batch[1]}["labels"])


def own_words(self, model, batch):
    raise ValueError("the palette has no green")


def goes_back(self, model, batch):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    return loss


def in_place(self, model, batch):
    out = model(batch[0]).exp()
    out += 1
    return out.mul(out).mean() + out.add_(1).mean()


class Forgetful(torch.optim.SGD):
    "Cannot load what it has saved."

    def load_state_dict(self, state_dict):
        self.rates = state_dict["rates"]


class OneWay(nn.Linear):
    "Has a state beside its tensors, and nothing that takes it back."

    def get_extra_state(self):
        return {"calls": 3}


def stranger(self, model, cfg):
    "An optimizer over another model, as after a deepcopy."
    return torch.optim.SGD(nn.Linear(4, 3).parameters(), lr=0.1)


def adamw(self, model, cfg):
    return torch.optim.AdamW(model.parameters())


def two(self, model, cfg):
    return [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())]


def less(self, samples):
    return default_collate(samples[:-1])


def sparse_net():
    return nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten(), nn.Linear(12, 3))


def normed_net():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def flat_net():
    return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))


IDS = torch.randint(0, 5, (24, 4), generator=DRAW)
SHORT = of(X[:17], Y[:17])
MANY = TensorDataset(X.repeat(17, 1)[:401], Y.repeat(17)[:401])  # one more than fifty batches

# name: (the task, what the sentence says, settings)
BROKEN = {
    # types
    "float64 inputs": (mine(of(X.double(), Y)), ["Mine.loss", "float64", "x.float()"]),
    "float64 model": (mine(net=lambda: nn.Linear(4, 3).double()), ["Mine.loss", "weights are float64", ".double()"]),
    "integer inputs": (mine(of(IDS, Y)), ["Mine.loss", "x.float()"]),
    "int32 classes": (mine(of(X, Y.int())), ["Mine.loss", "y.long()", "int32 [8]"]),
    "float classes": (mine(of(X, Y.float())), ["Mine.loss", "y.long()"]),
    "integer targets of a regression": (
        mine(of(X, Y), flat_net, loss=fit(F.binary_cross_entropy_with_logits)),
        ["Mine.loss", "y.float()"],
    ),
    "a class too many": (mine(of(X, Y + 1)), ["Mine.loss", "class 3", "at least 4"]),
    "classes from -1": (mine(of(X, Y - 1)), ["Mine.loss", "class -1", "from 0"]),
    "an index beyond the table": (
        mine(of(IDS + 3, Y), lambda: nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(12, 3))),
        ["Mine.loss", "num_embeddings"],
    ),
    "a list of features": (
        mine(Rows([([float(v) for v in x], y) for x, y in zip(X, Y, strict=True)])),
        ["Mine.loss", "a list instead of a tensor", "numpy.asarray"],
    ),
    "string labels": (mine(Rows([(x, "cat") for x in X])), ["Mine.loss", "texts", "classes.index(label)"]),
    "one sample of a text": (mine(Rows([("a text", y) for y in Y])), ["Mine.loss", "texts"]),
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
    "widths that do not meet": (
        mine(of(X, X), loss=fit(lambda o, y: (o - y).abs().mean())),
        ["Mine.loss", "(3 and 4)"],
    ),
    "one-hot columns": (
        mine(of(X, F.one_hot(Y, 3)), loss=fit(F.cross_entropy)),
        ["Mine.loss", "int64 [8, 3]", "y.float()"],
    ),
    "a column of classes": (mine(of(X, Y[:, None])), ["Mine.loss", "int64 [8, 1]", "y.squeeze(1)"]),
    "ragged samples": (mine(Rows([(torch.ones(1 + i % 3), 1) for i in range(24)])), ["[1]", "collate(samples)", "pad"]),
    "a collate without return": (
        mine(Rows(list(zip(X, Y, strict=True))), collate=lambda self, samples: None),
        ["Mine.collate returned None", "`return`"],
    ),
    "samples of None": (mine(Rows([None] * 24)), ["Mine.datasets", "__getitem__", "`return`"]),
    "a collate that leaves out a sample where each needs an output": (
        mine(Rows(list(zip(X, Y, strict=True))), collate=less, metrics_all=lambda s, p, t: {"auc": 0.5}),
        ["Mine.collate made a batch of 7 from 8 samples", "Each sample needs one"],
    ),
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
    "names before the inputs": (
        mine(test_dataset=lambda self, cfg: Rows([(f"star {i}", x) for i, x in enumerate(X)])),
        ["Mine.predict", "the samples' names (the batch: texts, float32 [8, 4])", "return model(batch[1])"],
    ),
    "numbers of the samples before the inputs": (
        mine(test_dataset=lambda self, cfg: Rows(list(enumerate(X)))),
        ["Mine.predict", "int64 [8], float32 [8, 4]", "return model(batch[1])"],
    ),
    # the loss
    "no gradient": (mine(loss=lambda s, m, b: F.cross_entropy(m(b[0]), b[1]).detach()), ["Mine.loss", "detach"]),
    "a number": (mine(loss=lambda s, m, b: F.cross_entropy(m(b[0]), b[1]).item()), ["Mine.loss", "float", "scalar"]),
    "nothing": (mine(loss=lambda s, m, b: None), ["Mine.loss", "NoneType"]),
    "a complex loss": (
        mine(loss=lambda s, m, b: F.cross_entropy(m(b[0]), b[1]).to(torch.complex64)),
        ["Mine.loss", "complex64", ".real"],
    ),
    "a complex weight": (
        mine(loss=lambda s, m, b: (F.cross_entropy(m(b[0]), b[1]), torch.tensor(1j))),
        ["Mine.loss", "complex64", "the weight has to be a number"],
    ),
    "a complex log": (
        mine(loss=lambda s, m, b: Loss(F.cross_entropy(m(b[0]), b[1]), logs={"phase": (1j, 1)})),
        ["Mine.loss", "'phase'", "complex"],
    ),
    "a loss of NaN at once": (
        mine(loss=lambda s, m, b: (m(b[0]) * 0).log().mean() - (m(b[0]) * 0).log().mean()),
        ["Mine.loss is nan", "before any step", "comes from `loss`", "a log"],
    ),
    "a layer that makes NaN": (
        mine(net=lambda: nn.Sequential(nn.Linear(4, 3), Roots())),
        ["Mine.loss is nan", "The layer 1 (Roots)"],
    ),
    "gradients of NaN": (
        mine(loss=lambda s, m, b: (m(b[0]) * 0).abs().sqrt().sum()),
        ["Mine.loss is finite", "the gradients of weight and 1 more", "1e-8"],
    ),
    "a loss that goes back by itself": (
        mine(loss=goes_back),
        ["Mine.loss has called backward()"],
    ),
    "a number of NumPy": (
        mine(loss=lambda s, m, b: np.float32(0.5)),
        ["Mine.loss", "a NumPy array of shape []"],
    ),
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
    "a missing key": (
        mine(loss=wrong_key),
        ["Mine.loss", "KeyError", "'labels'", "test_sanity_check.py, line", '["labels"]'],
    ),
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
    "a complex metric": (
        mine(metrics=lambda s, o, b: {"acc": (o.sum().to(torch.complex64), len(o))}),
        ["Mine.metrics", "'acc'", "complex64", "real numbers"],
    ),
    "a metric named val_loss": (
        mine(metrics=lambda s, o, b: {"val_loss": (o.sum(), len(o))}),
        ["Mine.metrics", "Rename it"],
    ),
    "metrics_all named loss": (
        mine(metrics_all=lambda s, predictions, targets: {"loss": 0.5}),
        ["Mine.metrics_all", "'loss'", "Rename it"],
    ),
    "metrics_all of arrays": (
        mine(metrics_all=lambda s, p, t: {"auc": [0.5, 1]}),
        ["Mine.metrics_all", "'auc'", "list"],
    ),
    "metrics_all that takes no mapping": (
        mine(predict=lambda s, m, b: {"odds": m(b[0])}, metrics_all=lambda s, p, t: {"auc": p.argmax(1).sum()}),
        ["Mine.metrics_all", "the mapping ['odds']", "predictions['odds']"],
    ),
    "metrics that break": (mine(metrics=lambda s, o, b: {"acc": o.nope}), ["Mine.metrics", "nope"]),
    "a metric named loss": (
        mine(metrics=lambda s, o, b: {"loss": (o.sum(), len(o))}),
        ["Mine.metrics", "'loss'", "Rename it"],
    ),
    "a negative count": (mine(metrics=lambda s, o, b: {"acc": (o.sum(), -8)}), ["Mine.metrics", "'acc'", "count -8"]),
    "fewer outputs than samples": (
        mine(metrics_all=lambda s, p, t: {"auc": 0.5}, predict=lambda s, m, b: m(b[0])[:3]),
        ["Mine.predict", "[3, 3]", "8 samples"],
    ),
    "one output for all samples": (
        mine(metrics_all=lambda s, p, t: {"auc": 0.5}, predict=lambda s, m, b: m(b[0]).mean()),
        ["Mine.predict", "a single Tensor", "8 samples"],
    ),
    "outputs without a sigmoid": (
        mine(of(X, Y.clamp(0, 1).float()), flat_net, loss=fit(F.binary_cross_entropy)),
        ["Mine.loss", "binary_cross_entropy_with_logits"],
    ),
    # methods that nobody calls
    "a method misspelt": (mine(optimiser=adamw), ["`optimiser`", "`optimizer`", "(self, model, cfg)"]),
    "a method of Lightning": (mine(collate_fn=lambda self, samples: None), ["`collate_fn`", "`collate`"]),
    # models
    "a meta model": (mine(net=lambda: nn.Linear(4, 3, device="meta")), ["Mine.", "meta", "weights"]),
    "no module": (mine(net=lambda: lambda x: x), ["Mine.model", "function", "Module"]),
    "nothing to train": (
        mine(net=lambda: nn.Linear(4, 3).requires_grad_(False)),
        ["Mine.model", "no trainable parameter"],
    ),
    "a model in half precision": (mine(net=lambda: nn.Linear(4, 3).half()), ["weights are float16", ".half()"]),
    "one sample is left over": (
        mine(SHORT, normed_net),
        ["Mine.loss", "batch norm", "batch of 1 sample", "drop_last"],
    ),
    "one sample is left over, and squeezed": (
        mine(SHORT, loss=lambda s, m, b: F.cross_entropy(m(b[0]).squeeze(), b[1])),
        ["Mine.loss", "size mismatch", "batch of 1 sample, the size of an epoch"],
    ),
    "three samples are left over, in a batch of fixed size": (
        mine(of(X[:19], Y[:19]), loss=lambda s, m, b: F.cross_entropy(m(b[0].reshape(8, 4)), b[1])),
        ["Mine.loss", "batch of 3 samples, the size of an epoch"],
    ),
    "one sample is left over, and has no deviation": (
        mine(SHORT, loss=lambda s, m, b: -m(b[0]).var(0, correction=0).log().mean()),
        ["Mine.loss is inf for a training batch of 1 sample", "17 samples", "data.drop_last=true"],
    ),
    "one validation sample is left over": (
        mine(
            datasets=lambda s, c: (of(X, Y), MANY),
            metrics=lambda s, o, b: {"hits": (len(o.squeeze()), 1)},
            predict=lambda s, m, b: m(b[0])[:, 0].squeeze(),
        ),
        ["Mine.metrics", "0-d tensor", "validation batch of 1 sample, the size of the last one"],
    ),
    "five validation samples are left over, in a batch of fixed size": (
        mine(
            datasets=lambda s, c: (of(X, Y), of(*(part[:397] for part in MANY.tensors))),
            loss=lambda s, m, b: F.cross_entropy(m(b[0]).reshape(8, 3), b[1]),
        ),
        ["Mine.loss", "validation batch of 5 samples, the size of the last one"],
    ),
    "one test sample is left over": (
        mine(
            net=flat_net,
            loss=fit(lambda p, y: F.mse_loss(p, y.float())),
            test_dataset=lambda s, c: MANY,
            predict=lambda s, m, b: m(b[0]).squeeze(),
        ),
        ["Mine.predict gave a single Tensor"],
    ),
    "a batch of one": (mine(net=normed_net), ["Mine.loss", "batch norm", "micro_batch_size"], "data.batch_size=1"),
    # optimizer and scheduler
    "LBFGS": (
        mine(optimizer=lambda s, m, c: torch.optim.LBFGS(m.parameters())),
        ["Mine.optimizer", "LBFGS", "closure"],
    ),
    "two optimizers": (mine(optimizer=two), ["Mine.optimizer", "2 optimizers in a list", "groups"]),
    "one optimizer in a list": (
        mine(optimizer=lambda s, m, c: [adamw(s, m, c)]),
        ["Mine.optimizer", "Return the AdamW alone."],
    ),
    "an optimizer and a scheduler, as for Lightning": (
        mine(optimizer=lambda s, m, c: {"optimizer": adamw(s, m, c), "lr_scheduler": None}),
        ["Mine.optimizer", "Return the AdamW alone", "`scheduler`"],
    ),
    "no optimizer": (mine(optimizer=lambda s, m, c: 0.1), ["Mine.optimizer", "float"]),
    "another model's optimizer": (
        mine(optimizer=stranger),
        ["Mine.optimizer", "without any of the model's parameters"],
    ),
    "an optimizer that cannot be resumed": (
        mine(optimizer=lambda s, m, c: Forgetful(m.parameters())),
        ["Mine.optimizer cannot load what it has saved", "KeyError: 'rates'"],
    ),
    "a model that cannot be loaded": (
        mine(net=lambda: OneWay(4, 3)),
        ["Mine.model cannot load what it has saved", "set_extra_state"],
    ),
    "sparse gradients": (mine(of(IDS, Y), sparse_net), ["sparse=False"], "optimizer.name=adamw"),
    "sparse gradients, own AdamW": (mine(of(IDS, Y), sparse_net, optimizer=adamw), ["AdamW", "sparse=False"]),
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
    "a scheduler in a list": (mine(scheduler=lambda s, o, c, t: [o]), ["Mine.scheduler", "list", "SequentialLR"]),
    "a scheduler of another optimizer": (
        mine(scheduler=lambda s, o, c, t: torch.optim.lr_scheduler.StepLR(adamw(s, nn.Linear(4, 3), c), 2)),
        ["Mine.scheduler", "StepLR", "another optimizer"],
    ),
    "a scheduler that ends too early": (
        mine(scheduler=lambda s, o, c, t: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=t - 1)),
        ["Mine.scheduler", "2 steps", "has 3", "total_steps=total_steps"],
    ),
    "a cycle of steps that is moved by epochs": (
        mine(scheduler=lambda s, o, c, t: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=t)),
        ["Mine.scheduler", "OneCycleLR of 3 steps", "for each of 1 epochs"],
        "scheduler.interval=epoch",
    ),
    "a cycle with too few epochs": (
        mine(scheduler=lambda s, o, c, t: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=2)),
        ["Mine.scheduler", "OneCycleLR of 2 steps", "for each of 3 epochs"],
        "scheduler.interval=epoch",
        "trainer.max_epochs=3",
    ),
    "one beta": (mine(), ["optimizer.betas=[0.9]", "two numbers"], "optimizer.betas=[0.9]"),
    # data
    "inputs and targets in place of two data sets": (
        mine(datasets=lambda self, cfg: (X.numpy(), Y.numpy())),
        ["Mine.datasets", "[24, 4] and [24]", "(X_train, y_train)"],
    ),
    "sparse tensors": (mine(of(X.to_sparse(), Y)), ["Mine.datasets", "to_dense()"]),
    "a table": (mine(Table()), ["Mine.datasets", "Table", "to_numpy"]),
    "a loader": (mine(DataLoader(of(X, Y), 4)), ["Mine.datasets", "loader.dataset"]),
    "a mapping": (mine({"x": X, "y": Y}), ["Mine.datasets", "'x', 'y'", "TensorDataset"]),
    "arrays of unequal length": (mine((X.numpy(), Y.numpy()[:5])), ["Mine.datasets", "[24, 5]"]),
    "arrays of texts": (mine((X.numpy(), np.array(["a"] * 24))), ["Mine.datasets", "numpy.unique"]),
    "a length that is too long": (
        mine(TooLong(list(zip(X, Y, strict=True)))),
        ["training data set", "a length of 25", "number 24", "IndexError", "__len__"],
    ),
    "a length that is too long, in a worker": (
        mine(TooLong(list(zip(X, Y, strict=True)))),
        ["training data set", "a length of 25", "number 24", "IndexError", "__len__"],
        "dataloader.num_workers=1",
    ),
    "three data sets": (
        mine(datasets=lambda self, cfg: (of(X, Y),) * 3),
        ["Mine.datasets returned 3 objects", "`test_dataset(cfg)`"],
    ),
    "one data set": (mine(datasets=lambda self, cfg: of(X, Y)), ["Mine.datasets", "(train, valid)"]),
    "no samples": (mine(of(X[:0], Y[:0])), ["no samples"]),
    "NaN": (mine(of(X / 0, Y)), ["not finite", "Clean"]),
    "NaN in validation that the loss does not leave out": (
        mine(datasets=lambda self, cfg: (of(X, Y), of(X / 0, Y))),
        ["The first validation batch", "data.allow_nan=true allows", "Mine.loss is nan", "in `loss`"],
        "data.allow_nan=true",
    ),
}


# no argument of a run, or a setting
REFUSED = (
    "a method misspelt",
    "a method of Lightning",
    "a scheduler without its arguments",
    "an optimizer without its arguments",
    "one beta",
)


@pytest.mark.parametrize("name", BROKEN)
def test_what_would_fail_is_told_with_the_method_and_the_mend(train, name):
    task, words, *settings = BROKEN[name]
    if name in REFUSED:
        with pytest.raises(RequestError) as caught:
            train(task, *QUICK, *settings)
        text = str(caught.value)
    else:
        text = why_failed(train(task, *QUICK, *settings))
    assert [word for word in words if word not in text] == [], text
    assert "Traceback" not in text and "Error(s) in" not in text and "site-packages" not in text and "\n" not in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="only where there is no GPU")
def test_a_model_on_a_gpu_that_is_not_there_is_told(train):
    why_failed(train(mine(net=lambda: nn.Linear(4, 3).cuda()), *QUICK), r"Mine.model.*no GPU.*Leave out .cuda\(\)")


def test_a_late_sample_that_breaks_the_loss_is_told_with_the_mend(train):
    late = torch.where(torch.arange(24) == 23, 7, Y)
    run = train(mine(datasets=lambda self, cfg: (of(X, late), of(X, Y))), *QUICK, "trainer.max_epochs=2")
    assert run.status == "failed"
    assert "Mine.loss failed in training: a target is class 7" in run.reason and "at least 8" in run.reason


def test_what_is_the_tasks_own_stays(train):
    "A helper that the class calls or that stands beside the method it resembles, and a learning rate in a tensor."
    task = mine(
        metric=lambda self, outputs, batch: (outputs.sum(), len(outputs)),
        metrics=lambda self, outputs, batch: {"n": self.metric(outputs, batch)},
        optimizer=lambda self, m, c: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.1)),
    )
    run = train(task, *QUICK)
    assert run.status == "completed", run.reason


def test_arrays_are_wrapped_and_said(train):
    run = train(mine((X.double().numpy(), Y.numpy())), *QUICK)
    assert run.status == "completed", run.reason
    assert any("float32 [24, 4], int64 [24]" in text for text in run.column("message", "text"))


def test_a_metric_has_its_val_once_and_one_of_nan_is_said(train):
    task = mine(
        metrics=lambda self, outputs, batch: {"val_n": (len(outputs), 1), "odd": (float("nan"), 1)},
        metrics_all=lambda self, predictions, targets: {"val_auc": 0.5, "ap": 0.5},
    )
    run = train(task, *QUICK, "checkpoint.monitor=val_auc", "checkpoint.mode=max")
    assert set(last_event(run.events, "eval")["metrics"]) == {"val_loss", "val_n", "val_odd", "val_auc", "val_ap"}
    assert any(text.startswith("val_odd is nan on the first") for text in run.column("message", "text"))


def test_metrics_without_validation_data_are_said_to_be_unused(train):
    task = mine(datasets=lambda self, cfg: (of(X, Y), None), metrics=lambda self, outputs, batch: {"n": (1, 1)})
    run = train(task, *QUICK)
    assert run.status == "completed"
    assert any("Mine.metrics is not used: there are no validation data" in m for m in run.column("message", "text"))


def test_what_only_may_be_wrong_is_said(train):
    "A batch that is smaller than it was asked for, and a scheduler that counts epochs."
    pairs = Rows(list(zip(X, Y, strict=True)))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR
    task = mine(pairs, collate=less, scheduler=lambda s, o, c, t: schedule(o, T_max=c.trainer.max_epochs))
    run = train(task, *QUICK)
    said = " ".join(run.column("message", "text"))
    quiet = mine(loss=lambda self, model, batch: F.cross_entropy(model.eval()(batch[0]), batch[1]))
    assert any(
        "Mine.loss sets the model to eval" in m for m in train(quiet, *QUICK, name="q").column("message", "text")
    )
    beside = mine(
        loss=lambda self, m, b: (F.cross_entropy(m(b[0]), b[1]), (m(b[0]).argmax(1) == b[1]).float().mean() / 2)
    )
    assert any("the weight of 8 samples is 0." in m for m in train(beside, *QUICK, name="w").column("message", "text"))
    assert "Mine.collate made a batch of 7 from 8 samples" in said and "set scheduler.interval=epoch" in said


def test_where_bad_steps_are_left_out_the_first_may_be_bad(train):
    late = mine(loss=lambda s, m, b: (m(b[0]) * 0).sqrt().sum() if m.training else m(b[0]).sum())
    assert train(late, *QUICK, "training.nan_policy=skip").reason.startswith("The loss became nan")


def test_what_ddp_could_not_exchange_is_told_before_it_waits():
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "idle": nn.Linear(4, 3)})
    model.forward = lambda x: model["used"](x)
    tried = SimpleNamespace(name="Mine", model=model, config=compose())
    with pytest.raises(AttributeError, match="DistributedDataParallel.*'items'"):
        sanity_check._as_in_ddp(model).items()
    with pytest.raises(RequestError, match="Mine.loss has not called the `model` it is given"):
        check_exchange(tried, sanity_check._as_in_ddp(model))
    outer = sanity_check._as_in_ddp(model)
    outer(X).sum().backward()
    with pytest.raises(RequestError, match="does not depend on idle.weight and 1 more.*find_unused_parameters=true"):
        check_exchange(tried, outer)
    tried.config = compose("distributed.find_unused_parameters=true")
    check_exchange(tried, outer)


@pytest.mark.slow
def test_a_table_that_cannot_be_handed_in_reaches_the_person(tmp_path, capsys):
    task = mine(submission=lambda self, predictions: {"id": [1, 2], "label": [1]})
    words = ("trainer.accelerator=cpu", "launch.mode=inline", f"run.dir={tmp_path}", *QUICK)
    sk.fit(task, compose(*words), predict=tmp_path / "table.csv", show=False)
    assert "different lengths" in capsys.readouterr().err and not (tmp_path / "table.csv").exists()


# without a trace


class Traces(Mine):
    "Everything that a forward pass and a step change: statistics, random numbers, attributes, averages, a schedule."

    def __init__(self):
        self.losses, self.kept = 0, []

    def model(self, cfg):
        body = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)]
        return nn.Sequential(*body, nn.Linear(16, 3))

    def loss(self, model, batch):
        self.losses += model.training
        self.kept.append(float(torch.rand(())) * np.random.rand())
        return F.cross_entropy(model(batch[0] + 0.01 * torch.randn_like(batch[0])), batch[1]) + self.kept[-1]

    def metrics(self, outputs, batch):
        return {"accuracy": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def scheduler(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps)


def untried(check, *rest):
    "In place of the sanity check: nothing, but for the names of the metrics."
    check.metrics = {"val_loss": 0.0, "val_accuracy": 0.0}


def test_a_run_is_the_same_with_and_without_the_sanity_check(train, monkeypatch):
    words = ("data.batch_size=8", "trainer.max_epochs=3", "data.shuffle=true", "training.ema_decay=0.9")
    tried, plain = Traces(), Traces()
    first = train(tried, *words, name="tried")
    monkeypatch.setattr(setup, "try_contract", untried)
    second = train(plain, *words, name="plain")
    assert first.status == second.status == "completed", first.reason
    for ema in (False, True):
        assert torch.equal(first.weights(ema), second.weights(ema))
    assert tried.losses == plain.losses == 9 and tried.kept == plain.kept
    for name in ("loss", "lr"):
        assert first.column("step", name) == second.column("step", name)
    assert last_event(first.events, "eval")["metrics"] == last_event(second.events, "eval")["metrics"]


def test_a_step_in_fp16_is_tried_with_a_scaler_that_is_not_the_runs(train):
    half = mine(
        net=lambda: nn.Linear(4, 3).half(),
        loss=lambda self, model, batch: model(batch[0].half()).float().square().mean(),
    )
    with pytest.raises(RequestError, match="fp16 takes weights in float32.*mixed_precision=no"):
        train(half, *QUICK, context=scaled(CountedScaler()), name="half")
    scaler = CountedScaler()
    run = train(Mine(), *QUICK, "trainer.gradient_clip_val=0.1", context=scaled(scaler))
    assert run.status == "completed" and scaler.calls == ["scale", "unscale", "step", "update"] * 3


# what torch says on a GPU, word for word
UNSAFE = """torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.
Many models use a sigmoid layer right before the binary cross entropy layer.
In this case, combine the two layers using torch.nn.functional.binary_cross_entropy_with_logits
or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are
safe to autocast."""


def test_a_loss_that_half_precision_does_not_take_is_answered_with_the_one_to_use(train):
    def loss(self, model, batch):
        raise RuntimeError(UNSAFE)

    told = why_failed(
        train(mine(loss=loss), *QUICK), "half precision, and torch refuses it.*_with_logits.*sigmoid in `predict`"
    )
    assert "\n" not in told


BACKWARD = """
import torch
from test_sanity_check import Mine

class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no way back")

class Broken(Mine):
    def loss(self, model, batch):
        return Breaks.apply(super().loss(model, batch))
"""


@pytest.mark.slow
def test_a_sharded_model_is_tried_with_its_backward_pass(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text(BACKWARD)
    folders = [str(TESTS / "training"), str(TESTS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
    words = ("trainer.accelerator=cpu", "trainer.devices=2", "distributed.strategy=fsdp", f"run.dir={tmp_path}")
    why_failed(
        sk.fit(f"{tmp_path / 'broken.py'}:Broken", compose(*QUICK, *words), show=False),
        "raised ValueError: no way back on a training batch",
    )


TWO = """
from test_sanity_check import Traces, untried
from spectrakit.train.start import setup

class Tried(Traces):
    def scheduler(self, optimizer, cfg, total_steps):
        print("made")
        return super().scheduler(optimizer, cfg, total_steps)

class Untried(Tried):
    def datasets(self, cfg):
        setup.try_contract = untried
        return super().datasets(cfg)
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_train_the_same_with_and_without_the_sanity_check(tmp_path, monkeypatch, strategy):
    (tmp_path / "two.py").write_text(TWO)
    folders = [str(TESTS / "training"), str(TESTS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
    words = ("trainer.accelerator=cpu", "trainer.devices=2", "data.batch_size=4", "trainer.max_epochs=1")
    words, found = (*words, f"distributed.strategy={strategy}"), []
    for name in ("Tried", "Untried"):
        run = sk.fit(f"{tmp_path / 'two.py'}:{name}", compose(*words, f"run.dir={tmp_path / name}"), show=False)
        run.raise_for_status()
        found.append(vector(load_weights(find_checkpoint(run.path / "checkpoints")[0])))
    assert torch.equal(*found)


# a run has a model at its end


class Extra(nn.Linear):
    "A layer with something in its state that is no tensor."

    def get_extra_state(self):
        return {"classes": ["a", "b"], "seen": 3}

    def set_extra_state(self, state):
        assert state == {"classes": ["a", "b"], "seen": 3}


class Complex(nn.Linear):
    "A layer with a complex buffer."

    def __init__(self, width, out):
        super().__init__(width, out)
        self.register_buffer("phase", torch.full((2,), 1 + 2j, dtype=torch.complex128))


class Rates(Mine):
    "NumPy numbers where people have them: in the optimizer's rate and in what a scheduler's function returns."

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=np.float64(0.1), momentum=np.float64(0.9))

    def scheduler(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.float64(1) / (1 + step))


RESUMED = {
    "extra state": lambda: mine(net=lambda: Extra(4, 3)),
    "complex128": lambda: mine(net=lambda: Complex(4, 3)),
    "rates of NumPy": Rates,
}


@pytest.mark.parametrize("name", RESUMED)
def test_what_is_odd_in_a_state_is_saved_and_goes_on_bit_for_bit(train, name):
    words = ("data.batch_size=8", "trainer.max_epochs=4")
    whole = train(RESUMED[name](), *words, name="whole")
    steps = itertools.count()
    cut = train(RESUMED[name](), *words, "checkpoint.every_n_steps=1", name="cut", stop=lambda: next(steps) > 2)
    assert whole.status == "completed" and 0 < cut.events[-1]["step"] < 12, (whole.reason, cut.reason)
    rest = train(RESUMED[name](), *words, name="cut", resume=True)
    assert rest.status == "completed", rest.reason
    path, notes = find_checkpoint(rest.folder / "checkpoints")
    assert verify(path) == [] and not notes
    ends = [load_weights(find_checkpoint(run.folder / "checkpoints")[0]) for run in (whole, rest)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0] if torch.is_tensor(ends[0][key]))


def small_disk(monkeypatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sanity_check, "shutil", SimpleNamespace(disk_usage=lambda folder: usage(2**30, 0, free)))


def test_a_disk_without_room_is_told_before_the_first_step(train, monkeypatch):
    small_disk(monkeypatch, 2**19)
    with pytest.raises(RequestError, match=r"No model .* could be saved: .* 0.5 MiB left.*run.dir"):
        train(Mine(), *QUICK)
    assert train(Mine(), *QUICK, "checkpoint.enabled=false").status == "completed"


def test_where_only_the_weights_have_room_they_alone_are_saved_and_that_is_said(train, monkeypatch):
    small_disk(monkeypatch, 2**20 + 2000)
    run = train(Mine(), *QUICK)
    assert run.status == "completed" and run.weights().numel() == 15
    assert any("only weights are saved" in text for text in run.column("message", "text"))


@pytest.mark.parametrize(
    ("words", "valid", "at_once"),
    [
        ([], True, 4),  # two periodic ones, the best one, and the one that is being written
        ([], False, 3),
        (["checkpoint.keep_last=5"], True, 7),
        (["training.average=last:6"], True, 8),
        (["training.average=best:5"], True, 8),
        (["training.average=best:5", "checkpoint.max_bytes=3MB"], True, 3),
        (["training.average=best:5", "checkpoint.max_bytes=6MB"], True, 5),
    ],
)
def test_all_checkpoints_that_a_run_holds_at_a_time_are_compared_with_the_disk(monkeypatch, words, valid, at_once):
    told: list[str] = []
    execution = SimpleNamespace(run_dir="runs")
    content = sanity_check.CheckpointContent({"w": torch.zeros(100)}, {}, [])
    for room in (at_once - 1, at_once):
        scene = SimpleNamespace(
            execution=execution, config=compose(*words), valid=valid or None, weights_only=False, note=told.append
        )
        small_disk(monkeypatch, int(2**20 + 1.051 * room * 2**20))
        assert sanity_check.check_room(scene, 2**20, content) == "1.0 MiB"
    assert len(told) == 1 and f"room for {at_once - 1} at a time, and up to {at_once} are kept" in told[0], told


def test_a_run_that_leaves_no_checkpoint_has_failed(train, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(async_writer, "save_checkpoint", full)
    run = train(Mine(), *QUICK)
    assert run.status == "failed" and "no checkpoint" in run.reason and "No space left" in run.reason
    with pytest.raises(RuntimeError, match="no checkpoint"):
        Run(run.folder).raise_for_status()


def test_a_run_without_a_checkpoint_has_failed_on_all_ranks(train, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    sent: list = []

    def broadcast(context, value):
        ends = isinstance(value, tuple) and value[0] in ("completed", "failed")
        sent.extend([value] * ends)
        return ("failed", "rank 0 has no room") if ends and value[0] == "completed" else value

    monkeypatch.setattr(RunContext, "broadcast", broadcast)
    assert train(mine(), *QUICK, name="other").reason == "rank 0 has no room"  # what another rank would hear
    monkeypatch.setattr(async_writer, "save_checkpoint", full)
    run = train(mine(), *QUICK)
    assert (run.status, run.reason) == sent[-1] and "No space left" in run.reason
