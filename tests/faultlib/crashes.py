"Processes that are killed, told to end, hang or raise; loaders and their workers; two that want the same run."

import signal

from spectrakit.api.run import Run
from spectrakit.runs.events import last_event, read_events

from .harness import Place, close, compare, ended, look, ranks, said, to_the_end, usable, whole

SOON = "launch.hang_floor_s=3"
BALLAST = "+task.ballast=5"  # checkpoints that are large enough to be written in the background


def restarts(run: Run) -> list[dict]:
    return [event for event in read_events(run.path / "events.jsonl") if event["type"] == "restart"]


# --- killed
# ------------------------------------------------------------------------------------------------------------


def the_training_process_is_killed(p: Place) -> None:
    """The kernel starts another one, which goes on from the last checkpoint: nothing else is lost, and every bit is the
    same.
    """
    run = ended(p, p.start("Drops", TINY_FAULTS="loss 0 18 kill").wait(), "completed")
    p.want(len(restarts(run)) == 1 and "killed by SIGKILL" in said(run), "nobody was told of the kill")
    compare(p, run, "Drops")


@ranks(2)
def rank_1_is_killed(p: Place) -> None:
    "The others save what they have, all start again, and every bit is the same."
    run = ended(p, p.start("Walk", TINY_FAULTS="loss 1 18 kill").wait(), "completed")
    p.want([e["step"] >= 16 for e in restarts(run)] == [True], "more than the work since the last checkpoint was lost")
    compare(p, run, "Walk")


def the_kernel_is_killed(p: Place, task: str = "Drops") -> None:
    "No process outlives it; resume goes on from the newest checkpoint that was there, and every bit is the same."
    kernel = p.held(task, at=17)
    run = p.run()
    p.kill(kernel)
    newest = max(whole(run))
    p.let_go()
    run = to_the_end(p, run, task)
    p.want(
        restarts(run)[-1]["step"] == newest,
        f"resume went on from step {restarts(run)[-1]['step']}, and that of {newest} was there",
    )


@ranks(2)
def the_kernel_of_two_ranks_is_killed(p: Place) -> None:
    "No rank outlives it; resume goes on from the newest checkpoint that was there, and every bit is the same."
    the_kernel_is_killed(p, "Walk")


def _every_call(p: Place, *words: str) -> None:
    words = ("checkpoint.every_n_steps=8", "trainer.max_steps=24", *words)
    kernel = p.start("Drops", *words, "launch.max_restarts=1000", TINY_FAULTS="loss 0 1 crash!", TINY_STEP_S="0")
    run = ended(p, kernel.wait(500), "completed")
    died_at = [(p.folder / f"calls-{n}").read_text().splitlines()[-1] for n in range(1, len(restarts(run)) + 1)]
    p.facts["note"] = f"{len(died_at)} deaths, at {len(set(died_at))} different calls"
    kinds = {call.split()[0] for call in died_at}
    p.want({"mkdir", "fsync", "rename", "open"} <= kinds, f"only {', '.join(sorted(kinds))} were met")
    compare(p, run, "Drops", *words)


def every_call_in_a_save_is_the_last(p: Place) -> None:
    """A process that dies at any one of its calls to the disk in a save leaves the checkpoint before or the new one;
    the same bits come out.
    """
    _every_call(p)


def every_call_in_a_save_in_the_background_is_the_last(p: Place) -> None:
    "The same where a thread writes while training goes on."
    _every_call(p, BALLAST)


# --- told to end
# -------------------------------------------------------------------------------------------------------


def _told(p: Place, task: str, number: int, to: str = "kernel", hears: bool = False) -> None:
    "Send signal `number` in the middle: the run ends at the next step, saved, and goes on from there bit for bit."
    kernel = p.held(task, hears=hears)
    run = p.run()
    if to == "kernel":
        kernel.process.send_signal(number)
        p.let_go(heard=run)
    else:
        p.process(int(to)).send_signal(number)  # a sleep that it breaks off ends in the handler
        p.let_go()
    if number == signal.SIGTERM and to == "kernel" and not hears:  # it ends as it would have, once the run is safe
        p.want(kernel.process.wait(60) == -signal.SIGTERM, f"the script ended with {kernel.process.returncode}")
        look(p, run)
        p.want(run.status == "interrupted", f"the run ended {run.status}")
    else:
        run = ended(p, kernel.wait(), "interrupted")
    step = last_event(run.events, "step")["step"]
    p.want(step < 40, "nobody heard it")
    p.want(max(whole(run)) == step == last_event(run.events, "end")["step"], f"the last step, {step}, was not saved")
    to_the_end(p, run, task)


