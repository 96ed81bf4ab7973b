"""The one reader of a run: what it reads, how often, and that nobody else does."""

import ast
import json
import os
from pathlib import Path

import pytest

import spectrakit
from spectrakit.api.run import Run, open_run, summarize
from spectrakit.cli.commands.runs import show
from spectrakit.config.compose import compose, snapshot
from spectrakit.runs.events import EventLog, effective_events, log_file, read_events
from spectrakit.runs.history import History, read_all_events, read_end, read_history
from spectrakit.runs.run_dir import read_environment, update_environment

OWN = Path(spectrakit.__file__).parent


@pytest.fixture
def run_dir(tmp_path) -> Path:
    "A run of twenty steps that went back once, with its end."
    folder = tmp_path / "coffee-1"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(snapshot(compose("task.name=coffee")))
    (folder / "environment.json").write_text('{"launch": {"world_size": 2}}')
    log = EventLog(log_file(folder))
    log.write("start", task="coffee", monitor="val_loss", mode="min")
    for place, step in enumerate([*range(1, 13), *range(9, 21)]):
        if place == 12:
            log.write("restart", step=8, epoch=0.8)
        log.write("step", step=step, epoch=step / 10, loss=1 / step, lr=0.1, samples_per_s=100)
        if step in (10, 20):
            log.write("eval", step=step, epoch=step / 10, metrics={"val_loss": 1 / step}, best=True)
    log.write("end", status="completed", reason="all 20 steps done", step=20)
    log.close()
    return folder


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    "The files named events.jsonl that are opened for reading from now on, in this process."
    opened: list[str] = []

    def watched(open_file):
        def opens(file, mode="r", *args, **options):
            if str(file).endswith("events.jsonl") and "r" in mode:
                opened.append(str(file))
            return open_file(file, mode, *args, **options)

        return opens

    for module in ("events", "log_reader", "history", "run_dir", "resume_dir"):
        monkeypatch.setattr(f"spectrakit.runs.{module}.open", watched(open), raising=False)
    monkeypatch.setattr(Path, "open", watched(Path.open))
    return opened


def test_a_log_is_opened_once_for_all_that_is_asked_of_a_run(run_dir, reads, monkeypatch):
    monkeypatch.setattr("spectrakit.runs.log_reader._LOGS", {})
    run = open_run(run_dir)
    assert run.metrics == {"val_loss": 1 / 20} and run.status == "completed" and run.error is None
    assert run.best.step == 20 and "best val_loss=0.05" in str(run)
    assert len(reads) == 1


def test_a_summary_reads_the_log_once(run_dir, reads, monkeypatch):
    monkeypatch.setattr("spectrakit.runs.log_reader._LOGS", {})
    summary = summarize(Run(run_dir))
    assert len(reads) == 1
    assert (summary["status"], summary["steps"], summary["epochs"]) == ("completed", 20, 2.0)
    assert summary["metrics"] == {"val_loss": 1 / 20} and summary["launch"] == {"world_size": 2}
    assert len((run_dir / "metrics.csv").read_text().splitlines()) == 21  # what the restart took back is not in it


def test_the_command_show_reads_the_log_once(run_dir, reads, monkeypatch, capsys):
    monkeypatch.setattr("spectrakit.runs.log_reader._LOGS", {})
    assert show([str(run_dir)]) == 0
    assert len(reads) == 1
    assert "continued from optimizer step 8" in capsys.readouterr().out


def test_of_a_log_that_has_grown_only_the_new_lines_are_read(run_dir, monkeypatch):
    first = read_history(run_dir)
    seconds, decoded = first.seconds, []
    monkeypatch.setattr("spectrakit.runs.log_reader.decode_lines", lambda lines: decoded.extend(lines) or [])
    assert read_history(run_dir).status == "completed" and decoded == []
    with open(log_file(run_dir), "ab") as log:
        log.write(b'{"t": 99, "type": "message", "text": "later"}\n{"t": 100, "ty')
    read_history(run_dir)
    assert [json.loads(line)["t"] for line in decoded if line] == [99]
    assert first.seconds == seconds and len(first.of_type("message")) == 0  # what was read before stays as it was


