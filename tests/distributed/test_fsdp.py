"""Models sharded over two real processes: equal to plain training, to the weights and states of one process."""

import contextlib
import multiprocessing
import os
import time
import traceback
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F

from spectrakit.config.compose import compose
from spectrakit.distributed.fsdp import (
    all_finite,
    gradient_norm_clip,
    is_sharded,
    like,
    load_whole_model,
    load_whole_optimizer,
    same_on_all_ranks,
    scale,
    shard,
    shard_by_accelerate,
    whole,
)
from spectrakit.system.errors import RequestError
from spectrakit.train.learner.optimizer import build_optimizer

pytestmark = pytest.mark.slow  # every test here starts processes

TIMEOUT_S = 300  # for what hangs: a busy machine may need a minute to compile
TOO_OLD = not hasattr(FSDPModule, "set_force_sum_reduction_for_comms")
WIDTH = 5  # two ranks keep three rows and two

# A clean process with torch in it, from which each test's ranks are forked: it has run nothing, so no thread is lost.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch.distributed.fsdp", "torch._dynamo", "accelerate", "pytest"])


def _rank(function, rank: int, world_size: int, folder: Path, arguments: tuple) -> None:
    "One process of the group: what `function` returns, or its traceback, goes into a file."
    torch.set_num_threads(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on the CPU, also where there are GPUs
    try:
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        torch.save(function(rank, *arguments), folder / f"{rank}.pt")
        dist.barrier()
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        os._exit(1)  # the others wait in a collective: they are killed
    dist.destroy_process_group()


@contextlib.contextmanager
def ranks_in(folder: Path):
    "A function that calls `function(rank, *arguments)` in new processes and returns what each gave. It never hangs."
    started, calls = [], []

    def run(function, *arguments, world_size: int = 2) -> list:
        calls.append(function)
        place = folder / str(len(calls))
        place.mkdir()
        calling = [(function, rank, world_size, place, arguments) for rank in range(world_size)]
        ranks = [processes.Process(target=_rank, args=words) for words in calling]
        for process in ranks:
            process.start()
            started.append(process)
        _wait(ranks)
        told = [f"rank {path.stem}: {path.read_text()}" for path in sorted(place.glob("*.error"), key=os.path.getmtime)]
        assert not told, "\n".join(told)
        assert all(process.exitcode == 0 for process in ranks), [process.exitcode for process in ranks]
        return [torch.load(place / f"{r}.pt", weights_only=True) for r in range(world_size)]

    try:
        yield run
    finally:
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()


@pytest.fixture
def on_ranks(tmp_path):
    if TOO_OLD:
        pytest.skip("this torch cannot share out models on CPUs")
    with ranks_in(tmp_path) as run:
        yield run


def _wait(ranks: list) -> None:
    "Until all have ended, or one has failed, or the time is up; then the others are killed."
    end = time.monotonic() + TIMEOUT_S
    while (living := [p for p in ranks if p.is_alive()]) and time.monotonic() < end:
        if any(p.exitcode for p in ranks):
            break
        wait([p.sentinel for p in living], timeout=1)
    for process in ranks:
        if process.is_alive():
            process.kill()
        process.join()


# --- a model and its training -----------------------------------------------------------------------------------------


class Block(nn.Module):
    "A block with a list of its own inside."

    def __init__(self):
        super().__init__()
        self.norm, self.paths = nn.LayerNorm(WIDTH), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x):
        return x + sum(torch.tanh(path(self.norm(x))) for path in self.paths)


class Net(nn.Module):
    "Blocks, sizes that two does not divide, one that is smaller than two, and a head tied to the embedding."

    def __init__(self, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed, self.blocks = nn.Linear(WIDTH, WIDTH, bias=False), nn.ModuleList(Block() for _ in range(2))
        self.head, self.three, self.one = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3), nn.Linear(3, 1)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.one(torch.tanh(self.three(self.head(x))))


def data() -> tuple:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, WIDTH, generator=generator), torch.randn(8, 1, generator=generator)


def optimizer_for(model) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def share(rank: int) -> slice:
    "The samples of this rank: all, or half of them."
    each = 8 // dist.get_world_size()
    return slice(rank * each, (rank + 1) * each)


