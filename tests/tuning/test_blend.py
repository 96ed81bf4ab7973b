"A blend of several cross-validations: what it computes is checked by other means, and what it claims is nested."

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task
from spectrakit.tuning.blend_weights import (
    METHODS,
    SCORES,
    HeldOut,
    fit_weights,
    greedy,
    greedy_by_score,
    products_of,
    ridge,
)

DRAW = np.random.default_rng(7)
TARGET = DRAW.normal(size=900)
MODELS = TARGET + DRAW.normal(size=(6, 900)) * np.linspace(0.4, 2.0, 6)[:, None]
HELD = np.arange(900) % 3


def test_the_scores_are_those_of_scikit_learn():
    odds = DRAW.random((200, 3))
    odds /= odds.sum(axis=1, keepdims=True)
    labels = DRAW.integers(0, 3, 200)
    assert SCORES["log_loss"][0](odds, labels) == pytest.approx(log_loss(labels, odds, labels=[0, 1, 2]))
    ranks = DRAW.integers(0, 9, 200).astype(float)  # with ties
    assert SCORES["auc"][0](ranks, labels > 0) == pytest.approx(roc_auc_score(labels > 0, ranks))


def test_weights_from_sums_are_those_from_the_samples():
    whole = [products_of(MODELS, TARGET)]
    direct = nnls(MODELS.T, TARGET)[0]
    assert METHODS["non_negative"](whole) == pytest.approx(direct / direct.sum(), abs=1e-7)
    by_hand = greedy_by_score(MODELS, TARGET, SCORES["mse"][0], -1.0, rounds=100)
    assert greedy(whole) == pytest.approx(by_hand)
    strength = 1e-2 * np.trace(whole[0].xx) / len(MODELS)
    rest = Ridge(alpha=strength, fit_intercept=False).fit(MODELS.T, TARGET - MODELS.mean(axis=0)).coef_
    assert ridge(whole) == pytest.approx(1 / len(MODELS) + rest, abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_each_fold_is_scored_with_weights_that_were_learned_without_it(method):
    held = HeldOut(MODELS, TARGET, HELD)
    found = fit_weights(held, method, "mse", "min")
    for fold in range(3):
        mean = TARGET.mean()
        others = [products_of(MODELS[:, k == HELD] - mean, TARGET[k == HELD] - mean) for k in range(3) if k != fold]
        weights = METHODS[method](others)
        by_hand = weights @ (MODELS[:, fold == HELD] - mean) + mean
        assert held.nested(found.without)[fold == HELD] == pytest.approx(by_hand)
    assert found.score == pytest.approx(np.mean((held.nested(found.without) - TARGET) ** 2))


def test_a_fold_that_leaks_into_the_weights_is_seen_by_the_nested_score_alone():
    "Many models of pure noise: learned on all samples they seem to help."
    rows = slice(0, 90)
    noise = np.concatenate([MODELS[:1, rows], DRAW.normal(size=(60, 90))])
    alone = SCORES["mse"][0](MODELS[0, rows], TARGET[rows])
    found = {m: fit_weights(HeldOut(noise, TARGET[rows], HELD[rows]), m, "mse", "min") for m in METHODS}
    assert found["ridge"].in_sample < alone < found["ridge"].score
    assert all(f.score >= f.in_sample for f in found.values())


class Fitted(Task):
    "The linear relation with an option that makes a worse model of it."

    options = {"width": 3}

    def datasets(self, cfg):
        x = torch.randn(48, 3, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x @ torch.tensor([1.0, -2.0, 0.5])), None

    def test_dataset(self, cfg):
        return TensorDataset(torch.ones(5, 3))

    def model(self, cfg):
        self.width = self.option(cfg, "width")
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

    def loss(self, model, batch):
        x = torch.where(torch.arange(3) < self.width, batch[0], 0.0)
        return nn.functional.mse_loss(model(x), batch[1])


@pytest.mark.slow
def test_two_cross_validations_are_blended_and_written(here):
    words = (
        "trainer.accelerator=cpu",
        "launch.mode=inline",
        "data.batch_size=8",
        "trainer.max_epochs=3",
        "folds.count=3",
    )
    runs = [sk.cross_validate(Fitted(), compose(*words, f"+task.width={w}"), show=False) for w in (3, 2)]
    with pytest.raises(RequestError, match=r"Unknown method 'gredy'\. Available: auto, .*Did you mean 'greedy'"):
        sk.blend(*runs, predict=here / "table.csv", task=Fitted(), method="gredy")
    with pytest.raises(RequestError, match="Unknown score 'rmsle'"):  # by then the plain mean is there
        sk.blend(*runs, predict=here / "table.csv", task=Fitted(), metric="rmsle")
    mean = np.mean([cv.test["predictions"][0] for cv in runs])
    assert float((here / "table.csv").read_text().splitlines()[1].split(",")[-1]) == pytest.approx(mean)
    made = sk.blend(*runs, predict=here / "table.csv", task=Fitted())
    assert made.names == tuple(cv.path.name for cv in runs) and made.weights.shape == (2,)
    assert made.score == pytest.approx(np.sqrt(np.mean((made.values - runs[0].targets) ** 2)))
    tests = np.stack([cv.test["predictions"] for cv in runs])
    assert made.test == pytest.approx(made.weights @ tests + made.offset)
    rows = (here / "table.csv").read_text().splitlines()
    assert len(rows) == 6 and float(rows[1].split(",")[-1]) == pytest.approx(made.test[0])
    again = sk.blend(*(str(cv.path) for cv in runs), method=made.method)  # by folders, in another process's words
    assert again.score == made.score and repr(made).count("blend") == 1
    other = sk.cross_validate(Fitted(), compose(*words, "folds.kind=kfold", "seed=5"), show=False)
    with pytest.raises(RequestError, match="have different folds: one has trained on samples that the other holds out"):
        sk.blend(runs[0], other)
    with pytest.raises(RequestError, match="two or more models"):
        sk.blend(runs[0])


class Classes(Fitted):
    "Two classes; `single`: the probability of the second alone."

    options = {"width": 3, "single": False, "labels": False}

    def datasets(self, cfg):
        (x, y) = super().datasets(cfg)[0].tensors
        return TensorDataset(x, (y > 0).long()), None

    def model(self, cfg):
        self.single, self.labels = self.option(cfg, "single"), self.option(cfg, "labels")
        self.width = self.option(cfg, "width")
        return nn.Linear(3, 2)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(torch.where(torch.arange(3) < self.width, batch[0], 0.0)), batch[1])

    def predict(self, model, batch):
        odds = model(batch[0]).softmax(1)
        return odds.argmax(1) if self.labels else odds[:, 1] if self.single else odds


