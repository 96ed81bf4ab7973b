"Inputs of the network for tables: numbers as people write them, many levels, dates, texts, bad columns."

import numpy as np
import pandas
import pytest
import torch

from spectrakit.config.compose import compose, with_profile
from spectrakit.prediction.holdout import fold_of
from spectrakit.system.errors import RequestError
from spectrakit.tasks.table.columns import as_numbers
from spectrakit.tasks.table.table import Passes, Table

ROWS = 600
WORDS = ("task.name=table",)


def competition(folder, **columns):
    "A competition with these columns, 600 rows for training and 100 to predict; the target is yes for even shops."
    rng = np.random.default_rng(0)
    shop = rng.integers(0, 60, ROWS + 100)
    table = pandas.DataFrame({"id": range(ROWS + 100), "x": rng.normal(size=ROWS + 100), **columns})
    table["shop"] = [f"shop {i}" for i in shop]
    target = pandas.Series((shop % 2 == 0) ^ (rng.random(ROWS + 100) < 0.1)).astype(int)
    table[:ROWS].assign(y=target[:ROWS]).to_csv(folder / "train.csv", index=False)
    table[ROWS:].to_csv(folder / "test.csv", index=False)
    pandas.DataFrame({"id": table["id"][ROWS:], "y": 0.5}).to_csv(folder / "sample_submission.csv", index=False)
    return Table(folder)


@pytest.mark.parametrize("written", ["{:,}", "{:,} EUR", "$ {:,}", "{} %"])
def test_numbers_that_are_written_for_people_are_numbers(written):
    numbers = [12, 1234, 9_999_999, 7] * 5
    values, wrong = as_numbers(pandas.Series([written.format(n) for n in numbers]))
    assert values.tolist() == numbers and not len(wrong)


@pytest.mark.parametrize(
    "texts",
    [
        ["A 1", "B 2"],
        ["n1", "n2"],
        ["1st", "2nd"],
        ["1 kg", "1 lb"],
        ["1-2", "3-4"],
        ["1.2.3", "4.5.6"],
        ["1,2", "3,4"],
    ],
)
def test_texts_with_digits_stay_texts(texts):
    assert np.isnan(as_numbers(pandas.Series(texts * 20))[0]).all()


def test_a_column_with_many_levels_gets_means_of_the_target_from_other_rows(tmp_path):
    task, cfg = competition(tmp_path), compose(*WORDS, "task.max_categories=20")
    training = task.training(cfg)
    columns = training.recipe.columns
    assert list(columns.means) == ["shop"] and "shop" not in columns.levels
    assert not any("shop" in note for note in training.notes) and "means of the target" in task.describe(cfg)
    seen, mean = ~training.held_out, training.x.shape[1] - columns.derived
    by_rows = np.corrcoef(training.x[seen, mean], training.y[seen])[0, 1]
    by_encoding = np.corrcoef(columns.encode(task_rows(tmp_path), "t", [])[seen, mean], training.y[seen])[0, 1]
    assert 0.5 < by_rows < by_encoding, "a row's own target is not in its input"


def task_rows(folder):
    return pandas.read_csv(folder / "train.csv")


def test_dates_have_parts_and_random_levels_no_means(tmp_path):
    rng = np.random.default_rng(1)
    when = pandas.date_range("2026-01-01 00:30", periods=ROWS + 100, freq="7h").astype(str)
    task = competition(tmp_path, when=when, nothing=[f"n{i}" for i in rng.integers(0, 50, ROWS + 100)])
    columns = task.training(compose(*WORDS)).recipe.columns
    assert columns.numbers == ["x", "when"] and columns.parts == {"when": [0, 1, 2, 3]}
    assert list(columns.means) == ["shop"] and "nothing" in columns.levels


def test_free_texts_become_topics_that_a_checkpoint_knows(tmp_path):
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(2)
    words = ["winter", "summer", "garden", "harbour", "violin", "engine"]
    task = competition(tmp_path, title=[f"{' '.join(rng.choice(words, 3))} {i}" for i in range(ROWS + 100)])
    cfg = compose(*WORDS)
    assert list(task.training(cfg).recipe.columns.topics) == ["title"]
    asked, again = task.test_rows(cfg).x, Table(tmp_path)
    again.restore(cfg, task.model(cfg).state_dict())
    (tmp_path / "train.csv").unlink()
    assert np.allclose(again.test_rows(cfg).x, asked)


