"The answer that stands in where a prediction is late: of the sample's form, and as answers have been so far."

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from spectrakit.prediction.submission_check import Sample, Sheet
from spectrakit.serving.standing_answer import StandingAnswer, mend
from spectrakit.system.errors import RequestError

SAMPLE = Sample(Sheet(("id", "price"), [["1", "100"], ["2", "100"]]), "sample_submission.csv")
BATCH = pd.DataFrame({"id": [7, 8, 9], "size": [1.0, 2.0, 3.0]})


def test_before_anything_was_predicted_it_is_the_samples():
    found = StandingAnswer(sample=SAMPLE).answer(BATCH)
    assert list(found.columns) == ["id", "price"]
    assert list(found["id"]) == [7, 8, 9] and list(found["price"]) == [100, 100, 100]


def test_what_was_predicted_is_what_is_usual():
    standing = StandingAnswer(sample=SAMPLE)
    for prices in ([1.0, 3.0], [5.0, 7.0], [9.0]):
        standing.learn(pd.DataFrame({"id": range(len(prices)), "price": prices}))
    assert list(standing.answer(BATCH)["price"]) == [7.0] * 3  # the middle of all, the sample's two 100 included


def test_the_users_own_comes_first():
    assert list(StandingAnswer(prior={"price": 42.0}, sample=SAMPLE).answer(BATCH)["price"]) == [42.0] * 3
    assert StandingAnswer(prior=lambda batch: len(batch)).answer(BATCH) == 3


@pytest.mark.parametrize("prior", [{"prize": 1.0}, {"price": 1.0, "y": 0}, [1.0, 2.0], ("a",)])
def test_what_no_row_could_have_is_refused(prior):
    with pytest.raises(RequestError, match="prior="):
        StandingAnswer(prior, SAMPLE)
    StandingAnswer(prior, SAMPLE, is_table=False)  # an answer of another form


def test_single_answers_have_no_table():
    standing = StandingAnswer(is_table=False)
    for value in ("cat", "dog", "cat"):
        standing.learn(value)
    assert standing.answer(np.zeros(3)) == "cat"


def frame(ids, prices, **more):
    return pd.DataFrame({"id": ids, "price": prices, **more})


