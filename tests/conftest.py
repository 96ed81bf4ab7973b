"""Fixtures that several test modules share."""
import os
import subprocess
import sys

import pytest

# What says on which platform, in which job or under which launcher a process runs: a test states its own.
STATED_BY_THE_MACHINE = ("KAGGLE_", "COLAB_", "SPECTRAKIT_", "ACCELERATE_", "TORCHELASTIC_", "MASTER_", "SLURM_", "HYDRA_")
ALSO = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "IN_TEST", "PYTHONPATH", "MPLBACKEND", "COLUMNS"}


@pytest.fixture
def clean_env() -> dict[str, str]:
    "This process's environment without what would tell spectrakit about the machine it is on."
    return {key: value for key, value in os.environ.items() if not key.startswith(STATED_BY_THE_MACHINE) and key not in ALSO}


@pytest.fixture
def run_cli(tmp_path, clean_env):
    """A function that runs `python -m spectrakit WORD…` in the test's own folder and returns the CompletedProcess.

    `env` adds variables, `cwd` chooses another folder, `timeout_s` ends a command that hangs.
    """
    def run(*words, env=None, cwd=tmp_path, timeout_s=180) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "spectrakit", *map(str, words)], cwd=cwd, timeout=timeout_s,
                              env={**clean_env, **(env or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    return run
