"""Execute notebooks in place and keep their real outputs: `python tools/notebooks.py run [NOTEBOOK ...]`.

`nbdev_test` runs the same cells and throws the outputs away; this is for the person who has edited a notebook and
wants its pictures and values to be the ones that today's code gives. Cells marked with a flag of `tst_flags` other than
`slow` need what is not everywhere: without `--flags` they are not run, and keep the outputs they have.
"""
import argparse, re, subprocess, sys
from configparser import ConfigParser
from pathlib import Path

import nbformat
from nbclient import NotebookClient

root = Path(__file__).resolve().parent.parent


def all_notebooks() -> list[Path]:
    "Every notebook that people read, tutorials last: they use what the numbered ones export."
    return sorted((root / "nbs").glob("*.ipynb")) + sorted((root / "nbs" / "tutorials").glob("*.ipynb"))


def test_flags() -> set[str]:
    "The words of `tst_flags` in settings.ini."
    settings = ConfigParser(interpolation=None)
    settings.read(root / "settings.ini", encoding="utf-8")
    return set(settings["DEFAULT"]["tst_flags"].split())


def runs(source: str, flags: set[str]) -> bool:
    "Whether a code cell is run: not one marked `eval: false`, nor one with a flag that is not among `flags`."
    directives = re.findall(r"^#\|\s*(.+?)\s*$", source, re.M)
    if any(re.fullmatch(r"eval:\s*false", directive, re.I) for directive in directives): return False
    return not (test_flags() & set(directives)) - flags


def execute(path: Path, flags: set[str]) -> None:
    "Run `path` from its own folder and write it back with its outputs, in the form that `nbdev_clean` leaves alone."
    notebook = nbformat.read(path, as_version=4)
    chosen = [cell for cell in notebook.cells if cell.cell_type != "code" or runs(cell.source, flags)]
    for cell in chosen:
        if cell.cell_type == "code": cell.outputs, cell.execution_count = [], None
    kernel = {"name": "python3", "display_name": "python3", "language": "python"}
    runnable = nbformat.v4.new_notebook(cells=chosen, metadata={"kernelspec": kernel})
    NotebookClient(runnable, timeout=900, kernel_name="python3", coalesce_streams=True, store_widget_state=False,
                   resources={"metadata": {"path": str(path.parent)}}).execute()
    notebook.metadata = runnable.metadata
    nbformat.write(notebook, path)
    clean = "import sys; from nbdev.clean import nbdev_clean; nbdev_clean(fname=sys.argv[1])"
    subprocess.run([sys.executable, "-c", clean, str(path)], check=True, cwd=root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of nbs/ where none is named")
    parser.add_argument("--flags", default="slow", help="run cells with these flags as well; %(default)r unless given")
    arguments = parser.parse_args()
    for path in arguments.notebooks or all_notebooks():
        print(f"executing {path.resolve().relative_to(root)}", flush=True)
        execute(path.resolve(), set(arguments.flags.split()))


if __name__ == "__main__": main()
