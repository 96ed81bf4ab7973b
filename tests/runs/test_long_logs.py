"""Logs of many lines, and damaged ones: readers take the end of them or a row at a time."""

import csv
import os
import tracemalloc
from pathlib import Path

import pytest

from spectrakit.api.run import Run, summarize
from spectrakit.config.compose import compose, snapshot
from spectrakit.runs import events as events_module
from spectrakit.runs.events import EventLog, EventReader, effective_events, encode_event, log_file, read_events
from spectrakit.runs.history import history_of, read_history
from spectrakit.runs.log_reader import EventStream, write_metrics_csv

LINES = 30_000
MEGABYTE = 2**20


def point(step: int, **more) -> bytes:
    "A log point."
    return encode_event(step / 10, "step", {"step": step, "epoch": step / 100, "loss": 1.0, "lr": 0.1, **more})


def folder_with(path: Path, *lines: bytes) -> Path:
    "A run's folder with these lines as its log."
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text(snapshot(compose("task.name=coffee")))
    log_file(path).write_bytes(b"".join(lines))
    return path


@pytest.fixture(scope="module")
def long_run(tmp_path_factory) -> Path:
    "A run of 30,000 log points that went back once, with its end."
    start = encode_event(0, "start", {"schema": 1, "task": "coffee", "monitor": "val_loss"})
    back = encode_event(5000, "restart", {"step": LINES // 2 - 100})
    points = [point(step, samples_per_s=9.5) for step in range(1, LINES + 1)]
    end = encode_event(LINES, "end", {"status": "completed", "reason": "done", "step": LINES})
    return folder_with(
        tmp_path_factory.mktemp("long") / "coffee-1",
        *[start, *points[: LINES // 2], back, *points[LINES // 2 - 100 :], end],
    )


def peak_of(action) -> float:
    "The most memory that Python held during `action`, in megabytes."
    tracemalloc.start()
    action()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MEGABYTE


@pytest.fixture
def bytes_read(monkeypatch) -> list[int]:
    "The bytes of each read of a file that runs.events opens."
    sizes: list[int] = []

    def opens(path, *args):
        file = open(path, *args)  # noqa: SIM115  # closed by its user

        class Counted:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def read(self, *size):
                data = file.read(*size)
                sizes.append(len(data))
                return data

            def __getattr__(self, name):
                return getattr(file, name)

        return Counted()

    monkeypatch.setattr(events_module, "open", opens, raising=False)
    return sizes


def test_a_resumed_log_reads_its_end_alone(long_run, bytes_read):
    assert log_file(long_run).stat().st_size > 3 * MEGABYTE
    log = EventLog(log_file(long_run))
    seconds = log.seconds()
    log.close()
    assert seconds >= LINES and 0 < sum(bytes_read) <= 2**17


TAILS = {
    "whole": b"",
    "torn": b'{"t": 99, "type": "st',
    "carriage returns": b'{"t": 8, "type": "message", "text": "b"}\r\n',
    "no text": b'\xff\xfe\x00\n{"t": NaN, "type": "message", "text": ""}\n[1, 2]\n\n\n',
    "a huge line": b"x" * (6 * MEGABYTE) + b"\n",
    "a huge torn line": b"y" * (3 * MEGABYTE),
    "a huge event": b'{"t": 7.5, "type": "message", "text": "' + b"z" * MEGABYTE + b'"}\n',
}


@pytest.mark.parametrize("tail", TAILS)
def test_time_goes_on_from_the_last_event_before_any_end(tmp_path, tail):
    path = log_file(folder_with(tmp_path / "run", point(60), point(70), TAILS[tail]))
    expected = max(event["t"] for event in read_events(path))  # as a reader of every line finds it
    log = EventLog(path)
    assert expected <= log.seconds() < expected + 60
    log.write("message", text="after")
    log.close()
    assert read_events(path)[-1]["text"] == "after" and read_events(path)[-1]["t"] >= expected


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"\xff", b"half"])
def test_a_log_without_an_event_begins_at_zero(tmp_path, content):
    run = folder_with(tmp_path / "run", content)
    assert EventLog(log_file(run)).seconds() < 60
    with EventStream(run) as events:
        assert list(events) == [] and write_metrics_csv(events, run / "metrics.csv")[0] == "step"
    assert (run / "metrics.csv").read_text().splitlines() == ["step,epoch,t,loss,lr,samples_per_s"]


def test_a_sparse_log_is_not_read_to_its_beginning(tmp_path):
    run = folder_with(tmp_path / "run", point(1))
    with open(log_file(run), "r+b") as file:
        file.truncate(2**31)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    assert EventLog(log_file(run)).seconds() < 60


@pytest.mark.slow
def test_summary_and_metrics_of_a_long_run_hold_a_few_rows(long_run):
    held = []
    assert peak_of(lambda: held.append(summarize(Run(long_run), draw=False))) < 9
    assert held[0]["steps"] == LINES and held[0]["epochs"] == LINES / 100 and held[0]["status"] == "completed"
    with open(long_run / "metrics.csv") as table:
        assert [int(row["step"]) for row in csv.DictReader(table)] == list(range(1, LINES + 1))


@pytest.mark.slow
def test_readers_of_a_growing_log_keep_no_events(long_run):
    def read() -> None:
        assert sum(1 for _ in EventReader(log_file(long_run)).each()) == LINES + 103

    assert peak_of(read) < 9


@pytest.mark.parametrize("tail", TAILS)
def test_a_stream_has_the_events_that_count(tmp_path, tail):
    lines = [point(step) for step in range(1, 9)]
    back = [encode_event(2, "restart", {"step": step}) for step in (5, 0, 3)]
    run = folder_with(tmp_path / "run", *lines, back[0], *lines[5:], TAILS[tail], b"\n", back[2], *lines[3:6])
    with EventStream(run) as events:
        found = list(events)
        history = history_of(run, events, lambda event: None)
    decoded = [e for e in read_events(log_file(run)) if len(str(e)) < 5 * MEGABYTE]
    assert found == effective_events(decoded)
    assert [e["step"] for e in found if e["type"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert history.points["step"].tolist() == [6] and history.events == read_history(run).events


def test_rows_of_a_disordered_log_are_in_order(tmp_path):
    evaluation = encode_event(1, "eval", {"step": 2, "epoch": 1.0, "metrics": {"val_loss": 0.5}})
    run = folder_with(tmp_path / "run", point(1), point(3), point(2, lrs={"body": 0.5}), evaluation, point(4))
    with EventStream(run) as events:
        names = write_metrics_csv(events, run / "metrics.csv")
    with open(run / "metrics.csv") as table:
        rows = list(csv.DictReader(table))
    assert names[6:] == ["lr_body", "val_loss"] and [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert (rows[1]["val_loss"], rows[1]["lr_body"], rows[2]["val_loss"]) == ("0.5", "0.5", "")


def test_many_restarts_cost_no_square(tmp_path, monkeypatch):
    events = [{"type": "restart", "step": n} if n % 2 else {"type": "step", "step": n} for n in range(20_000)]
    asked = []
    real = events_module.is_dropped
    monkeypatch.setattr(events_module, "is_dropped", lambda *args: asked.append(1) or real(*args))
    assert len(effective_events(events)) == 20_000 and len(asked) == 20_000
