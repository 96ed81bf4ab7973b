"The answer that stands in where a prediction is late: of the sample's form, and as answers have been so far."

import numpy as np
import pandas as pd
import pytest

from spectrakit.predictions.submission import Sample, Sheet
from spectrakit.serving.standing_answer import StandingAnswer
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
