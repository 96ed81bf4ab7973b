"""What a batch holds: by seed, epoch, step and rank, to the number."""

import random

import numpy
import pytest
import torch
from torch.utils.data import TensorDataset

from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.fingerprint import fingerprint_change
from spectrakit.data.loaders import Placement, eval_batches, train_batches
from spectrakit.data.sample_order import Keys, epoch_order, eval_cuts, mix_seed, train_cuts
from spectrakit.data.samples import SeededSamples


class Augmented:
    "The index, and a number from each of the three generators."

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), numpy.random.rand(), torch.rand(()).item()])


def noise(batches, epoch: int, first_step: int = 0) -> dict[int, tuple]:
    "Index → what was drawn for it, in one epoch."
    rows = torch.cat([batch.data for batch in batches.epoch(epoch, first_step)]).tolist()
    return {int(index): tuple(drawn) for index, *drawn in rows}


def loaded(seed: int = 0, size: int = 2, rank: int = 0, world_size: int = 1):
    config = compose("dataloader.num_workers=0", f"seed={seed}", f"data.micro_batch_size={size}")
    return train_batches(
        Augmented(), BatchPlan(10, size, 1, world_size), config, Placement(rank=rank, world_size=world_size)
    )


def test_a_sample_is_augmented_anew_in_every_epoch():
    batches = loaded()
    first, second = noise(batches, 0), noise(batches, 1)
    assert first.keys() == second.keys() == set(range(10))
    for index in range(10):
        assert all(a != b for a, b in zip(first[index], second[index], strict=True)), index  # all three generators


def test_an_augmentation_depends_on_seed_epoch_and_index_alone():
    whole = noise(loaded(), 3)
    assert noise(loaded(), 3) == whole and noise(loaded(size=5), 3) == whole
    assert noise(loaded(seed=1), 3) != whole
    halves = [noise(loaded(size=1, rank=rank, world_size=2), 3) for rank in (0, 1)]
    assert halves[0] | halves[1] == whole and not halves[0].keys() & halves[1].keys()
    rest = noise(loaded(), 3, first_step=3)
    assert len(rest) == 4 and rest.items() <= whole.items()
    assert len(set(whole.values())) == 10


def test_a_sample_that_is_drawn_again_in_an_epoch_is_augmented_anew():
    def drawn(seed: int, epoch: int, index: int, time: int) -> tuple:
        return tuple(SeededSamples(Augmented(), seed).__getitems__(Keys(epoch, [index], [time]))[0].tolist()[1:])

    once = SeededSamples(Augmented(), 5).__getitems__(Keys(2, [1]))[0].tolist()
    assert drawn(5, 2, 1, 0) == tuple(once[1:])  # the first time as where it is drawn once
    places = [(5, 2, 1, 0), (5, 2, 1, 1), (5, 2, 1, 2), (6, 2, 1, 1), (5, 3, 1, 1), (5, 2, 2, 1)]
    assert len({drawn(*place) for place in places}) == len(places)


def test_reading_leaves_the_generators_as_they_were():
    random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
    wanted = random.random(), numpy.random.rand(), torch.rand(()).item()
    random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
    SeededSamples(Augmented(), 5).__getitems__(Keys(0, [1, 1], [0, 1]))
    assert (random.random(), numpy.random.rand(), torch.rand(()).item()) == wanted


def test_an_order_depends_on_seed_and_epoch():
    orders = {tuple(epoch_order(50, seed, epoch).tolist()) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len(orders) == 6 and all(sorted(order) == list(range(50)) for order in orders)
    assert epoch_order(5, 0, 7, shuffle=False).tolist() == [0, 1, 2, 3, 4]
    assert (
        mix_seed(1, 2) != mix_seed(2, 1) and mix_seed(0) == 0xE220A8397B1DCDAF >> 1
    )  # SplitMix64's first number from 0


def test_the_shares_of_a_step_are_equal_to_one_sample_and_cover_it():
    plan = BatchPlan(samples=11, micro_batch_size=2, gradient_accumulation_steps=2, world_size=2)
    cuts = [list(train_cuts(plan, rank)) for rank in (0, 1)]
    assert [tuple(cut) for cut in cuts[0]] == [(0, 2, 2, 8, False), (4, 6, 2, 8, True), (8, 10, 2, 3, True)]
    assert [tuple(cut) for cut in cuts[1]] == [(2, 4, 2, 8, False), (6, 8, 2, 8, True), (10, 11, 1, 3, True)]
    assert list(train_cuts(plan, 1, first_step=1)) == cuts[1][2:]


def test_a_rank_without_a_sample_borrows_one_that_does_not_count():
    plan = BatchPlan(samples=9, micro_batch_size=2, gradient_accumulation_steps=2, world_size=2)
    assert tuple(list(train_cuts(plan, 0))[-1]) == (8, 9, 1, 1, True)
    assert tuple(list(train_cuts(plan, 1))[-1]) == (8, 9, 0, 1, True)


def test_evaluation_batches_are_dealt_out_and_the_last_ones_borrowed():
    plan = BatchPlan(7, 2)
    cuts = [[tuple(cut)[:3] for cut in eval_cuts(plan, rank, 3)] for rank in range(3)]
    assert cuts == [[(0, 2, 2), (6, 7, 1)], [(2, 4, 2), (0, 1, 0)], [(4, 6, 2), (0, 1, 0)]]


@pytest.mark.parametrize("resident", ["1.0", "0.0"])  # tensors on the device, and a loader
def test_evaluation_reads_every_sample_in_order(resident):
    config = compose("dataloader.num_workers=0", "data.eval_batch_size=4", f"data.resident_gib={resident}", "seed=3")
    batches = eval_batches(TensorDataset(torch.arange(10)), config)
    assert torch.cat([batch.data[0] for batch in batches.epoch(0)]).tolist() == list(range(10))


@pytest.mark.parametrize("resident", ["1.0", "0.0"])
def test_a_resumed_epoch_goes_on_at_its_step(resident):
    config = compose("dataloader.num_workers=0", "data.micro_batch_size=3", f"data.resident_gib={resident}", "seed=3")
    batches = train_batches(TensorDataset(torch.arange(10)), BatchPlan(10, 3), config)
    order = epoch_order(10, 3, 2).tolist()
    for first in range(4):
        read = torch.cat([batch.data[0] for batch in batches.epoch(2, first)]).tolist()
        assert read == order[3 * first :]


def test_a_fraction_of_the_data_and_its_batches():
    plan = BatchPlan(11, 2, 2, 1, drop_last=True)
    assert (plan.samples_per_epoch, plan.steps_per_epoch) == (8, 2)
    assert BatchPlan(11, 2, 2, 2, max_batches=2).samples_per_epoch == 8


def test_a_data_set_is_known_by_its_number_of_samples_and_by_its_content():
    before = {"samples": 3, "content": {"0": "aa", "2": "bb"}}
    assert fingerprint_change(before, dict(before)) is None
    assert fingerprint_change(before, {**before, "samples": 4}) == "it had 3 samples and has 4"
    assert fingerprint_change(before, {**before, "content": {"0": "aa", "2": "cc"}}) == "sample 2 has changed"
    assert fingerprint_change({**before, "content": {"all": "a"}}, {**before, "content": {"all": "b"}}) is not None
    assert fingerprint_change(None, None) is None and "now is one" in fingerprint_change(None, before)
