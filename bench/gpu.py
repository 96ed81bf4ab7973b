"""One table of steps on one GPU, in at most eight minutes.

`python bench/gpu.py [--device cpu] [--quick] [--only TEXT] [--seconds N] [--json FILE]`

First the checks of captured steps on real CUDA graphs: the same run with `trainer.cuda_graphs=false` and `true`, to
the bit, with dropout, batch norm, accumulation, clipping, a moving average, fp16 and bf16, and a run cut and resumed.
Then milliseconds a step:

- **by hand**: data on the device, autocast, fused AdamW; and the same step captured as a CUDA graph
- **sk.fit**: by default, with `trainer.cuda_graphs=false`, and with `trainer.deterministic=false` besides
- **Lightning**, **transformers** and **accelerate**, where they are installed, with a DataLoader of four workers

on a table's MLP (200,000 rows of 50, batches of 512), a ResNet-18 (64 pixels, batches of 128; with torchvision) and
GPT-2 (512 tokens, batches of 16; with transformers), in bf16. A step is the difference of a long and a short run, after
a first one; each row has a process of its own. A row for which no time is left is named. `--device cpu --quick` tries
the script on small sizes; its figures mean nothing.
"""

import argparse
import contextlib
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 8 * 60 - 20  # the rest is for writing the file
LR = 1e-4


