"Scalers take mean and deviation from the samples of the run: per fold, on all ranks alike, and keep them."

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from helpers import run_cli, task, why_failed
from spectrakit.config.compose import compose
from tasks import Scaled

pytestmark = pytest.mark.slow
SHORT = ("trainer.accelerator=cpu", "data.batch_size=4", "trainer.max_epochs=2", "accumulate_grad_batches=1")
INLINE = (*SHORT, "launch.mode=inline")


def moments_of(run) -> tuple[torch.Tensor, torch.Tensor]:
    scaler = run.load_model(Scaled())[0]
    return scaler.mean, scaler.deviation


def test_each_fold_has_those_of_what_it_trains_on(here):
    cv = sk.cross_validate(Scaled(), compose(*INLINE, "run.dir=runs"), folds=3, show=False)
    x = Scaled().datasets(None)[0].tensors[0]
    for fold, run in enumerate(cv.runs):
        held = np.isin(np.arange(len(x)), cv.folds.held_out(fold))
        mean, deviation = moments_of(run)
        assert torch.allclose(mean, x[~held].mean(0)) and torch.allclose(deviation, x[~held].std(0, correction=0))
        assert not torch.allclose(mean, x.mean(0))  # what is held out was not seen
    assert abs(cv.values.mean() - cv.targets.mean()) < 0.2 * abs(
        cv.targets.mean()
    )  # predictions have the targets' units


def test_two_ranks_have_those_of_one_and_a_resume_and_a_prediction_keep_them(here):
    for name, words in (("one", ("trainer.devices=1",)), ("two", ("trainer.devices=2", "data.batch_size=2"))):
        done = run_cli(here, "train", task("Scaled"), *SHORT, *words, f"run.dir={name}")
        assert done.returncode == 0, done.stderr
    one, two = (sk.open_run(next((here / name).iterdir())) for name in ("one", "two"))
    assert all(torch.equal(a, b) for a, b in zip(moments_of(one), moments_of(two), strict=True))
    more = sk.resume(one, Scaled(), "trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]", show=False)
    assert more.status == "completed" and torch.equal(moments_of(more)[0], moments_of(two)[0])
    values = sk.predict(Scaled(), more).values
    assert values.shape == (10, 1) and abs(values.mean()) > 1000


def test_one_that_does_not_fit_is_a_sentence(here):
    class Narrow(Scaled):
        def model(self, cfg):
            return nn.Sequential(sk.Scaler(5), nn.Linear(3, 1))

    why_failed(
        sk.fit(Narrow(), compose(*INLINE, "run.dir=runs"), show=False),
        r"Scaler\(5, of='inputs'\) does not fit \[4, 3\]",
    )


def test_what_is_missing_and_what_is_constant_leave_it_finite(here):
    class Gaps(Scaled):
        def datasets(self, cfg):
            x, y = super().datasets(cfg)[0].tensors
            x = torch.cat([x[:, :1], torch.full((len(x), 1), 3.0), torch.full((len(x), 1), torch.nan)], 1)
            return TensorDataset(x, y), None

        def loss(self, model, batch):
            return nn.functional.mse_loss(model(torch.nan_to_num(batch[0])), batch[1])

    run = sk.fit(Gaps(), compose(*INLINE, "run.dir=runs", "data.allow_nan=true"), show=False)
    mean, deviation = moments_of(run)
    assert run.status == "completed" and mean[1:].tolist() == [3.0, 0.0] and deviation[1:].tolist() == [1.0, 1.0]
