"""A real Jupyter kernel trains on two ranks, cell after cell: watched, stopped, broken, killed.

Today's kernel, and Colab's.
"""

import json
import os
import re
import signal
import sys

import psutil
import pytest

from helpers import wait_for
from notebook_kernels import BEGIN, LOCKED
from spectrakit.api.run import Run, open_run
from spectrakit.checkpoint.store import find_checkpoint, verify
from spectrakit.runs.events import last_event

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes die with their kernel on Linux only"),
]

STEPS = 24  # 3 epochs of 64 samples, 8 in each optimizer step
HANDLER = "repr(signal.getsignal(signal.SIGINT))"


def test_todays_kernel_trains_on_two_ranks_whatever_happens(todays_kernel):
    notebook = todays_kernel
    begin(notebook)
    fit_shows_frames_while_it_runs(notebook, "first")
    for how in ("group", "tree"):
        an_interrupt_ends_fit_with_a_usable_model(notebook, how)
    a_rank_that_raises_is_named(notebook)
    fit_again(notebook, "after-an-error", "launch.mode=notebook_launcher", task="Locked()")
    a_killed_rank_is_replaced(notebook)
    fit_again(notebook, "after-a-kill", "launch.mode=torchrun", launcher="torchrun")
    a_rank_that_hangs_is_replaced(notebook)
    no_process_survives_the_kernel(notebook)


@pytest.mark.long  # today's kernel stands for it; Colab's is in tests/view/test_live.py, too
def test_colabs_kernel_trains_on_two_ranks_whatever_happens(colabs_kernel):
    notebook = colabs_kernel
    assert notebook.ask("(__import__('IPython').__version__, __import__('ipykernel').__version__)") == (
        "7.34.0",
        "6.17.1",
    )
    begin(notebook)
    fit_shows_frames_while_it_runs(notebook, "first")
    an_interrupt_ends_fit_with_a_usable_model(notebook, "group")
    a_killed_rank_is_replaced(notebook)
    no_process_survives_the_kernel(notebook)


# what happens, one after the other, in one kernel


def begin(notebook):
    for code in (BEGIN, LOCKED):
        notebook.run(code)


def fit_shows_frames_while_it_runs(notebook, name):
    "The run is held twice on the way, so what arrives until then cannot have come at the end."
    cell = notebook.send(f"run = fit(Tiny({{10: 'hold {name}-a', 20: 'hold {name}-b'}}), config('{name}'))")
    seen = []
    for held in ("a", "b"):
        notebook.until((notebook.folder / f"{name}-{held}").exists, "the run to be held", 240)
        notebook.until(lambda known=seen: set(texts(cell)) - set(known), f"a new frame while the run is held ({held})")
        seen = texts(cell)
        assert cell.reply is None and not cell.idle
        (notebook.folder / f"go-{name}-{held}").touch()
    whole_run(notebook, cell, name)
    assert len(set(seen)) >= 2 and texts(cell)[: len(seen)] == seen != texts(cell)


def an_interrupt_ends_fit_with_a_usable_model(notebook, how):
    name = f"interrupt-by-{how}"
    before = notebook.ask(HANDLER)
    cell = notebook.send(
        "before = signal.getsignal(signal.SIGINT)\n"
        f"run = fit(Tiny({{'slow': True}}), config('{name}', 'trainer.max_epochs=2000'))\n"
        "after = signal.getsignal(signal.SIGINT)"
    )
    notebook.until(lambda: steps(notebook, name) > 2 and cell.frames, "some steps", 240)
    notebook.interrupt(how)
    notebook.until(lambda: last_event(open_run(the_folder(notebook, name)).events, "end"), "the run to end")
    notebook.wait(cell, 29)  # a launcher that waits for its ranks in vain takes 30 s from here on
    assert cell.errors == [] and cell.warned == "" and "Traceback" not in cell.text, cell
    assert cell.reply["status"] == "ok" and "interrupted" in cell.text
    run = the_run(notebook, name, "interrupted")
    end = last_event(run.events, "end")
    assert 2 < end["step"] < 4000 and find_checkpoint(run.path / "checkpoints")[0].name == f"step-{end['step']:08d}"
    assert notebook.ask("(run.status, run.load_model()(torch.zeros(1, 1)).shape == (1, 1))") == ("interrupted", True)
    assert notebook.ask("after is before") and notebook.ask(HANDLER) == before
    # and the kernel still obeys: a cell of its own is stopped
    cell = notebook.send("print('asleep', flush=True)\ntime.sleep(60)")
    notebook.until(lambda: cell.frames, "the cell to sleep")
    notebook.interrupt("group")
    notebook.wait(cell)
    assert cell.reply["status"] == "error" and cell.reply["ename"] == "KeyboardInterrupt"


def fit_again(notebook, name, *words, task="Tiny()", launcher="notebook_launcher"):
    cell = notebook.send(f"run = fit({task}, config({', '.join(map(repr, [name, *words]))}))")
    run = whole_run(notebook, cell, name)
    assert launched(run)["launcher"] == launcher


