"Files between the notebook and the browser."

import os

from google.colab._journal import note


def download(filename: str) -> None:
    if not os.path.exists(filename):
        raise FileNotFoundError(f"Cannot find file: {filename}")
    note(f"files: downloaded {os.path.basename(filename)}")
