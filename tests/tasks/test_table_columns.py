"Columns of every kind: gaps, dates, yes and no, categories, mixed values, and all ways to store them."

import operator
import warnings
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pandas
import pytest
import torch

import helpers
from spectrakit.cli.main import main
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.tasks.table.columns import as_numbers, look_at_columns
from spectrakit.tasks.table.table import Table

ROWS = 40
OPTIONS = {"bad_numbers": "refuse", "max_categories": 20}
TEXTS = ["red", None, "blue", "red"] * 10
FLAGS = [True, None, False, True] * 10
DAYS = [date(2026, 1, 1) + timedelta(days=i) for i in range(ROWS)]


def inputs_of(seen, later, **options):
    "The notes on a column, its kind, and the inputs of another table's column."
    notes = []
    rows = np.arange(len(seen))
    given = {**OPTIONS, **options}
    table = pandas.DataFrame({"anchor": rows, "column": seen})
    columns = look_at_columns(table, rows, list(table), given, notes)
    other = pandas.DataFrame({"anchor": np.arange(len(later)), "column": later})
    return columns, columns.encode(other, "test.csv", notes), notes


@pytest.mark.parametrize("later", ["object", "str", "string", "category"])
@pytest.mark.parametrize("seen", ["object", "str", "string", "category"])
def test_texts_with_gaps_are_categories_however_they_are_stored(seen, later):
    asked = pandas.Series(["blue", None, "green", "red"], dtype=later)
    columns, inputs, notes = inputs_of(pandas.Series(TEXTS, dtype=seen), asked)
    assert columns.levels == {"column": ["blue", "red"]} and not notes
    assert inputs[:, 1].tolist() == [1, 0, 0, 2]  # missing and new are both 0


@pytest.mark.parametrize("missing", [None, np.nan, pandas.NA])
def test_each_value_for_what_is_missing_is_none_of_the_categories(missing):
    columns, inputs, _ = inputs_of(pandas.Series(["b", missing, "a"] * 5, dtype=object), [missing, "b"])
    assert columns.levels == {"column": ["a", "b"]} and inputs[:, 1].tolist() == [0, 2]


@pytest.mark.parametrize("later", ["object", "boolean", "text", "number"])
@pytest.mark.parametrize("seen", ["object", "boolean", "bool"])
def test_yes_and_no_with_gaps_or_without(seen, later):
    values = FLAGS if seen != "bool" else [bool(flag) for flag in FLAGS]
    asked = {"text": ["true", "no idea", "False"], "number": [1.0, np.nan, 0.0]}.get(later)
    asked = pandas.Series([True, None, False], dtype=later) if asked is None else pandas.Series(asked)
    columns, inputs, notes = inputs_of(pandas.Series(values, dtype=seen), asked)
    assert columns.levels == {"column": ["False", "True"]} and not notes
    assert inputs[:, 1].tolist() == [2, 0, 1]


@pytest.mark.parametrize("stored", ["Int64", "Float64", "float64", "object", "decimal", "text"])
def test_numbers_with_gaps(stored):
    numbers = [1, None, 3, 5] * 10
    if stored == "decimal":
        column = pandas.Series([None if n is None else Decimal(n) for n in numbers])
    elif stored == "text":
        column = pandas.Series([None if n is None else str(n) for n in numbers])
    else:
        column = pandas.Series(numbers, dtype=stored)
    columns, inputs, _ = inputs_of(column, pandas.Series([3, None], dtype="Int64"))
    assert columns.numbers == ["anchor", "column"] and columns.gaps == ["column"]
    assert inputs[:, 1:].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("stored", ["texts", "texts with a time", "dates", "datetime64[s]", "zoned", "category"])
def test_dates_are_numbers_that_grow_with_time(stored):
    texts = [f"{day}T06:00:00Z" if stored == "texts with a time" else str(day) for day in DAYS]
    texts[7] = None
    column = pandas.Series(texts)
    if stored == "dates":
        column = pandas.Series([None if text is None else day for text, day in zip(texts, DAYS, strict=True)])
    elif stored in ("datetime64[s]", "zoned"):
        column = pandas.to_datetime(column).astype("datetime64[s]")
        column = column.dt.tz_localize("Europe/Berlin") if stored == "zoned" else column
    elif stored == "category":
        column = pandas.to_datetime(column)
    values, wrong = as_numbers(column)
    assert not len(wrong) and np.isnan(values[7])
    assert np.all(np.diff(np.delete(values, 7)) > 80_000) and values[9] - values[8] == pytest.approx(86400)


