"""Draw the pictures of docs/gallery.md that show other kits' live views: `python tools/gallery_peers.py`; some minutes.

The same network on the same spectra for as many epochs, in JupyterLab, by each kit as its own pages say, and by
`sk.fit`. Half-way a cell is photographed, light and dark, and its height and that of its end are printed. The other
kits are in virtual environments of their own that see this one's torch; pip fills them where they are missing.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat

root = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(root / "tests"), str(root / "bench")]

KITS = ("fastprogress==1.1.6", "livelossplot==0.6.1", "transformers==5.24.0", "keras==3.15.1", "lightning==2.6.6")
EPOCHS, HALF, STEPS = 40, 20, 24  # of the run, of its first half, of an epoch
WORDS = f"""
words = ("trainer=kaggle_safe", "trainer.accelerator=cpu", "trainer.devices=1", "trainer.max_epochs={EPOCHS}",
         "early_stopping.enabled=false", "trainer.log_every_n_steps=2", "launch.threads=1",
         "training.gradient_accumulation_steps=1")
"""
OWN = ("import spectrakit as sk" + WORDS, 'run = sk.fit("coffee", *words)')
SETUP = f"""
import os, time
from pathlib import Path
os.environ.update(KERAS_BACKEND="torch", SPECTRAKIT_SESSION_START="")
import torch
torch.set_num_threads(1)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
import spectrakit as sk
from spectrakit.tasks.coffee import Coffee
{WORDS}
cfg, task = sk.compose(*words), Coffee()
train, valid = task.datasets(cfg)
batches, held_out = DataLoader(train, cfg.data.micro_batch_size, shuffle=True), DataLoader(valid, len(valid))
assert len(batches) == {STEPS}
torch.manual_seed(cfg.seed)
model = task.model(cfg)
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.optimizer.lr, weight_decay=cfg.optimizer.weight_decay)

def half_way(epoch):  # the photographer says when it goes on
    if epoch == {HALF}:
        Path("half").touch()
        while not Path("on").exists():
            time.sleep(0.1)
"""
LOOP = """
@torch.no_grad()
def evaluated():
    x, target = next(iter(held_out))
    odds = model(x)
    return cross_entropy(odds, target).item(), (odds.argmax(1) == target).float().mean().item()

def trained(batch):
    loss = cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
"""
CELLS = {  # kit → cells; the last is photographed
    "fastprogress": (
        LOOP,
        f"""
from fastprogress import master_bar, progress_bar
bar, losses, valid_losses = master_bar(range(1, {EPOCHS + 1})), [], []
bar.write(["epoch", "train loss", "valid loss", "accuracy"], table=True)
for epoch in bar:
    each = [trained(batch) for batch in progress_bar(batches, parent=bar)]
    loss, accuracy = evaluated()
    losses.append(sum(each) / len(each))
    valid_losses.append(loss)
    bar.update_graph([[range(1, epoch + 1), losses], [range(1, epoch + 1), valid_losses]])
    bar.write([epoch, f"{{losses[-1]:.4f}}", f"{{loss:.4f}}", f"{{accuracy:.4f}}"], table=True)
    half_way(epoch)
""",
    ),
    "livelossplot": (
        LOOP,
        f"""
from livelossplot import PlotLosses
plot = PlotLosses()
for epoch in range(1, {EPOCHS + 1}):
    each = [trained(batch) for batch in batches]
    loss, accuracy = evaluated()
    plot.update({{"loss": sum(each) / len(each), "val_loss": loss, "val_accuracy": accuracy}})
    plot.send()
    half_way(epoch)
""",
    ),
    "transformers": (
        """
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, x, labels):
        odds = self.model(x)
        return {"loss": cross_entropy(odds, labels), "logits": odds}

class Half(TrainerCallback):
    def on_epoch_end(self, args, state, control, **_):
        half_way(round(state.epoch) - 1)  # the evaluation of the epoch before has been drawn

def rows(data):
    return [{"x": x, "labels": target} for x, target in data]

def accuracy(outputs):
    return {"accuracy": float((outputs.predictions.argmax(1) == outputs.label_ids).mean())}
""",
        f"""
arguments = TrainingArguments("hf", num_train_epochs={EPOCHS}, per_device_train_batch_size=cfg.data.micro_batch_size,
    learning_rate=cfg.optimizer.lr, weight_decay=cfg.optimizer.weight_decay, lr_scheduler_type="cosine", use_cpu=True,
    eval_strategy="epoch", logging_strategy="epoch", save_strategy="no", report_to="none")
trainer = Trainer(Model(), arguments, train_dataset=rows(train), eval_dataset=rows(valid), compute_metrics=accuracy,
                  callbacks=[Half()])
trainer.train();
""",
    ),
    "keras": (
        """
