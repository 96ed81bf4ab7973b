"What `datasets` has found out for other methods is there wherever a run is loaded, predicted with or resumed."

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from in_process import INLINE, furthest, weights
from spectrakit.task.task import Task

pytestmark = pytest.mark.slow

DRAW = torch.Generator().manual_seed(9)
X = torch.randn(48, 3, generator=DRAW)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
QUICK = (
    *INLINE,
    "trainer.max_epochs=2",
    "scheduler.name=constant",
    "checkpoint.max_share=1",
)


class Kinds(Task):
    "An array and a number on the task itself."

    def datasets(self, cfg):
        self.names, self.mean = np.unique(Y.numpy()), X.mean(0)
        return TensorDataset(X - self.mean, Y), TensorDataset(X[:16] - self.mean, Y[:16])

    def test_dataset(self, cfg):
        return TensorDataset(X[:10] - self.mean)

    def model(self, cfg):
        return nn.Linear(3, len(self.names))

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    def submission(self, predictions):
        return {"id": list(range(len(predictions))), "kind": self.names[predictions.argmax(1)].tolist()}


class Nested(Kinds):
    "In a mapping that the task is made with, by a name that is a text, with a default that does not fail."

    def __init__(self):
        self.found = {}

    def datasets(self, cfg):
        self.found["kinds"] = 3
        return TensorDataset(X, Y), TensorDataset(X[:16], Y[:16])

    def test_dataset(self, cfg):
        return TensorDataset(X[:10])

    def model(self, cfg):
        return nn.Linear(3, getattr(self, "found").get("kinds", 2))  # noqa: B009  a name as a text

    def submission(self, predictions):
        return {"kind": predictions.argmax(1).tolist()}


class OfClass(Nested):
    "On the class."

    kinds = 1

    def datasets(self, cfg):
        OfClass.kinds = 3
        return TensorDataset(X, Y), TensorDataset(X[:16], Y[:16])

    @property
    def width(self):
        return self.kinds

    def model(self, cfg):
        return nn.Linear(3, self.width)


class TheOtherWay(Nested):
    "`datasets` uses what `model` has made."

    def model(self, cfg):
        self.words = {"a": 0, "b": 1, "c": 2}
        return nn.Linear(3, len(self.words))

    def datasets(self, cfg):
        labels = torch.tensor([self.words["abc"[y]] for y in Y])
        return TensorDataset(X, labels), TensorDataset(X[:16], labels[:16])


TASKS = {kind.__name__: kind for kind in (Kinds, Nested, OfClass, TheOtherWay)}


@pytest.fixture(scope="module", params=TASKS)
def trained(request, tmp_path_factory):
    "A task's class, its run, and the table that the run has made by itself."
    folder, kind = tmp_path_factory.mktemp("found"), TASKS[request.param]
    run = sk.fit(kind(), *QUICK, f"run.dir={folder / 'run'}", show=False, predict=str(folder / "out.csv"))
    assert run.status == "completed", run.error
    OfClass.kinds = 1  # as another process has it
    return kind, run, (folder / "out.csv").read_text()


def test_a_new_task_is_loaded_with_what_datasets_finds(trained):
    kind, run, _ = trained
    for model in (run.load_model(), run.load_model(kind())):
        assert furthest(model.state_dict(), weights(run.path)) == 0


def test_a_new_task_predicts_what_the_run_has(trained, tmp_path):
    kind, run, table = trained
    OfClass.kinds = 1
    sk.predict(kind(), run, out=str(tmp_path / "again.csv"))
    assert (tmp_path / "again.csv").read_text() == table


def test_a_resumed_run_is_the_one_that_was_not_stopped(trained, tmp_path):
    kind, run, _ = trained
    OfClass.kinds = 1
    half = sk.fit(kind(), *QUICK, "trainer.max_epochs=1", f"run.dir={tmp_path / 'run'}", show=False)
    OfClass.kinds = 1
    rest = sk.resume(half, kind(), "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]", show=False)
    assert furthest(weights(rest.path), weights(run.path)) == 0


class Folded(Kinds):
    "What is found differs from fold to fold, and the same object is used for all of them."

    options = {"shift": 0.0}

    def datasets(self, cfg):
        self.shift = self.option(cfg, "shift")
        return super().datasets(cfg)

    def model(self, cfg):
        net = nn.Linear(3, len(self.names))
        net.register_buffer("shift", torch.tensor(self.shift), persistent=False)
        return net


def test_the_same_object_is_read_anew_for_the_run_that_is_loaded(tmp_path):
    task = Folded()
    runs = [
        sk.fit(task, *QUICK, f"task.shift={shift}", f"run.dir={tmp_path / str(shift)}", show=False)
        for shift in (1.0, 2.0)
    ]
    assert [run.load_model(task).shift.item() for run in runs] == [1.0, 2.0]


def test_without_the_data_a_model_that_does_not_want_them_is_loaded(tmp_path):
    class Kept(Kinds):
        def __init__(self, there=True):
            self.there = there

        def datasets(self, cfg):
            if not self.there:
                raise FileNotFoundError("train.csv")
            return super().datasets(cfg)

        def model(self, cfg):
            return nn.Linear(3, 3)

    run = sk.fit(Kept(), *QUICK, f"run.dir={tmp_path / 'run'}", show=False)
    assert run.load_model(Kept(there=False)).out_features == 3


def test_the_mean_of_folds_is_written_by_a_task_that_has_read_nothing(tmp_path):
    words = [word for word in QUICK if "max_epochs" not in word]
    result = sk.cross_validate(
        Kinds(),
        *words,
        "trainer.max_epochs=1",
        f"run.dir={tmp_path / 'cv'}",
        folds=2,
        predict=str(tmp_path / "out.csv"),
    )
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 11 and len(result.runs) == 2
