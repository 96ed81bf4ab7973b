"The ranks of one machine meet in a private folder, and open no port for others."

import os
import stat
import sys

import psutil
import pytest

from helpers import SETTINGS, is_relay, only_run, task, wait_for
from spectrakit.api.run import open_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sockets of other processes are seen on Linux"),
]
TWO = ("trainer.accelerator=cpu", "trainer.devices=2", "distributed.world_size=2", "distributed.backend=gloo")


def listening(process: psutil.Process) -> set[str]:
    "The addresses at which it waits for connections."
    return {socket.laddr.ip for socket in process.net_connections("inet") if socket.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("launcher", ["notebook_launcher", "torchrun"])
def test_ranks_meet_by_a_file_that_nobody_else_may_open(start_cli, tmp_path, launcher):
    (temporary := tmp_path / "temporary").mkdir()
    environ = {"TINY_HOLD": f"3:{tmp_path}", "TMPDIR": str(temporary)}
    process = start_cli("train", task("Line"), *SETTINGS, *TWO, f"launch.mode={launcher}", env=environ)
    wait_for(lambda: (tmp_path / "held").exists() or process.poll() is not None, "the run to be held")
    assert process.poll() is None, process.communicate()
    (parent,) = (child for child in psutil.Process(process.pid).children() if not is_relay(child))
    ranks = parent.children(recursive=True)
    assert len(ranks) == 2 and not listening(parent)
    assert set().union(*map(listening, ranks)) <= {"127.0.0.1", "::1"}
    (store,) = temporary.glob("spectrakit-job-*/store-*")
    assert not stat.S_IMODE(store.parent.stat().st_mode) & 0o077 and store.parent.stat().st_uid == os.getuid()
    (tmp_path / "go").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0 and open_run(only_run(tmp_path)).status == "completed"
    assert not list(temporary.glob("spectrakit-job-*"))
