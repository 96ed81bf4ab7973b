"Tables as people write them, and answers in the form of the metric: right predictions for the right ids."

import numpy as np
import pandas
import pytest
import torch

from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.tasks.table import columns
from spectrakit.tasks.table.columns import as_written, writing_of
from spectrakit.tasks.table.metrics import class_metrics, f1_codes, label_metrics, number_metrics
from spectrakit.tasks.table.scaling import Targets, out_of_fold_means
from spectrakit.tasks.table.table import Table

ROWS, ASKED = 240, 60
WORDS = ("task.name=table", "task.members=2", "task.hidden=16", "task.layers=1", "task.folds=2")


def tables():
    "Train, test and sample submission of a number that the columns tell exactly; the sample is in another order."
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"id": range(700, 700 + ROWS + ASKED), "a": rng.normal(size=ROWS + ASKED)})
    table["kind"] = rng.choice(["u", "v"], ROWS + ASKED)
    table["y"] = 3 * table["a"]
    sample = table[ROWS:][["id"]].assign(y=0.0).sample(frac=1, random_state=0)
    return table[:ROWS], table[ROWS:].drop(columns="y"), sample, table.set_index("id")["y"]


def write(folder, train, test, sample, **form):
    for name, table in (("train", train), ("test", test), ("sample_submission", sample)):
        table.to_csv(folder / f"{name}.csv", **{"index": False, **form})


def submission(folder):
    "The submission of a network that answers with the score of the column `a`."
    task, cfg = Table(folder), compose(*WORDS)
    names = task.training(cfg).recipe.columns.numbers
    place = next(i for i, name in enumerate(names) if name.lower() == "a")
    return task.submission(task.test_rows(cfg).x[:, [place]])


def is_right(answer, truth, ids):
    "Check that the answer has the ids as the sample has them, in its order, and each the number that belongs to it."
    assert [str(i) for i in answer.iloc[:, 0]] == [str(i) for i in ids]
    right = truth.loc[[int(float(i)) for i in ids]].to_numpy()
    assert np.corrcoef(answer.iloc[:, 1].to_numpy(float), right)[0, 1] > 0.9


def dates(table, form):
    return table.assign(
        a=[(pandas.Timestamp("2020-06-01") + pandas.Timedelta(100 * x, "D")).strftime(form) for x in table["a"]]
    )


def commas(table):
    return table.assign(a=[f"{1000 * x:,.2f}".translate(str.maketrans(",.", ".,")) for x in table["a"]])


SPELLED = {
    "as usual": lambda a, b, s: (a, b, s),
    "decimal commas": lambda a, b, s: (commas(a), commas(b), s),
    **{
        form: lambda a, b, s, form=form: (dates(a, form), dates(b, form), s)
        for form in ("%d.%m.%Y", "%m/%d/%Y", "%d %B %Y", "%d/%m/%Y %H:%M")
    },
    "ids as floats in test": lambda a, b, s: (a, b.assign(id=b["id"].astype(float)), s),
    "another name of ids": lambda a, b, s: (a, b, s.rename(columns={"id": "row_id"})),
    "an index column": lambda a, b, s: (a.assign(**{"Unnamed: 0": a.index}), b.assign(**{"Unnamed: 0": b.index}), s),
    "an empty last column": lambda a, b, s: (a.assign(**{"": None}), b.assign(**{"": None}), s.assign(**{"": None})),
    "capitals": lambda a, b, s: (a.rename(columns=str.upper), b.rename(columns=str.upper), s.rename(columns=str.upper)),
}


@pytest.mark.parametrize("spelled", SPELLED)
def test_the_answer_is_right_however_the_table_is_written(tmp_path, spelled):
    *parts, truth = tables()
    train, test, sample = SPELLED[spelled](*parts)
    write(tmp_path, train, test, sample)
    answer = submission(tmp_path)
    assert list(answer.columns) == [name for name in sample.columns if name]
    is_right(answer, truth, sample.iloc[:, 0])


def rewrite(folder, change):
    for path in folder.glob("*.csv"):
        path.write_text(change(path.read_text()))


STORED = {
    "commas at the ends": lambda d, *t: (write(d, *t), rewrite(d, lambda text: text.replace("\n", ",\n"))),
    "commas at the ends of rows": lambda d, *t: (
        write(d, *t),
        rewrite(d, lambda text: text.replace("\n", ",\n").replace(",\n", "\n", 1)),
    ),
    "zip": lambda d, *t: [x.to_csv(d / f"{n}.csv.zip", index=False) for n, x in zip(NAMES, t, strict=True)],
    "capitals": lambda d, *t: [x.to_csv(d / f"{n.title()}.csv", index=False) for n, x in zip(NAMES, t, strict=True)],
    "index of Parquet": lambda d, *t: [
        x.set_index("id").to_parquet(d / f"{n}.parquet") for n, x in zip(NAMES, t, strict=True)
    ],
    "lists of Parquet": lambda d, *t: [
        x.assign(**({"l": [[1, 2]] * len(x)} if "a" in x else {})).to_parquet(d / f"{n}.parquet")
        for n, x in zip(NAMES, t, strict=True)
    ],
}
NAMES = ("train", "test", "sample_submission")


