"Bad input from the folder to submission.csv: a note for each fault, and a complete submission in the sample's order."

import re
import shutil

import pytest

pytest.importorskip("pandas", reason="the extra `ariel` is not installed")
pytest.importorskip("pyarrow", reason="the extra `ariel` is not installed")
pytest.importorskip("scipy", reason="the extra `ariel` is not installed")

import numpy as np
import pandas
import pyarrow
from pyarrow import parquet

from spectrakit.system.errors import RequestError
from spectrakit.tasks.ariel.estimates import Estimate, read_orbits
from spectrakit.tasks.ariel.layout import AIRS, FGS1, SENSORS, SIGMA, WL, Layout, find_data, planets_in, read_csv
from spectrakit.tasks.ariel.light_curves import read_adc
from spectrakit.tasks.ariel.pipeline import answered, predict_spectra
from spectrakit.tasks.ariel.simulate import Instrument, simulate, write_parquet
from spectrakit.tasks.ariel.submission import fallback_spectrum, sample_columns, usable_labels, wanted_planets


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    "A planet with labels and sixteen without: 1007, 1014 with two visits, and copies of 1007."
    layout = simulate(tmp_path_factory.mktemp("ariel") / "data", (1, 2), Instrument(pairs=(16, 192)))
    copies = range(1021, 1021 + 7 * 14, 7)
    for name in copies:
        shutil.copytree(layout.folder / "test" / "1007", layout.folder / "test" / str(name))
    for path in (layout.folder / "sample_submission.csv", layout.stars("test")):
        table = pandas.read_csv(path)
        pandas.concat([table, *(table[:1].assign(planet_id=name) for name in copies)]).to_csv(path, index=False)
    return layout


def rewrite(path, change):
    "Change a Parquet file as an array; the first axis are its rows."
    columns = parquet.read_table(path).itercolumns()
    write_parquet(path, change(np.stack([column.to_numpy() for column in columns], axis=1)))


def put(path, place, value):
    def change(values):
        values = values.astype(float)
        values[place] = value
        return values

    rewrite(path, change)


def to_text(path):
    columns = parquet.read_table(path).to_pydict()
    parquet.write_table(pyarrow.table({name: [str(v) for v in column] for name, column in columns.items()}), path)


def to_file(path):
    shutil.rmtree(path)
    path.write_text("")


FAULTS = [  # damage to a planet; the note about it, or None for a planet that is read as if nothing were
    (lambda file, detector: [file(sensor).unlink() for sensor in SENSORS], "It has no signal file"),
    (lambda file, detector: [file(sensor).unlink() for sensor in SENSORS], "Visit 0 has no signal file"),  # of two
    (lambda file, detector: to_file(file(AIRS).parent), "has no test folder"),
    (lambda file, detector: rewrite(file(FGS1), lambda v: v.T), "FGS1_signal_0.parquet has .*axes are swapped"),
    (lambda file, detector: to_text(file(FGS1)), "FGS1_signal_0.parquet is not readable: it holds no numbers"),
    (lambda file, detector: to_text(detector(AIRS, "dark")), "dark.parquet is not readable: it holds no numbers"),
    (
        lambda file, detector: rewrite(file(AIRS), lambda v: v * 0),
        "AIRS-CH0 of visit 0: .* channels have no light",
    ),
    (lambda file, detector: rewrite(file(FGS1), lambda v: v * 0), "FGS1 of visit 0: .* channels have no light"),
    (lambda file, detector: put(detector(FGS1, "dead"), slice(None), 1), "FGS1 of visit 0: 100% of the pixels"),
    (lambda file, detector: put(detector(AIRS, "linear_corr"), slice(None), 0), "AIRS-CH0 of visit 0: 100% of the"),
    (lambda file, detector: put(detector(AIRS, "linear_corr"), (slice(None), 7), np.inf), None),
    (
        lambda file, detector: put(detector(AIRS, "dead"), (slice(None), slice(100, 160)), 1),
        r"AIRS-CH0 of visit 0: \d+% of the pixels have no usable value and are filled",
    ),
    (lambda file, detector: to_file(detector(AIRS, "dark").parent), "dark.parquet is not readable: it is missing"),
    (
        lambda file, detector: file(AIRS).write_bytes(file(AIRS).read_bytes()[:5000]),
        "AIRS-CH0_signal_0.parquet is not readable: Parquet magic bytes",
    ),
    (lambda file, detector: (file(AIRS).parent / ".DS_Store").write_text("more"), None),
]


