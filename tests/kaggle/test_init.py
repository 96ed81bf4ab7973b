"`kaggle init` fits the competition: its tables, its sample submission alone, or nothing of it yet."

import ast
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

from spectrakit.api.run import Run
from spectrakit.cli.main import main
from spectrakit.config.compose import compose
from spectrakit.kaggle.client import KaggleError, push_kernel
from spectrakit.tuning.cross_validation import CrossValidation
from spectrakit.tuning.search.study import Study


@pytest.fixture
def call(here, capsys, monkeypatch):
    "A function that runs a command in this process: (exit status, stdout, stderr)."
    monkeypatch.setenv("HOME", str(here / "home"))

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["kaggle", *map(str, words)])
        return (status, *capsys.readouterr())

    return run


def tables(folder: Path, prices: bool = False) -> Path:
    "A competition of 60 rows: grades in two classes, or prices."
    folder.mkdir(parents=True)
    rows = pd.DataFrame({"id": range(60), "size": range(60)})
    answer = [2.5 * size for size in range(60)] if prices else ["low", "high"] * 30
    rows = rows.assign(**{"price" if prices else "grade": answer})
    rows[:40].to_csv(folder / "train.csv", index=False)
    rows[40:].iloc[:, :2].to_csv(folder / "test.csv", index=False)
    rows[40:].iloc[:, [0, 2]].to_csv(folder / "sample_submission.csv", index=False)
    return folder


def settings_of(folder: Path) -> list[str]:
    "The lines of SETTINGS in the notebook of a kernel; all of them compose."
    (notebook,) = folder.glob("*.ipynb")
    (cell,) = [c for c in json.loads(notebook.read_text())["cells"] if "SETTINGS = [" in "".join(c["source"])]
    text = "".join(cell["source"])
    assert '"trainer=kaggle_2xt4" if len(platform.gpus) == 2 else "trainer=kaggle_safe"' in text and "'table'" in text
    words = json.loads(text[text.index("[") : text.index("]") + 1].replace(",\n]", "]"))
    assert compose("trainer=kaggle_2xt4", *words).distributed.world_size == 2
    return words


@pytest.mark.parametrize(
    "prices, told",
    [
        (False, ["task.target=grade", "task.kind=classes", "task.answer=label", "checkpoint.monitor=accuracy"]),
        (True, ["task.target=price", "task.kind=numbers", "checkpoint.monitor=rmse"]),
    ],
)
def test_tables_that_are_here_are_read(call, here, prices, told):
    data = tables(here / "files", prices)
    status, out, _ = call("init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", data)
    assert status == 0 and "rows      40 to learn from" in out and "--run --files" in out
    words = settings_of(here / "soil-first")
    assert words[:2] == ["task.data=soil-2026", "task.id=id"] and set(told) <= set(words) and "task.folds=5" in words


def test_a_sample_submission_alone_says_the_id_and_the_target(call, here):
    tables(here / "files")
    for name in ("train", "test"):
        (here / "files" / f"{name}.csv").unlink()
    status, out, _ = call("init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", "files")
    assert status == 0 and "sample_submission.csv: id 'id', answers 'grade'" in out
    assert settings_of(here / "soil-first")[:3] == ["task.data=soil-2026", "task.id=id", "task.target=grade"]


def test_without_files_the_slug_is_enough(call, here):
    status, out, _ = call("init", "soil-first", "--owner", "ada", "--competition", "soil-2026")
    assert status == 0 and "the files of soil-2026 are not on this machine" in out
    assert settings_of(here / "soil-first") == ["task.data=soil-2026", "task.folds=5", "trainer.max_epochs=30"]


def test_what_the_notebook_asks_of_a_run_a_cross_validation_and_a_search_say_too(call, here):
    "People write cross_validate or search in the place of fit, and leave the lines below as they are."
    call("init", "soil-first", "--owner", "ada", "--competition", "soil-2026")
    cells = json.loads((here / "soil-first" / "soil-first.ipynb").read_text())["cells"]
    (text,) = ["".join(cell["source"]) for cell in cells if "run = sk.fit(" in "".join(cell["source"])]
    used = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in used if getattr(node.value, "id", "") == "run"}
    assert names == {"submission", "raise_for_status"}
    assert all(hasattr(kind, name) for kind in (Run, CrossValidation, Study) for name in names)