@pytest.mark.slow
def test_classes_are_blended_in_every_form_that_predictions_have(here):
    words = ("trainer.accelerator=cpu", "launch.mode=inline", "data.batch_size=8", "trainer.max_epochs=2")

    def made(*more):
        return sk.cross_validate(Classes(), compose(*words, "folds.count=3", *more), show=False)

    by_time = [made("folds.kind=time", f"+task.width={w}") for w in (3, 2)]
    assert np.isnan(by_time[0].targets).any()
    found = sk.blend(by_time)
    rows = np.isfinite(found.values).all(axis=1)
    assert found.metric == "accuracy" and rows.sum() == 36
    assert found.score == pytest.approx((found.values[rows].argmax(1) == by_time[0].targets[rows]).mean())
    single = [made("+task.single=true", f"+task.width={w}") for w in (3, 2)]
    scores = {name: sk.blend(*single, metric=name, method="greedy") for name in SCORES}
    values, targets = scores["log_loss"].values, single[0].targets
    assert scores["log_loss"].score == pytest.approx(log_loss(targets, values, labels=[0, 1]), abs=1e-6)
    assert scores["accuracy"].score == ((scores["accuracy"].values > 0.5) == targets).mean()
    assert scores["mae"].score == pytest.approx(np.abs(scores["mae"].values - targets).mean(), abs=1e-6)
    twice, name = sk.blend(single[0], single[0], method="greedy"), single[0].path.name
    assert twice.names == (name, f"{name} (2)")
    np.testing.assert_allclose(twice.values, single[0].values, rtol=1e-6)
    labels = made("+task.labels=true", "folds.kind=time")  # kept with NaN, and so with a point
    with pytest.raises(RequestError, match="predicted whole numbers"):
        sk.blend(labels, single[0])
