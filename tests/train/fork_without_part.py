"""A process that forks one with `without_part.py` for each line of its standard input: a JSON list of its arguments.

The fork's output is in `said.txt` in the folder that is the first argument, its exit status a line of the standard
output. What it imports from elsewhere is here already.
"""

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import accelerate  # noqa: F401  # so that no fork has to
import hydra  # noqa: F401  # the same
import matplotlib.pyplot  # noqa: F401  # the same
import pytest  # noqa: F401  # the same
import torch._dynamo  # the same
import torch.distributed.tensor  # noqa: F401  # the same


def run(arguments: list[str]) -> int:
    "In the fork: run `without_part.py`; return its exit status."
    said = os.open(Path(arguments[0]) / "said.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1), os.dup2(said, 2)
    sys.argv = [str(Path(__file__).with_name("without_part.py")), *arguments]
    sys.path.insert(0, arguments[0])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


assert "spectrakit" not in sys.modules
for line in sys.stdin:
    if (child := os.fork()) == 0:
        status = run(json.loads(line))
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
