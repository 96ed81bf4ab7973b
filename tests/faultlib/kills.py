"""Random kills: runs that are killed over and over, at random moments, until they are done.

A chain is one run. Everything else is held still while one of its processes is killed, so that what the kill left can
be looked at before anybody tidies up. The same seed draws the same victims and moments; how far a run has come by then
depends on the machine.
"""

import contextlib
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from helpers import wait_for
from spectrakit.checkpoint.store import checkpoints, verify
from spectrakit.runs.events import EventReader

from .crashes import BALLAST
from .harness import Kernel, Place, compare, ended, lost


@dataclass(frozen=True)
class Kind:
    "One kind of run. `victims`: who is killed, and how often in a hundred."

    name: str
    task: str
    words: tuple[str, ...]
    victims: dict[str, int]
    ranks: int = 1


ALONE = {"training": 85, "kernel": 15}
KINDS = (
    Kind("one process, saves in the background", "Drops", ("trainer.max_steps=1200", BALLAST), ALONE),
    Kind(
        "two ranks",
        "Walk",
        ("trainer.max_steps=700",),
        {"rank 1": 60, "rank 0": 15, "launcher": 10, "kernel": 15},
        ranks=2,
    ),
    Kind(
        "one process, EMA, accumulation",
        "Drops",
        (
            "trainer.max_steps=700",
            "checkpoint.background=false",
            "training.ema_decay=0.99",
            "training.gradient_accumulation_steps=2",
        ),
        ALONE,
    ),
    Kind(
        "a loader with a worker",
        "Read",
        ("trainer.max_steps=700", "dataloader.num_workers=1", "dataloader.persistent_workers=true"),
        ALONE,
    ),
)
COMMON = (
    "checkpoint.every_n_steps=10",
    "trainer.check_val_every_n_epoch=7",
    "launch.max_restarts=1000",
    "launch.hang_floor_s=60",
)
STEP_S, START_S, LIFE_S = (
    "0.004",
    3.0,
    1.2,
)  # a training loss; what a start takes; what is waited at most once training goes on


@dataclass
class Chain:
    "What one run went through. `broken`: a sentence for each thing that must not have happened."

    kind: str
    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    in_a_save: int = 0
    in_a_start: int = 0
    steps_again: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total(self) -> int:
        "Kills."
        return sum(self.kills.values())


class Quota:
    "So many kills, shared by all chains."

    def __init__(self, wanted: int):
        self.left, self._lock = wanted, threading.Lock()

    def take(self, number: int = 1) -> bool:
        "Whether one more is wanted; with -1 one that was taken is given back."
        with self._lock:
            if self.left < number:
                return False
            self.left -= number
            return True


class Following:
    "A run's log while it grows: whether training goes on since the last kill."

    def __init__(self, run_dir: Path):
        self.reader, self.began, self.trains = EventReader(run_dir / "events.jsonl"), False, False

    def look(self) -> bool:
        "Whether it trains."
        for event in self.reader.poll():
            if event["type"] in ("start", "restart"):
                self.began = True
            elif event["type"] == "step" and self.began:
                self.trains = True
        return self.trains

    def killed(self) -> None:
        "What was written until now is the past."
        self.look()
        self.began = self.trains = False


# --- one kill
# ----------------------------------------------------------------------------------------------------------


def _first_child(kernel: Kernel) -> psutil.Process | None:
    "The training process, or the launcher of several."
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(kernel.process.pid)
        for child in process.children():
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                trains = words == process.cmdline() or any("spectrakit-job-" in word for word in words)  # or: a fork
                if trains and child.status() != psutil.STATUS_ZOMBIE:
                    return child
    return None


def _victim(place: Place, kernel: Kernel, who: str) -> psutil.Process | None:
    try:
        if who.startswith("rank"):
            return psutil.Process(int((place.folder / f"pid-{who.split()[1]}").read_text()))
        return psutil.Process(kernel.process.pid) if who == "kernel" else _first_child(kernel)
    except (OSError, ValueError, psutil.Error):
        return None  # it has left


def _is_dead(process: psutil.Process) -> bool:
    "Also where whoever started it has buried it in this moment."
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _strike(place: Place, kernel: Kernel, who: str) -> bool:
    "Hold everything still, kill `who`, and leave the others still; False where the run is at its end."
    held = []
    for process in sorted(place.processes(), key=lambda process: process.pid):  # the kernel is the oldest
        with contextlib.suppress(psutil.Error):
            process.suspend()
            held.append(process)
    victim = _victim(place, kernel, who)
    alive = victim is not None and victim in held
    if alive:
        victim.kill()
        wait_for(lambda: _is_dead(victim), "the victim to die", 20)
    return alive


