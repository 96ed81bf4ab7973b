"""Colab's page without a person: runs the notebook /opt/page/notebook.ipynb cell by cell, and saves it as it goes.

`Save` comes after each cell; an error ends it with status 1, the session's end with nothing. Where SIM_FULL_AFTER is a
pattern, the kernel is killed as soon as a file below /content matches it, as Colab does where memory is full; then the
page starts it again, and somebody says *Run all*.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

NOTEBOOK = Path("/opt/page/notebook.ipynb")


class Page(NotebookClient):
    "Says what the cells say, as they say it."

    def process_message(self, message, cell, cell_index):
        if message["msg_type"] == "stream":
            where = sys.stderr if message["content"]["name"] == "stderr" else sys.stdout
            print(message["content"]["text"], end="", file=where, flush=True)
        return super().process_message(message, cell, cell_index)


def kill_after(pattern: str, pid: int) -> None:
    "Kill the process once a file below /content matches the pattern."
    while not any(Path("/content").glob(pattern)):
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


def run_all(notebook: nbformat.NotebookNode, full_after: str = "") -> int:
    "Runtime > Run all, in a fresh kernel; the status of the page."
    options = {"timeout": None, "startup_timeout": 300, "resources": {"metadata": {"path": "/content"}}}
    page = Page(notebook, kernel_name="colab", **options)
    with page.setup_kernel():
        if full_after:
            words = (full_after, page.km.provisioner.pid)
            threading.Thread(target=kill_after, args=words, daemon=True).start()
        for number, cell in enumerate(notebook.cells):
            try:
                page.execute_cell(cell, number)
            except CellExecutionError as error:
                print(error, file=sys.stderr)
                return 1
            finally:
                nbformat.write(notebook, NOTEBOOK)
    return 0


def main() -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    full_after = os.environ.pop("SIM_FULL_AFTER", "")
    try:
        return run_all(notebook, full_after)
    except DeadKernelError:
        print("Your session crashed after using all available RAM.", flush=True)
    return run_all(notebook)


if __name__ == "__main__":
    sys.exit(main())
