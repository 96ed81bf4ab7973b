"""Two ranks on the CPU, and everything that can befall them: errors, kills, hangs, starts that fail, interrupts,
orphans.
"""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from helpers import TASKS, TESTS, is_relay, only_run, task, wait_for
from spectrakit.api.actions import fit, resume
from spectrakit.api.run import Run, open_run
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, read_manifest, verify
from spectrakit.config.compose import compose
from spectrakit.distributed.hang_detector import (
    FAILED,
    STOP,
    HangDetector,
    HangLimits,
    Heartbeat,
    RankStates,
    create_page,
    raise_flag,
    remove_stale_pages,
    requested,
    stop_file,
)
from spectrakit.distributed.topology import Processes, plan_processes
from spectrakit.launch import job as jobs
from spectrakit.launch import launcher as launching
from spectrakit.launch import supervisor as supervising
from spectrakit.launch.attempt import Attempt
from spectrakit.launch.exit_diagnosis import AttemptResult, Observed, first_error
from spectrakit.launch.job import Job
from spectrakit.launch.job_kind import PREDICT, TRAIN, kind_named
from spectrakit.launch.launcher import Outcome, choose_launcher, failed_launchers, remember_failed
from spectrakit.launch.request import new_request
from spectrakit.launch.supervisor import Situation, watch_process
from spectrakit.launch.worker import _check_fork
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.runs.run_dir import is_locked
from spectrakit.system.errors import RequestError
from spectrakit.system.hardware import Gpu
from spectrakit.system.platforms.detect import detect
from spectrakit.system.signals import interrupts, kill_tree
from tasks import Line, Troubled

slow = pytest.mark.slow
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux is the home of several processes")

# Twenty optimizer steps in four epochs: two ranks, two micro batches of two each.
EACH = "local/accumulate_grad_batches=debug"  # a step for each batch: steps are counted here
TWO = (
    EACH,
    "trainer.accelerator=cpu",
    "trainer.devices=2",
    "data.batch_size=2",
    "accumulate_grad_batches=2",
    "trainer.max_epochs=4",
    "optimizer.lr=0.01",
    "checkpoint.every_n_steps=2",
    "checkpoint.every_n_epochs=null",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
)
SOON = ("launch.hang_floor_s=3",)


def left(folder: Path) -> list[psutil.Process]:
    "The processes that work in `folder`, where all that a test starts begins, but for this one and for zombies."
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            works = process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
            if works and process.pid != os.getpid():
                found.append(process)
    return found


@pytest.fixture
def nothing_left(here, monkeypatch):
    "After the test: no process, no page of shared memory, no job folder."
    monkeypatch.setattr(tempfile, "tempdir", None)  # a session of its own for what launch remembers
    (here / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(here / "temporary"))
    yield here
    stayed = [process.cmdline() for process in left(here)]
    for process in left(here):
        process.kill()
    assert stayed == []
    assert not list(Path("/dev/shm").glob(f"spectrakit-page-{os.getpid()}-*")) and not list(
        (here / "temporary").glob("spectrakit-job-*")
    )


@pytest.fixture
def cli(start_cli, nothing_left):
    "A function that starts `spectrakit train TASK WORD…` on two ranks in the test's own folder."

    def start(name: str, *words: str, **environ: str) -> subprocess.Popen:
        return start_cli("train", task(name), *TWO, *words, env={"TMPDIR": os.environ["TMPDIR"], **environ})

    return start


def troubled(monkeypatch, trouble: str, *words: str) -> Run:
    "A run of `Troubled` on two ranks."
    monkeypatch.setenv("TINY_TROUBLE", trouble)
    return fit(task("Troubled"), compose(*TWO, *words), show=False)


def losses(run: Run) -> list[tuple[int, float]]:
    "(step, loss) of every log point that counts."
    found = columns(run.events, "step", "step", "loss")
    return list(zip(found["step"], found["loss"], strict=False))


def close(found: list, expected: list) -> bool:
    "Whether two runs saw the same losses, up to the order in which numbers are added."
    return [s for s, _ in found] == [s for s, _ in expected] and [x for _, x in found] == pytest.approx(
        [x for _, x in expected], rel=1e-5
    )


def facts(run: Run) -> dict:
    return json.loads((run.path / "summary.json").read_text())["launch"]


def said(run: Run) -> str:
    return "\n".join(e["text"] for e in run.events if e["type"] == "message")


def log_of(run: Run, name: str) -> str:
    return (run.path / "logs" / name).read_text()


