"""DiLoCo in the training loop, two workers on this machine: the same as DDP where it has to be, as a few plain lines
where not, resumed to the bit in the middle of a round.
"""

import copy
import gc
import inspect
import itertools
import math
import os
import re
import shutil
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import TensorDataset

from helpers import TESTS, only_run, run_cli
from in_process import furthest, weights
from rank_tasks import Curve, NanOnOneRank, Normed, Thawing
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, load_state, load_weights
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import plan_batches
from spectrakit.data.loaders import Placement, train_batches
from spectrakit.launch.job import Job
from spectrakit.launch.job_kind import kind_named
from spectrakit.launch.launcher import launch
from spectrakit.launch.request import new_request
from spectrakit.runs.events import columns, read_events
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.train.diloco.fragments import divide
from spectrakit.train.learner.model import make_model
from spectrakit.train.learner.optimizer import build_optimizer

pytestmark = pytest.mark.slow  # every test here starts processes

BASE = (
    "trainer.accelerator=cpu",
    "trainer.devices=2",
    "accumulate_grad_batches=2",
    "data.micro_batch_size=4",
    "scheduler.name=constant",
    "trainer.log_every_n_steps=4",
    "trainer.log_min_seconds=0",
    "checkpoint.max_share=1",  # a slow disk leaves none out
)
PLAIN_SGD = ("optimizer.name=sgd", "optimizer.momentum=0", "optimizer.weight_decay=0", "optimizer.lr=0.1")
DILOCO = ("trainer.strategy.name=diloco", "diloco.max_steps=5")
AS_DDP = (DILOCO[0], "diloco.max_steps=1", "diloco.outer_lr=1.0", "diloco.outer_momentum=0.0")


def run(folder, task, *words, kind="train"):
    "How a run in `folder` ended, and its events."
    request = new_request(compose(*BASE, *words), replace(detect(environ={}), cores=4))  # for four processes
    outcome = launch(Job(kind_named(kind), folder, request), task, lambda: None)
    return outcome, read_events(folder / "events.jsonl")


def train(folder, task, *words, kind="train"):
    outcome, events = run(folder, task, *words, kind=kind)
    assert outcome.status == "completed", outcome
    return events


class Short(Curve):
    "The last step of an epoch has one sample: a worker has one, and the other none."

    def datasets(self, cfg):
        train_set, valid = super().datasets(cfg)
        return TensorDataset(*(t[:33] for t in train_set.tensors)), valid


class Uneven(Curve):
    "A loss of (sum, weight): a step's weight differs from worker to worker."

    def loss(self, model, batch):
        weight = 1.0 + (batch[2] % 2).float()
        return (weight * (model(batch[0]) - batch[1]).square()[:, 0]).sum(), weight.sum()


class Counted(Uneven):
    "Each collective of rank 0 is written down: its name, who takes part, how many numbers."

    def __init__(self, folder):
        self.folder = folder

    def model(self, cfg):
        if dist.get_rank() == 0:
            for name in (*BETWEEN, *WITHIN):
                if hasattr(dist, name):
                    note_calls(name, self.folder / "calls.txt")
        return super().model(cfg)


BETWEEN = ("all_reduce",)
# FSDP's, by their names up to torch 2.12, and since then
WITHIN = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather_single", "reduce_scatter_single")


def note_calls(name, file):
    "From now on each call of a function of torch.distributed is a line: its name, who takes part, how many numbers."
    plain = getattr(dist, name)
    signature = inspect.signature(plain)

    def noted(*args, **kwargs):
        given = signature.bind(*args, **kwargs).arguments
        tensor = given.get("tensor", given.get("input_tensor", given.get("input")))
        ranks = dist.get_process_group_ranks(given.get("group") or dist.group.WORLD)
        with file.open("a") as lines:
            lines.write(f"{name} {''.join(map(str, ranks))} {tensor.numel()}\n")
        return plain(*args, **kwargs)

    setattr(dist, name, noted)  # to the end of this process


class Dropped(Curve):
    "Dropout draws from each worker's own generator."

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def test_an_exchange_after_each_step_is_ddp(tmp_path):
    words = (*PLAIN_SGD, "trainer.max_steps=7", "trainer.gradient_clip_val=null")
    train(tmp_path / "ddp", Curve(), *words)
    events = train(tmp_path / "diloco", Curve(), *words, *AS_DDP)
    assert furthest(weights(tmp_path / "ddp"), weights(tmp_path / "diloco")) < 1e-6
    assert columns(events, "round", "round")["round"] == [1, 2, 3, 4, 5, 6, 7]
    told = [e["text"] for e in events if e["type"] == "message"]
    assert any("with ddp and" in text and "take d" in text for text in told)  # once, what the two would cost here


