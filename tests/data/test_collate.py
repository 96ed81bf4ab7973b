"A task's `collate` is told for which stage it makes a batch; what it draws depends on the seed and its samples alone."

import functools

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.task.task import collate_of

WORDS = (
    "trainer.accelerator=cpu",
    "data.batch_size=4",
    "accumulate_grad_batches=1",
    "trainer.max_epochs=2",
    "launch.mode=inline",
    "watchdog.limit=null",
    "run.console=none",
)


class Rows(sk.Task):
    "Notes the stages in the batches that it gets."

    def __init__(self):
        self.seen = {"train": set(), "eval": set(), "predict": set()}

    def datasets(self, cfg):
        rows = torch.arange(12.0).reshape(12, 1)
        return TensorDataset(rows, rows), TensorDataset(rows[:5], rows[:5])

    def test_dataset(self, cfg):
        return TensorDataset(torch.arange(3.0).reshape(3, 1))

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        self.seen["train" if model.training else "eval"].add(batch["stage"][0])
        return (model(batch["x"]) - batch["y"]).square().mean() * 1e-4

    def predict(self, model, batch):
        self.seen["predict"].add(batch["stage"][0])
        return model(batch["x"])


class Keyword(Rows):
    def collate(self, samples, *, stage):
        return _batch(samples, stage)


class Default(Rows):
    def collate(self, samples, stage="none"):
        return _batch(samples, stage)


class Static(Rows):
    @staticmethod
    def collate(samples, stage):
        return _batch(samples, stage)


def _batch(samples, stage):
    batch = {"x": torch.stack([s[0] for s in samples]), "stage": [stage] * len(samples)}
    return batch if stage == "predict" else {**batch, "y": torch.stack([s[1] for s in samples])}


@pytest.mark.parametrize("task", [Keyword, Default, Static])
def test_each_stage_is_told(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    one = task()
    run = sk.fit(one, *WORDS, predict="submission.csv", show=False)
    assert run.status == "completed", run.error
    assert one.seen == {"train": {"train"}, "eval": {"valid"}, "predict": {"predict"}}
    assert len((tmp_path / "submission.csv").read_text().splitlines()) == 4


def test_held_out_samples_are_read_as_in_evaluations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = sk.cross_validate(Default(), *WORDS, "trainer.max_epochs=1", folds=2, show=False)
    assert done.values is not None and len(done.values) == 12


def test_a_collate_that_asks_for_samples_alone_gets_these():
    class Old:
        def collate(self, samples, pad=0):
            return samples, pad

    class Part:
        collate = staticmethod(functools.partial(lambda samples: samples))

    assert collate_of(Old(), "train")([1]) == ([1], 0) and collate_of(Part(), "valid")([2]) == [2]
    assert collate_of(sk.Task(), "train") is None
