"""What training processes, their libraries and the programs that they start print reaches the disk without secrets:
also where the processes, or the supervisor, are killed; and a supervisor that stands still holds up no rank.
"""

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from helpers import SETTINGS, TESTS, is_relay, only_run, wait_for
from spectrakit.api.actions import fit
from spectrakit.api.run import open_run
from spectrakit.config.compose import compose
from spectrakit.launch.log_relay import LogRelay
from spectrakit.launch.warm_worker import drop_spare
from talking import FLOOD, KEY, PASSWORD, VALUE, Talking

slow = pytest.mark.slow
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pipes with names, and signals, of Linux")

ALONE = ("trainer.accelerator=cpu", "launch.max_restarts=0")
TWO = (*ALONE, "trainer.devices=2", "distributed.world_size=2", "distributed.backend=gloo")
MODES = {
    "one process": ALONE,
    "forked ranks": (*TWO, "launch.mode=notebook_launcher"),
    "torchrun": (*TWO, "launch.mode=torchrun"),
}


def talk(start_cli, act, *words):
    "A command that trains `Talking`."
    environ = {"TINY_ACT": act, "LAB_TOKEN": VALUE}
    return start_cli("train", f"{TESTS}/talking.py:Talking", *SETTINGS, *words, env=environ)


def is_printed(process, folder: Path) -> None:
    "Wait until rank 0 has printed its secrets."
    wait_for(lambda: (folder / "printed-0").exists() or process.poll() is not None, "the secrets to be printed")
    assert process.poll() is None, process.communicate()


def said(run: Path, rank: int = 0) -> str:
    return (run / "logs" / f"rank-{rank}.log").read_text()


def holds_none(run: Path) -> None:
    "No file of the run has a secret in it."
    secrets = [text.encode() for text in (KEY, KEY[9:], PASSWORD, VALUE, base64.b64encode(KEY.encode()).decode())]
    found = [str(file) for file in run.rglob("*") if file.is_file() and any(s in file.read_bytes() for s in secrets)]
    assert found == []


def all_is_said(text: str) -> None:
    "Everything is there that was printed, in its order, with words for the secrets."
    order = (
        "from Python: <",
        "in two pieces: <",
        "password=<hidden>",
        "<LAB_TOKEN>",
        "token: |",
        "in base64: <hidden>",
    )
    places = [text.index(words) for words in order]
    assert places == sorted(places)


@slow
@pytest.mark.parametrize("mode", MODES)
def test_the_last_words_of_a_rank_that_crashes_are_kept_without_secrets(start_cli, tmp_path, mode):
    process = talk(start_cli, "crash", *MODES[mode])
    process.communicate(timeout=240)
    run = only_run(tmp_path)
    holds_none(run)
    text = next(
        text for rank in range(1 + ("devices=2" in str(MODES[mode]))) if "last words" in (text := said(run, rank))
    )
    all_is_said(text)
    assert text.index("in base64") < text.index("the last words") < text.index("Segmentation fault")
    assert "talking.py" in text  # the stack


@slow
@pytest.mark.parametrize("mode", ["one process", pytest.param("torchrun", marks=pytest.mark.long)])
def test_a_killed_supervisor_leaves_no_secret_and_loses_no_line(start_cli, tmp_path, mode):
    process = talk(start_cli, "wait", *MODES[mode])
    is_printed(process, tmp_path)
    family = psutil.Process(process.pid).children(recursive=True)
    assert sum(map(is_relay, family)) == 1
    holds_none(only_run(tmp_path))
    process.kill()
    assert psutil.wait_procs(family, timeout=60)[1] == []  # the relay, too
    holds_none(only_run(tmp_path))
    all_is_said(said(only_run(tmp_path)))


