"""Random kills of searches: two of them share a study, one or both are killed over and over, and begun again.

In the end each point of the grid has to be told once as completed, with the value that a study has to which nothing
happened.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from helpers import start_cli, wait_for
from spectrakit.api.run import list_runs
from spectrakit.runs.run_groups import DONE
from spectrakit.tuning.search.study import Study, open_study

TASK = f"{Path(__file__).resolve().parent.parent / 'fault_tasks.py'}:Drops"
WORDS = (
    "optimizer.lr=0.1,0.03,0.01,0.003,0.001",
    "search.sampler=grid",
    "search.pruner=none",
    "trainer.accelerator=cpu",
    "data.batch_size=10",
    "trainer.max_epochs=12",
    "checkpoint.every_n_steps=5",
    "checkpoint.max_share=1",
    "run.dir=runs",
)
STEP_S = "0.02"


@dataclass
class Round:
    "What one study went through. `broken`: a sentence for each thing that must not have happened."

    seed: int
    kills: Counter = field(default_factory=Counter)
    again: int = 0  # trials that were cut and queued again
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0


def values_of(study: Study) -> dict[str, list[float | None]]:
    "The values of the completed trials of each point."
    found: dict[str, list[float | None]] = {}
    for row in study.trials:
        if row.status == "completed":
            found.setdefault(str(sorted(row.params.items())), []).append(row.value)
    return found


def _start(place: Path, *more: str) -> Any:
    return start_cli(place, "search", TASK, *WORDS, *more, env={"TINY_STEP_S": STEP_S}, fresh=True)


def _kill(search: Any, whole: bool) -> None:
    "SIGKILL to the search's own process, or to all of its group."
    with contextlib.suppress(ProcessLookupError):
        os.killpg(search.pid, signal.SIGKILL) if whole else os.kill(search.pid, signal.SIGKILL)
    search.wait()


def undisturbed(folder: Path) -> dict[str, list[float | None]]:
    "The values of a study that nobody kills."
    folder.mkdir(parents=True)
    out, err = (search := _start(folder)).communicate()
    assert search.returncode == 0, out + err
    return values_of(open_study(next((folder / "runs").glob("*-search-*"))))


def _check(found: Round, study: Study, expected: dict[str, list[float | None]]) -> None:
    "Write down what is not as it has to be."
    say, rows = found.broken.append, study.trials
    if study.status != "completed":
        say(f"the study is {study.status}: {study.reason}")
    values = values_of(study)
    for point in sorted({*expected, *values}):
        if values.get(point) != expected.get(point):
            say(f"{point} is told as {values.get(point)}, and undisturbed as {expected.get(point)}")
    if odd := [row.number for row in rows if row.status not in ("completed", "cut")]:
        say(f"trials {odd} are {', '.join(rows[number].status for number in odd)}")
    folders = Counter(row.folder for row in rows if row.status == "completed")
    if twice := [name for name, count in folders.items() if count > 1]:
        say(f"more than one completed trial in {', '.join(twice)}")
    for row in rows:
        done = [run.path for run in list_runs(study.path / row.folder) if run.status in DONE]
        if row.status == "completed" and [run.path for run in study.runs_of(row)] != done:
            say(f"trial {row.number} has {len(done)} runs that are done")  # others died before their first checkpoint
    found.again = sum(row.status == "cut" for row in rows)


def run_round(seed: int, folder: Path, expected: dict[str, list[float | None]], most: int = 6) -> Round:
    "A study of two searches that are killed `most` times together, and its end."
    found, draw, began = Round(seed), random.Random(seed), time.monotonic()
    folder.mkdir(parents=True)
    searches = [_start(folder)]
    try:
        study = wait_for(lambda: next((folder / "runs").glob("*-search-*/journal.jsonl"), None), "a journal").parent
        wait_for((study / "trial-0000").is_dir, "a trial")
        more = ("--resume", str(study.relative_to(folder)))
        searches.append(_start(folder, *more))
        for _ in range(most):
            time.sleep(draw.uniform(0.2, 8.0))
            if any(search.poll() == 0 for search in searches):
                break
            struck = draw.choice([[0], [1], [0, 1]])
            whole = draw.random() < 0.7  # or the training processes learn by themselves that they are alone
            for number in struck:
                _kill(searches[number], whole)
            found.kills[f"{'both' if len(struck) > 1 else 'one'}, {'whole' if whole else 'without its children'}"] += 1
            for number in struck:
                searches[number] = _start(folder, *more)
        for search in searches:
            out, err = search.communicate(timeout=900)
            if search.returncode:
                found.broken.append(f"a search ended with {search.returncode}: {(out + err)[-600:]}")
        last = _start(folder, *more)  # what both have left to each other
        out, err = last.communicate(timeout=900)
        if last.returncode:
            found.broken.append(f"the last search ended with {last.returncode}: {(out + err)[-600:]}")
        _check(found, open_study(study), expected)
    except Exception as error:
        found.broken.append(f"{type(error).__name__}: {error}".replace(str(folder), "…"))
    finally:
        for search in searches:
            _kill(search, True)
    found.broken += [f"{line} is still there" for line in _left_behind(folder)]
    found.seconds = round(time.monotonic() - began, 1)
    if not found.broken:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _left_behind(folder: Path) -> list[str]:
    "Processes that work in `folder`, after they had the time to learn that they are alone."

    def there() -> list[str]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.cwd() == str(folder.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline())[:80])
        return found

    end = time.monotonic() + 30
    while (found := there()) and time.monotonic() < end:
        time.sleep(0.5)
    return found


def study_kills(rounds: int, seed: int, folder: Path, tell=print) -> list[Round]:
    "So many studies; `tell` gets a line after each."
    expected, done = undisturbed(folder / "undisturbed"), []
    for number in range(rounds):
        done.append(found := run_round(seed + number, folder / f"study-{number}", expected))
        kills = ", ".join(f"{count} × {kind}" for kind, count in found.kills.items())
        tell(
            f"study {number} (seed {found.seed}): {found.kills.total()} kills ({kills}), {found.again} trials queued "
            f"again, {found.seconds:.0f} s" + "".join(f"\n    {sentence}" for sentence in found.broken)
        )
    return done