def by_hand(task, config, steps: int, length: int) -> dict:
    "Two workers in turn, and Nesterov's momentum written out; knows nothing of the kit but how it draws batches."
    train_set, _ = task.datasets(config)
    plan = plan_batches(config, len(train_set), 2)
    models = [make_model(task, config)]
    models.append(copy.deepcopy(models[0]))
    inner = [torch.optim.AdamW(m.parameters(), lr=0.02, weight_decay=0.0) for m in models]
    theta = [p.detach().clone() for p in models[0].parameters()]
    moment = [torch.zeros_like(p) for p in theta]
    windows = [list(_windows(train_set, plan, config, rank, steps)) for rank in range(2)]
    for step in range(steps):
        for model, optimizer, mine in zip(models, inner, windows, strict=True):
            for p in model.parameters():
                p.grad = torch.zeros_like(p)  # also where this worker has no sample of the step
            for data, share in mine[step]:
                (nn.functional.mse_loss(model(data[0]), data[1]) * share).backward()
            optimizer.step()
        if (step + 1) % length and step + 1 < steps:
            continue
        for i, each in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            mean = sum(theta[i] - p.detach() for p in each) / 2
            moment[i] = 0.9 * moment[i] + mean
            theta[i] = theta[i] - 0.7 * (mean + 0.9 * moment[i])
            for p in each:
                p.data.copy_(theta[i])
    return {name: p.detach() for name, p in models[0].named_parameters()}


def _windows(train_set, plan, config, rank: int, steps: int):
    "The micro batches of each step of a worker, with their share of its loss."
    batches, done, epoch = train_batches(train_set, plan, config, Placement(torch.device("cpu"), rank, 2)), 0, 0
    while done < steps:
        window = []
        for batch in batches.epoch(epoch):
            window.append((batch.data, batch.samples / (batch.window_samples / 2)))
            if batch.last:
                yield [(data, share) for data, share in window if share]
                window, done = [], done + 1
        epoch += 1


@pytest.mark.parametrize("task", [Curve(), Short()])
def test_rounds_are_those_of_two_workers_by_hand(tmp_path, task):
    words = (*DILOCO, "optimizer.name=adamw", "optimizer.lr=0.02", "optimizer.weight_decay=0", "trainer.max_steps=13")
    events = train(tmp_path / "kit", task, *words, "trainer.check_val_every_n_steps=2")
    expected = by_hand(task, compose(*BASE, *words), steps=13, length=5)
    assert furthest(weights(tmp_path / "kit"), expected) < 1e-6
    rounds = columns(events, "round", "step", "steps", "bytes")
    size = 4 * sum(p.numel() for p in expected.values())
    assert rounds["step"] == [5, 10, 13] and rounds["steps"] == [5, 5, 3]  # the last one is cut short
    assert rounds["bytes"] == [size] * 3  # around a ring of two: 2 · 1/2 of the vector
    ledger = columns(events, "round", "bytes_so_far", "waited_so_far_s")
    assert ledger["bytes_so_far"] == [size, 2 * size, 3 * size]
    assert ledger["waited_so_far_s"] == sorted(ledger["waited_so_far_s"])
    assert columns(events, "eval", "step")["step"] == [5, 10, 13]  # only where all have one model


STREAM = ("diloco.fragments=2", "diloco.overlap_steps=2")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), marks=pytest.mark.long),
        (*STREAM, "diloco.compression=int4"),
        pytest.param(("diloco.compression=int4",), marks=pytest.mark.long),
        pytest.param(STREAM, marks=pytest.mark.long),
    ],
)
def test_it_goes_on_in_the_middle_of_a_round_to_the_bit(tmp_path, more):
    words = (
        *DILOCO,
        *more,
        "optimizer.lr=0.02",
        "trainer.max_steps=12",
        "checkpoint.every_n_steps=7",
        "diloco.warmup_steps=1",
    )
    train(tmp_path / "whole", Dropped(), *words, "checkpoint.every_n_epochs=null", "checkpoint.keep_last=9")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    found = {int(path.name[-8:]): path for path in checkpoints(tmp_path / "cut" / "checkpoints")}
    shutil.rmtree(found[12])
    state, own = load_state(found[7], 1)
    assert own["parts"]["diloco"]["place"]["position"] == 7
    if "diloco.fragments=2" in more:  # the fragment that travels is kept
        assert own["parts"]["diloco"]["flight"]["due"] == 8 and state["parts"]["diloco"]["fragments"] == 2
    else:
        assert state["parts"]["diloco"]["ledger"]["round_began"] == 6
    other = load_state(found[7], 0)[1]["parts"]["diloco"]["weights"]
    assert not torch.equal(own["parts"]["diloco"]["weights"][0], other[0])  # in the middle of a round
    train(tmp_path / "cut", Dropped(), *words, kind="resume")
    assert furthest(weights(tmp_path / "cut"), weights(tmp_path / "whole")) == 0.0
    last = [load_state(find_checkpoint(tmp_path / name / "checkpoints")[0], 1) for name in ("whole", "cut")]
    for (whole, of_whole), (cut, of_cut) in [last]:
        loops = [s["parts"]["diloco"].get("loops", [s["parts"]["diloco"]]) for s in (whole, cut)]
        for pair in zip(*loops, strict=True):
            assert torch.equal(*(loop["optimizer"]["state"][0]["momentum_buffer"] for loop in pair))
        inner = [o["parts"]["diloco"]["optimizer"]["state"][0]["exp_avg"] for o in (of_whole, of_cut)]
        assert torch.equal(*inner)

    one = ("trainer.devices=1", "accumulate_grad_batches=4")
    shutil.copytree(tmp_path / "whole", tmp_path / "refused")
    shutil.rmtree(tmp_path / "refused" / "checkpoints" / found[12].name)
    mended = r"2 workers had .* with as many, or from a checkpoint of (a round's end, after .* \d or \d+|its last)"
    with pytest.raises(RequestError, match=mended):
        run(tmp_path / "refused", Dropped(), *words, *one, kind="resume")


