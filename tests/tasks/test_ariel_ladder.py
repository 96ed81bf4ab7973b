"The ladder of baselines on measured depths: what each rung may use, sigma from held-out folds, planets without a fit."

import pytest

pytest.importorskip("pandas", reason="the extra `ariel` is not installed")
pytest.importorskip("scipy", reason="the extra `ariel` is not installed")

import numpy as np

from spectrakit.tasks.ariel.ladder import (
    RUNGS,
    Measured,
    as_measured,
    fit_sigma,
    out_of_fold,
    paired_interval,
    planet_scores,
    predict_rung,
    shaped,
)
from spectrakit.tasks.ariel.metric import score_arrays
from spectrakit.tasks.ariel.simulate import draw_planet


def planets(seed, count=60, noise=4e-5):
    "Labels, and depths measured with a limb-darkening factor that differs between FGS1 and AIRS."
    rng = np.random.default_rng(seed)
    y = np.array([draw_planet(np.random.default_rng([seed, i])).depth for i in range(count)])
    factor = np.where(np.arange(y.shape[1]) == 0, 1.2, 1.05)
    error = np.full(y.shape, noise)
    return y, Measured(factor * y + error * rng.standard_normal(y.shape), error, np.ones(count, bool))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_rung_beats_the_one_below_on_held_out_planets(seed):
    y, m = planets(seed)
    train = np.arange(60) < 30
    naive = (float(y[train].mean()), float(y[train].std()))
    scores = [
        planet_scores(y[~train], predict_rung(rung, m.of(train), y[train], m.of(~train)), naive)
        for rung in RUNGS.values()
    ]
    means = [float(part.mean()) for part in scores]
    assert means == sorted(means)
    assert paired_interval(scores[-1], scores[0])[0] > 0


@pytest.mark.parametrize("bad", [[3], [0, 5, 9], list(range(30))])
def test_a_planet_without_a_fit_gets_mean_and_spread(bad):
    y, m = planets(1)
    good = ~np.isin(np.arange(30), bad)
    test = Measured(np.where(good[:, None], m.depth[30:], np.nan), m.error[30:], good)
    given = predict_rung(shaped, m.of(np.arange(30)), y[:30], test)
    assert np.isfinite(given.mu).all() and (given.sigma > 0).all()
    assert np.allclose(given.mu[bad], y[:30].mean(axis=0)) and np.allclose(given.sigma[bad], y[:30].std(axis=0))


def test_training_planets_without_a_fit_are_left_out():
    y, m = planets(1)
    spoiled = Measured(m.depth.copy(), m.error, np.arange(60) != 7)
    spoiled.depth[7] = 5.0
    clean = np.arange(60) != 7
    one = predict_rung(shaped, spoiled, y, m)
    assert np.allclose(one.mu, predict_rung(shaped, m.of(clean), y[clean], m).mu)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_training_planets_give_the_constant(count):
    y, m = planets(1)
    if not count:
        assert as_measured({}, []).depth.shape == (0, 283)
        return
    given = predict_rung(shaped, m.of(np.arange(count)), y[:count], m)
    assert np.allclose(given.mu, y[:count].mean(axis=0))


def test_sigma_comes_from_planets_that_were_not_seen():
    y, m = planets(2)
    held_out, seen = out_of_fold(shaped, m, y), shaped(m, y)(m)
    assert (held_out - y).std() > (seen - y).std()
    sigma = fit_sigma(held_out, y)(held_out)
    assert 0.5 < (abs(held_out - y) < sigma).mean() < 0.85


def test_the_mean_of_the_planets_scores_is_the_score():
    y, m = planets(3)
    given = predict_rung(shaped, m, y, m)
    naive = (0.0146, 0.0107)
    assert planet_scores(y, given, naive).mean() == pytest.approx(score_arrays(y, given.mu, given.sigma, naive).raw)


def test_an_interval_around_nothing_holds_zero():
    rng = np.random.default_rng(0)
    low, high = paired_interval(rng.normal(size=200), rng.normal(size=200))
    assert low < 0 < high and paired_interval(np.ones(50), np.zeros(50)) == (1.0, 1.0)
