"Checkpoints on disks that fail, in threads that are killed, from people who mean harm; and copies elsewhere."

import copy
import errno
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import helpers
from helpers import TESTS, Touch, flip_bit
from spectrakit.api.actions import fit
from spectrakit.checkpoint import async_writer, host_copy, mirror
from spectrakit.checkpoint import store as checkpoint
from spectrakit.checkpoint.async_writer import CheckpointWriter, Snapshot
from spectrakit.checkpoint.host_copy import HostBuffers
from spectrakit.checkpoint.store import (
    CheckpointContent,
    CheckpointError,
    checkpoints,
    find_checkpoint,
    load_state,
    load_weights,
    mirror_checkpoint,
    prune,
    read_manifest,
    read_pointer,
    save_checkpoint,
    verify,
    write_tensors,
)
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.config.schema import CheckpointConfig
from spectrakit.distributed.context import create_run_context
from spectrakit.launch.launcher import tidy_checkpoints
from spectrakit.runs.events import EventLog, last_event, read_events
from spectrakit.system.files import file_sha256
from spectrakit.system.platforms.detect import detect
from spectrakit.train.loop import train_run
from spectrakit.train.state import (
    Data,
    Execution,
    Goal,
    Learner,
    Record,
    Schedule,
    TrainState,
    finish_mirror,
    finish_saving,
    first_saves_s,
    save,
    save_due_by_clock,
    writer_of,
)
from spectrakit.watchdog.time_budget import Budget, TimeLimit
from tasks import Line

MIB = 2**20
FILES = ("model.safetensors", "ema.safetensors", "state.pt", "rank-00000.pt", "manifest.json")


def state_of(value: float, mebibytes: float = 0.01) -> CheckpointContent:
    "Half of it weights, half of it optimizer state, all of one value."
    half = max(1, int(mebibytes * MIB / 8))
    return CheckpointContent(
        {"w": torch.full((half,), float(value))},
        {"step": value, "m": torch.full((half,), float(value))},
        [{"rng": [value]}],
    )


def write(folder: Path, *steps: int, best: int | None = None, ema: bool = False, mebibytes: float = 0.01) -> list[Path]:
    "Checkpoints of these steps, each with its number as its weights."
    made = []
    for step in steps:
        content = state_of(step, mebibytes)
        if ema:
            content = replace(content, ema={"w": content.model["w"] + 0.5})
        made.append(save_checkpoint(folder, step, content, best=step == best).path)
    return made


def names(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in checkpoints(folder)]


def value_of(path: Path) -> float:
    return load_weights(path)["w"][0].item()


def sign(path: Path) -> None:
    "Give a checkpoint a manifest that says of its files what they are, as one who means harm would."
    manifest = read_manifest(path)
    manifest["files"] = {
        name: {"bytes": (path / name).stat().st_size, "sha256": file_sha256(path / name)} for name in manifest["files"]
    }
    (path / "manifest.json").write_text(json.dumps(manifest))


# what is written


def test_the_manifest_says_what_is_in_the_files_and_every_file_is_in_it(tmp_path):
    (path,) = write(tmp_path, 3, ema=True)
    files = read_manifest(path)["files"]
    assert {*files, "manifest.json"} == {p.name for p in path.iterdir()} == set(FILES)
    for name, entry in files.items():
        data = (path / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert value_of(path) == 3.5 and load_weights(path, ema=False)["w"][0] == 3 and load_state(path)[0]["step"] == 3


def test_a_type_that_safetensors_do_not_have_is_refused_by_its_name(tmp_path):
    with open(tmp_path / "x", "wb") as file, pytest.raises(TypeError, match=r"odd is of type torch.float8_e4m3fnuz"):
        write_tensors(file, {"odd": torch.ones(2).to(torch.float8_e4m3fnuz)})
    with pytest.raises(CheckpointError, match="step-00000001 could not be written: odd is of type"):
        save_checkpoint(tmp_path, 1, CheckpointContent({"odd": torch.ones(2).to(torch.float8_e4m3fnuz)}, {}, [{}]))
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


# disks that fail


def test_a_disk_without_room_is_not_written_to_and_the_older_checkpoint_stays(small_disk):
    write(small_disk, 1, mebibytes=10)
    with pytest.raises(
        CheckpointError, match=r"step-00000002 needs 16.0 MiB and .* MiB are free. Older checkpoints are kept"
    ):
        write(small_disk, 2, mebibytes=15)
    assert names(small_disk) == [1] and find_checkpoint(small_disk)[1] == [] and len(list(small_disk.iterdir())) == 2


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_behind(small_disk, monkeypatch):
    write(small_disk, 1, mebibytes=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 10**12))
    for mebibytes in (15, 40):  # in the weights, and in the pickle behind them
        with pytest.raises(CheckpointError, match="No space left"):
            write(small_disk, 2, mebibytes=mebibytes)
    assert (
        sorted(p.name for p in small_disk.iterdir()) == ["LATEST", "step-00000001"]
        and verify(small_disk / "step-00000001") == []
    )


def test_a_step_that_is_saved_again_in_vain_keeps_its_first_checkpoint(small_disk, monkeypatch):
    write(small_disk, 1, mebibytes=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 0, 10**12))
    with pytest.raises(CheckpointError):
        write(small_disk, 1, mebibytes=20)
    assert (
        verify(small_disk / "step-00000001") == []
        and (small_disk / "step-00000001" / "model.safetensors").stat().st_size < 6 * MIB
    )