def the_kernel_gets_sigint(p: Place) -> None:
    """Ctrl-C: the run ends at the next step, its model saved; resume goes on with the next one, and every bit is the
    same.
    """
    _told(p, "Drops", signal.SIGINT)


@ranks(2)
def the_kernel_of_two_ranks_gets_sigint(p: Place) -> None:
    "Ctrl-C: both ranks end at the same step, saved; resume goes on with the next one, and every bit is the same."
    _told(p, "Walk", signal.SIGINT)


def the_kernel_gets_sigterm(p: Place) -> None:
    """A script without a handler of its own, as under SLURM: the run stops softly, saved, before the script ends; every
    bit is the same after resume.
    """
    _told(p, "Drops", signal.SIGTERM)


def a_kernel_that_listens_gets_sigterm(p: Place) -> None:
    "A program with a handler of its own: the run stops softly, saved, and every bit is the same after resume."
    _told(p, "Drops", signal.SIGTERM, hears=True)


def the_training_process_gets_sigterm(p: Place) -> None:
    "The run stops softly, saved, and every bit is the same after resume."
    _told(p, "Drops", signal.SIGTERM, to="0")


@ranks(2)
def rank_1_gets_sigterm(p: Place) -> None:
    "Both ranks stop softly at the same step, saved, and every bit is the same after resume."
    _told(p, "Walk", signal.SIGTERM, to="1")


# --- hangs
# -------------------------------------------------------------------------------------------------------------


def _hangs(p: Place, task: str, fault: str, *words: str) -> None:
    "One process gives no sign of life any more: it is replaced, and every bit is the same."
    run = ended(p, p.start(task, SOON, *words, TINY_FAULTS=fault).wait(), "completed")
    p.want(len(restarts(run)) == 1 and "made no progress" in said(run), "nobody was told of the hang")
    compare(p, run, task, SOON, *words)


@ranks(2)
def rank_1_hangs(p: Place) -> None:
    "It is found stuck, all start again from the last checkpoint, and every bit is the same."
    _hangs(p, "Walk", "loss 1 18 sleep")


def the_loader_hangs(p: Place) -> None:
    "A sample that is never read: the process is found stuck and replaced, and every bit is the same."
    _hangs(p, "Read", "read 0 70 sleep", "dataloader.num_workers=0")


def a_loader_worker_hangs(p: Place) -> None:
    """A worker that never answers: the process is found stuck and replaced, its worker with it, and every bit is the
    same.
    """
    _hangs(p, "Read", "read 0 30 sleep", "dataloader.num_workers=1")


def an_evaluation_hangs(p: Place) -> None:
    "It is found stuck and replaced, and every bit is the same."
    _hangs(p, "Drops", "metric 0 8 sleep")


# --- exceptions
# --------------------------------------------------------------------------------------------------------


def _raises(p: Place, task: str, fault: str, says: str, *words: str) -> None:
    "The task raises: the run fails with that error, keeps its last step, and goes on from there bit for bit."
    run = ended(p, p.start(task, *words, TINY_FAULTS=fault).wait(), "failed", says)
    step = last_event(run.events, "step")["step"]
    p.want(max(whole(run)) == step, f"the last step, {step}, was not saved")
    to_the_end(p, run, task, *words)


def an_exception_in_the_loss(p: Place) -> None:
    "The run fails with that error and keeps its last step; once it is mended, resume gives the same bits."
    _raises(p, "Drops", "loss 0 18 value", "ValueError: as planned")


def an_exception_in_backward(p: Place) -> None:
    "The same, where the random state has moved on since the last step."
    _raises(p, "Drops", "loss 0 18 value_backward", "ValueError: as planned")


