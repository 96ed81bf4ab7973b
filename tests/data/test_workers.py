"dataloader.num_workers=auto: found out from the first batches, and the same samples whatever is found."

import json
import os
import signal
import time
from functools import partial

import pytest
import torch
from torch.utils.data import get_worker_info

import spectrakit
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.config.loader_workers import Reading, ReadingTimes, choose_workers
from spectrakit.data import loaders
from spectrakit.data.loaders import LoadedBatches, Placement, train_batches
from spectrakit.data.sample_order import EpochPlan, train_cuts
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import read_events
from spectrakit.runs.run_dir import read_environment
from spectrakit.system.platforms.detect import detect
from spectrakit.task.task import Task
from spectrakit.train.loop import NullLog
from spectrakit.train.start.setup import keep_reading

PLAN = EpochPlan(partial(train_cuts, BatchPlan(120, 3, 2)), seed=5, shuffle=True)


class Noisy:
    "Samples with noise, which say which process has read them."

    def __len__(self):
        return 120

    def __getitem__(self, index):
        return index + torch.rand(3), os.getpid()


def settings(*words):
    return compose("dataloader.num_workers=auto", "dataloader.most_workers=3", *words).dataloader


def read(batches, epochs=2, first_step=0):
    found = [b for epoch in range(epochs) for b in batches.epoch(epoch, first_step)]
    return torch.cat([b.data[0] for b in found]), [b[1:] for b in found], [b.data[1][0].item() for b in found]


@pytest.fixture
def alone():
    return read(LoadedBatches(Noisy(), "cpu", PLAN, compose("dataloader.num_workers=0").dataloader))


