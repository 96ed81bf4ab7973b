"The submission against the sample: what is mended, what is refused, and what stands in the file at each moment."

import gzip
import os
import random
from hashlib import sha256

import numpy as np
import pandas as pd
import pytest
import torch

from spectrakit.prediction.prediction_arrays import table_text
from spectrakit.prediction.submission_check import Sample, Sheet, checked, read_sample, sheet_of
from spectrakit.prediction.submission_file import (
    SubmissionFile,
    read_record,
    write_constant,
    write_predictions,
    write_prior,
)
from spectrakit.system.errors import RequestError


def sample_of(rows: int, prior: str = "0.5") -> Sample:
    return Sample(Sheet(("id", "answer"), [[str(k), prior] for k in range(rows)]), "sample_submission.csv")


class Task:
    "Its test samples have the ids 0, 1, 2, …"

    def submission(self, predictions):
        return {"id": range(len(predictions)), "answer": predictions[:, 0]}


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_any_order_some_twice_and_some_missing_become_the_samples(seed):
    draw, sample = random.Random(seed), sample_of(40)
    answers = {str(k): str(draw.random()) for k in range(40)}
    given = draw.sample(sorted(answers), 30)
    rows = [[key if draw.random() < 0.5 else f"{key}.0", answers[key]] for key in [*given, *given[:5]]]
    draw.shuffle(rows)
    before = Sheet(sample.sheet.columns, [[key, "0.25"] for key in answers])  # an earlier, whole file
    result = checked(Sheet(("id", "answer"), rows).text(), sample, before)
    expected = [[key, answers[key] if key in given else "0.25"] for key in map(str, range(40))]
    assert result.sheet.rows == expected and result.missing == 10
    assert any("5 rows were duplicates" in note for note in result.notes)


def test_two_answers_for_one_id_are_refused():
    with pytest.raises(RequestError, match="two answers for '1'"):
        checked({"id": [0, 1, 1], "answer": [0.1, 0.2, 0.3]}, sample_of(2))


def test_columns_are_named_and_ordered_as_in_the_sample():
    result = checked("Answer,weight,ID\n0.1,7,0\n0.2,7,1\n", sample_of(2))
    assert result.sheet == Sheet(("id", "answer"), [["0", "0.1"], ["1", "0.2"]])
    with pytest.raises(RequestError, match="no column 'answer'"):
        checked("id,prediction\n0,0.1\n", sample_of(1))


def test_a_gap_becomes_the_middle_value_and_is_told():
    result = checked({"id": range(4), "answer": [0.1, np.nan, 0.7, np.inf]}, sample_of(4))
    assert [row[1] for row in result.sheet.rows] == ["0.1", "0.7", "0.7", "0.7"]
    assert any("2 values of 'answer'" in note for note in result.notes)


def test_whole_numbers_stay_whole_and_texts_are_refused():
    assert checked("id,answer\n0,3.0\n1,4.0\n", sample_of(2, prior="0")).sheet.rows == [["0", "3"], ["1", "4"]]
    with pytest.raises(RequestError, match="holds 'cat', but sample_submission.csv has numbers there"):
        checked("id,answer\n0,cat\n", sample_of(1))


def test_what_cannot_be_a_probability_is_told():
    assert any(
        "1 values of 'answer' are not between 0 and 1" in n for n in checked("id,answer\n0,1.5\n", sample_of(1)).notes
    )


def test_the_file_is_the_sample_then_what_is_predicted_then_all_of_it(tmp_path):
    file = SubmissionFile(tmp_path / "submission.csv", tmp_path, sample_of(3, prior="0.125"))
    assert write_prior(file).source == "sample"
    assert file.out.read_text() == "id,answer\n0,0.125\n1,0.125\n2,0.125\n"
    state = write_predictions(file, Task(), {"predictions": np.array([[0.25], [0.75]])}, 3)
    assert (state.predicted, state.is_whole) == (2, False)
    assert [row[0] for row in sheet_of(file.out.read_text()).rows] == ["0", "1", "2"]
    assert write_predictions(file, Task(), {"predictions": np.ones((3, 1))}, 3).is_whole
    assert file.out.read_text() == "id,answer\n0,1.0\n1,1.0\n2,1.0\n"


