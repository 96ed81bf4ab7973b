"Disks that are full, broken or read-only, and files that are torn, cut, bent or gone."

import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from helpers import flip_bit, wait_for
from spectrakit.api.run import Run, open_run
from spectrakit.checkpoint.store import checkpoints
from spectrakit.runs.events import read_events

from .crashes import restarts
from .harness import Cannot, Place, compare, ended, mounted, said, to_the_end, usable, whole

# --- the disk
# ----------------------------------------------------------------------------------------------------------


def _told(p: Place, run: Run) -> None:
    p.want("not saved" in said(run), f"nobody was told that nothing is saved: {said(run)!r}")


def _recovers(p: Place, faults: str, *words: str, **environ: str) -> None:
    "Saving fails for a while: it is told, older checkpoints stay, and every bit is the same."
    run = ended(p, p.start("Drops", *words, TINY_FAULTS=faults, TINY_STEP_S="0.03", **environ).wait(), "completed")
    _told(p, run)
    p.want(max(whole(run)) == 40, f"the checkpoints are those of steps {whole(run)}")
    compare(p, run, "Drops")


def a_full_disk_that_gets_room_again(p: Place) -> None:
    "ENOSPC costs a warning; the older checkpoint stays, saving goes on once there is room, and every bit is the same."
    disk = mounted(p, p.folder / "disk", "-t", "tmpfs", "-o", "size=24m", "tmpfs")
    _recovers(p, "loss 0 18 fill_disk;loss 0 30 empty_disk", f"run.dir={disk}/runs", TINY_DISK=str(disk))


def a_disk_that_stays_full(p: Place) -> None:
    "ENOSPC to the end costs a warning; the older checkpoint stays, and is a usable model."
    disk = mounted(p, p.folder / "disk", "-t", "tmpfs", "-o", "size=24m", "tmpfs")
    kernel = p.start(
        "Drops", f"run.dir={disk}/runs", TINY_FAULTS="loss 0 18 fill_disk", TINY_DISK=str(disk), TINY_LEFT="200000"
    )
    word = kernel.wait()
    run = ended(p, word, word["status"])
    _told(p, run)
    p.want(16 in whole(run), f"the checkpoints are those of steps {whole(run)}")
    p.facts.update(note=f"the run ends as {run.status}; its newest checkpoint is that of step {max(whole(run))} of 40")


def a_disk_with_errors(p: Place) -> None:
    """EIO from every call in a save: a warning; older checkpoints stay, saving goes on once the disk is well, and every
    bit is the same.
    """
    _recovers(p, "loss 0 18 eio;loss 0 30 well")


def a_disk_that_cannot_flush(p: Place) -> None:
    """EIO from fsync alone: what was not flushed is no checkpoint; older ones stay, saving goes on later, and every bit
    is the same.
    """
    _recovers(p, "loss 0 18 eio_flush;loss 0 30 well")


def _read_only(p: Place, folder: Path) -> None:
    "From now on nothing can be written below `folder` by those who open it anew, also not by root."
    mounted(p, folder, "--bind", str(folder))
    if subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], capture_output=True).returncode:
        raise Cannot("nothing can be made read-only here")


def checkpoints_that_become_read_only(p: Place) -> None:
    """In the middle of a run, for a while: a warning; older checkpoints stay, saving goes on later, and every bit is
    the same.
    """
    kernel = p.held("Drops", at=18, TINY_FAULTS="loss 0 30 rest")
    run = p.run()
    _read_only(p, run.path / "checkpoints")
    p.let_go()
    wait_for(lambda: "not saved" in said(run), "a warning")
    p.undo.pop()()
    (p.folder / "rested").touch()
    run = ended(p, kernel.wait(), "completed")
    compare(p, run, "Drops")


def a_run_folder_that_stays_read_only(p: Place) -> None:
    "From the middle of a run to its end: a warning; `fit` returns, and the older checkpoint is a usable model."
    kernel = p.start("Drops", TINY_HOLD=f"18:{p.folder}")
    p.file("held")
    run = p.run()
    _read_only(p, run.path)
    (p.folder / "go").touch()
    word = kernel.wait()
    p.undo.pop()()
    p.facts["usable_model"] = p.want(
        16 in whole(run) and usable(run), f"the checkpoints are those of steps {whole(run)}"
    )
    _told(p, run)
    p.facts.update(
        status=word["status"],
        note=f"the run ends as {word['status']}; its newest checkpoint is that of step {max(whole(run))} of 40",
    )


