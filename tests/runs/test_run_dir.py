"A run's lock, across processes."

import os
import signal

import pytest

from spectrakit.runs.run_dir import is_locked, locked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked on this system")


def test_a_lock_is_given_back_though_a_forked_process_has_its_file_open_still(tmp_path):
    "Data workers are forked while a run holds its lock; one that outlives the run must not keep the run busy."
    with locked(tmp_path):
        if (child := os.fork()) == 0:
            signal.pause()
            os._exit(0)
        assert is_locked(tmp_path)
    try:
        assert not is_locked(tmp_path)
        with locked(tmp_path):
            assert is_locked(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
