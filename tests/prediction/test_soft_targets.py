"Pseudo labels and distillation: from the model of the same fold, so that a planted leak stays where it is."

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.runs.events import last_event
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task

pytestmark = pytest.mark.slow
WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=16",
    "accumulate_grad_batches=1",
    "run.dir=runs",
)
FITS = (*WORDS, "trainer.max_epochs=40", "optimizer.lr=0.01", "checkpoint.keep_last=1")


class Planted(Task):
    "Targets that nobody can learn, and test samples that are the training samples: who has seen a target knows it."

    def datasets(self, cfg):
        g = torch.Generator().manual_seed(0)
        return TensorDataset(torch.randn(80, 20, generator=g), torch.randint(0, 2, (80,), generator=g)), None

    def test_dataset(self, cfg):
        return TensorDataset(self.datasets(cfg)[0].tensors[0])

    def model(self, cfg):
        return nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 2))

    def loss(self, model, batch):
        self.calls += model.training
        return F.cross_entropy(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"calls": (float(self.calls) * len(outputs), len(outputs))}  # the last checkpoint is the best

    calls = 0
    metric_modes = {"calls": "max"}

    def predict(self, model, batch):
        return model(batch[0]).softmax(1)


def test_a_planted_leak_does_not_reach_what_is_held_out(here):
    last = ("checkpoint.monitor=val_calls",)
    first = sk.cross_validate(Planted(), compose(*FITS, *last), folds=4, show=False)
    targets = first.targets.astype(int)
    leak = (first.test["predictions"].argmax(1) == targets).mean()  # the mean over folds has seen each target
    clean = (first.values.argmax(1) == targets).mean()
    second = sk.cross_validate(Planted(), compose(*FITS, *last, f"folds.pseudo={first.path}"), folds=4, show=False)
    assert second.folds.sha256 == first.folds.sha256 and second.status == "completed"
    starts = [last_event(run.events, "start")["train_samples"] for run in second.runs]
    assert starts == [60 + 80] * 4 and leak > clean + 0.2
    assert (second.values.argmax(1) == targets).mean() < leak - 0.15  # as good as guessing, not as the leak


def test_distillation_and_other_folds(here):
    first = sk.cross_validate(Planted(), compose(*FITS, "trainer.max_epochs=2"), folds=3, show=False)
    words = (*FITS, "trainer.max_epochs=2", f"folds.distill={first.path}", "folds.distill_weight=1")
    student = sk.cross_validate(Planted(), compose(*words), folds=3, show=False)
    assert student.status == "completed" and np.isfinite(student.values).all()
    with pytest.raises(RequestError, match="held out other samples"):
        sk.cross_validate(Planted(), compose(*words), folds=4, show=False)
    with pytest.raises(RequestError, match="is not a cross-validation with known folds"):
        sk.cross_validate(Planted(), compose(*FITS, "folds.pseudo=runs"), folds=3, show=False)


class Twins(Planted):
    "Each input is there twice, with two targets that are drawn apart: who has seen one of them answers with it."

    def datasets(self, cfg):
        g = torch.Generator().manual_seed(0)
        inputs = torch.randn(40, 20, generator=g)
        return TensorDataset(torch.cat([inputs, inputs]), torch.randint(0, 2, (80,), generator=g)), None


def test_students_of_the_model_of_their_fold_know_nothing_of_what_is_held_out(here):
    last = ("checkpoint.monitor=val_calls", "folds.kind=kfold")
    teachers = sk.cross_validate(Twins(), compose(*FITS, *last), folds=4, show=False)
    targets = teachers.targets.astype(int)

    def students():
        words = (*FITS, *last, f"folds.distill={teachers.path}", "folds.distill_weight=1")
        cv = sk.cross_validate(Twins(), compose(*words), folds=4, show=False)
        said = " ".join(event["text"] for event in cv.runs[0].events if event["type"] == "message")
        return (cv.values.argmax(1) == targets).mean(), said

    leaked, warned = students()  # a twin's new target comes from a model that has seen the one that is held out
    assert "the score is a little too good" in warned
    words = compose(*FITS, *last, "folds.predict_train=true")
    again = sk.cross_validate(Twins(), words, folds=4, resume=teachers.path, show=False)
    assert [run.path for run in again.runs] == [run.path for run in teachers.runs]  # nothing is trained again
    clean, said = students()
    assert "by its model of this fold" in said and leaked > 0.75 and clean < leaked - 0.2