@pytest.mark.parametrize("where", ["fsync", "rename", "replace"])
def test_an_input_output_error_costs_one_checkpoint(tmp_path, monkeypatch, where):
    write(tmp_path, 1)
    good = getattr(os, where)

    def fails(*arguments):
        if where == "fsync" or "step-00000002" in str(arguments[1]) or "LATEST" in str(arguments[1]):
            raise OSError(errno.EIO, "Input/output error")
        return good(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, where, fails)
        with pytest.raises(CheckpointError, match="could not be written: Input/output error"):
            write(tmp_path, 2)
    path, notes = find_checkpoint(tmp_path)
    assert (
        path.name == "step-00000001" and notes == [] and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    )


def test_a_read_only_folder_costs_a_sentence(tmp_path, read_only):
    write(tmp_path / "run", 1)
    folder = read_only(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"could not be written: (Read-only file system|Permission denied)"):
        write(folder, 2)
    assert names(folder) == [1] and prune(folder, 1, max_bytes=0) == []


# what is found


def link(file: Path) -> None:
    elsewhere = file.parent.parent / f"elsewhere-{file.name}"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


SPOIL = {
    "flipped": flip_bit,
    "truncated": lambda f: os.truncate(f, f.stat().st_size // 2),
    "emptied": lambda f: os.truncate(f, 0),
    "gone": Path.unlink,
    "a link": link,
    "longer": lambda f: f.write_bytes(f.read_bytes() + b"x"),
    "a folder": lambda f: (f.unlink(), f.mkdir()),
}


@pytest.mark.parametrize("how", SPOIL)
@pytest.mark.parametrize("name", FILES)
def test_a_spoiled_file_sends_the_reader_to_the_checkpoint_before(tmp_path, name, how):
    older, newest = write(tmp_path, 1, 2, ema=True)
    SPOIL[how](newest / name)
    if name == "manifest.json" and how in (
        "flipped",
        "longer",
    ):  # a manifest has no hash of its own: one that can still be read is judged by the files
        (newest / name).write_text((newest / name).read_text()[:-9])
    path, notes = find_checkpoint(tmp_path)
    assert path == older and len(notes) == 1 and "step-00000002" in notes[0] and name in notes[0]
    assert value_of(path) == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"files": []}',
        '{"files": {}, "step": "2"}',
        '{"files": {}, "step": 2}',
        "[" * 9000,
        "\udcff",
    ],
)
def test_what_is_no_manifest_is_none(tmp_path, text):
    older, newest = write(tmp_path, 1, 2)
    (newest / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert find_checkpoint(tmp_path)[0] == older and "step-00000002" in find_checkpoint(tmp_path)[1][0]


@pytest.mark.parametrize("text", ["step-00000009", "", "../step-00000001", "/etc", "\x00", "x" * 10_000, b"\xff\xfe"])
@pytest.mark.parametrize("which", ["LATEST", "BEST"])
def test_a_pointer_to_nowhere_gives_the_newest_whole_one_and_says_so(tmp_path, which, text):
    *_, newest = write(tmp_path, 1, 2, best=1)
    (tmp_path / which).write_bytes(text if isinstance(text, bytes) else text.encode())
    path, notes = find_checkpoint(tmp_path, which)
    assert path == newest and (not text.strip() if isinstance(text, str) and not text.strip() else which in notes[0])


def test_links_to_folders_are_not_checkpoints_and_are_never_followed(tmp_path):
    (outside,) = write(tmp_path / "outside", 5)
    folder = tmp_path / "run"
    write(folder, 1, 2)
    (folder / "step-00000003").symlink_to(outside)
    (folder / "step-00000000").symlink_to(outside)
    (folder / "LATEST").write_text("step-00000003\n")
    assert names(folder) == [1, 2] and "link" in verify(folder / "step-00000003")[0]
    path, notes = find_checkpoint(folder)
    assert path.name == "step-00000002" and "step-00000003" in notes[0]
    (folder / "LATEST").write_text("step-00000002\n")
    assert prune(folder, 1) == ["step-00000001"] and verify(outside) == []


# people who mean harm


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "sub/model.safetensors", "..", ".", "", "a\x00b", "state.pt/../../secret"]
)
def test_the_paths_of_a_manifest_do_not_leave_its_folder(tmp_path, name):
    folder = tmp_path / "run"
    older, newest = write(folder, 1, 2)
    (folder / "secret").write_text("secret")
    manifest = read_manifest(newest)
    manifest["files"][name] = {"bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    assert find_checkpoint(folder)[0] == older
    with pytest.raises(CheckpointError):
        mirror_checkpoint(newest, tmp_path / "mirror")
    assert not [p for p in (tmp_path / "mirror").rglob("*") if p.is_file()]


@pytest.mark.parametrize("how", ["pickle", "torch", "old torch"])
@pytest.mark.parametrize("name", FILES[:-1])
def test_a_malicious_pickle_as_any_file_is_refused_in_a_sentence_and_runs_nothing(tmp_path, name, how):
    marker, (path,) = tmp_path / "ran", write(tmp_path / "run", 1, ema=True)
    evil = tmp_path / "evil.pt"
    if how == "pickle":
        evil.write_bytes(pickle.dumps({"w": Touch(marker)}))
    else:
        torch.save({"w": Touch(marker)}, evil, _use_new_zipfile_serialization=how == "torch")
    pickle.loads(evil.read_bytes()) if how == "pickle" else torch.load(evil, weights_only=False)
    assert marker.exists()  # it would do it
    marker.unlink()
    shutil.copy(evil, path / name)
    sign(path)
    assert find_checkpoint(tmp_path / "run") == (path, [])  # it is what its manifest says
    with pytest.raises(CheckpointError, match=f"step-00000001/{name} is refused: .") as told:
        load_weights(path, ema=name.startswith("ema")), load_state(path)
    assert not marker.exists() and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"PK\x03\x04junk",
        pickle.dumps([1, 2]),
        random.Random(7).randbytes(64),
        b"\xff" * 64,
        b"\x08" + bytes(7) + b"[1, 2, 3",
    ],
)
@pytest.mark.parametrize("name", ["state.pt", "model.safetensors"])
def test_noise_in_place_of_a_file_is_refused_in_a_sentence(tmp_path, name, data):
    (path,) = write(tmp_path, 1)
    (path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"is refused: ."):
        load_weights(path), load_state(path)


