"""What is on the disk when a call returns: what is flushed, and in which order it gets its name."""

import os
import re
import time
from pathlib import Path

import pytest
import torch

from spectrakit.checkpoint.mirror import checkpoints_to_mirror, mirror_run
from spectrakit.checkpoint.store import (
    CheckpointContent,
    find_checkpoint,
    mirror_checkpoint,
    prune,
    save_checkpoint,
    verify,
)
from spectrakit.system.files import fsync_path, write_atomic


@pytest.fixture
def recorded(tmp_path, monkeypatch) -> list[tuple]:
    "What this process has flushed, renamed, replaced below its folder, in order; PID for its number and random names."
    calls: list[tuple] = []
    flush, rename, replace = os.fsync, os.rename, os.replace

    def name(path: str | Path) -> str:
        # a small number may stand in a step's, or in a random name
        short = re.sub(rf"\.[0-9a-f]{{12}}\.{os.getpid()}$", ".PID", str(Path(path).relative_to(tmp_path)))
        return re.sub(rf"-{os.getpid()}(?=/|$)", "-PID", short)

    def fsync(handle: int) -> None:
        calls.append(("fsync", name(os.readlink(f"/proc/self/fd/{handle}"))))
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for kind, real in (("rename", rename), ("replace", replace)):

        def moved(source, target, kind=kind, real=real):
            calls.append((kind, name(source), name(target)))
            real(source, target)

        monkeypatch.setattr(os, kind, moved)
    return calls


def save(folder: Path, step: int, **options: bool) -> None:
    weights = {"w": torch.full((4,), float(step))}
    save_checkpoint(folder, step, CheckpointContent(weights, {"step": step}, [{"rank": 0}], weights), **options)


def test_a_small_file_is_flushed_then_named_then_its_folder_is_flushed(tmp_path, recorded):
    write_atomic(tmp_path / "LATEST", "one\n")
    assert recorded == [("fsync", ".LATEST.PID"), ("replace", ".LATEST.PID", "LATEST"), ("fsync", ".")]
    assert (tmp_path / "LATEST").read_text() == "one\n" and os.listdir(tmp_path) == ["LATEST"]


