"A loss that is no number, under each training.nan_policy."

from spectrakit.api.run import Run
from spectrakit.runs.events import read_events

from .crashes import restarts
from .harness import Place, ended, ranks, said, to_the_end, whole


def spoiled(run: Run) -> list[dict]:
    return [event for event in read_events(run.path / "events.jsonl") if event["type"] == "nan"]


def _stops(p: Place, task: str, fault: str) -> None:
    "The run fails with a sentence; the checkpoint from before it is there, and goes on to the same bits."
    run = ended(p, p.start(task, TINY_FAULTS=fault).wait(), "failed", "The loss became")
    p.want(len(spoiled(run)) == 1, f"{len(spoiled(run))} nan events")
    p.want(whole(run) and 12 <= max(whole(run)) <= 17, f"the checkpoints are those of steps {whole(run)}")
    to_the_end(p, run, task)


def a_nan_stops_the_run(p: Place) -> None:
    "training.nan_policy=stop: the run fails with a sentence; the checkpoint from before it goes on to the same bits."
    _stops(p, "Drops", "loss 0 18 nan")


def an_infinite_loss_stops_the_run(p: Place) -> None:
    "training.nan_policy=stop: the run fails with a sentence; the checkpoint from before it goes on to the same bits."
    _stops(p, "Drops", "loss 0 18 inf")


@ranks(2)
def a_nan_on_rank_1_stops_both(p: Place) -> None:
    "training.nan_policy=stop: all ranks end at the same step; the checkpoint from before it goes on to the same bits."
    _stops(p, "Walk", "loss 1 18 nan")


def _skips(p: Place, task: str, faults: str, times: int) -> None:
    "The run completes, the step without the update; it is told, and the weights stay finite."
    run = ended(p, p.start(task, "training.nan_policy=skip", TINY_FAULTS=faults).wait(), "completed")
    p.want(len(spoiled(run)) == times, f"{len(spoiled(run))} nan events, and not {times}")
    p.want(max(whole(run), default=0) == 40, f"the last checkpoint is not that of step 40: {whole(run)}")


def a_nan_is_skipped(p: Place) -> None:
    "training.nan_policy=skip: that step changes no weight, it is told, and the run completes with finite weights."
    _skips(p, "Drops", "loss 0 18 nan", 1)


def two_infinite_losses_are_skipped(p: Place) -> None:
    "training.nan_policy=skip: those steps change no weight, they are told, and the run completes with finite weights."
    _skips(p, "Drops", "loss 0 18 inf;loss 0 25 inf", 2)


@ranks(2)
def a_nan_on_rank_1_is_skipped_by_both(p: Place) -> None:
    "training.nan_policy=skip: no rank takes that step, it is told, and the run completes with finite weights."
    _skips(p, "Walk", "loss 1 18 nan", 1)


def _rolls_back(p: Place, task: str, faults: str) -> Run:
    "The run goes back to the last good checkpoint with a smaller rate, tells it, and completes with finite weights."
    run = ended(
        p,
        p.start(task, "training.nan_policy=rollback", "scheduler.name=constant", TINY_FAULTS=faults).wait(),
        "completed",
    )
    p.want(len(spoiled(run)) >= 1, "no nan event")
    rates = {event["step"]: event["lr"] for event in run.events if event["type"] == "step"}
    p.want(
        rates.get(15) == 0.01 and rates.get(40) == 0.005,
        f"the rate was {rates.get(15)} before and {rates.get(40)} at the end",
    )
    told = said(run) + " ".join(note for event in restarts(run) for note in event.get("notes") or [])
    p.want("back to step 16" in told, f"the person was told: {told!r}")
    return run


def a_nan_rolls_back(p: Place) -> None:
    """training.nan_policy=rollback: back to the last good checkpoint with half the rate; it is told, and the run
    completes.
    """
    _rolls_back(p, "Drops", "loss 0 18 nan")


@ranks(2)
def a_nan_on_rank_1_rolls_both_back(p: Place) -> None:
    """training.nan_policy=rollback: all ranks go back to the same checkpoint with half the rate; it is told, and the
    run completes.
    """
    _rolls_back(p, "Walk", "loss 1 18 nan")


def a_nan_that_comes_back_ends_the_run(p: Place) -> None:
    "training.nan_policy=rollback: after training.max_rollbacks the run fails with a sentence, and has a usable model."
    faults = ";".join(f"loss 0 {number} nan!" for number in range(18, 400))
    run = ended(
        p,
        p.start("Drops", "training.nan_policy=rollback", "training.max_rollbacks=2", TINY_FAULTS=faults).wait(),
        "failed",
        "The loss became",
    )
    p.want(len(spoiled(run)) == 3, f"{len(spoiled(run))} nan events, and not 3")


def a_killed_run_remembers_its_rollback(p: Place) -> None:
    "After a rollback the process is killed: the run goes on with the smaller rate, and completes."
    run = _rolls_back(p, "Drops", "loss 0 18 nan;loss 0 30 kill")
    p.want(
        any("killed by SIGKILL" in note for e in restarts(run) for note in e.get("notes") or []), "it was not killed"
    )