def intact(run: Run) -> bool:
    return bool(found := checkpoints(run.path / "checkpoints")) and all(verify(path) == [] for path in found)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """An undisturbed run, in surroundings where a launcher could stumble: the usual port is taken, and a shell has
    leftovers.

    Losses by step.
    """
    with pytest.MonkeyPatch.context() as patch, socket.socket() as taken:
        patch.chdir(tmp_path_factory.mktemp("calm"))
        with contextlib.suppress(OSError):
            taken.bind(("127.0.0.1", 29500)), taken.listen()  # if it is taken already: so be it
        for name, value in {
            "RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }.items():
            patch.setenv(name, value)
        run = fit(task("Troubled"), compose(*TWO), show=False)
        assert run.status == "completed" and facts(run) == {
            "launcher": "notebook_launcher",
            "world_size": 2,
            "restarts": 0,
            "fallback": None,
        }
        assert len(losses(run)) == 20
        return losses(run)


# a rank fails


@slow
def test_an_error_on_rank_1_is_told_as_its_own(monkeypatch, nothing_left):
    run = troubled(monkeypatch, "1 13 divide")
    assert run.status == "failed" and run.error == "rank 1: ZeroDivisionError: division by zero"
    assert "in divide" in log_of(run, "error-rank-1.txt") and facts(run)["restarts"] == 0 and not is_locked(run.path)
    assert json.loads((run.path / "summary.json").read_text())["reason"] == run.error
    assert intact(run) and find_checkpoint(run.path / "checkpoints")[0].name == "step-00000006"  # all that was done
    done = resume(run, show=False)
    assert done.status == "completed" and done.events[-1]["step"] == 20
    assert (
        "in divide" in log_of(run, "earlier-error-rank-1.txt") and not (run.path / "logs" / "error-rank-1.txt").exists()
    )


@slow
def test_what_one_rank_has_saved_for_all_goes_on_and_says_what_is_no_longer_exact(monkeypatch, nothing_left):
    "Rank 1 has its random numbers with it when it goes, and rank 0 the weights of step 3."
    run = troubled(monkeypatch, "1 7 divide", "trainer.log_every_n_steps=50", "trainer.log_min_seconds=0")
    saved = find_checkpoint(run.path / "checkpoints")[0]
    assert saved.name == "step-00000003" and not (saved / "rank-00001.pt").exists()
    done = resume(run, show=False)
    notes = [note for event in done.events if event["type"] == "restart" for note in event["notes"]]
    assert done.status == "completed"
    assert [note for note in notes if note.startswith("rank 1 has no saved random state in step-00000003")]


@slow
def test_killed_ranks_are_replaced_and_nothing_is_lost(monkeypatch, nothing_left, calm):
    "Rank 1, and then rank 0, which writes the log; os._exit leaves no word either."
    run = troubled(monkeypatch, "1 7 kill;0 9 vanish")
    assert run.status == "completed" and losses(run) == calm and intact(run)
    notes = [e["notes"][0] for e in read_events(run.path / "events.jsonl") if e["type"] == "restart"]
    assert len(notes) == facts(run)["restarts"] == 2
    assert notes[0].startswith("rank 1 was killed by SIGKILL") and "memory" in notes[0]
    assert notes[1] == "rank 0 ended with exit status 0, without an error message; starting again (2 of 2)"
    assert said(run).splitlines() == notes and facts(run)["world_size"] == 2


@slow
def test_where_the_kernel_ran_out_of_memory_the_cause_is_named_and_the_loader_has_fewer_workers(
    monkeypatch, nothing_left, calm
):
    cause = "the kernel ended a process because memory ran out (2.0 GiB, the control group's limit)"
    monkeypatch.setattr(supervising, "killed_for_memory", lambda before: cause)
    run = troubled(monkeypatch, "1 7 kill", "dataloader.num_workers=1")
    assert run.status == "completed" and losses(run) == calm and facts(run)["num_workers"] == 0
    assert said(run) == (
        f"rank 1 was killed by SIGKILL; {cause}: try a smaller data.micro_batch_size or dataloader.num_workers=0; "
        "continuing with dataloader.num_workers=0 instead of 1; starting again (1 of 2)"
    )


@pytest.mark.long
@slow
def test_without_restarts_a_killed_rank_is_a_failed_run(nothing_left, here):
    "In a container, where one can be made, whose process 1 is the command: its children are no orphans."
    container = ["unshare", "--kill-child", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*container, "true"], capture_output=True).returncode:
        container = []
    command = [*container, sys.executable, "-m", "spectrakit", "train", task("Troubled"), *TWO, "launch.max_restarts=0"]
    done = subprocess.run(
        command,
        cwd=here,
        env={**os.environ, "TINY_TROUBLE": "1 13 kill"},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert (
        done.returncode == 1
        and done.stderr.startswith("rank 1 was killed by SIGKILL")
        and "Traceback" not in done.stderr
    )
    run = open_run(only_run(here))
    assert run.status == "failed" and run.error.startswith("rank 1 was killed by SIGKILL") and intact(run)


@slow
def test_what_is_refused_in_the_middle_is_a_failed_run_that_keeps_its_checkpoints(monkeypatch, nothing_left):
    run = troubled(monkeypatch, "1 13 refuse")
    assert run.status == "failed" and run.error == "rank 1: this came late. Fix it." and intact(run)


# a rank hangs


@slow
def test_a_rank_that_hangs_is_replaced_and_nothing_is_lost(monkeypatch, nothing_left, calm):
    "It sleeps for ever, and the other one waits for it in gloo: the stacks name both places."
    run = troubled(monkeypatch, "1 7 sleep", *SOON)
    assert run.status == "completed" and losses(run) == calm and intact(run) and facts(run)["restarts"] == 1
    silent = re.match(
        r"rank 1 has made no progress for (\d+) s \(training, after optimizer step 3\); "
        r"the stacks of all ranks are in .*/logs/stacks-rank-\*\.txt; starting again \(1 of 2\)$",
        said(run),
    )
    assert silent and int(silent[1]) >= 3, said(run)  # longer where steps are slow, or nobody has looked
    assert " in sleep" in log_of(run, "stacks-rank-1.txt") and "in backward" in log_of(run, "stacks-rank-0.txt")


@pytest.mark.long
@slow
def test_ranks_that_hang_in_every_start_become_one_process(monkeypatch, nothing_left, calm):
    "Both are stuck in gloo: rank 1 waits for something else than rank 0."
    run = troubled(monkeypatch, "1 5 lost!", *SOON, "launch.max_restarts=1")
    assert run.status == "completed" and close(losses(run), calm)
    assert " in recv" in log_of(run, "stacks-rank-1.txt") and "in backward" in log_of(run, "stacks-rank-0.txt")
    known = facts(run)
    assert (known["world_size"], known["launcher"], known["restarts"]) == (
        1,
        None,
        2,
    ) and "continuing in one process" in known["fallback"]
    decided = json.loads((run.path / "environment.json").read_text())["decided"]
    assert (decided["world_size"], decided["gradient_accumulation_steps"], decided["effective_batch_size"]) == (1, 4, 8)


@slow
def test_one_process_that_hangs_ends_with_what_there_is(monkeypatch, nothing_left):
    "It is stopped from outside, and woken up for a moment to say where it is."
    run = troubled(monkeypatch, "0 13 stop!", *SOON, "trainer.devices=1", "launch.max_restarts=0")
    assert run.status == "failed" and "rank 0 has made no progress" in run.error and intact(run)
    assert " in stop" in log_of(run, "stacks-rank-0.txt") and (run.path / "summary.json").is_file()


@slow
def test_a_thread_that_never_ends_does_not_keep_a_run(monkeypatch, nothing_left):
    monkeypatch.setattr(supervising, "_LEAVE_S", 1.0)
    run = troubled(monkeypatch, "0 13 linger", "trainer.devices=1", "checkpoint.enabled=false")
    assert run.status == "completed" and facts(run)["restarts"] == 0


# a start fails


@pytest.mark.long  # ranks that hang in every start take the same way
@slow
def test_ranks_that_do_not_meet_get_another_launcher_then_one_process(nothing_left, calm):
    config = compose(*TWO, "launch.start_timeout_s=3")
    run = fit(task("Late"), config, show=False)
    assert run.status == "completed" and close(losses(run), calm)
    first, second = said(run).splitlines()
    assert (
        first
        == "the processes did not find each other within launch.start_timeout_s=3 (notebook_launcher); trying torchrun"
    )
    assert second.startswith("rank 1 was killed by SIGKILL") and second.endswith(
        "training in one process, with the same effective batch"
    )
    assert last_event(run.events, "start")["effective_batch_size"] == 8 and last_event(run.events, "restart") is None
    assert (facts(run)["launcher"], facts(run)["world_size"], facts(run)["fallback"]) == (None, 1, second)
    run = fit(
        task("Late"), config, show=False
    )  # the launcher that failed is remembered; a killed rank says nothing about the other
    assert (
        run.status == "completed"
        and said(run).startswith("rank 1 was killed by SIGKILL")
        and len(said(run).splitlines()) == 1
    )
    assert "notebook_launcher failed in this session" in last_event(run.events, "start")["reasons"]["launcher"]


@pytest.mark.long
@slow
def test_without_a_fallback_a_failed_start_is_a_failed_run(nothing_left, here):
    (here / "late").touch()
    run = fit(task("Late"), compose(*TWO, "distributed.fallback=false", "launch.mode=torchrun"), show=False)
    assert run.status == "failed" and run.error.startswith("rank 1 was killed by SIGKILL")


# refused


@slow
def test_settings_that_all_ranks_refuse_are_refused_here(nothing_left, here):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        RequestError, match="distributed.backend=nccl needs GPUs.*Use distributed.backend=auto"
    ) as caught:
        fit(task("Troubled"), compose(*TWO, "distributed.backend=nccl", "distributed.fallback=false"), show=False)
    assert "\n" not in str(caught.value) and not list((here / "runs").iterdir())
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@slow
def test_an_error_of_the_task_on_one_rank_is_a_failed_run(nothing_left, here):
    run = fit(task("RefusedOnRank1"), compose(*TWO), show=False)
    assert run.status == "failed" and "rank 1: RefusedOnRank1.loss returned dict" in run.error, run.error