def test_the_content_is_whole_before_it_has_the_name(tmp_path, monkeypatch):
    file, real, seen = tmp_path / "BEST", os.replace, []
    write_atomic(file, "old\n")
    monkeypatch.setattr(
        os, "replace", lambda a, b: seen.append((Path(a).read_bytes(), file.read_bytes())) or real(a, b)
    )
    write_atomic(file, "new\n")
    assert seen == [(b"new\n", b"old\n")] and file.read_text() == "new\n"


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    write_atomic(tmp_path / "BEST", "old\n")

    def broken(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomic(tmp_path / "BEST", "new\n")
    assert (tmp_path / "BEST").read_text() == "old\n" and os.listdir(tmp_path) == ["BEST"]


@pytest.mark.parametrize("number", [5, 28])
def test_a_folder_that_cannot_be_flushed_for_want_of_a_disk_is_told(tmp_path, monkeypatch, number):
    def broken(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match=os.strerror(number)):
        fsync_path(tmp_path)


def test_a_file_system_that_flushes_no_folders_is_left_alone(tmp_path, monkeypatch):
    def unable(handle: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", unable)
    fsync_path(tmp_path)


def test_a_checkpoint_is_flushed_file_by_file_before_it_has_a_name_and_pointers_come_last(tmp_path, recorded):
    save(tmp_path, 3, best=True)
    aside = ".writing-step-00000003-PID"
    files = ("model.safetensors", "ema.safetensors", "state.pt", "rank-00000.pt", ".manifest.json.PID")
    pointer = [
        [("fsync", f".{name}.PID"), ("replace", f".{name}.PID", name), ("fsync", ".")] for name in ("LATEST", "BEST")
    ]
    assert recorded == [
        *(("fsync", f"{aside}/{name}") for name in files),
        ("replace", f"{aside}/.manifest.json.PID", f"{aside}/manifest.json"),
        ("fsync", aside),  # the manifest's name
        ("fsync", aside),
        ("rename", aside, "step-00000003"),
        ("fsync", "."),
        *pointer[0],
        *pointer[1],
    ]


def test_a_step_that_is_saved_again_is_put_aside_until_its_successor_is_whole(tmp_path, recorded):
    save(tmp_path, 3)
    recorded.clear()
    save(tmp_path, 3)
    moves = [call for call in recorded if call[0] == "rename"]
    assert moves == [
        ("rename", "step-00000003", ".old-step-00000003"),
        ("rename", ".writing-step-00000003-PID", "step-00000003"),
    ]
    assert sorted(os.listdir(tmp_path)) == ["LATEST", "step-00000003"]


def test_a_copy_is_flushed_and_verified_before_it_has_a_name(tmp_path, recorded):
    here, there = tmp_path / "here", tmp_path / "there"
    save(here, 3)
    recorded.clear()
    mirror_checkpoint(here / "step-00000003", there)
    aside = "there/.writing-step-00000003-PID"
    flushed = [call[1] for call in recorded if call[0] == "fsync"]
    named = recorded.index(("rename", aside, "there/step-00000003"))
    files = {"model.safetensors", "ema.safetensors", "state.pt", "rank-00000.pt", "manifest.json"}
    assert {call[1] for call in recorded[:named]} == {aside, *(f"{aside}/{name}" for name in files)}
    assert flushed.count(aside) == 1 and recorded[named + 1] == ("fsync", "there")
    assert recorded[-3:] == [
        ("fsync", "there/.LATEST.PID"),
        ("replace", "there/.LATEST.PID", "there/LATEST"),
        ("fsync", "there"),
    ]


def test_latest_and_best_are_pointed_to_only_where_they_are_that(tmp_path):
    save(tmp_path, 1, best=True)
    save(tmp_path, 2)
    save(tmp_path, 3, latest=False)
    assert [(tmp_path / name).read_text() for name in ("LATEST", "BEST")] == ["step-00000002\n", "step-00000001\n"]


def test_one_flipped_bit_is_found_by_its_hash_alone(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    file = tmp_path / "step-00000002" / "state.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert verify(file.parent, hashes=False) == []
    assert verify(file.parent) == ["step-00000002/state.pt is damaged: its SHA-256 differs"]
    assert find_checkpoint(tmp_path)[0].name == "step-00000001"


@pytest.mark.parametrize(("keep_last", "left"), [(1, [2, 5]), (2, [2, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_newest_and_the_best_stay(tmp_path, keep_last, left):
    for step in range(1, 6):
        save(tmp_path, step, best=step == 2)
    prune(tmp_path, keep_last, None)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [f"step-{step:08d}" for step in left]


def test_nothing_is_deleted_before_its_successor_has_been_verified(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    newest = tmp_path / "step-00000003" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x00")
    assert verify(newest.parent) != []
    prune(tmp_path, 1, None)
    assert len(list(tmp_path.glob("step-*"))) == 3


def test_a_file_that_was_cut_is_found_by_its_size_without_reading_it(tmp_path):
    save(tmp_path, 1)
    file = tmp_path / "step-00000001" / "rank-00000.pt"
    file.write_bytes(file.read_bytes()[:-1])
    wrong = ["step-00000001/rank-00000.pt has another size than in its manifest"]
    assert verify(file.parent, hashes=False) == wrong


def test_what_a_copy_that_was_cut_left_in_the_mirror_is_removed_by_the_next(tmp_path):
    "Half a checkpoint may be gigabytes of a drive; one that is being written is left alone."
    run, drive = tmp_path / "run", tmp_path / "drive"
    save_checkpoint(run / "checkpoints", 3, CheckpointContent({"w": torch.ones(3)}, {"step": 3}, [{}]), best=True)
    (run / "config.yaml").write_text("seed: 1\n")
    drive.mkdir()
    there = mirror_run(run, drive, checkpoints_to_mirror(run), keep_last=2) / "checkpoints"
    halves = [there / f".writing-step-{step:08d}-{pid}" for step, pid in ((2, 7), (3, 8))] + [
        there / ".gone-step-00000001"
    ]
    for half in halves:
        half.mkdir()
        (half / "model.safetensors").write_bytes(b"half")
    torn = there.parent / f".config.yaml.{'0' * 12}.{2**31 - 1}"
    torn.touch()
    for path in (torn, halves[0] / "model.safetensors", halves[0], halves[2] / "model.safetensors", halves[2]):
        os.utime(path, (time.time() - 3600,) * 2)
    mirror_run(run, drive, checkpoints_to_mirror(run), keep_last=2)
    assert [half.exists() for half in halves] == [False, True, False] and not torn.exists()
