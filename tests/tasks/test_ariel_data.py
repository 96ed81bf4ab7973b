"Raw frames to light curves: the fast pass against plain steps, the wavelength order, faults of single planets."

import re
import shutil

import pytest

pytest.importorskip("pandas", reason="the extra `ariel` is not installed")
pytest.importorskip("pyarrow", reason="the extra `ariel` is not installed")

import numpy as np
from pyarrow import parquet

from spectrakit.tasks.ariel.calibration import Adc, Steps, calibrate, calibrate_plainly
from spectrakit.tasks.ariel.layout import AIRS, FGS1, SENSORS
from spectrakit.tasks.ariel.light_curves import Extraction, light_curves
from spectrakit.tasks.ariel.simulate import (
    GAIN,
    NOISELESS,
    OFFSET,
    Instrument,
    draw_planet,
    draw_visit,
    simulate,
    true_light,
    write_parquet,
)

SMALL, BOTH = Instrument(pairs=(20, 240), cosmic=1e-4), ["1000", "1007"]


@pytest.fixture(scope="module")
def visit():
    return draw_visit(draw_planet(np.random.default_rng(3)), SMALL, seed=3)


def both_ways(frames, detector, sensor, steps, bins):
    "The binned exposures by the fast pass and by the plain steps."
    pixels = np.ascontiguousarray(frames.reshape(len(frames), -1).T)
    fast = calibrate(lambda a, b: pixels[a:b], detector, sensor, steps, Adc(GAIN, OFFSET), (len(frames), bins))
    return fast.binned, calibrate_plainly(frames, detector, sensor, steps, Adc(GAIN, OFFSET), bins)


@pytest.mark.parametrize("sensor", SENSORS, ids=lambda sensor: sensor.name)
@pytest.mark.parametrize(
    "steps",
    [
        Steps(),
        Steps(clip=0, mask_hot=True),
        Steps(linearity=False),
        Steps(dark_first=True, dark="reset"),
        Steps(dark="axis", offset_sign=-1),
        Steps(dark="none", flat=False, clip=5),
    ],
    ids=str,
)
def test_the_fast_pass_equals_the_plain_steps(visit, sensor, steps):
    fast, plain = both_ways(visit.frames[sensor.name], visit.detectors[sensor.name], sensor, steps, 7)
    assert (np.isnan(fast) == np.isnan(plain)).all() and np.isfinite(plain).any()
    assert np.nanmax(abs(fast - plain)) < 1e-6 * np.nanmax(abs(plain))


def test_the_fast_pass_equals_the_plain_steps_for_unrounded_numbers_and_all_degrees(visit):
    detector = {name: values.copy() for name, values in visit.detectors["FGS1"].items()}
    detector["linear_corr"][4:] = np.array([1e-17, 1e-22])[:, None, None]
    frames = visit.frames["FGS1"] + 0.25
    fast, plain = both_ways(frames, detector, FGS1, Steps(clip=0), 20)
    assert np.nanmax(abs(fast - plain)) < 1e-6 * np.nanmax(plain)


def test_every_switch_changes_the_result(visit):
    frames, detector = visit.frames["AIRS-CH0"], visit.detectors["AIRS-CH0"]
    plain = both_ways(frames, detector, AIRS, Steps(), 7)[0]
    for steps in (Steps(clip=0), Steps(linearity=False), Steps(dark="none"), Steps(dark="axis"), Steps(offset_sign=-1)):
        assert np.nanmax(abs(both_ways(frames, detector, AIRS, steps, 7)[0] - plain)) > 0.1, steps
    for steps in (Steps(dark_first=True), Steps(flat=False)):
        assert np.nanmax(abs(both_ways(frames, detector, AIRS, steps, 7)[0] - plain)) > 1e-3, steps


