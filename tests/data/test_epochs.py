"What a batch holds depends on the seed, the epoch and the samples alone, however it is read and whatever draws."

import functools
import random
from itertools import chain

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, IterableDataset, Subset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.config.loader_workers import Reading
from spectrakit.data.loaders import Placement, eval_batches, noticing_changes, train_batches
from spectrakit.data.streams import StreamOrder, open_training_stream

SAMPLES = 12
PLAN = BatchPlan(SAMPLES, 2)
WAYS = {
    "no worker": ("dataloader.num_workers=0",),
    "one": ("dataloader.num_workers=1",),
    "two": ("dataloader.num_workers=2", "dataloader.prefetch_factor=3"),
    "one kept": ("dataloader.num_workers=1", "dataloader.persistent_workers=true"),
    "two kept": ("dataloader.num_workers=2", "dataloader.persistent_workers=true"),
    "measured": ("dataloader.num_workers=auto", "dataloader.most_workers=2"),
}


class Rows:
    "The index, and a number that `mark` gives."

    def __len__(self):
        return SAMPLES

    def mark(self, index):
        return 0.0

    def __getitem__(self, index):
        return torch.tensor([index, self.mark(index)], dtype=torch.float64)


# ---------------------------------------------------------------- data that know the epoch


class Attribute(Rows):
    epoch = -1

    def mark(self, index):
        return self.epoch


class Told(Attribute):
    def set_epoch(self, epoch):
        self.epoch = epoch


class ToldToDraw(Rows):
    "Draws an order for each epoch, from a generator of its own."

    def __init__(self):
        self.rng, self.weights = numpy.random.default_rng(1), numpy.zeros(SAMPLES)

    def set_epoch(self, epoch):
        self.weights = self.rng.random(SAMPLES) + random.random()

    def mark(self, index):
        return self.weights[index]


class Own:
    "A wrapper that knows nothing of epochs."

    def __init__(self, source):
        self.parts = {"source": source}

    def __len__(self):
        return len(self.parts["source"])

    def __getitem__(self, index):
        return self.parts["source"][index] * 1.0


class Slotted(Own):
    __slots__ = ("source",)

    def __init__(self, source):
        super().__init__(source)
        self.source = source


WRAPPED = {
    "plain": lambda one: one,
    "subset": lambda one: Subset(one, list(range(SAMPLES))),
    "concatenated": lambda one: ConcatDataset([Subset(one, range(5)), Subset(one, range(5, SAMPLES))]),
    "own": lambda one: Own(Own(one)),
    "slotted": lambda one: Slotted(Subset(one, range(SAMPLES))),
}

CONFIG = {"epoch": -1}


class Global(Rows):
    def mark(self, index):
        return CONFIG["epoch"]


class InPlace(Rows):
    def __init__(self):
        self.table, self.tensor, self.names = numpy.zeros(SAMPLES), torch.zeros(SAMPLES), ["0"]

    def mark(self, index):
        return self.table[index] + self.tensor[index].item() + int(self.names[0])


def attribute(one, epoch):
    one.epoch = epoch


def in_a_global(one, epoch):
    CONFIG["epoch"] = epoch


def in_place(one, epoch):
    one.table[:], one.names[0] = epoch, str(100 * epoch)
    one.tensor.fill_(10 * epoch)


def grown(one, epoch):
    one.rows = list(range(4 * (1 + min(epoch, 2))))


class Curriculum(Rows):
    "An epoch has as many samples as ever, of more and more."

    rows = (0,)

    def mark(self, index):
        return self.rows[index % len(self.rows)]