def a_rank_that_raises_is_named(notebook):
    cell = notebook.wait(notebook.send("run = fit(Tiny({5: 'raise black-cat'}), config('raises'))"), 240)
    assert cell.reply["status"] == "ok" and cell.errors == [], cell  # fit returns the run that failed
    run = the_run(notebook, "raises", "failed")
    assert run.error == "rank 1: ValueError: no luck with black-cat" == notebook.ask("run.error")
    said = (run.path / "logs" / "error-rank-1.txt").read_text()
    assert "no luck with black-cat" in cell.text and "in happen" in said
    assert "why the run failed" in cell.text and "raise ValueError(f" in cell.text  # the own line, of a cell
    assert notebook.ask("run.failure.code[-1][1].strip()").startswith('if verb == "raise": raise ValueError')
    assert launched(run)["restarts"] == 0  # an error of the task is not tried again


def a_killed_rank_is_replaced(notebook):
    cell = notebook.send("run = fit(Tiny({10: 'hold killed'}), config('killed'))")
    number = held(notebook, "killed")
    assert number in {process.pid for process in notebook.below()}
    os.kill(number, signal.SIGKILL)
    run = whole_run(notebook, cell, "killed", restarts=1)
    assert re.search("rank 1 (was killed by SIGKILL|disappeared)", cell.text) and "starting again (1 of 2)" in cell.text
    assert last_event(run.events, "restart")["step"] in (
        8,
        9,
    )  # the last even step, or what the other rank could still save


def a_rank_that_hangs_is_replaced(notebook):
    cell = notebook.send("run = fit(Tiny({10: 'sleep hangs'}), config('hangs', 'launch.hang_floor_s=5'))")
    number = held(notebook, "hangs")
    run = whole_run(notebook, cell, "hangs", restarts=1)
    assert "rank 1 has made no progress" in cell.text and "starting again (1 of 2)" in cell.text
    stacks = [(run.path / "logs" / f"stacks-rank-{rank}.txt").read_text() for rank in (0, 1)]
    assert "in happen" in stacks[1] and "in happen" not in stacks[0] and "most recent call first" in stacks[0]
    wait_for(lambda: not psutil.pid_exists(number), "the rank that hung to be gone; process 1 buries it")


def no_process_survives_the_kernel(notebook):
    notebook.send("run = fit(Tiny({'slow': True}), config('orphans', 'trainer.max_epochs=2000'))")
    notebook.until(lambda: steps(notebook, "orphans") > 2, "some steps", 240)
    family = notebook.below()
    assert len(family) >= 3  # a supervisor and two ranks
    os.kill(notebook.pid, signal.SIGKILL)
    # left alone they would train for a quarter of an hour
    wait_for(
        lambda: not any(map(lives, family)) and not notebook.processes(), "the processes to end with their kernel", 60
    )
    run = open_run(the_folder(notebook, "orphans"))
    wait_for(
        lambda: run.status == "unfinished", "the lock to be let go", 60
    )  # a process with many threads is a zombie before the last of them has ended
    assert verify(find_checkpoint(run.path / "checkpoints")[0]) == []


# what is looked at


def lives(process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def texts(cell) -> list[str]:
    return [text for _, text in cell.frames if text.strip()]


def the_folder(notebook, name):
    found = [path for path in (notebook.folder / "runs").glob(f"{name}-*") if path.name[len(name) + 1 :][:8].isdigit()]
    assert len(found) == 1, found
    return found[0]


def steps(notebook, name) -> int:
    "Optimizer steps in the log of a run that may not have begun."
    log = next((notebook.folder / "runs").glob(f"{name}-*/events.jsonl"), None)
    return log.read_text().count('"type": "step"') if log else 0


def held(notebook, name) -> int:
    "The process id of the rank to which `name` has happened."
    notebook.until((notebook.folder / name).exists, f"{name} to happen", 240)
    return int(wait_for((notebook.folder / name).read_text, "its process id"))


def launched(run) -> dict:
    "What summary.json says of the processes."
    return json.loads((run.path / "summary.json").read_text())["launch"]


def the_run(notebook, name, status) -> Run:
    """The run of that name, which ended with `status` and left nothing behind: no process, no temporary file, no stray
    output.
    """
    run = open_run(the_folder(notebook, name))
    assert run.status == status == notebook.ask("run.status"), run.error
    assert notebook.ask("str(run.path.resolve())") == str(run.path.resolve())
    assert launched(run)["world_size"] == 2 and not launched(run)["fallback"]
    assert notebook.below() == [] and notebook.strays == []
    assert [path.name for path in notebook.temporary.iterdir() if path.name.startswith("spectrakit-job")] == []
    return run


def whole_run(notebook, cell, name, restarts=0) -> Run:
    "The run that a cell made, which did all its steps."
    notebook.wait(cell, 240)
    assert cell.reply["status"] == "ok" and cell.errors == [] and cell.warned == "", cell
    run = the_run(notebook, name, "completed")
    assert last_event(run.events, "step")["step"] == STEPS and "completed" in cell.text
    assert launched(run)["restarts"] == restarts
    return run
