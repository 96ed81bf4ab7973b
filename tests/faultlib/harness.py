"A place where one thing goes wrong: processes that cannot hide, what they left behind, and a row that tells it."

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import fork_server
import spectrakit
from helpers import clean_environ, wait_for
from spectrakit.api.run import Run, open_run
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, load_state, load_weights, verify
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.runs.run_dir import is_locked

HERE = Path(__file__).resolve().parent
TASKS = HERE.parent / "fault_tasks.py"
STEPS = 40

# Forty optimizer steps in four epochs; every step has its line in the log, every fourth a checkpoint.
ONE = (
    "local/accumulate_grad_batches=debug",
    "trainer.accelerator=cpu",
    "data.batch_size=4",
    f"trainer.max_steps={STEPS}",
    "optimizer.lr=0.01",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "checkpoint.every_n_steps=4",
    "checkpoint.every_n_epochs=null",
    "checkpoint.keep_last=3",
    "checkpoint.max_share=1",
    "run.console=none",
)
TWO = ("trainer.devices=2", "data.batch_size=2")


class Cannot(Exception):
    "This fault cannot be made on this machine; the message says why."


@dataclass(frozen=True)
class Row:
    "What one fault did. `None`: it does not apply. `broken`: the promises that did not hold, in words."

    scenario: str
    promise: str
    ranks: int = 1
    status: str = ""
    lost_steps: int | None = None  # optimizer steps beyond the last whole checkpoint, which had to be done again
    usable_model: bool | None = None
    late_s: float | None = None  # negative: early
    same: bool | None = None  # bit for bit as the run that nothing happened to
    stayed: tuple[str, ...] = ()  # processes, locks, temporary files
    trained: float | None = None  # share of a limit that went to optimizer steps
    note: str = ""
    broken: tuple[str, ...] = ()
    skipped: str = ""
    seconds: float = 0.0


@dataclass
class Kernel:
    "A person's process in which `fit` or `resume` runs."

    process: subprocess.Popen | fork_server.Served
    word: Path
    log: Path

    def wait(self, timeout_s: float = 120) -> dict:
        "What it said in the end: status, error, path, began, ended, or refused."
        self.process.wait(timeout_s)
        if self.word.is_file():
            return json.loads(self.word.read_text())
        last = (self.log.read_text().strip().splitlines() or ["nothing"])[-1]
        raise AssertionError(
            f"the kernel ended with {self.process.returncode} and without a word; its log ends with {last!r}"
        )


# --- a place
# -----------------------------------------------------------------------------------------------------------


