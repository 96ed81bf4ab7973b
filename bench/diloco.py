"""What DiLoCo costs in loss, and saves on the link: `python bench/diloco.py [--rows ROW …] [--steps 1500] [--json
FILE]`, or over a slow link `python bench/diloco.py --link MBIT [--steps 400]`.

A small character transformer learns the text that ships with Python: `pydoc_data.topics` and the modules of the
standard library. One worker prepares it for 600 steps, as the paper does. Then four workers go on, by DDP, by DiLoCo in
several forms, by averaging alone; or one worker does. Workers take turns in one process: losses are exactly those of as
many processes, and bytes are counted as each worker would send them. Every learning rate that was tried is in the
table.

With `--link` the kit itself trains, by DDP and by DiLoCo, two workers in two network namespaces whose link carries so
many megabits a second; it needs root, `ip` and `tc`. `--plot FILE.svg` draws what `--json`
holds. bench/README.md says how to read the tables.
"""

import argparse
import copy
import hashlib
import json
import math
import multiprocessing
import os
import pydoc_data.topics
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from spectrakit.forecast.link_cost import ring_bytes
from spectrakit.runs.events import read_events
from spectrakit.task.task import Task
from spectrakit.train.diloco.compression import BLOCK, FORMS, Compression, bytes_sent
from spectrakit.train.diloco.outer_loop import (
    OuterLoop,
    end_round,
    flat,
    outer_lr_factor,
    outer_optimizer,
    pseudo_gradient,
)

LENGTH, BATCH, PREPARED, SEED = 64, 32, 600, 0
PIECE_S = 400.0  # seconds after which a row is put aside, with `--pieces`
CHUNK = 4096  # characters; every twentieth chunk is held out


def text() -> str:
    "The text: ASCII, without what differs from day to day."
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = ["".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))]
    parts += [file.read_text(encoding="utf-8", errors="ignore") for file in files]
    return "".join(c for c in "".join(parts) if c == "\n" or " " <= c <= "~")


class Text:
    "Training and held-out characters as numbers."

    def __init__(self) -> None:
        whole = text()
        self.sha = hashlib.sha256(whole.encode()).hexdigest()[:12]
        letters = sorted(set(whole))
        self.size = len(letters)
        place = {c: i for i, c in enumerate(letters)}
        numbers = torch.tensor([place[c] for c in whole])
        chunks = numbers[: len(numbers) // CHUNK * CHUNK].view(-1, CHUNK)
        held = torch.arange(len(chunks)) % 20 == 0
        self.train, self.valid = chunks[~held].reshape(-1), chunks[held].reshape(-1)

    def batch(self, worker: int, step: int, size: int, seed: int = SEED) -> torch.Tensor:
        "So many pieces of the training text, the same in every run with this seed."
        draw = torch.Generator().manual_seed(1_000_003 * (worker + 1) + step + 10_000_019 * seed)
        first = torch.randint(len(self.train) - LENGTH - 1, (size,), generator=draw)
        return self.train[first[:, None] + torch.arange(LENGTH + 1)]


class Transformer(nn.Module):
    "Two layers of width 64. Matrices begin normal, as GPT-2's do; `deviation` None: as torch makes them."

    def __init__(self, size: int, width: int = 64, layers: int = 2, deviation: float | None = 0.02):
        super().__init__()
        self.letters, self.places = nn.Embedding(size, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, size)
        for name, p in self.named_parameters() if deviation is not None else ():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, deviation)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.layers(self.letters(x) + self.places.weight[: x.shape[1]], mask=mask, is_causal=True)
        return self.head(self.norm(h))


def loss_of(model: nn.Module, pieces: torch.Tensor) -> torch.Tensor:
    "The mean loss of a character."
    return nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


@torch.no_grad()
def valid_loss(model: nn.Module, data: Text) -> float:
    "The mean loss on pieces of the held-out text."
    draw = torch.Generator().manual_seed(7)
    first = torch.randint(len(data.valid) - LENGTH - 1, (1024,), generator=draw)
    pieces = data.valid[first[:, None] + torch.arange(LENGTH + 1)]
    model.eval()
    found = sum(loss_of(model, part).item() for part in pieces.split(128)) / 8
    model.train()
    return found


