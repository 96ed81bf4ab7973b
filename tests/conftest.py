"""Fixtures that several test modules share."""
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

# What says on which platform, in which job or under which launcher a process runs: a test states its own.
PREFIXES = ("KAGGLE_", "COLAB_", "SPECTRAKIT_", "ACCELERATE_", "TORCHELASTIC_", "MASTER_", "SLURM_", "HYDRA_")
NAMES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "IN_TEST", "PYTHONPATH", "MPLBACKEND", "COLUMNS"}


@pytest.fixture
def clean_env() -> dict[str, str]:
    "This process's environment without what would tell spectrakit about the machine it is on."
    return {key: value for key, value in os.environ.items() if not key.startswith(PREFIXES) and key not in NAMES}


@pytest.fixture
def run_cli(tmp_path, clean_env):
    """A function that runs `python -m spectrakit WORD…` in the test's own folder and returns the CompletedProcess.

    `env` adds variables, `cwd` chooses another folder, `timeout_s` ends a command that hangs.
    """
    def run(*words, env=None, cwd=tmp_path, timeout_s=180) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "spectrakit", *map(str, words)], cwd=cwd, timeout=timeout_s,
                              env={**clean_env, **(env or {})}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)

    return run


def pytest_terminal_summary(terminalreporter):
    "Beside the skipped tests: how many cells of the notebooks need what `make test` does not count on."
    cells = [cell for path in (Path(__file__).resolve().parent.parent / "nbs").rglob("*.ipynb")
             for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    marked = re.compile(r"^#\|\s*(cuda|kaggle)\s*$", re.M)
    needs = Counter(need for cell in cells for need in marked.findall("".join(cell["source"])))
    for need, count in sorted(needs.items()):
        terminalreporter.line(f"NOT RUN [{count}] notebook cells marked {need}: `nbdev_test --flags {need}` runs them")