def read(dataset, words, change=lambda epoch: None, first=(0, 0), world=1):
    "What three epochs hold, from epoch and step `first` on, as they are read by each of `world` ranks."
    found = []
    for rank in range(world):
        plan = BatchPlan(SAMPLES, 2 // world, world_size=world)
        batches = train_batches(dataset, plan, compose("data.resident_gib=0", *words), Placement("cpu", rank, world))
        batches.workers.report = lambda text: None
        each = []
        for epoch in range(first[0], 3):
            with noticing_changes(batches):
                change(epoch)
            each.append([b.data.tolist() for b in batches.epoch(epoch, first[1] if epoch == first[0] else 0)])
        batches.workers.loader.close()
        found.append(each)
    if world == 1:
        return found[0]
    return [[list(chain(*parts)) for parts in zip(*epochs, strict=True)] for epochs in zip(*found, strict=True)]


CHANGED = {
    "attribute": (Attribute, attribute),
    "global": (Global, in_a_global),
    "in place": (InPlace, in_place),
    "curriculum": (Curriculum, grown),
}


@pytest.fixture(autouse=True)
def choice(monkeypatch):
    "The measuring worker is followed by two others."
    monkeypatch.setattr("spectrakit.data.loaders.choose_workers", lambda *_: Reading(2, 2, "two"))
    CONFIG["epoch"] = -1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", CHANGED)
def test_what_on_epoch_changes_reaches_each_batch(kind, way):
    make, change = CHANGED[kind]
    wanted, one = make(), make()
    told = read(wanted, WAYS["no worker"], functools.partial(change, wanted))
    assert read(one, WAYS[way], functools.partial(change, one)) == told
    assert len({str(sorted(map(str, epoch))) for epoch in told}) == 3  # the epochs differ


@pytest.mark.parametrize("way", ["no worker", "two kept"])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_set_epoch_is_called_through_wrappers(wrapped, way):
    marks = [[row[1] for batch in epoch for row in batch] for epoch in read(WRAPPED[wrapped](Told()), WAYS[way])]
    assert marks == [[float(epoch)] * SAMPLES for epoch in range(3)]


@pytest.mark.parametrize("way", WAYS)
def test_what_set_epoch_draws_depends_on_the_epoch_alone(way):
    assert read(ToldToDraw(), WAYS[way]) == read(ToldToDraw(), WAYS["no worker"])
    assert read(ToldToDraw(), WAYS[way], first=(2, 3)) == [read(ToldToDraw(), WAYS["no worker"])[2][3:]]


def test_an_evaluation_between_two_batches_leaves_the_epoch_as_it_is():
    one = Told()
    config = compose("data.resident_gib=0", "dataloader.num_workers=0", "data.micro_batch_size=2")
    train, valid = train_batches(one, PLAN, config), eval_batches(Subset(one, [0, 1]), config)
    seen = []
    for batch in train.epoch(2):
        list(valid.epoch(0)), next(iter(train.epoch(0)))
        seen.append(batch.data[0, 1].item())
    assert seen == [2.0] * 6


def test_the_outer_one_of_two_that_know_the_epoch_is_told():
    class Outer(Own):
        def set_epoch(self, epoch):
            self.parts["source"].set_epoch(10 + epoch)

    assert read(Outer(Told()), WAYS["one kept"])[1][0][0][1] == 11.0


def test_rows_on_the_device_are_taken_anew_where_on_epoch_changes_them():
    rows, others = torch.arange(12.0).reshape(6, 2), torch.utils.data.TensorDataset(torch.zeros(6, 1))
    changed = {
        "in place": lambda data: data.tensors[0].add_(1),
        "others": lambda data: setattr(data, "tensors", (rows + 1,)),
    }
    for change in changed.values():
        data = torch.utils.data.TensorDataset(rows.clone())
        for words in ((), ("data.resident_gib=1e-9",)):
            batches = train_batches(data, BatchPlan(6, 3), compose("data.shuffle=false", *words))
            with noticing_changes(batches, train_batches(others, BatchPlan(6, 3), compose())):
                change(data)
            assert torch.equal(torch.cat([b.data[0] for b in batches.epoch(0)]), data.tensors[0])
    part = Subset(torch.utils.data.TensorDataset(rows), [0, 1])
    batches = train_batches(part, BatchPlan(2, 1), compose("data.shuffle=false"))
    with noticing_changes(batches):
        part.indices = [4, 5]
    assert torch.equal(torch.cat([b.data[0] for b in batches.epoch(0)]), rows[4:])


class Stream(IterableDataset):
    epoch, gain = -1, 1.0

    def __init__(self):
        self.rng = numpy.random.default_rng(0)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        for index in range(SAMPLES):
            yield torch.tensor([index, self.epoch, self.rng.random() * self.gain], dtype=torch.float64)


class ToldStream(Stream):
    def set_epoch(self, epoch):
        self.epoch = epoch


class WrappedStream(IterableDataset):
    def __init__(self):
        self.inner = ToldStream()

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        return iter(self.inner)


@pytest.mark.parametrize("buffer", [0, 5])
@pytest.mark.parametrize("each", [SAMPLES, 8])
@pytest.mark.parametrize("make", [Stream, ToldStream, WrappedStream])
def test_streams_know_the_epoch_and_draw_by_it(make, each, buffer):
    def passes(way, first=(0, 0)):
        stream = make()
        words = (f"data.samples_per_epoch={each}", f"data.shuffle_buffer={buffer}", *WAYS[way])
        samples, _ = open_training_stream(stream, compose(*words), "here")
        batches = train_batches(samples, BatchPlan(each, 2), compose(*words), sampled=StreamOrder(each))
        batches.workers.report = lambda text: None
        found = []
        for epoch in range(first[0], 3):
            with noticing_changes(batches):
                getattr(stream, "inner", stream).gain = 1.0 + epoch
            found.append([b.data.tolist() for b in batches.epoch(epoch, first[1] if epoch == first[0] else 0)])
        batches.workers.loader.close()
        return found

    wanted = passes("no worker")
    assert all(passes(way) == wanted for way in ("one", "one kept", "two kept"))
    assert passes("no worker", (1, 2)) == [wanted[1][2:], wanted[2]] == passes("one kept", (1, 2))
    assert max(row[2] for batch in wanted[2] for row in batch) > 1.0  # what changed has been seen


# ---------------------------------------------------------------- what draws


class Held(Rows):
    def __init__(self, generator):
        self.generator = generator

    def mark(self, index):
        one = self.generator
        if isinstance(one, torch.Generator):
            return torch.rand((), generator=one, dtype=torch.float64).item()
        return one() if callable(one) else one.random() if hasattr(one, "random") else one.rand()


class Late(Rows):
    "Makes its generator when it is read first, from what the system has."

    rng = None

    def mark(self, index):
        if self.rng is None:
            self.rng = numpy.random.default_rng()
        return self.rng.random()


class Seedable:
    "As albumentations has it: seeding makes new generators."

    def __init__(self, *inner):
        self.inner = list(inner)
        self.set_random_seed(None)

    def set_random_seed(self, seed):
        self.rng, self.py_random = numpy.random.default_rng(seed), random.Random(seed)
        for one in self.inner:
            one.set_random_seed(seed)

    def __call__(self, value=0.0):
        return self.rng.random() + self.py_random.random() + sum(one() for one in self.inner)


class Hidden:
    "A generator that cannot be seen, of a transform that can be seeded."

    __slots__ = ("number",)

    def set_random_seed(self, seed):
        self.number = seed

    def __call__(self):
        self.number = (self.number * 1103515245 + 12345) % 2**31
        return self.number / 2**31


RNG = numpy.random.default_rng(5)


class FromGlobal(Rows):
    def mark(self, index):
        return RNG.random()


def closed(rng):
    return lambda: rng.random()


DRAWING = {
    "numpy": lambda: Held(numpy.random.default_rng(0)),
    "numpy philox": lambda: Held(numpy.random.Generator(numpy.random.Philox(3))),
    "random state": lambda: Held(numpy.random.RandomState(0)),
    "python": lambda: Held(random.Random(0)),
    "torch": lambda: Held(torch.Generator()),
    "in a partial": lambda: Held(functools.partial(closed(random.Random(1)))),
    "in a closure": lambda: Held(closed(numpy.random.default_rng(2))),
    "bound": lambda: Held(numpy.random.default_rng(4).random),
    "made late": Late,
    "global": FromGlobal,
    "transform": lambda: Held(Seedable(Seedable(), Seedable())),
    "hidden": lambda: Held(Hidden()),
    "wrapped": lambda: Own(Subset(Held(Seedable()), range(SAMPLES))),
}


@pytest.mark.parametrize("kind", DRAWING)
def test_draws_of_held_generators_are_the_same_however_they_are_read(kind):
    wanted = read(DRAWING[kind](), WAYS["no worker"])
    draws = [row[1] for epoch in wanted for batch in epoch for row in batch]
    assert len(set(draws)) == 3 * SAMPLES
    assert read(DRAWING[kind](), WAYS["two kept"]) == wanted == read(DRAWING[kind](), WAYS["one"])
    assert read(DRAWING[kind](), WAYS["two"], first=(1, 4)) == [wanted[1][4:], wanted[2]]
    two_ranks = read(DRAWING[kind](), WAYS["no worker"], world=2)
    assert [sorted(chain(*epoch)) for epoch in two_ranks] == [sorted(chain(*epoch)) for epoch in wanted]


def test_generators_that_a_data_set_holds_are_as_they_were_after_reading():
    one = Held(numpy.random.default_rng(0))
    before = one.generator.bit_generator.state
    read(one, WAYS["no worker"])
    assert one.generator.bit_generator.state == before


class Mixing:
    "A collate that draws, as torchvision's mixing of samples does, and one that holds what it draws from."

    def __init__(self, draw):
        self.draw = draw

    def collate(self, samples):
        first = samples.pop(0)  # what it is given is its own
        return torch.stack([first, *samples]) + self.draw()


COLLATES = {
    "torch": lambda: Mixing(lambda: torch.distributions.Beta(0.2, 0.2).sample()),
    "numpy": lambda: Mixing(lambda: numpy.random.beta(0.2, 0.2)),
    "python": lambda: Mixing(random.random),
    "held": lambda: Mixing(numpy.random.default_rng(0).random),
    "transform": lambda: Mixing(Seedable(Seedable())),
}


@pytest.mark.parametrize("kind", COLLATES)
@pytest.mark.parametrize("rows", [Rows, lambda: Held(random.Random(3))])
def test_draws_in_collate_are_the_same_however_they_are_read(kind, rows):
    def epochs(way, first=0):
        words = ("data.micro_batch_size=3", *WAYS[way])
        batches = train_batches(rows(), BatchPlan(SAMPLES, 3), compose(*words), collate=COLLATES[kind]().collate)
        batches.workers.report = lambda text: None
        found = [[b.data.tolist() for b in batches.epoch(epoch, first)] for epoch in range(2)]
        batches.workers.loader.close()
        return found

    wanted = epochs("no worker")
    assert all(epochs(way) == wanted for way in ("one", "two", "two kept"))
    assert epochs("two", 2) == [epoch[2:] for epoch in wanted]
    assert len({batch[0][1] for epoch in wanted for batch in epoch}) == 8  # each batch has a draw of its own


def test_draws_in_collate_leave_an_evaluation_as_it_was():
    config = compose("dataloader.num_workers=0", "data.micro_batch_size=3")
    valid = eval_batches(Rows(), config, collate=COLLATES["torch"]().collate)
    one = [b.data.tolist() for b in valid.epoch(0)]
    torch.rand(7)
    assert [b.data.tolist() for b in valid.epoch(0)] == one


class Mixed(sk.Task):
    "Draws in `__getitem__`, in `collate` and by the epoch."

    def __init__(self):
        self.rows, self.rng = Attribute(), numpy.random.default_rng(0)

    def datasets(self, cfg):
        return self.rows, self.rows

    def model(self, cfg):
        return nn.Linear(2, 1)

    def collate(self, samples, stage):
        return torch.stack(samples).float() / SAMPLES + (torch.rand(()).item() + self.rng.random())

    def on_epoch(self, model, moment):
        self.rows.epoch = moment.epoch

    def loss(self, model, batch):
        return model(batch).square().mean()


@pytest.mark.slow
def test_a_run_ends_with_the_same_weights_whatever_reads_and_wherever_it_is_cut(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("trainer.accelerator=cpu", "data.batch_size=2", "accumulate_grad_batches=1", "launch.mode=inline")
    words += ("watchdog.limit=null", "run.console=none", "optimizer.lr=0.01")

    def weights(run):
        assert run.status == "completed", run.error
        return [w.tolist() for w in run.load_model().state_dict().values()]

    runs = {}
    for number, way in enumerate(("no worker", "two kept")):
        run = sk.fit(Mixed(), *words, *WAYS[way], "trainer.max_epochs=3", f"run.dir=runs/{number}", show=False)
        runs[way] = weights(run)
    cut = ("trainer.max_steps=8", "run.dir=runs/cut", "scheduler.name=constant", "checkpoint.max_share=1")
    part = sk.fit(Mixed(), *words, *WAYS["one kept"], *cut, show=False)
    rest = sk.resume(part, Mixed(), "trainer.max_steps=18", "resume.allow=[trainer.max_steps]", show=False)
    whole = sk.fit(Mixed(), *words, "trainer.max_steps=18", "scheduler.name=constant", "run.dir=runs/w", show=False)
    assert runs["no worker"] == runs["two kept"] and weights(rest) == weights(whole)
