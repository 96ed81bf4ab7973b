"What is handed in is spelled as the sample spells it, on every road by which a submission is written."

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.prediction.submission_check import Sample, checked, sheet_of
from spectrakit.prediction.submission_file import SubmissionFile, write_predictions, write_prior
from spectrakit.system.errors import RequestError


def handed_in(sample: str, table) -> list[list[str]]:
    "The rows of the file that is written of a table."
    return checked(table, Sample(sheet_of(sample), "sample.csv")).sheet.rows


@pytest.mark.parametrize(
    ("sample", "given"),
    [
        (["00042", "00007"], [42, 7]),
        (["00042", "00007"], [42.0, 7.0]),
        (["1", "2"], [1.0, 2.0]),
        (["1.0", "2.0"], [1, 2]),
        (["1.10", "1.20"], [1.1, 1.2]),
        (["007", "img"], ["7", "img"]),
        (["9007199254740993", "9007199254740992"], ["9007199254740993", "9007199254740992"]),
        (["1e5", "100000"], ["1e5", "100000"]),
        (["true", "false"], [True, False]),
        (["TRUE", "FALSE"], [1, 0]),
        (["2026-02-01", "2026-02-02"], pandas.to_datetime(["2026-02-01", "2026-02-02"])),
        (["2026-02-01", "2026-02-02"], list(pandas.to_datetime(["2026-02-01", "2026-02-02"]))),
        (["2026-02-01", "2026-02-02"], np.array(["2026-02-01", "2026-02-02"], "datetime64[ns]")),
        (["2026-02-01 00:00:00", "2026-02-01 01:00:00"], ["2026-02-01", "2026-02-01T01:00:00Z"]),
        (["20260201", "20260202"], list(pandas.to_datetime(["2026-02-01", "2026-02-02"]))),
        (["02/13/2026", "02/01/2026"], ["2026-02-13", "2026-02-01"]),
        (["13.02.2026", "01.02.2026"], ["2026-02-13 00:00:00", "2026-02-01 00:00:00"]),
    ],
)
def test_ids_are_written_as_the_sample_has_them(sample, given):
    text = "id,y\n" + "".join(f"{name},0.5\n" for name in reversed(sample))
    rows = handed_in(text, {"id": list(given), "y": [0.25, 0.75]})
    assert rows == [[sample[1], "0.75"], [sample[0], "0.25"]]


@pytest.mark.parametrize(
    ("sample", "given", "written"),
    [
        ("False", [True, False], ["True", "False"]),
        ("False", [1, 0], ["True", "False"]),
        ("True", [1.0, 0.0], ["True", "False"]),
        ("false", [True, False], ["true", "false"]),
        ("true", np.array([1, 0]), ["true", "false"]),
        ("FALSE", ["True", "False"], ["TRUE", "FALSE"]),
        ("No", [True, False], ["Yes", "No"]),
        ("f", [1, 0], ["t", "f"]),
        ("T", ["A", "1"], ["A", "1"]),
        ("0", [True, False], ["1", "0"]),
        ("0.0", [True, False], ["1.0", "0.0"]),
        ("0", [3.0, 4.0], ["3", "4"]),
        ("0.0", [3, 4], ["3.0", "4.0"]),
        ("0.5", [True, False], ["1", "0"]),
        ("007", [12, 3], ["012", "003"]),
        ("2026-11-30", list(pandas.to_datetime(["2026-02-01", "2026-02-02"])), ["2026-02-01", "2026-02-02"]),
        ("0", [0.25, 1.0], ["0.25", "1.0"]),
        ("False", [0.25, 1.0], ["0.25", "1.0"]),
        ("cat", ["dog", ""], ["dog", ""]),
        ("1 1", ["", ""], ["", ""]),
        ("1 1", ["5", ""], ["5", ""]),
        ("1 1", ["nan", "3 4"], ["nan", "3 4"]),
        ("0", ["3 4 20 6", ""], ["3 4 20 6", ""]),
        ("", ["3 4 20 6", ""], ["3 4 20 6", ""]),
        ("a b", ["c", None], ["c", ""]),
        ("a b", ["c", float("nan")], ["c", ""]),
        ("a b", ["c", pandas.NA], ["c", ""]),
    ],
)
@pytest.mark.parametrize("form", [dict, pandas.DataFrame, "rows"])
def test_answers_are_written_as_the_sample_has_them(sample, given, written, form):
    table = {"id": [1, 2], "y": list(given)}
    if form == "rows":
        table = [{"id": name, "y": value} for name, value in zip([1, 2], given, strict=True)]
    elif form is pandas.DataFrame:
        table = pandas.DataFrame(table)
    assert [row[1] for row in handed_in(f"id,y\n1,{sample}\n2,{sample}\n", table)] == written


@pytest.mark.parametrize("sample", ["0.5", "1", "False"])
@pytest.mark.parametrize("gap", [None, float("nan"), ""])
def test_only_columns_of_numbers_or_of_yes_and_no_are_filled(sample, gap):
    value, usual = (True, "True") if sample == "False" else (3, "3")
    table = {"id": [1, 2, 3], "y": [value, gap, value]}
    rows = handed_in(f"id,y\n1,{sample}\n2,{sample}\n3,{sample}\n", table)
    assert rows[1] == ["2", usual] and rows[0] == ["1", usual]


