"Predictions of an earlier cross-validation as further inputs: they help, and nothing of what is held out comes back."

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task

pytestmark = pytest.mark.slow
WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=16",
    "accumulate_grad_batches=1",
    "run.dir=runs",
    "checkpoint.keep_last=1",
    "optimizer.lr=0.01",
)


class Signs(Task):
    "Whether the sum of four numbers is positive; a task sees some of them. Test samples are the training samples."

    sees, random = slice(0, 4), False

    def data(self):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(160, 4, generator=g)
        return x, torch.randint(0, 2, (160,), generator=g) if self.random else (x.sum(1) > 0).long()

    def datasets(self, cfg):
        x, y = self.data()
        return TensorDataset(x[:, self.sees], y), None

    def test_dataset(self, cfg):
        return TensorDataset(self.data()[0][:, self.sees])

    def model(self, cfg):
        width = self.data()[0][:, self.sees].shape[1] + sk.extra_columns(cfg)
        return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 2))

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def predict(self, model, batch):
        return model(batch[0]).softmax(1)


class First(Signs):
    sees = slice(0, 2)


class Last(Signs):
    sees = slice(2, 4)


class Planted(Signs):
    "Targets that nobody can learn."

    random = True


def right(cv):
    return (cv.values.argmax(1) == cv.targets.astype(int)).mean()


@pytest.mark.long
def test_what_another_model_knows_helps(here):
    words = (*WORDS, "trainer.max_epochs=8")
    first = sk.cross_validate(First(), compose(*words), folds=4, show=False)
    alone = sk.cross_validate(Last(), compose(*words), folds=4, show=False)
    both = sk.cross_validate(Last(), compose(*words, f"folds.columns={first.path}"), folds=4, show=False)
    assert both.status == "completed" and right(both) > max(right(first), right(alone)) + 0.05
    run = both.runs[2]  # what is held out has what the first model of the same fold said, test samples, too
    out, values = both.folds.held_out(2), first.values
    task, asked = Last(), run.config
    from spectrakit.train.evaluation import test_dataset_of
    from spectrakit.train.start.setup import read_datasets

    train, valid = read_datasets(task, asked)
    assert np.allclose(valid.tensors[0][:, 2:], values[out], atol=1e-6)
    assert np.allclose(train.tensors[0][:, 2:], values[both.folds.trained_on(2)], atol=1e-6)
    said = first.fold_tests[2]["predictions"]
    assert np.allclose(test_dataset_of(task, asked).tensors[0][:, 2:], said, atol=1e-6)
    final = sk.fit(Last(), compose(*words, f"folds.columns={first.path}"), show=False)  # of all samples, without folds
    assert final.status == "completed" and sk.predict(Last(), final).values.shape == (160, 2)


@pytest.mark.long
def test_a_planted_leak_does_not_come_back_as_a_column(here):
    words = (
        *WORDS,
        "trainer.max_epochs=60",
        "checkpoint.monitor=val_loss",
        "checkpoint.mode=max",
    )  # as overfitted as can be
    first = sk.cross_validate(Planted(), compose(*words), folds=4, show=False)
    leak = (first.test["predictions"].argmax(1) == first.targets.astype(int)).mean()  # the mean has seen each target
    second = sk.cross_validate(Planted(), compose(*words, f"folds.columns={first.path}"), folds=4, show=False)
    assert second.folds.sha256 == first.folds.sha256
    assert leak > right(first) + 0.15 and right(second) < leak - 0.1 and abs(right(second) - 0.5) < 0.13


def test_what_does_not_fit_is_refused(here):
    words = (*WORDS, "trainer.max_epochs=1")
    first = sk.cross_validate(First(), compose(*words), folds=3, show=False)
    asked = compose(*words, f"folds.columns=[{first.path}]")
    with pytest.raises(RequestError, match="held out other samples"):
        sk.cross_validate(Last(), asked, folds=4, show=False)
    with pytest.raises(RequestError, match="is not a cross-validation with known folds"):
        sk.cross_validate(Last(), compose(*words, "folds.columns=runs"), folds=3, show=False)

    class Narrow(Last):
        "It has forgotten that its inputs are wider."

        def model(self, cfg):
            return nn.Linear(2, 2)

    failed = sk.cross_validate(Narrow(), asked, folds=3, show=False)
    assert failed.status == "failed" and "takes 2 features and was given 4" in str(failed)


def write_table(folder, regression):
    "A table whose target is the product of two columns of text and a number's sign."
    rng = np.random.default_rng(0)
    for name, rows in (("train", 240), ("test", 30)):
        table = pandas.DataFrame({"id": range(rows), "a": rng.normal(size=rows), "b": rng.normal(size=rows)})
        table["kind"] = rng.choice(["x", "y"], rows)
        score = table.a + 2 * table.b * (table.kind == "x")
        if name == "train":
            table["answer"] = 1000 + 50 * score if regression else (score > 0).astype(int)
        table.to_csv(folder / f"{name}.csv", index=False)
    pandas.DataFrame({"id": range(30), "answer": 0.5}).to_csv(folder / "sample_submission.csv", index=False)


@pytest.mark.parametrize("regression", [False, True])
def test_a_table_takes_them_by_one_line(here, tmp_path, regression):
    write_table(tmp_path, regression)
    words = (*WORDS, "trainer.max_epochs=6", f"task.data={tmp_path}", "task.hidden=16", "task.name=table")
    first = sk.cross_validate("table", compose(*words), folds=3, show=False)
    assert first.folds.kind == "own" and first.folds.samples == 240
    truth = pandas.read_csv(tmp_path / "train.csv").answer.to_numpy()
    assert np.allclose(first.targets.reshape(-1), truth)  # in the order of the table
    more = (f"folds.columns={first.path}", f"folds.pseudo={first.path}", f"folds.distill={first.path}")
    asked = compose(*words, *more[: 1 if regression else 3])
    second = sk.cross_validate("table", asked, folds=3, predict=tmp_path / "out.csv", show=False)
    assert second.status == "completed" and second.folds.sha256 == first.folds.sha256
    weights = second.runs[0].load_model().inputs
    own = 2 * 9 + 3  # two numbers with their embeddings, a text of two levels and an unknown one
    assert weights.size == own + (1 if regression else 2)
    assert (
        second.score == pytest.approx(first.score, rel=0.5, abs=0.05)
        and len(pandas.read_csv(tmp_path / "out.csv")) == 30
    )
    assert sk.blend(first, second).score is not None