class MuonAndAdamW(torch.optim.Optimizer):
    "Muon for the matrices, AdamW for all else, as in docs/diloco.md."

    def __init__(self, params, lr):
        params = list(params)
        matrices, rest = [p for p in params if p.dim() == 2], [p for p in params if p.dim() != 2]
        muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        self.both = muon, torch.optim.AdamW(rest, lr=lr, weight_decay=0.0)
        super().__init__([group for one in self.both for group in one.param_groups], {})

    def step(self, closure=None):
        for one, group in zip(self.both, self.param_groups, strict=True):
            one.param_groups, one.state = [group], self.state
            one.step()


class ByMuon(Curve):
    def optimizer(self, model, cfg):
        return MuonAndAdamW(model.parameters(), cfg.optimizer.lr)


@pytest.mark.long
def test_an_inner_optimizer_of_ones_own_lives_on_over_rounds_and_a_resume(tmp_path):
    words = (*DILOCO, "optimizer.lr=0.02", "trainer.max_steps=12", "checkpoint.every_n_steps=7")
    words = (*words, "checkpoint.every_n_epochs=null", "checkpoint.keep_last=9")
    train(tmp_path / "run", ByMuon(), *words)
    whole, (last, *_) = weights(tmp_path / "run"), checkpoints(tmp_path / "run" / "checkpoints")[::-1]
    assert last.name.endswith("12")
    for rank in range(2):
        state = load_state(last, rank)[1]["parts"]["diloco"]["optimizer"]["state"]
        assert {len(kept) for kept in state.values()} == {1, 3}  # Muon's momentum; a step and two averages
    shutil.rmtree(last)
    train(tmp_path / "run", ByMuon(), *words, kind="resume")
    assert furthest(weights(tmp_path / "run"), whole) == 0.0


class Overheard(Curve):
    "What rank 0 gives to all_reduce is written down, in whichever thread: how many numbers."

    def __init__(self, folder):
        self.folder = folder

    def model(self, cfg):
        plain, file = dist.all_reduce, self.folder / "sizes.txt"

        def overhear(tensor, *args, **kwargs):
            with file.open("a") as lines:
                lines.write(f"{threading.current_thread().name} {tensor.numel()}\n")
            return plain(tensor, *args, **kwargs)

        if dist.get_rank() == 0 and plain.__name__ != "overhear":  # the check before training makes a second model
            dist.all_reduce = overhear
        return super().model(cfg)


def in_fragments_by_hand(task, config, steps: int) -> dict:
    "Two workers in turn; each of two fragments is sent at its own step, and arrives one step later."
    train_set, _ = task.datasets(config)
    plan = plan_batches(config, len(train_set), 2)
    models = [make_model(task, config)]
    models.append(copy.deepcopy(models[0]))
    inner = [torch.optim.AdamW(m.parameters(), lr=0.02, weight_decay=0.0) for m in models]
    order = [id(p) for group in build_optimizer(models[0], config).param_groups for p in group["params"]]
    names = sorted(dict(models[0].named_parameters()), key=lambda name: order.index(id(models[0].get_parameter(name))))
    params = [[m.get_parameter(name) for name in names] for m in models]
    theta = [p.detach().clone() for p in params[0]]
    moment = [torch.zeros_like(p) for p in theta]
    parts = divide([p.numel() for p in theta], 2)
    windows = [list(_windows(train_set, plan, config, rank, steps)) for rank in range(2)]
    travelling: dict[int, list] = {}
    for step in range(1, steps + 1):
        for model, optimizer, mine in zip(models, inner, windows, strict=True):
            optimizer.zero_grad()
            for data, share in mine[step - 1]:
                (nn.functional.mse_loss(model(data[0]), data[1]) * share).backward()
            optimizer.step()
        last, arrived = step == steps, set()
        for due in [d for d in travelling if last or d == step]:
            arrived = {i for i, _ in travelling[due]}
            arrive(travelling.pop(due), params, theta, moment, 0.0 if last else 0.25)
        within = (step - 1) % 6 + 1
        sent = [k for k in (0, 1) if arrived.isdisjoint(parts[k])] if last else {3: [0], 6: [1]}.get(within, [])
        for number in sent:
            means = [(i, sum(theta[i] - own[i].detach() for own in params) / 2) for i in parts[number]]
            if last:
                arrive(means, params, theta, moment, 0.0)
            else:
                travelling[step + 1] = means
    return {name: p.detach() for name, p in zip(names, params[0], strict=True)}


def arrive(means: list, params: list, theta: list, moment: list, mixing: float) -> None:
    for i, mean in means:
        moment[i] = 0.9 * moment[i] + mean
        theta[i] = theta[i] - 0.7 * (mean + 0.9 * moment[i])
        for own in params:
            own[i].data.copy_(mixing * own[i].data + (1 - mixing) * theta[i])


