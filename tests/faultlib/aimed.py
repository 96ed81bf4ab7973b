"""Kills that are aimed at saves, evaluations and start-ups of two ranks, at moments that a run reaches by itself.

Ten in a run. No clock draws them: a rank kills itself, or the other one, at a certain call to the disk in a save, at a
certain batch of an evaluation, and where it asks for its data, its model or its first loss. Each comes about once, and
the run has to end as the one to which nothing happened, bit for bit.
"""

from pathlib import Path

from spectrakit.api.run import Run

from .crashes import BALLAST, restarts
from .harness import Place, Scenario, compare, ended, ranks

STEPS = ("trainer.max_steps=160", "launch.max_restarts=1000")
KINDS = 4  # small and large checkpoints, earlier and later calls
A_RUN = 8  # of the ten that are planned: two that wait for one save are one kill


def faults(number: int) -> list[str]:
    "The ten faults of the run with this number, as fault_tasks.py reads them; other ranks and calls in each run."
    kind = number % KINDS
    one, call = (number + number // KINDS) % 2, 1 + 4 * kind
    other = 1 - one
    start = [f"data {one} 1 kill", f"model {other} 1 kill", f"loss {one} 1 kill"]
    evaluation = [f"metric {one} {1 + kind // 2} kill", f"metric {other} 2 kill", f"metric {one} 3 kill"]
    whom = ("save", "peer") if one else ("peer", "save")
    return [*start, *evaluation, *(f"loss 0 {n + 2} {whom[n % 2]}@{call + n}" for n in range(4))]


def aim(p: Place, planned: list[str], *words: str) -> Run:
    "Let a run with these faults end, and compare it."
    words = (*STEPS, *words)
    run = ended(p, p.start("Walk", *words, TINY_FAULTS=";".join(planned), TINY_STEP_S="0").wait(500), "completed")
    died = [Path(call).name for call in map(str, sorted(p.folder.glob("aimed-*")))]
    kills = sum("@" not in fault for fault in planned) + len(died)  # two that wait for one save are one kill
    p.facts["note"] = f"{kills} kills, {len(restarts(run))} restarts; in saves: {', '.join(died) or 'none'}"
    return compare(p, run, "Walk", *words)


@ranks(2)
def kills_aimed_at_a_start_a_save_and_an_evaluation(p: Place) -> None:
    "Two ranks: whichever dies in a start, in a save and in an evaluation, the run ends with the same bits."
    aim(p, ["model 1 1 kill", "loss 0 2 save@7", "metric 1 2 kill"], "trainer.max_steps=40")


def run_of(number: int) -> Scenario:
    "The scenario of the run with this number."

    @ranks(2)
    def ten_aimed_kills(p: Place) -> None:
        "Three in starts, three in evaluations, four in saves: the run ends with the same bits."
        aim(p, faults(number), *([BALLAST] if number % KINDS > 1 else []))

    ten_aimed_kills.__name__ = f"ten_aimed_kills_{number + 1}"
    return ten_aimed_kills


def runs_of(wanted: int) -> list[Scenario]:
    "As many runs as `wanted` kills need."
    return [run_of(number) for number in range(-(-wanted // A_RUN))]
