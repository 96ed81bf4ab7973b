"Ids and classes of CSV tables stay as they are written."

import pandas
import pytest

from spectrakit.config.compose import compose
from spectrakit.tasks.table.table import Table

ROWS = 12


def folder(place, ids, target=None, sample=None):
    "A competition whose test table and sample submission have these `ids`, the latter in the reverse order."
    x = [float(i) for i in range(ROWS)]
    train = pandas.DataFrame({"id": [f"{i:05d}" for i in range(ROWS)], "x": x, "kind": target or ["a", "b"] * 6})
    test = pandas.DataFrame({"id": ids, "x": x[: len(ids)]})
    given = pandas.DataFrame({"id": ids[::-1], "kind": sample or ["a"] * len(ids)})
    for name, table in (("train", train), ("test", test), ("sample_submission", given)):
        table.to_csv(place / f"{name}.csv", index=False)
    return Table(place)


@pytest.mark.parametrize(
    "ids",
    [
        ["00090", "00007", "10000"],
        ["NA", "nan", "None"],
        ["1.10", "1.1", "1"],
        ["true", "False", "7"],
        ["1e5", "5", "6"],
    ],
)
def test_ids_are_handed_in_as_they_are_written(tmp_path, ids):
    task = folder(tmp_path, ids)
    rows = task.test_rows(compose("task.name=table"))
    assert rows.ids["id"].tolist() == ids and rows.order.tolist() == [2, 1, 0] and not rows.notes


def test_plain_numbers_stay_numbers(tmp_path):
    rows = folder(tmp_path, [5, 7, 6]).test_rows(compose("task.name=table"))
    assert rows.ids["id"].tolist() == [5, 7, 6] and rows.order.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("target", "sample", "classes"),
    [
        (["None", "mild", "severe"] * 4, ["None"] * 2, ["None", "mild", "severe"]),
        (["None", "mild", "severe"] * 4, ["mild"] * 2, ["mild", "severe"]),  # nobody says that it is a class
        (["", "mild", "severe"] * 4, ["mild"] * 2, ["mild", "severe"]),
        (["007", "010"] * 6, ["007"] * 2, ["007", "010"]),
        ([7, 10] * 6, [7] * 2, [7, 10]),
    ],
)
def test_classes_are_those_that_the_file_has(tmp_path, target, sample, classes):
    training = folder(tmp_path, ["01", "02"], target, sample).training(compose("task.name=table"))
    assert training.recipe.question.classes == classes and training.recipe.question.answer == "label"
    assert len(training.y) == sum(str(value) in map(str, classes) for value in target)