def set_lr(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    "One cosine over all steps, after a warm-up of a twentieth of them."
    warm = max(1, steps // 20)
    factor = min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = lr * factor


@dataclass(frozen=True)
class Row:
    "A run: how many workers, how they come together, the inner rate, steps of a round, the form of what travels."

    name: str
    workers: int
    way: str  # ddp, diloco or mean
    lr: float
    every: int = 25
    form: str = "fp32"
    prepared: bool = True
    outer: tuple[float, float] = (0.7, 0.9)  # rate and momentum
    schedule: str | None = None  # of the outer rate
    batch: int = BATCH  # of each worker
    share: float = 1.0  # of the steps that were asked for
    seed: int = SEED  # of the first weights and of the batches
    warmup: int = 0  # steps by DDP before the first round
    inner: str = "adamw"  # or muon, for the matrices of the layers
    beta2: float = 0.999  # of AdamW
    deviation: float | None = 0.02  # of the first weights; None: as torch makes them


def mean_of(loops: list[OuterLoop], left_out: list[Compression | None]) -> torch.Tensor:
    "The workers' mean pseudo-gradient, each as it travels, and as the mean travels back."
    vectors = []
    for loop, compression in zip(loops, left_out, strict=True):
        vector = pseudo_gradient(loop).clone()
        if compression is not None:
            vector, rest = travelled(vector, compression.form, compression.left_out)
            compression.left_out = rest
        vectors.append(vector)
    mean = torch.stack(vectors).mean(dim=0)
    if left_out[0] is not None:
        mean, left_out[0].left_out_of_mean = travelled(mean, left_out[0].form, left_out[0].left_out_of_mean)
    return mean


def travelled(vector: torch.Tensor, form, before) -> tuple[torch.Tensor, torch.Tensor]:
    "A vector as it arrives, with what was left out `before`; and what is left out now."
    size = -(-len(vector) // BLOCK) * BLOCK
    padded = nn.functional.pad(vector, (0, size - len(vector)))
    padded = padded if before is None else padded + before
    found = form.decode(form.encode(padded), size)
    return found[: len(vector)], padded - found


class MuonAndAdamW:
    "Muon for the matrices of the layers, AdamW for all else; with `match_rms_adamw` one learning rate suits both."

    def __init__(self, model: nn.Module, lr: float, beta2: float):
        named = list(model.named_parameters())
        matrices = [p for name, p in named if name.startswith("layers.") and p.dim() == 2]
        rest = [p for name, p in named if not (name.startswith("layers.") and p.dim() == 2)]
        muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        self.both = [muon, torch.optim.AdamW(rest, lr=lr, weight_decay=0.0, betas=(0.9, beta2))]
        self.param_groups = [group for one in self.both for group in one.param_groups]

    def zero_grad(self) -> None:
        for one in self.both:
            one.zero_grad()

    def step(self) -> None:
        for one in self.both:
            one.step()

    def state_dict(self) -> list[dict]:
        return [one.state_dict() for one in self.both]

    def load_state_dict(self, states: list[dict]) -> None:
        for one, state in zip(self.both, states, strict=True):
            one.load_state_dict(state)
        self.param_groups = [group for one in self.both for group in one.param_groups]


def inner_of(row: Row, model: nn.Module):
    "The optimizer of a worker's own steps."
    if row.inner == "muon":
        return MuonAndAdamW(model, row.lr, row.beta2)
    return torch.optim.AdamW(model.parameters(), lr=row.lr, weight_decay=0.0, betas=(0.9, row.beta2))


@dataclass
class Team:
    "The workers of a row: their models and optimizers, what they have in common, what rounding has left out."

    models: list[nn.Module]
    inner: list
    loops: list[OuterLoop]
    left_out: list[Compression | None]
    step: int = 0

    def parts(self) -> list:
        "Whatever has a state."
        return [*self.models, *self.inner, *(loop.optimizer for loop in self.loops)]

    def save(self, file: Path) -> None:
        "Write everything into a file of our own."
        rests = [c and (c.left_out, c.left_out_of_mean) for c in self.left_out]
        states, thetas = [part.state_dict() for part in self.parts()], [loop.theta for loop in self.loops]
        torch.save({"step": self.step, "states": states, "thetas": thetas, "rests": rests}, file)

    def load(self, file: Path) -> None:
        "Go on where `save` has stopped."
        kept = torch.load(file, weights_only=True)
        self.step = kept["step"]
        for part, state in zip(self.parts(), kept["states"], strict=True):
            part.load_state_dict(state)
        for loop, theta in zip(self.loops, kept["thetas"], strict=True):
            loop.theta.copy_(theta)
        for compression, rest in zip(self.left_out, kept["rests"], strict=True):
            if compression is not None:
                compression.left_out, compression.left_out_of_mean = rest


def team_of(row: Row, start: nn.Module) -> Team:
    "The workers of a row before their first step."
    models = [copy.deepcopy(start) for _ in range(1 if row.way == "ddp" else row.workers)]
    inner = [inner_of(row, model) for model in models]
    rate, momentum = row.outer if row.way == "diloco" else (1.0, 0.0)
    loops = []
    for model in models:
        theta = flat(model.parameters())
        loops.append(OuterLoop(list(model.parameters()), theta, outer_optimizer(theta, lr=rate, momentum=momentum)))
    return Team(models, inner, loops, [None if row.form == "fp32" else Compression(FORMS[row.form]) for _ in models])


def share_gradients(team: Team) -> None:
    "All workers get the mean of their gradients, as with DDP."
    for same in zip(*(model.parameters() for model in team.models), strict=True):
        mean = torch.stack([p.grad for p in same]).mean(dim=0)
        for p in same:
            p.grad.copy_(mean)


def train_row(row: Row, data: Text, start: nn.Module, steps: int, keep: Path | None = None) -> nn.Module | None:
    """The model after so many steps of every worker.

    `keep`: a file with what a run has that was stopped after `PIECE_S` seconds, which then returns None.
    """
    team, began, rate = team_of(row, start), time.monotonic(), row.outer[0] if row.way == "diloco" else 1.0
    if keep is not None and keep.exists():
        team.load(keep)
    for step in range(team.step, steps):
        for worker, (model, optimizer) in enumerate(zip(team.models, team.inner, strict=True)):
            set_lr(optimizer, row.lr, step, steps)
            optimizer.zero_grad()
            own = range(row.workers) if row.way == "ddp" else [worker]
            loss_of(model, torch.cat([data.batch(w, step, row.batch, row.seed) for w in own])).backward()
        if step < row.warmup:
            share_gradients(team)
        for optimizer in team.inner:
            optimizer.step()
        if step < row.warmup:
            for loop in team.loops:
                flat(loop.params, loop.theta)
        elif row.way != "ddp" and ((step + 1 - row.warmup) % row.every == 0 or step + 1 == steps):
            mean = mean_of(team.loops, team.left_out)
            alone = step - row.warmup
            now = rate * outer_lr_factor(row.schedule, alone // row.every * row.every / (steps - row.warmup))
            for loop in team.loops:
                end_round(loop, lambda own, mean=mean: mean.clone(), now)
        team.step = step + 1
        if keep is not None and time.monotonic() - began > PIECE_S and team.step < steps:
            team.save(keep)
            return None
    if keep is not None:
        keep.unlink(missing_ok=True)
    return team.models[0]


def sent_mb(row: Row, numbers: int, steps: int) -> float:
    "Megabytes that each worker sends in the whole run."
    if row.way == "ddp":
        return steps * ring_bytes(4 * numbers, row.workers) / 1e6
    rounds, by_ddp = (
        math.ceil((steps - row.warmup) / row.every),
        row.warmup * ring_bytes(4 * numbers, row.workers) / 1e6,
    )
    if row.form == "fp32":
        return by_ddp + rounds * ring_bytes(4 * numbers, row.workers) / 1e6
    return by_ddp + rounds * bytes_sent(FORMS[row.form], numbers, row.workers) / 1e6


LRS = (4e-3, 8e-3, 1.6e-2, 3.2e-2)
HIGHER = (*LRS, 6.4e-2)  # where more was still better


def rows_of(name: str, way: str, lrs: tuple[float, ...] = LRS, workers: int = 4, **more) -> list[Row]:
    "The same run with each of the learning rates."
    return [Row(f"{name}, lr {lr:g}", workers, way, lr, **more) for lr in lrs]


ROWS = (
    *rows_of("DDP", "ddp"),
    *rows_of("DiLoCo", "diloco"),
    *rows_of("DiLoCo, outer 1/0.9", "diloco", outer=(1.0, 0.9)),
    *rows_of("DiLoCo, outer 0.7/0.8", "diloco", outer=(0.7, 0.8)),
    *rows_of("DiLoCo, outer 1/0.5", "diloco", outer=(1.0, 0.5)),
    *rows_of("DiLoCo, outer 0.4/0.9", "diloco", outer=(0.4, 0.9)),
    *rows_of("DiLoCo, outer cosine", "diloco", schedule="cosine"),
    *rows_of("DiLoCo, int8", "diloco", form="int8"),
    *rows_of("DiLoCo, int4", "diloco", form="int4"),
    *rows_of("DiLoCo, H=10, int8", "diloco", every=10, form="int8"),
    *rows_of("DiLoCo, H=10, int8, outer 0.7/0.8", "diloco", every=10, form="int8", outer=(0.7, 0.8)),
    *rows_of("DiLoCo, H=10, int8, outer 1/0.5", "diloco", every=10, form="int8", outer=(1.0, 0.5)),
    *rows_of("DiLoCo, outer 0.7/0.8, 150 steps by DDP first", "diloco", outer=(0.7, 0.8), warmup=150),
    *rows_of("DiLoCo, outer 0.7/0.7", "diloco", outer=(0.7, 0.7)),
    *rows_of("DiLoCo, H=10, int8, outer 0.7/0.7", "diloco", every=10, form="int8", outer=(0.7, 0.7)),
    *rows_of("DiLoCo, outer 0.7/0.6", "diloco", outer=(0.7, 0.6)),
    *rows_of("DiLoCo, outer 0.7/0.5", "diloco", outer=(0.7, 0.5)),
    *rows_of("DiLoCo, outer 0.5/0.7", "diloco", outer=(0.5, 0.7)),
    *rows_of("DiLoCo, outer 0.4/0.8", "diloco", outer=(0.4, 0.8)),
    *rows_of("DiLoCo, outer 1/0.7", "diloco", outer=(1.0, 0.7)),
    *rows_of("DDP, beta2 0.95", "ddp", beta2=0.95),
    *rows_of("DiLoCo, outer 0.7/0.7, beta2 0.95", "diloco", outer=(0.7, 0.7), beta2=0.95),
    *rows_of("DDP, Muon", "ddp", inner="muon"),
    *rows_of("DiLoCo, Muon", "diloco", inner="muon"),
    *rows_of("DiLoCo, Muon, outer 0.7/0.7", "diloco", inner="muon", outer=(0.7, 0.7)),
    *rows_of("DiLoCo, Muon, outer 0.7/0.8", "diloco", inner="muon", outer=(0.7, 0.8)),
    *rows_of("DiLoCo, Muon, outer 0.7/0.6", "diloco", inner="muon", outer=(0.7, 0.6)),
    *rows_of("DiLoCo, Muon, outer 0.7/0.5", "diloco", inner="muon", outer=(0.7, 0.5)),
    *rows_of("DiLoCo, Muon, outer 0.9/0.5", "diloco", inner="muon", outer=(0.9, 0.5)),
    *rows_of("DiLoCo, Muon, outer 1/0.7", "diloco", inner="muon", outer=(1.0, 0.7)),
    *rows_of("DiLoCo, outer 0.7/0.7, 150 steps by DDP first", "diloco", outer=(0.7, 0.7), warmup=150),
    *rows_of("DiLoCo, H=50", "diloco", every=50),
    *rows_of("DiLoCo, H=100", "diloco", every=100),
    *rows_of("mean alone", "mean"),
    *rows_of("one worker", "ddp", workers=1),
    *rows_of("one worker, lookahead", "diloco", workers=1),
    *rows_of("one worker, lookahead, outer 0.7/0.7", "diloco", workers=1, outer=(0.7, 0.7)),
    *rows_of("one worker, lookahead, outer 0.7/0.5", "diloco", workers=1, outer=(0.7, 0.5)),
    *rows_of("one worker, lookahead, H=10, outer 0.7/0.5", "diloco", workers=1, every=10, outer=(0.7, 0.5)),
    *rows_of("DDP, torch's weights", "ddp", HIGHER, deviation=None),
    *rows_of("DiLoCo, torch's weights", "diloco", deviation=None),
    *rows_of("DiLoCo, torch's weights, outer 0.7/0.7", "diloco", HIGHER, outer=(0.7, 0.7), deviation=None),
    *rows_of("DiLoCo, torch's weights, outer 0.7/0.6", "diloco", HIGHER, outer=(0.7, 0.6), deviation=None),
    *rows_of("DiLoCo, torch's weights, outer 0.7/0.5", "diloco", outer=(0.7, 0.5), deviation=None),
    *rows_of(
        "DiLoCo, torch's weights, H=10, int8, outer 0.7/0.7",
        "diloco",
        every=10,
        form="int8",
        outer=(0.7, 0.7),
        deviation=None,
    ),
    *rows_of("one worker, torch's weights", "ddp", workers=1, deviation=None),
    *rows_of("one worker, torch's weights, lookahead", "diloco", workers=1, deviation=None),
    *rows_of("DDP, seed 1", "ddp", seed=1),
    *rows_of("DiLoCo, seed 1", "diloco", seed=1),
    *rows_of("DiLoCo, outer 0.7/0.8, seed 1", "diloco", outer=(0.7, 0.8), seed=1),
    *rows_of("DiLoCo, outer 0.7/0.7, seed 1", "diloco", outer=(0.7, 0.7), seed=1),
    *rows_of("DDP, Muon, seed 1", "ddp", inner="muon", seed=1),
    *rows_of("DiLoCo, Muon, outer 0.7/0.7, seed 1", "diloco", inner="muon", outer=(0.7, 0.7), seed=1),
    *rows_of("DiLoCo, Muon, int8, outer 0.7/0.7", "diloco", form="int8", inner="muon", outer=(0.7, 0.7)),
    *rows_of("DiLoCo, H=10, int8, outer 0.7/0.7, seed 1", "diloco", every=10, form="int8", outer=(0.7, 0.7), seed=1),
    *rows_of("DiLoCo, H=10, int8, outer 0.7/0.8, seed 1", "diloco", every=10, form="int8", outer=(0.7, 0.8), seed=1),
    *rows_of("DDP, from scratch", "ddp", prepared=False),
    *rows_of("DiLoCo, from scratch", "diloco", prepared=False),
    *rows_of("DDP, from scratch, batch 8", "ddp", prepared=False, batch=8),
    *rows_of("DiLoCo, from scratch, batch 8", "diloco", prepared=False, batch=8),
    *rows_of("DDP, a fifth of the steps", "ddp", share=0.2),
    *rows_of("DiLoCo, a fifth of the steps", "diloco", share=0.2),
)


@cache
def text_data() -> Text:
    "The text, read once."
    return Text()


@cache
def start_of(prepared: bool, seed: int = SEED, deviation: float | None = 0.02) -> nn.Module:
    "The model that all workers begin with."
    torch.manual_seed(seed)
    model = Transformer(text_data().size, deviation=deviation)
    if prepared:
        model = train_row(Row("start", 1, "ddp", 4e-3, seed=seed), text_data(), model, PREPARED)
    assert model is not None, "it is never put aside"
    return model


def measure(row: Row, data: Text, start: nn.Module, steps: int, keep: Path | None = None) -> dict | None:
    "One line of the table; None where the row was put aside."
    began, steps = time.monotonic(), round(row.share * steps)
    model = train_row(row, data, start, steps, keep)
    if model is None:
        return None
    numbers = sum(p.numel() for p in model.parameters())
    by_ddp = steps * ring_bytes(4 * numbers, row.workers) / 1e6
    sent = {"mb": sent_mb(row, numbers, steps), "ddp_mb": by_ddp, "steps": steps}
    return {**asdict(row), "loss": valid_loss(model, data), **sent, "seconds": time.monotonic() - began}


def measure_here(row: Row, steps: int, folder: Path | None) -> dict | None:
    "`measure`, in a process that has read nothing yet; `folder`: where a row that is put aside is kept."
    torch.set_num_threads(1)
    keep = folder and folder / f"{re.sub(r'[^0-9a-zA-Z=.]+', '-', row.name)}.pt"
    return measure(row, text_data(), start_of(row.prepared, row.seed, row.deviation), steps, keep)


def line(found: dict) -> str:
    "A line of the table."
    fewer = f"{found['ddp_mb'] / found['mb']:.1f}" if found["mb"] else "-"
    return f"| {found['name']} | {found['loss']:.4f} | {found['mb']:.1f} | {fewer} | {found['seconds']:.0f} |"


class Letters(Task):
    "The same text and network, for the kit."

    def datasets(self, cfg):
        data = Text()
        train, valid = (part[: len(part) // 65 * 65].view(-1, 65) for part in (data.train, data.valid))
        return TensorDataset(train), TensorDataset(valid[:512])

    def model(self, cfg):
        return Transformer(96)

    def loss(self, model, batch):
        return loss_of(model, batch[0])


_ROUNDS = ("trainer.strategy.name=diloco", "diloco.warmup_steps=100")
WAYS = {
    "ddp": ("trainer.strategy=ddp",),
    "H=10": (*_ROUNDS, "diloco.max_steps=10"),
    "H=25": (*_ROUNDS, "diloco.max_steps=25"),
    "H=25, int8": (*_ROUNDS, "diloco.max_steps=25", "diloco.compression=int8"),
    "H=25, four fragments": (*_ROUNDS, "diloco.max_steps=25", "diloco.fragments=4", "diloco.overlap_steps=2"),
}


def run_over(link: list[str], way: str, steps: int, folder: Path) -> list[dict]:
    "The events of a run of both machines of a `link`, given by their namespaces."
    words = ["data.batch_size=32", "optimizer.lr=4e-3", f"trainer.max_steps={steps}", "trainer.accelerator=cpu"]
    words += ["trainer.check_val_every_n_steps=50", "trainer.devices=1", "trainer.num_nodes=2", "launch.threads=1"]
    words += ["distributed.rdzv_endpoint=10.78.0.1:29655", "checkpoint.enabled=false", *WAYS[way]]
    started = []
    for number, name in enumerate(link):
        place = folder / f"{list(WAYS).index(way)}-{number}"
        place.mkdir()
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "spectrakit", "train", f"{__file__}:Letters"]
        own = [*words, f"distributed.node_rank={number}"]
        started.append(subprocess.Popen([*command, *own], cwd=place, stdout=subprocess.DEVNULL))
    if any([process.wait() for process in started]):
        raise SystemExit(f"the run by {way} failed")
    return read_events(next((folder / f"{list(WAYS).index(way)}-0").glob("runs/*/events.jsonl")))


def shell(*words: str) -> None:
    "Run a command that has to succeed."
    subprocess.run(words, check=True)


def over_link(mbit: float, steps: int, ways: list[str]) -> dict:
    "By way: (seconds since the first step, loss on held-out text) of each evaluation."
    link, found = [f"diloco-{os.getpid()}-{number}" for number in (0, 1)], {}
    try:
        for name in link:
            shell("ip", "netns", "add", name)
        shell("ip", "link", "add", "w0", "netns", link[0], "type", "veth", "peer", "name", "w1", "netns", link[1])
        for number, name in enumerate(link):
            shell("ip", "-n", name, "addr", "add", f"10.78.0.{number + 1}/24", "dev", f"w{number}")
            for card in ("lo", f"w{number}"):
                shell("ip", "-n", name, "link", "set", card, "up")
            limit = f"tbf rate {mbit:g}mbit burst 64kb latency 400ms".split()
            shell("tc", "-n", name, "qdisc", "add", "dev", f"w{number}", "root", *limit)
        with tempfile.TemporaryDirectory() as folder:
            for way in ways:
                events = run_over(link, way, steps, Path(folder))
                began = next(e["t"] for e in events if e["type"] == "budget")
                evals = [e for e in events if e["type"] == "eval"]
                found[way] = [(round(e["t"] - began, 2), e["metrics"]["val_loss"]) for e in evals]
                print(link_line(way, steps, found[way], events), flush=True)
    finally:
        for name in link:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return found


def link_line(way: str, steps: int, points: list[tuple], events: list[dict]) -> str:
    "A line of the table: what the link held up, as the run itself has counted it, is that of its rounds."
    numbers = next(e["parameters"] for e in events if e["type"] == "start")
    rounds = [e for e in events if e["type"] == "round"]
    warm = steps if way == "ddp" else min(steps, 100)
    sent = (warm * ring_bytes(4 * numbers, 2) + (rounds[-1]["bytes_so_far"] if rounds else 0)) / 1e6
    waited = f"{rounds[-1]['waited_so_far_s']:.1f}" if rounds else "-"
    return f"| {way} | {points[-1][0]:.0f} | {points[-1][1]:.4f} | {sent:.1f} | {waited} |"


def to_the_same(found: dict) -> str:
    "How long each took to the worst of the last losses."
    goal = max(points[-1][1] for points in found.values())
    times = {way: next(t for t, loss in points if loss <= goal) for way, points in found.items()}
    return f"to loss {goal:.4f}: " + ", ".join(f"{way} {seconds:.0f} s" for way, seconds in times.items())


def plot(rows: list[dict], file: Path) -> None:
    "Draw loss over the bytes that a worker sends, for the rows that have as many steps and the prepared weights."
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    alike = [row for row in rows if row.get("prepared", True) and row.get("deviation", 0.02) is not None]
    shown = [row for row in alike if row["mb"] and row.get("share", 1.0) == 1.0]
    figure, axes = plt.subplots(figsize=(7, 4))
    for way, mark in (("ddp", "o"), ("diloco", "s"), ("mean", "^")):
        own = [row for row in shown if row["way"] == way]
        axes.scatter([row["mb"] for row in own], [row["loss"] for row in own], marker=mark, label=way)
    for row in shown:
        axes.annotate(row["name"], (row["mb"], row["loss"]), fontsize=6, xytext=(4, 2), textcoords="offset points")
    axes.set(xscale="log", xlabel="MB that a worker sends", ylabel="loss on held-out text")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def table(names: list[str] | None, steps: int, file: Path | None, jobs: int, pieces: Path | None = None) -> None:
    """Train the rows with these `names` (None: all), so many at a time, print the table as it grows, and keep its
    figures in `file`; rows that take long are put aside in the folder `pieces`, and go on there the next time.
    """
    data = text_data()
    print(f"{len(data.train) + len(data.valid)} characters, {data.size} different ones, sha256 {data.sha}")
    print("| run | loss | MB a worker | fewer | seconds |\n|---|---|---|---|---|", flush=True)
    about = {"characters": len(data.train) + len(data.valid), "sha256": data.sha, "steps": steps}
    found = json.loads(file.read_text())["rows"] if file is not None and file.exists() else []
    named, known = {row.name: row for row in ROWS}, {row["name"] for row in found}
    asked = [named[name] for name in names or named if name not in known]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure_here, row, steps, pieces) for row in asked]):
            if done.result() is None:
                print("a row was put aside: call this again", flush=True)
                continue
            found.append(done.result())
            print(line(found[-1]), flush=True)
            if file is not None:
                ordered = sorted(found, key=lambda row: list(named).index(row["name"]))
                file.write_text(json.dumps({**about, "rows": ordered}, indent=1) + "\n")


def main() -> None:
    "Train the rows that were asked for, and print the table as it grows."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=None, help="names of rows (default: all)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each worker")
    parser.add_argument("--jobs", type=int, default=1, help="rows that are trained at a time, each on one core")
    parser.add_argument("--json", type=Path, default=None, help="file for the figures; rows that it has are kept")
    parser.add_argument("--pieces", type=Path, default=None, help="folder for rows that are put aside after 400 s")
    parser.add_argument("--link", type=float, default=None, help="megabits a second of a link to train over")
    parser.add_argument(
        "--ways", nargs="*", default=list(WAYS), choices=list(WAYS), help="over the link (default: all)"
    )
    parser.add_argument("--plot", type=Path, default=None, help="file for a picture of what --json holds")
    asked = parser.parse_args()
    if asked.plot is not None and asked.json is not None:
        plot(json.loads(asked.json.read_text())["rows"], asked.plot)
        return
    if asked.link is not None:
        print("| way | s for all steps | loss | MB a worker | s waited in rounds |\n|---|---|---|---|---|", flush=True)
        print(to_the_same(over_link(asked.link, asked.steps, asked.ways)))
        return
    if asked.pieces is not None:
        asked.pieces.mkdir(parents=True, exist_ok=True)
    table(asked.rows, asked.steps, asked.json, asked.jobs, asked.pieces)


if __name__ == "__main__":
    main()
