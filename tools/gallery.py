"""Draw the pictures of docs/gallery.md anew: `python tools/gallery.py`, or `make gallery`; some minutes, with chromium.

A notebook trains the built-in task on real spectra as people do: well, with an error in the task, with values that are
not finite, with thirteen metrics, in folds, in a search. nbconvert makes pages of it, light and dark, and JupyterLab
opens it again without trusting it and with no run behind it; the cells are photographed. What is clipped, overlaps, is
too small or too faint is printed, and ends this with status 1. The picture of a run that goes on is that of
`tools/live_picture.py`. Look at docs/images/gallery-*.png before they are committed.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "tests"))

SETUP = """
import torch
import spectrakit as sk
from spectrakit.tasks.coffee import Coffee

words = ("trainer=kaggle_safe", "trainer.accelerator=cpu", "trainer.devices=1", "trainer.max_epochs=40",
         "early_stopping.enabled=false", "trainer.log_every_n_steps=2", "checkpoint.every_n_epochs=20")
"""
CELLS = {
    "ended": 'run = sk.fit("coffee", *words)',
    "failed": """
class Unlucky(Coffee):
    def loss(self, model, batch, moment=None):
        if moment is not None and moment.step == 150:
            print("reading the detector's dark current")
            dark = torch.zeros(3, 512)
            return (model(batch[0]) @ dark.T).mean()
        return super().loss(model, batch)

run = sk.fit(Unlucky(), *words, on_error="return")
""",
    "nan": """
class Overflows(Coffee):
    def loss(self, model, batch, moment=None):
        loss = super().loss(model, batch)
        return loss * float("nan") if moment is not None and 120 <= moment.step < 150 else loss

run = sk.fit(Overflows(), *words, "training.nan_policy=skip")
""",
    "metrics": """
class Thirteen(Coffee):
    def metrics(self, outputs, batch):
        odds, target, n = outputs.softmax(1), batch[1], len(batch[1])
        top, right = odds.topk(2, dim=1), odds.argmax(1) == target
        found = {"accuracy": right.sum(), "top2": (top.indices == target[:, None]).sum(),
                 "confidence": top.values[:, 0].sum(), "margin": (top.values[:, 0] - top.values[:, 1]).sum(),
                 "entropy": -(odds * odds.clamp_min(1e-9).log()).sum(),
                 "brier": ((odds - torch.nn.functional.one_hot(target, 3)) ** 2).sum(),
                 "sharpness": (odds ** 2).sum()}
        share = {f"{name}_of_{k}": (odds[:, k].sum() if name == "odds" else ((odds.argmax(1) == k) & right).sum())
                 for k in range(3) for name in ("odds", "hits")}
        return {name: (value, n) for name, value in {**found, **share}.items()}

run = sk.fit(Thirteen(), *words, "checkpoint.monitor=val_accuracy")
""",
    "folds": 'sk.cross_validate("coffee", *words, "trainer.max_epochs=8", folds=5, show=False)',
    "study": """
study = sk.search("coffee", *words, "trainer.max_epochs=6", "optimizer.lr=tag(log,interval(1e-4,1e-1))",
          "data.micro_batch_size=8,16,32", "search.trials=10")