def test_fragments_in_turn_are_those_of_two_workers_by_hand(tmp_path):
    words = ("trainer.strategy.name=diloco", "diloco.max_steps=6", "diloco.fragments=2", "diloco.overlap_steps=1")
    words = (*words, "diloco.mixing=0.25", "optimizer.name=adamw", "optimizer.lr=0.02", "optimizer.weight_decay=0")
    words = (*words, "trainer.max_steps=13", "trainer.check_val_every_n_steps=5")
    events = train(tmp_path / "kit", Overheard(tmp_path), *words)
    expected = in_fragments_by_hand(Curve(), compose(*BASE, *words), steps=13)
    assert furthest(weights(tmp_path / "kit"), expected) < 1e-6
    path, _ = find_checkpoint(tmp_path / "kit" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"]["diloco"]["weights"] for rank in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*own, strict=True))  # one model, whatever was mixed on the way
    rounds = columns(events, "round", "step", "fragment", "bytes")
    assert rounds["step"] == [4, 7, 10, 13, 13] and rounds["fragment"] == [0, 1, 0, 1, 0]  # once what has just arrived
    sizes = [p.numel() for p in expected.values()]
    halves = [sum(sizes[i] for i in part) for part in divide(sizes, 2)]
    assert rounds["bytes"] == [4 * halves[k] for k in rounds["fragment"]]
    heard = [line.split() for line in (tmp_path / "sizes.txt").read_text().splitlines()]
    beside = [int(size) for thread, size in heard if thread.startswith("exchange")]
    assert beside == [halves[0], halves[1], halves[0], halves[1]] and max(beside) < sum(halves)  # never all at once
    assert columns(events, "eval", "step")["step"] == [3, 5, 6, 9, 10, 12, 13]  # of what all have in common


FOUR = ("trainer.devices=4", "accumulate_grad_batches=1", "diloco.shards=2")


class Dies(Dropped):
    "Worker 1 is killed once, in the middle of a later step."

    def __init__(self, marker):
        self.marker, self.seen = marker, 0

    def loss(self, model, batch):
        self.seen += model.training
        if dist.get_rank() == 1 and self.seen == 18 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


@pytest.mark.long
def test_after_a_worker_was_killed_the_run_ends_as_if_it_had_not_been(tmp_path):
    words = (*DILOCO, "optimizer.lr=0.02", "trainer.max_steps=12", "checkpoint.every_n_steps=2")
    train(tmp_path / "whole", Dropped(), *words)
    events = train(tmp_path / "killed", Dies(tmp_path / "marker"), *words)
    restart = next(e for e in events if e["type"] == "restart")
    assert (tmp_path / "marker").exists() and 0 < restart["step"] < 12
    assert furthest(weights(tmp_path / "killed"), weights(tmp_path / "whole")) == 0.0


class Stopped(Dropped):
    "Somebody asks for a stop in the third epoch, between two rounds."

    def on_epoch(self, model, moment):
        if moment.epoch == 2:
            (self.folder / "STOP").touch()
            time.sleep(1.0)  # a thread looks for it four times a second

    def __init__(self, folder):
        self.folder = folder


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("checkpoint.every_n_steps=1",),  # the step at which it ends has been saved before
        ("diloco.shards=2", "trainer.devices=4", "accumulate_grad_batches=1"),
    ],
)
def test_a_stop_in_the_middle_of_a_round_leaves_the_mean_of_the_workers(tmp_path, words):
    words = (*DILOCO, "diloco.max_steps=100", "optimizer.lr=0.02", "trainer.max_steps=30", *words)
    outcome, _ = run(tmp_path / "run", Stopped(tmp_path / "run"), *words)
    assert outcome.status == "interrupted", outcome
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    count = 4 if "diloco.shards=2" in words else 2
    ranks = [load_state(path, rank)[1]["parts"]["diloco"]["weights"] for rank in range(count)]
    found, (name, first) = load_weights(path), next(iter(Dropped().model(None).named_parameters()))
    half = len(ranks) // 2
    workers = [torch.cat([ranks[half * w + part][0] for part in range(half)]) for w in range(2)]
    assert not torch.equal(*workers) and found[name].shape == first.shape
    assert (found[name] - sum(workers) / 2).abs().max() < 1e-6


@pytest.mark.long
def test_sharded_workers_learn_what_whole_ones_do(tmp_path):
    words = (*DILOCO, "optimizer.lr=0.02", "trainer.max_steps=12", "checkpoint.every_n_steps=7")
    words = (*words, "checkpoint.every_n_epochs=null", "checkpoint.keep_last=9")
    train(tmp_path / "whole", Uneven(), *words, "data.micro_batch_size=8", "accumulate_grad_batches=1")
    train(tmp_path / "sharded", Counted(tmp_path), *words, *FOUR)
    assert furthest(weights(tmp_path / "whole"), weights(tmp_path / "sharded")) < 1e-6
    calls = [line.split() for line in (tmp_path / "calls.txt").read_text().splitlines()]
    own = 97  # of the 185 numbers of the model: half of each layer of eight rows, and the layer of one row
    between = [(name, int(size)) for name, ranks, size in calls if ranks == "02"]
    assert [call for call in between if call[1] not in (1, 2**16, 2**18, 2**20, 2**22)] == [("all_reduce", own)] * 3
    for kind in ("all_gather", "reduce_scatter"):
        assert {ranks for name, ranks, _ in calls if name in WITHIN and name.startswith(kind)} == {"01"}

    found = {int(path.name[-8:]): path for path in checkpoints(tmp_path / "sharded" / "checkpoints")}
    common, of_whole = load_weights(found[7]), load_weights(tmp_path / "whole" / "checkpoints" / found[7].name)
    assert furthest(common, of_whole) < 1e-6  # in the middle of a round: what it began with
    end = weights(tmp_path / "sharded")
    shutil.rmtree(found[12])
    train(tmp_path / "sharded", Uneven(), *words, *FOUR, kind="resume")
    assert furthest(weights(tmp_path / "sharded"), end) == 0.0