class Place:
    "A folder in which a scenario plays. It finds everything that was started from it, and ends it."

    def __init__(self, folder: Path, ranks: int = 1):
        self.folder, self.ranks = folder, ranks
        self.facts, self.broken, self.kernels, self.undo = {}, [], [], []
        self.planned: list[str] = []  # faults that have to come about
        self.spoiled: set[int] = set()  # the steps of checkpoints that the scenario damages
        (folder / "temporary").mkdir(parents=True)

    def start(
        self,
        task: str,
        *words: str,
        resume: Path | None = None,
        predict: str | None = None,
        hears: bool = False,
        **environ: str,
    ) -> Kernel:
        """Start a kernel that fits `task` of fault_tasks.py, or file.py:Name, with `words`, on as many ranks as the
        place has, or resumes a run.
        """
        number = len(self.kernels)
        self.planned += [
            fault for fault in environ.get("TINY_FAULTS", "").split(";") if fault and not fault.endswith("!")
        ]
        request, log = self.folder / f"request-{number}.json", self.folder / f"kernel-{number}.log"
        word = self.folder / f"word-{number}.json"
        request.write_text(
            json.dumps(
                {
                    "task": task if ":" in task else f"{TASKS}:{task}",
                    "words": self.words(*words),
                    "resume": str(resume) if resume else None,
                    "predict": predict,
                    "hears": hears,
                    "word": str(word),
                }
            )
        )
        env = {
            **clean_environ(),
            "TINY_PIDS": "yes",
            "TINY_STEP_S": "0.01",
            "TMPDIR": str(self.folder / "temporary"),
            **environ,
        }
        with open(log, "ab") as output:
            process = self._script([str(HERE / "kernel.py"), str(request)], env, output.fileno())
        self.kernels.append(Kernel(process, word, log))
        return self.kernels[-1]

    def held(self, task: str, *words: str, at: int = 14, **more: Any) -> Kernel:
        "What `start` gives, held in its `at`-th training loss until `let_go`."
        kernel = self.start(task, *words, TINY_HOLD=f"{at}:{self.folder}", **more)
        self.file("held")
        return kernel

    def let_go(self, heard: Run | None = None) -> None:
        "Let it go on; with `heard`, once this run has been asked to stop."
        if heard is not None:
            wait_for(lambda: (heard.path / "STOP").exists() or self.ended(), "the stop to be heard")
        (self.folder / "go").touch()

    def ended(self) -> bool:
        "Whether all kernels are gone."
        return all(kernel.process.poll() is not None for kernel in self.kernels)

    def _script(self, words: list[str], env: dict[str, str], output: int) -> subprocess.Popen | fork_server.Served:
        """A process for a script in this folder.

        With TINY_FORKS in this process's environment a fork, but where the clock is another from its start.
        """
        if "TINY_FORKS" in os.environ and "TINY_CLOCK" not in env:
            return fork_server.client().start_script(words, self.folder, env, output)
        clock = [str(HERE / "clock")] if "TINY_CLOCK" in env else []
        path = os.pathsep.join([*clock, str(Path(spectrakit.__file__).parent.parent)])
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=self.folder,
            env={**env, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def words(self, *more: str) -> list[str]:
        "The settings of a run here."
        return [*ONE, *(TWO if self.ranks == 2 else ()), *more]

    def run(self, timeout_s: float = 240) -> Run:
        "The one run that was begun here."
        found = wait_for(
            lambda: next(iter(sorted(self.folder.glob("**/runs/*/events.jsonl"))), None), "a run", timeout_s
        )
        return open_run(found.parent)

    def steps(self, run: Run, least: int, timeout_s: float = 240) -> None:
        "Wait until the run has told of optimizer step `least`."
        wait_for(
            lambda: (last_event(read_events(run.path / "events.jsonl"), "step") or {"step": 0})["step"] >= least,
            f"optimizer step {least}",
            timeout_s,
        )

    def file(self, name: str, timeout_s: float = 240) -> Path:
        "Wait for the file `name` of this place, such as the mark of a fault."

        def there() -> bool:
            if (self.folder / name).exists():
                return True
            assert not self.ended(), f"every kernel has ended, and there is no {name}"
            return False

        wait_for(there, name, timeout_s)
        return self.folder / name

    def process(self, rank: int = 0) -> psutil.Process:
        "The process that is rank `rank` now."

        def find() -> psutil.Process | None:
            try:
                return psutil.Process(int((self.folder / f"pid-{rank}").read_text()))
            except (OSError, ValueError, psutil.Error):
                return None

        return wait_for(find, f"rank {rank}")

    def want(self, holds: Any, sentence: str) -> bool:
        "A promise: where it does not hold, `sentence` says what did."
        if not holds:
            self.broken.append(sentence)
        return bool(holds)

    def processes(self) -> list[psutil.Process]:
        "Everything that was started from here, and so works in this folder, and lives."
        found, here = [], str(self.folder.resolve())
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cwd() == here and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self, kernel: Kernel) -> None:
        """SIGKILL for a kernel; wait for its processes to follow it, and let its page of memory look old: nobody takes
        a fresh one for left behind.
        """
        kernel.process.kill()
        kernel.process.wait(30)
        self.gone()
        self.want(not self.processes(), "a process outlived its kernel")
        for page in pages([kernel.process.pid]):
            os.utime(page, (time.time() - 120,) * 2)

    def gone(self, timeout_s: float = 60) -> None:
        "Wait until no process is left; where one stays, `stayed` tells."
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self.processes(), "all processes to end", timeout_s)

    def stayed(self) -> tuple[str, ...]:
        "Processes, locks, pages and temporary files that are still there, without their numbers."
        found = [f"a process: {' '.join(p.cmdline())[-60:]}" for p in self.processes()]
        found += [f"{page.parent}/{page.name}" for page in pages(kernel.process.pid for kernel in self.kernels)]
        found += [
            f"TMPDIR/{path.name}"
            for path in (self.folder / "temporary").iterdir()
            if path.name.startswith("spectrakit-")
        ]
        for log in self.folder.glob("**/runs/*/events.jsonl"):
            found += [path.name for path in log.parent.rglob(".*")] + ["a held lock"] * is_locked(log.parent)
        return tuple(sorted(re.sub(r"\d{3,}", "N", one) for one in found))

    def clear(self) -> None:
        "End everything that was started from here, and undo what was made for it."
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for kernel in self.kernels:
            with contextlib.suppress(subprocess.TimeoutExpired):
                kernel.process.wait(10)
        for undo in reversed(self.undo):
            undo()
        for page in pages(kernel.process.pid for kernel in self.kernels):
            page.unlink(missing_ok=True)