""",
}  # picture → the cell that is in it
PRINTED = ("nbconvert", ("ended",))  # a page with its code
REOPENED = "reopened"  # the saved notebook in JupyterLab, which does not trust it


def executed(folder: Path) -> Path:
    "The notebook, run as papermill does, in `folder`."
    from nbclient import NotebookClient

    from lab import write_notebook

    path = write_notebook(folder / "gallery.ipynb", SETUP, *CELLS.values())
    notebook = nbformat.read(path, 4)
    told = {"SPECTRAKIT_SESSION_START": "", "KAGGLE_KERNEL_RUN_TYPE": ""}
    NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute(env={**os.environ, **told})
    nbformat.write(notebook, path)
    return path


def converted(notebook: Path, dark: bool) -> Path:
    "nbconvert's page of the notebook."
    from nbconvert import HTMLExporter

    page = notebook.with_name(f"page-{'dark' if dark else 'light'}.html")
    exporter = HTMLExporter(theme="dark" if dark else "light")
    page.write_text(exporter.from_filename(str(notebook))[0], encoding="utf-8")
    return page


def small(path: Path, colors: int = 96) -> Path:
    "The same PNG in so many colours: text and lines need no more, in a third of the size."
    from PIL import Image

    from live_picture import in_few_colors

    with Image.open(path) as picture:
        less = in_few_colors(picture, colors)
    less.save(path, optimize=True)
    return path


def problems(page: Any, element: Any) -> dict[str, Any]:
    "What cannot be read of an element, by the eyes of the browser tests; nothing where all is well."
    from lab import LOOK

    seen = page.evaluate(LOOK, element.element_handle())
    return {name: seen[name] for name in ("small", "faint", "overlaps", "clipped", "out") if seen[name]}


def photograph(page: Any, element: Any, target: Path, judged: Any = None) -> bool:
    "A picture of an element in `target`; whether all of `judged`, a part of it (None: of it), can be read."
    element.screenshot(path=target)
    small(target)
    found = problems(page, judged or element)
    print(f"{target.name}: {target.stat().st_size / 1024:.0f} KiB{f', {found}' if found else ''}", flush=True)
    return not found


def pages(browser: Any, notebook: Path, out: Path, width: int, names: list[str]) -> bool:
    "Photograph nbconvert's pages."
    good = True
    for dark in (False, True):
        theme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=theme)
        page = context.new_page()
        page.goto(converted(notebook, dark).as_uri(), wait_until="domcontentloaded")
        page.wait_for_timeout(500)
        for number, name in enumerate(CELLS, 1):
            cell = page.locator(".jp-Cell").nth(number)
            if name in names:
                good &= photograph(page, cell.locator(".jp-OutputArea").first, out / f"gallery-{name}-{theme}.png")
            if name in PRINTED[1] and PRINTED[0] in names:  # with the code, whose colours are nbconvert's
                output = cell.locator(".jp-OutputArea").first
                good &= photograph(page, cell, out / f"gallery-{PRINTED[0]}-{theme}.png", output)
        context.close()
    return good


def reopened(browser: Any, notebook: Path, out: Path, width: int) -> bool:
    "Photograph the saved notebook in a JupyterLab that does not trust it, and where nothing runs."
    from lab import Page, Server

    good = True
    with Server(notebook.parent) as server:
        for dark in (False, True):
            with Page(browser, server, dark) as page:
                page.page.set_viewport_size({"width": width, "height": 1600})
                page.open(notebook.name)
                page.page.wait_for_timeout(1500)
                theme = "dark" if dark else "light"
                good &= photograph(page.page, page.output(1), out / f"gallery-{REOPENED}-{theme}.png")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*CELLS, PRINTED[0], REOPENED]
    parser.add_argument(
        "names", nargs="*", default=names, metavar="NAME", help=f"of {', '.join(names)}; all by default"
    )
    parser.add_argument("--out", type=Path, default=root / "docs" / "images", help="the folder for them")
    parser.add_argument("--width", type=int, default=1000, help="the browser's width in pixels")
    parser.add_argument("--notebook", type=Path, help="one that an earlier call has left, in place of training anew")
    parser.add_argument("--keep", type=Path, help="a folder in which the notebook and its runs are left")
    words = parser.parse_args()
    from playwright.sync_api import sync_playwright

    from lab import chromium

    words.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        folder = words.keep or Path(temporary) / "notebooks"
        folder.mkdir(parents=True, exist_ok=True)
        notebook = words.notebook or executed(folder)
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        good = pages(browser, notebook, words.out, words.width, words.names)
        if REOPENED in words.names:
            good &= reopened(browser, notebook, words.out, words.width)
        browser.close()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