def test_a_history_is_what_all_events_of_the_log_say(run_dir):
    events = effective_events(read_events(log_file(run_dir)))
    history, every = read_all_events(run_dir)
    assert every == events and history.events == [e for e in events if e["type"] != "step"]
    for name in ("step", "epoch", "t", "loss"):
        assert history.points[name].tolist() == [e[name] for e in events if e["type"] == "step"]
    assert read_end(run_dir)[::2] == ("completed", 20) and history.seconds == read_end(run_dir)[1]


@pytest.mark.parametrize("change", ["replaced", "cut", "rewritten"])
def test_a_log_that_is_another_one_is_read_from_its_beginning(run_dir, change):
    assert read_history(run_dir).status == "completed"
    line = b'{"t": 1, "type": "end", "status": "failed", "reason": "no memory"}\n'
    if change == "replaced":
        (run_dir / "new").write_bytes(line * 100)
        os.replace(run_dir / "new", log_file(run_dir))
    elif change == "cut":
        with open(log_file(run_dir), "r+b") as log:
            log.write(line)
            log.truncate()
    else:
        log_file(run_dir).write_bytes(line * 100)
    assert read_history(run_dir).status == "failed" and read_history(run_dir).steps == 0


def test_a_foreign_line_and_a_torn_end_are_told_and_do_not_hide_the_rest(run_dir):
    with open(log_file(run_dir), "ab") as log:
        log.write(b'\xff\xfe\n[1, 2]\n{"t": 3, "type": "end", "sta')
    history = read_history(run_dir)
    assert history.status == "completed" and history.unreadable_count == 3
    assert history.unreadable[-1].endswith('"sta') and any(
        "3 lines of the log are no event" in n for n in history.notes
    )


@pytest.mark.slow
def test_a_hole_of_many_gigabytes_is_not_read_to_its_end(run_dir):
    before = read_history(run_dir).events
    with open(log_file(run_dir), "ab") as log:
        log.truncate(2**39)
    assert read_history(run_dir).events == before and str(open_run(run_dir))


def test_metrics_that_were_too_many_to_be_kept_are_read_again(tmp_path):
    metrics = {f"m{i}": float(i) for i in range(500)}
    log = EventLog(log_file(tmp_path))
    log.write("start", monitor="m7")
    log.write("eval", step=1, epoch=1, metrics=metrics, best=True)
    log.close()
    assert Run(tmp_path).metrics == metrics and len(read_history(tmp_path).best["metrics"]) == 100


def test_what_stays_in_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("spectrakit.runs.log_reader._LOGS", kept := {})
    monkeypatch.setattr("spectrakit.runs.log_reader._MOST_POINTS", 25)
    for name in "abc":
        (tmp_path / name).mkdir()
        log = EventLog(log_file(tmp_path / name))
        for step in range(10):
            log.write("step", step=step, epoch=0, loss=0.5)
        log.close()
        assert isinstance(read_history(tmp_path / name), History)
    assert [Path(name).parent.name for name in kept] == ["b", "c"]
    assert all(not log.events for log in kept.values())  # log points are numbers in columns, and no mappings


def test_facts_are_added_beside_those_that_are_there(run_dir):
    update_environment(run_dir, decided={"world_size": 2})
    assert read_environment(run_dir) == {"launch": {"world_size": 2}, "decided": {"world_size": 2}}


@pytest.mark.slow
def test_nobody_but_runs_names_the_two_files():
    "All others ask `runs.history`; a mirror copies the files as they are, without reading what is in them."
    named = {
        f"{path.parent.name}/{path.name}: {node.value}"
        for path in OWN.rglob("*.py")
        if path.parent.name != "runs" and path.name != "_modidx.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("events.jsonl", "environment.json")
    }
    mirrors = {"checkpoint/async_writer.py", "checkpoint/mirror.py"}
    named = {entry for entry in named if entry.split(":")[0] not in mirrors}
    assert named == set(), "ask runs.history, or name the log with runs.events.log_file"