# interrupted


@slow
def test_an_interrupt_stops_both_ranks_at_the_same_step(cli, here):
    "It goes to every process, as some editors send it; the ranks leave it to the launcher."
    process = cli("Steady", "accumulate_grad_batches=1", "trainer.max_epochs=400")
    run = Run(wait_for(lambda: next(iter((here / "runs").glob("*/events.jsonl")), None), "a run").parent)
    wait_for(lambda: (last_event(run.events, "step") or {"step": 0})["step"] >= 2, "some steps")
    family = left(here)
    assert len(family) >= 4  # the command, the supervisor, two ranks
    for member in family:
        member.send_signal(signal.SIGINT)
    wait_for(lambda: stop_file(run.path).exists() or process.poll() is not None, "the interrupt to be heard")
    done = last_event(run.events, "step")["step"]
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "") and "interrupted" in out
    end = last_event(run.events, "end")
    assert run.status == end["status"] == "interrupted" and end["step"] <= done + 3  # the one it was in, and two more
    assert [int((here / f"seen-{rank}").read_text()) for rank in (0, 1)] == [end["step"]] * 2
    newest, notes = find_checkpoint(run.path / "checkpoints")
    assert newest.name == f"step-{end['step']:08d}" and notes == [] and read_manifest(newest)["world_size"] == 2
    assert last_event(run.events, "eval")["step"] == end["step"]


@slow
def test_sigterm_is_heard_like_an_interrupt_and_a_second_one_does_not_wait(cli, here):
    "The first one comes while the ranks are held, and the second while they finish."
    process = cli("Troubled", TINY_HOLD=f"13:{here}")
    wait_for((here / "held").exists, "the ranks to be held")
    process.terminate()
    run = open_run(only_run(here))
    wait_for(stop_file(run.path).exists, "the first signal to be heard")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "") and "interrupted" in out
    assert run.status == "interrupted" and "second time" in last_event(run.events, "end")["reason"]
    assert intact(run) and find_checkpoint(run.path / "checkpoints")[0].name == "step-00000006"


@slow
def test_a_terminal_that_is_closed_is_a_stop_that_saves(cli, here):
    "The shell says so, and the system perhaps once more: that is no second signal."
    process = cli("Troubled", TINY_HOLD=f"13:{here}")
    wait_for((here / "held").exists, "the ranks to be held")
    process.send_signal(signal.SIGHUP)
    run = open_run(only_run(here))
    wait_for(stop_file(run.path).exists, "the first signal to be heard")
    process.send_signal(signal.SIGHUP)
    (here / "go").touch()
    process.communicate(timeout=300)
    end = last_event(run.events, "end")
    assert process.returncode == 130 and run.status == "interrupted" and "second time" not in end["reason"]
    assert intact(run) and find_checkpoint(run.path / "checkpoints")[0].name == f"step-{end['step']:08d}"


@slow
@pytest.mark.parametrize("where", ["meeting", "preparing"])
def test_an_interrupt_before_the_first_step_ends_at_once(cli, here, where):
    "The ranks wait for a file that never comes, so nothing but an end from outside ends them."
    process = cli("Waiting", "trainer.max_epochs=4000", TINY_WAIT=where)
    wait_for((here / "waits").exists, "a rank to wait")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "") and "stopping… Ctrl-C again ends now" in out
    run = open_run(only_run(here))
    assert run.status == "interrupted" and not run.metrics and not checkpoints(run.path / "checkpoints")
    assert last_event(run.events, "end")["reason"] == "interrupted before the first step; no checkpoint was due"


# no orphans


@slow
@pytest.mark.parametrize("launcher", [pytest.param("notebook_launcher", marks=pytest.mark.long), "torchrun"])
def test_neither_a_dead_supervisor_nor_a_dead_parent_leaves_a_rank_behind(cli, here, launcher):
    "Both ranks are blocked in gloo, where no signal but SIGKILL reaches them."
    process = cli("Troubled", f"launch.mode={launcher}", TINY_TROUBLE="1 5 lost!")
    wait_for((here / "trouble-1-5").exists, "rank 1 to be lost")
    (supervisor,) = (child for child in psutil.Process(process.pid).children() if not is_relay(child))
    ranks = supervisor.children(recursive=True)
    assert len(ranks) == 2
    (here / "trouble-1-5").unlink()
    supervisor.kill()
    assert psutil.wait_procs(ranks, timeout=60)[1] == []
    wait_for((here / "trouble-1-5").exists, "rank 1 to be lost again, in the next start")
    assert "the process that starts the ranks was killed by SIGKILL" in said(open_run(only_run(here)))
    process.kill()
    process.wait()
    wait_for(lambda: not left(here), "all processes to be gone", 60)
    run = open_run(only_run(here))
    # a process with many threads is a zombie before the last of them, which holds the lock too, has ended
    wait_for(lambda: run.status == "unfinished" and not is_locked(run.path), "the lock to be let go", 30)
    assert intact(run)
    for job in (here / "temporary").glob("spectrakit-job-*"):
        job.rename(here / job.name)  # nobody was left to remove it