def pages(launchers: Iterable[int]) -> list[Path]:
    "The pages of shared memory of these launchers."
    return [page for pid in launchers for page in Path("/dev/shm").glob(f"spectrakit-page-{pid}-*")]


def mounted(place: Place, folder: Path, *words: str) -> Path:
    "Mount something on `folder` until the scenario is over. Cannot where this user may not."
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("mount") is None:
        raise Cannot("there is no mount command")
    done = subprocess.run(["mount", *words, str(folder)], capture_output=True, text=True)
    if done.returncode:
        raise Cannot("nothing can be mounted here")
    place.undo.append(lambda: subprocess.run(["umount", "--lazy", str(folder)], check=False))
    return folder


# --- what a run is worth
# -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """What has to be the same in two runs: the loss of each step, each evaluation, the weights and the optimizer's
    state at the end.
    """

    losses: dict[int, float]
    evaluations: dict[int, dict]
    weights: dict[str, Any]
    state: list

    def differences(self, other: "Trace") -> list[str]:
        """Where `other` differs from this one, in words; an empty list where all is equal bit for bit.

        It may have evaluated once more, at a stop.
        """
        import torch

        found = [f"the loss of step {step}" for step in self.losses if self.losses[step] != other.losses.get(step)][:3]
        found += [f"a step {step}" for step in other.losses if step not in self.losses][:3]
        found += [
            f"the evaluation at step {step}"
            for step in self.evaluations
            if self.evaluations[step] != other.evaluations.get(step)
        ][:3]
        same = self.weights.keys() == other.weights.keys() and all(
            torch.equal(value, other.weights[name]) for name, value in self.weights.items()
        )
        return found + ["the weights"] * (not same) + ["the optimizer's state"] * (not equal(self.state, other.state))


def equal(a: Any, b: Any) -> bool:
    "Whether two trees of tensors and plain values are equal."
    import torch

    if torch.is_tensor(a):
        return torch.is_tensor(b) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(equal, a, b))
    return a == b


def trace(run: Run) -> Trace:
    "The trace of a run that is done."
    events, (newest, _) = run.events, find_checkpoint(run.path / "checkpoints")
    steps, evaluations = columns(events, "step", "step", "loss"), columns(events, "eval", "step", "metrics")
    state = load_state(newest)[0]
    return Trace(
        dict(zip(steps["step"], steps["loss"], strict=False)),
        dict(zip(evaluations["step"], evaluations["metrics"], strict=False)),
        load_weights(newest, ema=False),
        [state["optimizer"], state["parts"], [state["progress"][name] for name in ("step", "epoch", "window")]],
    )


_calm: dict[tuple, Trace] = {}
_calming = threading.Lock()


def calm(place: Place, task: str, *words: str) -> Trace:
    "The trace of the same run without any fault; made once."
    key = (task, *place.words(*words))
    with _calming:
        if key not in _calm:
            other = Place(place.folder / "calm", place.ranks)
            try:
                word = other.start(task, *words, TINY_STEP_S="0").wait()
                assert word.get("status") == "completed", word
                _calm[key] = trace(open_run(word["path"]))
            finally:
                other.clear()
                shutil.rmtree(other.folder, ignore_errors=True)
    return _calm[key]


def whole(run: Run) -> list[int]:
    "The steps of all checkpoints that verify."
    return [
        int(path.name.removeprefix("step-")) for path in checkpoints(run.path / "checkpoints") if verify(path) == []
    ]


def usable(run: Run) -> bool:
    "Whether `load_model` gives a model whose weights are finite."
    import torch

    with _loading:
        try:
            return all(bool(torch.isfinite(weight).all()) for weight in run.load_model().state_dict().values())
        except Exception:
            return False


_loading = threading.Lock()  # Hydra composes one thing at a time


def lost(run: Run) -> list[int]:
    "Optimizer steps that each restart took back."
    found, done = [], 0
    for event in read_events(run.path / "events.jsonl"):
        if event["type"] == "step":
            done = max(done, event["step"])
        elif event["type"] == "restart":
            found.append(max(0, done - event["step"]))
            done = event["step"]
    return found


def said(run: Run) -> str:
    "All that the run has told a person."
    return "\n".join(event["text"] for event in read_events(run.path / "events.jsonl") if event["type"] == "message")


# --- the usual things to look at
# ---------------------------------------------------------------------------------------


def ended(place: Place, word: dict, status: str, *reasons: str) -> Run:
    "The run of a kernel that has told how it ended: with `status`, for one of `reasons`, and with a usable model."
    if "refused" in word:
        raise AssertionError(f"refused: {word['refused']}")
    run = open_run(word["path"])
    place.want(word["status"] == status, f"the run ended {word['status']} and not {status}: {word['error']}")
    end = last_event(run.events, "end") or {"reason": "no end in the log"}
    place.want(not reasons or any(reason in end["reason"] for reason in reasons), f"its reason is {end['reason']!r}")
    place.want((run.path / "summary.json").is_file(), "there is no summary.json")
    return look(place, run)


def look(place: Place, run: Run) -> Run:
    """Whatever happened: a model can be had, every checkpoint is whole, and no restart went back beyond a checkpoint
    that was there.
    """
    place.facts["usable_model"] = place.want(usable(run), "no usable model")
    bad = [
        path.name
        for path in checkpoints(run.path / "checkpoints")
        if verify(path) and int(path.name.removeprefix("step-")) not in place.spoiled
    ]
    place.want(not bad, f"not whole: {', '.join(bad)}")
    saved = None
    for event in read_events(run.path / "events.jsonl"):
        if event["type"] == "checkpoint" and event["step"] not in place.spoiled:
            saved = event["step"]
        if event["type"] == "restart":
            place.want(
                saved is None or event["step"] >= saved,
                f"a restart went back to step {event['step']}, and the checkpoint of step {saved} was there",
            )
            saved = event["step"]
    place.facts["lost_steps"] = max(lost(run), default=place.facts.get("lost_steps") or 0)
    place.facts["status"] = " → ".join(filter(None, [place.facts.get("status"), run.status]))
    return run


def to_the_end(place: Place, run: Run, task: str, *words: str) -> Run:
    "Resume a run with nothing more in its way, and compare it with the one to which nothing happened."
    return compare(place, ended(place, place.start(task, resume=run.path).wait(), "completed"), task, *words)


def compare(place: Place, run: Run, task: str, *words: str) -> Run:
    """Whether a run that is done equals the one to which nothing happened; every line of its log does, also those that
    were taken back.
    """
    reference, mine, events = calm(place, task, *words), trace(run), read_events(run.path / "events.jsonl")
    untold = (
        {event["step"] for event in events if event["type"] == "restart" and event["step"] not in {0, *mine.losses}}
        if place.ranks > 1
        else set()
    )
    for step in untold:
        mine.losses[step] = reference.losses.get(
            step
        )  # a rank that dies while they add up their losses takes that line along
    differences = reference.differences(mine)
    lines = [event for event in events if event["type"] == "step"]
    differences += [
        f"a line about step {e['step']} that counts no more"
        for e in lines
        if e["loss"] != reference.losses.get(e["step"])
    ][:3]
    place.facts["same"] = not differences
    place.want(not differences, f"other bits than without the fault: {', '.join(list(dict.fromkeys(differences))[:5])}")
    return run


def close(place: Place, run: Run, task: str) -> Run:
    """Whether a run that is done has the losses of the one to which nothing happened, up to the order in which numbers
    are added.
    """
    there, here = calm(place, task).losses, trace(run).losses
    far = [step for step in there if not math.isclose(there[step], here.get(step, math.inf), rel_tol=1e-4)]
    place.want(not far, f"other losses than without the fault, first at step {far[0] if far else None}")
    return run


# --- a scenario
# --------------------------------------------------------------------------------------------------------

Scenario = Callable[[Place], None]


def ranks(number: int) -> Callable[[Scenario], Scenario]:
    "Marks a scenario as one of `number` ranks."

    def mark(scenario: Scenario) -> Scenario:
        scenario.ranks = number
        return scenario

    return mark


def play(scenario: Scenario, folder: Path) -> Row:
    "Let one scenario happen in a new folder, which is removed afterwards where every promise held; what came of it."
    place, began, skipped = Place(folder, getattr(scenario, "ranks", 1)), time.monotonic(), ""
    try:
        scenario(place)
        place.gone()
        for fault in place.planned:
            place.want(
                (folder / f"fault-{'-'.join(fault.split()[:3])}").exists(), f"the fault {fault!r} never came about"
            )
        place.facts["stayed"] = place.stayed()
        place.want(not place.facts["stayed"], f"stayed: {', '.join(place.facts['stayed'])}")
    except Cannot as why:
        skipped = str(why)
    except Exception as error:
        place.broken.append(f"{type(error).__name__}: {error}")
    finally:
        place.clear()
    if not place.broken:
        shutil.rmtree(folder, ignore_errors=True)
    broken = tuple(sentence.replace(str(folder), "…") for sentence in place.broken)
    promise = " ".join((scenario.__doc__ or "").split())
    return Row(
        scenario.__name__,
        promise,
        place.ranks,
        **place.facts,
        broken=broken,
        skipped=skipped,
        seconds=round(time.monotonic() - began, 1),
    )