@dataclass(frozen=True)
class Work:
    "A workload: columns, batch, epochs of the short and the long run, a model and its loss of the columns."

    columns: tuple
    batch: int
    epochs: tuple[int, int]
    make: Callable[[], nn.Module]
    loss: Callable[..., Any]

    @property
    def steps(self) -> int:
        "Of an epoch."
        return -(-len(self.columns[0]) // self.batch)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()

    def dataset(self) -> TensorDataset:
        return TensorDataset(*self.columns)


def mlp(quick: bool) -> Work:
    x = torch.randn(2048 if quick else 200_000, 50, generator=torch.Generator().manual_seed(1))
    layers = (50, 256, 256, 1)

    def make() -> nn.Module:
        pairs = [(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(layers)]
        return nn.Sequential(*[layer for pair in pairs for layer in pair][:-1])

    return Work((x, x.square().mean(1, keepdim=True)), 512, (1, 4), make, lambda m, x, y: functional.mse_loss(m(x), y))


def resnet(quick: bool) -> Work:
    from torchvision.models import resnet18

    draw = torch.Generator().manual_seed(1)
    samples, side = (64, 16) if quick else (8192, 64)
    x, y = torch.randn(samples, 3, side, side, generator=draw), torch.randint(0, 10, (samples,), generator=draw)
    batch = 16 if quick else 128
    return Work(
        (x, y), batch, (1, 3), lambda: resnet18(num_classes=10), lambda m, x, y: functional.cross_entropy(m(x), y)
    )


def gpt(quick: bool) -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(0, 50257, (8, 32) if quick else (512, 512), generator=torch.Generator().manual_seed(1))
    size = {"n_layer": 1, "n_embd": 32, "n_head": 2} if quick else {}
    config = GPT2Config(n_positions=512, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, **size)
    batch = 4 if quick else 16
    return Work((tokens,), batch, (1, 3), lambda: GPT2LMHeadModel(config), lambda m, x: m(input_ids=x, labels=x).loss)


WORKS: dict[str, tuple[Callable[[bool], Work], str]] = {
    "mlp": (mlp, "torch"),
    "resnet": (resnet, "torchvision"),
    "gpt": (gpt, "transformers"),
}


def adamw(params: Any, **more: Any) -> Any:
    return torch.optim.AdamW(params, lr=LR, weight_decay=0.01, fused=True, **more)


def by_hand(work: Work, device: str, epochs: int) -> None:
    model, columns = work.model().to(device), [column.to(device) for column in work.columns]
    optimizer = adamw(model.parameters())
    for _ in range(epochs):
        for rows in torch.randperm(len(columns[0]), device=device).split(work.batch):
            with torch.autocast(device, torch.bfloat16):
                loss = work.loss(model, *[column[rows] for column in columns])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def capture(step: Callable[[], None]) -> torch.cuda.CUDAGraph:
    "Return `step` as a graph."
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # torch asks for some steps before a capture, on another stream
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def by_hand_captured(work: Work, device: str, epochs: int) -> None:
    "Whole batches alone: gather, passes and update are one graph that reads its rows from a fixed tensor."
    model, columns = work.model().to(device), [column.to(device) for column in work.columns]
    optimizer = adamw(model.parameters(), capturable=True)
    rows = torch.arange(work.batch, device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            loss = work.loss(model, *[column[rows] for column in columns])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    graph = capture(step)
    for _ in range(epochs):
        for some in torch.randperm(len(columns[0]), device=device).split(work.batch):
            if len(some) == work.batch:
                rows.copy_(some)
                graph.replay()


def kit_words(device: str, *words: str) -> list[str]:
    accelerator = "cpu" if device == "cpu" else "gpu"
    plain = ["local/accumulate_grad_batches=debug", "launch.mode=inline", f"trainer.accelerator={accelerator}"]
    plain += [
        "trainer.devices=1",
        "checkpoint.enabled=false",
        "run.console=none",
        "optimizer.name=adamw",
        f"optimizer.lr={LR}",
    ]
    return [*plain, "optimizer.weight_decay=0.01", *words]


def kit(*words: str) -> Callable[[Work, str, int], None]:
    def train(work: Work, device: str, epochs: int) -> None:
        import spectrakit as sk

        class Made(sk.Task):
            def datasets(self, cfg: Any) -> tuple:
                return work.dataset(), None

            def model(self, cfg: Any) -> nn.Module:
                return work.model()

            def loss(self, model: nn.Module, batch: Any) -> Any:
                return work.loss(model, *batch)

        given = kit_words(
            device, "trainer.precision=bf16", f"data.micro_batch_size={work.batch}", f"trainer.max_epochs={epochs}"
        )
        sk.fit(Made(), sk.compose(*given, *words), show=False).raise_for_status()

    return train


def loader(work: Work, workers: int = 4) -> DataLoader:
    return DataLoader(
        work.dataset(),
        work.batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        persistent_workers=True,
    )


def by_lightning(work: Work, device: str, epochs: int) -> None:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = work.model()

        def training_step(self, batch: Any, number: int) -> Any:
            return work.loss(self.inner, *batch)

        def configure_optimizers(self) -> Any:
            return adamw(self.parameters())

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"), False)
    accelerator = "cpu" if device == "cpu" else "gpu"
    trainer = lightning.Trainer(max_epochs=epochs, accelerator=accelerator, devices=1, precision="bf16-mixed", **quiet)
    trainer.fit(Module(), loader(work))


def by_transformers(work: Work, device: str, epochs: int) -> None:
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = work.model()

        def forward(self, **columns: Any) -> dict:
            return {"loss": work.loss(self.inner, *columns.values())}

    rows = [{f"column{k}": value for k, value in enumerate(row)} for row in work.dataset()]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=work.batch,
            bf16=device != "cpu",
            use_cpu=device == "cpu",
            optim="adamw_torch_fused",
            learning_rate=LR,
            weight_decay=0.01,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_num_workers=4,
            dataloader_persistent_workers=True,
            remove_unused_columns=False,
        )
        Trainer(Model(), arguments, train_dataset=rows).train()


def by_accelerate(work: Work, device: str, epochs: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=device == "cpu")
    model = work.model()
    model, optimizer, batches = accelerator.prepare(model, adamw(model.parameters()), loader(work))
    for _ in range(epochs):
        for batch in batches:
            with accelerator.autocast():
                loss = work.loss(model, *batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


WAYS: dict[str, tuple[Callable[[Work, str, int], None], str]] = {
    "by hand": (by_hand, "torch"),
    "by hand, captured": (by_hand_captured, "cuda"),
    "sk.fit": (kit(), "torch"),
    "sk.fit, cuda_graphs=false": (kit("trainer.cuda_graphs=false"), "torch"),
    "sk.fit, deterministic=false": (kit("trainer.deterministic=false", "trainer.cuda_graphs=false"), "torch"),
    "Lightning": (by_lightning, "lightning"),
    "transformers": (by_transformers, "transformers"),
    "accelerate": (by_accelerate, "accelerate"),
}


def lacks(needed: str, device: str) -> str:
    "The reason why something cannot be measured here, or nothing."
    if needed == "cuda":
        return "no GPU" if device == "cpu" else ""
    return "" if importlib.util.find_spec(needed) else f"{needed} is not installed"


def settled(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def timed(train: Callable[[int], None], epochs: tuple[int, int], device: str) -> dict[str, float]:
    "Seconds an epoch by the difference of two lengths, and the most memory of the device, after a first run."
    short, long = epochs
    train(short)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    took = []
    for count in (short, long):
        settled(device)
        began = time.perf_counter()
        train(count)
        settled(device)
        took.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0.0
    return {"epoch_s": (took[1] - took[0]) / (long - short), "short_call_s": took[0], "peak_gib": peak}


def measure(name: str, way: str, device: str, quick: bool) -> dict[str, Any]:
    "One row, in this process."
    make, needed = WORKS[name]
    train, also = WAYS[way]
    if missing := lacks(needed, device) or lacks(also, device):
        return {"work": name, "way": way, "left_out": missing}
    work = make(quick)
    found = timed(lambda epochs: train(work, device, epochs), work.epochs, device)
    rate = len(work.columns[0]) / found["epoch_s"] if found["epoch_s"] > 0 else None
    return {"work": name, "way": way, "ms_step": 1e3 * found["epoch_s"] / work.steps, "samples_s": rate, **found}


# captured steps on this device

CHECKS = {
    "fp32": ("trainer.precision=32",),
    "bf16": ("trainer.precision=bf16",),
    "fp16": ("trainer.precision=fp16",),
    "fp16, nan_policy=skip": ("trainer.precision=fp16", "training.nan_policy=skip"),
    "clipping, cosine": ("trainer.precision=32", "trainer.gradient_clip_val=0.1", "scheduler.name=cosine"),
    "moving average, accumulation": ("trainer.precision=bf16", "training.ema_decay=0.99", "data.global_batch_size=32"),
    "moving average, fp16": ("trainer.precision=fp16", "training.ema_decay=0.99"),
    "on_epoch freezes": ("trainer.precision=32", "training.ema_decay=0.99"),
}


def checked(name: str, words: tuple[str, ...], device: str) -> dict[str, Any]:
    "Weights and losses of a run with and without captured steps, and of a captured one that was cut and resumed."
    import spectrakit as sk

    class Net(sk.Task):
        def datasets(self, cfg: Any) -> tuple:
            x = torch.randn(1000, 16, generator=torch.Generator().manual_seed(1))
            return TensorDataset(x, x.square().mean(1)), TensorDataset(x[:100], x[:100].square().mean(1))

        def model(self, cfg: Any) -> nn.Module:
            return nn.Sequential(
                nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1), nn.Flatten(0)
            )

        def loss(self, model: nn.Module, batch: Any) -> Any:
            return functional.mse_loss(model(batch[0]), batch[1])

    class Freezes(Net):
        def on_epoch(self, model: nn.Module, moment: Any) -> None:
            model[0].requires_grad_(moment.epoch % 2 == 1)

    size = "data.micro_batch_size=8" if "accumulation" in name else "data.micro_batch_size=32"
    plain = [
        "trainer.max_epochs=4",
        size,
        "checkpoint.enabled=true",
        "trainer.log_every_n_steps=7",
        "trainer.log_min_seconds=0",
    ]

    def task() -> Any:
        return Freezes() if name.startswith("on_epoch") else Net()

    def why(found: Any) -> str:
        return next(event for event in found.events if event["type"] == "start")["reasons"].get("cuda_graphs", "")

    def run(folder: str, *more: str) -> Any:
        found = sk.fit(task(), sk.compose(*kit_words(device, *plain, *words), *more, f"run.dir={folder}"), show=False)
        found.raise_for_status()
        return found

    def weights(found: Any) -> list:
        return [value.cpu() for value in found.load_model().state_dict().values()]

    def losses(found: Any) -> list:
        return [event["loss"] for event in found.events if event["type"] == "step"]

    one, other = run("plain", "trainer.cuda_graphs=false"), run("captured", "trainer.cuda_graphs=true")
    cut = run("cut", "trainer.cuda_graphs=true", "trainer.max_steps=50", "scheduler.name=constant")
    whole = run("whole", "trainer.cuda_graphs=true", "scheduler.name=constant")
    rest = sk.resume(cut.path, task(), "trainer.max_steps=null", "resume.allow=[trainer.max_steps]", show=False)
    rest.raise_for_status()
    return {
        "check": name,
        "captured": why(other),
        "same_weights": all(map(torch.equal, weights(one), weights(other))),
        "same_losses": losses(one) == losses(other),
        "resumed_equal": all(map(torch.equal, weights(whole), weights(rest))),
    }


def one(part: str, options: argparse.Namespace) -> dict[str, Any]:
    "The row of `part` in this process, in a folder of its own."
    kind, _, name = part.partition(":")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if kind == "check":
            return checked(name, CHECKS[name], options.device)
        return measure(*name.split("/", 1), options.device, options.quick)


def told(row: dict[str, Any]) -> str:
    name = row.get("check") or f"{row['work']:7} {row['way']}"
    if "left_out" in row:
        return f"{name:40} left out: {row['left_out']}"
    if "check" in row:
        words = ("same_weights", "same_losses", "resumed_equal")
        return f"{name:40} {', '.join(f'{word} {row[word]}' for word in words)}; {row['captured']}"
    return f"{name:40} {row['ms_step']:9.3f} ms a step  {row['peak_gib']:.2f} GiB"


def apart(part: str, options: argparse.Namespace, left_s: float) -> dict[str, Any]:
    "The row of `part` by a process of its own."
    kind, _, name = part.partition(":")
    head = {"check": name} if kind == "check" else dict(zip(("work", "way"), name.split("/", 1), strict=True))
    if left_s < 20:
        return {**head, "left_out": "no time was left"}
    command = [
        sys.executable,
        __file__,
        "--device",
        options.device,
        "--part",
        part,
        *(["--quick"] if options.quick else []),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=left_s, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    except subprocess.TimeoutExpired:
        return {**head, "left_out": "no time was left"}
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    return json.loads(rows[-1][4:]) if rows else {**head, "left_out": f"failed: {last[:200]}"}


def parts_of(options: argparse.Namespace) -> list[str]:
    "Checks first, then the workloads; the ways of a workload follow each other."
    checks = [f"check:{name}" for name in CHECKS if options.device != "cpu" or "fp16" not in name]
    return [*checks, *(f"way:{work}/{way}" for work in WORKS for way in WAYS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--only", default="", metavar="TEXT", help="parts whose name contains this")
    parser.add_argument("--seconds", type=float, default=LIMIT_S)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="default: bench/gpu.json, on a GPU")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print("ROW " + json.dumps(one(options.part, options)))
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench/gpu.py: there is no GPU here, so nothing was measured; --device cpu --quick tries the script")
        return
    began, rows = time.monotonic(), []
    for part in parts_of(options):
        if options.only in part:
            rows.append(apart(part, options, options.seconds - (time.monotonic() - began)))
            print(told(rows[-1]), flush=True)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    found = {
        "device": device,
        "torch": torch.__version__,
        "day": f"{date.today()}",
        "quick": options.quick,
        "rows": rows,
    }
    target = options.json or (ROOT / "bench" / "gpu.json" if options.device == "cuda" else None)
    if target is not None:
        target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
