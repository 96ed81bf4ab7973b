"Time that runs out: in an evaluation, in a save, with a rank that hangs; and wall clocks that jump."

import os
import random
import signal
import time
from pathlib import Path

from spectrakit.api.run import Run
from spectrakit.prediction.submission_file import read_record
from spectrakit.runs.events import read_events

from .crashes import BALLAST, restarts
from .harness import Kernel, Place, Scenario, look, ranks, whole

MANY = "trainer.max_steps=1000000"


def limit(seconds: float) -> tuple[str, ...]:
    return MANY, f"watchdog.limit={seconds:g}s", "watchdog.since=run", "checkpoint.every_n_steps=100"


def in_time(p: Place, kernel: Kernel, limit_s: float, *statuses: str, submission: bool = True) -> Run:
    "Wait for a kernel whose `fit` had `limit_s` seconds: it returned in time, with its submission and a usable model."
    word = kernel.wait(limit_s + 90)
    assert "path" in word, word
    late_s = word["ended"] - word["began"] - limit_s
    p.facts["late_s"] = round(late_s, 2)
    p.want(late_s <= 0, f"{late_s:.1f} s late")
    file = p.folder / "submission.csv"
    lines = len(file.read_text().splitlines()) if file.is_file() else 0
    if submission:
        p.want(lines == 41, f"the submission has {lines} lines, and not 41" if lines else "no submission")
    p.want(word["status"] in (statuses or ("out_of_time",)), f"the run ended {word['status']}: {word['error']}")
    return look(p, Run(Path(word["path"])))


def trained_s(run: Run) -> float:
    "Seconds between log points, without what went to evaluations and saves between them."
    total, before = 0.0, None
    for event in read_events(run.path / "events.jsonl"):
        if event["type"] == "step":
            if before is not None:
                total += event["t"] - before
            before = event["t"]
        elif event["type"] == "eval" and before is not None:
            total -= event.get("seconds") or 0.0
        elif event["type"] in ("restart", "start"):
            before = None
    return total


# --- the deadline
# ------------------------------------------------------------------------------------------------------


def _long(
    p: Place,
    limit_s: float,
    *words: str,
    eval_s: float = 1.0,
    predict_s: float = 1.5,
    task: str = "Long",
    **environ: str,
) -> Kernel:
    "A run with a limit whose evaluations and predictions take their time, and which predicts."
    words = (*limit(limit_s), "data.batch_size=2", "trainer.check_val_every_n_epoch=1000000", *words)
    return p.start(
        task, *words, predict="submission.csv", TINY_EVAL_S=str(eval_s), TINY_PREDICT_S=str(predict_s), **environ
    )


def a_deadline_in_an_evaluation(p: Place) -> None:
    "An evaluation that grows from a second to a minute is stopped inside; `fit` returns in time, with its submission."
    in_time(p, _long(p, 40, "trainer.check_val_every_n_steps=200", TINY_FAULTS="evaluate 0 30 linger_a_lot"), 40)


def a_deadline_in_an_evaluation_that_hangs(p: Place) -> None:
    "A batch that never comes back: the process is ended from outside; `fit` returns in time, with its submission."
    in_time(p, _long(p, 40, "trainer.check_val_every_n_steps=200", TINY_FAULTS="evaluate 0 30 sleep"), 40)


def a_deadline_in_a_save(p: Place) -> None:
    "A disk that takes a minute to flush: the checkpoint before it is kept; `fit` returns in time, with its submission."
    run = in_time(
        p, _long(p, 40, "trainer.check_val_every_n_steps=200", BALLAST, TINY_FAULTS="loss 0 150 slow_disk"), 40
    )
    p.facts["note"] = f"the checkpoints are those of steps {whole(run)}"


def a_deadline_in_a_save_that_training_waits_for(p: Place) -> None:
    "The same with checkpoint.background=false."
    in_time(
        p,
        _long(
            p,
            40,
            "trainer.check_val_every_n_steps=200",
            "checkpoint.background=false",
            TINY_FAULTS="loss 0 150 slow_disk",
        ),
        40,
    )


# --- the promise: in time, whatever happens
# ----------------------------------------------------------------------------


