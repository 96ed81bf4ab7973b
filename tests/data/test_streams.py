"""Data that can only be read from the beginning to the end: order, shares, resume and predictions as by index."""

import os
import pickle
import random
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import spectrakit as sk
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.data.fingerprint import dataset_fingerprint
from spectrakit.data.loaders import Placement, eval_batches, train_batches
from spectrakit.data.streams import (
    StreamOrder,
    StreamSamples,
    is_stream,
    open_evaluation_stream,
    open_training_stream,
    shuffled,
)
from spectrakit.system.errors import RequestError
from tasks import SAMPLES, VALIDATION, Line, Submitting, tensors


class Drawn(IterableDataset):
    "Numbers in an order drawn anew in each pass, each with a draw from all three generators."

    def __init__(self, count=20):
        self.count, self.read = count, 0

    def __iter__(self):
        order = list(range(self.count))
        random.shuffle(order)
        for number in order:
            self.read += 1
            yield torch.tensor([number, random.random(), numpy.random.rand(), torch.rand(()).item()])


class Sized(Drawn):
    def __len__(self):
        return self.count


ONE = Placement()


def read(stream, epoch=0, first_step=0, place=ONE, size=4, buffer=0) -> torch.Tensor:
    "What is read of an epoch of 15 samples."
    source = train_batches(
        StreamSamples(stream, 15, buffer=buffer),
        BatchPlan(15, size, 1, place.world_size),
        compose("dataloader.num_workers=0", f"data.micro_batch_size={size}"),
        place,
        sampled=StreamOrder(15),
    )
    return torch.cat([batch.data for batch in source.epoch(epoch, first_step)])


@pytest.mark.parametrize("kind", [Drawn, Sized])
@pytest.mark.parametrize("buffer", [0, 6])
def test_a_sample_depends_on_its_position_alone(kind, buffer):
    whole = torch.cat([read(kind(), epoch, buffer=buffer) for epoch in range(3)])
    one_pass = torch.stack(StreamSamples(kind(), 20, buffer=buffer).__getitems__(range(20)))
    assert torch.equal(whole[:20], one_pass) and sorted(one_pass[:, 0].tolist()) == list(range(20))
    assert not torch.equal(whole[20:35], one_pass[:15])  # another pass, another order
    assert torch.equal(read(kind(), 1, first_step=2, buffer=buffer), whole[15:30][8:])
    assert torch.equal(read(kind(), 2, size=5, buffer=buffer), whole[30:45])
    halves = [read(kind(), 1, place=Placement(rank=rank, world_size=2), size=2, buffer=buffer) for rank in (0, 1)]
    together = {tuple(row) for half in halves for row in half.tolist()}
    assert together == {tuple(row) for row in whole[15:30].tolist()}


def test_a_worker_reads_the_same_and_only_one_reads():
    ahead = StreamSamples(Sized(), 15)
    config = compose("dataloader.num_workers=4", "data.micro_batch_size=4")
    source = train_batches(ahead, BatchPlan(15, 4), config, sampled=StreamOrder(15))
    assert (source.workers.loader.settings.num_workers, source.workers.loader.settings.persistent_workers) == (1, True)
    ahead[3]  # the worker is forked from a process that has begun to read
    for epoch in range(3):
        got = torch.cat([batch.data for batch in source.epoch(epoch)])
        assert torch.equal(got, read(Sized(), epoch))


def test_reading_leaves_no_trace_and_each_sample_is_read_once():
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()
    stream = Sized()
    source = StreamSamples(stream, 20)
    for first in range(0, 40, 4):
        source.__getitems__(range(first, first + 4))
    assert stream.read == 40
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize("size", [0, 2, 7, 20, 50])
def test_a_buffer_loses_no_sample(size):
    found = list(shuffled(iter(range(20)), size, seed=3))
    assert sorted(found) == list(range(20)) and found == list(shuffled(iter(range(20)), size, seed=3))
    assert (found == list(range(20))) is (size < 2)