# surroundings


@slow
def test_a_full_temporary_folder_at_the_end_changes_nothing(monkeypatch, nothing_left, small_disk):
    monkeypatch.setenv("TMPDIR", str(small_disk))
    run = troubled(monkeypatch, "0 40 fill")
    assert (small_disk / "filled").stat().st_size > 2**20 and "outcome.json could not be written" in log_of(
        run, "rank-0.log"
    )
    assert run.status == "completed" and (run.path / "summary.json").is_file()


@pytest.mark.long
@slow
def test_torchrun_carries_a_task_from_a_cell_and_maps_its_large_array(nothing_left, monkeypatch):
    numpy = pytest.importorskip("numpy")

    class Cell(Troubled):
        def __init__(self):
            self.spectra = numpy.zeros(72 * 2**20, numpy.uint8)

        def datasets(self, cfg):
            assert isinstance(self.spectra.base, numpy.memmap) and os.environ["WORLD_SIZE"] == "2"
            return super().datasets(cfg)

    run = fit(Cell(), compose(*TWO, "launch.mode=torchrun", "trainer.max_steps=2"), show=False)
    assert run.status == "completed", run.error
    assert (facts(run)["launcher"], facts(run)["world_size"]) == ("torchrun", 2) and run.load_model() is not None


FORK = """
import json, os, sys, threading
import torch
from accelerate import Accelerator
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.api.actions import fit
from tasks import Troubled

class Locked(Troubled):
    def __init__(self): self.lock = threading.Lock()

    def loss(self, model, batch):
        torch.exp(torch.randn(2_000_000))  # with the parent's threads, which are not here, this would hang
        with self.lock: return super().loss(model, batch)

Accelerator(cpu=True)
torch.exp(torch.randn(4_000_000))
for devices in (2, 1):
    words = [*json.loads(sys.argv[1]), "launch.mode=notebook_launcher", "trainer.max_steps=2"]
    run = fit(Locked(), compose(*words, f"trainer.devices={devices}"), show=False)
    assert run.status == "completed", run.error
    assert json.loads((run.path / "summary.json").read_text())["launch"]["world_size"] == devices
print("good")
"""


@pytest.mark.long
@slow
def test_a_fork_takes_along_what_cannot_be_pickled(nothing_left):
    done = subprocess.run(
        [sys.executable, "-c", FORK, json.dumps(TWO)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(TASKS.parent)},
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["good"], "")


# what can be known without starting a process

HERE, PAIR = replace(detect(environ={}), gpus=()), Processes(2, 1, "as asked")


def test_the_launcher_is_chosen_by_what_is_there(monkeypatch):
    gpus = replace(HERE, gpus=(Gpu("Tesla T4", 15.0, (7, 5)),) * 2)
    versions = {"accelerate": "1.14.0", "torch": "2.11.0"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)

    def choose(*words, platform=HERE, plan=PAIR, failed=None):
        return choose_launcher(compose(*words), platform, plan, failed or {})[0]

    assert (
        choose() == "notebook_launcher"
        and choose("launch.mode=torchrun") == "torchrun"
        and choose(platform=gpus) == "notebook_launcher"
    )
    assert choose(failed={"notebook_launcher": "timed out"}) == "torchrun"
    assert (
        choose("launch.mode=notebook_launcher", failed={"notebook_launcher": "timed out"}) == "notebook_launcher"
    )  # as asked
    assert choose(plan=Processes(1, 1, "")) is None and choose("launch.mode=torchrun", plan=Processes(1, 1, "")) is None
    assert choose(plan=Processes(2, 2, "")) == "torchrun"
    versions.update(accelerate="1.13.0", torch="2.9.1+cu128")
    assert choose(platform=gpus) == "torchrun" and "breaks forks" in choose_launcher(compose(), gpus, PAIR, {})[1]
    assert choose() == "notebook_launcher"  # on CPUs it does not matter
    for accelerate, torch in (("1.14.0", "2.9.1"), ("1.13.0", "2.8.0"), ("unknown", "2.9.1")):
        versions.update(accelerate=accelerate, torch=torch)
        assert choose(platform=gpus) == "notebook_launcher"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choose() == "torchrun"
    with pytest.raises(RequestError, match="Linux only. Use launch.mode=torchrun"):
        choose("launch.mode=notebook_launcher")


def test_what_failed_is_remembered_for_the_session_only(nothing_left):
    session = replace(HERE, session_start=1e9)
    remember_failed(session, "notebook_launcher", "timed out")
    remember_failed(replace(session, session_start=1e9 + 0.4), "torchrun", "killed")
    assert failed_launchers(session) == {"notebook_launcher": "timed out", "torchrun": "killed"}
    assert failed_launchers(replace(session, session_start=1e9 + 60)) == {}
    for text in ("", "[]", '{"session": 1e9, "failed": 3}', "\x00"):
        launching._memory_file().write_text(text)
        assert failed_launchers(session) == {}


def test_where_no_launcher_works_one_process_trains(nothing_left):
    failed = {"notebook_launcher": "timed out", "torchrun": "killed"}
    plan = launching.without_launchers(compose(), PAIR, failed)
    assert (plan.world_size, plan.fallback) == (1, True) and "killed" in plan.reason
    for words in (["launch.mode=torchrun"], ["distributed.fallback=false"]):
        assert launching.without_launchers(compose(*words), PAIR, failed) == PAIR
    assert launching.without_launchers(compose(), Processes(2, 2, ""), failed).world_size == 4


@pytest.mark.parametrize("devices, there, expected", [(4, 2, 2), (3, 2, 1), (8, 3, 2), (2, 1, 1)])
def test_more_devices_than_there_are_become_what_divides_them(devices, there, expected):
    platform = replace(HERE, gpus=(Gpu("Tesla T4", 15.0, (7, 5)),) * there)
    plan = plan_processes(compose(f"trainer.devices={devices}"), platform)
    assert plan.world_size == expected and plan.fallback and f"there is {there} GPU" in plan.reason
    assert (
        launching._with_world_size(compose(f"trainer.devices={devices}"), plan).distributed.world_size == devices
    )  # what the batch is made of
    with pytest.raises(RequestError, match="distributed.fallback=false"):
        plan_processes(compose(f"trainer.devices={devices}", "distributed.fallback=false"), platform)


