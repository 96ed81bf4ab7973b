"""The outer loop of DiLoCo against a few lines that know nothing of it, and on the quadratic that fools others."""

import copy

import pytest
import torch
from torch import nn

from spectrakit.system.errors import RequestError
from spectrakit.train.diloco.outer_loop import (
    OuterLoop,
    end_round,
    flat,
    merge_buffers,
    outer_optimizer,
    pseudo_gradient,
)

WORKERS, STEPS = 2, 4


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(100 * worker + step))
    return x, x.sin().sum(1, keepdim=True)


def train(model, optimizer, worker: int, first: int) -> None:
    for step in range(first, first + STEPS):
        x, y = batch(worker, step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def make() -> list:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    return [copy.deepcopy(model) for _ in range(WORKERS)]


def by_hand(rounds: int) -> torch.Tensor:
    "Nesterov's momentum written out: m = 0.9 m + mean, θ = θ - 0.7 (mean + 0.9 m)."
    models = make()
    inner = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    theta = [p.detach().clone() for p in models[0].parameters()]
    moment = [torch.zeros_like(p) for p in theta]
    for number in range(rounds):
        for worker, model in enumerate(models):
            train(model, inner[worker], worker, number * STEPS)
        for i, weights in enumerate(zip(*(model.parameters() for model in models), strict=True)):
            mean = sum(theta[i] - p.detach() for p in weights) / WORKERS
            moment[i] = 0.9 * moment[i] + mean
            theta[i] = theta[i] - 0.7 * (mean + 0.9 * moment[i])
            for p in weights:
                p.data.copy_(theta[i])
    return torch.cat([p.reshape(-1) for p in theta])


def test_three_rounds_are_those_of_a_few_plain_lines():
    models = make()
    inner = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    loops = []
    for model in models:
        theta = flat(model.parameters())
        loops.append(OuterLoop(list(model.parameters()), theta, outer_optimizer(theta)))
    for number in range(3):
        for worker, model in enumerate(models):
            train(model, inner[worker], worker, number * STEPS)
        mean = sum(pseudo_gradient(loop).clone() for loop in loops) / WORKERS
        for loop in loops:
            end_round(loop, lambda own, mean=mean: mean.clone(), 0.7)
        assert torch.equal(loops[0].theta, loops[1].theta)
        assert all(torch.equal(flat(loop.params), loop.theta) for loop in loops)
    assert (loops[0].theta - by_hand(3)).abs().max() < 1e-6


def test_a_mean_that_is_not_finite_changes_nothing():
    weight = nn.Parameter(torch.ones(3))
    theta = flat([weight])
    outer = OuterLoop([weight], theta, outer_optimizer(theta))
    with torch.no_grad():
        weight[1] = float("nan")
    with pytest.raises(FloatingPointError):
        end_round(outer, lambda own: own, 0.7)
    assert theta.tolist() == [1.0, 1.0, 1.0] and not outer.optimizer.state


def test_the_mean_is_shortened_to_the_longest_that_is_allowed():
    weight = nn.Parameter(torch.tensor([3.0, 4.0]))
    theta = torch.zeros(2)
    outer = OuterLoop([weight], theta, outer_optimizer(theta, momentum=0.0))
    assert end_round(outer, lambda own: own, lr=1.0, clip=1.0) == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Muon", "Optimizer", "SGDD", ""])
def test_an_outer_optimizer_that_moves_no_vector_is_refused(name):
    with pytest.raises(RequestError, match="diloco.outer_opt="):
        outer_optimizer(torch.zeros(1), name)


def test_statistics_become_the_mean_of_the_workers_and_counters_the_largest():
    norms = [nn.BatchNorm1d(3) for _ in range(2)]
    before = [b.detach().clone() for b in norms[0].buffers()]
    for worker, norm in enumerate(norms):
        for step in range(2 + worker):
            norm(batch(worker, step)[0])
    own = [[b.clone() for b in norm.buffers()] for norm in norms]
    moves = [[(b - old).double() for b, old in zip(of, before, strict=True) if b.is_floating_point()] for of in own]
    mean = torch.stack([torch.cat(move) for move in moves]).mean(dim=0)
    for norm in norms:
        merge_buffers(list(norm.buffers()), before, lambda vector: mean.clone(), lambda counts: torch.tensor([3]))
        for name in ("running_mean", "running_var"):
            expected = (getattr(norms[0], name) + 0, sum(of[name == "running_var"] for of in own) / 2)
            assert torch.allclose(*expected, atol=1e-6)
        assert norm.num_batches_tracked.item() == 3
    seen = []
    merge_buffers(own[0], before, lambda vector: vector, lambda counts: seen.append(counts) or counts)
    assert [counts.tolist() for counts in seen] == [[2]]  # what is compared are this worker's counters
