"Samples that draw random numbers: the same to the bit as with all generators seeded for each, however they are read."

import random
from collections import Counter
from functools import partial

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.loaders import LoadedBatches
from spectrakit.data.sample_order import EpochPlan, Keys, mix_seed, train_cuts
from spectrakit.data.samples import SeededSamples

SAMPLES = 24


class Plain:
    "The index, and nothing else."

    def __len__(self) -> int:
        return SAMPLES

    def drawn(self, index: int) -> float:
        return 0.0

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, self.drawn(index)], dtype=torch.float64)


class Torch(Plain):
    def drawn(self, index):
        return torch.rand(()).item()


class Numpy(Plain):
    def drawn(self, index):
        return numpy.random.randn()  # a second one is drawn in advance


class Python(Plain):
    def drawn(self, index):
        return random.gauss(0, 1)


class All(Plain):
    def drawn(self, index):
        return torch.rand(()).item() + numpy.random.rand() + random.random()


class Rarely(Plain):
    def drawn(self, index):
        return (numpy.random.rand() if index % 11 == 7 else 0.0) + (random.random() if index == 20 else 0.0)


class OneThenTheOther(Plain):
    def drawn(self, index):
        return random.random() if torch.rand(()) > 0.7 else 0.0


class Hidden(Plain):
    def drawn(self, index):
        with torch.random.fork_rng():
            return torch.rand(()).item()


class BySeed(Plain):
    def drawn(self, index):
        return float(numpy.random.default_rng(torch.initial_seed()).random())


class FromIndex(Plain):
    def drawn(self, index):
        random.seed(index)
        return random.random()


class Together(Torch):
    def __getitems__(self, indices):
        return list(torch.stack([torch.tensor(indices), torch.rand(len(indices))], 1).double())


class AsOneBatch(Plain):
    def __getitems__(self, indices):
        return {"x": torch.tensor(indices)}  # no list of samples


class Sometimes(Plain):
    def drawn(self, index):
        if (value := torch.rand(()).item()) > 0.999:
            raise ValueError("cut too small")
        return value


KINDS = [Plain, Torch, Numpy, Python, All, Rarely, OneThenTheOther, Hidden, BySeed, FromIndex, Together, AsOneBatch]
DATASETS = [
    *(kind() for kind in KINDS),
    Subset(Rarely(), list(range(SAMPLES))[::-1]),
    ConcatDataset([Subset(Plain(), range(12)), Subset(All(), range(12, SAMPLES))]),
]


def one_by_one(dataset, keys: Keys) -> torch.Tensor:
    "A batch that is read sample by sample, each with a seed of its own."
    samples = []
    for index in keys.indices:
        seed = mix_seed(5, keys.epoch, index)
        random.seed(seed)
        numpy.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)
        samples.append(dataset[index])
    return torch.stack(samples)


def plan() -> EpochPlan:
    return EpochPlan(partial(train_cuts, BatchPlan(SAMPLES, 4)), seed=5, shuffle=True)


def wanted(dataset, epoch: int) -> list[torch.Tensor]:
    return [one_by_one(dataset, keys) for keys in plan().keys(SAMPLES, epoch)]


def name(dataset) -> str:
    return type(dataset).__name__


LONG = [pytest.param(data, 2, marks=pytest.mark.long, id=f"{name(data)}-2") for data in DATASETS[:-1]]


@pytest.mark.parametrize(
    ("dataset", "workers"),
    [
        *(pytest.param(data, 0, id=name(data)) for data in DATASETS),
        *LONG,
        pytest.param(DATASETS[-1], 2, marks=pytest.mark.slow),
    ],
)
def test_a_batch_is_what_it_was_with_all_generators_seeded(dataset, workers):
    settings = compose(f"dataloader.num_workers={workers}").dataloader
    batches = LoadedBatches(dataset, "cpu", plan(), settings)
    for epoch, first in ((0, 0), (1, 3), (2, 0)):
        found = [batch.data for batch in batches.epoch(epoch, first)]
        assert len(found) == 6 - first
        assert all(map(torch.equal, found, wanted(dataset, epoch)[first:])), (epoch, first)


