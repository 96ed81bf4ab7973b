"Tables with models beside the network, drift, leaks, and the pictures of the report."

import sys
import textwrap
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pandas
import pytest

from spectrakit.api.actions import fit, predict
from spectrakit.config.compose import compose
from spectrakit.pages.run_report import report
from spectrakit.prediction.submission_file import read_record
from spectrakit.system.errors import RequestError
from spectrakit.tasks.table import models
from spectrakit.tasks.table.columns import Columns
from spectrakit.tasks.table.models import learn, models_of
from spectrakit.tasks.table.net import Recipe
from spectrakit.tasks.table.question import Question
from spectrakit.tasks.table.table import Table

pytest.importorskip("sklearn")
WORDS = ("launch.mode=inline", "trainer.max_epochs=1", "optimizer.lr=0.0001", "task.hidden=8", "task.layers=1")
WORDS += ("task.folds=2", "data.micro_batch_size=64", "watchdog.limit=null")


def write(folder, change=lambda train, test: (train, test)):
    "A table of a number that a linear model tells exactly, and a network of one epoch does not."
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"id": range(400), "a": rng.normal(size=400), "kind": rng.choice(["u", "v"], 400)})
    table["y"] = 50 + 30 * table["a"] + 10 * (table["kind"] == "u")
    train, test = change(table[:300], table[300:])
    train.to_csv(folder / "train.csv", index=False)
    test.drop(columns="y").to_csv(folder / "test.csv", index=False)
    test[["id"]].assign(y=0.0).to_csv(folder / "sample_submission.csv", index=False)
    return test["y"].to_numpy()


def trained(tmp_path, *words):
    out = tmp_path / "submission.csv"
    run = fit("table", f"task.data={tmp_path}", f"run.dir={tmp_path}/runs", *WORDS, *words, show=False, predict=out)
    run.raise_for_status()
    return run, pandas.read_csv(out)["y"].to_numpy(), np.load(run.path / "predictions.npz")["predictions"][:, 0]


def rmse(answer, truth):
    return np.sqrt(np.mean((answer - truth) ** 2))


def test_the_blend_is_better_than_the_network_says_so_and_needs_the_training_table(tmp_path):
    truth = write(tmp_path)
    run, answer, net = trained(tmp_path, "task.models=[net,linear,histgb]")
    assert rmse(answer, truth) < 0.2 * rmse(net, truth)
    (note,) = read_record(run.path).notes
    assert "linear" in note and "less than the network alone" in note
    page = report(run).read_text()
    assert "importance of columns" in page and "y, out of fold" in page
    train = (tmp_path / "train.csv").read_text()
    for text in (None, train.replace("u", "w")):  # it is gone, or another
        (tmp_path / "train.csv").unlink(missing_ok=True)
        if text is not None:
            (tmp_path / "train.csv").write_text(text)
        alone = predict("table", run, out=tmp_path / "alone.csv")
        assert np.allclose(pandas.read_csv(tmp_path / "alone.csv")["y"], alone.values[:, 0], rtol=1e-4)


STAND_INS = {
    "works": "from sklearn.linear_model import Ridge as LGBMRegressor, LogisticRegression as LGBMClassifier",
    "fails": """
        class LGBMRegressor:
            def __init__(self, **options):
                raise OSError("libgomp.so.1 is missing")
    """,
}


@pytest.mark.parametrize("state", STAND_INS)
def test_an_installed_library_is_blended_by_default_and_one_that_fails_is_left_out(tmp_path, monkeypatch, state):
    stand_in = ModuleType("lightgbm")
    stand_in.__spec__ = ModuleSpec("lightgbm", None)
    exec(textwrap.dedent(STAND_INS[state]), stand_in.__dict__)
    monkeypatch.setitem(sys.modules, "lightgbm", stand_in)
    monkeypatch.setitem(models.LIBRARIES, "lightgbm", models.LIBRARIES["lightgbm"]._replace(options={}))
    monkeypatch.setattr(models, "_FITTED", {})
    assert models_of("auto") == ["lightgbm", "linear"]
    write(tmp_path)
    run, answer, net = trained(tmp_path)
    notes = " ".join(read_record(run.path).notes)
    assert ("lightgbm is left out: OSError: libgomp" in notes) == (state == "fails")
    assert not np.allclose(answer, net, rtol=1e-3)


def test_a_network_alone_where_no_library_is_installed_or_none_is_wanted(tmp_path, monkeypatch):
    write(tmp_path)
    _, answer, net = trained(tmp_path, "task.models=net")
    assert np.allclose(answer, net, rtol=1e-4)
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert models_of("auto") == []
    with pytest.raises(RequestError, match=r"needs scikit-learn, which is not installed.*pip install scikit-learn"):
        models_of(["net", "linear"])
    with pytest.raises(RequestError, match=r"has no net.*task\.models=\[net,linear\]"):
        models_of(["linear"])


def recipe(kind, classes=()):
    question = Question(["id"], [], ["y"], ["y"], kind, list(classes))
    return Recipe(question, Columns(["a"], [], {}), np.zeros(1), np.ones(1))


def test_classes_that_a_fold_lacks_have_the_probability_0_and_constant_labels_their_value():
    x = pandas.DataFrame({"input0": np.linspace(-1, 1, 60)})
    (odds,) = learn("linear", recipe("classes", "abc"), x, np.repeat([0, 2], 30), [x])
    assert odds.shape == (60, 3) and (odds[:, 1] == 0).all() and odds[0, 0] > odds[0, 2]
    labels = np.stack([np.repeat([0, 1], 30), np.ones(60)], axis=1)
    (given,) = learn("histgb", recipe("labels"), x, labels, [x])
    assert (given[:, 1] == 1).all() and given[0, 0] < given[-1, 0]


def test_leaks_drift_and_rows_in_both_tables_are_named_before_training(tmp_path):
    def change(train, test):
        train, test = (t.assign(copy=t["y"] * 1.1, day=t["id"] % 97 + 100 * (t["id"] >= 300)) for t in (train, test))
        return train, pandas.concat([test, train[:20].assign(id=range(900, 920))])

    write(tmp_path, change)
    lines = Table(tmp_path).describe(compose("task.name=table")).splitlines()
    said = " ".join(line for line in lines if line.startswith("note"))
    assert "'copy' alone tells the target" in said and "task.drop=[copy]" in said and "'kind' alone" not in said
    assert "20 of 120 rows of the test table equal rows" in said
    assert "adversarial AUC" in said and "'day'" in said