def quietly(layout, tmp_path, split="train", **options):
    "Light curves in this process, and the sentences that were said."
    told = []
    options = {"workers": 1, "say": told.append, **options}
    return light_curves(layout, split, tmp_path / "cache", **options), told


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_noiseless_frames_give_back_the_depths(tmp_path, seed):
    layout = simulate(tmp_path / "data", (1, 0), NOISELESS, seed=seed)
    curve = quietly(layout, tmp_path)[0].curves["1000"]
    planet, light = draw_planet(np.random.default_rng([seed, 0])), curve.flux[0] / curve.flux[0][0]
    airs = true_light(planet, AIRS, 75)[:, AIRS.columns_kept][:, ::-1]
    fgs = true_light(planet, FGS1, 900).reshape(75, 12).mean(axis=1)
    for measured, true in ((light[:, 1:], airs), (light[:, :1], fgs[:, None])):
        scale = ((1 - measured) * (1 - true)).sum(axis=0) / ((1 - true) ** 2).sum(axis=0)  # of each depth
        assert abs(scale - 1).max() * planet.depth.max() < 1e-6
        assert abs(measured - true).max() < 1e-6
    asymmetric = abs(airs - airs[:, ::-1]).max()
    assert asymmetric > 3e-5, "a reversed spectrum would not be noticed"


def damage(layout, planet):
    "Faults by name: each damages the files of `planet`."
    signal = layout.signal("train", planet, AIRS, 0)
    folder = layout.calibration("train", planet, AIRS, 0)

    def edit(path, change):
        table = parquet.read_table(path)
        write_parquet(path, change(np.stack([c.to_numpy() for c in table.itercolumns()], axis=1)))

    def put(name, place, value):
        def change(values):
            values = values.astype(float) if value != value else values
            values[place] = value
            return values

        edit(folder / f"{name}.parquet", change)

    return {
        "no visit": lambda: [layout.signal("train", planet, s, 0).unlink() for s in SENSORS],
        "one sensor missing": signal.unlink,
        "swapped axes": lambda: edit(signal, lambda v: v.T),
        "swapped calibration": lambda: edit(folder / "dark.parquet", lambda v: v.T),
        "truncated": lambda: signal.write_bytes(signal.read_bytes()[:5000]),
        "empty file": lambda: signal.write_bytes(b""),
        "no flat": (folder / "flat.parquet").unlink,
        "all dead": lambda: put("dead", slice(None), 1),
        "NaN everywhere": lambda: put("dark", slice(None), np.nan),
        "all saturated": lambda: edit(signal, lambda v: v * 0 + 65535),
        "few frames": lambda: edit(signal, lambda v: v[:10]),
        "other frames": lambda: edit(signal, lambda v: v[:33]),
        "dead columns": lambda: put("dead", (slice(None), slice(100, 103)), 1),
        "dead row": lambda: put("dead", 15, 1),
        "some saturated": lambda: edit(signal, lambda v: np.where(np.arange(v.shape[1]) % 50 == 0, 65535, v)),
        "some NaN": lambda: put("linear_corr", (slice(None), 7), np.nan),
        "zero in flat": lambda: put("flat", (3, slice(None)), 0),
    }


