"""Five small data sets of scikit-learn, trained by hand in plain PyTorch and as a `Task`: the same weights and metrics.

Each pair of functions, `NAME_by_hand` and `NAME`, has the data, the model and the order of the samples from the same
lines above it. What stands in a pair is what a person types, and the last test counts it, the settings included:

| data | what a competition would want of it | by hand | spectrakit |
|---|---|---|---|
| digits | ten classes, cosine schedule, clipped gradients, accuracy | 27 | 19 |
| wine | weighted classes, two micro batches in a step, macro F1 | 26 | 21 |
| breast_cancer | the averaged weights (EMA), AUC of all samples, early stopping | 33 | 23 |
| diabetes | float64, warm-up and linear schedule, decay on matrices alone, MAE | 32 | 20 |
| linnerud | three targets of which some are missing, two rates | 23 | 18 |

By hand there is then the best model in memory. A run has it on disk as well, verified, with the settings, the log and
the curves, and can be interrupted and resumed: none of that is counted.
"""

import copy
import inspect
import json
import math
import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the extra `demo` is not installed")

import torch
from sklearn import datasets
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.data.sample_order import epoch_order

pytestmark = pytest.mark.slow  # every test here trains a run

HERE = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "launch.mode=inline",
    "trainer.accelerator=cpu",
    "distributed.mixed_precision=no",
)


def net(inputs: int, outputs: int, dtype=torch.float32) -> nn.Sequential:
    "The model of all five."
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs)).to(dtype)


def split(name: str, held_out: int, target=torch.float32, dtype=torch.float32) -> tuple[TensorDataset, TensorDataset]:
    "(train, valid) of a data set of scikit-learn: inputs [samples, features], standardised, and targets as they are."
    table = getattr(datasets, f"load_{name}")()
    order = torch.randperm(len(table.data), generator=torch.Generator().manual_seed(5))
    x, y = torch.tensor(table.data, dtype=torch.float64)[order], torch.tensor(table.target, dtype=target)[order]
    known = x[held_out:]
    x = ((x - known.mean(0)) / known.std(0).clamp(min=1e-6)).to(dtype)
    return TensorDataset(x[held_out:], y[held_out:]), TensorDataset(x[:held_out], y[:held_out])