@pytest.mark.long
def test_sharded_workers_that_stream_learn_what_whole_ones_do_and_go_on_to_the_bit(tmp_path):
    words = (*DILOCO, *STREAM, "optimizer.lr=0.02", "trainer.max_steps=12", "checkpoint.every_n_steps=9")
    words = (*words, "checkpoint.every_n_epochs=null", "checkpoint.keep_last=9")
    train(tmp_path / "whole", Uneven(), *words, "data.micro_batch_size=8", "accumulate_grad_batches=1")
    train(tmp_path / "sharded", Uneven(), *words, *FOUR)
    assert furthest(weights(tmp_path / "whole"), weights(tmp_path / "sharded")) < 1e-6
    end = weights(tmp_path / "sharded")
    shutil.rmtree(next(path for path in checkpoints(tmp_path / "sharded" / "checkpoints") if path.name.endswith("12")))
    with pytest.raises(RequestError, match="its last step: with diloco.fragments there is no other"):
        run(
            tmp_path / "sharded",
            Uneven(),
            *words,
            "data.micro_batch_size=8",
            "accumulate_grad_batches=1",
            kind="resume",
        )
    train(tmp_path / "sharded", Uneven(), *words, *FOUR, kind="resume")
    assert furthest(weights(tmp_path / "sharded"), end) == 0.0


@pytest.mark.parametrize(
    "words_now, now",
    [
        (("trainer.devices=1", "accumulate_grad_batches=4"), "1 worker now"),
        pytest.param(("diloco.shards=2",), "1 worker of 2 processes now", marks=pytest.mark.long),
    ],
)
def test_at_the_end_of_a_round_another_number_of_workers_goes_on(tmp_path, words_now, now):
    words = (*DILOCO, "trainer.max_steps=8", "checkpoint.every_n_steps=5", "checkpoint.every_n_epochs=null")
    train(tmp_path / "run", Curve(), *words)
    newest, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    shutil.rmtree(newest)
    events = train(tmp_path / "run", Curve(), *words, *words_now, kind="resume")
    restart = next(e for e in events if e["type"] == "restart")
    assert restart["step"] == 5 and any(f"had 2 workers, and has {now}" in note for note in restart["notes"])
    assert columns(events, "round", "step", "bytes")["bytes"][-1] == 0


@pytest.mark.parametrize("form, size", [("fp16", 2 * 256), ("int8", 256 + 4), ("int4", 128 + 4)])
def test_a_compressed_exchange_leaves_all_workers_with_one_model(tmp_path, form, size):
    events = train(tmp_path / "run", Thawing(), *DILOCO, "trainer.max_steps=15", f"diloco.compression={form}")
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"]["diloco"] for rank in range(2)]
    assert all(torch.equal(*pair) for pair in zip(own[0]["weights"], own[1]["weights"], strict=True))
    assert own[0]["compression"][0]["left_out"].abs().max() > 0
    assert own[0]["compression"][0]["of"].count(False) == 2  # without the layer that learns no longer
    assert columns(events, "round", "bytes")["bytes"] == [2 * size] * 3  # 185 weights: a block for each worker


def test_statistics_of_batch_norm_are_those_of_all_workers(tmp_path):
    train(tmp_path / "run", Normed(), *DILOCO, "trainer.max_steps=5")
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"]["diloco"]["buffers"] for rank in range(2)]
    assert len(own[0]) > 0 and all(torch.equal(*pair) for pair in zip(*own, strict=True))


def test_one_worker_looks_ahead(tmp_path):
    words = ("trainer.devices=1", *DILOCO[:1], "diloco.loops=3", "diloco.max_steps=4", "outer_grad_clip=0.5")
    events = train(tmp_path / "run", Curve(), *words, "outer_lr_schedule=linear", "outer_lr=1.0")
    rounds = columns(events, "round", "step", "outer_lr", "bytes")
    assert rounds["step"] == [4, 8, 12] and rounds["bytes"] == [0, 0, 0]
    assert rounds["outer_lr"] == pytest.approx([1.0, 2 / 3, 1 / 3])


class Adapted(Curve):
    "A frozen net with a trainable detour, which is used twice and has two names; the optimizer is given all of it."

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.head = nn.Linear(3, 8).requires_grad_(False), nn.Linear(8, 1).requires_grad_(False)
            self.down, self.up = nn.Linear(3, 2, bias=False), nn.Linear(2, 8, bias=False)
            self.again = self.down

        def forward(self, x):
            return self.head(self.base(x) + self.up(self.down(x)) + self.up(self.again(x.sin())))

    def model(self, cfg):
        return self.Net()

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=0.02)


