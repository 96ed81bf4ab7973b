"""A person's script: `python kernel.py REQUEST`, a JSON file with what to do. How it went goes to the file that it
names as `word`.

All moments are of the monotonic clock, which the processes of a machine share.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from spectrakit.api import run as running
from spectrakit.api.actions import fit, resume
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError


def main(request: dict) -> None:
    if request["hears"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as a program that wants to tidy up
    running.save_figure = lambda figure, path: path.write_bytes(
        b""
    )  # a second of each run, and not what is looked at here
    word = {"began": time.monotonic()}
    try:
        if request["resume"]:
            run = resume(request["resume"], show=False)
        else:
            run = fit(request["task"], compose(*request["words"]), predict=request["predict"], show=False)
        word |= {"status": run.status, "error": run.error, "path": str(run.path.resolve())}
    except RequestError as error:
        word["refused"] = str(error)
    word["ended"] = time.monotonic()
    aside = Path(request["word"] + ".part")
    aside.write_text(json.dumps(word))
    os.replace(aside, request["word"])


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