@pytest.mark.parametrize("dataset", DATASETS, ids=name)
def test_reading_leaves_the_generators_where_they_were(dataset):
    batches = LoadedBatches(dataset, "cpu", plan(), compose("dataloader.num_workers=0").dataloader)

    def numbers() -> list[float]:
        random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
        found = [random.gauss(0, 1), numpy.random.randn(), torch.rand(()).item()]
        for _ in numbers.batches():
            found += [random.gauss(0, 1), numpy.random.randn(), torch.rand(()).item()]
        return found

    numbers.batches = lambda: batches.epoch(0)
    read = numbers()
    numbers.batches = lambda: range(6)
    assert read == numbers()


def test_what_a_collate_function_draws_depends_on_the_seed_and_the_samples_alone():
    settings = compose("dataloader.num_workers=0").dataloader
    batches = LoadedBatches(All(), "cpu", plan(), settings, lambda samples: torch.rand(()).item())
    torch.manual_seed(8)
    found = [batch.data for batch in batches.epoch(0)]
    assert torch.initial_seed() == 8 and torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(8))
    assert found == [batch.data for batch in batches.epoch(0)] and len(set(found)) == 6
    assert found[2:] == [batch.data for batch in batches.epoch(0, 2)]
    assert not set(found) & {batch.data for batch in batches.epoch(1)}


class Counted(Plain):
    def __init__(self):
        self.seen: Counter = Counter()

    def __getitem__(self, index):
        self.seen[index] += 1
        return super().__getitem__(index)


def test_a_data_set_that_draws_nothing_is_read_once_without_a_seed(monkeypatch):
    data = Counted()
    source = SeededSamples(data, 5)
    source.__getitems__(Keys(0, [0, 1]))
    assert data.seen == {0: 3, 1: 1}  # the first sample is read to find out
    monkeypatch.setattr(random, "seed", None)
    monkeypatch.setattr(numpy.random, "seed", None)
    source.__getitems__(Keys(0, [2, 3]))
    assert data.seen == {0: 3, 1: 1, 2: 1, 3: 1} and source.drawn == frozenset()


@pytest.mark.parametrize(
    ("kind", "names"),
    [(Torch, {"torch"}), (Numpy, {"numpy"}), (Python, {"random"}), (OneThenTheOther, {"torch", "random"})],
)
def test_only_generators_that_are_drawn_from_are_seeded(kind, names):
    source = SeededSamples(kind(), 5)
    source.__getitems__(Keys(0, list(range(SAMPLES))))
    assert source.drawn == names


@pytest.mark.parametrize("says", [True, False])
def test_a_data_set_says_whether_it_draws(says):
    data = Counted()
    data.draws_random = says
    source = SeededSamples(data, 5)
    source.__getitems__(Keys(0, [0, 1]))
    assert data.seen == {0: 1, 1: 1} and source.drawn == ({"random", "numpy", "torch"} if says else frozenset())


def test_an_error_that_a_seed_decides_comes_as_it_did():
    source, failed = SeededSamples(Sometimes(), 5), []
    for epoch in range(60):
        keys = Keys(epoch, list(range(SAMPLES)))
        try:
            read = torch.stack(source.__getitems__(keys))
        except ValueError:
            failed.append(epoch)
            with pytest.raises(ValueError):
                one_by_one(Sometimes(), keys)
        else:
            assert torch.equal(read, one_by_one(Sometimes(), keys))
    assert 0 < len(failed) < 10


class Seeded(Plain):
    "Draws by the seeds that it is given."

    def __getitems__(self, indices, seeds):
        return [torch.tensor([i, numpy.random.default_rng(s).random()]) for i, s in zip(indices, seeds, strict=True)]


def test_many_samples_at_once_draw_by_their_own_seeds():
    settings = compose("dataloader.num_workers=0").dataloader
    rows = [[b.data for b in LoadedBatches(Seeded(), "cpu", plan(), settings).epoch(1, first)] for first in (0, 2)]
    assert all(map(torch.equal, rows[0][2:], rows[1])) and len(torch.cat(rows[0])[:, 1].unique()) == SAMPLES


@pytest.mark.slow
def test_workers_of_a_later_epoch_know_what_earlier_ones_found():
    batches = LoadedBatches(Torch(), "cpu", plan(), compose("dataloader.num_workers=1").dataloader)
    list(batches.epoch(0))
    assert batches.workers.loader.source.drawn == {"torch"}