# what is deleted


def test_the_newest_and_the_best_are_kept_whatever_they_take(tmp_path):
    write(tmp_path, 1, 2, 3, 4, 5, best=2)
    size = checkpoint.checkpoint_bytes(tmp_path / "step-00000001")
    assert prune(tmp_path, 5) == [] and prune(tmp_path, 3) == ["step-00000001"]
    assert prune(tmp_path, 9, max_bytes=3 * size) == ["step-00000003"] and prune(
        tmp_path, 9, max_bytes=3 * size, need=1
    ) == ["step-00000004"]
    assert prune(tmp_path, 1, max_bytes=0) == [] and names(tmp_path) == [2, 5]


def test_what_is_being_copied_is_kept(tmp_path):
    write(tmp_path, 1, 2, 3)
    assert prune(tmp_path, 1, max_bytes=0, keep=("step-00000001",)) == ["step-00000002"]


@pytest.mark.parametrize("how", ["flipped", "truncated", "gone"])
def test_nothing_is_deleted_on_the_word_of_a_damaged_checkpoint(tmp_path, how):
    *_, newest = write(tmp_path, 1, 2, 3)
    SPOIL[how](newest / "state.pt")
    assert prune(tmp_path, 1, max_bytes=0) == [] and names(tmp_path) == [1, 2, 3]
    if how != "flipped":
        assert prune(tmp_path, 1, trusted={newest.name}) == []  # hashed here, and gone since
    (tmp_path / "LATEST").unlink()
    assert prune(tmp_path, 1) == []


def test_a_checkpoint_that_was_just_hashed_is_not_read_again(tmp_path, monkeypatch):
    write(tmp_path, 1, 2)
    monkeypatch.setattr(checkpoint, "file_sha256", lambda path: pytest.fail(f"{path.name} was read"))
    assert prune(tmp_path, 1, trusted={"step-00000002"}) == ["step-00000001"]


# the writer


def make(folder: Path, clock=time.monotonic, **settings) -> CheckpointWriter:
    "A writer with a list of its events."
    events = []
    settings = CheckpointConfig(**settings)
    made = CheckpointWriter(folder, settings, lambda kind, **fields: events.append((kind, fields)), clock=clock)
    made.events = events
    return made


def make_blocked(folder: Path, **settings) -> CheckpointWriter:
    "One whose writes wait until `go` is set; `began` tells that one waits."
    made = make(folder, **settings)
    made.go, made.began, write = threading.Event(), threading.Event(), made.files.write

    def blocked(snapshot):
        made.began.set()
        assert made.go.wait(60)
        return write(snapshot)

    made.files.write = blocked
    return made


def make_slow(folder: Path, now: list[float], seconds: float = 20, **settings) -> CheckpointWriter:
    "One whose writes take so many seconds of the clock `now`."
    made = make(folder, lambda: now[0], **settings)
    write = made.files.write

    def slow(snapshot):
        now[0] += seconds
        return write(snapshot)

    made.files.write = slow
    return made


def saved(k: CheckpointWriter) -> list[int]:
    return [fields["step"] for kind, fields in k.events if kind == "checkpoint"]


def messages(k: CheckpointWriter) -> list[str]:
    return [fields["text"] for kind, fields in k.events if kind == "message"]


def give(k: CheckpointWriter, step: int, kind: str = "periodic", mebibytes: float = 6, **more) -> bool:
    "Offer a state; whether it was wanted and taken."
    return k.wants(kind) and k.put(Snapshot(step, state_of(step, mebibytes), best=kind == "best", **more), kind)


def test_what_is_written_is_what_was_handed_over_whatever_training_does_meanwhile(tmp_path):
    k = make_blocked(tmp_path)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    big, adam = torch.arange(2.0**21), torch.optim.Adam(net.parameters())
    ema = [p.detach().clone() for p in net.parameters()]

    def step():
        net(torch.randn(8, 2)).square().mean().backward()
        adam.step()
        adam.zero_grad()
        for average, p in zip(ema, net.parameters(), strict=False):
            average.lerp_(p.detach(), 0.5)
        big.add_(1)
        shared["seen"][0] += 1
        shared["milestones"][7] += 1

    shared = {"seen": [0], "milestones": Counter({7: 1})}
    step()
    shared_state = {"adam": adam.state_dict(), "ema": ema, **shared}
    ranks = [{"torch": torch.get_rng_state()}]
    k.put(Snapshot(1, CheckpointContent({**net.state_dict(), "big": big}, shared_state, ranks)))
    wanted = copy.deepcopy(({**net.state_dict(), "big": big}, {"adam": adam.state_dict(), "ema": ema, **shared}))
    assert k.began.wait(60)
    for _ in range(3):
        step()
    k.go.set()
    k.flush()
    path, notes = find_checkpoint(k.folder)
    weights, (state, _) = load_weights(path), load_state(path)
    assert (
        notes == []
        and all(torch.equal(weights[name], t) for name, t in wanted[0].items())
        and not torch.equal(weights["big"], big)
    )
    for number, held in wanted[1]["adam"]["state"].items():
        assert all(torch.equal(state["adam"]["state"][number][name], t) for name, t in held.items())
    assert (
        all(torch.equal(a, b) for a, b in zip(state["ema"], wanted[1]["ema"], strict=False))
        and state["seen"] == [1]
        and state["milestones"] == Counter({7: 2})
    )


