"Depths of simulated planets by box and physics, and a submission that is complete whatever is missing."

import re

import pytest

pytest.importorskip("pandas", reason="the extra `ariel` is not installed")
pytest.importorskip("scipy", reason="the extra `ariel` is not installed")

import numpy as np
import pandas

from spectrakit.system.errors import RequestError
from spectrakit.tasks.ariel.estimates import box_estimate, physics_estimate, read_orbits, scale_of_loss
from spectrakit.tasks.ariel.layout import AIRS, CHANNELS, FGS1, SIGMA, WL, Layout
from spectrakit.tasks.ariel.light_curves import LightCurves
from spectrakit.tasks.ariel.simulate import draw_planet, pair_times, true_light
from spectrakit.tasks.ariel.submission import (
    Spectrum,
    fallback_spectrum,
    read_labels,
    submission_table,
    wanted_planets,
    write_submission,
)


def curves_of(seed, noise=0.0, drift=1e-3, pairs=75):
    "A planet and its light curves with a quadratic drift."
    planet, rng = draw_planet(np.random.default_rng(seed)), np.random.default_rng(seed)
    airs = true_light(planet, AIRS, pairs)[:, AIRS.columns_kept][:, ::-1]
    fgs = true_light(planet, FGS1, 12 * pairs).reshape(pairs, 12).mean(axis=1)
    light = np.concatenate([fgs[:, None], airs], axis=1)
    hours = pair_times(pairs)
    light = light * (1 + drift * (hours[:, None] / 7.5) ** 2) * (1 + noise * rng.standard_normal(light.shape))
    return planet, LightCurves("1", (1e5 * light,), (np.array([hours, hours]),))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_transit_is_found_to_some_ppm_without_noise(seed):
    planet, curves = curves_of(seed)
    fit = physics_estimate(curves, planet.orbit)
    assert fit.good and abs(fit.depth[1:].mean() / planet.depth[1:].mean() - 1) < 0.01
    assert np.corrcoef(fit.depth[1:], planet.depth[1:])[0, 1] > 0.9, "the spectrum is not that of the planet"
    box = box_estimate(curves)
    assert box.good and 1.0 < box.depth[1:].mean() / planet.depth[1:].mean() < 1.3


def test_a_known_template_gives_each_channel_its_scale():
    loss = 0.01 * np.exp(-0.5 * ((np.arange(100) - 50) / 10.0) ** 2)
    true = np.linspace(0.5, 2, 20)
    drift = 1 + 0.01 * np.linspace(-1, 1, 100)[:, None] ** 3
    scale, error = scale_of_loss(7 * drift * (1 - true * loss[:, None]), loss)
    assert np.allclose(scale, true, atol=1e-5) and error.max() < 1e-3


@pytest.mark.parametrize(
    "light", [np.ones((60, CHANNELS)), 1 + 0.001 * np.random.default_rng(0).random((60, CHANNELS))]
)
def test_light_without_a_transit_is_no_good(light):
    hours = pair_times(60)
    curves = LightCurves("1", (light,), (np.array([hours, hours]),))
    assert not physics_estimate(curves).good or physics_estimate(curves).depth.mean() < 1e-3


def folder_with(tmp_path, sample, folders):
    "A data folder with planets in the sample submission and in the test folder."
    layout = Layout(tmp_path)
    for name in folders:
        (tmp_path / "test" / name).mkdir(parents=True)
    values = np.full((len(sample), 2 * CHANNELS), 0.01)
    table = pandas.DataFrame(values, columns=[*WL, *SIGMA])
    table.insert(0, "planet_id", sample)
    table.to_csv(tmp_path / "sample_submission.csv", index=False)
    return layout


@pytest.mark.parametrize(
    ("sample", "folders", "wanted", "words"),
    [
        (["7", "12"], ["12", "7"], ["7", "12"], ""),
        (["7"], ["7", "30"], ["7", "30"], "Planet 30 .* not in the sample"),
        (["7", "8"], ["7"], ["7", "8"], "Planet 8 .* no test folder"),
        ([], [], [], "no test planet"),
        (["007"], ["007"], ["007"], ""),
    ],
)
def test_planets_of_the_sample_and_of_the_test_folder_are_answered(tmp_path, sample, folders, wanted, words):
    found, notes = wanted_planets(folder_with(tmp_path, sample, folders))
    assert found == wanted and len(notes) == bool(words)
    assert not words or len([note for note in notes if re.search(words, note)]) == 1
    fallback = fallback_spectrum({})
    write_submission(tmp_path / "submission.csv", submission_table(found, {}, fallback))
    written = pandas.read_csv(tmp_path / "submission.csv", dtype={"planet_id": str})
    assert list(written.columns) == ["planet_id", *WL, *SIGMA] and list(written["planet_id"]) == wanted


def test_a_sample_of_another_competition_is_refused(tmp_path):
    layout = folder_with(tmp_path, ["7"], ["7"])
    pandas.DataFrame({"planet_id": ["7"], "target": [1]}).to_csv(tmp_path / "sample_submission.csv", index=False)
    with pytest.raises(RequestError, match="has 2 columns"):
        wanted_planets(layout)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_becomes_the_fallback(bad):
    fallback = Spectrum(np.full(CHANNELS, 0.02), np.full(CHANNELS, 0.01))
    mu, sigma = np.full(CHANNELS, 0.03), np.full(CHANNELS, 1e-4)
    mu[3], sigma[5] = bad, bad
    table = submission_table(["1"], {"1": Spectrum(mu, sigma)}, fallback)
    assert table["wl_4"][0] == 0.02 and table["sigma_6"][0] == 0.01 and table["wl_1"][0] == 0.03
    negative = submission_table(["1"], {"1": Spectrum(np.full(CHANNELS, -0.1), np.zeros(CHANNELS))}, fallback)
    assert negative["wl_1"][0] == 0 and negative["sigma_1"][0] > 0


def test_a_bad_table_leaves_the_old_file(tmp_path):
    path = tmp_path / "submission.csv"
    table = submission_table(["1", "2"], {}, fallback_spectrum({}))
    write_submission(path, table)
    before = path.read_bytes()
    for bad in (table.assign(wl_2=np.nan), table[table.columns[::-1]], table.assign(planet_id="1")):
        with pytest.raises(RequestError):
            write_submission(path, bad)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["submission.csv"]


def test_labels_and_orbits_are_read_by_name(tmp_path):
    labels = pandas.DataFrame(np.full((2, CHANNELS), 0.01), columns=WL)
    labels.insert(0, "planet_id", [3, 4])
    labels.to_csv(tmp_path / "train.csv", index=False)
    stars = {"planet_id": [3, 4, 5], "P": [2.0, np.nan, 3.0], "sma": [8, 8, 0.5], "i": [89, 89, 89]}
    pandas.DataFrame(stars).to_csv(tmp_path / "train_star_info.csv", index=False)
    assert list(read_labels(Layout(tmp_path))) == ["3", "4"]
    assert list(read_orbits(Layout(tmp_path), "train")) == ["3"] and read_orbits(Layout(tmp_path), "test") == {}
    labels.assign(wl_2=[0.1, np.nan]).to_csv(tmp_path / "train.csv", index=False)
    with pytest.raises(RequestError, match="wl_2 of planet 4"):
        read_labels(Layout(tmp_path))
