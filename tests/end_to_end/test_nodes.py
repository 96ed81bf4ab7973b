"""Two machines, two ranks each: network namespaces joined by a pair of virtual cards. And torchrun, started by the
user.

Needs root and the `ip` command, as on a CI machine; skipped where these are not to be had.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import fork_server
from helpers import TESTS, TORCHRUN, clean_environ, only_run, run_cli, wait_for
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import find_checkpoint, load_weights, verify
from spectrakit.runs.events import columns, last_event, read_events

pytestmark = pytest.mark.slow  # every test here starts processes

TASKS = TESTS / "rank_tasks.py"
WORDS = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "trainer.accelerator=cpu",
    "data.batch_size=2",
    "scheduler.name=constant",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "optimizer.lr=0.02",
)


def ip(*words) -> None:
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no network of two machines can be made here: {done.stderr.strip()}")


@pytest.fixture
def machines():
    "The names of two network namespaces that see each other as 10.77.0.1 and 10.77.0.2, over cards v0 and v1."
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    names = [f"spectrakit-{os.getpid()}-{n}" for n in (0, 1)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v1", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", f"v{number}")
            for card in ("lo", f"v{number}"):
                ip("-n", name, "link", "set", card, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def start(machine: str, folder: Path, task: str, *words) -> fork_server.Served:
    "`spectrakit train` on a machine."
    folder.mkdir()
    command = ["train", f"{TASKS}:{task}", *WORDS, *words]
    return fork_server.start(command, folder, clean_environ(), network=machine)


def start_both(machines, folder, task, *words) -> list[fork_server.Served]:
    "The same run on both machines, each told which one it is."
    return [
        start(
            machine,
            folder / f"machine-{number}",
            task,
            "trainer=ddp",
            "trainer.devices=2",
            "trainer.num_nodes=2",
            "distributed.backend=auto",
            f"distributed.node_rank={number}",
            "distributed.rdzv_endpoint=10.77.0.1:29555",
            *words,
        )
        for number, machine in enumerate(machines)
    ]


def ended(process: subprocess.Popen | fork_server.Served, timeout_s: float = 240) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode, out, err


def losses(run: Path) -> list[float]:
    return columns(read_events(run / "events.jsonl"), "step", "loss")["loss"]


def test_workers_on_two_machines_exchange_once_a_round(machines, tmp_path):
    words = (
        "trainer.strategy.name=diloco",
        "diloco.max_steps=5",
        "trainer.max_steps=12",
        "trainer.log_every_n_steps=4",
        "trainer.log_min_seconds=0",
    )
    for code, _, err in [ended(p) for p in start_both(machines, tmp_path, "Curve", *words, "trainer.devices=1")]:
        assert code == 0, err
    done = run_cli(tmp_path, "train", f"{TASKS}:Curve", *WORDS, *words, "trainer.devices=2")
    assert done.returncode == 0, done.stderr
    far, near = only_run(tmp_path / "machine-0"), only_run(tmp_path)
    assert columns(read_events(far / "events.jsonl"), "round", "step")["step"] == [5, 10, 12]
    models = [load_weights(find_checkpoint(run / "checkpoints")[0]) for run in (far, near)]
    assert all(abs(models[0][name] - models[1][name]).max() < 1e-6 for name in models[0])


def test_machines_with_different_settings_are_told_so(machines, tmp_path):
    words = ("trainer.num_nodes=2", "trainer.devices=1", "distributed.rdzv_endpoint=10.77.0.1:29555")
    words = (*words, "trainer.strategy.name=diloco", "diloco.max_steps=5", "launch.max_restarts=0")
    started = [
        start(
            machine, tmp_path / f"machine-{n}", "Curve", *words, f"distributed.node_rank={n}", f"diloco.outer_lr={lr}"
        )
        for n, (machine, lr) in enumerate(zip(machines, (0.7, 0.9), strict=True))
    ]
    for code, _, err in [ended(process) for process in started]:
        assert code == 2 and "diloco.outer_lr is 0.7 on rank 0 and 0.9 on rank 1" in err, err


def test_two_machines_train_one_run_that_one_of_them_writes(machines, tmp_path):
    first, second = [ended(p) for p in start_both(machines, tmp_path, "Curve", "trainer.max_epochs=2")]
    assert first[0] == 0 and "completed" in first[1] and "4 processes: as asked, 2 on each of 2 machines" in first[1], (
        first
    )
    assert second[0] == 0 and second[2] == "", second
    run = only_run(tmp_path / "machine-0")
    assert not (tmp_path / "machine-1" / "runs").exists()
    start = last_event(read_events(run / "events.jsonl"), "start")
    assert (start["world_size"], start["effective_batch_size"]) == (4, 8)
    assert verify(find_checkpoint(run / "checkpoints")[0]) == []
    alone = run_cli(
        tmp_path,
        "train",
        f"{TASKS}:Curve",
        *WORDS,
        "trainer.max_epochs=2",
        "launch.mode=inline",
        "accumulate_grad_batches=4",
    )
    assert alone.returncode == 0, alone.stderr
    assert losses(run) == pytest.approx(losses(only_run(tmp_path)), rel=1e-5)


def test_a_machine_that_is_cut_off_leaves_a_clear_error_and_a_whole_checkpoint(machines, tmp_path):
    pair = start_both(
        machines, tmp_path, "Slow", "trainer.max_epochs=40", "distributed.timeout_s=5", "checkpoint.every_n_steps=2"
    )
    family = []
    try:
        run = Path(
            wait_for(
                lambda: next(iter((tmp_path / "machine-0").glob("runs/*/checkpoints/step-*/manifest.json")), None),
                "a checkpoint",
            )
        ).parents[2]
        family = [p for process in pair for p in psutil.Process(process.pid).children(recursive=True)]
        ip("-n", machines[1], "link", "set", "v1", "down")
        results = [ended(process) for process in pair]
    finally:
        for process in pair:
            if process.poll() is None:
                process.kill()
    assert [status for status, _, _ in results] == [1, 1], results
    assert "failed" in results[0][1] and "Traceback" not in results[0][2] and "machine" in results[0][2]
    assert results[1][2].startswith("spectrakit: ") and len(results[1][2].splitlines()) == 1
    newest, notes = find_checkpoint(run / "checkpoints")
    assert verify(newest) == [] and notes == []
    assert open_run(run).status == "failed" and json.loads((run / "summary.json").read_text())["status"] == "failed"
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


@pytest.mark.long
def test_an_interrupt_on_one_machine_stops_both_at_the_same_step(machines, tmp_path):
    pair = start_both(machines, tmp_path, "Slow", "trainer.max_epochs=400")
    wait_for(
        lambda: (
            next(iter((tmp_path / "machine-0").glob("runs/*/events.jsonl")), None)
            and last_event(read_events(next((tmp_path / "machine-0").glob("runs/*/events.jsonl"))), "step")
        ),
        "training",
    )
    pair[1].send_signal(signal.SIGINT)  # on the machine that does not write
    results = [ended(process) for process in pair]
    assert results[0][0] == 130 and "interrupted" in results[0][1], results
    assert results[1][0] == 130, results
    run = only_run(tmp_path / "machine-0")
    assert (
        find_checkpoint(run / "checkpoints")[0].name
        == f"step-{last_event(read_events(run / 'events.jsonl'), 'end')['step']:08d}"
    )


@pytest.mark.long  # a rank that fails under torchrun
def test_under_torchrun_every_process_is_a_rank_and_has_its_variables(tmp_path):
    "And the task itself asserts what its ranks see of the variables."
    done = run_cli(
        tmp_path,
        "train",
        f"{TASKS}:Named",
        *WORDS,
        "trainer.devices=2",
        "trainer.max_epochs=2",
        "+distributed.env.TORCH_MINE=7",
        "--predict",
        "table.csv",
        command=(*TORCHRUN, "-m", "spectrakit"),
        env={"OMP_NUM_THREADS": "2", "NCCL_DEBUG": "INFO"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed: all") == 1 and done.stdout.count("named-") < 6  # one rank talks
    run = only_run(tmp_path)
    events = read_events(run / "events.jsonl")
    assert last_event(events, "start")["world_size"] == 2 and open_run(run).status == "completed"
    assert json.loads((run / "summary.json").read_text())["launch"]["launcher"] == "external"
    assert (tmp_path / "table.csv").read_text().count("\n") == 14
    env = json.loads((run / "environment.json").read_text())["launch"]["env"]
    assert (
        env["TORCH_MINE"] == "7" and env["NCCL_DEBUG"] == "INFO" and env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    )  # as exported, as asked for, by default


@pytest.mark.long
def test_a_rank_that_fails_under_torchrun_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom rank_tasks import Slow\nclass Breaks(Slow):\n    def loss(self, model, batch):\n"
        "        if model.training and os.environ['RANK'] == '1': raise ArithmeticError('seven')\n"
        "        return super().loss(model, batch)\n"
    )
    done = run_cli(
        tmp_path,
        "train",
        "mine.py:Breaks",
        *WORDS,
        "trainer.devices=2",
        command=(*TORCHRUN, "-m", "spectrakit"),
        env={"PYTHONPATH": str(TASKS.parent)},
    )
    assert done.returncode == 1
    run = open_run(only_run(tmp_path))
    assert run.status == "failed" and "rank 1: Breaks.loss raised ArithmeticError: seven" in run.error


@pytest.mark.long  # an interrupt on one machine
def test_an_interrupt_of_torchrun_does_not_wait_for_a_log_point(tmp_path):
    command = (
        sys.executable,
        *TORCHRUN,
        "-m",
        "spectrakit",
        "train",
        f"{TASKS}:Slow",
        *WORDS,
        "trainer.devices=2",
        "trainer.max_epochs=400",
        "trainer.log_every_n_steps=100000",
        "trainer.check_val_every_n_epoch=400",
        "checkpoint.every_n_steps=5",
    )
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=clean_environ(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        run = Path(
            wait_for(lambda: next(iter(tmp_path.glob("runs/*/checkpoints/step-*/manifest.json")), None), "a checkpoint")
        ).parents[2]
        process.send_signal(signal.SIGINT)
        ended(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    assert open_run(run).status == "interrupted"
    assert (
        find_checkpoint(run / "checkpoints")[0].name
        == f"step-{last_event(read_events(run / 'events.jsonl'), 'end')['step']:08d}"
    )


def test_a_meeting_place_that_is_taken_is_a_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_cli(
            tmp_path,
            "train",
            f"{TASKS}:Curve",
            *WORDS,
            "trainer.devices=2",
            "trainer.num_nodes=2",
            "distributed.node_rank=0",
            f"distributed.rdzv_endpoint={place}",
        )
    assert (
        done.returncode == 1
        and f"distributed.rdzv_endpoint={place} cannot be used" in done.stderr
        and "Traceback" not in done.stderr
    )