def test_dates_of_other_centuries_are_numbers():
    texts = pandas.Series(["1500-01-01", "2026-01-01", "9999-12-31"]).astype("datetime64[s]")
    assert np.all(np.diff(as_numbers(texts)[0]) > 1e10)


def test_durations_are_seconds():
    values, _ = as_numbers(pandas.Series(pandas.to_timedelta(["1D", None, "2h"])))
    assert values[[0, 2]].tolist() == [86400, 7200] and np.isnan(values[1])


def test_texts_that_hold_dates_among_others_stay_texts():
    columns, _, _ = inputs_of(["2026-01-01", "soon", "late", None] * 10, ["soon"])
    assert columns.levels == {"column": ["2026-01-01", "late", "soon"]}


def test_a_date_that_is_none_is_refused_in_training_and_missing_in_the_test():
    texts = list(map(str, DAYS))
    with pytest.raises(RequestError, match=r"mixes text and dates: 'soon' in row 4 \(1 of 40\)"):
        inputs_of([*texts[:3], "soon", *texts[4:]], texts)
    columns, inputs, notes = inputs_of(texts, [*texts[:30], "soon"])
    assert columns.numbers == ["anchor", "column"] and inputs[30, 1] == 0
    assert any("'column' of test.csv has 1 text among its numbers, such as 'soon'" in note for note in notes)


@pytest.mark.parametrize(
    ("seen", "later"),
    [
        ([1, "a", 2.0, None] * 10, [1.0, 2, None]),
        (["1", "a", "2", None] * 10, [1.0, 2.0, None]),
        (["1", "a", "2", ""] * 10, pandas.Series([1, 2, None], dtype="Int64")),
        (["01", "a", "02", None] * 10, [1, 2, 9]),
        ([True, "1", "a", "2"] * 10, ["1", "2", None]),
    ],
)
def test_numbers_and_texts_in_one_column_are_categories_that_another_file_may_spell_as_numbers(seen, later):
    columns, inputs, _ = inputs_of(pandas.Series(seen, dtype=object), later)
    levels = columns.levels["column"]
    assert inputs[:, 1].tolist() == [levels.index("1") + 1, levels.index("2") + 1, 0]


@pytest.mark.parametrize(
    "stored", ["object", "float64", "str", "string", "category", "datetime64[s]", "Int64", "boolean"]
)
def test_a_column_without_a_value_is_left_out_or_missing(stored):
    empty = pandas.Series([None] * ROWS, dtype=stored)
    columns, inputs, notes = inputs_of(empty, empty)
    assert columns.numbers == ["anchor"] and not columns.levels and inputs.shape == (ROWS, 1)
    assert notes == ["'column' is left out: it has no value in training"]
    for seen in (TEXTS, list(range(ROWS)), DAYS, FLAGS):
        assert np.isfinite(inputs_of(pandas.Series(seen), empty)[1]).all()


def test_a_column_whose_values_are_all_held_out_is_left_out():
    notes, table = [], pandas.DataFrame({"a": range(4), "b": [None, None, None, "x"]})
    columns = look_at_columns(table, np.arange(3), ["a", "b"], OPTIONS, notes)
    assert not columns.levels and notes == ["'b' is left out: it has no value in training"]


def test_many_different_texts_are_left_out_and_told():
    columns, _, notes = inputs_of([f"name {i}" if i % 3 else None for i in range(ROWS)], ["name 1"])
    assert columns.numbers == ["anchor"] and not columns.levels
    assert notes == ["'column' is left out: it has 26 different texts, more than task.max_categories=20"]