class Locked(Line):
    def __init__(self):
        self.inner = {"lock": threading.Lock()}


def test_a_task_that_cannot_be_pickled_gets_a_sentence_with_the_modes_that_work(here, monkeypatch):
    with pytest.raises(RequestError) as caught:
        fit(Locked(), compose(*TWO), show=False)
    for words in ("Locked.inner['lock'] is a lock", "launch.mode=notebook_launcher", "launch.mode=inline"):
        assert words in str(caught.value)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    with pytest.raises(RequestError) as caught:
        fit(Locked(), compose(*TWO, "launch.mode=notebook_launcher"), show=False)
    for words in ("Locked.inner['lock'] is a lock", "CUDA is in use", "Restart the notebook"):
        assert words in str(caught.value)
    assert not list((here / "runs").iterdir())


def test_a_fork_of_a_process_that_asked_cuda_is_refused(monkeypatch):
    _check_fork("auto")
    monkeypatch.setattr("torch.cuda._is_in_bad_fork", lambda: True)
    _check_fork("cpu")
    with pytest.raises(RequestError, match="Restart the notebook.*launch.mode=inline"):
        _check_fork("auto")


def test_the_error_that_counts_is_found(tmp_path):
    def write(rank: int, text: str) -> None:
        (tmp_path / f"error-rank-{rank}.txt").write_text(text)

    head = 'Traceback (most recent call last):\n  File "t.py", line 1, in loss\n    connection = gloo(NCCL)\n'
    assert first_error(tmp_path) is None
    write(0, head + "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2077\n")
    assert first_error(tmp_path)[0::2] == (0, True)
    write(3, head + "torch.distributed.DistNetworkError: failed to recv, got 0 bytes\n")
    write(
        10,
        f"{head}KeyError: 'x'\n\nDuring handling of the above exception, "
        f"another exception occurred:\n\n{head}ValueError: first line\nsecond: line\n",
    )
    assert first_error(tmp_path) == (10, "ValueError: first line second: line", False)
    write(1, "torn")
    assert first_error(tmp_path)[0] == 10  # which came first
    for file in tmp_path.iterdir():
        file.unlink()
    write(2, "")
    assert first_error(tmp_path) == (2, "an error without a message", False)


def test_what_is_no_report_of_a_rank_is_not_read_for_one(tmp_path):
    "A pipe would be waited for, a device has no end, and a report may be of any size."
    os.mkfifo(tmp_path / "error-rank-0.txt")
    (tmp_path / "error-rank-1.txt").symlink_to("/dev/zero")
    (tmp_path / "error-rank-x.txt").write_text("ValueError: nobody's")
    assert first_error(tmp_path) is None
    with open(tmp_path / "error-rank-2.txt", "w") as file:
        file.write("Traceback (most recent call last):\n  File x\nValueError: wide\n")
        file.truncate(2**36)
    assert first_error(tmp_path)[0] == 2 and first_error(tmp_path)[1].startswith("ValueError: wide")


LONG = """
import torch
import spectrakit as sk

class Long(sk.Task):
    calls = 0
    def datasets(self, cfg):
        data = torch.utils.data.TensorDataset(torch.ones(8, 1))
        return data, data
    def model(self, cfg):
        return torch.nn.Linear(1, 1)
    def loss(self, model, batch):
        self.calls += model.training
        if self.calls > 50:
            raise ValueError(MESSAGE)
        return model(batch[0]).square().mean()
"""


@slow
@pytest.mark.parametrize(
    "message",
    [
        pytest.param("'x' * 3 * 10**7", id="a word", marks=pytest.mark.long),
        pytest.param("'row\\n' * 10**7", id="lines", marks=pytest.mark.long),
        pytest.param("'row\\n' * 10**5", id="some lines"),
    ],
)
def test_an_error_of_any_length_is_told(here, message):
    "Masking it took longer than the others wait for a rank that has failed."
    (here / "long.py").write_text(LONG.replace("MESSAGE", message))
    words = ("data.batch_size=1", "trainer.max_epochs=100", "trainer.accelerator=cpu", "launch.mode=auto")
    run = fit(f"{here / 'long.py'}:Long", compose(*words, "trainer.devices=1"), show=False)
    assert run.status == "failed" and run.error.startswith("ValueError: ") and len(run.error) < 10_000


