"What is blended is joined by id, whatever the order; what is scored is what is handed in."

import json

import numpy as np
import pytest
from sklearn.metrics import log_loss

import spectrakit as sk
from spectrakit.data.folds import Folds, write_folds
from spectrakit.runs.run_dir import write_mark
from spectrakit.system.array_archive import save_arrays
from spectrakit.system.errors import RequestError

DRAW = np.random.default_rng(3)
TARGET = DRAW.normal(size=120)
FOLD = np.arange(120) % 3
TESTS = np.arange(6.0)


class Noted:
    "Keeps what it is given to hand in."

    def submission(self, predictions):
        self.given = predictions
        names = list(predictions) if isinstance(predictions, dict) else ["y"]
        columns = predictions if isinstance(predictions, dict) else {"y": predictions}
        return {name: np.asarray(columns[name]).reshape(len(columns[name]), -1)[:, 0] for name in names}


class Made:
    "Folders of cross-validations; `rows`, `tests`: which samples in which order."

    def __init__(self, home):
        self.home, self.count = home, 0

    def __call__(  # noqa: PLR0913  each test sets a few of them
        self, values, tests, rows=None, test_rows=None, ids=str, targets=TARGET, kind="kfold", data=None
    ):
        rows = np.arange(len(targets)) if rows is None else np.asarray(rows)
        test_rows = np.arange(6) if test_rows is None else np.asarray(test_rows)
        self.count += 1
        folder = self.home / f"cv-{self.count}"
        folder.mkdir()
        write_folds(folder / "folds.npz", Folds(FOLD[rows].astype("<i4")[None], kind, 3))
        outputs = values if isinstance(values, dict) else {"predictions": values}
        tested = tests if isinstance(tests, dict) else {"predictions": tests}
        name = (lambda of: {"id": np.array([ids(i) for i in of])}) if ids else (lambda of: {})
        held = {**name(rows), **{n: v[rows] for n, v in outputs.items()}, "targets": targets[rows]}
        save_arrays(folder / "out_of_fold.npz", held)
        test = {**name(test_rows), **{n: v[test_rows] for n, v in tested.items()}}
        save_arrays(folder / "predictions.npz", test, data and {"data": data})
        (folder / "cv.json").write_text(json.dumps({"status": "completed", "runs": {}}))
        (folder / "settings.yaml").touch()
        write_mark(folder)
        return folder


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path)


def noisy(noise):
    return TARGET + noise * DRAW.normal(size=120)


@pytest.mark.parametrize("method", ["greedy", "non_negative", "ridge"])
@pytest.mark.parametrize("ids", [str, int, lambda i: f"{i:05}", lambda i: np.float64(i), lambda i: f"img-{i}".encode()])
def test_rows_in_another_order_are_joined_by_id(made, tmp_path, method, ids):
    one, two = noisy(0.5), noisy(0.6)
    name = (lambda i: f"img-{i}") if isinstance(ids(0), bytes) else (lambda i: f"{i:05}")
    a = made(one, TESTS, ids=name)
    b = made(two, 10 + TESTS, DRAW.permutation(120), DRAW.permutation(6), ids)
    task = Noted()
    found = sk.blend(a, b, method=method, task=task, predict=tmp_path / "made.csv")
    same = sk.blend(a, made(two, 10 + TESTS, ids=name), method=method)
    assert found.weights == pytest.approx(same.weights) and found.score == pytest.approx(same.score)
    assert found.values == pytest.approx(same.values) and found.test == pytest.approx(same.test)
    assert found.ids["id"].tolist() == task.given["id"].tolist() and not found.left_out
    assert task.given["predictions"] == pytest.approx(found.weights @ np.stack([TESTS, 10 + TESTS]) + found.offset)


def test_samples_that_not_all_have_are_left_out_and_said(made):
    a = made(noisy(0.5), TESTS, np.arange(100), [0, 1, 2, 3])
    b = made(noisy(0.6), TESTS, np.arange(119, 10, -1), [5, 3, 2])
    found = sk.blend(a, b, method="non_negative")
    assert found.test == pytest.approx([2.0, 3.0]) and found.ids["id"].tolist() == ["2", "3"]
    assert np.isnan(found.values[:11]).all() and np.isfinite(found.values[11:]).all() and len(found.values) == 100
    assert "20 training samples are left out" in found.left_out and "2 test samples are left out" in found.left_out


