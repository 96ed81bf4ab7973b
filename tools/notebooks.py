"""Execute notebooks in place and keep their real outputs: `python tools/notebooks.py run [NOTEBOOK ...]`.

`python tools/notebooks.py install-cell` writes the cell that installs into all notebooks that have one, folded.

`nbdev_test` runs the same cells and throws the outputs away; this is for the person who has edited a notebook and
wants its pictures and values to be the ones that today's code gives. Cells marked with a flag of `tst_flags` other than
`slow` need what is not everywhere: without `--flags` they are not run, and keep the outputs they have.

The notebooks of kaggle/ run as sessions in a temporary folder, with their data sets, and before the one that
predicts the one that trains; a cell that begins with MACHINE keeps no output.
"""

import argparse
import atexit
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import nbformat
from nbclient import NotebookClient

root = Path(__file__).resolve().parent.parent


def all_notebooks() -> list[Path]:
    "Every notebook that people read, tutorials last: they use what the numbered ones export."
    folders = ("nbs/[0-9]*", "nbs", "nbs/tutorials", "kaggle/*")
    return [path for folder in folders for path in sorted(root.glob(f"{folder}/*.ipynb"))]


MACHINE = "# differs from machine to machine"


@contextlib.contextmanager
def session(path: Path):
    "The folder in which a notebook runs, and what is set in its environment."
    if not path.is_relative_to(root / "kaggle"):
        yield path.parent, {}
        return
    import coffee_table
    import example_sets

    with tempfile.TemporaryDirectory() as folder:
        inputs, working = Path(folder) / "input", Path(folder) / "working"
        coffee_table.write(inputs / "datasets" / "ada" / "coffee-table")
        for name in ("model", "texts") if path.parent.name == "lm" else ("images", "cells"):
            example_sets.write(name, inputs / "datasets" / "ada" / example_sets.slug(name))
        if path.parent.name.startswith("ariel"):
            from spectrakit.tasks.ariel.simulate import Instrument, simulate

            simulate(inputs / "competitions" / "ariel-data-challenge-2025", (9, 3), Instrument(pairs=(40, 480)))
        working.mkdir()
        told = {
            "SPECTRAKIT_INPUT": str(inputs),
            "SPECTRAKIT_OVERRIDES": "env=local trainer.accelerator=cpu",
        }
        if path.parent.name in ("infer", "ariel-infer"):
            before = path.parent.name.replace("infer", "train")
            played(nbformat.read(root / "kaggle" / before / f"{before}.ipynb", as_version=4), working, told)
            shutil.copytree(working, inputs / "notebooks" / "ada" / f"spectrakit-{before}")
            for entry in working.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        yield working, told


def executed(make: Callable[[], NotebookClient], **options) -> nbformat.NotebookNode:
    "Execute with the client that `make` makes; anew where somebody else took one of the kernel's ports before it did."
    for _ in range(2):
        client = make()
        try:
            return client.execute(**options)
        except RuntimeError as error:
            if "died before replying" not in str(error):
                raise
            atexit.unregister(client._cleanup_kernel)  # it has done that
    return make().execute(**options)


def played(notebook: nbformat.NotebookNode, folder: Path, told: dict[str, str]) -> nbformat.NotebookNode:
    "Execute a notebook in `folder`; it holds its outputs afterwards."
    options = {
        "timeout": 900,
        "startup_timeout": 300,
        "kernel_name": "python3",
        "coalesce_streams": True,
        "store_widget_state": False,
        "resources": {"metadata": {"path": str(folder)}},
    }
    return executed(lambda: NotebookClient(notebook, **options), env={**os.environ, **told})


def test_flags() -> set[str]:
    "The words of `tst_flags` in settings.ini."
    settings = ConfigParser(interpolation=None)
    settings.read(root / "settings.ini", encoding="utf-8")
    return set(settings["DEFAULT"]["tst_flags"].split())


def runs(source: str, flags: set[str]) -> bool:
    "Whether a code cell is run: not one marked `eval: false`, nor one with a flag that is not among `flags`."
    directives = re.findall(r"^#\|\s*(.+?)\s*$", source, re.M)
    if any(re.fullmatch(r"eval:\s*false", directive, re.I) for directive in directives):
        return False
    return not (test_flags() & set(directives)) - flags


def execute(path: Path, flags: set[str]) -> None:
    "Run `path` and write it back with its outputs, in the form that `nbdev_clean` leaves alone."
    notebook = nbformat.read(path, as_version=4)
    chosen = [cell for cell in notebook.cells if cell.cell_type != "code" or runs(cell.source, flags)]
    for cell in chosen:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    kernel = {"name": "python3", "display_name": "python3", "language": "python"}
    runnable = nbformat.v4.new_notebook(cells=chosen, metadata={"kernelspec": kernel})
    with session(path) as (folder, told):
        played(runnable, folder, told)
    for cell in chosen:
        if cell.cell_type == "code" and cell.source.startswith(MACHINE):
            cell.outputs = []
    notebook.metadata = runnable.metadata
    nbformat.write(notebook, path)
    clean(path)


def clean(path: Path) -> None:
    "`nbdev_clean` on one notebook."
    code = "import sys; from nbdev.clean import nbdev_clean; nbdev_clean(fname=sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=root)


FOLDED = {"_kg_hide-input": True, "cellView": "form", "jupyter": {"source_hidden": True}}


def install_cell() -> str:
    "The cell that installs, as notebooks have it: with the release that settings.ini gives an address, if any."
    from spectrakit.kaggle.offline.install_cell import install_cell

    settings = ConfigParser(interpolation=None)
    settings.read(root / "settings.ini", encoding="utf-8")
    return install_cell(settings["DEFAULT"]["git_url"], settings["DEFAULT"]["version"])


def write_install_cell(path: Path) -> bool:
    "Write the cell that installs into the notebook `path`; whether it has one."
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.source.startswith(("# Installs", "# @title Install"))]
    for cell in cells:
        cell.source, cell.metadata = install_cell(), nbformat.from_dict(FOLDED)
    if cells:
        nbformat.write(notebook, path)
        clean(path)
    return bool(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "install-cell"])
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of nbs/ and kaggle/ where none is named")
    parser.add_argument("--flags", default="slow", help="run cells with these flags as well; %(default)r unless given")
    arguments = parser.parse_args()
    if arguments.command == "install-cell":
        for path in arguments.notebooks or [*root.glob("nbs/tutorials/*.ipynb"), *root.glob("kaggle/*/*.ipynb")]:
            print(f"{path.resolve().relative_to(root)}: {'written' if write_install_cell(path) else 'has none'}")
        return
    for path in arguments.notebooks or all_notebooks():
        print(f"executing {path.resolve().relative_to(root)}", flush=True)
        execute(path.resolve(), set(arguments.flags.split()))


if __name__ == "__main__":
    main()
