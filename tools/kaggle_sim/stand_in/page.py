"""Colab's page without a person: runs the notebook /opt/page/notebook.ipynb cell by cell, and saves it as it goes.

`Save` comes after each cell; an error ends it with status 1, the session's end with nothing.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOK = Path("/opt/page/notebook.ipynb")


class Page(NotebookClient):
    "Says what the cells say, as they say it."

    def process_message(self, message, cell, cell_index):
        if message["msg_type"] == "stream":
            where = sys.stderr if message["content"]["name"] == "stderr" else sys.stdout
            print(message["content"]["text"], end="", file=where, flush=True)
        return super().process_message(message, cell, cell_index)


def main() -> int:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    page = Page(notebook, kernel_name="colab", timeout=None, resources={"metadata": {"path": "/content"}})
    with page.setup_kernel():
        for number, cell in enumerate(notebook.cells):
            try:
                page.execute_cell(cell, number)
            except CellExecutionError as error:
                print(error, file=sys.stderr)
                return 1
            finally:
                nbformat.write(notebook, NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main())