def backward(model, rank: int, pieces: int = 1) -> None:
    "The gradient of the whole batch, from this rank's samples, in micro batches of which the last one exchanges."
    x, y = (part[share(rank)].chunk(pieces) for part in data())
    for i in range(pieces):
        if is_sharded(model):
            model.set_requires_gradient_sync(i == pieces - 1)
        (F.mse_loss(model(x[i]), y[i]) / pieces).backward()


def learn(model, optimizer, rank: int, steps: int, pieces: int = 1) -> list:
    "Train; returns the gradients of every step, whole."
    seen = []
    for _ in range(steps):
        backward(model, rank, pieces)
        seen.append(whole([p.grad for p in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return seen


def leaves(tree) -> list:
    "What is in nested dicts and lists, in order."
    if isinstance(tree, dict):
        return [leaf for key in tree for leaf in [key, *leaves(tree[key])]]
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, (list, tuple)) else [tree]


def far(found, expected) -> float:
    "The relative distance of the tensors of two trees, each taken as one vector; everything else must be equal."
    found, expected = leaves(found), leaves(expected)
    assert [type(leaf) for leaf in found] == [type(leaf) for leaf in expected]
    pairs = [(a.double(), b.double()) for a, b in zip(found, expected, strict=False) if torch.is_tensor(b)]
    assert [a.shape for a, _ in pairs] == [b.shape for _, b in pairs]
    assert all(a == b for a, b in zip(found, expected, strict=False) if not torch.is_tensor(b))
    return (sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)).sqrt().item()


def result(model, optimizer, grads=()) -> dict:
    "What a checkpoint would hold, and the gradients."
    state = whole(optimizer.state_dict())
    return {"grads": list(grads), "model": whole(model.state_dict()), "optimizer": state}


def check_equal(found: dict, expected: dict, weights: float = 1e-6, others: float = 1e-5) -> None:
    "Weights to one tolerance, optimizer states and gradients to another; names, counters and settings exactly."
    states, wanted = found["optimizer"]["state"], expected["optimizer"]["state"]
    assert leaves(found["optimizer"]["param_groups"]) == leaves(expected["optimizer"]["param_groups"])
    assert {i: list(state) for i, state in states.items()} == {i: list(state) for i, state in wanted.items()}
    for name in wanted[0]:
        apart = far([state[name] for state in states.values()], [state[name] for state in wanted.values()])
        assert apart <= (0 if name == "step" else others), name
    assert far(found["model"], expected["model"]) <= weights
    for one, other in zip(found["grads"], expected["grads"], strict=True):
        assert far(one, other) <= others


def train_plain(rank: int, steps: int) -> dict:
    model = Net()
    optimizer = optimizer_for(model)
    grads = learn(model, optimizer, rank, steps)
    return result(model, optimizer, grads)


def train_sharded(rank: int, steps: int, pieces: int = 1) -> dict:
    model = shard(Net(seed=rank))  # each its own weights: those of rank 0 count
    optimizer = optimizer_for(model)
    assert is_sharded(model) and is_sharded(model.blocks[1].paths[0]) and not is_sharded(model.head)
    assert model.head.weight is model.embed.weight and model.three.weight.to_local().shape[0] == 2 - rank
    assert model.one.weight.to_local().shape[0] == 1 - rank
    grads = learn(model, optimizer, rank, steps, pieces)
    return result(model, optimizer, grads)


# --- equal to plain training ------------------------------------------------------------------------------------------

STEPS, LATER = 3, 2


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    "What one process has after three steps and after five."
    with ranks_in(tmp_path_factory.mktemp("alone")) as run:
        return {steps: run(train_plain, steps, world_size=1)[0] for steps in (STEPS, STEPS + LATER)}


@pytest.mark.parametrize("pieces", [1, 2])
def test_two_ranks_train_as_one_process_does(on_ranks, alone, pieces):
    for found in on_ranks(train_sharded, STEPS + LATER, pieces):
        check_equal(found, alone[STEPS + LATER])


def train_with_sgd(rank: int, momentum: float, sharded: bool) -> dict:
    "Two steps of the SGD that the settings name."
    model = shard(Net()) if sharded else Net()
    optimizer = build_optimizer(model, compose("optimizer.name=sgd", f"optimizer.momentum={momentum}"))
    learn(model, optimizer, rank, 2)
    return {"model": whole(model.state_dict()), "fused": [group["fused"] for group in optimizer.param_groups]}


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_sgd_of_shards_is_that_of_one_process(on_ranks, momentum):
    (plain,) = on_ranks(train_with_sgd, momentum, False, world_size=1)
    for found in on_ranks(train_with_sgd, momentum, True):
        assert far(found["model"], plain["model"]) <= 1e-6 and not any(found["fused"]) and all(plain["fused"])


def go_on(rank: int, saved: dict | None, sharded: bool, from_main: bool = False) -> dict:
    "Load what another run has saved, and train on; with `from_main` only rank 0 has read it."
    model = shard(Net(seed=7)) if sharded else Net(seed=7)
    optimizer = optimizer_for(model)
    before = whole(saved)
    load_whole_model(model, None if from_main and rank else saved["model"], broadcast_from_main=from_main)
    load_whole_optimizer(optimizer, saved["optimizer"])
    grads = learn(model, optimizer, rank, LATER)
    assert far(saved, before) == 0  # training has not touched what was loaded
    return result(model, optimizer, grads)


def test_what_two_ranks_save_one_process_goes_on_with(on_ranks, alone):
    saved = on_ranks(train_sharded, STEPS)[0]
    del saved["grads"]
    expected = alone[STEPS + LATER]
    check_equal(on_ranks(go_on, saved, False, world_size=1)[0], {**expected, "grads": expected["grads"][STEPS:]})


@pytest.mark.parametrize("from_main", [False, True])
def test_what_one_process_saves_two_ranks_go_on_with(on_ranks, alone, from_main):
    saved = {name: alone[STEPS][name] for name in ("model", "optimizer")}
    expected = alone[STEPS + LATER]
    expected = {**expected, "grads": expected["grads"][STEPS:]}
    for found in on_ranks(go_on, saved, True, from_main):
        check_equal(found, expected)


def from_main_into_plain(rank: int, saved: dict) -> dict:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    load_whole_model(model, None if rank else saved, broadcast_from_main=True)
    return whole(model.state_dict())


def test_weights_and_buffers_that_rank_0_has_read_reach_a_plain_model(on_ranks):
    saved = {
        "0.weight": torch.rand(2, 2),
        "0.bias": torch.rand(2),
        "1.weight": torch.rand(2),
        "1.bias": torch.rand(2),
        "1.running_mean": torch.rand(2),
        "1.running_var": torch.rand(2),
        "1.num_batches_tracked": torch.tensor(7),
    }
    for found in on_ranks(from_main_into_plain, saved):
        assert far(found, saved) == 0


# --- gathering --------------------------------------------------------------------------------------------------------


def gather_on_main(rank: int) -> dict:
    model = shard(Net())
    optimizer = optimizer_for(model)
    learn(model, optimizer, rank, 1)
    kept = whole([model.state_dict(), (optimizer.state_dict(), 3, "x")], keep=rank == 0)
    live = whole(model.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0)
    assert all(tensor.abs().sum() > 0 for tensor in live.values()), "it shares memory with the model"
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in live.values())
    kinds = [type(leaf) for leaf in leaves(kept)]
    return {"none": kinds.count(type(None)), "tensors": kinds.count(torch.Tensor), "rest": kept[1][1:]}


