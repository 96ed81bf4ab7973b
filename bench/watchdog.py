"""What the watchdog costs a loop between two points of agreement: `python bench/watchdog.py [--rounds N] [--json
FILE]`.

Three figures, each the time of many calls divided by their number, the median over rounds, beside an empty loop that is
measured in the same round and subtracted: `Watchdog.should_stop()` for one process and for two ranks on one page, and
what
`fit`'s own loop spends on its clock. Aim: less than 1 µs. The clock is really read: a limit of an hour is set.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from spectrakit.distributed.hang_detector import Heartbeat, Pace, SharedPage
from spectrakit.watchdog.watchdog import Agreement, Watchdog

CALLS = 200_000


def empty() -> None:
    pass


def seconds(call, calls: int = CALLS) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - began) / calls


def ranks() -> Agreement:
    "Rank 0 of two on a page, whose other rank is always a step ahead."
    together = Agreement()
    page = SharedPage(None, 2)
    together.heartbeat = Heartbeat(page, 0)
    page.cells[page.row(1)] = 2**62
    return together


def loops_clock():
    "What train_loop does for its clock at each step."
    pace, look_at, last = Pace(), time.monotonic() + 3600, time.monotonic()

    def step() -> None:
        nonlocal last
        now = time.monotonic()
        pace.add(now - last)
        if now >= look_at:
            raise AssertionError
        last = now

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with Watchdog("1h", since="run") as alone, Watchdog("1h", since="run") as paired:
        paired._agreement = ranks()
        rows = {
            "should_stop(), one process": alone.should_stop,
            "should_stop(), two ranks on a page": paired.should_stop,
            "fit: the loop's own clock": loops_clock(),
        }
        found = {name: [] for name in rows}
        for _ in range(arguments.rounds):
            nothing = seconds(empty)
            for name, call in rows.items():
                found[name].append(1e6 * (seconds(call) - nothing))
    figures = {name: round(statistics.median(times), 3) for name, times in found.items()}
    for name, figure in figures.items():
        print(f"{name:36} {figure:6.2f} µs a step")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