@slow
@pytest.mark.parametrize("mode", ["one process", "forked ranks"])
def test_a_supervisor_that_stands_still_holds_up_no_rank(start_cli, tmp_path, mode):
    process = talk(start_cli, "flood", *MODES[mode])
    is_printed(process, tmp_path)
    process.send_signal(signal.SIGSTOP)
    Path(tmp_path, "go").touch()
    wait_for(Path(tmp_path, "flooded-0").exists, "the rank to go on")
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=240)
    run = only_run(tmp_path)
    assert process.returncode == 0 and open_run(run).status == "completed"
    holds_none(run)
    lines = [line for line in said(run).splitlines() if line.endswith("with <Hugging Face token> and more")]
    assert [int(line[:6]) for line in lines] == list(range(FLOOD))


@slow
def test_what_waits_for_the_next_run_prints_through_the_relay(here, monkeypatch):
    monkeypatch.setenv("LAB_TOKEN", VALUE)
    try:
        for _ in range(2):
            run = fit(Talking(), compose(*SETTINGS, *ALONE, "launch.warm_worker=true"), show=False)
            assert run.status == "completed", run.error
            all_is_said(said(run.path))
            holds_none(run.path)
    finally:
        drop_spare()


@slow
def test_without_named_pipes_the_logs_are_masked_when_the_run_ends(here, monkeypatch):
    monkeypatch.setenv("LAB_TOKEN", VALUE)
    monkeypatch.delattr(os, "mkfifo")
    run = fit(Talking(), compose(*SETTINGS, *ALONE), show=False)
    assert run.status == "completed", run.error
    all_is_said(said(run.path))
    holds_none(run.path)


def print_to(pipe: Path, *pieces: str) -> None:
    with open(pipe, "ab", buffering=0) as stream:
        for piece in pieces:
            stream.write(piece.encode())


@pytest.mark.parametrize("file", ["full", "null/no/such/folder"])
def test_a_log_that_cannot_be_written_holds_up_nobody(tmp_path, file):
    relay = LogRelay(tmp_path / "streams", Path("/dev") / Path(file).parent, [Path(file).name], {})
    print_to(tmp_path / "streams" / Path(file).name, *["x" * 99_999 + "\n"] * 30)
    relay.close()
    assert not (tmp_path / "streams").exists()


MANY_LINES = {
    "a private key": [
        "-----BEGIN " + "PRIVATE KEY-----\n",
        *["MIIE" + "aB3" * 20 + "\n"] * 3,
        "-----END ",
        "PRIVATE KEY-----\n",
    ],
    "a block of YAML": ["db:\n", "  password: >-\n", "    MIIEaB3aB3\n", "    MIIEaB3\n", "name: x\n"],
    "bytes": [*"with " + KEY + "\n"],
}


@pytest.mark.parametrize("name", MANY_LINES)
def test_a_secret_that_comes_piece_by_piece_is_masked(tmp_path, name):
    relay, pieces = (
        LogRelay(tmp_path / "streams", tmp_path, ["rank-0.log"], {}),
        ["before\n", *MANY_LINES[name], "after"],
    )
    for piece in pieces:
        print_to(tmp_path / "streams" / "rank-0.log", piece)
    relay.close()
    text = (tmp_path / "rank-0.log").read_text()
    assert text.startswith("before\n") and text.endswith("after") and "<" in text
    assert "MIIE" not in text and "aB3" not in text


def test_a_program_that_outlives_the_run_prints_on(tmp_path):
    relay = LogRelay(tmp_path / "streams", tmp_path, ["rank-0.log"], {})
    with open(tmp_path / "streams" / "rank-0.log", "ab") as pipe:
        program = subprocess.Popen(
            ["sh", "-c", "echo begins; read line; echo $line"], stdin=subprocess.PIPE, stdout=pipe
        )
    log = tmp_path / "rank-0.log"
    wait_for(lambda: log.exists() and "begins" in log.read_text(), "its first line")
    relay.close()
    assert program.stdin
    program.communicate(f"ends with {KEY}\n".encode())
    assert program.returncode == 0
    wait_for(lambda: "ends with <Hugging Face token>" in log.read_text(), "its last line")
    assert KEY not in log.read_text()
    wait_for(lambda: relay._process.poll() is not None, "the relay to end")