@pytest.fixture
def story(monkeypatch, tmp_path):
    """A function that sees a job through whose starts end as told, without a process: what became of it, and how it was
    started.

    An end may be a function, which then acts in the middle of a start.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def see(
        *ends, words=(), interrupted=None, kind="train", failed=()
    ) -> tuple[Outcome, list[tuple[str | None, int, str]]]:
        starts, ends, interrupted = [], list(ends), [] if interrupted is None else interrupted
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        job = Job(
            kind_named(kind),
            run_dir,
            new_request(compose("trainer.accelerator=cpu", "trainer.devices=2", *words), HERE),
        )
        for name in failed:
            remember_failed(HERE, name, "broken")

        def run_attempt(attempt, tick, interrupted) -> AttemptResult:
            starts.append((attempt.launcher, attempt.processes.world_size, attempt.job.kind.name))
            end = ends.pop(0)
            end = end(attempt.job, interrupted) if callable(end) else end
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(launching, "run_attempt", run_attempt)
        outcome = launching.run_supervised(job, "coffee", lambda: None, interrupted)
        assert not ends and not list(tmp_path.glob("spectrakit-job-*"))
        if kind == "train":
            assert last_event(read_events(run_dir / "events.jsonl"), "end")["status"] == outcome.status
        return outcome, starts

    return see


DONE = AttemptResult("completed", "all done")
FAULT, UNMET, ERROR = (
    AttemptResult("failed", "rank 1 was killed", retry=True),
    AttemptResult("failed", "apart", retry=True, connected=False, launcher_failed=True),
    AttemptResult("failed", "KeyError"),
)
PAIRED, ALONE = ("notebook_launcher", 2, "train"), (None, 1, "train")


def test_faults_are_repeated_then_degraded_then_final(story):
    assert story(FAULT, FAULT, DONE)[1] == [PAIRED] * 3
    outcome, starts = story(FAULT, FAULT, FAULT, DONE)
    assert outcome.status == "completed" and starts == [PAIRED] * 3 + [ALONE]
    assert outcome.launch["restarts"] == 3 and outcome.launch["world_size"] == 1 and outcome.launch["launcher"] is None
    outcome, starts = story(FAULT, FAULT, FAULT, FAULT)  # one process has one try
    assert (outcome.status, outcome.reason, starts) == ("failed", "rank 1 was killed", [PAIRED] * 3 + [ALONE])
    assert story(FAULT, words=["launch.max_restarts=0"])[1] == [PAIRED]
    assert story(FAULT, FAULT, FAULT, words=["distributed.fallback=false"])[1] == [PAIRED] * 3
    assert "continuing in one process" in outcome.launch["reasons"]["world_size"] and outcome.launch["reasons"][
        "launcher"
    ].startswith("none, for one process; tried before: notebook_launcher: ")
    assert story(ERROR) == (Outcome("failed", "KeyError", story(DONE)[0].launch), [PAIRED])
    assert story(FAULT, FAULT, kind="predict")[1] == [("notebook_launcher", 2, "predict")] * 2


def test_a_rank_that_was_killed_before_the_others_met_it_says_nothing_about_the_launcher(story):
    torchrun, killed = ("torchrun", 2, "train"), replace(UNMET, reason="rank 1 was killed", launcher_failed=False)
    assert story(killed, DONE)[1] == [PAIRED, torchrun]
    assert story(DONE)[1] == [PAIRED]  # not remembered


def test_ranks_that_cannot_meet_get_what_works(story):
    torchrun = ("torchrun", 2, "train")
    assert story(UNMET, DONE)[1] == [PAIRED, torchrun]
    assert story(UNMET, DONE)[1] == [torchrun, ALONE]  # remembered
    outcome, starts = story(DONE)
    assert starts == [ALONE] and "no launcher works" in outcome.launch["fallback"]
    assert story(UNMET, words=["launch.mode=torchrun", "distributed.fallback=false"])[0].status == "failed"
    assert story(UNMET, FAULT, DONE, words=["launch.mode=torchrun"])[1] == [torchrun, ALONE, ALONE]


def test_who_asks_for_a_stop_gets_no_other_start(story):
    def stopped(job, signals):
        signals.append(1.0)
        return FAULT

    def touched(job, interrupted):
        stop_file(job.run_dir).touch()
        return UNMET

    for end in (stopped, touched):
        outcome, starts = story(end)
        assert outcome.status == "interrupted" and len(starts) == 1 and "a stop was requested" in outcome.reason
    assert story(interrupted=[1.0, 2.0])[0].status == "interrupted"


@slow
def test_an_interrupt_while_a_large_task_is_written_ends_the_run(here, monkeypatch):
    "It is sent by the task itself, where it is pickled; what comes after is as for any run."

    class Large(Troubled):
        def __getstate__(self):
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("it was not heard at once")

    before = signal.getsignal(signal.SIGINT)
    run = fit(Large(), compose(*TWO), show=False)
    assert (run.status, last_event(run.events, "end")["reason"]) == (
        "interrupted",
        "interrupted before the start",
    )
    assert (
        (run.path / "summary.json").is_file() and not is_locked(run.path) and signal.getsignal(signal.SIGINT) == before
    )


def test_memory_that_ran_out_halves_the_micro_batch_and_keeps_the_effective_one(story):
    oom = replace(FAULT, reason="OutOfMemoryError: CUDA out of memory.", out_of_memory=True)
    outcome, starts = story(oom, oom, DONE, words=[EACH, "data.micro_batch_size=12", "launch.max_restarts=0"])
    assert outcome.status == "completed" and starts == [PAIRED] * 3 and outcome.launch["restarts"] == 2
    assert (outcome.launch["micro_batch_size"], outcome.launch["gradient_accumulation_steps"]) == (3, 4)
    outcome, starts = story(oom, oom, oom, oom, words=["data.micro_batch_size=12"])  # 6, 3, 1 at a time
    assert (outcome.status, len(starts), outcome.launch["micro_batch_size"]) == ("failed", 4, 1)
    for auto in ([], ["data.micro_batch_size=auto"]):  # the parts follow from it, or are looked for from two samples up
        outcome, starts = story(oom, DONE, words=[EACH, "global_batch_size=16", "trainer.devices=2", *auto])
        parts = (outcome.launch["micro_batch_size"], outcome.launch["gradient_accumulation_steps"])
        assert outcome.status == "completed" and parts == ((1, 8) if auto else (4, 2)), parts
    outcome, starts = story(oom, words=["training.oom_recovery=false"])
    assert (outcome.status, len(starts)) == ("failed", 1)


HUNGRY = """
import os
import torch
from rank_tasks import Curve

class Hungry(Curve):
    "Runs out of memory with more than two samples, on the last rank alone, {where}."

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        last = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1
        if not model.training or len(batch[0]) <= 2 or not last: return loss
        if {forward}: raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss.register_hook(lambda grad: (_ for _ in ()).throw(error))
        return loss