def test_another_process_begins_with_a_pass_of_its_own():
    source = StreamSamples(Drawn(), 20)
    ninth = source[9]
    assert torch.equal(pickle.loads(pickle.dumps(source))[9], ninth)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writing, repr(source[10].tolist()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        assert told.read() == repr(source[10].tolist())


def test_evaluation_reads_all_of_it_in_its_own_order_each_time():
    config = compose("data.micro_batch_size=6", "dataloader.num_workers=0")
    samples, text = open_evaluation_stream(Drawn(), config, "Mine.datasets")
    assert len(samples) == 20 and "20 samples, counted" in text
    source = eval_batches(samples, config)
    one, other = (torch.cat([batch.data for batch in source.epoch(0)]) for _ in range(2))
    assert len(one) == 20 and torch.equal(one, other)
    shares = [[b for b in eval_batches(samples, config, Placement(rank=r, world_size=3)).epoch(0)] for r in range(3)]
    assert [[b.samples for b in share] for share in shares] == [[6, 2], [6, 0], [6, 0]]
    assert torch.equal(torch.cat([shares[0][0].data, shares[1][0].data, shares[2][0].data, shares[0][1].data]), one)


def test_a_fingerprint_reads_the_first_samples_alone():
    stream = Drawn(100)
    first = dataset_fingerprint(StreamSamples(stream, 100), 0)
    assert set(first["content"]) == {"0", "1", "2"} and stream.read < 10
    assert first == dataset_fingerprint(StreamSamples(Drawn(100), 100), 0)
    assert first != dataset_fingerprint(StreamSamples(Drawn(101), 100), 0)


class Short(Drawn):
    def __len__(self):
        return self.count + 1


@pytest.mark.parametrize(
    "stream, words, said",
    [
        (Drawn(), (), r"a stream without a length.*data.samples_per_epoch"),
        (iter([1, 2]), ("data.samples_per_epoch=2",), "can be read only once"),
        ((n for n in range(3)), ("data.samples_per_epoch=2",), "can be read only once"),
        (
            type("Ticks", (Drawn,), {"__iter__": lambda self: iter([id(object()), os.urandom(8)])})(),
            ("data.samples_per_epoch=2",),
            "begins with other samples",
        ),
    ],
)
def test_what_cannot_be_repeated_or_has_no_epoch_is_refused(stream, words, said):
    with pytest.raises(RequestError, match=said):
        open_training_stream(stream, compose(*words), "Mine.datasets")


def test_a_stream_that_ends_too_early_or_is_empty_is_told():
    with pytest.raises(RequestError, match=r"Short has a length of 21 and ended after 20 samples. Correct __len__"):
        StreamSamples(Short(), 21).__getitems__(range(21))
    with pytest.raises(RequestError, match="Drawn yielded no sample"):
        StreamSamples(Drawn(0), 5)[0]


def test_what_is_no_stream():
    assert not any(map(is_stream, ([1], (1, 2), {"a": 1}, {1}, numpy.zeros(3), TensorDataset(torch.zeros(3)))))
    assert is_stream(Drawn()) and is_stream(range(3).__iter__())


def test_a_fraction_of_a_stream_is_a_shorter_epoch():
    config = compose("data.samples_per_epoch=40", "limits.train_frac=0.25", "data.shuffle_buffer=9")
    samples, text = open_training_stream(Drawn(), config, "Mine.datasets")
    assert (len(samples), samples.buffer) == (10, 9) and "an epoch is 10 samples" in text
    ordered, text = open_training_stream(Drawn(), sk.override(config, "data.shuffle=false"), "Mine.datasets")
    assert ordered.buffer == 0 and "in its own order" in text


# whole runs


class Rows(IterableDataset):
    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def __iter__(self):
        x, y = tensors()
        for row in range(self.begin, self.end):
            yield x[row] + 0.01 * torch.rand(3), y[row]


class Streamed(Line):
    "The linear relation, read from a stream, with noise on its inputs; the ninth training loss of a broken one raises."

    options = {**Line.options, "broken": False}

    def datasets(self, cfg):
        self.broken = self.option(cfg, "broken")
        return Rows(0, SAMPLES), Rows(SAMPLES, SAMPLES + VALIDATION)

    def during(self, number):
        if self.broken and number == 9:
            raise ZeroDivisionError("as planned")


class Plain(Streamed):
    "Without dropout, so that ranks can be compared with one process."

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))


class Predicted(Submitting):
    def datasets(self, cfg):
        return Rows(0, SAMPLES), None

    def test_dataset(self, cfg):
        return Rows(SAMPLES, SAMPLES + VALIDATION)


WORDS = ("trainer.accelerator=cpu", "data.samples_per_epoch=30", "trainer.max_epochs=3", "checkpoint.every_n_steps=3")


def run_of(made, *words):
    return sk.fit(made, compose(*WORDS, *words), show=False)


def weights(run):
    return load_weights(find_checkpoint(run.path / "checkpoints")[0])


@pytest.mark.slow
def test_a_run_that_broke_goes_on_in_its_stream_bit_for_bit(here):
    inline = ("launch.mode=inline", "data.batch_size=8", "data.shuffle_buffer=10")
    whole = run_of(Streamed(), *inline).raise_for_status()
    texts = [event.get("text", "") for event in whole.events]
    assert any("Rows is a stream, read shuffled in a buffer of 10" in text for text in texts)
    broken = run_of(Streamed(), *inline, "+task.broken=true")
    assert "as planned" in broken.error
    on = sk.resume(broken, Streamed(), "task.broken=false", "resume.allow=[task.broken]", show=False)
    on.raise_for_status()
    one, other = weights(whole), weights(on)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert on.metrics == whole.metrics


@pytest.mark.slow
def test_two_ranks_train_on_the_samples_of_one_process(here):
    alone = run_of(Plain(), "launch.mode=inline", "data.batch_size=8").raise_for_status()
    words = ("trainer.devices=2", "data.batch_size=4", "dataloader.num_workers=1")
    shared = run_of(f"{Path(__file__)}:Plain", *words).raise_for_status()
    one, other = weights(alone), weights(shared)
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    assert shared.metrics["val_mae"] == pytest.approx(alone.metrics["val_mae"], rel=1e-4)


@pytest.mark.slow
def test_a_stream_is_predicted_whole_and_in_order(here):
    run = run_of(Predicted(), "launch.mode=inline", "data.batch_size=8").raise_for_status()
    values = sk.predict(Predicted(), run).values
    x, _ = open_evaluation_stream(Rows(SAMPLES, SAMPLES + VALIDATION), run.config, "")[0][0]
    with torch.inference_mode():
        first = run.load_model(Predicted()).eval()(x[None])
    assert len(values) == VALIDATION and values[0] == pytest.approx(first.item(), rel=1e-5)


@pytest.mark.slow
def test_a_sampler_for_a_stream_is_refused(here):
    made = type("Sampled", (Streamed,), {"sampler": lambda self, train, cfg: torch.ones(30)})()
    run = run_of(made, "launch.mode=inline")
    assert run.status == "failed" and "data.shuffle_buffer" in run.error
    assert run.error.startswith("Sampled.sampler returned a Tensor for a stream")