def test_a_rank_that_keeps_nothing_takes_part(on_ranks):
    main, other = on_ranks(gather_on_main)
    assert main["none"] < other["none"] and other["tensors"] == 0 and main["tensors"] == other["none"] - main["none"]
    assert main["rest"] == other["rest"] == (3, "x")


def load_wrong(rank: int, saved: dict) -> list:
    model, told = shard(Net()), []
    before = whole(model.state_dict())
    fewer = dict(list(saved.items())[1:])
    for state in ({**saved, "three.bias": torch.ones(4)}, {**saved, "four": torch.ones(1)}, fewer):
        for from_main in (False, True):
            with pytest.raises(RuntimeError) as error:
                load_whole_model(model, None if from_main and rank else state, broadcast_from_main=from_main)
            told.append(str(error.value))
    assert far(whole(model.state_dict()), before) == 0  # nothing was half loaded
    return told


def test_weights_that_do_not_fit_are_refused_on_every_rank(on_ranks):
    main, other = on_ranks(load_wrong, Net(seed=3).state_dict())
    assert main == other
    assert ["three.bias has the shape (4,), and in the model (3,)" in text for text in main] == [True] * 2 + [False] * 4
    assert ["four is not in the model" in text for text in main] == [False] * 2 + [True] * 2 + [False] * 2
    assert ["embed.weight is missing" in text for text in main] == [False] * 4 + [True] * 2


