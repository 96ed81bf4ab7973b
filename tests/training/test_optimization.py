"Optimizers, schedulers and samplers as people use them, against plain PyTorch."


import pytest
import torch
from test_loop import ACCUMULATED, Exact, Rated, train, vector  # noqa: F401  train is a fixture
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, ReduceLROnPlateau

from spectrakit.system.errors import RequestError

# schedulers of the task's own; 4 steps an epoch, 12 in all


class Warming(Rated):
    "A warm-up of torch's own over eight steps: it changes the rates where it is made."

    def scheduler(self, optimizer, cfg, total_steps):
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))


class EachEpoch(Rated):
    "A rate that is halved after each epoch."

    def scheduler(self, optimizer, cfg, total_steps):
        return ExponentialLR(optimizer, 0.5)


class Plateau(Rated):
    "A rate that falls to a tenth where an evaluation brings nothing better; nothing is better than 100."

    def scheduler(self, optimizer, cfg, total_steps):
        return ReduceLROnPlateau(
            optimizer, mode=getattr(self, "mode", "min"), patience=0, threshold=100, threshold_mode="abs"
        )


def test_a_scheduler_moves_with_each_epoch(train):  # noqa: F811
    task = EachEpoch()
    train(task, *ACCUMULATED, "scheduler.interval=epoch")
    assert task.made.rates == [0.1] * 4 + [0.05] * 4 + [0.025] * 4


def test_a_plateau_is_recognised_and_sees_the_monitored_metric(train):  # noqa: F811
    task = Plateau()
    train(task, *ACCUMULATED)
    assert task.made.rates == pytest.approx([0.1] * 8 + [0.01] * 4)  # the first evaluation is the best there is


@pytest.mark.parametrize("kind", [EachEpoch, Plateau])
def test_a_run_that_was_stopped_goes_on_with_its_scheduler(train, kind):  # noqa: F811
    words = (*ACCUMULATED, "trainer.max_epochs=4", "scheduler.interval=epoch")
    whole, first, rest = kind(), kind(), kind()
    straight = train(whole, *words, name="straight")
    train(first, *words, name="cut", stop=lambda: len(first.made.rates) >= 10 if hasattr(first, "made") else 0)
    assert 10 <= len(first.made.rates) < 16
    resumed = train(rest, *words, name="cut", resume=True)
    assert first.made.rates + rest.made.rates == whole.made.rates
    assert torch.equal(resumed.weights(), straight.weights())


@pytest.mark.parametrize("kind", [Warming, Plateau])
def test_a_run_that_goes_on_with_twice_the_rate_has_twice_the_rate(train, kind):  # noqa: F811
    whole, first, rest = kind(), kind(), kind()
    train(whole, *ACCUMULATED, name="straight")
    train(first, *ACCUMULATED, name="cut", stop=lambda: len(first.made.rates) >= 3 if hasattr(first, "made") else 0)
    done = len(first.made.rates)
    assert 3 <= done < 12
    train(rest, *ACCUMULATED, "optimizer.lr=0.2", "resume.allow=[optimizer.lr]", name="cut", resume=True)
    assert rest.made.rates == pytest.approx([2 * rate for rate in whole.made.rates[done:]], rel=1e-12)


def test_a_plateau_that_looks_the_wrong_way_or_sees_nothing_is_refused(train):  # noqa: F811
    task = Plateau()
    task.mode = "max"
    with pytest.raises(RequestError, match=r"mode='max', and val_loss, .* is better where it is smaller"):
        train(task, *ACCUMULATED)

    class Blind(Plateau):
        def datasets(self, cfg):
            return super().datasets(cfg)[0], None

    with pytest.raises(RequestError, match="ReduceLROnPlateau moves after evaluations, and the task has no validation"):
        train(Blind(), *ACCUMULATED, name="blind")
