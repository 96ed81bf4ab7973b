"The order of an epoch: a permutation, without memory where it is long."

import tracemalloc
from functools import partial

import pytest
import torch

from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.sample_order import ComputedOrder, EpochPlan, epoch_order, mix_seed, times_seen, train_cuts


@pytest.mark.parametrize("samples", [1, 2, 5, 1023, 1024, 1025, 65_537])
def test_a_computed_order_visits_each_sample_once(samples):
    for key in (0, mix_seed(1, 2)):
        found = ComputedOrder(samples, key)
        whole = found[:]
        assert torch.equal(whole.sort().values, torch.arange(samples))
        somewhere = torch.randperm(samples)[:100]
        assert torch.equal(found[somewhere], whole[somewhere]) and torch.equal(found[3:9], whole[3:9])


def test_a_computed_order_is_spread_and_another_for_each_epoch():
    samples = 10**8
    one, other = (epoch_order(samples, 0, epoch)[: 2**16].double() / samples for epoch in (0, 1))
    for places in (one, other):
        counts = torch.histc(places, 64, 0, 1)
        assert (counts - 1024).square().sum() / 1024 < 120  # chi-square of 63: the mean is 63, 5 sigma are 119
        steps = torch.histc((places[1:] - places[:-1]).abs(), 3, 0, 1) / (len(places) - 1)
        assert torch.allclose(steps, torch.tensor([5 / 9, 3 / 9, 1 / 9], dtype=steps.dtype), atol=0.015)
    assert abs(torch.corrcoef(torch.stack([one, other]))[0, 1]) < 0.02


def test_up_to_ten_million_samples_the_order_is_drawn_by_torch():
    wanted = torch.randperm(1000, generator=torch.Generator().manual_seed(mix_seed(3, 5)))
    assert torch.equal(epoch_order(1000, 3, 5), wanted)
    assert isinstance(epoch_order(10**7 + 1, 3, 5), ComputedOrder)


@pytest.mark.parametrize("samples", [10**6, 10**9])
def test_no_sample_of_an_epoch_has_an_object_of_its_own(samples):
    plan = EpochPlan(partial(train_cuts, BatchPlan(samples, 32)), shuffle=True)
    next(plan.keys(samples, 0))  # imports
    tracemalloc.start()
    first = next(plan.keys(samples, 1, first_step=samples // 64))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(first.indices) == 32 and most < 2**20  # all that Python has allocated


def test_two_ranks_share_a_long_order():
    alone, *pair = (
        EpochPlan(partial(train_cuts, BatchPlan(10**8, size, 2, world), rank), shuffle=True)
        for size, world, rank in ((8, 1, 0), (4, 2, 0), (4, 2, 1))
    )
    (whole,), *parts = ([next(plan.keys(10**8, 2, first_step=77)).indices] for plan in (alone, *pair))
    assert whole == [*parts[0][0], *parts[1][0]]


def test_times_seen_counts_as_one_by_one():
    drawn = torch.randint(20, (200,))
    counts: dict[int, int] = {}
    wanted = []
    for index in drawn.tolist():
        wanted.append(counts.get(index, 0))
        counts[index] = wanted[-1] + 1
    assert times_seen(drawn).tolist() == wanted