# --- calculating with parts -------------------------------------------------------------------------------------------


def calculate(rank: int, sharded: bool) -> dict:
    "Clip, scale and average, as the loop does."
    model = shard(Net()) if sharded else Net()
    params = list(model.parameters())
    averages = like([torch.full(p.shape, 2.0) for p in params], params)
    backward(model, rank)
    norms = [gradient_norm_clip(params, limit) for limit in (100.0, 0.05)]
    assert all(type(norm) is torch.Tensor for norm in norms)
    clipped = whole([p.grad for p in params])
    for factor in (3.0, torch.tensor(0.5)):
        scale([p.grad for p in params], factor)
    torch._foreach_lerp_(averages, [p.detach() for p in params], 0.25)
    x, _ = data()
    with torch.no_grad():
        plain = model(x)
        kept = [p.detach().clone() for p in params]
        for p, average in zip(params, averages, strict=False):
            p.copy_(average)
        averaged = model(x)
        for p, weight in zip(params, kept, strict=False):
            p.copy_(weight)
        assert torch.equal(model(x), plain)
    return {
        "norms": norms,
        "clipped": clipped,
        "scaled": whole([p.grad for p in params]),
        "averages": whole(averages),
        "outputs": [plain, averaged],
    }


def test_clipping_scaling_and_averages_are_those_of_one_process(on_ranks):
    [expected] = on_ranks(calculate, False, world_size=1)
    assert expected["norms"][0] > 0.05 and far(expected["outputs"][0], expected["outputs"][1]) > 0.1
    for found in on_ranks(calculate, True):
        for name, value in expected.items():
            assert far(found[name], value) <= 2e-6, name


def find_nan(rank: int) -> list:
    model = shard(Net())
    params, found = list(model.parameters()), [all_finite(model.parameters())]
    for p, row in ((model.three.weight, 1), (model.one.bias, 0)):  # on rank 1 it is the last row, or there is none
        for bad in (float("nan"), float("inf")):
            with torch.no_grad():
                good = p.detach().clone()
                if rank == (p is model.three.weight):
                    p.to_local()[row - 1] = bad
            found += [all_finite(params), all_finite(params, dist.group.WORLD)]
            with torch.no_grad():
                p.copy_(good)
    mine = [torch.tensor([float("nan") if rank else 1.0])]
    return [*found, all_finite(params), all_finite(mine) == (rank == 0), all_finite([])]


def test_a_nan_in_one_ranks_part_is_seen_by_both(on_ranks):
    for found in on_ranks(find_nan):
        assert found == [True] + [False] * 8 + [True] * 3


def overflow(rank: int) -> list:
    "A gradient that is too large for 16 bits, in the part of rank 1."
    model = shard(Net())
    params, optimizer = list(model.parameters()), optimizer_for(model)
    scaler, before, seen = torch.amp.GradScaler("cpu", init_scale=8.0), whole(params), []
    for bad in (True, False):
        x, y = (part[share(rank)] for part in data())
        scaler.scale(F.mse_loss(model(x), y)).backward()
        if bad and rank:
            model.three.weight.grad.to_local()[0] = float("inf")
        scaler.unscale_(optimizer)
        gradient_norm_clip(params, 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        seen += [scaler.get_scale(), far(whole(params), before) > 0]
    return seen


def test_an_overflow_on_one_rank_is_skipped_by_both(on_ranks):
    for found in on_ranks(overflow):
        assert found == [4.0, False, 4.0, True]


# --- making -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(TOO_OLD, reason="this torch cannot share out models on CPUs")
def test_a_parameter_without_a_shape_is_named():
    model = nn.Linear(2, 2)
    model.temperature = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(RequestError, match=r"temperature .* \(1,\), or use distributed.strategy=ddp"):
        shard(model)


def test_torch_too_old_for_cpus_is_refused(monkeypatch):
    monkeypatch.delattr(FSDPModule, "set_force_sum_reduction_for_comms", raising=False)
    with pytest.raises(RequestError, match=r"distributed.strategy=ddp, or a newer torch"):
        shard(nn.Linear(2, 2))


class Tied(nn.Module):
    "A block that shares its weight with what is outside, a weight that is not contiguous, batch norm, a mask."

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv1d(3, 3, 1, bias=False) for _ in range(3))
        self.heads, self.norm = nn.ModuleList([nn.ModuleDict({"a": nn.Linear(6, 1)})]), nn.BatchNorm1d(3)
        self.last = nn.Conv1d(3, 3, 1, bias=False)
        self.last.weight = self.blocks[0].weight
        self.blocks[1].weight = nn.Parameter(torch.rand(3, 3, 1).transpose(0, 1))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.heads[0]["a"](self.last(self.norm(x)).flatten(1))


