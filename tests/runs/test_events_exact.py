"""The log of a run: whole lines, one after the other, whatever became of the process that wrote them."""

import json
import os

from spectrakit.runs.events import EventLog, read_events


def test_each_event_is_a_line_with_its_time(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write("start", task="coffee")
    log.write("message", text="hello")
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [{k: v for k, v in line.items() if k != "t"} for line in lines] == [
        {"type": "start", "schema": 1, "task": "coffee"},
        {"type": "message", "text": "hello"},
    ]
    assert 0 <= lines[0]["t"] <= lines[1]["t"]


def test_a_torn_line_is_cut_off_and_time_goes_on(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"t": 100.0, "type": "message", "text": "before"}\n{"t": 101.0, "type": "mess')
    log = EventLog(path)
    log.write("message", text="after")
    log.close()
    assert [event["text"] for event in read_events(path)] == ["before", "after"]
    assert read_events(path)[1]["t"] >= 100.0 and path.read_text().count("\n") == 2


def test_what_a_full_disk_has_not_taken_is_written_when_there_is_room(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    log, write = EventLog(path), os.write

    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    log.write("message", text="one")
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))  # half a line
    log.write("message", text="two")
    assert path.read_bytes() == b""
    monkeypatch.setattr(os, "write", write)
    log.write("message", text="three")
    log.close()
    assert [event["text"] for event in read_events(path)] == ["one", "two", "three"]
