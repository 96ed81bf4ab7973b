"Twenty hidden test sets, each answered by a run and by five folds; and five folds that run out of time."

from pathlib import Path

import pandas as pd
import pytest

import spectrakit as sk
from spectrakit.kaggle.rehearsal.hidden_data import cut_data, hide
from spectrakit.prediction.submission_check import checked, read_sample

pytestmark = [pytest.mark.slow, pytest.mark.long]
WORDS = ("trainer.accelerator=cpu", "launch.mode=inline", "data.micro_batch_size=16", "dataloader.num_workers=0")


@pytest.fixture
def cup(tmp_path) -> Path:
    "A competition's data, with ids of text, a gap, and a column of texts."
    folder = tmp_path / "cup"
    folder.mkdir()
    rows = pd.DataFrame({"id": [f"s{i}" for i in range(140)], "size": range(140), "colour": ["red", "blue"] * 70})
    rows = rows.assign(price=rows["size"] * 0.5)
    rows.loc[5, "size"] = None
    rows[:120].to_csv(folder / "train.csv", index=False)
    rows[120:].drop(columns="price").to_csv(folder / "test.csv", index=False)
    rows[120:][["id"]].assign(price=100.5).to_csv(folder / "sample_submission.csv", index=False)
    return folder


def right(file: Path, sample: Path, predicted: bool = True) -> None:
    "The submission has the sample's ids in its order, and numbers that were predicted."
    found, wanted = pd.read_csv(file), read_sample(sample)
    result = checked(file.read_text(), wanted)
    assert not result.missing and not result.notes, result.notes
    assert list(found["id"]) == list(pd.read_csv(sample)["id"]) and found["price"].notna().all()
    assert (found["price"].nunique() > 10) is predicted


@pytest.mark.parametrize("seed", range(20))
def test_a_hidden_set_is_answered(tmp_path, cup, seed):
    small, out = tmp_path / "small", tmp_path / "submission.csv"
    cut_data(cup, small, 100)
    hide(small, seed)
    words = (*WORDS, f"task.data={small}", f"run.dir={tmp_path / 'runs'}", "trainer.max_epochs=2")
    run = sk.fit("table", *words, predict=out, show=False)
    assert run.status == "completed"
    right(out, small / "sample_submission.csv")
    out.unlink()
    cv = sk.cross_validate("table", *words, folds=5, predict=out, show=False)
    assert cv.status == "completed"
    right(out, small / "sample_submission.csv")


@pytest.mark.parametrize("seed", range(20))
def test_folds_that_run_out_of_time_leave_a_submission(tmp_path, cup, seed):
    """The limit ends the folds somewhere: in the first one, or between two. The file has the mean of those that were
    done, or the sample.
    """
    out = tmp_path / "submission.csv"
    words = (*WORDS, f"task.data={cup}", f"run.dir={tmp_path / 'runs'}", "trainer.max_epochs=200")
    limit = ("watchdog.since=run", f"watchdog.limit={10 + seed / 2}s")
    cv = sk.cross_validate("table", *words, *limit, folds=5, predict=out, show=False)
    done = [trial for trial in cv.trials if trial.done]
    found = pd.read_csv(out)
    assert list(found["id"]) == list(pd.read_csv(cup / "sample_submission.csv")["id"]) and found.notna().all().all()
    assert not done or found["price"].nunique() > 10
