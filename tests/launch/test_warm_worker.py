"A process that waits for the next run: when it is used, what it must not change, and how it ends."

import contextlib
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from helpers import SETTINGS, clean_environ, task, tree_hashes, wait_for
from spectrakit.api.actions import fit
from spectrakit.checkpoint.store import find_checkpoint
from spectrakit.config.compose import compose
from spectrakit.launch import warm_worker
from spectrakit.launch.warm_worker import drop_spare, folders_of_modules, hidden_by, what_changed, why_no_spare

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends it with its parent"),
    pytest.mark.fresh,  # a cold start is a start of its own
]
WARM = "launch.warm_worker=true"


@pytest.fixture
def spare(here, monkeypatch):
    "A function that returns the process that waits, for which a busy machine has patience; none is left by a test."
    monkeypatch.setattr(warm_worker, "ANSWER_S", 120.0)
    monkeypatch.setattr(warm_worker, "IMPORTS_S", 240.0)
    drop_spare()
    yield lambda: warm_worker._SPARES[0]
    drop_spare()


def trained(*words: str):
    return fit(task("Line"), compose(*SETTINGS, "run.console=none", "trainer.accelerator=cpu", *words))


def how(run) -> str | None:
    "What environment.json says of a process that was waiting."
    return json.loads((run.path / "environment.json").read_text())["launch"]["reasons"].get("worker")


def lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def weights(run) -> dict[str, str]:
    folder = find_checkpoint(run.path / "checkpoints")[0]
    return {name: sha for name, sha in tree_hashes(folder).items() if name.endswith(".safetensors")}


@pytest.mark.long
@pytest.mark.slow
def test_the_second_run_uses_it_and_its_results_are_those_of_a_cold_start(spare, monkeypatch):
    cold = trained("launch.warm_worker=false")
    assert how(cold) is None and not warm_worker._SPARES
    first = trained(WARM)
    waiting = spare().process
    again = trained(WARM)
    assert how(first).startswith("warm") and how(again).startswith("warm") and spare().process is waiting
    assert waiting.poll() is None and not psutil.Process(waiting.pid).children()
    assert weights(cold) == weights(first) == weights(again)
    losses = [[e["loss"] for e in run.events if e["type"] == "step"] for run in (cold, again)]
    assert losses[0] == losses[1]
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    changed = trained("launch.warm_worker=auto")
    assert how(changed) == "cold: the waiting process was not used: MKL_NUM_THREADS changed"
    assert weights(changed) == weights(cold)
    assert how(trained(WARM)).startswith("warm")
    last = spare().process
    os.kill(last.pid, signal.SIGKILL)
    wait_for(lambda: last.poll() is not None, "it to end")
    assert how(trained(WARM)).startswith("warm") and spare().process is not last


@pytest.mark.long
@pytest.mark.slow
def test_two_ranks_are_forked_from_it(spare):
    words = (WARM, "distributed.world_size=2", "launch.mode=notebook_launcher", "distributed.backend=gloo")
    first, second = trained(*words, "launch.warm_worker=false"), trained(*words)
    assert how(first) is None and how(second).startswith("warm")
    assert weights(first) == weights(second)


def test_one_that_is_stopped_is_not_waited_for(spare, tmp_path, monkeypatch):
    warm_worker.keep_spare(dict(os.environ))
    process = spare().process
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(warm_worker, "ANSWER_S", 0.1)
    monkeypatch.setattr(warm_worker, "IMPORTS_S", 0.1)
    taken, why = warm_worker.take_spare(dict(os.environ), tmp_path, tmp_path / "log")
    assert taken is None and why == "it did not answer in time, or ended"
    assert process.poll() == -signal.SIGKILL and not warm_worker._SPARES


@pytest.mark.slow
def test_a_job_ends_with_the_process_that_forked_it_and_is_started_again(spare, tmp_path, monkeypatch):
    monkeypatch.setenv("TINY_HOLD", f"25:{tmp_path}")  # saved at step 12
    killed = []

    def kill() -> None:
        wait_for((tmp_path / "held").exists, "it to train")
        server = psutil.Process(spare().process.pid)
        killed.extend([server, *server.children()])
        server.kill()
        wait_for(lambda: not any(map(lives, killed)), "both to end")
        (tmp_path / "go").touch()

    with ThreadPoolExecutor(1) as other:
        future = other.submit(kill)
        run = trained(WARM)
        future.result()
    assert len(killed) == 2 and run.status == "completed"
    ((note, *_),) = [event["notes"] for event in run.events if event["type"] == "restart"]
    assert "killed by SIGKILL" in note


KERNEL = """
import os, time
from spectrakit.launch import warm_worker
warm_worker.keep_spare(dict(os.environ))
print(warm_worker._SPARES[0].process.pid, flush=True)
time.sleep(600)
"""


def test_it_is_killed_with_its_parent():
    with subprocess.Popen(
        [sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True, env=clean_environ()
    ) as kernel:
        pid = int(kernel.stdout.readline())
        assert psutil.Process(pid).ppid() == kernel.pid
        kernel.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it to end")


def test_it_waits_nowhere_but_in_an_interactive_notebook(monkeypatch):
    assert (
        why_no_spare("auto", "interactive") == why_no_spare("auto", "script") == "this is not an interactive notebook"
    )
    assert why_no_spare(True, "script") is None and why_no_spare(False, "interactive") == "launch.warm_worker=false"
    monkeypatch.setattr(warm_worker, "in_kernel", lambda: True)
    assert why_no_spare("auto", "batch") == "this is not an interactive notebook"
    assert why_no_spare("auto", "interactive") is None
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2**30}))
    assert why_no_spare("auto", "interactive") == "only 1.0 GiB of memory are free"


def test_a_package_that_is_installed_ends_it(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    waiting = warm_worker.Spare(None, {}, warm_worker.surroundings(), 0.0, os.getpid(), 0)
    assert what_changed(waiting, {}) is None
    os.utime(folder, ns=(1, 1))
    assert what_changed(waiting, {}) == "the installed packages changed"


def test_a_module_that_hides_a_loaded_one_is_seen(tmp_path):
    loaded = {"psutil": folders_of_modules()["psutil"]}  # other tests have loaded modules from folders of their own
    path = [str(tmp_path), loaded["psutil"]]
    (tmp_path / "psutil").mkdir()  # a folder of data
    assert hidden_by(path, loaded) is None
    (tmp_path / "psutil" / "__init__.py").touch()
    assert hidden_by(path, loaded) == str(tmp_path / "psutil")
