"""What goes wrong on Kaggle, done on purpose: what the person reads, the exit status, and what is left.

Each is one session of a small kernel, probe/, which installs from the attached wheels, trains and writes a submission.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kaggle_sim.environment import CACHE, CannotMake, Environment, clean_environ
from kaggle_sim.kernels import OWNER, run_kernel
from kaggle_sim.sealed import Session
from spectrakit.kaggle.offline.install_cell import INSTALL_CELL, list_sha256, naming

PROBE = Path(__file__).with_name("probe")
WHEELS = "spectrakit-wheels"
CHECKPOINT = "runs/*/checkpoints/step-*/manifest.json"
INLINE = ["launch.mode=inline"]  # no child process: where it is not the point


@dataclass(frozen=True)
class Accident:
    """One thing that goes wrong.

    `left` and `gone`: patterns below /kaggle/working; `reads`: what the log says, as patterns.
    """

    name: str
    what: str
    reads: tuple[str, ...]
    status: int | None = 0
    how: str = "ended"
    left: tuple[str, ...] = ("submission.csv",)
    gone: tuple[str, ...] = ()
    probe: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None  # what is done to the data sets


def without_wheels(datasets: Path) -> None:
    shutil.rmtree(datasets / WHEELS)


def for_another_python(datasets: Path) -> None:
    "The kit's wheel as one that only Python 3.9 takes."
    file = datasets / WHEELS / "wheelhouse.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    told["python"] = ["3.9"]
    for wheel in told["wheels"]:
        name = wheel["file"].replace("-py3-", "-cp39-")
        (datasets / WHEELS / wheel["file"]).rename(datasets / WHEELS / name)
        wheel.update(file=name, python=["3.9"])
    file.write_text(json.dumps(told), encoding="utf-8")


def damaged(datasets: Path) -> None:
    "An upload that lost its end."
    wheel = next((datasets / WHEELS).glob("spectrakit_train-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1000])


ACCIDENTS = (
    Accident(
        "wheels-missing",
        "the data set of wheels is not attached",
        ("there is no spectrakit-wheels/wheelhouse.json", "Add Input"),
        1,
        left=(),
        gone=("runs", "submission.csv"),
        prepare=without_wheels,
    ),
    Accident(
        "another-python",
        "the wheels are for Python 3.9",
        ("These wheels are for Python 3.9", "spectrakit wheelhouse OUT --for"),
        1,
        left=(),
        gone=("runs",),
        prepare=for_another_python,
    ),
    Accident(
        "damaged-wheel",
        "a wheel was cut short by its upload",
        ("is damaged: its sha256 is not the one in the manifest", "Upload the folder again"),
        1,
        left=(),
        gone=("runs",),
        prepare=damaged,
    ),
    Accident(
        "old-accelerate",
        "the image has Accelerate 1.12",
        ("accelerate 1.12.0 is here, and spectrakit-train .* needs accelerate>=1.13", "Nothing was installed"),
        1,
        left=(),
        gone=("runs",),
        options={"instead": ["accelerate==1.12.0"]},
    ),
    Accident(
        "full-at-start",
        "/kaggle/working has no room",
        ("The folder '/kaggle/working/runs' cannot be written", "Make room"),
        1,
        left=(),
        gone=("submission.csv",),
        options={"working_mib": 1},
    ),
    Accident(
        "fills-up",
        "/kaggle/working fills up while it trains",
        ("not saved: step-.* needs .* are free. Older checkpoints are kept", "probe: completed"),
        left=("submission.csv", CHECKPOINT),
        options={"working_mib": 34},
        probe={"mib": 20},
    ),
    Accident(
        "p100",
        "Kaggle gave a P100",
        ("The P100 says that it is available, but", "cpu: this torch finds no GPU", "probe: completed"),
        options={"gpus": ["P100"]},
        probe={"words": INLINE},
    ),
    Accident(
        "one-gpu",
        "one T4, and the profile is for two",
        ("1 process: 2 were requested, and there is 1 GPU; accumulation keeps the effective batch", "probe: completed"),
        options={"gpus": ["T4"]},
        probe={"words": ["trainer=kaggle_2xt4"]},
    ),
    Accident(
        "told-limit",
        "the session is too short, and the kit knows it",
        ("out_of_time: the time is up", "probe: out_of_time"),
        left=("submission.csv", CHECKPOINT),
        options={"limit_s": 40},
        probe={"step_s": 0.5, "words": ["trainer.max_epochs=200"]},
    ),
    Accident(
        "cut-short",
        "the session is killed, and nobody was told",
        ("epoch 1",),
        None,
        "limit",
        left=(CHECKPOINT, "submission.csv"),  # a guess for all, from before the first step
        options={"kill_after": (CHECKPOINT, 3), "tell_limit": False},  # so that the log has come, too
        probe={"step_s": 0.5, "words": ["trainer.max_epochs=200"]},
    ),
    Accident(
        "rerun",
        "a competition's rerun, which trains nothing by hand",
        ("kaggle, competition_rerun", "probe: completed"),
        options={"rerun": True},
        probe={"words": INLINE},
    ),
)


def wheel_of(requirement: str, cache: Path = CACHE) -> Path:
    "The wheel of one pinned package, fetched once."
    folder = cache / "wheels"
    name = requirement.replace("==", "-")
    if not (found := sorted(folder.glob(f"{name}-*.whl"))):
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            requirement,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environ(), stdin=subprocess.DEVNULL)
        if done.returncode:
            raise CannotMake(
                f"pip cannot get {requirement}: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}"
            )
        found = sorted(folder.glob(f"{name}-*.whl"))
    return found[0]


def play(
    accident: Accident,
    datasets: Path,
    folder: Path,
    layout: str = "new",
    quiet: bool = True,
    python: Environment | None = None,
) -> Session:
    "Let it happen. `datasets` holds the wheels and is left alone; `folder` gets what the session leaves."
    shutil.rmtree(folder, ignore_errors=True)
    here = folder / "datasets"
    shutil.copytree(datasets / WHEELS, here / WHEELS)
    if accident.prepare:
        accident.prepare(here)
    kernel = shutil.copytree(PROBE, folder / "kernel")
    listed = (here / WHEELS / "wheelhouse.json").is_file()
    cell = naming(INSTALL_CELL, list_sha256(here / WHEELS)) if listed else INSTALL_CELL
    (kernel / "probe.py").write_text(f"{cell}\n\n{(PROBE / 'probe.py').read_text(encoding='utf-8')}", encoding="utf-8")
    options = dict(accident.options)
    if "instead" in options:
        options["instead"] = [str(wheel_of(text)) for text in options["instead"]]
    return run_kernel(
        kernel,
        here,
        folder / "working",
        layout=layout,
        environ={"PROBE": json.dumps(accident.probe)},
        quiet=quiet,
        python=python,
        owner=OWNER,
        **{"limit_s": 300, **options},
    )


def complaints(accident: Accident, session: Session) -> list[str]:
    "What is not as it should be; nothing where the accident went as planned."
    told = []
    if (session.how, session.status) != (accident.how, accident.status):
        told.append(f"it {session.how} with {session.status}, not {accident.how} with {accident.status}")
    told += [f"nobody reads {pattern!r}" for pattern in accident.reads if not re.search(pattern, session.text)]
    told += [f"{pattern} is not left" for pattern in accident.left if not any(session.out.glob(pattern))]
    told += [f"{pattern} is left" for pattern in accident.gone if any(session.out.glob(pattern))]
    return told


def last_words(session: Session) -> str:
    "The last line that says something."
    return next((line.strip() for line in reversed(session.text.splitlines()) if line.strip()), "nothing")