def run_out(
    p: Place, limit_s: float, eval_s: float, predict_s: float, every_steps: int, hang_after_s: float | None = None
) -> None:
    "Two ranks with a limit; rank 1 hangs `hang_after_s` seconds after the start (None: not)."
    began = time.monotonic()
    kernel = _long(
        p,
        limit_s,
        f"trainer.check_val_every_n_steps={every_steps}",
        eval_s=eval_s,
        predict_s=predict_s,
        TINY_STEP_S="0.02",
    )
    if hang_after_s is not None:
        p.process(1)
        time.sleep(max(0.0, began + hang_after_s - time.monotonic()))  # the moment itself is what is asked for
        p.process(1).suspend()
        p.facts["note"] = f"rank 1 hung {hang_after_s:.0f} s after the start, {_last(p)}"
    run = in_time(p, kernel, limit_s)
    p.facts["trained"] = round(trained_s(run) / limit_s, 3)


def _last(p: Place) -> str:
    "What the run has told last, by its log."
    event = (read_events(p.run().path / "events.jsonl") or [{"type": "nothing"}])[-1]
    return f"after {event['type']}" + (f" {event['step']}" if event.get("step") else "")


@ranks(2)
def a_limit_of_three_quarters_of_a_minute(p: Place) -> None:
    "Two ranks with watchdog.limit=45s: `fit` returns in time, with its submission, and has trained."
    run_out(p, 45, 1.0, 1.5, 400)
    p.want(p.facts.get("trained", 0) > 0.1, "hardly trained")


@ranks(2)
def a_limit_of_three_quarters_of_a_minute_and_a_hang(p: Place) -> None:
    "The same where rank 1 hangs in the middle: ended from outside; `fit` returns in time, with its submission."
    run_out(p, 45, 1.0, 1.5, 400, hang_after_s=14)


@ranks(2)
def a_limit_of_two_minutes(p: Place) -> None:
    """Two ranks, watchdog.limit=120s, an evaluation of 5 s at the end, predictions of 6 s: `fit` returns in time, with
    its submission.

    At least 60 % of the time went to training.
    """
    run_out(p, 120, 5.0, 6.0, 1000000)
    p.want(p.facts.get("trained", 0) >= 0.6, f"trained for {p.facts.get('trained', 0):.0%} of the time")


def a_limit_of_two_minutes_and_a_hang(seed: int) -> Scenario:
    "The same where rank 1 hangs at a moment that `seed` draws, before training would end."

    @ranks(2)
    def a_limit_of_two_minutes_and_a_hang(p: Place) -> None:
        "The same where rank 1 hangs at a random moment: `fit` returns in time, with its submission."
        run_out(p, 120, 5.0, 6.0, 1500, hang_after_s=random.Random(seed).uniform(4, 88))

    return a_limit_of_two_minutes_and_a_hang


# --- the time ends, or somebody ends it, while two ranks predict
# -----------------------------------------------------------------


def _data(p: Place) -> str:
    "A word that names the folder with the sample submission, whose rows have another order."
    (p.folder / "data").mkdir()
    rows = "".join(f"s{i},0.5\n" for i in reversed(range(40)))
    (p.folder / "data" / "sample_submission.csv").write_text(f"id,y\n{rows}")
    return f"task.data={p.folder / 'data'}"


def _rows(p: Place) -> list[list[str]]:
    "The rows of the submission, which are those of the sample in its order."
    rows = [line.split(",") for line in (p.folder / "submission.csv").read_text().splitlines()[1:]]
    p.want([row[0] for row in rows] == [f"s{i}" for i in reversed(range(40))], "the rows are not those of the sample")
    return rows


def _merged(p: Place, run: Run) -> None:
    "The submission holds what was predicted, and for the rest what is usual."
    state = read_record(run.path, p.folder / "submission.csv")
    if not p.want(state is not None and state.source == "predictions", f"the submission: {state}"):
        return
    rows = _rows(p)
    p.want(0 < state.predicted < 40, f"{state.predicted} of 40 samples were predicted")
    rest = {row[1] for row in rows[: 40 - state.predicted]}
    p.want(len(rest) == 1, f"the {40 - state.predicted} other rows hold {len(rest)} values")
    p.facts["note"] = f"{state.predicted} of 40 samples were predicted"


@ranks(2)
def the_time_ends_while_two_ranks_predict(p: Place) -> None:
    """Predictions take thirteen times as long as in the trial: they stop in time, and what there is lies over what is
    usual.
    """
    slow = "predict 0 6 dawdle@20;predict 1 6 dawdle@20"
    _merged(p, in_time(p, _long(p, 60, _data(p), TINY_FAULTS=slow, task="Handed"), 60))