def test_tensors_that_nobody_else_changes_are_not_copied(tmp_path):
    k, content = make_blocked(tmp_path), state_of(1, 6)
    assert k.put(Snapshot(1, content, owned=True)) and k.began.wait(60) and k.saves.waiting.host_copy.spare == []
    content.model["w"][0] = 7.0  # so one can see it
    k.go.set()
    k.flush()
    assert value_of(checkpoints(k.folder)[0]) == 7 and k.saves.waiting.host_copy.spare == []


def test_memory_is_used_again_and_two_copies_never_share_it(tmp_path):
    k = make_blocked(tmp_path, keep_last=9)
    give(k, 1)
    give(k, 2, "best")
    assert k.saves.waiting.snapshot is not None
    k.go.set()
    k.flush()
    for step in range(3, 9):
        give(k, step)
        k.flush()
    assert len(k.saves.waiting.host_copy.spare) == 1 and [value_of(path) for path in checkpoints(k.folder)] == list(
        range(1, 9)
    )
    one = HostBuffers()
    first = one.copy({"w": torch.ones(9)})
    assert one.copy({"w": torch.zeros(9)})["w"] is first["w"] and one.bytes() == 36


def test_a_periodic_one_is_left_out_while_another_is_written_and_the_best_waits_for_it(tmp_path):
    k = make_blocked(tmp_path, keep_last=9)
    assert give(k, 1) and k.began.wait(60)
    assert not give(k, 2) and give(k, 3, "best") and not give(k, 4) and give(k, 5, "best") and not give(k, 6)
    assert saved(k) == [] and not (k.folder / "BEST").exists()
    k.go.set()
    helpers.wait_for(lambda: (k.poll(), len(saved(k)) == 2)[1], "the best one")
    assert (
        saved(k) == [1, 5]
        and [read_pointer(k.folder, w) for w in ("LATEST", "BEST")] == ["step-00000005"] * 2
        and names(k.folder) == [1, 5]
    )


def test_the_last_one_comes_after_what_is_under_way_and_is_there_when_it_returns(tmp_path):
    k = make_blocked(tmp_path, keep_last=9)
    give(k, 1), give(k, 2, "best")
    threading.Timer(0.1, k.go.set).start()
    assert give(k, 3, "last")
    assert saved(k) == [1, 2, 3] and [read_pointer(k.folder, w) for w in ("LATEST", "BEST")] == [
        "step-00000003",
        "step-00000002",
    ]
    assert k.has(1) and k.has(3) and not k.has(4)


def test_saving_takes_no_more_than_its_share_of_the_time(tmp_path):
    now = [0.0]
    k = make_slow(tmp_path, now, max_share=0.1)
    for step in range(500):
        now[0] += 10
        give(k, step, mebibytes=0.01)
        assert 20 * len(saved(k)) <= 0.1 * now[0] + 5 + 20
    assert 20 * len(saved(k)) > 0.09 * now[0]  # and not much less
    assert len(messages(k)) == 1 and "checkpoint.max_share=0.1" in messages(k)[0]
    assert give(k, 500, "last") and saved(k)[-1] == 500  # whatever it takes


def test_short_epochs_leave_the_best_in_memory_and_what_is_asked_for_by_steps_is_written(tmp_path):
    for words, wanted in (((), [1, 29, 40]), (("checkpoint.every_n_steps=9",), [*range(1, 38), 40])):
        now = [0.0]
        k = make_slow(tmp_path / str(len(words)), now, seconds=0.15, background=False)
        k.saves.writes.share.advance_s = first_saves_s(compose("trainer.accelerator=cpu", *words))
        for epoch in range(1, 41):  # each better than the one before
            now[0] += 0.2
            assert give(k, epoch, "best", mebibytes=0.01)
        k.close()
        assert saved(k) == wanted and value_of(find_checkpoint(k.folder, "BEST")[0]) == 40
        assert messages(k) == []


def test_the_best_one_waits_for_its_share_and_is_written_by_the_clock_or_at_the_end(tmp_path):
    now = [0.0]
    for late in (True, False):
        now[0] = 0.0
        k = make_slow(tmp_path / str(late), now, background=False)
        give(k, 1, "best"), give(k, 2, "best"), give(k, 3, "best")
        assert (
            saved(k) == [1] and k.saves.waiting.snapshot.step == 3 and read_pointer(k.folder, "BEST") == "step-00000001"
        )
        k.poll()
        assert saved(k) == [1]
        now[0] += 1000 * late
        k.poll() if late else k.close()
        assert (
            saved(k) == [1, 3]
            and value_of(find_checkpoint(k.folder, "BEST")[0]) == 3
            and k.saves.waiting.snapshot is None
        )