"""


@slow
@pytest.mark.parametrize("where, devices", [pytest.param("forward", 1, marks=pytest.mark.long), ("backward", 2)])
def test_a_run_whose_device_runs_out_of_memory_goes_on_with_smaller_micro_batches(nothing_left, here, where, devices):
    (here / "hungry.py").write_text(HUNGRY.format(where=where, forward=where == "forward"))
    words = (
        EACH,
        "trainer.accelerator=cpu",
        "trainer.max_epochs=2",
        "data.micro_batch_size=8",
        f"trainer.devices={devices}",
        "trainer.log_every_n_steps=1",
        "trainer.log_min_seconds=0",
    )
    run = fit(f"{here / 'hungry.py'}:Hungry", compose(*words), show=False)
    assert run.status == "completed", run.error
    ooms = [e for e in read_events(run.path / "events.jsonl") if e["type"] == "oom"]
    assert [e["micro_batch_size"] for e in ooms] == [4, 2]
    launched = json.loads((run.path / "environment.json").read_text())["launch"]
    assert (launched["micro_batch_size"], launched["gradient_accumulation_steps"], launched["restarts"]) == (2, 4, 2)
    alike = fit(f"{TESTS / 'rank_tasks.py'}:Curve", compose(*words), show=False)
    assert close(losses(run), losses(alike))  # the effective batch, and so what is learned, stayed


def test_no_start_that_the_time_is_too_short_for_and_no_refusal_after_the_first(story, here):
    request = new_request(compose("watchdog.limit=2m", "watchdog.since=run"), HERE, began=time.time() - 100)
    job = Job(TRAIN, here, request)
    assert request.left_s() == pytest.approx(20, abs=5)
    assert launching._without_passed_limit(job) == job  # all starts share the time
    over = replace(request, ends=time.monotonic() - 1)
    assert launching._without_passed_limit(Job(TRAIN, here, over)).request.ends == over.ends
    assert launching._without_passed_limit(Job(PREDICT, here, over)).request.ends is None  # predictions may still work
    late = supervising._without_time_to_retry(FAULT, job, time.monotonic() + 15, 10.0)
    assert (late.retry, late.status) == (False, "failed") and late.reason.endswith("no time is left to start again")
    assert (
        supervising._without_time_to_retry(FAULT, job, time.monotonic() + 30, 10.0)
        == FAULT
        == supervising._without_time_to_retry(FAULT, job, None, 10.0)
    )
    outcome, _ = story(FAULT, RequestError("There is no GPU."))
    assert (outcome.status, outcome.reason) == ("failed", "There is no GPU.")
    with pytest.raises(RequestError):
        story(RequestError("There is no GPU."))


def test_a_view_that_fails_ends_the_processes_and_is_told(tmp_path):
    "And so does anything else that ends the waiting thread."
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    page = create_page(1)

    def tick():
        raise KeyError("the view")

    job = Job(TRAIN, tmp_path, new_request(compose(), HERE))
    with pytest.raises(KeyError, match="the view"):
        watch_process(
            child,
            Attempt(job, tmp_path, Processes(1, 1, "")),
            HangDetector(RankStates(page), HangLimits(20, 60)),
            tick,
            [],
        )
    assert child.returncode == -signal.SIGKILL
    page.close()
    page.path.unlink()


@pytest.fixture
def page():
    "A page for one rank."
    page = create_page(1)
    yield page
    page.close()
    page.path.unlink()


def test_the_only_process_is_slow_and_not_stuck_while_it_prepares_and_works(tmp_path, monkeypatch, page):
    now, work = 0.0, (0.0, 0.0)
    monkeypatch.setattr(supervising, "_done_so_far", lambda pid: work)
    heartbeat, seen = Heartbeat(page, 0), Observed()
    detector = HangDetector(RankStates(page), HangLimits(20, 3, start_s=15), clock=lambda: now)
    attempt = Attempt(Job(PREDICT, tmp_path, new_request(compose(), HERE)), tmp_path, Processes(1, 1, ""))

    def stuck(seconds: float, computed_s: float, read: float) -> bool:
        nonlocal now, work
        now, work = seconds, (computed_s, read)
        return supervising._stuck(Situation(attempt, detector, seen, now)) is not None

    assert not stuck(0, 0, 0) and not stuck(16, 9.0, 0)  # beyond 15 s its work is looked at
    assert not stuck(18, 9.0, 0) and not stuck(22, 9.5, 0) and not stuck(28, 9.5, 2**21)
    assert stuck(34, 9.6, 2**21)  # neither computed nor read
    heartbeat.beat("predicting")
    assert not stuck(40, 10, 0) and stuck(71, 99, 2**30)  # what has begun says so itself


@pytest.mark.parametrize("phase, spared", [("starting", True), ("preparing", False)])
def test_of_several_processes_those_are_slow_that_wait_for_nobody_yet(tmp_path, monkeypatch, phase, spared):
    now, page = 0.0, create_page(2)
    monkeypatch.setattr(supervising, "_done_so_far", lambda pid: (now, 0.0))
    for rank in (0, 1):
        Heartbeat(page, rank).beat(phase)
    detector = HangDetector(RankStates(page), HangLimits(20, 3, start_s=15), clock=lambda: now)
    attempt, seen = Attempt(Job(TRAIN, tmp_path, new_request(compose(), HERE)), tmp_path, PAIR), Observed()
    found = []
    for now in (0.0, 20.0, 40.0, 60.0):
        found.append(supervising._stuck(Situation(attempt, detector, seen, now)) is not None)
    page.close()
    page.path.unlink()
    assert found[0] is False and any(found) is not spared


def test_predictions_have_nothing_else_to_do_with_the_time_than_to_wait_for_their_start(tmp_path, page):
    request = new_request(compose("watchdog.limit=2m", "watchdog.since=run"), HERE, began=time.time() - 20)
    assert request.left_s() == pytest.approx(100, abs=10)
    allowed = {}
    for kind, processes in ((TRAIN, Processes(1, 1, "")), (PREDICT, Processes(1, 1, "")), (PREDICT, PAIR)):
        limits = supervising._detector(Attempt(Job(kind, tmp_path, request), tmp_path, processes, "spawn"), page).limits
        allowed[kind.name, processes.per_node] = (
            limits.allowed_s({"starting"}, 0.0, heard=False),
            limits.allowed_s({"preparing"}, 0.0),
        )
    assert allowed["train", 1] == (60, 60) and allowed["predict", 1] == (300, 200)
    assert allowed["predict", 2][0] == 300 and allowed["predict", 2][1] < 60  # there another start has to fit


@slow
def test_an_interrupt_is_heard_while_ranks_are_waited_for_that_cannot_come(tmp_path, monkeypatch):
    "Rank 1 has failed; rank 0 would have a quarter of a minute to notice by itself."
    problems, find = [], supervising.find_problem
    monkeypatch.setattr(supervising, "find_problem", lambda look: problems.append(find(look)) or problems[-1])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    page = create_page(2)
    heartbeat = Heartbeat(page, 1)
    heartbeat.begin(3), raise_flag(heartbeat, FAILED)
    interrupted = []

    def tick():
        if not interrupted and any(problems):  # it has been seen that rank 1 has failed
            interrupted.append(time.monotonic())

    job = Job(TRAIN, tmp_path, new_request(compose(), HERE))
    seen = watch_process(
        child, Attempt(job, tmp_path, PAIR), HangDetector(RankStates(page), HangLimits(20, 60)), tick, interrupted
    )
    assert seen.ended_for == "failed" and child.returncode == -signal.SIGKILL
    patience_s = [problem.patience_s for problem in problems if problem]
    assert patience_s[-1] < 5 < patience_s[0]  # nobody waits for the quarter of a minute
    assert requested(page) == STOP and stop_file(tmp_path).exists()
    page.close()
    page.path.unlink()


def test_the_handlers_that_were_there_are_put_back():
    def mine(*_):
        raise AssertionError("this one sleeps")

    before = signal.signal(signal.SIGINT, mine)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts(raises_at=lambda: 2) as heard:
            with interrupts() as inner:
                os.kill(os.getpid(), signal.SIGINT)
            assert len(heard) == 1 and inner is heard
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is mine and len(heard) == 2
        found = []
        thread = threading.Thread(
            target=lambda: found.append(interrupts().__enter__())
        )  # only the main thread can listen
        thread.start(), thread.join()
        assert found == [[]] and signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)


@slow
def test_what_a_killed_notebook_left_is_removed_and_nothing_else(tmp_path):
    "A job folder that is held, one that is not, one that never was, and a page of memory."
    script = (
        "import os, sys; from pathlib import Path; from spectrakit.distributed.hang_detector import create_page; "
        "from spectrakit.launch.job import locked_job_folder\n"
        "page = create_page(2, (sys.argv[1],)); folder = Path(sys.argv[1], 'spectrakit-job-' + sys.argv[2]); "
        "folder.mkdir()\n"
        "(folder / 'array-0.npy').touch()\nwith locked_job_folder(folder):\n    print('held', flush=True)\n    input()"
    )

    def start(name):
        words = [sys.executable, "-c", script, tmp_path, name]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start("held") as held:
        held.stdout.readline()
        with start("left") as killed:
            killed.stdout.readline()
            killed.kill()
        (tmp_path / "spectrakit-job-new").mkdir()

        def names():
            return sorted(path.name.rpartition("-")[0 if "page" in path.name else 2] for path in tmp_path.iterdir())

        assert names() == sorted(
            ["held", "left", "new", f"spectrakit-page-{held.pid}", f"spectrakit-page-{killed.pid}"]
        )
        jobs.remove_abandoned_jobs(tmp_path)
        assert remove_stale_pages(tmp_path) == []  # young ones may not be locked yet
        assert len(remove_stale_pages(tmp_path, older_s=-1)) == 1
        assert names() == ["held", "new", f"spectrakit-page-{held.pid}"]
        held.communicate("go on\n")
    assert names() == ["new", f"spectrakit-page-{held.pid}"]


@slow
def test_a_full_memory_for_pages_is_an_error_and_not_a_dead_kernel(small_disk, tmp_path):
    "A hole in a full memory file system kills the process that fills it."
    with open(small_disk / "filled", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError, match="No space|no room"):
        create_page(2, (str(small_disk),))
    assert [path.name for path in small_disk.iterdir()] == ["filled"]
    page = create_page(2, (str(small_disk), str(tmp_path)))
    assert page.path.parent == tmp_path and page.cells[page.row(1)] == -1
    page.close()


@pytest.mark.timeout(120)  # waiting for what never goes would have no end
def test_a_whole_family_ends_at_once():
    script = (
        "import os, subprocess, sys, time; subprocess.Popen(['sleep', '60'], start_new_session=True); "
        "subprocess.Popen(['sleep', '60']); time.sleep(60)"
    )
    top = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    family = wait_for(
        lambda: len(found := psutil.Process(top.pid).children(recursive=True)) == 2 and found, "two children"
    )
    kill_tree(top.pid, wait_s=math.inf)
    assert top.wait() == -signal.SIGKILL
    assert [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    kill_tree(top.pid)  # once more: nobody is there


ZOMBIES = """
import math, subprocess, sys, time
from spectrakit.system.signals import family_of, kill_tree
# it does not wait for its child: one that waits may still bury it, though it has been killed itself
words = [sys.executable, "-c", "import subprocess, time; child = subprocess.Popen(['sleep', '60']); time.sleep(60)"]
top = subprocess.Popen(words, start_new_session=True)
while len(family_of(top.pid)) < 2: time.sleep(0.01)
kill_tree(top.pid, wait_s=math.inf)  # it would wait for ever, were the dead among the living
print([p.status() for p in family_of(1)[1:] if p.pid != top.pid])
"""


def test_where_process_1_buries_no_dead_nobody_waits_for_zombies():
    container = ["unshare", "--kill-child", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("no container can be made here")
    done = subprocess.run([*container, sys.executable, "-c", ZOMBIES], capture_output=True, text=True, timeout=120)
    assert done.stdout == "['zombie']\n", done.stderr


ELSEWHERE = """
import asyncio, concurrent.futures, multiprocessing, os, signal, subprocess, sys, tempfile, threading
import importlib.metadata, logging, shutil  # made for this system
elsewhere = {os: ("fork", "setsid", "killpg", "getuid", "register_at_fork"),
             signal: ("SIGKILL", "SIGUSR1", "SIGCONT", "SIGSTOP", "pthread_sigmask", "SIGHUP")}
