"""Plays what a stranger may bring along, and counts what was executed, leaked, written outside, hung, traced back, or
printed signs that move a cursor.

A `Case` makes its folder and says what is done with it. `play` does it in this process, with a canary among the
variables, a folder outside that nothing may change, and a bound on time. All counts have to be 0. Another file of cases
needs no more than `Case`, `play` and a parametrized test. Where training would begin, it is stopped: that of a built-in
task is allowed and counted as `trains`, any other is something executed.
"""

import contextlib
import gc
import hashlib
import io
import os
import re
import resource
import signal
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from spectrakit.api import actions
from spectrakit.api import check as checks
from spectrakit.checkpoint.store import CheckpointError
from spectrakit.kaggle.offline.installer import Failed, Refused
from spectrakit.launch.job import BUILT_IN
from spectrakit.system.errors import RequestError
from spectrakit.tuning import lr_finder

# errors that people are meant to read
READABLE = (RequestError, CheckpointError, Refused, Failed, RuntimeError, SystemExit)
SECRET = "c4nary-9f2e71d05b"  # the value of KAGGLE_KEY, and the content of a file outside
LIMIT_S, WAIT_S = 10.0, 120.0  # of computing, and in all: on a busy machine others compute, too
ROOM = 3 * 2**30  # bytes
COUNTS: Counter[str] = Counter()
KINDS = ("executed", "leaked", "written", "hung", "traced back", "unprintable")
CODE = "from pathlib import Path\nPath({mark!r}).touch()\nclass Evil:\n    pass\n"


@dataclass(frozen=True)
class Case:
    "One thing that a stranger may bring along, and what somebody does with it."

    name: str
    make: Callable[["Place"], Any]  # puts it there; what it returns is handed to `act`
    act: Callable[[Any], Any]  # what is done with it: calls of the kit
    says: str | None = None  # a pattern that what is raised, returned or printed has to match
    trains: bool = False  # whether a job is really done: in this process, with a task of the user's


@dataclass(frozen=True)
class Place:
    "Where a case happens."

    folder: Path  # this is also the current folder

    @property
    def mark(self) -> Path:
        "Is there afterwards if something of the stranger's was executed."
        return self.folder / "EXECUTED"

    @property
    def outside(self) -> Path:
        "A folder of the user's that nothing may read into a run, or change."
        return self.folder / "outside"

    def code(self, name: str) -> Path:
        "A Python file that leaves its mark when it is executed."
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(CODE.format(mark=str(self.mark)))
        return file


@dataclass
class Result:
    "What came of a case."

    text: str = ""  # all that was raised, returned and printed
    found: list[str] = field(default_factory=list)  # of KINDS


class Hung(BaseException):
    "It computed for longer than LIMIT_S, or took longer than WAIT_S."


class Begins(BaseException):
    "A job would begin. The message is the name of its task, or '' where that is the user's own object."


def begin_no_job(job: Any, task: Any, tick: Any) -> None:
    "In place of `launch`."
    raise Begins(task if isinstance(task, str) else "")


@contextlib.contextmanager
def without_jobs(wanted: bool) -> Iterator[None]:
    "Where it is `wanted`, a job that would begin within the block raises Begins."
    with pytest.MonkeyPatch.context() as patch:
        for module in (actions, checks, lr_finder) if wanted else ():
            patch.setattr(module, "launch", begin_no_job)
        yield


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Raise Hung in this, the main, thread where the block computes for longer than LIMIT_S or takes longer than
    WAIT_S, and MemoryError where it takes ROOM more than there was. What other tests left for the garbage collector is
    not cleared up at this one's cost: a DataLoader waits five seconds for each of its workers.
    """

    def end(*_: Any) -> None:
        raise Hung

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + ROOM, hard))
    clocks = ((signal.ITIMER_PROF, signal.SIGPROF, LIMIT_S), (signal.ITIMER_REAL, signal.SIGALRM, WAIT_S))
    before = [(number, signal.signal(number, end)) for _, number, _ in clocks]
    for clock, _, seconds in clocks:
        signal.setitimer(clock, seconds)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        for clock, _, _ in clocks:
            signal.setitimer(clock, 0)
        for number, handler in before:
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def tree(folder: Path) -> dict[str, str]:
    "Every name below `folder`, with a hash of what it is."
    found = {}
    for path in sorted(folder.rglob("*")):
        what = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = hashlib.sha256(what).hexdigest()
    return found


def _one_sentence(error: BaseException) -> bool:
    "Whether an error is one that people are meant to read, and not a fault of ours."
    return isinstance(error, READABLE) and "\n" not in str(error)


def unprintable(text: str) -> bool:
    "Whether `text` could move a cursor, colour a line or turn round what follows."
    return any(unicodedata.category(sign) in ("Cc", "Cf", "Cs") and sign not in "\n\t\r" for sign in text)


def act_on(case: Case, thing: Any, result: Result) -> None:
    "Do what the case does, with its text and its faults noted."
    out = io.StringIO()
    try:
        quiet = contextlib.redirect_stdout(out), contextlib.redirect_stderr(out)
        with bounded(), without_jobs(not case.trains), quiet[0], quiet[1]:
            result.text += str(case.act(thing))
    except Hung as error:
        result.found.append("hung")
        result.text += "".join(traceback.format_exception(error)[-6:])
    except Begins as job:
        COUNTS["trains"] += 1
        if str(job) not in ("", *BUILT_IN):
            result.found.append("executed")
    except BaseException as error:
        result.text += f"\n{type(error).__name__}: {error}"
        result.found += ["unprintable"] * unprintable(str(error))
        if not _one_sentence(error):
            result.found.append("traced back")
            result.text += "\n" + "".join(traceback.format_exception(error)[-6:])
    result.text += out.getvalue()
    result.found += ["unprintable"] * unprintable(out.getvalue())
    if "Traceback (most recent call last)" in out.getvalue():
        result.found.append("traced back")


def leaked(place: Place, text: str) -> bool:
    "Whether the canary is in `text`, or in a file below the folder other than outside."
    if SECRET in text:
        return True
    for path in place.folder.rglob("*"):
        inside = not path.is_symlink() and path.is_file() and place.outside not in path.parents
        if inside and path.stat().st_size < 2**24 and SECRET.encode() in path.read_bytes():
            return True
    return False


def play(case: Case, folder: Path) -> Result:
    "Make the case in `folder`, do it, and count what it did."
    place, result = Place(folder), Result()
    place.outside.mkdir()
    (place.outside / "secret.txt").write_text(SECRET + "\n")
    (place.outside / "secret.yaml").write_text(f"extra: {{note: {SECRET}}}\n")
    thing, before = case.make(place), tree(place.outside)
    act_on(case, thing, result)
    if place.mark.exists():
        result.found.append("executed")
    if leaked(place, result.text):
        result.found.append("leaked")
    if tree(place.outside) != before:
        result.found.append("written")
    COUNTS.update(["cases", *result.found])
    return result


def check(case: Case, folder: Path) -> None:
    "AssertionError unless nothing happened, and what it says is what was expected."
    result = play(case, folder)
    assert not result.found, f"{case.name}: {', '.join(result.found)}\n{result.text[-3000:]}"
    if case.says is not None:
        assert re.search(case.says, result.text), f"{case.name} says: {result.text[-1000:]}"
