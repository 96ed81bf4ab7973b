"A run's lock, across processes."

import os
import signal

import pytest

from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.runs.run_dir import is_locked, locked
from tasks import Line

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


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="files have modes on POSIX systems")
@pytest.mark.parametrize("mode", ["inline", "auto"])
def test_a_run_and_its_logs_are_for_their_owner_alone(here, mode):
    before = os.umask(0)
    try:
        run = fit(Line(), compose("trainer.accelerator=cpu", f"launch.mode={mode}", "trainer.max_epochs=1"), show=False)
    finally:
        os.umask(before)
    private = [
        run.path,
        run.path / "events.jsonl",
        run.path / "lock",
        *run.path.glob("logs"),
        *run.path.glob("logs/*.log"),
    ]
    assert len(private) == (3 if mode == "inline" else 5) and run.status == "completed"
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in private if path.stat().st_mode & 0o077} == {}