@ranks(2)
def a_rank_hangs_while_two_ranks_predict(p: Place) -> None:
    "Rank 1 never predicts its sixth batch: `fit` returns in time, with a submission that has a row for each sample."
    in_time(p, _long(p, 60, _data(p), TINY_FAULTS="predict 1 6 sleep", task="Handed"), 60)
    _rows(p)


@ranks(2)
def two_ranks_that_predict_get_sigterm(p: Place) -> None:
    "The kernel gets SIGTERM in the middle of predicting: what there is lies over what is usual, and the run is done."
    slow = "predict 0 6 dawdle@40;predict 1 6 dawdle@40"
    words = (_data(p), "trainer.max_steps=30", "data.batch_size=2")
    kernel = p.start("Handed", *words, predict="submission.csv", TINY_FAULTS=slow)
    run = p.run()
    for rank in (0, 1):
        p.file(f"fault-predict-{rank}-6")
    time.sleep(1)  # in the middle of a batch
    kernel.process.send_signal(signal.SIGTERM)
    kernel.process.wait(120)
    p.want(run.status == "completed", f"the run ended {run.status}: {run.error}")
    _merged(p, look(p, run))


@ranks(2)
def a_rank_hangs_while_two_ranks_train(p: Place) -> None:
    """Rank 1 hangs ten seconds after it has begun: `fit` returns in time, with a submission, also where the machine was
    too busy for a single checkpoint.
    """
    kernel = _long(p, 60, _data(p), "trainer.check_val_every_n_steps=400", task="Handed", TINY_STEP_S="0.02")
    p.process(1)
    time.sleep(10)  # the moment itself is what is asked for
    p.process(1).suspend()
    word = kernel.wait(150)
    p.facts["late_s"] = round(word["ended"] - word["began"] - 60, 2)
    p.want(p.facts["late_s"] <= 0, f"{p.facts['late_s']:.1f} s late")
    p.facts["status"] = word["status"]
    _rows(p)


ENDS = (
    the_time_ends_while_two_ranks_predict,
    a_rank_hangs_while_two_ranks_predict,
    two_ranks_that_predict_get_sigterm,
    a_rank_hangs_while_two_ranks_train,
)


# --- wall clocks that jump
# ---------------------------------------------------------------------------------------------


def _jumps(p: Place, *jumps_s: float, faults: str = "", limit_s: float = 20) -> Run:
    "The wall clock jumps by so many seconds, one jump after the other; the limit is that of the monotonic clock."
    clock = p.folder / "clock"

    def set_clock(offset_s: float) -> None:
        (p.folder / "clock.part").write_text(str(offset_s))
        os.replace(p.folder / "clock.part", clock)

    set_clock(0)
    kernel = p.start("Drops", *limit(limit_s), TINY_CLOCK=str(clock), TINY_FAULTS=faults)
    run, offset_s = p.run(), 0.0
    for number, jump_s in enumerate(jumps_s, 1):
        p.steps(run, 50 * number)
        set_clock(offset_s := offset_s + jump_s)
    run = in_time(p, kernel, limit_s, submission=False)
    p.want(p.facts["late_s"] > -limit_s / 2, f"it stopped {-p.facts['late_s']:.0f} s before its limit of {limit_s:g} s")
    moments = [event["t"] for event in read_events(run.path / "events.jsonl")]
    p.want(moments == sorted(moments), "time runs backwards in the log")
    return run


def the_clock_is_set_forward(p: Place) -> None:
    "By three hours in the middle of a run with a limit: it neither stops early nor overruns."
    _jumps(p, 3 * 3600.0)


def the_clock_is_set_back(p: Place) -> None:
    "By three hours in the middle of a run with a limit: it neither stops early nor overruns."
    _jumps(p, -3 * 3600.0)


def the_clock_jumps_and_the_process_is_killed(p: Place) -> None:
    "Forward, back, and then a new start, which has to find its deadline where it was."
    run = _jumps(p, 5 * 3600.0, -9 * 3600.0, faults="loss 0 150 kill", limit_s=40)
    p.want(len(restarts(run)) == 1, f"{len(restarts(run))} restarts, and not one")
