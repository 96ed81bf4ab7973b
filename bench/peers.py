"""What a step costs in other kits, on equal terms: `python bench/peers.py [--rounds N] [--venvs FOLDER] [--json FILE]`.

The same network (MLP 32-64-1), the same 6400 samples in batches of 32, the same fused AdamW, fp32, one CPU thread, no
evaluation, no checkpoint, no progress bar. Each kit is called as its users call it, `spectrakit` by `sk.fit` in this
process with all its guards. Where a kit takes what yields batches it runs twice: with torch's `DataLoader`, and
"sliced", with slices of a copy that was shuffled for the epoch.

Each kit has a virtual environment of its own, outside the repository, which sees the torch of this one, so that all
have the same; pip fills it where it is missing, and a kit that wants another torch is left out. In a round each kit has
a process; they take turns, in another order each time. There it runs 5 and 25 epochs in turn: the difference of the
least times, by the clock of the process, is the time of twenty epochs, free of start and end.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

BATCH, SAMPLES, EPOCHS = 32, 6400, (5, 25)
STEPS = SAMPLES // BATCH  # of an epoch


def samples() -> tuple:
    import torch

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 32, generator=draw)
    return x, x.square().mean(1, keepdim=True)


def network():
    from torch import nn

    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))


def adamw(params):
    import torch

    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True)


class Sliced:
    "Batches of a copy that was shuffled for the epoch."

    def __init__(self):
        self.x, self.y = samples()
        self.batch_size = BATCH

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple]:
        import torch

        order = torch.randperm(SAMPLES)
        x, y = self.x[order], self.y[order]
        for start in range(0, SAMPLES, BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]


def loader():
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*samples()), batch_size=BATCH, shuffle=True)


def barest(batches, epochs: int) -> None:
    from torch.nn.functional import mse_loss

    model = network()
    optimizer = adamw(model.parameters())
    for _ in range(epochs):
        for x, y in batches:
            mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def spectrakit(epochs: int, *more: str) -> None:
    import torch

    import spectrakit as sk

    data = torch.utils.data.TensorDataset(*samples())

    class Made(sk.Task):
        def datasets(self, cfg):
            return data, None

        def model(self, cfg):
            return network()

        def loss(self, model, batch):
            return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    words = ("launch.mode=inline", "trainer.accelerator=cpu", "checkpoint.enabled=false", "run.console=none")
    optimizer = ("optimizer.name=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.01", "launch.threads=1")
    cfg = sk.compose(
        "local/accumulate_grad_batches=debug",
        *words,
        *optimizer,
        f"data.micro_batch_size={BATCH}",
        f"trainer.max_epochs={epochs}",
        *more,
    )
    sk.fit(Made(), cfg, show=False).raise_for_status()


def ignite(batches, epochs: int) -> None:
    from ignite.engine import create_supervised_trainer
    from torch.nn.functional import mse_loss

    model = network()
    create_supervised_trainer(model, adamw(model.parameters()), mse_loss).run(batches, max_epochs=epochs)


def accelerate(batches, epochs: int) -> None:
    from accelerate import Accelerator
    from torch.nn.functional import mse_loss

    accelerator, model = Accelerator(cpu=True), network()
    model, optimizer = accelerator.prepare(model, adamw(model.parameters()))
    batches = batches if isinstance(batches, Sliced) else accelerator.prepare(batches)
    for _ in range(epochs):
        for x, y in batches:
            accelerator.backward(mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def lightning(batches, epochs: int) -> None:
    import lightning as L
    from torch.nn.functional import mse_loss

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = network()

        def training_step(self, batch, _):
            return mse_loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return adamw(self.parameters())

    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    L.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, **quiet).fit(Module(), batches)


def skorch(epochs: int) -> None:
    import torch
    from skorch import NeuralNetRegressor

    options = {"optimizer": torch.optim.AdamW, "optimizer__fused": True, "lr": 1e-3, "optimizer__weight_decay": 0.01}
    feed = {"batch_size": BATCH, "iterator_train__shuffle": True, "train_split": None, "verbose": 0}
    NeuralNetRegressor(network(), max_epochs=epochs, **options, **feed).fit(*samples())


def transformers(epochs: int) -> None:
    import torch
    from torch.nn.functional import mse_loss
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = network()

        def forward(self, x, labels):
            return {"loss": mse_loss(self.model(x), labels)}

    class Rows(torch.utils.data.Dataset):
        x, y = samples()

        def __len__(self):
            return SAMPLES

        def __getitem__(self, i):
            return {"x": self.x[i], "labels": self.y[i]}

    with tempfile.TemporaryDirectory() as folder:
        quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_steps": 50}
        options = {"per_device_train_batch_size": BATCH, "optim": "adamw_torch_fused", "learning_rate": 1e-3}
        arguments = TrainingArguments(folder, num_train_epochs=epochs, use_cpu=True, **options, **quiet)
        trainer = Trainer(Model(), arguments, train_dataset=Rows())
        trainer.log = lambda *a, **k: None
        trainer.train()


def fastai(batches, epochs: int) -> None:
    import fastai.callback.progress  # gives a Learner its no_bar
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper
    from torch.nn.functional import mse_loss

    def opt_func(params, **_):
        return OptimWrapper(params, opt=adamw)

    learner = Learner(DataLoaders(batches, []), network(), loss_func=mse_loss, opt_func=opt_func, train_bn=False)
    assert fastai.callback.progress
    with learner.no_bar(), learner.no_logging():
        learner.fit(epochs)


def keras(batches, epochs: int) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((32,)), *layers])
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=0.01)  # its own: it takes none of torch's
    model.compile(optimizer=optimizer, loss="mse")
    if isinstance(batches, Sliced):
        x, y = (column.numpy() for column in samples())
        model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=True, verbose=0)
    else:
        model.fit(batches, epochs=epochs, verbose=0)


# what the others do not do: deterministic operations, no decay for biases, a log point each 10 steps
EQUAL = ("trainer.deterministic=false", "optimizer.decay_norms_and_biases=true", "trainer.log_every_n_steps=50")
# name → (package whose version is printed, what runs so many epochs)
WAYS: dict[str, tuple[str, Callable]] = {
    "barest, sliced": ("torch", lambda n: barest(Sliced(), n)),
    "barest, DataLoader": ("torch", lambda n: barest(loader(), n)),
    "sk.fit, by default": ("torch", spectrakit),
    "sk.fit, equal terms": ("torch", lambda n: spectrakit(n, *EQUAL)),
    "Ignite, sliced": ("pytorch-ignite", lambda n: ignite(Sliced(), n)),
    "Ignite, DataLoader": ("pytorch-ignite", lambda n: ignite(loader(), n)),
    "Accelerate, sliced": ("accelerate", lambda n: accelerate(Sliced(), n)),
    "Accelerate, DataLoader": ("accelerate", lambda n: accelerate(loader(), n)),
    "skorch": ("skorch", skorch),
    "Lightning, sliced": ("lightning", lambda n: lightning(Sliced(), n)),
    "Lightning, DataLoader": ("lightning", lambda n: lightning(loader(), n)),
    "HF Trainer": ("transformers", transformers),
    "Keras on torch, arrays": ("keras", lambda n: keras(Sliced(), n)),
    "Keras on torch, DataLoader": ("keras", lambda n: keras(loader(), n)),
    "fastai, DataLoader": ("fastai", lambda n: fastai(loader(), n)),
}
HERE_ALREADY = ("torch", "accelerate")


def run_way(name: str) -> None:
    "Run one way in this process, and print what it took as JSON."
    import logging

    import torch

    warnings.simplefilter("ignore")  # what others print is not measured
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    package, way = WAYS[name]
    times: dict[int, list[float]] = {n: [] for n in EPOCHS}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        way(1)
        for n in EPOCHS * 2:
            began = time.process_time()
            way(n)
            times[n].append(time.process_time() - began)
        os.chdir("/")
    short, long = (min(times[n]) for n in EPOCHS)
    found = {"us": 1e6 * (long - short) / (EPOCHS[1] - EPOCHS[0]) / STEPS, "version": version(package)}
    print("\n" + json.dumps(found), flush=True)


def environment(name: str, packages: Sequence[str], venvs: Path) -> str | None:
    "The interpreter of a virtual environment with `packages`, filled by pip; None where it cannot get them."
    torch = version("torch").partition("+")[0]
    python = venvs / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venvs / name], check=True)
    shared = sysconfig.get_path("purelib", vars={"base": str(venvs / name), "platbase": str(venvs / name)})
    Path(shared, "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    install = [python, "-m", "pip", "install", "--quiet", *packages, f"torch=={torch}"]
    return None if subprocess.run(install).returncode else str(python)


def interpreter(package: str, venvs: Path) -> str | None:
    "The interpreter that has the package; None where pip cannot get it."
    return sys.executable if package in HERE_ALREADY else environment(package, [package], venvs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes of each (5)")
    parser.add_argument(
        "--venvs", type=Path, default=Path.home() / ".cache/spectrakit-bench", help="their environments"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_way(options.way)
        return
    pythons = {
        package: interpreter(package, options.venvs.resolve()) for package in dict.fromkeys(p for p, _ in WAYS.values())
    }
    found: dict[str, list[dict]] = {name: [] for name in WAYS}
    failed: dict[str, str] = {
        package: "pip could not install it" for package, python in pythons.items() if python is None
    }
    for _ in range(options.rounds):
        for name in random.sample(list(WAYS), len(WAYS)):
            python = pythons[WAYS[name][0]]
            if python is None or name in failed:
                continue
            done = subprocess.run([python, __file__, "--way", name], capture_output=True, text=True)
            if done.returncode:
                failed[name] = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
                continue
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
    results = {}
    base = statistics.median(row["us"] for row in found["barest, sliced"])
    print(f"µs of processor time a step; {options.rounds} processes of each, medians; torch {version('torch')}\n")
    print(f"{'':24} {'version':>10} {'µs a step':>10} {'over barest':>12} {'least':>8} {'most':>8}")
    for name, rows in sorted(found.items(), key=lambda item: statistics.median([r["us"] for r in item[1]] or [1e9])):
        if rows:
            each = [row["us"] for row in rows]
            median = statistics.median(each)
            results[name] = {"version": rows[0]["version"], "us": median, "over_barest": median - base, "all": each}
            shown = f"{median:10.1f} {median - base:12.1f} {min(each):8.1f} {max(each):8.1f}"
            print(f"{name:24} {rows[0]['version']:>10} {shown}")
    for name, reason in failed.items():
        print(f"{name}: left out, {reason}")
    if options.json:
        content = {"rounds": options.rounds, "torch": version("torch"), "results": results, "left_out": failed}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