@pytest.mark.slow
@pytest.mark.parametrize("persistent", ["true", "false"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_whatever_is_chosen_in_the_middle_of_an_epoch_the_samples_are_the_same(alone, monkeypatch, workers, persistent):
    "The choice itself is given here, since times are the machine's."
    monkeypatch.setattr(
        "spectrakit.data.loaders.choose_workers", lambda times, most, batches, ahead: Reading(workers, 4, f"{workers}")
    )
    batches, said = LoadedBatches(Noisy(), "cpu", PLAN, settings(f"dataloader.persistent_workers={persistent}")), []
    batches.workers.report = said.append
    samples, cuts, readers = read(batches)
    assert torch.equal(samples, alone[0]) and cuts == alone[1] and said == [f"{workers}"]
    assert (
        batches.workers.loader.settings.num_workers == workers and batches.workers.loader.settings.prefetch_factor == 4
    )
    assert os.getpid() not in readers[:14] and (os.getpid() in readers[15:]) == (workers == 0)
    assert len(set(readers[40:])) == max(1, workers)
    assert torch.equal(read(batches, 1, 3)[0], alone[0][18:120])  # a resume in an epoch


def test_only_workers_read_until_there_is_a_choice(monkeypatch):
    "A file that a data set opens in the training process would be shared with workers that begin later."
    seen = []
    monkeypatch.setattr(Noisy, "__getitem__", lambda self, index: (torch.ones(3), get_worker_info() is not None))
    batches = LoadedBatches(Noisy(), "cpu", PLAN, settings())
    batches.workers.report = seen.append
    flags = [bool(b.data[1].all()) for b in batches.epoch(0)]
    assert all(flags[:14]) and batches.workers.chosen is not None and seen == [batches.workers.chosen.reason]


@pytest.mark.parametrize(
    ("words", "place", "workers", "says"),
    [
        (("+dataloader.most_workers=1",), Placement(), "auto", "leave no core"),
        (("+dataloader.most_workers=4",), Placement("cpu", 0, 4), "auto", "leave no core"),
        (("+dataloader.most_workers=4",), Placement("cpu", 0, 2), 1, "at most 1"),
        ((), Placement(), "auto", "the training process"),
        (("dataloader.num_workers=0", "+dataloader.most_workers=4"), Placement(), 0, "the training process"),
    ],
)
def test_workers_stay_within_the_cores(words, place, workers, says):
    batches = train_batches(Noisy(), BatchPlan(120, 3, 1, place.world_size), compose(*words), place)
    assert batches.workers.loader.settings.num_workers == workers and says in batches.reason


def test_more_time_to_read_never_asks_for_fewer_workers():
    for step in (0.0, 0.001, 0.02):
        chosen = [
            choose_workers(ReadingTimes(each, each, 0.0003, step), 8, 10_000).num_workers
            for each in (1e-5, 1e-4, 1e-3, 4e-3, 2e-2, 0.1, 1.0)
        ]
        assert chosen == sorted(chosen) and chosen[0] == 0 and chosen[-1] == 8


class Learn(Task):
    "Reads what sleeps, so that reading takes longer than learning."

    asleep_s = 0.004

    def datasets(self, cfg):
        task = self

        class Rows:
            def __len__(self):
                return 96

            def __getitem__(self, index):
                time.sleep(task.asleep_s)
                return torch.rand(2), torch.tensor([float(index)])

        return Rows(), None

    def model(self, cfg):
        return torch.nn.Linear(2, 1)

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean() * 1e-4


@pytest.mark.slow
def test_the_choice_is_told_kept_and_taken_by_a_run_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("data.micro_batch_size=4", "+dataloader.most_workers=3", "trainer.accelerator=cpu", "trainer.max_epochs=2")
    run = spectrakit.fit(Learn(), spectrakit.compose(*words, "dataloader.num_workers=auto"), show=False)
    kept = read_environment(run.path)["reading"]["train"]

    def told():
        return [e["text"] for e in read_events(run.path / "events.jsonl") if e["type"] == "message"]

    assert kept["most_workers"] == 2 and 0 <= kept["num_workers"] <= 2 and kept["reason"] in told()
    again = LoadedBatches(Noisy(), "cpu", PLAN, settings("dataloader.most_workers=2"))
    context = create_run_context(spectrakit.compose("trainer.accelerator=cpu"), detect({"PATH": ""}, shell=""))
    keep_reading({"train": again}, context, NullLog(), run.path)
    assert again.workers.chosen is not None and again.workers.loader.settings.num_workers == kept["num_workers"]
    assert len(list(again.epoch(0))) == 40 and read_environment(run.path)["reading"]["train"] == kept


class Stopped(Learn):
    "Asks for a stop in its loss of this number."

    asleep_s, at = 0.0, 0

    def loss(self, model, batch):
        self.at -= 1
        if self.at == 0:
            signal.raise_signal(signal.SIGINT)
        return super().loss(model, batch)


def begun(tmp_path, monkeypatch, at, cores=3):
    "A run of 48 steps, stopped in its loss number `at`; its first times ask for one worker, later ones for none."
    choices = iter([1, *[0] * 9])
    monkeypatch.setattr(
        "spectrakit.data.loaders.choose_workers", lambda *_: Reading(next(choices), 3, "as the times have it")
    )
    tmp_path.mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path)
    words = ["data.micro_batch_size=4", "trainer.accelerator=cpu", "trainer.max_epochs=2", "launch.mode=inline"]
    words += ["local/accumulate_grad_batches=debug", f"+dataloader.most_workers={cores}", "run.console=none"]
    task = Stopped()
    task.at = at
    return spectrakit.fit(task, spectrakit.compose(*words, "dataloader.num_workers=auto"), show=False), words


@pytest.mark.slow
@pytest.mark.parametrize("way", ["resume", "auto"])
def test_a_run_that_goes_on_reads_as_it_has_found_out_and_the_same_samples(tmp_path, monkeypatch, way):
    whole = begun(tmp_path / "whole", monkeypatch, 0)[0].path.absolute()
    run, words = begun(tmp_path, monkeypatch, 20)
    assert run.status == "interrupted" and read_environment(run.path)["reading"]["train"]["num_workers"] == 1
    monkeypatch.setattr("spectrakit.data.loaders.choose_workers", lambda *_: pytest.fail("it is known already"))
    if way == "resume":
        again = spectrakit.resume(run, Stopped(), show=False)
    else:
        words = spectrakit.compose(*words, "dataloader.num_workers=auto")
        again = spectrakit.fit(Stopped(), words, resume="auto", show=False)
    assert again.path == run.path and again.status == "completed"
    assert read_environment(run.path)["reading"]["train"]["num_workers"] == 1
    assert "1, as measured before in this run" in json.dumps(read_environment(run.path)["decided"])
    paths = whole, run.path
    ends = [load_weights(find_checkpoint(folder / "checkpoints")[0]) for folder in paths]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


@pytest.mark.slow
def test_a_run_that_goes_on_where_there_are_more_cores_measures_anew_and_says_why(tmp_path, monkeypatch):
    run, _ = begun(tmp_path, monkeypatch, 20)
    again = spectrakit.resume(run, Stopped(), "dataloader.most_workers=4", show=False)
    known = read_environment(run.path)
    assert again.status == "completed" and known["reading"]["train"]["num_workers"] == 0
    assert "may be 3 workers now, and 2 before" in json.dumps(known["decided"])


@pytest.mark.slow
def test_epochs_of_one_batch_begin_one_worker_until_there_is_a_choice(monkeypatch):
    "Not one an epoch, as `persistent_workers=false` has it later."
    chosen = []
    monkeypatch.setattr(
        "spectrakit.data.loaders.choose_workers",
        lambda times, most, batches, ahead: chosen.append((times, batches)) or Reading(0, 2, "none"),
    )
    plan = EpochPlan(partial(train_cuts, BatchPlan(3, 3)), seed=5)
    batches = LoadedBatches(Noisy(), "cpu", plan, settings())
    batches.workers.report = print
    readers = read(batches, epochs=16)[2]
    assert len(set(readers[:15])) == 1 and readers[0] != os.getpid() and set(readers[15:]) == {os.getpid()}
    assert chosen[0][1] == 1 and chosen[0][0].start_s > 0


class Clock:
    "A time that passes only where the test says so."

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def one_worker_ahead(clock, read_s, receive_s, batches, ahead=2):
    "Batches as one worker gives them that reads up to `ahead` in advance, in the time of `clock`."
    ready, handed = 0.0, [0.0] * ahead
    for number in range(batches):
        ready = max(ready, handed[number]) + read_s  # it begins once there is a place for what it reads
        clock.now = max(clock.now, ready) + receive_s
        handed.append(clock.now)
        yield "data", frozenset(), read_s


def measured(read_s, learn_s, receive_s=0.0005):
    "What the first batches of a run say where they take so long, in two epochs."
    clock, times = Clock(), loaders._FirstTimes()
    for _ in range(2):
        for number, _ in enumerate(loaders._timed(one_worker_ahead(clock, read_s, receive_s, 9), times, clock)):
            clock.now += learn_s(number) if callable(learn_s) else learn_s
    assert times.enough
    return times


@pytest.mark.parametrize(
    ("read_s", "learn_s", "accumulated", "workers"),
    [
        (0.016, 0.030, 1, 1),
        (0.030, 0.030, 1, 1),
        (0.0002, 0.030, 1, 0),
        (0.016, 0.008, 1, 2),
        (0.030, 0.008, 1, 4),
        (0.100, 0.001, 1, 4),
        (0.016, lambda number: 0.010 + 0.020 * (number % 2), 2, 1),
        (0.016, lambda number: 0.010 + 0.060 * (number % 4 == 3), 4, 1),
        (0.016, lambda number: 0.010 + 9.0 * (number == 8), 1, 2),  # an evaluation after each epoch is no learning
    ],
)
def test_the_choice_follows_from_known_times(read_s, learn_s, accumulated, workers):
    times = measured(read_s, learn_s)
    chosen = times.choose(settings("dataloader.most_workers=4"), 0.0, 1000, accumulated)
    assert chosen.num_workers == workers, chosen.reason


def test_what_learning_takes_is_measured_from_batch_to_batch():
    times = measured(0.016, 0.030)
    assert times.steps == pytest.approx([0.030] * 18) and times.waits == pytest.approx([0.0005] * 16)