def test_ids_that_the_sample_does_not_have_are_written_in_its_way():
    rows = handed_in("id,y\n00042,0\n00007,0\n", {"id": [7, 12345, 9], "y": [1, 2, 3]})
    assert [row[0] for row in rows] == ["00042", "00007", "12345", "00009"]
    assert handed_in("id,y\n007,0\n", {"id": [8.0, 9.0], "y": [1, 2]}) == [["008", "1"], ["009", "2"]]


def test_two_ids_that_say_the_same_number_are_two():
    sample = "id,y\n7,0\n007,0\n"
    assert handed_in(sample, {"id": ["007", "7"], "y": [1, 2]}) == [["7", "2"], ["007", "1"]]
    with pytest.raises(RequestError, match="two answers for '7'"):
        handed_in(sample, {"id": [7, 7], "y": [1, 2]})


def test_ids_of_several_columns():
    sample = "planet,wave,flux\n01,0.50,0\n01,1.00,0\n02,0.50,0\n"
    table = {"planet": [2, 1, 1], "wave": [0.5, 1.0, 0.5], "flux": [5, 6, 7]}
    assert handed_in(sample, table) == [["01", "0.50", "7"], ["01", "1.00", "6"], ["02", "0.50", "5"]]


def test_a_mask_may_be_longer_than_what_csv_reads_by_default():
    mask = " ".join(str(n) for n in range(60_000))
    assert handed_in("id,mask\n1,1 1\n2,1 1\n", {"id": [1, 2], "mask": ["", mask]}) == [["1", ""], ["2", mask]]


def test_a_part_of_the_answers_is_written_over_the_sample(tmp_path):
    class Ids:
        def submission(self, predictions):
            return {"id": predictions["ids"], "mask": ["" if n else "3 4" for n in predictions["n"]]}

    sample = Sample(sheet_of("id,mask\n007,1 1\n008,1 1\n009,1 1\n"), "sample.csv")
    file = SubmissionFile(tmp_path / "s.csv", None, sample)
    write_prior(file)
    arrays = {"ids": np.array(["9", "7"]), "n": np.array([0, 1])}
    write_predictions(file, Ids(), arrays, 3)
    assert file.out.read_text() == "id,mask\n007,\n008,1 1\n009,3 4\n"


class Masks(sk.Task):
    "Two numbers and their sum; ids, a flag, a mask and a day are handed in."

    options = {"shift": 0.0}

    def datasets(self, cfg):
        x = torch.arange(24.0).remainder(5)[:, None].repeat(1, 2)
        return TensorDataset(x, x[:, 0]), None

    def test_dataset(self, cfg):
        return TensorDataset(torch.arange(4.0)[:, None].repeat(1, 2))

    def model(self, cfg):
        return nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def predict(self, model, batch):
        return batch[0][:, 0] + 0 * model(batch[0])  # known, whatever was learned

    def sample_submission(self, cfg):
        return "sample.csv"

    def submission(self, predictions):
        number = np.round(predictions).astype(int)
        return pandas.DataFrame(
            {
                "id": number + 7,
                "flag": number % 2 == 1,
                "mask": ["" if n % 2 else f"{n + 3} 4" for n in number],
                "day": pandas.Timestamp("2026-02-01"),
                "score": np.where(number == 2, np.nan, predictions),
            }
        )


WORDS = (
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "data.micro_batch_size=4",
    "launch.mode=inline",
    "run.console=none",
)
SAMPLE = "id,flag,mask,day,score\n" + "".join(f"{k:04},false,1 1,2026-01-01,0.5\n" for k in (10, 9, 8, 7))
WHOLE = [
    ["0010", "true", "", "2026-02-01", 3],
    ["0009", "false", "5 4", "2026-02-01", 1],  # no number: the middle one
    ["0008", "true", "", "2026-02-01", 1],
    ["0007", "false", "3 4", "2026-02-01", 0],
]


def whole(file):
    "The rows of a file, the score as a number."
    return [[*row[:-1], pytest.approx(float(row[-1]), abs=1e-4)] for row in sheet_of(file.read_text()).rows]


def test_every_road_to_a_submission_spells_as_the_sample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample.csv").write_text(SAMPLE)
    run = sk.fit(Masks(), *WORDS, predict="fit.csv", show=False)
    sk.predict(Masks(), run, out="predict.csv")
    cv = [
        sk.cross_validate(Masks(), *WORDS, f"optimizer.lr=0.0{n}", folds=2, predict=f"cv{n}.csv", show=False)
        for n in (1, 2)
    ]
    sk.predict(Masks(), runs=[run, *cv], out="ensemble.csv")
    sk.blend(*cv, metric="mse", task=Masks(), predict="blend.csv")
    for name in ("fit", "predict", "cv1", "cv2", "ensemble", "blend"):
        assert whole(tmp_path / f"{name}.csv") == WHOLE, name