# --- the files
# ---------------------------------------------------------------------------------------------------------

_making = threading.Lock()


def _broken_off(p: Place) -> Run:
    """A run that failed in step 18, with checkpoints of steps 12, 16 and 17.

    It is made once, and each scenario spoils its own copy.
    """
    kept = p.folder.parent / "broken-off"
    with _making:
        if not kept.is_dir():
            other = Place(p.folder / "made")
            try:
                word = other.start("Drops", TINY_FAULTS="loss 0 18 value").wait()
                shutil.copytree(word["path"], kept)
            finally:
                other.clear()
    run = open_run(shutil.copytree(kept, p.folder / "runs" / "drops"))
    assert run.status == "failed" and whole(run)[-2:] == [16, 17], (run.status, whole(run))
    return run


def _spoiled(p: Place, spoil: Callable[[Path], object], back_to: int = 16, says: str = "step-00000017") -> None:
    """Something happens to a run's files: it goes on from the newest checkpoint that is whole, says so, and gives the
    same bits.
    """
    run = _broken_off(p)
    newest = run.path / "checkpoints" / "step-00000017"
    spoil(newest)
    if back_to == 16:
        p.spoiled.add(17)
    p.want(usable(run), "no usable model")
    run = to_the_end(p, run, "Drops")
    p.want(
        restarts(run)[-1]["step"] == back_to,
        f"resume went on from step {restarts(run)[-1]['step']}, and {back_to} was whole",
    )
    p.want(
        any(says in note for note in restarts(run)[-1].get("notes") or []) or not says, "nobody was told what was wrong"
    )


def cut(file: Path) -> None:
    "The second half is gone."
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def weights_that_are_cut(p: Place) -> None:
    "The checkpoint before is taken, it is told, and the same bits come out."
    _spoiled(p, lambda newest: cut(newest / "model.safetensors"))


def a_bit_flipped_in_the_weights(p: Place) -> None:
    "The checkpoint before is taken, it is told, and the same bits come out."
    _spoiled(p, lambda newest: flip_bit(newest / "model.safetensors"))


def a_bit_flipped_in_the_state(p: Place) -> None:
    "The checkpoint before is taken, it is told, and the same bits come out."
    _spoiled(p, lambda newest: flip_bit(newest / "state.pt"))


def a_bit_flipped_in_the_random_state(p: Place) -> None:
    "The checkpoint before is taken, it is told, and the same bits come out."
    _spoiled(p, lambda newest: flip_bit(newest / "rank-00000.pt"))


def no_manifest(p: Place) -> None:
    "The checkpoint before is taken, it is told, and the same bits come out."
    _spoiled(p, lambda newest: (newest / "manifest.json").unlink())


def half_a_manifest(p: Place) -> None:
    "The checkpoint before is taken, it is told, and the same bits come out."
    _spoiled(p, lambda newest: cut(newest / "manifest.json"))


def a_latest_that_points_nowhere(p: Place) -> None:
    "The newest whole checkpoint is taken, it is told, and the same bits come out."
    _spoiled(
        p, lambda newest: (newest.parent / "LATEST").write_text("step-00000099\n"), back_to=17, says="step-00000099"
    )


def a_best_that_points_nowhere(p: Place) -> None:
    "A model can be had all the same, and the same bits come out."
    _spoiled(p, lambda newest: (newest.parent / "BEST").write_text("step-00000099\n"), back_to=17, says="")


def a_torn_last_line(p: Place) -> None:
    "Half a line at the end of events.jsonl is cut off; nothing else is lost, and the same bits come out."

    def tear(newest: Path) -> None:
        with open(newest.parent.parent / "events.jsonl", "ab") as file:
            file.write(b'{"t": 9.5, "type": "step", "st')

    _spoiled(p, tear, back_to=17, says="")
    log = p.run().path / "events.jsonl"
    p.want(len(read_events(log)) == len(log.read_bytes().splitlines()), "a line is no event")


def no_whole_checkpoint(p: Place) -> None:
    "Resume refuses with a sentence and touches nothing."
    run = _broken_off(p)
    for path in checkpoints(run.path / "checkpoints"):
        flip_bit(path / "model.safetensors")
    events = (run.path / "events.jsonl").read_bytes()
    word = p.start("Drops", resume=run.path).wait()
    p.want("no valid checkpoint" in word.get("refused", ""), f"it was told {word}")
    p.want((run.path / "events.jsonl").read_bytes() == events, "the log has changed")
    p.facts.update(status="refused", usable_model=False, note="there is nothing left to lose")
