"""How runs stand: what a list of them says, from the ends of their logs, is what their whole logs say."""

import os
import sys
from pathlib import Path

import pytest

from odd_runs import ODD, evaluation, odd_run, step
from spectrakit.api.run import Run
from spectrakit.cli.commands.runs import runs
from spectrakit.config.compose import compose, snapshot
from spectrakit.runs.events import encode_event, log_file
from spectrakit.runs.history import read_history, read_overview

START = {"t": 0.0, "type": "start", "monitor": "val_loss"}
END = {"t": 900.0, "type": "end", "status": "completed", "reason": "all steps done", "step": 800}
MUCH = [step(n) for n in range(21, 800)]  # more than is read of an end at once


def write_log(folder: Path, events: list[dict], best: str = "") -> Path:
    "A run whose log has these events, and whose best checkpoint is `best`."
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(snapshot(compose()))
    lines = [encode_event(e["t"], e["type"], {k: v for k, v in e.items() if k not in ("t", "type")}) for e in events]
    log_file(folder).write_bytes(b"".join(lines))
    if best:
        (folder / "checkpoints" / "BEST").write_text(best + "\n")
    return folder


def facts(known) -> tuple:
    return known.status, known.steps, known.seconds or 0.0, known.monitor, known.best, known.end


def back_to(number: int) -> dict:
    return {"t": 801.0, "type": "restart", "step": number}


LOGS = {
    "nothing": [],
    "one epoch": [START, step(1), evaluation(1), END],
    "the best is old": [START, step(10), evaluation(10), *MUCH, evaluation(799, best=False), END],
    "the best was not kept": [START, evaluation(10), *MUCH, evaluation(799), END],
    "it goes on": [START, step(20), evaluation(20), *MUCH],
    "it went on after its end": [START, step(20), evaluation(20), END, START, *MUCH],
    "back before the best": [START, step(10), evaluation(10), step(20), evaluation(20), *MUCH, back_to(15), step(16)],
    "back twice": [START, step(10), evaluation(10), *MUCH, back_to(700), step(701), back_to(5)],
    "another monitor": [START, evaluation(10), {**START, "monitor": "val_mae"}, *MUCH, END],
    "the end has the monitor": [START, step(10), evaluation(10), *MUCH, {**END, "monitor": "val_loss"}],
}


@pytest.mark.parametrize("best", ["", "step-00000010"])
@pytest.mark.parametrize("name", LOGS)
def test_the_end_of_a_log_says_what_all_of_it_says(tmp_path, name, best):
    folder = write_log(tmp_path / "run", LOGS[name], best)
    assert facts(read_overview(folder)) == facts(read_history(folder))


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_run_stands_as_its_history_says(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    folder = odd_run(tmp_path, kind)
    standing, history = read_overview(folder), read_history(folder)
    best = history.best and {**history.best, "metrics": history.all_metrics(history.best)}
    for name in ("status", "steps", "monitor", "end"):  # and not its seconds: the clock of such a log may go backwards
        assert getattr(standing, name) == getattr(history, name)
    assert (standing.best or {}).items() <= (best or {}).items()


@pytest.mark.parametrize("change", ["cut", "rewritten", "grown", "a line with two types", "no file"])
def test_a_log_that_was_changed_is_looked_at_again(tmp_path, change):
    folder = write_log(tmp_path / "run", LOGS["the best is old"], "step-00000010")
    assert read_overview(folder).status == "completed"
    data = log_file(folder).read_bytes()
    if change == "cut":
        os.truncate(log_file(folder), len(data) - 40)
    elif change == "rewritten":
        log_file(folder).write_bytes(data.replace(b'"completed"', b'"failed"   '))
    elif change == "grown":
        log_file(folder).write_bytes(data + encode_event(902, "restart", {"step": 3}) + b'{"t": 903, "type": "e')
    elif change == "a line with two types":
        log_file(folder).write_bytes(
            data + b'{"t": 902, "type": "message", "text": "", "type": "restart", "step": 3}\n'
        )
    else:
        log_file(folder).unlink()
    assert facts(read_overview(folder)) == facts(read_history(folder)) and read_overview(folder).status != "completed"


def bytes_read() -> int:
    "How much this process has asked to read so far, from anywhere."
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="the system counts what a process reads")
@pytest.mark.slow
def test_a_list_of_runs_reads_the_ends_of_their_logs(tmp_path, capsys):
    end = {**END, "monitor": "val_loss"}
    for number in range(40):
        write_log(tmp_path / f"run-{number}", [START, *MUCH * 3, evaluation(799), end], "step-00000799")
    whole = sum(log_file(path).stat().st_size for path in tmp_path.iterdir())
    assert runs([str(tmp_path)]) == 0  # with the imports
    os.utime(log_file(tmp_path / "run-0"))
    before = bytes_read()
    assert runs([str(tmp_path)]) == 0
    assert bytes_read() - before < 2**16  # one log has changed since
    read_overview.__globals__["_search"].cache_clear()
    before = bytes_read()
    assert runs([str(tmp_path)]) == 0 and whole > 10 * 40 * 2**14
    assert bytes_read() - before < 40 * 2**15
    assert capsys.readouterr().out.count("val_loss=0.002503 at epoch 79.9") == 3 * 40


def test_a_run_says_how_it_stands_without_its_whole_log(tmp_path, monkeypatch):
    folder = write_log(tmp_path / "run", LOGS["the end has the monitor"], "step-00000010")
    monkeypatch.setattr("spectrakit.runs.history.read_log", None)  # the reader of all of it
    run = Run(folder)
    assert (run.status, run.error, run.best.value, run.metrics) == ("completed", None, 0.2, {"val_loss": 0.2})
    assert str(run) == "run: completed, best val_loss=0.2 at epoch 1"
