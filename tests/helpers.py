"""What several test modules share: a clean environment, the command line as a process, waiting, looking at files."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import fork_server

TESTS = Path(__file__).resolve().parent
TASKS = TESTS / "tasks.py"

# The run that tests look at, repeat, interrupt and resume: 20 optimizer steps in 4 epochs, two micro batches each.
SETTINGS = (
    "trainer.max_epochs=4",
    "data.batch_size=4",
    "accumulate_grad_batches=2",
    "training.ema_decay=0.9",
    "checkpoint.every_n_steps=3",
    "checkpoint.every_n_epochs=null",
    "checkpoint.keep_last=3",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "optimizer.lr=0.01",
)

# A run in one process, whose steps are single micro batches.
ONE_PROCESS = (
    "trainer.accelerator=cpu",
    "data.batch_size=4",
    "accumulate_grad_batches=1",
    "launch.mode=inline",
)

# What says on which platform, in which job or under which launcher a process runs: a test states its own.
PREFIXES = ("KAGGLE_", "COLAB_", "SPECTRAKIT_", "ACCELERATE_", "TORCHELASTIC_", "MASTER_", "SLURM_", "HYDRA_", "TINY_")
NAMES = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "IN_TEST",
    "PYTHONPATH",
    "MPLBACKEND",
    "COLUMNS",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS",
}


class Touch:
    "Unpickled without care, it makes a file."

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def flip_bit(file: Path) -> None:
    "Change one bit in the middle of a file."
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def foreign(name: str) -> bool:
    "Whether an environment variable would tell spectrakit about the machine it is on."
    return name.startswith(PREFIXES) or name in NAMES


def clean_environ() -> dict[str, str]:
    "This process's environment without what is `foreign`."
    return {key: value for key, value in os.environ.items() if not foreign(key)}


def task(name: str) -> str:
    "The word that names a task of tasks.py on the command line."
    return f"{TASKS}:{name}"


def run_cli(
    cwd: Path,
    *words: Any,
    env: dict | None = None,
    timeout_s: float = 180,
    command: tuple = ("-m", "spectrakit"),
    fresh: bool = False,
) -> subprocess.CompletedProcess:
    """Run `python -m spectrakit WORD…` in `cwd`; `timeout_s` ends a command that hangs.

    `fresh`: in an interpreter of its own, not in a fork of one that has imported everything (fork_server.py).
    """
    arguments, environ = [str(word) for word in words], {**clean_environ(), **(env or {})}
    if fresh or command != ("-m", "spectrakit") or not fork_server.serves(environ):
        return subprocess.run(
            [sys.executable, *command, *arguments],
            cwd=cwd,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            env=environ,
            stdin=subprocess.DEVNULL,
        )
    return _ended(fork_server.start(arguments, cwd, environ), timeout_s)


def run_script(cwd: Path, script: Path, *words: Any, env: dict, timeout_s: float = 180) -> subprocess.CompletedProcess:
    "Run `python SCRIPT WORD…` in `cwd` with exactly the environment `env`, forked where that is as good."
    arguments = [str(script), *map(str, words)]
    if fork_server.serves(env):
        return _ended(fork_server.client().start("script", arguments, cwd, env), timeout_s)
    options: dict = {"capture_output": True, "text": True, "timeout": timeout_s, "stdin": subprocess.DEVNULL}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=env, **options)


def _ended(process: fork_server.Served, timeout_s: float) -> subprocess.CompletedProcess:
    "What became of it; after `timeout_s` it is killed."
    with process:
        try:
            out, err = process.communicate(timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_cli(cwd: Path, *words: Any, env: dict | None = None, fresh: bool = False) -> Any:
    "The same without waiting, in a process group of its own, as a shell starts it. Returns what is used like a Popen."
    arguments, environ = [str(word) for word in words], {**clean_environ(), **(env or {})}
    if not fresh and fork_server.serves(environ):
        return fork_server.start(arguments, cwd, environ, session=True)
    return subprocess.Popen(
        [sys.executable, "-m", "spectrakit", *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environ,
    )


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 240) -> Any:
    "The first true value of `condition()`; an AssertionError that names `what` where it does not come."
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout_s} s in vain for {what}")


def is_relay(process: psutil.Process) -> bool:
    "Whether it only writes the logs of a run: it ends by itself when the training processes have."
    try:
        return "launch.log_relay import serve" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def only_run(folder: Path) -> Path:
    "The one run below `folder`/runs."
    found = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    assert len(found) == 1, found
    return found[0]


def tree_hashes(folder: Path) -> dict[str, str]:
    "Every file below `folder` with its content's hash."
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# after sys.executable: two ranks on this machine, which meet on a free port
TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
)


def why_failed(run: Any, match: str = "") -> str:
    "The reason for which a run has failed, in which the pattern `match` is found."
    why = str(getattr(run, "reason", None) or run.error)
    assert run.status == "failed" and re.search(match, why), (run.status, why)
    return why


def refusal(*words: str) -> str:
    "The sentence with which `compose` refuses these words."
    from spectrakit.config.compose import compose
    from spectrakit.system.errors import RequestError

    with pytest.raises(RequestError) as caught:
        compose(*words)
    said = str(caught.value)
    assert "\n" not in said, said
    return said


def mount(*words) -> None:
    "Mount something, or skip the test where this user may not."
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


def mounted(folder: Path, *words):
    folder.mkdir()
    mount(*words, folder)
    yield folder
    subprocess.run(["umount", folder], check=True)