def test_a_write_that_fails_costs_one_message_and_the_next_one_is_tried(tmp_path, monkeypatch):
    k, good, now = make(tmp_path, keep_last=9), save_checkpoint, [0.0]
    k.clock = lambda: now[0]
    give(k, 1), k.flush()

    def fails(*arguments, **named):
        raise CheckpointError("step-00000002 could not be written: Input/output error.")

    monkeypatch.setattr(async_writer, "save_checkpoint", fails)
    give(k, 2), k.flush(), give(k, 3), k.flush()
    assert give(k, 4, "best")
    helpers.wait_for(lambda: (k.poll(), k.saves.waiting.snapshot)[1], "the best one to wait for another try")
    assert saved(k) == [1] and messages(k) == [
        "not saved: step-00000002 could not be written: Input/output error. Step 1 is kept."
    ]
    monkeypatch.setattr(async_writer, "save_checkpoint", good)
    k.poll()
    assert k.saves.waiting.snapshot is not None  # not at once
    assert give(k, 5) and (k.flush() or saved(k)) == [1, 5, 4]  # the newest first; the best was late
    assert [read_pointer(k.folder, w) for w in ("LATEST", "BEST")] == ["step-00000005", "step-00000004"]


def test_a_full_disk_keeps_what_is_there_and_the_writer_goes_on(small_disk):
    k = make(small_disk, keep_last=9)
    for step in (1, 2, 3):
        give(k, step, mebibytes=9), k.flush()
    assert saved(k) == [1, 2] and len(messages(k)) == 1 and "are free. Older checkpoints are kept" in messages(k)[0]
    assert [verify(path) for path in checkpoints(k.folder)] == [[], []] and not list(k.folder.glob(".*"))
    shutil.rmtree(k.folder / "step-00000001")
    give(k, 4, mebibytes=9), k.flush()
    assert saved(k) == [1, 2, 4] and read_pointer(k.folder, "LATEST") == "step-00000004"


def test_the_bound_in_bytes_holds_also_while_one_is_written_but_for_the_best_and_the_last(tmp_path):
    size = checkpoint.checkpoint_bytes(write(tmp_path / "one", 1, mebibytes=1)[0])
    k = make(tmp_path / "many", keep_last=9, max_bytes=3 * size + 100)
    most, whole = [], k.files.prune

    def watched(need=0):
        whole(need)
        most.append(need + sum(map(checkpoint.checkpoint_bytes, checkpoints(k.folder))))

    k.files.prune = watched
    for step in range(1, 8):
        give(k, step, "best" if step == 2 else "periodic", mebibytes=1)
    assert names(k.folder) == [2, 6, 7] and max(most) <= 3 * size + 100 and messages(k) == []
    k = make(tmp_path / "tiny", keep_last=9, max_bytes="1KB")
    for step in range(1, 8):
        give(k, step, "best" if step == 2 else "periodic", mebibytes=1)
    assert (
        names(k.folder) == [2, 7]
        and len(messages(k)) == 1
        and "max_bytes=1KB: the best and the last are always kept" in messages(k)[0]
    )


def test_without_memory_for_a_copy_training_waits_and_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setattr(host_copy, "free_memory", lambda: 0.0)
    k = make(tmp_path, keep_last=9)
    for step in (1, 2, 3):
        give(k, step, "best" if step == 2 else "periodic")
    assert (
        saved(k) == [1, 2, 3]
        and not k.saves.writes.background.busy
        and len(messages(k)) == 1
        and "no memory for a copy of 0.01 GiB" in messages(k)[0]
    )


def test_a_small_state_and_one_in_the_foreground_are_on_disk_at_once(tmp_path):
    for k, size in ((make(tmp_path / "small"), 1), (make(tmp_path / "fore", background=False), 6)):
        assert give(k, 1, mebibytes=size) and k.has(1) and saved(k) == [1]


KILLED = """
import sys, time, threading
from pathlib import Path
from spectrakit.checkpoint import store as checkpoint
from spectrakit.checkpoint.async_writer import CheckpointWriter, Snapshot
from spectrakit.config.schema import CheckpointConfig
from test_store import state_of
k = CheckpointWriter(Path(sys.argv[1]), CheckpointConfig())
k.put(Snapshot(1, state_of(1, 6))); k.flush()
write = checkpoint._HashedFile.write
def slow(self, data):
    done = write(self, data)
    if memoryview(data).nbytes > 2**20 and self._file.name.endswith(sys.argv[2]):
        self._file.flush(); print("writing", flush=True); time.sleep(600)
    return done
checkpoint._HashedFile.write = slow
k.put(Snapshot(2, state_of(2, 6), best=True), "best")
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
def test_a_process_killed_in_the_middle_of_a_background_write_leaves_the_older_one(tmp_path, file):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), file],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    ) as child:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL and child.stdout.read() == ""
    folder = tmp_path / "checkpoints"
    path, notes = find_checkpoint(folder)
    assert path.name == "step-00000001" and notes == [] and not (folder / "BEST").exists()
    (half,) = folder.glob(".*")
    assert half.name.startswith(".writing-step-00000002") and not (half / "manifest.json").exists()
    tidy_checkpoints(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["LATEST", "step-00000001"]


ENDING = """
import sys, time, threading
from dataclasses import replace
from pathlib import Path
import torch
from spectrakit.checkpoint import store
from spectrakit.checkpoint.async_writer import CheckpointWriter, Snapshot
from spectrakit.config.schema import CheckpointConfig
from test_store import state_of
writer = CheckpointWriter(Path(sys.argv[1]), CheckpointConfig(), clock=lambda: 0.0)
begun = threading.Event()
writer.put(Snapshot(1, state_of(1, 6))); writer.flush()
write = store._HashedFile.write
def slow(self, data):
    size = write(self, data)
    if self._file.name.endswith(sys.argv[2]):
        begun.set(); time.sleep(float(sys.argv[3]))
    return size
