"Regression on spectra: defaults beside a tuned PLS, coverage of sigma, gaps, constant channels, wide targets, groups."

import pickle

import numpy as np
import pytest
import torch

import spectrakit as sk
from spectrakit.tasks.spectrum.kernels import fit_kernels
from spectrakit.tasks.spectrum.regression import SpectrumRegression

QUICK = ("launch.mode=inline", "checkpoint.keep_last=1")


def absorbances(samples, channels, seed=0, noise=0.01, bend=0.3):
    "Spectra of mixtures that saturate, with scatter and a slope; amounts of two substances as targets."
    rng, at = np.random.default_rng(seed), np.linspace(0, 1, channels)
    amounts = rng.gamma(2, 1, (samples, 5))
    bands = np.exp(-(((at - rng.uniform(0, 1, (5, 1))) / rng.uniform(0.05, 0.1, (5, 1))) ** 2))
    x = amounts @ bands
    x = x / (1 + bend * x) * rng.normal(1, 0.1, (samples, 1)) + rng.normal(0, 0.1, (samples, 1)) * (1 + at)
    return x + noise * rng.standard_normal(x.shape), amounts[:, :2] + 0.1 * rng.standard_normal((samples, 2))


def test_the_defaults_beat_a_tuned_pls_out_of_fold_and_sigma_covers(tmp_path):
    linear = pytest.importorskip("sklearn.cross_decomposition")
    from sklearn.model_selection import GridSearchCV

    x, y = absorbances(150, 200)
    cv = sk.cross_validate(SpectrumRegression(x, y), f"run.dir={tmp_path}", *QUICK, folds=3, show=False)
    cv.raise_for_status()
    mean, sigma, held = cv.values["mean"], cv.values["sigma"], cv.folds.held[0]
    assert mean.shape == sigma.shape == y.shape and np.allclose(cv.targets, y, atol=1e-5)
    pls = np.empty_like(y)
    for k in range(3):
        for t in range(2):
            grid = GridSearchCV(linear.PLSRegression(scale=False), {"n_components": range(2, 18, 3)}, cv=4)
            pls[held == k, t] = grid.fit(x[held != k], y[held != k, t]).predict(x[held == k]).ravel()
    errors = [((each - y) ** 2).mean(axis=0) for each in (mean, pls)]
    assert (errors[0] < errors[1]).all()
    assert 0.6 < (abs(y - mean) <= sigma).mean() < 0.77  # 300 numbers; the task's own aim is 0.683


def test_test_spectra_with_gaps_get_finite_predictions_in_the_shape_of_the_targets(tmp_path):
    x, y = absorbances(60, 400)
    x[:, 30:50] = 2.0
    x[3, :40], x[7, 5] = np.nan, np.inf
    test = x[:5].copy()
    test[1] = np.nan
    task = SpectrumRegression(x, y[:, 0], sigma=np.full(60, 0.1), test=test)
    run = sk.fit(task, f"run.dir={tmp_path}", "trainer.max_epochs=2", *QUICK, show=False).raise_for_status()
    found = sk.predict(task, run).values
    assert found["mean"].shape == (5,) and np.isfinite(found["mean"]).all() and (found["sigma"] > 0).all()
    assert abs(found["mean"][[0, 2, 3]] - y[[0, 2, 3], 0]).max() < 1


@pytest.mark.parametrize("channels, targets", [(3, 40), (400, 30), (1500, 1)])
def test_few_channels_and_wide_targets(channels, targets):
    x, _ = absorbances(64, channels)
    y = x[:, :1] + np.linspace(0, 1, targets) * x[:, -1:]
    task = SpectrumRegression(x, y)
    cfg = sk.compose()
    train, valid = task.datasets(cfg)
    model = task.model(cfg)
    task.loss(model, next(iter(torch.utils.data.DataLoader(train, 16)))).backward()
    with torch.no_grad():
        given = task.predict(model.eval(), valid.tensors)
    assert given["mean"].shape == (len(valid), targets)
    assert float((given["mean"] - valid.tensors[-1]).std() / y.std()) < 0.3


def test_replicates_share_a_fold_also_within_the_training_samples():
    x, y = absorbances(30, 50)
    task = SpectrumRegression(np.repeat(x, 2, axis=0), np.repeat(y, 2, axis=0), groups=np.repeat(np.arange(30), 2))
    cfg = sk.compose()
    inner = task.learned(cfg).fold
    for fold in (task.fold_rows(cfg), inner):
        assert (fold[::2] == fold[1::2]).all() and len(np.unique(fold)) > 4


def test_an_uncertain_sample_counts_less():
    x, y = absorbances(60, 80)
    fold, weight = np.arange(60) % 8, np.ones(60)
    spoiled = y.copy()
    spoiled[:10] += 20
    weight[:10] = 1e-6
    error = [abs(fit_kernels(x, spoiled, fold, w).honest[10:] - y[10:]).mean() for w in (None, weight)]
    assert error[1] < error[0] / 2


def test_a_task_travels_without_what_it_has_learned():
    task = SpectrumRegression(*absorbances(40, 60))
    before = task.learned(sk.compose()).kernels.honest
    copy = pickle.loads(pickle.dumps(task))
    assert not copy._cache and np.array_equal(copy.learned(sk.compose()).kernels.honest, before)


def test_it_is_found_under_its_short_name():
    assert sk.tasks.SpectrumRegression is SpectrumRegression


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"x": np.zeros((4, 5)), "y": np.zeros(4)}, "too few"),
        ({"x": np.zeros(40)}, r"Pass spectra \[samples, channels\]"),
        ({"y": np.zeros(7)}, "7 rows for 40 spectra"),
        ({"y": np.r_[np.ones((39, 2)), [[1, np.nan]]]}, "missing or infinite values"),
        ({"sigma": -np.ones(40)}, "sigma must be positive"),
        ({"test": np.zeros((3, 7))}, r"\[samples, 60\]"),
        ({"fodls": 3}, "folds"),
    ],
)
def test_wrong_arrays_are_named(wrong, words):
    x, y = absorbances(40, 60)
    with pytest.raises(sk.RequestError, match=words):
        SpectrumRegression(**{"x": x, "y": y, **wrong})