COSTS_THE_PLANET = {
    "no visit": "no signal file",
    "one sensor missing": "AIRS-CH0_signal_0.parquet is not readable: it is missing",
    "swapped axes": "11392 pixels|its axes are swapped|has 40 columns",
    "swapped calibration": r"dark.parquet has the shape \(356, 32\), not \(32, 356\). Its axes are swapped",
    "truncated": "is not readable",
    "empty file": "is not readable",
    "no flat": "flat.parquet is not readable: it is missing",
    "all dead": "100% of the pixels",
    "NaN everywhere": "100% of the pixels",
    "all saturated": "100% of the pixels",
    "few frames": "10 frames, fewer than the 16",
}
IS_READ = {"other frames", "dead columns", "dead row", "some saturated", "some NaN", "zero in flat"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    "Planets 1000 and 1007, and 1014 with two visits."
    return simulate(tmp_path_factory.mktemp("ariel") / "data", (3, 0), SMALL)


@pytest.fixture(scope="module")
def kept(data, tmp_path_factory):
    "A cache with the light of planet 1007."
    folder = tmp_path_factory.mktemp("kept")
    quietly(data, folder, planets=["1007"])
    return folder / "cache"


@pytest.mark.slow
@pytest.mark.parametrize("fault", sorted({*COSTS_THE_PLANET, *IS_READ}))
def test_a_damaged_planet_costs_at_most_itself(data, kept, tmp_path, fault):
    layout = type(data)(tmp_path / "data")
    shutil.copytree(data.folder, layout.folder, ignore=shutil.ignore_patterns("1014"))
    damage(layout, "1000")[fault]()
    found, told = quietly(layout, tmp_path, earlier=[kept])
    assert "1007" in found.curves
    if fault in COSTS_THE_PLANET:
        assert list(found.failed) == ["1000"]
        assert "1000 is not readable and gets a fallback" in told[0]
        assert re.search(COSTS_THE_PLANET[fault], told[0])
    else:
        assert not found.failed and np.isfinite(found.curves["1000"].flux[0]).all()
        notes = " ".join(found.curves["1000"].notes)
        assert ("saturated" in notes) == (fault == "some saturated") and ("33 frames" in notes) == (
            fault == "other frames"
        )


@pytest.mark.slow
def test_a_session_goes_on_with_the_cache_of_another(data, tmp_path):
    first, told = quietly(data, tmp_path, planets=["1000"])
    second, more = quietly(data, tmp_path, planets=BOTH)
    assert "1 of 1 planets" in told[-1] and "1 of 1 planets" in more[-1] and list(second.curves) == ["1000", "1007"]
    (path,) = [p for p in (tmp_path / "cache").rglob("1000.npz")]
    path.write_bytes(path.read_bytes()[:100])  # torn
    third, _ = quietly(data, tmp_path, planets=BOTH)
    assert (third.curves["1000"].flux[0] == first.curves["1000"].flux[0]).all()
    assert quietly(data, tmp_path, planets=BOTH, steps=Steps(clip=0))[1][-1].startswith("2 of 2")


@pytest.mark.slow
def test_columns_that_ascend_in_axis_info_are_not_turned(data, tmp_path):
    layout = type(data)(tmp_path / "data")
    shutil.copytree(data.folder, layout.folder, ignore=shutil.ignore_patterns("1007", "1014"))
    axes = parquet.read_table(layout.folder / "axis_info.parquet").to_pandas()
    axes[::-1].to_parquet(layout.folder / "axis_info.parquet")
    (down, _), (up, _) = (quietly(place, tmp_path / str(place is data), planets=["1000"]) for place in (data, layout))
    assert "from short to long" in up.curves["1000"].notes[0] and not down.curves["1000"].notes
    both = [found.curves["1000"].flux[0][:, 5:] for found in (down, up)]  # the labels' columns are not in the middle
    assert np.allclose(both[0], both[1][:, ::-1], rtol=1e-9), "sums in the other order differ by rounding only"


@pytest.mark.slow
def test_two_processes_give_the_same_light(data, tmp_path):
    one, _ = quietly(data, tmp_path / "one", planets=BOTH)
    two, _ = quietly(data, tmp_path / "two", planets=BOTH, workers=2)
    assert all((one.curves[name].flux[0] == two.curves[name].flux[0]).all() for name in one.curves)


@pytest.mark.slow
def test_each_visit_has_its_own_calibration_and_every_one_by_choice(data, tmp_path):
    layout = type(data)(tmp_path / "data")
    shutil.copytree(data.folder, layout.folder)
    own, _ = quietly(layout, tmp_path, planets=["1014"])
    every, _ = quietly(layout, tmp_path, planets=["1014"], how=Extraction(every_calibration=True))
    assert len(own.curves["1014"].flux) == 2 and len(every.curves["1014"].flux) == 4
    assert (every.curves["1014"].flux[3] == own.curves["1014"].flux[1]).all()
    layout.signal("train", "1014", FGS1, 1).unlink()
    left, _ = quietly(layout, tmp_path, planets=["1014"])
    assert len(left.curves["1014"].flux) == 1 and "missing" in left.curves["1014"].notes[0]


@pytest.mark.slow
def test_the_layout_of_2024_is_read(tmp_path):
    layout = simulate(tmp_path / "data", (1, 1), SMALL, year=2024)
    for split, planet in (("train", "1000"), ("test", "1007")):
        assert quietly(layout, tmp_path, split)[0].curves[planet].flux[0].shape == (20, 283)


@pytest.mark.slow
def test_the_aperture_follows_jitter(tmp_path):
    layout = simulate(
        tmp_path / "data", (1, 0), Instrument(**{**NOISELESS.__dict__, "jitter": 3.0, "pairs": (20, 240)})
    )
    planet = draw_planet(np.random.default_rng([0, 0]))
    true = true_light(planet, AIRS, 20)[:, AIRS.columns_kept][:, ::-1]
    errors = []
    for centre in (True, False):
        found, _ = quietly(layout, tmp_path, how=Extraction(half=3, centre=centre))
        light = found.curves["1000"].flux[0][:, 1:]
        errors.append(abs(light / light[0] - true).std())
    assert errors[0] < errors[1] / 3


def official(frames, detector, sensor, steps, bins):
    "The official order in plain NumPy, pixel by pixel where that is clearer; NaN in dead and hot pixels."
    x = frames.astype(np.float64) / GAIN + steps.offset_sign * OFFSET
    seconds = {
        "host": (0.1, 4.6 if sensor is AIRS else 0.2),
        "axis": (0.1, 4.5 if sensor is AIRS else 0.2),
        "reset": (0.1, 4.8 if sensor is AIRS else 0.4),
        "none": (0, 0),
    }[steps.dark]
    dark = np.array([detector["dark"] * seconds[i % 2] for i in range(len(x))])
    if steps.dark_first:
        x = x - dark
    if steps.linearity:
        x = sum(c * x**power for power, c in enumerate(detector["linear_corr"]))
    if not steps.dark_first:
        x = x - dark
    pairs = [x[i + 1] - x[i] for i in range(0, len(x) - 1, 2)]
    per = len(pairs) // bins
    light = np.array([sum(pairs[k * per : (k + 1) * per]) for k in range(bins)])
    if steps.flat:
        light = light / detector["flat"]
    bad = detector["dead"] == 1
    if steps.mask_hot:
        kept = detector["dark"].ravel()
        for _ in range(5):
            kept = kept[abs(kept - np.median(kept)) <= 5 * kept.std()]
        bad = bad | (detector["dark"] < kept.min()) | (detector["dark"] > kept.max())
    return np.where(bad, np.nan, light)


@pytest.mark.parametrize("sensor", SENSORS, ids=lambda sensor: sensor.name)
@pytest.mark.parametrize(
    "steps",
    [
        Steps(clip=0),
        Steps(clip=0, mask_hot=True, flat=False),
        Steps(clip=0, linearity=False, dark="axis", offset_sign=-1),
        Steps(clip=0, dark_first=True, dark="reset"),
        Steps(clip=0, dark="none"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("frames", "bins"), [(33, 7), (40, 20), (17, 8)], ids=["odd-remainder", "even", "odd-small"])
def test_the_official_order_for_odd_frames_and_a_remainder(visit, sensor, steps, frames, bins):
    raw, detector = visit.frames[sensor.name][:frames], visit.detectors[sensor.name]
    wanted = official(raw, detector, sensor, steps, bins)
    for found in both_ways(raw, detector, sensor, steps, bins):
        assert (np.isnan(found) == np.isnan(wanted)).all()
        assert np.nanmax(abs(found - wanted)) < 1e-6 * np.nanmax(abs(wanted))