store._HashedFile.write = slow
content = replace(state_of(2, 16), state={"many": [torch.ones(9) for _ in range(5000)]})
writer.put(Snapshot(2, content, best=True), "best")
begun.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "seconds"), [("state.pt", 0.001), ("state.pt", 600), ("model.safetensors", 600)], ids=str
)
def test_a_process_that_ends_neither_waits_for_a_write_nor_aborts(tmp_path, file, seconds):
    # torch.save stands on the thread's stack: up to Python 3.13 the interpreter's end would unwind it, and abort
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path), file, str(seconds)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert find_checkpoint(tmp_path / "checkpoints")[0].name == "step-00000001"


# the second folder


def mirrored(k: CheckpointWriter, mirror: Path) -> Path:
    return mirror / k.run_dir.name / "checkpoints"


def test_the_mirror_gets_the_newest_and_the_best_and_is_pruned_as_the_original(tmp_path):
    (tmp_path / "coffee-1").mkdir()
    (tmp_path / "coffee-1" / "config.yaml").write_text("a: 1\n")
    k = make(tmp_path / "coffee-1", mirror=str(tmp_path / "drive"), keep_last=2, background=False)
    for step in range(1, 6):
        (
            give(k, step, "best" if step == 2 else "periodic", mebibytes=0.01),
            helpers.wait_for(lambda: (k.poll(), not k.mirror.mirror.job.busy)[1], "the copy"),
        )
    k.close()
    there = mirrored(k, tmp_path / "drive")
    assert names(there) == names(k.folder) == [2, 4, 5] and [verify(path) for path in checkpoints(there)] == [[]] * 3
    assert [read_pointer(there, w) for w in ("LATEST", "BEST")] == ["step-00000005", "step-00000002"]
    assert (there.parent / "config.yaml").read_text() == "a: 1\n" and messages(k) == [
        f"checkpoints are copied to {there.parent}"
    ]


def test_a_copy_that_does_not_equal_its_manifest_is_not_given_a_name(tmp_path):
    one, two = write(tmp_path / "run", 1, 2)
    mirror_checkpoint(one, tmp_path / "mirror")
    flip_bit(two / "state.pt")
    with pytest.raises(CheckpointError, match=r"the copy of step-00000002 is damaged: .*state.pt is damaged"):
        mirror_checkpoint(two, tmp_path / "mirror")
    assert (
        sorted(p.name for p in (tmp_path / "mirror").iterdir()) == ["LATEST", "step-00000001"]
        and read_pointer(tmp_path / "mirror", "LATEST") == "step-00000001"
    )


def test_a_step_that_was_saved_again_is_copied_again(tmp_path):
    (one,) = write(tmp_path / "run", 1)
    mirror_checkpoint(one, tmp_path / "mirror")
    save_checkpoint(tmp_path / "run", 1, state_of(7))
    mirror_checkpoint(one, tmp_path / "mirror")
    assert value_of(tmp_path / "mirror" / one.name) == 7


@pytest.mark.parametrize("fault", ["not mounted", "read-only", "full"])
def test_a_mirror_that_fails_costs_one_message(tmp_path, fault, request):
    mirror = tmp_path / "drive"
    if fault == "read-only":
        mirror.mkdir()
        request.getfixturevalue("read_only")(mirror)
    if fault == "full":
        mirror = request.getfixturevalue("small_disk")
    k = make(
        tmp_path / "coffee-1",
        mirror=str(mirror / "content" / "drive" if fault == "not mounted" else mirror),
        keep_last=1,
        background=False,
    )
    for step in (1, 2):
        (
            give(k, step, mebibytes=30),
            helpers.wait_for(lambda: (k.poll(), not k.mirror.mirror.job.busy)[1], "the copy to fail"),
        )
    k.close()
    assert saved(k) == [1, 2] and names(k.folder) == [2] and len(messages(k)) == 1
    told = {
        "not mounted": "Is it mounted?",
        "read-only": "Read-only file system|Permission denied",
        "full": "are free",
    }[fault]
    assert re.search(told, messages(k)[0]) and "not copied to checkpoint.mirror=" in messages(k)[0]


def test_whenever_a_machine_is_taken_away_the_checkpoint_in_the_mirror_can_be_resumed(tmp_path, monkeypatch):
    (tmp_path / "coffee-1").mkdir()
    there = []
    for name in ("config.yaml", "environment.json"):
        (tmp_path / "coffee-1" / name).write_text("{}\n")

    def copy(*given):
        there.append({path.name: path.read_text() for path in (tmp_path / "drive" / "coffee-1").glob("*.*")})
        return mirror_checkpoint(*given)

    monkeypatch.setattr(mirror, "mirror_checkpoint", copy)
    for step in (1, 2):
        k = make(tmp_path / "coffee-1", mirror=str(tmp_path / "drive"), background=False)
        (tmp_path / "coffee-1" / "events.jsonl").write_text(f"{step}\n")
        give(k, step, mebibytes=0.01)
        k.close()
    assert there[0] == {"config.yaml": "{}\n", "environment.json": "{}\n", "events.jsonl": "1\n"}
    assert there[-1]["events.jsonl"] == "2\n" and mirrored(k, tmp_path / "drive").is_dir()