def digits_by_hand():
    train, valid = split("digits", 400, target=torch.int64)
    torch.manual_seed(0)
    model = net(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = 4 * math.ceil(len(train) / 64)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best, weights, metrics = math.inf, {}, {}
    for epoch in range(4):
        model.train()
        for rows in epoch_order(len(train), seed=0, epoch=epoch).split(64):
            x, y = train[rows]
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            x, y = valid.tensors
            outputs = model(x)
            loss = F.cross_entropy(outputs, y).item()
            accuracy = (outputs.argmax(1) == y).float().mean().item()
        if loss < best:
            best, metrics = loss, {"val_loss": loss, "val_accuracy": accuracy}
            weights = copy.deepcopy(model.state_dict())
    return weights, metrics


def digits(*where):
    class Digits(sk.Task):
        def datasets(self, cfg):
            return split("digits", 400, target=torch.int64)

        def model(self, cfg):
            return net(64, 10)

        def loss(self, model, batch):
            return F.cross_entropy(model(batch[0]), batch[1])

        def metrics(self, outputs, batch):
            return {"accuracy": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}

    cfg = sk.compose(
        "data.batch_size=64",
        "optimizer.name=adam",
        "optimizer.lr=0.01",
        "optimizer.weight_decay=0",
        "trainer.gradient_clip_val=1.0",
        "trainer.max_epochs=4",
        *where,
    )
    return sk.fit(Digits(), cfg, show=False)


def wine_by_hand():
    train, valid = split("wine", 50, target=torch.int64)
    share = torch.tensor([1.0, 0.5, 2.0])
    torch.manual_seed(0)
    model = net(13, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    best, weights, metrics = math.inf, {}, {}
    for epoch in range(6):
        model.train()
        for window in epoch_order(len(train), seed=0, epoch=epoch).split(24):
            whole = share[train[window][1]].sum()
            optimizer.zero_grad()
            for rows in window.split(12):
                x, y = train[rows]
                loss = F.cross_entropy(model(x), y, weight=share, reduction="sum") / whole
                loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            x, y = valid.tensors
            outputs = model(x)
            loss = F.cross_entropy(outputs, y, weight=share).item()
            f1 = f1_score(y, outputs.argmax(1), average="macro")
        if loss < best:
            best, metrics = loss, {"val_loss": loss, "val_f1": f1}
            weights = copy.deepcopy(model.state_dict())
    return weights, metrics


def wine(*where):
    class Wine(sk.Task):
        def datasets(self, cfg):
            return split("wine", 50, target=torch.int64)

        def model(self, cfg):
            return net(13, 3)

        def loss(self, model, batch):
            share = torch.tensor([1.0, 0.5, 2.0])
            return sk.weighted_mean(nn.CrossEntropyLoss(share), model(batch[0]), batch[1])

        def metrics_all(self, outputs, targets):
            return {"f1": f1_score(targets, outputs.argmax(1), average="macro")}

    cfg = sk.compose(
        "data.batch_size=12",
        "accumulate_grad_batches=2",
        "optimizer.name=sgd",
        "optimizer.lr=0.05",
        "optimizer.weight_decay=0",
        "scheduler.name=constant",
        "trainer.max_epochs=6",
        *where,
    )
    return sk.fit(Wine(), cfg, show=False)


def breast_cancer_by_hand():
    train, valid = split("breast_cancer", 150)
    torch.manual_seed(0)
    model = net(30, 1)
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    best, weights, metrics, worse, step = -math.inf, {}, {}, 0, 0
    for epoch in range(12):
        model.train()
        for rows in epoch_order(len(train), seed=0, epoch=epoch).split(32):
            x, y = train[rows]
            loss = F.binary_cross_entropy_with_logits(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            decay = min(0.95, (1 + step) / (10 + step))
            with torch.no_grad():
                for mean, weight in zip(averaged.parameters(), model.parameters(), strict=True):
                    mean.lerp_(weight, 1 - decay)
        averaged.eval()
        with torch.no_grad():
            x, y = valid.tensors
            outputs = averaged(x)[:, 0]
            loss = F.binary_cross_entropy_with_logits(outputs, y).item()
            auc = roc_auc_score(y, outputs)
        if auc > best:
            best, metrics, worse = auc, {"val_loss": loss, "val_auc": auc}, 0
            weights = copy.deepcopy(averaged.state_dict())
        else:
            worse += 1
            if worse == 3:
                break
    return weights, metrics


def breast_cancer(*where):
    class BreastCancer(sk.Task):
        def datasets(self, cfg):
            return split("breast_cancer", 150)

        def model(self, cfg):
            return net(30, 1)

        def loss(self, model, batch):
            return F.binary_cross_entropy_with_logits(model(batch[0])[:, 0], batch[1])

        def metrics_all(self, outputs, targets):
            return {"auc": roc_auc_score(targets, outputs[:, 0])}

    cfg = sk.compose(
        "data.batch_size=32",
        "optimizer.name=adam",
        "optimizer.lr=0.02",
        "optimizer.weight_decay=0",
        "scheduler.name=constant",
        "training.ema_decay=0.95",
        "checkpoint.monitor=auc",
        "early_stopping.enabled=true",
        "early_stopping.patience=3",
        "trainer.max_epochs=12",
        *where,
    )
    return sk.fit(BreastCancer(), cfg, show=False)


def diabetes_by_hand():
    train, valid = split("diabetes", 100, target=torch.float64, dtype=torch.float64)
    torch.manual_seed(0)
    model = net(10, 1, torch.float64)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    steps, warmup = 5 * math.ceil(len(train) / 32), 6
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (step + 1) / (warmup + 1) if step < warmup else 1 - (step - warmup) / (steps - warmup),
    )
    best, weights, metrics = math.inf, {}, {}
    for epoch in range(5):
        model.train()
        for rows in epoch_order(len(train), seed=0, epoch=epoch).split(32):
            x, y = train[rows]
            loss = F.smooth_l1_loss(model(x)[:, 0], y / 100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        model.eval()
        with torch.no_grad():
            x, y = valid.tensors
            outputs = model(x)[:, 0]
            loss = F.smooth_l1_loss(outputs, y / 100).item()
            mae = (100 * outputs - y).abs().mean().item()
        if mae < best:
            best, metrics = mae, {"val_loss": loss, "val_mae": mae}
            weights = copy.deepcopy(model.state_dict())
    return weights, metrics


def diabetes(*where):
    class Diabetes(sk.Task):
        def datasets(self, cfg):
            return split("diabetes", 100, target=torch.float64, dtype=torch.float64)

        def model(self, cfg):
            return net(10, 1, torch.float64)

        def loss(self, model, batch):
            return F.smooth_l1_loss(model(batch[0])[:, 0], batch[1] / 100)

        def metrics(self, outputs, batch):
            return {"mae": ((100 * outputs[:, 0] - batch[1]).abs().sum(), len(outputs))}

    cfg = sk.compose(
        "data.batch_size=32",
        "optimizer.lr=0.01",
        "optimizer.weight_decay=0.1",
        "scheduler.name=linear",
        "scheduler.warmup_steps=6",
        "checkpoint.monitor=mae",
        "trainer.max_epochs=5",
        *where,
    )
    return sk.fit(Diabetes(), cfg, show=False)


def patchy(dataset: TensorDataset) -> TensorDataset:
    "Inputs and targets [samples, 3], every fourth of which is missing: NaN."
    x, y = dataset.tensors
    return TensorDataset(x, (y / 100).where(torch.arange(y.numel()).view_as(y) % 4 != 0, torch.nan))


def linnerud_by_hand():
    train, valid = (patchy(part) for part in split("linnerud", 6))
    torch.manual_seed(0)
    model = net(3, 3)
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    best, weights, metrics = math.inf, {}, {}
    for epoch in range(10):
        model.train()
        for rows in epoch_order(len(train), seed=0, epoch=epoch).split(5):
            x, y = train[rows]
            loss = (model(x) - y)[y.isfinite()].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            x, y = valid.tensors
            away = (model(x) - y).abs()
            loss, each = away.square().nanmean().item(), away.nanmean(0).tolist()
        if loss < best:
            best, metrics = loss, {"val_loss": loss, **{f"val_mae_{i}": mae for i, mae in enumerate(each)}}
            weights = copy.deepcopy(model.state_dict())
    return weights, metrics


def linnerud(*where):
    class Linnerud(sk.Task):
        def datasets(self, cfg):
            return tuple(patchy(part) for part in split("linnerud", 6))

        def model(self, cfg):
            return net(3, 3)

        def loss(self, model, batch):
            known = batch[1].isfinite()
            return (model(batch[0]) - batch[1])[known].square().sum(), known.sum()

        def metrics(self, outputs, batch):
            away, known = (outputs - batch[1]).abs(), batch[1].isfinite()
            return {f"mae_{i}": (away[:, i].nansum(), known[:, i].sum()) for i in range(3)}

        def optimizer(self, model, cfg):
            groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[2].parameters(), "lr": 0.1}]
            return torch.optim.SGD(groups, momentum=0.9)

    cfg = sk.compose(
        "data.allow_nan=true", "data.batch_size=5", "scheduler.name=constant", "trainer.max_epochs=10", *where
    )
    return sk.fit(Linnerud(), cfg, show=False)


PAIRS = {
    "digits": (digits_by_hand, digits),
    "wine": (wine_by_hand, wine),
    "breast_cancer": (breast_cancer_by_hand, breast_cancer),
    "diabetes": (diabetes_by_hand, diabetes),
    "linnerud": (linnerud_by_hand, linnerud),
}
each_pair = pytest.mark.parametrize("name", PAIRS)


def lines(function) -> int:
    "The lines of a function that are not empty, without its `def`."
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines()) - 1


@each_pair
def test_the_weights_and_the_metrics_are_those_of_a_loop_by_hand(tmp_path, name):
    by_hand, as_task = PAIRS[name]
    weights, metrics = by_hand()
    run = as_task(*HERE, f"run.dir={tmp_path}").raise_for_status()
    precise = 1e-9 if name == "diabetes" else 1e-5
    found = run.load_model().state_dict()
    assert list(found) == list(weights)
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=precise, atol=precise / 10)
    assert run.best.metrics == pytest.approx(metrics, rel=precise)


@each_pair
def test_it_takes_fewer_lines_and_the_table_says_how_many(name):
    by_hand, as_task = (lines(function) for function in PAIRS[name])
    assert as_task < by_hand
    row = f"| {by_hand} | {as_task} |"
    tutorial = Path(__file__).resolve().parents[2] / "nbs" / "tutorials" / "task_forms.ipynb"
    shown = "".join("".join(cell["source"]) for cell in json.loads(tutorial.read_text(encoding="utf-8"))["cells"])
    for table in (__doc__, shown):
        (found,) = re.findall(rf"^\| {name} \|.*$", table, re.MULTILINE)
        assert found.endswith(row), f"{name}: the table has to end with {row}"