def answer(folder, tmp_path):
    "Notes and submission for a folder of the competition; the notes name no path."
    notes = predict_spectra(find_data(folder), tmp_path / "s.csv", tmp_path / "cache", workers=1, say=lambda text: None)
    sent = pandas.read_csv(tmp_path / "s.csv", dtype={"planet_id": str})
    assert np.isfinite(sent[[*WL, *SIGMA]].to_numpy()).all() and (sent[SIGMA].to_numpy() > 0).all()
    assert not any(str(tmp_path) in note for note in notes)
    return notes, sent


@pytest.mark.slow
def test_each_damaged_planet_has_its_note_and_the_submission_is_complete(data, tmp_path):
    layout = Layout(tmp_path / "data")
    shutil.copytree(data.folder, layout.folder)
    planets, two = planets_in(layout, "test"), "1014"
    singles = [name for name in planets if layout.visits("test", name) == [0]]
    doubles = [name for name in planets if name != two and name not in singles]
    chosen = [singles[0], two, *singles[1:], *doubles][: len(FAULTS)]
    for (damage, _), name in zip(FAULTS, chosen, strict=True):
        if name in doubles:
            layout.signal("test", name, AIRS, 1).unlink()
            layout.signal("test", name, FGS1, 1).unlink()
            shutil.rmtree(layout.calibration("test", name, AIRS, 1))
        place = layout.folder / "test" / name
        damage(
            lambda sensor, at=place: at / f"{sensor.name}_signal_0.parquet",
            lambda sensor, kind, at=place: at / f"{sensor.name}_calibration_0" / f"{kind}.parquet",
        )
    (layout.folder / "test" / ".ipynb_checkpoints").mkdir()
    (layout.folder / "test" / "readme.md").write_text("more")
    notes, sent = answer(layout.folder, tmp_path)
    assert list(sent["planet_id"]) == planets
    assert list(sent.columns) == ["planet_id", *WL, *SIGMA]
    for (_, words), name in zip(FAULTS, chosen, strict=True):
        own = [note for note in notes if name in note and "usable transit" not in note]
        assert bool(own) == bool(words), (name, words, own)
        assert words is None or any(re.search(words, note) for note in own), (name, words, own)


@pytest.mark.slow
def test_broken_tables_end_with_notes_and_the_columns_of_the_sample(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data.folder, folder, ignore=lambda place, names: [n for n in names if "10" in n and n != "1007"])
    for name, change in {
        "sample_submission.csv": lambda t: pandas.concat([t.iloc[::-1], t.iloc[:1]])[["planet_id", *SIGMA, *WL]].join(
            pandas.Series("Public", t.index, name="Usage")
        ),
        "test_star_info.csv": lambda t: t.drop(columns="sma"),
        "train.csv": lambda t: t.assign(wl_5="deep"),
        "adc_info.csv": lambda t: t.assign(FGS1_adc_gain=0),
    }.items():
        table = pandas.read_csv(folder / name, dtype={"planet_id": str})
        change(table).to_csv(folder / name, index=False)
    notes, sent = answer(folder, tmp_path)
    assert list(sent.columns) == ["planet_id", *SIGMA, *WL] and list(sent["planet_id"])[-1] == "1007"
    assert len(sent) == 16 and sent["planet_id"].is_unique
    assert (sent[SIGMA].to_numpy() > 1e-3).all(), "no planet is learned from"
    told = ("568 columns", "Planet 1000 .* train.csv", "repeated", "no column 'sma'", "no usable gain .* FGS1")
    for words in (*told, "the baseline"):
        assert any(re.search(words, note) for note in notes), (words, notes)


