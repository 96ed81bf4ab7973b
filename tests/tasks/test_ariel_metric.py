"The score of the Ariel challenge: reference values to all digits, joins by planet, and what is refused by name."

import pytest

pytest.importorskip("pandas", reason="the extra `ariel` is not installed")

import numpy as np
import pandas

from spectrakit.system.errors import RequestError
from spectrakit.tasks.ariel.layout import CHANNELS, SIGMA, WL
from spectrakit.tasks.ariel.metric import ariel_score, score_arrays, sigma_report, true_sigma

NAIVE = (0.01, 0.01)


@pytest.mark.parametrize(
    ("error", "sigma", "options", "wanted"),
    [
        (0, 1e-4, {}, 0.6382979349),
        (0, 1e-4, {"weight": 1}, 0.6660777385),
        (0, 1e-4, {"year": 2024}, 2 / 3),
        (1e-4, 1e-4, {}, 0.5689956172),
        (-1e-4, 1e-4, {}, 0.5689956172),
        (3e-4, 1e-4, {}, 0.0145770753),
        (1e-4, 1e-5, {}, -5.9727848715),
    ],
)
def test_the_known_values_to_all_digits(error, sigma, options, wanted):
    y = np.full((3, CHANNELS), 0.01)
    score = score_arrays(y, y + error, np.full_like(y, sigma), NAIVE, **options)
    assert score.raw == pytest.approx(wanted, abs=6e-11)
    assert score.clipped == pytest.approx(min(max(wanted, 0), 1), abs=6e-11)


@pytest.mark.parametrize("year", [2025, 2024])
def test_a_perfect_prediction_is_one_and_the_naive_one_is_zero(year):
    y = np.random.default_rng(0).lognormal(-4.3, 0.6, (7, CHANNELS))
    naive = (float(y.mean()), float(y.std()))
    perfect = score_arrays(y, y, np.broadcast_to(true_sigma(year), y.shape), naive, year)
    ignorant = score_arrays(y, np.full_like(y, naive[0]), np.full_like(y, naive[1]), naive, year)
    assert perfect.raw == pytest.approx(1, abs=1e-12) and ignorant.raw == pytest.approx(0, abs=1e-12)


def test_the_rules_of_the_two_years_differ_where_planets_differ():
    "2025 averages ratios of cells, 2024 divides sums: equal only where all cells are equal."
    y = np.random.default_rng(1).lognormal(-4.3, 0.6, (7, CHANNELS))
    scores = [score_arrays(y, y, np.full_like(y, 1e-4), NAIVE, year).raw for year in (2025, 2024)]
    assert abs(scores[0] - scores[1]) > 1e-3


def tables(planets=4):
    "Labels and a submission with an error of one sigma, of planets whose ids are not in the order of text."
    y = np.random.default_rng(2).lognormal(-4.3, 0.6, (planets, CHANNELS))
    labels = pandas.DataFrame(y, columns=WL)
    labels.insert(0, "planet_id", [10 ** (i % 3) + i for i in range(planets)])
    sigma = pandas.DataFrame(np.full((planets, CHANNELS), 1e-4), columns=SIGMA)
    return labels, pandas.concat([labels, sigma], axis=1)


def test_rows_are_joined_by_planet():
    labels, sent = tables()
    assert ariel_score(labels, sent.iloc[::-1]) == ariel_score(labels, sent)
    assert ariel_score(labels, sent.assign(planet_id=sent["planet_id"].astype(str))) == ariel_score(labels, sent)
    assert ariel_score(labels, sent[sent.columns[::-1]]) == ariel_score(labels, sent)
    swapped = sent.assign(planet_id=sent["planet_id"].to_numpy()[::-1])
    assert ariel_score(labels, swapped).raw < ariel_score(labels, sent).raw - 1


def test_a_table_is_left_as_it_was():
    labels, sent = tables()
    ariel_score(labels, sent)
    assert list(sent.columns) == ["planet_id", *WL, *SIGMA] and list(labels.columns) == ["planet_id", *WL]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.assign(wl_7=[0.1, np.nan, 0.1, 0.1]), "wl_7 of planet 11 .* is nan"),
        (lambda t: t.assign(sigma_283=[0.1, 0.1, np.inf, 0.1]), "sigma_283 of planet 102 .* is inf"),
        (lambda t: t.assign(sigma_2=-1e-9), "sigma_2 of planet 1 .* is -1e-09: negative in 4 cells"),
        (lambda t: t.assign(wl_3=-0.1), "wl_3 .* negative"),
        (lambda t: t.assign(wl_3="deep"), "'wl_3' of the submission holds text"),
        (lambda t: t.rename(columns={"sigma_1": "sigma1"}), "no column 'sigma_1' .*'sigma1'"),
        (lambda t: t.drop(columns="planet_id"), "no column 'planet_id'"),
        (lambda t: t.assign(row_id=1), "has the column 'row_id'"),
        (lambda t: pandas.concat([t, t[["wl_1"]]], axis=1), "'wl_1' twice"),
        (lambda t: t.iloc[1:], "lacks planet 1 "),
        (lambda t: pandas.concat([t, t.iloc[2:3]]), "Planet 102 .* more than once"),
        (lambda t: pandas.concat([t, t.iloc[:1].assign(planet_id=99)]), "has planet 99"),
    ],
)
def test_a_wrong_submission_is_refused_by_name(change, words):
    labels, sent = tables()
    with pytest.raises(RequestError, match=words):
        ariel_score(labels, change(sent))


def test_sigma_is_judged_as_a_whole_and_by_channel():
    rng = np.random.default_rng(3)
    y = rng.normal(0.01, 0.003, (2000, CHANNELS))
    spread = np.where(np.arange(CHANNELS) == 5, 3e-4, 1e-4)
    report = sigma_report(y, y + rng.normal(0, spread, y.shape), np.full_like(y, 1e-4))
    assert report.coverage_by_channel[0] == pytest.approx(0.683, abs=0.04)
    assert report.factor_by_channel[5] == pytest.approx(3, abs=0.2) and report.factor_by_channel[6] < 1.1
    assert (
        report.coverage_1 == pytest.approx(0.682, abs=0.01) and report.coverage_2 > 0.94 and abs(report.z_mean) < 0.01
    )