def test_what_cannot_be_joined_is_refused(made):
    a = made(noisy(0.5), TESTS)
    twice = lambda i: str(i // 2)  # noqa: E731  # used in this test alone
    content = [{"samples": 6, "content": {"0": word}} for word in ("x", "y")]
    cases = (
        (
            [made(noisy(1), TESTS, ids=twice), made(noisy(1), TESTS, test_rows=[5, 4, 3, 2, 1, 0], ids=twice)],
            "more than once",
        ),
        ([a, made(noisy(1), TESTS, test_rows=[0, 1], ids=None)], "have no ids, but others have"),
        ([a, made(noisy(1), TESTS, ids=lambda i: f"z{i}")], "they have no common ids"),
        ([made(noisy(1), TESTS, ids=None, data=each) for each in content], "the order of their rows may differ"),
        (
            [made(noisy(1), TESTS, kind="time"), made(noisy(1), TESTS, np.arange(119, -1, -1), kind="time")],
            "depends on the order of the samples",
        ),
    )
    for sources, why in cases:
        with pytest.raises(RequestError, match=why):
            sk.blend(sources)
    same = sk.blend([made(noisy(1), TESTS, ids=twice) for _ in range(2)])
    assert same.test is not None  # equal rows in equal order need no more
    blind = sk.blend([made(noisy(1), TESTS, ids=None) for _ in range(2)])
    assert (
        "have no ids, and are matched by order" in str(blind)
        and "have no ids, and are matched by order" in blind._repr_html_()
    )


def proper(rows):
    return (rows >= 0).all() and (rows <= 1).all() and np.allclose(rows.sum(axis=-1), 1)


@pytest.mark.parametrize("metric", ["log_loss", "accuracy", "mse", "own"])
def test_blends_of_probabilities_are_probabilities_and_scored_as_such(made, metric):
    labels = DRAW.integers(0, 4, 120)
    sure = np.eye(4)[labels] * 0.5 + 0.125  # too unsure: ridge stretches them beyond what is possible
    sources = [sure * (1 - mix) + mix * DRAW.dirichlet(np.ones(4), 120) for mix in (0.1, 0.2)]
    tests = [np.eye(4)[DRAW.integers(0, 4, 6)] * 0.9 + 0.025 for _ in range(2)]
    folders = [made(x, t, targets=labels) for x, t in zip(sources, tests, strict=True)]
    own = lambda p, y: log_loss(y, p, labels=range(4))  # noqa: E731  # used in this test alone
    given = {"metric": own, "mode": "min"} if metric == "own" else {"metric": metric}
    for method in ("ridge", "greedy", "non_negative"):
        found = sk.blend(*folders, method=method, **given)
        assert proper(found.test) and proper(found.values), method
        if metric in ("log_loss", "own"):
            assert found.score == pytest.approx(own(found.values, labels), rel=1e-4)


@pytest.mark.parametrize("shape", [(120,), (120, 1), (120, 3)])
def test_single_probabilities_stay_between_0_and_1(made, shape):
    labels = DRAW.integers(0, 2, shape)
    sources = [labels * 0.4 + 0.3 + 0.05 * DRAW.random(shape) for _ in range(2)]
    tests = [DRAW.integers(0, 2, (6, *shape[1:])) * 0.98 + 0.01 for _ in range(2)]
    for metric in ("log_loss", "rmse"):
        folders = [made(x, t, targets=labels) for x, t in zip(sources, tests, strict=True)]
        found = sk.blend(*folders, method="ridge", metric=metric)
        values = found.values.reshape(-1)
        assert found.test.min() >= 0 <= values.min() and found.test.max() <= 1 >= values.max()
        right = (
            log_loss(labels.reshape(-1), values)
            if metric == "log_loss"
            else np.sqrt(np.mean((values - labels.reshape(-1)) ** 2))
        )
        assert found.score == pytest.approx(right, rel=1e-3)


def test_mappings_are_blended_by_the_same_weights(made, tmp_path):
    models = [{"mean": noisy(0.3 + k), "sigma": np.full((120, 2), 1.0 + k)} for k in range(2)]
    tests = [{"mean": TESTS + k, "sigma": np.full((6, 2), 1.0 + k)} for k in range(2)]
    folders = [made(m, t, rows) for m, t, rows in zip(models, tests, (None, DRAW.permutation(120)), strict=True)]
    task = Noted()
    found = sk.blend(*folders, task=task, predict=tmp_path / "made.csv")
    assert found.metric == "rmse of mean" and set(found.tried) == {"greedy", "non_negative"}
    assert found.test["sigma"] == pytest.approx(found.weights @ np.array([1.0, 2.0]) * np.ones((6, 2)))
    assert found.score == pytest.approx(np.sqrt(np.mean((found.values["mean"] - TARGET) ** 2)))
    assert set(task.given) == {"id", "mean", "sigma"} and task.given["mean"] == pytest.approx(found.test["mean"])
    own = sk.blend(*folders, metric=lambda p, y: float(np.abs(p["mean"] - y).mean() + p["sigma"].mean()), mode="min")
    assert own.weights[0] > 0.5 and own.values["sigma"].shape == (120, 2)
    with pytest.raises(RequestError, match="cannot blend the outputs"):
        sk.blend(*folders, method="ridge")


def test_what_has_no_mean_is_refused_by_name(made):
    a = made(noisy(1), TESTS)
    for values, why in ((np.arange(120), "whole numbers"), (np.array(["a"] * 120), "texts")):
        with pytest.raises(RequestError, match=f"predicted {why}"):
            sk.blend(a, made(values, TESTS))