def _go_on(place: Place) -> None:
    for process in sorted(place.processes(), key=lambda process: -process.pid):
        with contextlib.suppress(psutil.Error):
            process.resume()


def _look(chain: Chain, folder: Path, newest: int) -> int:
    """What a kill left among the checkpoints: each is whole, and none that was there has gone.

    Returns the newest one's step, 0 for none.
    """
    chain.in_a_save += any(folder.glob(".writing-*")) or any(folder.glob(".old-*"))
    bad = [path.name for path in checkpoints(folder) if verify(path)]
    steps = [
        int(path.name.removeprefix(".old-").removeprefix("step-"))
        for path in [*checkpoints(folder), *folder.glob(".old-*")]
        if verify(path) == []
    ]
    if bad:
        chain.broken.append(f"after kill {chain.total}: not whole: {', '.join(bad)}")
    if max(steps, default=0) < newest:
        chain.broken.append(f"after kill {chain.total}: the checkpoint of step {newest} was there, and is gone")
    return max(steps, default=0)


def _wait(place: Place, kernel: Kernel, follow: Following, early: bool) -> bool:
    """Wait for the next moment to strike: a new process (`early`), or training that goes on.

    False where the run is at its end first.
    """

    def there() -> str:
        if kernel.process.poll() is not None:
            return "over"
        return "now" if (_first_child(kernel) if early else follow.look()) else ""

    return wait_for(there, "training to go on", 120) == "now"


# --- a chain of them
# ---------------------------------------------------------------------------------------------------


def run_chain(kind: Kind, seed: int, folder: Path, quota: Quota, most: int = 10**6) -> Chain:
    "A run of `kind` that is killed as often as `quota` wants, `most` times at most, and then goes on to its end."
    place, chain, draw, began = (
        Place(folder, kind.ranks),
        Chain(kind.name, seed),
        random.Random(f"{seed} {kind.name}"),
        time.monotonic(),
    )
    words, newest = (*COMMON, *kind.words), 0
    try:
        kernel = place.start(kind.task, *words, TINY_STEP_S=STEP_S)
        run = place.run()
        follow = Following(run.path)
        while chain.total < most and quota.take():
            who = draw.choices(list(kind.victims), list(kind.victims.values()))[0]
            early, share = draw.random() < 0.15, draw.random()
            if kind.ranks > 1 or not newest:
                early = False  # ranks that are killed before they meet are another story, and resume needs a checkpoint
            if who == "kernel" and not newest:
                who = next(iter(kind.victims))
            if _wait(place, kernel, follow, early):
                time.sleep(share * (START_S if early else LIFE_S))  # the random moment
            if kernel.process.poll() is not None or not _strike(place, kernel, who):
                _go_on(place)
                quota.take(-1)
                break
            chain.in_a_start += not follow.look()
            follow.killed()
            chain.kills[who] = chain.kills.get(who, 0) + 1
            if who == "kernel":
                _go_on(place)  # a process that has only just begun learns by itself that it is alone
                place.kill(kernel)
            newest = _look(chain, run.path / "checkpoints", newest)
            if who == "kernel":
                kernel = place.start(kind.task, resume=run.path, TINY_STEP_S=STEP_S)
            else:
                _go_on(place)
        ended(place, kernel.wait(400), "completed")
        compare(place, run, kind.task, *words)
        chain.steps_again = lost(run)
        place.gone()
        if stayed := place.stayed():
            place.broken.append(f"stayed: {', '.join(stayed)}")
    except Exception as error:
        place.broken.append(f"{type(error).__name__}: {error}".replace(str(folder), "…"))
    finally:
        place.clear()
    chain.broken += place.broken
    chain.seconds = round(time.monotonic() - began, 1)
    if not chain.broken:
        shutil.rmtree(folder, ignore_errors=True)
    return chain


def random_kills(wanted: int, seed: int, folder: Path, parallel: int = 2, tell=print) -> list[Chain]:
    "At least `wanted` kills in chains of all kinds, `parallel` at a time; `tell` gets a line after each chain."
    quota, done, lock, numbers = Quota(wanted), [], threading.Lock(), iter(range(10**6))

    def work() -> None:
        while quota.left > 0:
            with lock:
                number = next(numbers)
            chain = run_chain(KINDS[number % len(KINDS)], seed + number, folder / f"chain-{number}", quota)
            with lock:
                done.append(chain)
                tell(
                    f"chain {number} ({chain.kind}, seed {chain.seed}): {chain.total} kills, "
                    f"{chain.in_a_save} of them in a save, {chain.seconds:.0f} s"
                    + "".join(f"\n    {sentence}" for sentence in chain.broken)
                )

    with ThreadPoolExecutor(parallel) as pool:
        for future in [pool.submit(work) for _ in range(parallel)]:
            future.result()
    return done
