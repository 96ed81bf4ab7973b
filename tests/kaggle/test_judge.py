"A submission is judged as it is on the disk: with what Kaggle refuses it is no submission."

import pytest

from spectrakit.kaggle.rehearsal.rehearse import judge
from spectrakit.kaggle.rehearsal.session import Session
from spectrakit.prediction.submission_check import Sample, sheet_of

NUMBERS = "id,y\n1,0.5\n2,0.5\n3,0.5\n"
TWO = "id,low,high\na,0.5,0.5\nb,0.5,0.5\n"
MASKS = "id,rle\n0001,1 3\n0002,\n"
FLAGS = "id,y\n1,False\n2,False\n"
TASTES = "id,taste\n1,sweet\n2,sour\n"

VERDICTS = {
    "as asked": (NUMBERS, "id,y\n1,.1\n2,-2e-3\n3,4\n", "ok"),
    "in another order": (NUMBERS, "id,y\n3,.1\n1,.2\n2,.3\n", "ok"),
    "columns in another order": (TWO, "high,low,id\n.1,.9,a\n.2,.8,b\n", "ok"),
    "an empty mask": (MASKS, "id,rle\n0001,\n0002,5 2\n", "ok"),
    "words": (TASTES, "id,taste\n1,sour\n2,bitter\n", "ok"),
    "windows' line ends": (NUMBERS, "id,y\r\n1,.1\r\n2,.2\r\n3,.3\r\n", "ok"),
    "an index": (NUMBERS, ",id,y\n0,1,.1\n1,2,.2\n2,3,.3\n", "error"),
    "an index of its own name": (NUMBERS, "Unnamed: 0,id,y\n0,1,.1\n1,2,.2\n2,3,.3\n", "error"),
    "another case": (NUMBERS, "ID,y\n1,.1\n2,.2\n3,.3\n", "error"),
    "one more column": (TWO, "id,low,high,sum\na,.1,.9,1\nb,.2,.8,1\n", "error"),
    "a column is missing": (TWO, "id,low\na,.1\nb,.2\n", "error"),
    "an empty number": (TWO, "id,low,high\na,.1,\nb,.2,.8\n", "error"),
    "NaN": (NUMBERS, "id,y\n1,.1\n2,NaN\n3,.3\n", "error"),
    "None": (NUMBERS, "id,y\n1,.1\n2,None\n3,.3\n", "error"),
    "minus infinity": (NUMBERS, "id,y\n1,.1\n2,-inf\n3,.3\n", "error"),
    "a tensor": (NUMBERS, "id,y\n1,tensor(0.1)\n2,.2\n3,.3\n", "error"),
    "an array": (NUMBERS, 'id,y\n1,"[0.1, 0.2]"\n2,.2\n3,.3\n', "error"),
    "percent": (NUMBERS, "id,y\n1,10%\n2,.2\n3,.3\n", "error"),
    "a decimal comma": (NUMBERS, 'id,y\n1,"0,1"\n2,.2\n3,.3\n', "error"),
    "tabs": (NUMBERS, "id\ty\n1\t.1\n2\t.2\n3\t.3\n", "error"),
    "an id twice": (NUMBERS, "id,y\n1,.1\n1,.2\n3,.3\n", "error"),
    "an id is missing": (NUMBERS, "id,y\n1,.1\n2,.2\n", "error"),
    "another id": (NUMBERS, "id,y\n1,.1\n2,.2\n4,.3\n", "error"),
    "zeros of ids are lost": (MASKS, "id,rle\n1,\n2,\n", "error"),
    "no header": (NUMBERS, "1,.1\n2,.2\n3,.3\n", "error"),
    "nothing": (NUMBERS, "", "error"),
    "a column twice": (NUMBERS, "id,y,y\n1,.1,.1\n2,.2,.2\n3,.3,.3\n", "error"),
    "a torn row": (NUMBERS, "id,y\n1,.1\n2,.2\n3", "error"),
    "ids with a point": (NUMBERS, "id,y\n1.0,.1\n2.0,.2\n3.0,.3\n", "warning"),
    "flags": (FLAGS, "id,y\n1,True\n2,false\n", "ok"),
    "flags as numbers": (FLAGS, "id,y\n1,1\n2,0\n", "ok"),
    "chances in place of flags": (FLAGS, "id,y\n1,0.9\n2,0.2\n", "error"),
    "words in place of flags": (FLAGS, "id,y\n1,yes\n2,no\n", "error"),
    "an empty word": (TASTES, "id,taste\n1,\n2,sour\n", "warning"),
}


@pytest.mark.parametrize(("sample", "table", "level"), VERDICTS.values(), ids=VERDICTS)
def test_a_submission_is_judged_as_it_is(tmp_path, sample, table, level):
    (tmp_path / "submission.csv").write_bytes(table.encode())
    findings = judge(Session(0, "", tmp_path), Sample(sheet_of(sample), "sample_submission.csv"), "public data")
    assert [f.level for f in findings] == [level], findings
    assert (tmp_path / "submission.csv").read_bytes() == table.encode()


def test_a_file_that_is_no_parquet_is_a_finding(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "submission.parquet").write_bytes(b"id,y")
    (finding,) = judge(Session(0, "", tmp_path), Sample(sheet_of(NUMBERS), "sample_submission.csv"), "public data")
    assert finding.level == "error" and "The submission '" in finding.text and "cannot be read" in finding.text
