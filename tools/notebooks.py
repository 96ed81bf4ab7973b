"""Execute notebooks in place and keep their real outputs: `python tools/notebooks.py run [NOTEBOOK ...]`.

`nbdev_test` runs the same cells and throws the outputs away; this is for the person who has edited a notebook and
wants its pictures and values to be the ones that today's code gives.
"""
import argparse, os, subprocess, sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

root = Path(__file__).resolve().parent.parent


def all_notebooks() -> list[Path]:
    "Every notebook that people read, tutorials last: they use what the numbered ones export."
    return sorted((root / "nbs").glob("*.ipynb")) + sorted((root / "nbs" / "tutorials").glob("*.ipynb"))


def execute(path: Path) -> None:
    "Run `path` from its own folder and write it back with its outputs, in the form that `nbdev_clean` leaves alone."
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code": cell.outputs, cell.execution_count = [], None
    # cells marked `eval: false` are shown, not run; nbdev_test leaves them out as well
    skipped = {i for i, c in enumerate(notebook.cells) if "#| eval: false" in c.source}
    runnable = nbformat.v4.new_notebook(cells=[c for i, c in enumerate(notebook.cells) if i not in skipped],
                                        metadata={"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}})
    NotebookClient(runnable, timeout=900, kernel_name="python3", coalesce_streams=True,
                   resources={"metadata": {"path": str(path.parent)}}).execute()
    notebook.metadata = runnable.metadata
    nbformat.write(notebook, path)
    subprocess.run([sys.executable, "-c", "from nbdev.clean import nbdev_clean; nbdev_clean()", "--fname", str(path)], check=True, cwd=root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("notebooks", nargs="*", type=Path)
    chosen = parser.parse_args().notebooks or all_notebooks()
    os.environ["SPECTRAKIT_NOTEBOOK_RUN"] = "1"
    for path in chosen:
        print(f"executing {path.resolve().relative_to(root)}", flush=True)
        execute(path.resolve())


if __name__ == "__main__": main()