@ranks(2)
def an_exception_on_rank_1(p: Place) -> None:
    "The run fails with the error of that rank and keeps its last step; once it is mended, resume gives the same bits."
    _raises(p, "Walk", "loss 1 18 value", "rank 1: ValueError: as planned")


def an_exception_in_the_loader(p: Place) -> None:
    "The run fails with that error and keeps its last step; once it is mended, resume gives the same bits."
    _raises(p, "Read", "read 0 70 value", "ValueError: as planned", "dataloader.num_workers=0")


def an_exception_in_a_loader_worker(p: Place) -> None:
    "The run fails with that error and keeps its last step; once it is mended, resume gives the same bits."
    _raises(p, "Read", "read 0 30 value", "as planned", "dataloader.num_workers=1")


def an_exception_in_an_evaluation(p: Place) -> None:
    """The run fails with that error and keeps its last step; once it is mended, resume evaluates there, and gives the
    same bits.
    """
    _raises(p, "Drops", "metric 0 8 value", "ValueError: as planned")


@ranks(2)
def an_exception_in_an_evaluation_on_rank_1(p: Place) -> None:
    "The same on one rank of two, while the other waits for its numbers."
    _raises(p, "Walk", "metric 1 5 value", "rank 1: ValueError: as planned")


def an_exception_in_a_tracker(p: Place) -> None:
    "The run goes on without that tracker, with one message, and every bit is the same."
    run = ended(
        p, p.start("Drops", "tracking.names=[csv,tensorboard]", TINY_FAULTS="loss 0 18 tracker").wait(), "completed"
    )
    p.want(said(run).count("tensorboard is no longer written") == 1, f"the person was told: {said(run)!r}")
    compare(p, run, "Drops")


def a_loader_worker_is_killed(p: Place) -> None:
    "As by a machine without memory: the run goes on without it, says so once, and has the same bits."
    kernel = p.start("Read", "dataloader.num_workers=1", TINY_FAULTS="read 0 30 kill")
    run = ended(p, kernel.wait(), "completed")
    p.want(said(run).count("lost one of them") == 1, f"the person was told: {said(run)!r}")
    p.want(not restarts(run), "the whole process was started again")
    compare(p, run, "Read", "dataloader.num_workers=1")


def _no_memory(p: Place, task: str, fault: str) -> None:
    """A device without memory: the run goes on from its last step with half the micro batch and the same effective
    batch.
    """
    run = ended(p, p.start(task, TINY_FAULTS=fault).wait(), "completed")
    p.want(
        len(restarts(run)) == 1 and restarts(run)[0]["step"] == 17,
        f"the restarts went back to {[e['step'] for e in restarts(run)]}, and not to step 17",
    )
    p.want(
        "the memory ran out" in said(run) and "the same effective batch" in said(run),
        f"the person was told: {said(run)!r}",
    )
    close(p, run, task)


@ranks(2)
def no_memory_in_forward_on_rank_1(p: Place) -> None:
    """Nobody waits for that rank; the run goes on from its last step with half the micro batch and the same effective
    batch, and the same losses.
    """
    _no_memory(p, "Walk", "loss 1 18 oom")


@ranks(2)
def no_memory_in_backward_on_rank_1(p: Place) -> None:
    "The same in the middle of the exchange of gradients."
    _no_memory(p, "Walk", "loss 1 18 oom_backward")


# --- two that want the same run
# ----------------------------------------------------------------------------------------


def two_processes_resume_one_run(p: Place) -> None:
    "The second is refused with a sentence, and the first goes on undisturbed to the same bits."
    kernel = p.held("Drops", at=17)
    run = p.run()
    p.kill(kernel)
    (p.folder / "held").unlink()
    first = p.held("Drops", at=5, resume=run.path)
    second = p.start("Drops", resume=run.path).wait()
    p.want("being worked on by another process" in second.get("refused", ""), f"the second was told {second}")
    p.want(usable(run), "no usable model while another process works on the run")
    p.let_go()
    compare(p, ended(p, first.wait(), "completed"), "Drops")