@pytest.mark.parametrize("stored", STORED)
def test_the_answer_is_right_however_the_table_is_stored(tmp_path, stored):
    if "Parquet" in stored:
        pytest.importorskip("pyarrow")
    train, test, sample, truth = tables()
    STORED[stored](tmp_path, train, test, sample)
    is_right(submission(tmp_path), truth, sample["id"])


WRONG = {
    "not UTF-8": (lambda d, a, b, s: write(d, a.assign(kind="é"), b, s, encoding="latin-1"), "is not UTF-8.*encoding="),
    "more values than names": (
        lambda d, a, b, s: (write(d, a, b, s), rewrite(d, lambda text: text.replace(",y\n", "\n"))),
        "more values in a row than names",
    ),
    "a constant number": (lambda d, a, b, s: write(d, a.assign(y=2.5), b, s), "'y' has only one value"),
    "numbers written as text": (
        lambda d, a, b, s: write(d, a.assign(y=[f"{1e4 * y:,.1f}" for y in a["y"]]), b, s),
        "Write numbers plainly",
    ),
    "quantiles": (
        lambda d, a, b, s: write(d, a, b, s[["id"]].assign(q10=0.0, q90=0.0)),
        "'q10', 'q90'.*such as quantiles, write a task",
    ),
    "a word among numbers": (
        lambda d, a, b, s: write(d, a.assign(a=a["a"].astype(object).where(a.index % 7 > 0, "n/k")), b, s),
        "mixes text and numbers: 'n/k' in row 1 .35 of 240.",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path, what):
    make, words = WRONG[what]
    make(tmp_path, *tables()[:3])
    with pytest.raises(RequestError, match=words):
        Table(tmp_path).training(compose(*WORDS))


def test_values_that_training_lacks_are_told(tmp_path):
    train, test, sample, _ = tables()
    write(tmp_path, train, test.assign(kind=test["kind"].str.upper()), sample)
    assert "60 of 60 values of 'kind' in test.csv are new or rare in training, such as '" in Table(tmp_path).describe(
        compose(*WORDS)
    )


def test_a_test_table_is_read_as_the_training_table_was_written(tmp_path):
    form = writing_of(pandas.Series(["25/01/2026", "02/03/2026"]))
    notes = []
    read = as_written(pandas.DataFrame({"d": ["02/03/2026", "no"]}), {"d": form}, "test.csv", notes)
    assert read["d"].dt.month[0] == 3 and notes == [
        "1 values of 'd' in test.csv are written otherwise and count as missing"
    ]


# --- metrics ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_metrics_are_those_of_scikit_learn():
    m = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for classes in (2, 3, 7):
        odds, codes = rng.dirichlet(np.ones(classes), 400), rng.integers(0, classes, 400)
        found, chosen = class_metrics(torch.tensor(odds), torch.tensor(codes)), odds.argmax(axis=1)
        right = {
            "logloss": m.log_loss(codes, odds),
            "accuracy": m.accuracy_score(codes, chosen),
            "macro_f1": m.f1_score(codes, chosen, average="macro"),
            "mcc": m.matthews_corrcoef(codes, chosen),
            "auc": m.roc_auc_score(codes, odds[:, 1] if classes == 2 else odds, multi_class="ovr"),
        }
        for most in (k for k in (3, 5) if classes > k):
            rank = (-odds).argsort(axis=1).argsort(axis=1)[np.arange(400), codes]
            right[f"map{most}"] = np.where(rank < most, 1 / (rank + 1), 0).mean()
        assert right.items() <= {name: pytest.approx(value, abs=1e-6) for name, value in found.items()}.items()
    targets = rng.exponential(size=(300, 1)) + 0.1
    guess = targets * rng.uniform(0.5, 2, (300, 1))
    found = number_metrics(torch.tensor(guess), torch.tensor(targets))
    right = {"rmse": m.root_mean_squared_error, "mae": m.mean_absolute_error, "r2": m.r2_score}
    right |= {"mape": m.mean_absolute_percentage_error, "rmsle": m.root_mean_squared_log_error}
    assert found == {name: pytest.approx(metric(targets, guess), abs=1e-6) for name, metric in right.items()}
    assert "rmsle" not in number_metrics(torch.tensor(guess), torch.tensor(-targets))
    odds, flags = rng.random((300, 3)), rng.integers(0, 2, (300, 3))
    found = label_metrics(torch.tensor(odds), torch.tensor(flags, dtype=torch.float32))
    chosen = np.stack([f1_codes(column) for column in odds.T], axis=1)
    assert found["auc"] == pytest.approx(m.roc_auc_score(flags, odds), abs=1e-6)
    assert found["f1"] == pytest.approx(m.f1_score(flags, chosen, average="macro"), abs=1e-6)


def test_f1_chooses_more_of_a_rare_class_than_half():
    rng = np.random.default_rng(0)
    odds = rng.beta(0.3, 3, 5000)
    right = rng.random(5000) < odds

    def f1(chosen):
        return 2 * (chosen & right).sum() / (chosen.sum() + right.sum())

    assert f1(f1_codes(odds) > 0) > f1(odds > 0.5) + 0.05
    assert f1(f1_codes(odds) > 0) > max(f1(odds > cut) for cut in np.linspace(0, 1, 101)) - 0.01


@pytest.mark.parametrize(
    ("metric", "target", "sample", "form"),
    [
        ("f1", [0, 1], 0.5, "f1"),
        ("auc", [0, 1], 0, "probability"),
        ("Log Loss", [0, 1], 0, "probability"),
        ("accuracy", [0, 1], 0.5, "label"),
        ("qwk", [1, 2, 3], 1, "qwk"),
        ("rmsle", [0, 1, 2, 3], 0, "numbers"),
        ("auto", [5, 6, 7, 8], 6.3, "numbers"),
        ("auto", [5, 6, 7, 8], 6, "order"),
        ("auto", ["p", "q", "r", "s"], "p q r", "top3"),
    ],
)
def test_the_metric_and_the_sample_decide_the_form_of_the_answer(tmp_path, metric, target, sample, form):
    train, test, asked, _ = tables()
    write(tmp_path, train.assign(y=target * (ROWS // len(target))), test, asked.assign(y=sample))
    task = Table(tmp_path, metric=metric)
    assert task.training(compose(*WORDS)).recipe.question.answer == form
    values = task.submission(np.random.default_rng(0).dirichlet(np.ones(len(target)), ASKED))["y"]
    if form == "top3":
        assert all(len({*value.split(" ")}) == 3 and {*value.split(" ")} <= {*target} for value in values)
    elif form in ("f1", "label", "qwk", "order"):
        assert {*values} <= {*target}
    assert len(values) == ASKED and task.describe(compose(*WORDS))


class Given(torch.nn.Module):
    "A network with these scores, [rows, 1, 1]."

    def __init__(self, scores):
        super().__init__()
        self.scores = torch.nn.Parameter(scores)

    def forward(self, x):
        return self.scores


def test_logarithms_are_learned_for_rmsle_and_undone(tmp_path):
    train, test, sample, _ = tables()
    write(tmp_path, train.assign(y=np.exp(train["y"])), test, sample)
    task, cfg = Table(tmp_path, metric="rmsle"), compose(*WORDS, "task.fold=-1")
    x, y = task.datasets(cfg)[0].tensors
    right = (y.log1p() - float(task.now.centre[0])) / float(task.now.spread[0])
    model = Given(right[:, None].float())
    assert task.loss(model, (x, y)).item() < 1e-9 and abs(float(right.mean())) < 1e-4
    assert torch.allclose(task.predict(model, (x,)), y, rtol=1e-3)
    assert (task.predict(Given(right[:, None] - 99), (x,)) == 0).all()
    write(tmp_path, train, test, sample)
    with pytest.raises(RequestError, match="task.metric=rmsle needs targets from 0 on"):
        Table(tmp_path, metric="rmsle").training(compose(*WORDS))


@pytest.mark.parametrize("metric", ["mae", "mape"])
def test_absolute_errors_are_learned_for_their_metrics(tmp_path, metric):
    train, test, sample, _ = tables()
    write(tmp_path, train, test, sample)
    task, cfg = Table(tmp_path, metric=metric), compose(*WORDS, "task.fold=-1")
    x, y = task.datasets(cfg)[0].tensors
    model = Given(((y - float(task.now.centre[0])) / float(task.now.spread[0]))[:, None].float() + 3)
    assert task.loss(model, (x, y)).item() == pytest.approx(3, rel=1e-3) and not task.now.log


def test_means_of_the_target_come_from_rows_that_other_members_hold_out(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    codes, fold, values = rng.integers(0, 9, 300), rng.integers(0, 5, 300), rng.normal(size=(300, 1))
    other = np.where((fold == 2)[:, None], 9.0, values)
    one, two = (out_of_fold_means(codes, Targets(v, fold), 9) for v in (values, other))
    assert (one[fold == 2] == two[fold == 2]).all() and (one[fold != 2] != two[fold != 2]).any()
    train, test, sample, _ = tables()
    shops = [f"s{i % 60}" for i in range(ROWS + ASKED)]
    train = train.assign(shop=shops[:ROWS], y=np.arange(ROWS) % 60 % 7 + train["a"] / 9)
    write(tmp_path, train, test.assign(shop=shops[ROWS:]), sample)
    given = []
    monkeypatch.setattr(
        columns, "out_of_fold_means", lambda c, t, n: given.append(t.fold) or out_of_fold_means(c, t, n)
    )
    training = Table(tmp_path).training(compose("task.name=table", "task.max_categories=20"))
    assert list(training.recipe.columns.means) == ["shop"] and all((f == training.parts).all() for f in given)