def test_a_frozen_base_is_neither_sent_nor_moved_and_tied_weights_count_once(tmp_path):
    outer = ("outer_opt=AdamW", "outer_lr=0.01", "outer_opt_kwargs={weight_decay:0.5}")
    events = train(tmp_path / "run", Adapted(), *DILOCO, *outer, "trainer.max_steps=15")
    assert columns(events, "round", "bytes")["bytes"] == [4 * (3 * 2 + 2 * 8)] * 3
    begun, found = make_model(Adapted(), compose(*BASE)).state_dict(), weights(tmp_path / "run")
    moved = {name for name, value in found.items() if not torch.equal(value, begun[name])}
    assert moved >= {"up.weight"} and not moved & {"base.weight", "base.bias", "head.weight", "head.bias"}
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"]["diloco"]["weights"] for rank in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*own, strict=True))


class Overflows(Curve):
    "As in fp16, with a scaler; in worker 1 the gradients of one step are too large."

    seen = 0

    def model(self, cfg):
        accelerator = next(found for found in gc.get_objects() if isinstance(found, Accelerator))
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        return super().model(cfg)

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        self.seen += model.training
        return loss + 1e38 * (loss - loss.detach()) if dist.get_rank() == 1 and self.seen == 6 else loss


def test_an_update_that_the_scaler_leaves_out_counts_as_a_step_of_the_round(tmp_path):
    events = train(tmp_path / "run", Overflows(), *DILOCO, "trainer.max_steps=10")
    assert columns(events, "round", "step")["step"] == [5, 10]
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"] for rank in range(2)]
    assert [parts["loss_scaling"]["overflows"] for parts in own] == [0, 1]
    assert [parts["loss_scaling"]["scaler"]["scale"] for parts in own] == [8.0, 4.0]
    assert all(torch.equal(*pair) for pair in zip(*(parts["diloco"]["weights"] for parts in own), strict=True))


class Spoilt(Curve):
    "The losses of some micro batches, told by the numbers of their samples, are no numbers."

    def __init__(self, config=None, steps=()):
        windows = [self.windows(config, rank) for rank in range(2)] if config else []
        self.bad = {tuple(data[2].tolist()) for rank, step in steps for data, _ in windows[rank][step - 1]}

    def windows(self, config, rank):
        train_set, _ = self.datasets(config)
        return list(_windows(train_set, plan_batches(config, len(train_set), 2), config, rank, 24))

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * float("nan") if model.training and tuple(batch[2].tolist()) in self.bad else loss


SKIPS = {
    "one step, a whole round of one worker": [(0, 6), *((1, step) for step in range(6, 11))],
    "a whole round of both": [(rank, step) for rank in range(2) for step in range(6, 11)],
}


def skipping_by_hand(task, config, steps: int, length: int) -> dict:
    "Two workers in turn, of which each leaves out its own bad steps; they count in the mean by the steps they made."
    models = [make_model(task, config)]
    models.append(copy.deepcopy(models[0]))
    inner = [torch.optim.AdamW(m.parameters(), lr=0.02, weight_decay=0.0) for m in models]
    theta = [p.detach().clone() for p in models[0].parameters()]
    moment, windows, made = [torch.zeros_like(p) for p in theta], [task.windows(config, k) for k in range(2)], [0, 0]
    for step in range(steps):
        for worker in range(2):
            inner[worker].zero_grad()
            losses = [task.loss(models[worker], data) * share for data, share in windows[worker][step]]
            if all(loss.isfinite() for loss in losses):
                sum(losses).backward()
                inner[worker].step()
                made[worker] += 1
        if (step + 1) % length:
            continue
        for i, each in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            if sum(made):
                mean = sum((theta[i] - p.detach()) * n for p, n in zip(each, made, strict=True)) / sum(made)
                moment[i] = 0.9 * moment[i] + mean
                theta[i] = theta[i] - 0.7 * (mean + 0.9 * moment[i])
            for p in each:
                p.data.copy_(theta[i])
        made = [0, 0]
    return {name: p.detach() for name, p in models[0].named_parameters()}


@pytest.mark.parametrize("which", SKIPS)
def test_a_worker_skips_its_own_steps_and_a_round_without_any_is_left_out_of_the_mean(tmp_path, which):
    words = (*DILOCO, "optimizer.name=adamw", "optimizer.lr=0.02", "optimizer.weight_decay=0", "trainer.max_steps=15")
    words = (*words, "training.nan_policy=skip", "checkpoint.every_n_steps=8", "checkpoint.every_n_epochs=null")
    config = compose(*BASE, *words)
    task = Spoilt(config, SKIPS[which])
    events = train(tmp_path / "run", task, *words, "checkpoint.keep_last=9")
    assert furthest(weights(tmp_path / "run"), skipping_by_hand(task, config, steps=15, length=5)) < 1e-6
    assert columns(events, "round", "step")["step"] == [5, 10, 15]  # steps that are left out count
    assert sum(event["skipped"] for event in events if event["type"] == "nan") == len(SKIPS[which])
    left_out = {event["step"]: event["skipped"] for event in events if event["type"] == "nan"}
    points = [(event["step"], event["loss"]) for event in events if event["type"] == "step"]
    for (before, _), (step, loss) in itertools.pairwise([(0, None), *points]):
        nothing_made = left_out.get(step, 0) == 2 * (step - before)
        assert loss is None if nothing_made else math.isfinite(loss)
    found = {int(path.name[-8:]): path for path in checkpoints(tmp_path / "run" / "checkpoints")}
    whole = weights(tmp_path / "run")
    last = [load_state(found[15], rank)[1]["parts"]["diloco"] for rank in range(2)]
    assert [worker["place"]["left_out"] for worker in last] == [sum(r == k for r, _ in SKIPS[which]) for k in range(2)]
    shutil.rmtree(found[15])
    train(tmp_path / "run", task, *words, kind="resume")  # in the middle of the round that is left out
    assert furthest(weights(tmp_path / "run"), whole) == 0.0