NAN, INF = float("nan"), float("inf")
MENDED = {
    "too few rows": (frame([7, 9], [1.0, 3.0]), [1.0, 100, 3.0], "rows were missing"),
    "no rows": (frame([], []), [100] * 3, "rows were missing"),
    "too many rows": (frame([7, 8, 9, 10], [1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0], "not asked for"),
    "other ids": (frame([1, 2, 3], [1.0, 2.0, 3.0]), [100] * 3, "its ids differed"),
    "another order": (frame([9, 7, 8], [3.0, 1.0, 2.0]), [1.0, 2.0, 3.0], "in another order"),
    "ids as texts": (frame(["9", "7", "8"], [3.0, 1.0, 2.0]), [1.0, 2.0, 3.0], "in another order"),
    "NaN": (frame([7, 8, 9], [1.0, NAN, 3.0]), [1.0, 100, 3.0], "missing or infinite"),
    "infinite": (frame([7, 8, 9], [1.0, 2.0, -INF]), [1.0, 2.0, 100], "missing or infinite"),
    "None": (frame([7, 8, 9], [None, 2.0, 3.0]), [100, 2.0, 3.0], "missing or infinite"),
    "a text among numbers": (frame([7, 8, 9], [1.0, "high", 3.0]), [1.0, 100, 3.0], "missing or infinite"),
    "numbers as texts": (frame([7, 8, 9], ["1.0", "2", "3e0"]), [1.0, 2.0, 3.0], "numbers as texts"),
    "decimals": (frame([7, 8, 9], list(map(Decimal, "123"))), [1.0, 2.0, 3.0], "numbers as texts"),
    "NA": (frame([7, 8, 9], pd.array([1, None, 3], dtype="Int64")), [1, 100, 3], "missing or infinite"),
    "ids as an index": (frame([7, 8, 9], [1.0, 2.0, 3.0]).set_index("id"), [1.0, 2.0, 3.0], "its columns were not"),
    "ids with zeros": (frame(["009", "007", "08"], [3.0, 1.0, 2.0]), [1.0, 2.0, 3.0], "in another order"),
    "a column twice": (
        pd.DataFrame([[7, 1.0, 5.0], [8, 2.0, 5.0], [9, 3.0, 5.0]], columns=["id", "price", "price"]),
        [1.0, 2.0, 3.0],
        "its columns were not",
    ),
    "another column": (pd.DataFrame({"id": [7, 8, 9], "prize": [1.0] * 3}), [100] * 3, "no column 'price'"),
    "flags among numbers": (frame([7, 8, 9], [True, False, True]), [1, 0, 1], "True and False"),
    "ids as decimals": (frame([7.0, 8.0, 9.0], [1.0, 2.0, 3.0]), [1.0, 2.0, 3.0], "written in another way"),
    "an id twice": (frame([7, 7, 8], [1.0, 2.0, 3.0]), [1.0, 3.0, 100], "rows were missing"),
    "lists among numbers": (frame([7, 8, 9], [np.zeros(2), [1], 3.0]), [100, 100, 3.0], "missing or infinite"),
    "a number without an end": (frame([7, 8, 9], [10**400, 2, 3]), [100, 2, 3], "missing or infinite"),
    "no ids": (pd.DataFrame({"price": [1.0, 2.0, 3.0]}), [1.0, 2.0, 3.0], "its columns were not"),
    "no ids and too few rows": (pd.DataFrame({"price": [1.0, 2.0]}), [100] * 3, "no column 'id'"),
    "one column more": (frame([7, 8, 9], [1.0, 2.0, 3.0], size=1), [1.0, 2.0, 3.0], "its columns were not those"),
}


@pytest.mark.parametrize(("answer", "prices", "note"), MENDED.values(), ids=MENDED)
def test_an_answer_that_would_end_the_competition_is_mended_row_by_row(answer, prices, note):
    table, notes = mend(StandingAnswer(sample=SAMPLE), answer, [BATCH])
    assert list(table.columns) == ["id", "price"] and list(table["id"]) == [7, 8, 9]
    assert list(table["price"]) == prices and len(notes) == 1 and note in notes[0]


def test_a_right_answer_is_passed_on_as_it_is():
    standing = StandingAnswer(sample=SAMPLE)
    for answer in (frame([7, 8, 9], [1.0, 2.0, 3.0]), np.zeros(3), "cat", 0.5, [1, 2]):
        assert mend(standing, answer, [BATCH])[0] is answer
    several = frame([7, 7, 8], [1.0, 2.0, 3.0])  # the batch has no ids: nothing is known of its rows
    assert mend(standing, several, [BATCH[["size"]]])[0] is several


@pytest.mark.parametrize("answer", [NAN, INF, None, np.float32("nan")])
def test_a_single_answer_that_is_no_number_is_the_prior(answer):
    given, notes = mend(StandingAnswer(0.5, is_table=False), answer, [BATCH])
    assert given == 0.5 and len(notes) == 1


def test_gaps_have_the_prior_of_their_row():
    standing = StandingAnswer(lambda batch: frame(batch["id"], batch["size"] * 10), SAMPLE)
    table, _ = mend(standing, frame([7, 9], [1.0, NAN]), [BATCH])
    assert list(table["price"]) == [1.0, 20.0, 30.0]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_gaps_among_yes_and_no_are_filled_with_yes_or_no(library):
    make = pytest.importorskip(library).DataFrame
    sample = Sample(Sheet(("id", "y"), [["1", "False"], ["2", "False"]]), "sample_submission.csv")
    table, notes = mend(StandingAnswer(sample=sample), make({"id": [7, 8], "y": [True, None]}), [make({"id": [7, 8]})])
    assert list(table["y"]) == [True, False] and len(notes) == 1


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_single_column_is_mended_too(library):
    column = pytest.importorskip(library).Series(name="y", **{"data" if library == "pandas" else "values": [0.25, NAN]})
    sample = Sample(Sheet(("y",), [["0.5"], ["0.5"]]), "sample_submission.csv")
    table, notes = mend(StandingAnswer(sample=sample), column, [BATCH[:2]])
    assert list(table["y"]) == [0.25, 0.5] and len(notes) == 1
    assert mend(StandingAnswer(sample=sample), column[:1], [BATCH[:1]])[1] == ()


def test_whole_numbers_of_the_sample_fill_gaps_among_others():
    "A library that has one type for a column refuses a table with both."
    polars = pytest.importorskip("polars")
    batch = polars.DataFrame({"id": [7, 8, 9]})
    for answer in ({"id": [9, 8, 7], "price": [1.5, None, NAN]}, {"id": [9], "price": ["1.5"]}):
        table, notes = mend(StandingAnswer(sample=SAMPLE), polars.DataFrame(answer), [batch])
        assert table.to_dict(as_series=False) == {"id": [7, 8, 9], "price": [100.0, 100.0, 1.5]} and notes


def test_an_empty_text_is_no_answer_unless_the_sample_has_some():
    answer = pd.DataFrame({"id": [7, 8], "label": ["dog", " "]})
    for last, filled in (("cat", "cat"), ("", " ")):
        sample = Sample(Sheet(("id", "label"), [["1", "cat"], ["2", "cat"], ["3", last]]), "sample_submission.csv")
        assert list(mend(StandingAnswer(sample=sample), answer, [BATCH[:2]])[0]["label"]) == ["dog", filled]


def test_one_row_for_an_id_that_has_many_in_the_batch_is_right():
    batch, answer = pd.DataFrame({"id": [7, 7, 8], "x": [1, 2, 3]}), frame([7, 8], [1.0, 2.0])
    assert mend(StandingAnswer(sample=SAMPLE), answer, [batch]) == (answer, ())
    table, notes = mend(StandingAnswer(sample=SAMPLE), answer[:1], [batch])
    assert list(table["id"]) == [7, 8] and list(table["price"]) == [1.0, 100] and len(notes) == 1


def test_rows_without_ids_are_counted():
    standing = StandingAnswer(sample=Sample(Sheet(("price",), [["100"], ["100"]]), "sample_submission.csv"))
    for prices, right in (([1.0, 2.0], [1.0, 2.0, 100.0]), ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0]), ([5.0], [5.0])):
        assert list(mend(standing, pd.DataFrame({"price": prices}), [BATCH])[0]["price"]) == right
