"Files between the notebook and the browser."

import os

from google.colab._journal import note


def upload() -> dict[str, bytes]:
    "What a person chooses in the dialog: the files of /opt/chosen, which land in the current folder, too."
    here = "/opt/chosen"
    names = sorted(os.listdir(here)) if os.path.isdir(here) else []
    chosen = {}
    for name in names:
        with open(os.path.join(here, name), "rb") as file:
            chosen[name] = file.read()
        with open(name, "wb") as copy:
            copy.write(chosen[name])
    note(f"files: {len(names)} chosen in a dialog")
    return chosen


def download(filename: str) -> None:
    if not os.path.exists(filename):
        raise FileNotFoundError(f"Cannot find file: {filename}")
    note(f"files: downloaded {os.path.basename(filename)}")