GAINS = pandas.DataFrame({f"{s.name}_adc_{word}": [n] for s in SENSORS for word, n in (("gain", 0.4), ("offset", -9))})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.assign(FGS1_adc_gain="high"), "holds a text"),
        (lambda t: t.drop(columns="FGS1_adc_gain"), "no column 'FGS1_adc_gain'"),
        (lambda t: pandas.concat([t, 2 * t]), "has 2 rows that differ"),
    ],
)
def test_gains_that_cannot_be_told_are_refused(tmp_path, change, words):
    change(GAINS).to_csv(tmp_path / "adc_info.csv", index=False)
    with pytest.raises(RequestError, match=words):
        read_adc(Layout(tmp_path), "test")


@pytest.mark.parametrize("gain", [0, -0.4, np.nan, np.inf])
def test_a_gain_that_is_none_is_left_out(tmp_path, gain):
    pandas.concat([GAINS.assign(FGS1_adc_gain=gain)] * 2).to_csv(tmp_path / "adc_info.csv", index=False)
    assert [sensor for _, sensor in read_adc(Layout(tmp_path), "test")] == ["AIRS-CH0"]


@pytest.mark.parametrize(
    ("text", "labels", "words"),
    [(None, 0, "train.csv is missing"), ("", 0, "not a CSV table"), ("planet_id,wl_1\n1,0.1\n", 0, "no column 'wl_2'")],
)
def test_labels_that_are_not_there_leave_a_typical_depth(tmp_path, text, labels, words):
    if text is not None:
        (tmp_path / "train.csv").write_text(text)
    found, notes = usable_labels(Layout(tmp_path))
    assert len(found) == labels and len(notes) == 1 and re.search(words, notes[0])


def test_a_sample_that_is_no_table_leaves_the_folders(tmp_path):
    (tmp_path / "sample_submission.csv").write_text("")
    (tmp_path / "test" / "7").mkdir(parents=True)
    layout = Layout(tmp_path)
    assert wanted_planets(layout)[0] == ["7"] and sample_columns(layout) == ["planet_id", *WL, *SIGMA]
    table = pandas.DataFrame(0.1, index=range(3), columns=["planet_id", *WL, *SIGMA])
    table.assign(planet_id=["9", None, "8"]).to_csv(tmp_path / "sample_submission.csv", index=False)
    wanted, notes = wanted_planets(layout)
    assert wanted == ["9", "8", "7"] and "empty or repeated" in notes[0]


@pytest.mark.parametrize("text", ["7.0,0.1", " 7 ,0.1", "7,0.1"])
def test_ids_of_another_type_are_those_of_the_folders(tmp_path, text):
    (tmp_path / "table.csv").write_text(f"planet_id,wl_1\n{text}\n,0.2\n")
    assert list(read_csv(tmp_path / "table.csv", [])["planet_id"].dropna()) == ["7"]


def test_a_table_that_is_packed_or_a_folder_is_told(tmp_path):
    (tmp_path / "train.csv").mkdir()
    (tmp_path / "ariel.zip").write_text("")
    for name, words in (("train.csv", "not a CSV table: Is a directory"), ("other.csv", "Unpack ariel.zip")):
        with pytest.raises(RequestError, match=words):
            read_csv(tmp_path / name, [])


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_training_planets_leave_a_typical_depth_with_a_wide_sigma(count):
    depth = np.full(len(WL), 0.01)
    labels = {str(name): depth * (1 + name / 1e4) for name in range(count)}
    fits = {name: Estimate(depth, depth / 99, np.zeros(4), np.zeros((len(WL), 8)), True) for name in "01239"}
    assert answered(labels, fits, fits) == {} and fallback_spectrum(labels).sigma.min() > 0.01


def test_orbits_that_do_not_cross_the_star_are_fitted(tmp_path):
    stars = pandas.DataFrame({"planet_id": [0, 1, 2, 3, 4, 0, 5, 5], "P": [3, "?", 3, 3, 3, 3, 3, 4], "sma": 9.0})
    stars.loc[2, "sma"] = 1e9
    stars.assign(i=[89, 89, 89, 0, np.nan, 89, 89, 89]).to_csv(tmp_path / "test_star_info.csv", index=False)
    assert list(read_orbits(Layout(tmp_path), "test")) == ["0"]