def test_what_table_cannot_learn_is_said_and_nothing_is_written(call, here):
    (here / "pictures").mkdir()
    (here / "pictures" / "1.png").touch()
    words = ("--owner", "ada", "--competition", "soil-2026", "--data", "pictures")
    status, _, err = call("init", "soil-first", *words)
    assert status == 2 and "--task file.py:Name" in err and not (here / "soil-first").exists()


def test_a_fresh_folder_passes_the_check_and_what_learns_from_random_numbers_does_not(call, here):
    call("init", "soil-first", "--owner", "ada", "--competition", "soil-2026")
    status, out, _ = call("check", "soil-first")
    assert status == 0 and "0 errors, 1 warning" in out and "`spectrakit kaggle up` makes them" in out, out
    with pytest.raises(KaggleError, match="names no wheels.*kaggle up soil-first"):  # by hand it would install nothing
        push_kernel("soil-first", anyway=False)
    call("init", "first-try", "--owner", "ada")
    status, out, _ = call("check", "first-try")
    assert status == 1 and "It trains on random numbers" in out and "1 error" in out


def test_the_competitions_metric_is_written_in_and_checked(call, here):
    "By the competition's own word for it; a label becomes a probability where the metric is about probabilities."
    data = tables(here / "files")
    common = ("init", "soil-first", "--owner", "ada", "--competition", "soil-2026")
    status, _, error = call(*common, "--data", data, "--metric", "acuracy")
    assert status == 2 and "Did you mean 'accuracy'" in error and not (here / "soil-first").exists()
    status, _, error = call(*common, "--data", data, "--metric", "rmse")
    assert status == 2 and "of classes" in error and "macro_f1" in error
    status, out, _ = call(*common, "--data", data, "--metric", "ROC AUC")
    words = settings_of(here / "soil-first")
    assert status == 0 and {"checkpoint.monitor=auc", "task.answer=probability"} <= set(words)
    assert "the probability, which auc needs, instead of the label" in out
    assert call("check", "soil-first")[0] == 0
    notebook = here / "soil-first" / "soil-first.ipynb"
    notebook.write_text(notebook.read_text().replace("monitor=auc", "monitor=acu"))
    status, out, _ = call("check", "soil-first")
    assert status == 1 and "There is no metric 'acu'" in out and "Did you mean 'auc'?" in out


@pytest.mark.parametrize(
    "words, why",
    [
        (("--title", "Soil"), "characters"),
        (("--metric", "acuracy"), "Did you mean 'accuracy'"),
        (("--metric", "rmse"), "of classes"),
        (("--owner", "a b"), "a b"),
        (("--dataset", "https://www.kaggle.com/datasets/bob/spectra"), "https://"),
        (("--wheels", "nowhere"), "nowhere"),
        (("--kind", "notebok"), "Did you mean 'notebook'"),
    ],
)
def test_what_is_refused_is_refused_before_the_tables_are_described(call, here, words, why):
    data = tables(here / "files")
    common = ("init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", data)
    status, out, error = call(*common, *words)
    assert status == 2 and why in error and out == "" and not (here / "soil-first").exists()


def test_what_is_there_already_is_refused_before_the_tables_are_described(call, here):
    data = tables(here / "files")
    common = ("init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", data)
    assert call(*common)[0] == 0
    status, out, error = call(*common)
    assert status == 2 and "--force" in error and out == ""


def test_up_without_the_client_makes_no_wheels(call, here, monkeypatch):
    call("init", "soil-first", "--owner", "ada", "--competition", "soil-2026")
    (here / "bin").mkdir()
    monkeypatch.setenv("PATH", str(here / "bin"))
    monkeypatch.setattr(sys, "executable", str(here / "bin" / "python"))
    status, _, err = call("up", "soil-first")
    assert status == 2 and "client is not installed" in err and not (here / "wheels").exists()