def test_rare_levels_and_new_ones_share_a_code(tmp_path):
    task = competition(tmp_path, colour=["red", "blue"] * (ROWS // 2) + ["green"] * 100)
    table = task_rows(tmp_path)
    grown = pandas.concat([table] * 5, ignore_index=True).assign(id=range(10**4, 10**4 + 5 * ROWS))
    grown.loc[3, "colour"] = "violet"
    grown.to_csv(tmp_path / "train.csv", index=False)
    training = task.training(compose(*WORDS, "task.fold=-1"))
    place = len(training.recipe.columns.numbers)
    assert training.recipe.columns.levels["colour"] == ["blue", "red"] and training.x[3, place] == 0
    assert (task.test_rows(compose(*WORDS, "task.fold=-1")).x[:, place] == 0).all()


def test_a_test_column_without_values_is_told_and_predicted(tmp_path):
    task, cfg = competition(tmp_path), compose(*WORDS)
    test = pandas.read_csv(tmp_path / "test.csv")
    test.assign(x=np.nan, shop=None).to_csv(tmp_path / "test.csv", index=False)
    told, model = task.describe(cfg), task.model(cfg).eval()
    assert "'x' of test.csv has no values; all count as missing" in told
    assert "'shop' of test.csv has no values; all count as missing" in told
    with torch.no_grad():
        answer = task.submission(task.predict(model, task.test_dataset(cfg).tensors).numpy())
    assert answer["y"].between(0, 1).all() and len(answer) == 100


def test_the_description_has_a_line_for_each_column(tmp_path):
    task = competition(tmp_path, empty=None, same=3)
    lines = {line.split()[0]: line for line in task.describe(compose(*WORDS)).splitlines()}
    assert {"id", "x", "shop", "empty", "same"} <= lines.keys()
    assert lines["empty"].endswith("left out") and lines["same"].endswith("left out") and "700" not in lines["x"]
    assert "auc chooses the checkpoint" in lines["metric"]


def test_an_epoch_suits_the_number_of_rows(tmp_path):
    task, cfg = competition(tmp_path), with_profile(compose(*WORDS), "table", "tasks")
    train, _valid = task.datasets(cfg)
    order = task.sampler(train, cfg)
    assert len(order) == 32 * 320 and set(order) == set(range(len(train)))
    assert len(task.sampler(range(10**6), cfg)) == 500 * 320
    assert sorted(Passes(5, 5)) == list(range(5))


def test_each_member_of_the_ensemble_has_its_own_loss(tmp_path):
    task, cfg = competition(tmp_path), compose(*WORDS, "task.members=4", "task.fold=0")
    model = task.model(cfg).eval()
    x, y = task.datasets(cfg)[0].tensors
    scores = model(x)
    assert scores.shape == (len(x), 4, 2) and not torch.allclose(scores[:, 0], scores[:, 1])
    each = [torch.nn.functional.cross_entropy(scores[:, i], y) for i in range(4)]
    assert torch.isclose(task.loss(model, (x, y)), sum(each) / 4)
    assert torch.allclose(task.predict(model, (x,)), scores.softmax(2).mean(1))


def test_each_member_learns_from_the_rows_that_it_does_not_hold_out(tmp_path):
    task, cfg = competition(tmp_path), compose(*WORDS)
    model, (train, valid) = task.model(cfg).eval(), task.datasets(cfg)
    x, y, fold = valid.tensors
    assert len(train) == len(valid) == ROWS and set(fold.tolist()) == set(range(5)) == set(range(model(x).shape[1]))
    scores = model(x)
    own = torch.stack([scores[row, fold[row]] for row in range(ROWS)])
    assert torch.allclose(task.predict(model, (x, y, fold)), own.softmax(1), atol=1e-6)
    assert torch.isclose(task.loss(model, (x, y, fold)), torch.nn.functional.cross_entropy(own, y))
    rows, weight = fold == 3, model.head.weight
    task.loss(model.train(), (x[rows], y[rows], fold[rows])).backward()
    assert (weight.grad[3] == 0).all() and all((weight.grad[i] != 0).any() for i in range(5) if i != 3)


@pytest.mark.parametrize("members, held", [(2, [0, 1, 0, 1, 0]), (7, [0, 1, 2, 3, 4])])
def test_other_numbers_of_members_hold_out_each_row(tmp_path, members, held):
    task, cfg = competition(tmp_path), compose(*WORDS, f"task.members={members}")
    model = task.model(cfg).eval()
    x, y, fold = task.datasets(cfg)[1].tensors
    chosen = [torch.arange(members) % 5 == held[f] for f in fold]
    mean = torch.stack([scores.softmax(1)[which].mean(0) for scores, which in zip(model(x), chosen, strict=True)])
    assert torch.allclose(task.predict(model, (x, y, fold)), mean, atol=1e-6)


@pytest.mark.parametrize("words", [("training.mixup=0.2",), ("task.fold=0",)])
def test_where_members_cannot_hold_out_one_each_one_fold_is_held_out(tmp_path, words):
    task, plain, asked = competition(tmp_path), compose(*WORDS), compose(*WORDS, *words)
    assert len(task.datasets(plain)[0].tensors) == 3
    train, valid = task.datasets(asked)
    assert len(train.tensors) == len(valid.tensors) == 2 and len(train) + len(valid) == ROWS
    assert fold_of(task, plain) is None and fold_of(task, asked) == 0 and len(task.datasets(plain)[1]) == ROWS


def test_one_member_cannot_hold_out_each_fold(tmp_path):
    task = competition(tmp_path)
    with pytest.raises(RequestError, match=r"task.members=1 leaves no fold out.*task.fold=0"):
        task.model(compose(*WORDS, "task.members=1"))
    assert task.model(compose(*WORDS, "task.members=1", "task.fold=0")) is not None


def test_the_metric_of_the_answer_chooses_the_checkpoint(tmp_path):
    task, cfg = competition(tmp_path), compose(*WORDS)
    task.training(cfg)
    odds, codes = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([0, 1, 0])
    metrics = task.metrics_all(odds, codes)
    assert metrics["error"] == 1 - metrics["auc"]
    assert Table(tmp_path, metric="logloss").training(cfg) and task.metrics_all(odds, codes)["logloss"] > 0
    wrong = Table(tmp_path, metric="rmse")
    wrong.training(cfg)
    with pytest.raises(RequestError, match="task.metric=rmse is not computed for this target"):
        wrong.metrics_all(odds, codes)


def test_a_day_tells_about_its_other_rows_unless_the_rows_to_predict_have_other_days(tmp_path):
    rng = np.random.default_rng(3)
    day = rng.integers(0, 30, ROWS + 100)
    when = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(day * 86400 + rng.integers(0, 86400, len(day)), "s")
    task, cfg = competition(tmp_path, when=when.astype(str)), compose(*WORDS)
    for part in ("train", "test"):
        table = pandas.read_csv(tmp_path / f"{part}.csv")
        if part == "train":
            table["y"] = day[:ROWS] % 2
        else:
            later = table["when"].str.replace("2026", "2027")
        table.to_csv(tmp_path / f"{part}.csv", index=False)
    assert list(task.training(cfg).recipe.columns.days) == ["when"] and "means by day" in task.describe(cfg)
    pandas.read_csv(tmp_path / "test.csv").assign(when=later).to_csv(tmp_path / "test.csv", index=False)
    assert not Table(tmp_path).training(cfg).recipe.columns.days


def test_grades_are_answered_by_the_expected_one_and_codes_without_order_by_the_likeliest(tmp_path):
    task, cfg = competition(tmp_path), compose(*WORDS)
    for part, columns in (("train", ["y"]), ("sample_submission", ["y"])):
        table = pandas.read_csv(tmp_path / f"{part}.csv")
        table[columns] = (np.arange(len(table)) % 5)[:, None]
        table.to_csv(tmp_path / f"{part}.csv", index=False)
    task.test_dataset(cfg)
    assert task.now.question.answer == "order" and "logloss chooses the checkpoint" in task.describe(cfg)
    grade = np.linspace(-1, 5, 100)[:, None]
    odds = np.exp(-((grade - np.arange(5)) ** 2))
    odds /= odds.sum(axis=1, keepdims=True)
    assert task.submission(odds)["y"].is_monotonic_increasing
    mixed = odds[:, [2, 0, 4, 1, 3]]
    assert task.submission(mixed)["y"].tolist() == mixed.argmax(axis=1).tolist()
    assert {"qwk", "accuracy"} <= task.metrics_all(torch.tensor(odds), torch.arange(100) % 5).keys()
    assert Table(tmp_path, answer="label").training(cfg).recipe.question.answer == "label"