for module, names in elsewhere.items():
    for name in names: delattr(module, name)
sys.modules["fcntl"] = None
from spectrakit.cli import main as cli
from spectrakit.distributed import hang_detector as heartbeat
from spectrakit.launch import launcher as launch
from spectrakit.api import actions, run
from spectrakit.launch import exit_diagnosis as diagnosis
from spectrakit.launch import supervisor as supervise
from spectrakit.launch import worker
page = heartbeat.create_page(2)
page.close(), page.path.unlink()
supervise.dump_stacks([1])
import psutil
del psutil.Process.io_counters  # macOS has none
assert supervise._done_so_far(os.getpid())[0] > 0
with supervise.sigint_blocked(): pass
killed = diagnosis.Evidence(None, diagnosis.Observed(), None, 1).killed_by(9)
print(killed, heartbeat.stop_file(run.Path("x")))
"""


@slow
def test_nothing_here_needs_linux_to_be_imported():
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.parametrize(
    "said, own",
    [
        ("ConnectionError: HTTPSConnectionPool(host='hub'): Connection refused", True),
        ("ValueError: igloo class index 7 out of range", True),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", True),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
            "[127.0.0.1]:18623",
            False,
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77", False),
        ("RuntimeError: another process of this run has failed", False),
    ],
)
def test_only_what_torch_says_of_another_process_is_talk_about_a_connection(tmp_path, said, own):
    (tmp_path / "error-rank-1.txt").write_text(
        f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n{said}\n'
    )
    assert first_error(tmp_path) == (1, said, not own)


def test_what_ddp_cannot_take_is_told_with_what_to_do(tmp_path):
    lines = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
        "This error …",
        "AttributeError: 'DistributedDataParallel' object has no attribute 'encode'",
    )
    for said, words in zip(lines, ("distributed.find_unused_parameters=true", "trainer.devices=1"), strict=False):
        (tmp_path / "error-rank-0.txt").write_text(
            f'Traceback (most recent call last):\n  File "x.py", line 1, in f\n{said}\n'
        )
        assert words in first_error(tmp_path)[1]