import keras
net = keras.Sequential([keras.Input(train[0][0].shape), keras.layers.TorchModuleWrapper(model)])
net.compile(keras.optimizers.AdamW(cfg.optimizer.lr, weight_decay=cfg.optimizer.weight_decay),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
half = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: half_way(epoch))
""",
        f"""
(x, y), (x_valid, y_valid) = ((t.numpy() for t in data.tensors) for data in (train, valid))
history = net.fit(x, y, batch_size=cfg.data.micro_batch_size, epochs={EPOCHS}, validation_data=(x_valid, y_valid),
                  callbacks=[half])
""",
    ),
    "lightning": (
        """
import lightning as L

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model

    def training_step(self, batch, number):
        loss = cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        odds = self.model(batch[0])
        found = {"val_loss": cross_entropy(odds, batch[1]), "val_acc": (odds.argmax(1) == batch[1]).float().mean()}
        self.log_dict(found, prog_bar=True)

    def on_train_epoch_end(self):
        half_way(self.current_epoch + 1)

    def configure_optimizers(self):
        return optimizer
""",
        f"""
trainer = L.Trainer(max_epochs={EPOCHS}, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
trainer.fit(Net(), batches, held_out)
""",
    ),
}


def written(folder: Path, name: str, kernel: str, *cells: str) -> str:
    "The name of a notebook in `folder` that has these cells."
    from lab import write_notebook

    path = write_notebook(folder / f"{name}.ipynb", *cells)
    notebook = nbformat.read(path, 4)
    notebook.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
    nbformat.write(notebook, path)
    return path.name


def register_kernel(data: Path, python: str) -> None:
    "Make an interpreter a kernel of the name `kits`, where a server with this data folder finds it."
    folder = data / "kernels" / "kits"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "kits", "language": "python"}))


def wait_for_half(page: Any, folder: Path, cell: int, name: str) -> None:
    "Wait until the run of the notebook that is open is half-way."
    from live_picture import DRAWN

    if name == "spectrakit":
        step = (
            f"Number(document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}]"
            f""".querySelector("{DRAWN}")?.getAttribute('aria-label').match(/step (\\d+)/)?.[1] ?? 0)"""
        )
        page.until(f"{step} >= {STEPS * HALF}", "half of the run", 240)
        return
    until = time.monotonic() + 240
    while not (folder / "half").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{name} has not come half-way in 240 s; the page shows: {page.said(cell)[-2000:]}")
        page.page.wait_for_timeout(200)
    page.page.wait_for_timeout(1500)  # the last picture arrives


def photographed(page: Any, folder: Path, name: str, out: Path, cells: tuple[str, ...], most: int) -> list[int]:
    "Run a kit's notebook, photograph its cell half-way; the heights of its output then and at the end."
    from gallery import small

    for signal in ("half", "on"):
        (folder / signal).unlink(missing_ok=True)
    notebook = written(folder, name, "python3" if name == "spectrakit" else "kits", *cells)
    page.open(notebook)
    page.run_all()
    wait_for_half(page, folder, len(cells) - 1, name)
    output, heights = page.output(len(cells) - 1), []
    heights.append(round(output.bounding_box()["height"]))
    for dark in (False, True):
        page.dress(dark)
        page.page.wait_for_timeout(700)
        target = out / f"gallery-{name}-{'dark' if dark else 'light'}.png"
        box = output.bounding_box()
        page.page.screenshot(path=target, clip={**box, "height": min(box["height"], most)})
        small(target)
        print(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB", flush=True)
    page.dress(False)
    (folder / "on").touch()
    page.until_idle(400)
    page.page.wait_for_timeout(700)
    return [*heights, round(output.bounding_box()["height"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["spectrakit", *CELLS]
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--out", type=Path, default=root / "docs" / "images", help="the folder for them")
    parser.add_argument("--width", type=int, default=1000, help="the browser's width in pixels")
    parser.add_argument("--most", type=int, default=1000, help="pixels that are kept of a cell, from its top")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache/spectrakit-bench", help="for its own")
    words = parser.parse_args()
    from peers import environment
    from playwright.sync_api import sync_playwright

    from lab import Page, Server, chromium

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        folder = Path(temporary) / "notebooks"
        folder.mkdir()
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        with Server(folder) as server:
            for name in words.names:
                cells = OWN if name == "spectrakit" else (SETUP, *CELLS[name])
                kits = [kit for kit in KITS if kit.startswith(f"{name}==")]
                python = environment(f"kit-{name}", kits, words.venvs.resolve()) if kits else sys.executable
                if python is None:
                    sys.exit(f"pip could not install {kits[0]}: its message is above. Mend that, and call this again.")
                register_kernel(Path(temporary) / "notebooks-of-jupyter" / "data", python)
                with Page(browser, server) as page:
                    page.page.set_viewport_size({"width": words.width, "height": 3000})
                    heights = photographed(page, folder, name, words.out, cells, words.most)
                    print(f"{name}: {heights[0]} px high half-way, {heights[1]} at the end", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