@pytest.mark.long
@pytest.mark.parametrize("more", [("diloco.compression=int8",), ("diloco.fragments=2",), STREAM])
def test_what_is_left_out_reaches_nobody_in_any_form(tmp_path, more):
    words = (*DILOCO, "optimizer.lr=0.02", "trainer.max_steps=15", "training.nan_policy=skip", *more)
    task = Spoilt(compose(*BASE, *words), [(0, 6), *((1, step) for step in range(4, 12))])
    train(tmp_path / "run", task, *words)
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"]["diloco"]["weights"] for rank in range(2)]
    assert all(torch.equal(*pair) and pair[0].isfinite().all() for pair in zip(*own, strict=True))


def averages_by_hand(events: list, thetas: dict[int, dict], first: dict, decay: float) -> dict:
    "As if θ had been there in each step of its round."
    found, before = {name: value.clone() for name, value in first.items()}, 0
    for step in columns(events, "round", "step")["step"]:
        for n in range(before + 1, step + 1):
            now = min(decay, (1 + n) / (10 + n))
            for name, value in found.items():
                value.mul_(now).add_(thetas[step][name], alpha=1 - now)
        before = step
    return found


def test_averages_follow_theta_at_the_ends_of_rounds_and_go_on_to_the_bit(tmp_path):
    words = (*DILOCO, "optimizer.lr=0.02", "trainer.max_steps=15", "training.ema_decay=0.9", "diloco.max_steps=5")
    words = (*words, "checkpoint.every_n_steps=1", "checkpoint.every_n_epochs=null", "checkpoint.keep_last=99")
    events = train(tmp_path / "run", Curve(), *words)
    found = {int(path.name[-8:]): path for path in checkpoints(tmp_path / "run" / "checkpoints")}
    thetas = {step: load_weights(path, ema=False) for step, path in found.items()}
    first = {name: p.detach() for name, p in make_model(Curve(), compose(*BASE, *words)).named_parameters()}
    expected = averages_by_hand(events, thetas, first, 0.9)
    averages = load_weights(found[15])
    assert furthest(averages, expected) < 1e-6 < furthest(averages, thetas[15])
    assert furthest(load_weights(found[8]), load_weights(found[5])) == 0.0  # nothing moves within a round
    for step in (step for step in found if step > 8):
        shutil.rmtree(found[step])
    train(tmp_path / "run", Curve(), *words, kind="resume")
    again, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    assert furthest(load_weights(again), averages) == 0.0


def test_averages_of_an_exchange_after_each_step_are_those_of_ddp(tmp_path):
    words = (*PLAIN_SGD, "trainer.max_steps=7", "trainer.gradient_clip_val=null", "training.ema_decay=0.9")
    words = (*words, "training.ema_buffers=true")
    train(tmp_path / "ddp", Curve(), *words)
    train(tmp_path / "diloco", Curve(), *words, *AS_DDP)
    train(tmp_path / "warm", Curve(), *words, *AS_DDP, "diloco.warmup_steps=3")
    found = [load_weights(find_checkpoint(tmp_path / name / "checkpoints")[0]) for name in ("ddp", "diloco", "warm")]
    assert furthest(found[0], found[1]) < 1e-6 and furthest(found[0], found[2]) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("more", [STREAM, ("diloco.shards=2", "trainer.devices=4", "accumulate_grad_batches=1")])
def test_averages_go_on_to_the_bit_in_fragments_and_over_shards(tmp_path, more):
    words = (*DILOCO, "optimizer.lr=0.02", "trainer.max_steps=12", "training.ema_decay=0.9", "data.drop_last=true")
    words = (*words, *more)
    words = (*words, "checkpoint.every_n_steps=7", "checkpoint.every_n_epochs=null", "checkpoint.keep_last=9")
    train(tmp_path / "run", Normed(), *words)
    found = {int(path.name[-8:]): path for path in checkpoints(tmp_path / "run" / "checkpoints")}
    averages = load_weights(found[12])
    assert furthest(averages, load_weights(found[12], ema=False)) > 1e-4
    shutil.rmtree(found[12])
    train(tmp_path / "run", Normed(), *words, kind="resume")
    assert furthest(load_weights(find_checkpoint(tmp_path / "run" / "checkpoints")[0]), averages) == 0.0