def test_an_unforeseen_error_of_a_column_is_a_sentence_that_names_it(monkeypatch):
    def broken(*args, **more):
        raise TypeError("'<' not supported")

    monkeypatch.setattr(pandas, "to_numeric", broken)
    with pytest.raises(RequestError, match=r"'anchor' of the training table.*TypeError.*task.drop=\[anchor\]"):
        inputs_of([1.0, 2.0], [1.0])


def competition(folder, rows=ROWS):
    "Tables with a column of each kind, as pandas frames by name."
    rng = np.random.default_rng(0)

    def some(first):
        return pandas.DataFrame(
            {
                "PassengerId": range(first, first + rows),
                "Age": pandas.Series(rng.normal(30, 9, rows)).where(rng.random(rows) > 0.2),
                "Cabin": pandas.Series(rng.choice(["A1", "B2", "C3"], rows)).where(rng.random(rows) > 0.7),
                "Embarked": pandas.Series(rng.choice(["S", "C", "Q"], rows)).where(rng.random(rows) > 0.1),
                "Ticket": rng.choice(["17", "A/5 21", "350", "PC 9"], rows),
                "VIP": pandas.Series(rng.random(rows) > 0.5, dtype=object).where(rng.random(rows) > 0.1),
                "Name": [f"Braund, Mr. {first + i}" for i in range(rows)],
                "boarded": map(str, DAYS),
                "empty": None,
            }
        )

    train, test = some(0), some(1000)
    train["Survived"] = rng.random(rows) > 0.5
    sample = pandas.DataFrame({"PassengerId": test["PassengerId"], "Survived": False})
    return {"train": train, "test": test, "sample_submission": sample}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_competition_with_all_of_them_can_be_learned_and_answered(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    for name, table in competition(tmp_path).items():
        if form == "csv":
            table.to_csv(tmp_path / f"{name}.csv", index=False)
        else:
            table.convert_dtypes().astype({"Cabin": "category"} if "Cabin" in table else {}).to_parquet(
                tmp_path / f"{name}.parquet", index=False
            )
    task, cfg = Table(tmp_path), compose("task.name=table", "task.max_categories=20")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told, model = task.describe(cfg), task.model(cfg).eval()
        sample = task.datasets(cfg)[0].tensors
        assert torch.isfinite(task.loss(model, sample))
        with torch.inference_mode():
            table = task.submission(task.predict(model, task.test_dataset(cfg).tensors).numpy())
    columns = task.training(cfg).recipe.columns
    assert columns.numbers == ["Age", "boarded"] and list(columns.levels) == ["Cabin", "Embarked", "Ticket", "VIP"]
    assert "'Name' is left out" in told and "'empty' is left out" in told and table.notna().all(axis=None)
    assert set(map(str, table["Survived"])) <= {"True", "False"} and table["PassengerId"].tolist()[0] == 1000


def test_the_command_trains_on_gaps_and_hands_in_what_it_predicted(tmp_path):
    for name, table in competition(tmp_path).items():
        (tmp_path / "data").mkdir(exist_ok=True)
        table.to_csv(tmp_path / "data" / f"{name}.csv", index=False)
    words = ["task.data=data", "trainer.max_epochs=1", "trainer.accelerator=cpu", "task.max_categories=20"]
    done = helpers.run_cli(tmp_path, "train", "table", *words, "--predict", "submission.csv")
    assert done.returncode == 0, done.stderr
    table = pandas.read_csv(tmp_path / "submission.csv")
    assert table["PassengerId"].tolist() == list(range(1000, 1000 + ROWS)) and table["Survived"].dtype == bool


def test_an_error_in_the_built_in_task_is_a_sentence(tmp_path, monkeypatch, capsys):
    for name, table in competition(tmp_path).items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)

    monkeypatch.setattr("spectrakit.tasks.table.data.folds_of", operator.lt)  # which takes two arguments
    monkeypatch.chdir(tmp_path)
    words = ["task.data=.", "trainer.accelerator=cpu", "launch.mode=inline", "--predict", "submission.csv"]
    assert main(["train", "table", *words]) == 1
    told = "".join(capsys.readouterr())
    assert "Table.training raised TypeError: lt expected 2 arguments" in told
    assert "This is an error in spectrakit's own task; report it" in told