def make(rank: int, mixed_precision: str) -> dict:
    torch.manual_seed(rank)
    model = shard(Tied(), mixed_precision=mixed_precision)
    assert [is_sharded(block) for block in model.blocks] == [False, True, True] and not is_sharded(model.heads[0])
    assert is_sharded(model.norm) == (mixed_precision == "bf16") and model.last.weight is model.blocks[0].weight
    torch.manual_seed(rank)
    out = model(torch.randn(4, 3, 2))
    out.square().sum().backward()
    apart = whole(model.norm.running_mean)
    same_on_all_ranks(model.buffers())
    shown = [out, *model.parameters(), *(p.grad for p in model.parameters())]
    return {
        "weights": whole(list(model.parameters())),
        "kinds": {str(tensor.dtype) for tensor in shown},
        "apart": apart,
        "mean": whole(model.norm.running_mean),
        "mask": whole(model.mask),
    }


@pytest.mark.parametrize("mixed_precision", ["no", "bf16"])
def test_ranks_start_from_the_weights_of_rank_0(on_ranks, mixed_precision):
    main, other = on_ranks(make, mixed_precision)
    torch.manual_seed(0)
    assert far(main["weights"], whole(list(Tied().parameters()))) == far(other["weights"], main["weights"]) == 0
    assert not torch.equal(main["apart"], other["apart"]) and torch.equal(main["mean"], other["mean"])
    assert main["mask"].tolist() == [True, False]
    assert main["kinds"] == other["kinds"] == {"torch.float32"}


# --- through Accelerate -----------------------------------------------------------------------------------------------


def train_by_accelerate(rank: int, steps: int, mixed_precision: str) -> dict:
    "The way that GPUs go, on CPUs: Accelerate is told that gloo is what several GPUs talk through."
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        ACCELERATE_TORCH_DEVICE="cpu",
        ACCELERATE_BYPASS_DEVICE_MAP="true",
    )
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
    from accelerate.state import DistributedType

    PartialState._prepare_backend = lambda self, *_, **__: ("gloo", DistributedType.MULTI_GPU)
    accelerator = Accelerator(
        mixed_precision=mixed_precision, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)
    )
    assert accelerator.distributed_type == DistributedType.FSDP and accelerator.num_processes == 2
    model = shard_by_accelerate(accelerator, Net(seed=rank))
    optimizer = optimizer_for(model)
    assert is_sharded(model) and is_sharded(model.blocks[0].paths[1]) and accelerator.unwrap_model(model) is model
    with torch.no_grad():
        assert model(data()[0]).dtype == torch.float32
    grads = learn(model, optimizer, rank, steps)
    assert all(p.dtype == torch.float32 and p.grad is None for p in model.parameters())
    return result(model, optimizer, grads)


@pytest.mark.parametrize("mixed_precision, tolerance", [("no", 1e-6), ("bf16", 0.05)])
def test_accelerate_shards_for_an_optimizer_that_is_built_later(on_ranks, alone, mixed_precision, tolerance):
    main, other = on_ranks(train_by_accelerate, STEPS + LATER, mixed_precision)
    check_equal(main, other, 0, 0)
    expected = alone[STEPS + LATER]
    if mixed_precision == "no":
        check_equal(main, expected)
    else:
        assert 1e-6 < far(main["model"], expected["model"]) <= tolerance
