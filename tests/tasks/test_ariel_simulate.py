"The simulator of the Ariel challenge: its integral against closed forms, its files, its seeds."

import hashlib
from dataclasses import replace

import pytest

pytest.importorskip("pandas", reason="the extra `ariel` is not installed")
pytest.importorskip("pyarrow", reason="the extra `ariel` is not installed")

import numpy as np
import pandas
from pyarrow import parquet

from spectrakit.system.errors import RequestError
from spectrakit.tasks.ariel.layout import AIRS, FGS1, SENSORS, find_data, planets_in, wavelengths
from spectrakit.tasks.ariel.simulate import NOISELESS, Instrument, draw_planet, draw_visit, simulate, true_light
from spectrakit.tasks.ariel.transit import Orbit, blocked_light, transit_loss

TINY = Instrument(pairs=(8, 16))


@pytest.mark.parametrize(("k", "z"), [(0.05, 0.2), (0.12, 0.88), (0.12, 0.95), (0.25, 0.9), (0.1, 1.05), (0.2, 0.0)])
def test_the_ring_integral_against_a_sum_over_a_grid(k, z):
    u1, u2 = 0.4, 0.25
    x, y = np.meshgrid(*[(np.arange(2000) + 0.5) / 1000 - 1] * 2)
    x, y = z + k * x, k * y  # a square around the planet
    square = x**2 + y**2
    covered = ((x - z) ** 2 + y**2 < k * k) & (square < 1)
    dim = 1 - np.sqrt(np.clip(1 - square, 0, 1))
    blocked = (covered * (1 - u1 * dim - u2 * dim**2)).sum() * (k / 1000) ** 2
    wanted = blocked / (np.pi * (1 - u1 / 3 - u2 / 6))
    assert transit_loss(blocked_light(np.array([z]), k), u1, u2)[0] == pytest.approx(wanted, rel=2e-4)


def test_the_integral_against_batman():
    batman = pytest.importorskip("batman", reason="batman-package is not installed")
    z = np.linspace(0, 1.2, 200)
    model = batman._quadratic_ld._quadratic_ld(z, 0.1, 0.4, 0.25, 1)
    assert abs(1 - transit_loss(blocked_light(z, 0.1), 0.4, 0.25) - model).max() < 1e-7


def test_more_nodes_change_nothing():
    z = np.linspace(0, 1.3, 500)
    coarse, fine = (transit_loss(blocked_light(z, 0.15, n), 0.5, 0.3) for n in (40, 200))
    assert abs(coarse - fine).max() < 1e-8


def test_a_planet_behind_the_star_blocks_nothing():
    orbit = Orbit(20.0, 5.0, 90.0)
    assert np.isinf(orbit.distance(np.array([10.0]))[0]) and orbit.distance(np.array([0.0]))[0] < 1e-12


def digest(folder):
    "One hash of all files below a folder."
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    parts = [str(path.relative_to(folder)).encode() + path.read_bytes() for path in files]
    return hashlib.sha256(b"".join(parts)).hexdigest()


@pytest.mark.slow
def test_equal_seeds_make_equal_bytes(tmp_path):
    sums = [digest(simulate(tmp_path / str(i), (1, 1), TINY, seed=s).folder) for i, s in enumerate((3, 3, 4))]
    assert sums[0] == sums[1] != sums[2]


@pytest.mark.slow
def test_the_files_of_2025(tmp_path):
    layout = find_data(simulate(tmp_path / "data", (2, 1), TINY).folder)
    assert planets_in(layout, "train") == ["1000", "1007"] and planets_in(layout, "test") == ["1014"]
    assert layout.visits("train", "1000") == [0] and layout.visits("test", "1014") == [0, 1]
    signal = parquet.read_table(layout.signal("test", "1014", AIRS, 1))
    assert signal.shape == (16, 11392) and str(signal.schema.types[0]) == "uint16"
    folder = layout.calibration("train", "1000", FGS1, 0)
    shapes = {path.stem: parquet.read_table(path).shape for path in folder.iterdir()}
    assert shapes == {"dark": (32, 32), "dead": (32, 32), "flat": (32, 32), "linear_corr": (192, 32), "read": (32, 32)}
    axes = pandas.read_parquet(layout.folder / "axis_info.parquet")
    um = axes["AIRS-CH0-axis2-um"].dropna().to_numpy()
    assert abs(um[39:321][::-1] - wavelengths()[1:]).max() < 1e-12 and np.diff(um).max() < 0
    stars = pandas.read_csv(layout.stars("test"))
    assert list(stars.columns) == ["planet_id", "Rs", "Ms", "Ts", "Mp", "e", "P", "sma", "i"]
    assert pandas.read_csv(layout.folder / "sample_submission.csv").shape == (1, 567)
    assert pandas.read_csv(layout.adc("test")).shape == (1, 4)


@pytest.mark.slow
def test_the_files_of_2024(tmp_path):
    layout = simulate(tmp_path / "data", (1, 1), TINY, year=2024)
    with pytest.raises(RequestError, match="Use year=2024"):
        find_data(layout.folder)
    assert find_data(layout.folder, 2024) == layout
    assert layout.signal("train", "1000", AIRS, 0).name == "AIRS-CH0_signal.parquet"
    assert list(pandas.read_csv(layout.adc("test"))["planet_id"]) == [1007]
    assert not layout.stars("test").exists()


def test_each_effect_is_a_switch():
    planet = draw_planet(np.random.default_rng(0))
    plain = draw_visit(planet, NOISELESS, 1).frames[FGS1.name]
    for change in ({"drift": 1e-2}, {"jitter": 1.0}, {"read": 5.0}, {"shot": True}, {"dead": 0.1}, {"hot": 0.1}):
        other = Instrument(**{**NOISELESS.__dict__, **change})
        assert abs(draw_visit(planet, other, 1).frames[FGS1.name] - plain).max() > 1, change


def test_the_columns_run_from_long_to_short_wavelengths():
    planet = draw_planet(np.random.default_rng(0))
    planet = replace(planet, u1=planet.u1 * 0, u2=planet.u2 * 0)
    depth = 1 - true_light(planet, AIRS, 75).min(axis=0)[AIRS.columns_kept]
    assert np.corrcoef(depth[::-1], planet.depth[1:])[0, 1] > 0.99 > np.corrcoef(depth, planet.depth[1:])[0, 1]


def test_a_full_visit_has_the_real_number_of_frames():
    from spectrakit.tasks.ariel.simulate import FULL

    assert [2 * n for n in FULL.pairs] == [sensor.frames for sensor in reversed(SENSORS)]