def test_it_stops_early_at_the_end_of_a_round_with_one_model(tmp_path):
    words = ("early_stopping.enabled=true", "early_stopping.patience=2", "early_stopping.min_delta=9")
    often = ("trainer.check_val_every_n_steps=1", "trainer.max_steps=40")
    outcome, events = run(tmp_path / "run", Curve(), *DILOCO, *words, *often)
    assert outcome.status == "early_stopped"
    assert columns(events, "eval", "step")["step"] == columns(events, "round", "step")["step"] == [5, 10, 15]
    path, _ = find_checkpoint(tmp_path / "run" / "checkpoints")
    own = [load_state(path, rank)[1]["parts"]["diloco"]["weights"] for rank in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*own, strict=True))


def test_a_worker_whose_loss_is_no_number_ends_the_run_for_all(tmp_path):
    outcome, events = run(tmp_path / "run", NanOnOneRank(), *DILOCO, "trainer.max_steps=12", "launch.max_restarts=0")
    assert outcome.status == "failed" and "The loss became nan" in outcome.reason
    assert not [value for value in columns(events, "round", "norm")["norm"] if value != value]


def test_another_round_or_form_is_refused_when_a_run_goes_on_in_the_middle_of_a_round(tmp_path):
    words = (
        "trainer.accelerator=cpu",
        "trainer.devices=1",
        *DILOCO,
        "checkpoint.every_n_steps=7",
        "checkpoint.keep_last=9",
        "trainer.max_steps=12",
    )
    done = run_cli(tmp_path, "train", f"{TESTS / 'rank_tasks.py'}:Curve", *words, "checkpoint.every_n_epochs=null")
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    for path in checkpoints(folder / "checkpoints"):
        if path.name > "step-00000007":
            shutil.rmtree(path)
    assert find_checkpoint(folder / "checkpoints")[0].name == "step-00000007"
    for word in ("diloco.fragments=2", "diloco.compression=int8", "diloco.max_steps=6", "diloco.outer_lr=0.5"):
        done = run_cli(tmp_path, "resume", str(folder), word)
        assert done.returncode == 2 and f"{word.partition('=')[0]} was" in done.stderr, (word, done.stderr)
    done = run_cli(tmp_path, "resume", str(folder), "diloco.fragments=2", "resume.allow=[diloco]")
    assert done.returncode == 2 and "was made with diloco.fragments=1" in done.stderr
    assert run_cli(tmp_path, "resume", str(folder)).returncode == 0


@pytest.mark.parametrize(
    "words, says",
    [
        (["diloco.workers=4"], "diloco.workers=4 needs 4 processes, and this run has 1 process"),
        (["outer_opt=SGDM"], "such as SGD. Did you mean 'SGD'"),
        (["outer_opt_kwargs={nestrov:true}"], "Did you mean 'nesterov'"),
        (["outer_opt=Adafactor", "diloco.shards=2", "trainer.devices=2"], "its step depends on all weights"),
        (["diloco.shards=3", "trainer.devices=2"], "diloco.shards=3 needs a multiple of 3 processes"),
        (["diloco.workers=2", "diloco.shards=2", "trainer.devices=2"], "diloco.workers=2 needs 2 × 2 processes"),
        (["diloco.workers=8", "trainer.devices=8"], "has 4 of the 8 requested: this machine has no room"),
        (["diloco.max_steps=0"], "diloco.max_steps"),
        (
            ["diloco.outer_momentum=1"],
            "diloco.outer_momentum=1.0 is out of range: it needs a number from 0 up to 0.9999",
        ),
        (["outer_opt_kwargs={nesterov:7}"], "diloco.outer_opt_kwargs.nesterov=7 is not possible: it needs true or"),
        (["outer_opt_kwargs={dampening:0.5}"], "zero dampening. Set diloco.outer_opt_kwargs.nesterov=false"),
        (["outer_opt_kwargs={nesterov:true}", "diloco.outer_momentum=0"], "Set diloco.outer_opt_kwargs.nesterov=false"),
        (["diloco.outer_opt_kwargs.weight_decay=nan"], "torch.optim.SGD refuses it: a step with it gives"),
        (["outer_opt=Adam", "outer_opt_kwargs={betas:[0.9]}"], "diloco.outer_opt_kwargs: torch.optim.Adam refuses it"),
        (["outer_opt=Adam", "outer_opt_kwargs={capturable:true}"], "torch.optim.Adam refuses it"),
        (
            ["outer_opt_kwargs={weight_decay:low}"],
            "diloco.outer_opt_kwargs.weight_decay=low is not possible: it needs a",
        ),
        (
            ["outer_opt=Adam", "outer_opt_kwargs={betas:0.9}"],
            "betas=0.9 is not possible: it needs a list like [0.9, 0.",
        ),
        (["diloco.fragments=60"], "diloco.fragments=60 is not possible with diloco.max_steps=50"),
        (["diloco.fragments=5", "diloco.overlap_steps=11"], "Use at most 10"),
    ],
)
def test_what_cannot_be_is_said(tmp_path, words, says):
    mode = "auto" if any(word.startswith("trainer.devices") for word in words) else "inline"
    with pytest.raises(RequestError, match=re.escape(says)):
        run(tmp_path / "run", Curve(), DILOCO[0], "trainer.devices=1", f"launch.mode={mode}", *words)