def test_a_table_that_cannot_be_made_leaves_the_file_as_it_was(tmp_path):
    class Broken:
        def submission(self, predictions):
            return {"id": [0, 0, 1], "answer": [1, 2, 3]}

    file = SubmissionFile(tmp_path / "submission.csv", tmp_path, sample_of(3))
    write_prior(file)
    before = file.out.read_bytes()
    with pytest.raises(RequestError, match="two answers"):
        write_predictions(file, Broken(), {"predictions": np.ones((3, 1))}, 3)
    assert file.out.read_bytes() == before


def test_a_better_file_that_is_there_is_not_replaced_by_a_part(tmp_path):
    (tmp_path / "submission.csv").write_text("id,answer\n0,0.9\n1,0.8\n2,0.7\n")
    file = SubmissionFile(tmp_path / "submission.csv", tmp_path, sample_of(3))
    assert write_prior(file).source == "earlier"
    write_predictions(file, Task(), {"predictions": np.zeros((2, 1))}, 3)
    assert file.out.read_text() == "id,answer\n0,0.9\n1,0.8\n2,0.7\n"


def test_without_a_sample_a_constant_stands_for_all(tmp_path):
    file = SubmissionFile(tmp_path / "submission.csv", tmp_path)
    assert write_prior(file) is None and not file.out.exists()
    write_constant(file, Task(), {"predictions": np.array([[1.0], [2.0]])}, 3)
    assert file.out.read_text() == "id,answer\n0,1.5\n1,1.5\n2,1.5\n"


def test_without_a_sample_what_is_no_number_is_said(tmp_path):
    file, arrays = SubmissionFile(tmp_path / "s.csv", None), {"predictions": np.array([[0.5], [np.nan], [np.inf]])}
    state = write_predictions(file, Task(), arrays, 3)
    assert state.notes == ("2 of 3 values of 'answer' are empty or not finite",)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, 13))
def test_a_kill_between_two_writes_leaves_a_record_of_the_file_that_is_there(number, after, tmp_path, monkeypatch):
    "Before or after each of the files gets its name: whatever file is there, the record says what it holds."
    file, replace, calls = SubmissionFile(tmp_path / "submission.csv", tmp_path, sample_of(3)), os.replace, []

    def killed(source, target):
        calls.append(target)
        if len(calls) == number and not after:
            raise SystemExit
        replace(source, target)
        if len(calls) == number:
            raise SystemExit

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(SystemExit):
        write_prior(file)
        for done in range(1, 4):
            write_predictions(file, Task(), {"predictions": np.full((done, 1), done / 4)}, 3)
    monkeypatch.undo()
    if file.out.exists():
        state = read_record(tmp_path, file.out)
        assert state is not None and state.sha256 == sha256(file.out.read_bytes()).hexdigest()
        assert SubmissionFile(file.out, tmp_path, sample_of(3)).state == state
    done = write_predictions(SubmissionFile(file.out, tmp_path), Task(), {"predictions": np.ones((3, 1))}, 3)
    assert done.is_whole and read_record(tmp_path) == done


def test_a_packed_sample_is_read(tmp_path):
    (tmp_path / "sample_submission.csv.gz").write_bytes(gzip.compress(b"id,y\n1,0\n"))
    assert read_sample(tmp_path / "sample_submission.csv.gz").sheet == Sheet(("id", "y"), [["1", "0"]])


def as_rows(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("form", [pd.DataFrame, dict, as_rows])
def test_tensors_in_cells_are_their_values(form):
    columns = {
        "id": [torch.tensor(1), torch.tensor(2)],
        "y": [torch.tensor([0.1], requires_grad=True), np.float32(0.2)],
    }
    assert table_text(form(columns)) == "id,y\n1,0.1\n2,0.2\n"
    with pytest.raises(RequestError, match="3 values into one cell"):
        table_text(form({"id": [1], "y": [torch.zeros(3)]}))