def test_a_slow_mirror_is_broken_off_when_the_run_has_to_end(tmp_path, monkeypatch):
    k = make(tmp_path / "coffee-1", mirror=str(tmp_path / "drive"), background=False)
    give(k, 1, mebibytes=1)
    k.close(mirror_s=-1.0)
    assert "broken off" in messages(k)[0] and names(mirrored(k, tmp_path / "drive")) == [] and k.has(1)
    k = make(tmp_path / "coffee-1", mirror=str(tmp_path / "drive"), background=False)
    give(k, 1, mebibytes=1)
    k.close(mirror_s=60.0)
    assert names(mirrored(k, tmp_path / "drive")) == [1]


# within a run


def state_in(folder: Path, *words: str) -> TrainState:
    "The state of a small net, as `prepare` makes it."
    folder.mkdir(exist_ok=True)
    config, net = compose("trainer.accelerator=cpu", *words), nn.Linear(3, 1)
    return TrainState(
        None,
        config,
        Execution(create_run_context(config, detect(environ={})), folder, Budget(TimeLimit(None, 0.0, "none"))),
        Learner(net, list(net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1), [0.1]),
        Data(BatchPlan(8, 4), valid=object()),
        Schedule(99, 99),
        Record(EventLog(folder / "events.jsonl")),
        Goal("val_loss"),
    )


def progress_in(s: TrainState, which: str = "LATEST") -> dict:
    return load_state(find_checkpoint(s.checkpoints, which)[0])[0]["progress"]


def test_a_result_that_comes_after_its_step_was_saved_is_in_the_checkpoint_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(async_writer, "SMALL", 0)
    s = state_in(tmp_path / "run")
    s.progress.step = 4
    save(s)
    s.progress.best_value, s.progress.best_step, s.progress.eval_step, s.progress.saved_step = (
        0.5,
        4,
        4,
        -1,
    )  # as the end of a run does it
    save(s, best=True, last=True)
    for which in ("LATEST", "BEST"):
        assert {**progress_in(s, which), "saved_step": 4}.items() >= {
            "step": 4,
            "best_value": 0.5,
            "best_step": 4,
            "eval_step": 4,
        }.items()
    finish_saving(s)
    assert names(s.checkpoints) == [4]


def test_the_last_save_looks_at_the_disk_and_not_at_what_was_handed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(async_writer, "SMALL", 0)
    s = state_in(tmp_path / "run")
    s.progress.step = 4
    with monkeypatch.context() as patched:
        patched.setattr(async_writer, "save_checkpoint", lambda *a, **k: (_ for _ in ()).throw(CheckpointError("no")))
        save(s)
        writer_of(s).flush()
    assert s.progress.saved_step == 4 and names(s.checkpoints) == []
    save(s, last=True)
    assert names(s.checkpoints) == [4]
    before = helpers.tree_hashes(s.checkpoints)
    save(s, last=True)  # it is there
    assert helpers.tree_hashes(s.checkpoints) == before
    flip_bit(s.checkpoints / "step-00000004" / "state.pt")
    s.record.writer = None  # as after a new start: nothing is known of the disk
    save(s, last=True)
    assert verify(s.checkpoints / "step-00000004") == []


def test_the_first_checkpoint_comes_early_and_others_by_the_clock(tmp_path):
    s = state_in(tmp_path / "run", "checkpoint.every_minutes=30", "checkpoint.first_within_minutes=5")
    s.progress.step, began = 1, time.monotonic()
    s.record.began = began, 0

    def wanted(minutes):
        return save_due_by_clock(s, began + 60 * minutes)

    assert [wanted(m) for m in (0, 4.9, 5.1, 31)] == [False, False, True, True]
    save(s)
    assert [wanted(m) for m in (5.1, 29, 31)] == [False, False, True]
    off = state_in(tmp_path / "off", "checkpoint.first_within_minutes=null")
    assert not save_due_by_clock(off, time.monotonic() + 1e6)
    assert not save_due_by_clock(state_in(tmp_path / "none", "checkpoint.enabled=false"), time.monotonic() + 1e6)


def test_weights_that_are_not_finite_are_not_saved_and_sums_that_overflow_are_no_such(tmp_path):
    s = state_in(tmp_path / "run", "checkpoint.every_n_steps=1")
    with torch.no_grad():
        s.learner.params[0].fill_(3e38)  # their sum is not finite
    s.progress.step = 1
    save(s)
    with torch.no_grad():
        s.learner.params[0][0, 1] = float("nan")
    s.progress.step = 2
    save(s)
    assert names(s.checkpoints) == [1] and s.progress.saved_step == 1
    assert (
        last_event(read_events(tmp_path / "run" / "events.jsonl"), "message")["text"]
        == "step 2 was not saved: its weights are not finite"
    )


SETTINGS = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=4",
    "trainer.max_epochs=3",
    "training.ema_decay=0.9",
    "checkpoint.every_n_steps=3",
    "checkpoint.keep_last=99",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "optimizer.lr=0.01",
    "trainer.log_every_n_steps=5",
    "trainer.log_min_seconds=0",
)


def train(folder: Path, *words: str) -> list[dict]:
    "Train the linear task in this process; its events."
    folder.mkdir()
    config = compose(*SETTINGS, *words)
    status, reason = train_run(
        Line(),
        config,
        Execution(create_run_context(config, detect(environ={})), folder, Budget(TimeLimit(None, 0.0, "none"))),
    )
    assert status == "completed", reason
    return read_events(folder / "events.jsonl")


