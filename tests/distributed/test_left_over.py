"""What a launcher of another day left in the environment: ignored in a notebook, waited for with a word in a shell."""

import contextlib
import json
import os
import random
import signal
import socket
import sys
from types import SimpleNamespace

import pytest

from helpers import only_run, task
from spectrakit.api.actions import fit
from spectrakit.api.run import open_run
from spectrakit.config.compose import compose
from tasks import Line

WORDS = ("trainer.accelerator=cpu", "data.batch_size=8", "trainer.max_epochs=1")


def leftovers() -> dict[str, str]:
    "With a free port that the system gives nobody in the meantime."
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            break
    return {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inline", "auto"])
def test_a_kernel_ignores_them_and_says_so(here, monkeypatch, mode):
    for name, value in leftovers().items():
        monkeypatch.setenv(name, value)
    kernel = SimpleNamespace(session=SimpleNamespace(pid=os.getpid()))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=kernel)))
    run = fit(Line(), compose(*WORDS, f"launch.mode={mode}", "run.console=none"), show=False)
    assert run.status == "completed" and os.environ["RANK"] == "0"
    ignored = json.loads((run.path / "environment.json").read_text())["ignored"]
    assert [text for text in ignored if "RANK=0, LOCAL_RANK=0, WORLD_SIZE=2" in text and "ignored" in text]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_shell_waits_with_a_word_and_hears_signals(start_cli, here, number):
    process = start_cli("train", task("Line"), *WORDS, cwd=here, env=leftovers(), fresh=True)
    line = process.stderr.readline()
    assert line == "waiting for 1 other process (RANK=0, WORLD_SIZE=2 in the environment)\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130 and open_run(only_run(here)).status == "interrupted"


@pytest.mark.slow
def test_the_time_out_holds(start_cli, here):
    process = start_cli("train", task("Line"), *WORDS, "distributed.timeout_s=1", cwd=here, env=leftovers(), fresh=True)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "1 other process did not come within 1 s" in err and "unset RANK" in err
    assert not list((here / "runs").iterdir())