def test_a_run_that_saves_in_the_background_has_the_same_checkpoints(tmp_path, monkeypatch):
    train(tmp_path / "fore", "checkpoint.background=false")
    monkeypatch.setattr(async_writer, "SMALL", 0)
    events = train(tmp_path / "back")
    fore, back = (tmp_path / name / "checkpoints" for name in ("fore", "back"))
    assert set(names(back)) <= set(names(fore)) and max(names(back)) == max(names(fore)) == 30
    assert (
        read_pointer(back, "BEST") == read_pointer(fore, "BEST")
        and read_pointer(back, "LATEST") == read_pointer(fore, "LATEST") == "step-00000030"
    )
    assert sorted(e["step"] for e in events if e["type"] == "checkpoint") == names(back) and all(
        verify(path) == [] for path in checkpoints(back)
    )
    for path in checkpoints(back):
        for ema in (False, True):
            one, two = load_weights(path, ema), load_weights(fore / path.name, ema)
            assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
        one, two = load_state(path), load_state(fore / path.name)
        one[0]["progress"]["saved_step"] = two[0]["progress"]["saved_step"]
        assert same(one, two), path.name


def same(a, b) -> bool:
    "Whether two nested states are equal, to the bit."
    if torch.is_tensor(a):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_a_run_with_a_tiny_bound_ends_with_its_best_and_its_last(tmp_path):
    events = train(tmp_path / "run", "checkpoint.max_bytes=1KB")
    folder = tmp_path / "run" / "checkpoints"
    assert {f"step-{step:08d}" for step in names(folder)} == {read_pointer(folder, "BEST"), "step-00000030"}
    assert len([e for e in events if e["type"] == "message" and "max_bytes" in e["text"]]) == 1


def test_a_damaged_best_does_not_keep_the_newest_from_being_copied(tmp_path):
    k = make(tmp_path / "coffee-1", mirror=str(tmp_path / "drive"), background=False)
    give(k, 1, "best", mebibytes=0.01)
    flip_bit(k.folder / "step-00000001" / "state.pt")
    k.mirror.finish()
    shutil.rmtree(tmp_path / "drive", ignore_errors=True)
    give(k, 2, "last", mebibytes=0.01)
    k.close()
    assert names(mirrored(k, tmp_path / "drive")) == [2] and "step-00000001 is damaged" in messages(k)[-1]


def test_a_session_leaves_its_run_in_the_second_folder(tmp_path):
    s = state_in(tmp_path / "coffee-1", f"checkpoint.mirror={tmp_path / 'drive'}")
    s.progress.step = 3
    save(s, best=True, last=True)
    finish_saving(s)
    s.record.log.write("end", status="completed", reason="done", step=3)
    finish_mirror(s)
    there = tmp_path / "drive" / "coffee-1"
    assert (
        find_checkpoint(there / "checkpoints", "BEST")[0].name == "step-00000003"
        and last_event(read_events(there / "events.jsonl"), "end")["status"] == "completed"
    )


# --- a checkpoint that a person asks for ------------------------------------------------------------------------------

ASKING = (
    "trainer.accelerator=cpu",
    "data.batch_size=4",
    "trainer.max_epochs=100000",
    "optimizer.lr=0.001",
    "checkpoint.every_n_epochs=null",
    "checkpoint.first_within_minutes=null",
    "trainer.check_val_every_n_epoch=100000",
)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux is the home of several processes")
@pytest.mark.parametrize("devices", [1, 2])
def test_the_file_checkpoint_saves_at_once_and_the_run_goes_on(start_cli, here, devices):
    process = start_cli("train", helpers.task("Troubled"), *ASKING, f"trainer.devices={devices}")
    run_dir = helpers.wait_for(lambda: next(here.glob("runs/*/events.jsonl"), None), "a run").parent

    def step() -> int:
        return (last_event(read_events(run_dir / "events.jsonl"), "step") or {"step": 0})["step"]

    helpers.wait_for(lambda: step() > 0, "training")
    assert checkpoints(run_dir / "checkpoints") == []
    for number in (1, 2):
        (run_dir / "CHECKPOINT").touch()
        helpers.wait_for(lambda: not (run_dir / "CHECKPOINT").exists(), "the checkpoint")
        there, now = checkpoints(run_dir / "checkpoints"), step()
        assert len(there) == number and verify(there[-1]) == []
        helpers.wait_for(lambda now=now: step() > now, "training to go on")
    (run_dir / "STOP").touch()
    out, err = process.communicate(timeout=60)
    assert "interrupted" in out and process.returncode == 130, out + err


@pytest.mark.slow
def test_where_no_checkpoints_are_kept_the_one_who_asks_is_told(here, monkeypatch):
    monkeypatch.setattr(
        Line,
        "during",
        lambda self, number: (time.sleep(0.05), number == 1 and (helpers.only_run(here) / "CHECKPOINT").touch()),
    )
    run = fit(
        Line(), compose(*ASKING, "launch.mode=inline", "trainer.max_epochs=8", "checkpoint.enabled=false"), show=False
    )
    assert run.status == "completed" and not (run.path / "CHECKPOINT").exists()
    assert [e["text"] for e in run.events if e["type"] == "message"] == [
        "a checkpoint was requested, but checkpoint.enabled=false: no checkpoint was saved"
    ]
