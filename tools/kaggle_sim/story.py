"""From an empty folder to submission.csv: wheels, data set and kernels as they are pushed, then sessions of the sealed
Kaggle.

Twice: a fresh session that finishes, in the newer layout of mounts; and one that is cut short, whose output is the next
one's input, in the older layout. Both end with the submission, checked against the sample; the second must say what the
first says.
"""

import csv
import json
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from example_sets import slug
from kaggle_sim.colab import run_colab
from kaggle_sim.environment import Environment, environment, root
from kaggle_sim.kernels import MOST_FILES, OWNER, PLACEHOLDER, run_kernel
from kaggle_sim.sealed import Session
from spectrakit.kaggle.offline.install_cell import list_sha256, naming

KERNELS = ("train", "train-on", "infer", "images", "folds", "lm", "ariel", "ariel-train", "ariel-infer")
SETS = ("images", "cells", "model", "texts")  # of tools/example_sets.py
CHECKPOINT = "runs/*/checkpoints/step-*/manifest.json"
REAL = """What you would do on the real site, with NAME your name there:
  1. spectrakit wheelhouse wheels --owner NAME            then: kaggle datasets create -p wheels
  2. python tools/coffee_table.py data --owner NAME       then: kaggle datasets create -p data
  3. spectrakit kaggle push kaggle/train --owner NAME     then kaggle/train-on, which goes on where time was short
  4. spectrakit kaggle push kaggle/infer --owner NAME     and when it has ended:
     spectrakit kaggle output kaggle/infer out --files submission.csv"""


class Failed(RuntimeError):
    "The story did not end as it should."


def say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def build(folder: Path, *words: str) -> Path:
    """The data sets of the story: the wheels, and what the kernels learn from; returns the folder that holds them.

    `words`: more for `wheelhouse`.
    """
    datasets = folder / "datasets"
    tool(
        ["-m", "spectrakit", "wheelhouse", datasets / "spectrakit-wheels", "--for", "kaggle", "--owner", OWNER, *words]
    )
    tool([root / "tools" / "coffee_table.py", datasets / "coffee-table", "--owner", OWNER])
    for name in SETS:
        if name == "model" and find_spec("transformers") is None:
            say("no language model: transformers is not installed, which is in the extra lm")
            continue
        tool([root / "tools" / "example_sets.py", name, datasets / slug(name), "--owner", OWNER])
    return datasets


def tool(words: list) -> None:
    "One of the kit's own commands, from the checkout."
    print(
        "$ "
        + " ".join(
            [
                "spectrakit" if words[:2] == ["-m", "spectrakit"] else "python",
                *(str(word) for word in (words[2:] if words[0] == "-m" else words)),
            ]
        ),
        flush=True,
    )
    if subprocess.run([sys.executable, *map(str, words)], cwd=root, stdin=subprocess.DEVNULL).returncode:
        raise Failed(f"{words[1]} failed")


def staged(name: str, folder: Path) -> Path:
    "The kernel folder as a push leaves it: its owner and its wheels filled in, its code beside its metadata."
    source, place = root / "kaggle" / name, folder / "pushed" / name
    told = json.loads((source / "kernel-metadata.json").read_text(encoding="utf-8").replace(PLACEHOLDER, OWNER))
    code = source / told["code_file"]
    place.mkdir(parents=True)
    wheels = list_sha256(folder / "datasets" / "spectrakit-wheels")
    (place / code.name).write_text(naming(code.read_text(encoding="utf-8"), wheels), encoding="utf-8")
    (place / "kernel-metadata.json").write_text(
        json.dumps({**told, "code_file": code.name}, indent=2), encoding="utf-8"
    )
    return place


def session(title: str, name: str, folder: Path, datasets: Path, out: Path, expect: str, **options) -> Session:
    "One session of the story. Failed where it does not end with Kaggle's word `expect`."
    say(title)
    done = run_kernel(folder / "pushed" / name, datasets, out, **options)
    files = done.files()
    size_mib = sum((done.out / file).stat().st_size for file in files) / 2**20
    print(
        f"--- {done.verdict} after {done.seconds:.0f} s: {len(files)} of {MOST_FILES} files, {size_mib:.1f} MiB",
        flush=True,
    )
    if done.verdict != expect:
        raise Failed(f"{title}: {done.verdict} instead of {expect}; its log is {out.parent}")
    if len(files) > MOST_FILES:
        raise Failed(f"{title}: {len(files)} files are more than Kaggle keeps")
    return done


def checked(file: Path, sample: Path) -> list[list[str]]:
    "The submission's rows. Failed where columns, ids or numbers are not as the sample submission has them."
    if not file.is_file():
        raise Failed(f"there is no {file}")
    with open(file, newline="", encoding="utf-8") as first, open(sample, newline="", encoding="utf-8") as second:
        rows, wanted = list(csv.reader(first)), list(csv.reader(second))
    if rows[0] != wanted[0]:
        raise Failed(f"the submission has the columns {rows[0]}, not {wanted[0]}")
    if [row[0] for row in rows] != [row[0] for row in wanted]:
        raise Failed("the submission has other ids than the sample")
    for row in rows[1:]:
        if not all(0 <= float(text) <= 1 for text in row[1:]):
            raise Failed(f"the submission has the row {row}")
    return rows


def chain(  # noqa: PLR0913 - called twice, both times with all of it
    folder: Path, datasets: Path, layout: str, limit_s: float, cut: bool, python: Environment, quiet: bool = False
) -> list[list[str]]:
    "Training, in one session or cut short and gone on with, and the submission of it."
    name, here = ("chained" if cut else "fresh"), folder / ("chained" if cut else "fresh")
    mine = here / "datasets"
    shutil.copytree(datasets, mine)
    options = {"layout": layout, "limit_s": limit_s, "python": python, "quiet": quiet}
    if cut:  # nobody tells a session of Kaggle that it will be cut
        first = session(
            f"{name}, session 1: train, cut short after its first checkpoint ({layout} layout)",
            "train",
            folder,
            mine,
            here / "train" / "working",
            "CANCEL_ACKNOWLEDGED",
            **options,
            tell_limit=False,
            kill_after=(CHECKPOINT, 0),
        )
        shutil.copytree(first.out, mine / "spectrakit-train")
        second = session(
            f"{name}, session 2: train-on, with the output of session 1 as its input",
            "train-on",
            folder,
            mine,
            here / "train-on" / "working",
            "COMPLETE",
            **options,
        )
        if "continues from step" not in second.text:
            raise Failed("session 2 began anew")
        shutil.copytree(second.out, mine / "spectrakit-train-on")
    else:
        first = session(
            f"{name}, session 1: train ({layout} layout)",
            "train",
            folder,
            mine,
            here / "train" / "working",
            "COMPLETE",
            **options,
        )
        shutil.copytree(first.out, mine / "spectrakit-train")
    last = session(
        f"{name}, the last session: infer", "infer", folder, mine, here / "infer" / "working", "COMPLETE", **options
    )
    return checked(last.out / "submission.csv", datasets / "coffee-table" / "sample_submission.csv")


def tell_colab(
    folder: Path,
    limit_s: float = 600,
    quiet: bool = False,
    python: Environment | None = None,
    datasets: Path | None = None,
) -> None:
    """kaggle/colab/train on two machines of Colab with one Drive, from a notebook that names no wheels.

    On the first, without a GPU, the wheels are chosen in a dialog, and it is taken away after its first checkpoint has
    reached Drive. On the second, with a GPU, memory is full in the middle, and somebody says *Run all* once more.
    Failed where anything else than the right predictions comes of it.
    """
    shutil.rmtree(folder, ignore_errors=True)
    say("what a person has: wheels here, tables on Drive")
    datasets, drive = datasets or build(folder), folder / "drive"
    shutil.copytree(datasets / "coffee-table", drive / "spectrakit" / "tables")
    python, page = python or environment("colab"), folder / "train.ipynb"
    print(*(f"  differs: {line}" for line in python.differences), sep="\n")
    page.write_text(filled(root / "kaggle" / "colab" / "train.ipynb"), encoding="utf-8")
    options = {"limit_s": limit_s, "python": python, "quiet": quiet}
    say("machine 1: no GPU was granted; taken away after the first checkpoint has reached Drive")
    kill = ("spectrakit/**/step-*/manifest.json", 0.2)
    wheels = datasets / "spectrakit-wheels"
    first = run_colab(page, drive, folder / "1" / "page", kill_after=kill, chosen=wheels, **options)
    print(f"--- {first.verdict} after {first.seconds:.0f} s")
    if first.verdict != "CANCEL_ACKNOWLEDGED":
        raise Failed("machine 1 was not taken away: no checkpoint reached Drive")
    heard(
        "machine 1",
        first.text,
        "This session has no GPU, so it trains on the CPU",
        "Colab ends a session without notice",
    )
    say("machine 2: a fresh /content, the same Drive, a GPU; Run all, memory is full, and Run all")
    full = "runs/*/checkpoints/step-000000[6-9]?/manifest.json"
    second = run_colab(page, drive, folder / "2" / "page", gpus=["T4"], full_after=full, **options)
    print(f"--- {second.verdict} after {second.seconds:.0f} s")
    if second.verdict != "COMPLETE":
        raise Failed(f"machine 2 ended with {second.verdict}")
    heard("machine 2", second.text, "continues from step", "crashed after using all available RAM")
    (log,) = (drive / "spectrakit" / "runs").glob("*/events.jsonl")
    heard("the run's log", log.read_text(encoding="utf-8"), "the GPU was none and is Tesla T4")
    if second.text.count("continues from step") < 2:
        raise Failed("the second Run all of machine 2 began anew")
    journals = [(done.out / "journal").read_text() for done in (first, second)]
    if not journals[0].startswith("drive: mounted") or "chosen in a dialog" not in journals[0]:
        raise Failed("machine 1 looked for the wheels before Drive was mounted, or did not ask for them")
    if "dialog" in journals[1] or "drive: flushed and unmounted" not in journals[1]:
        raise Failed("machine 2 asked for the wheels again, or did not flush Drive")
    rows = checked(drive / "spectrakit" / "predictions.csv", datasets / "coffee-table" / "sample_submission.csv")
    say(f"predictions.csv on Drive, {len(rows) - 1} rows")


def heard(who: str, text: str, *sentences: str) -> None:
    "Failed where one of the sentences was not said."
    for sentence in sentences:
        if sentence not in text:
            raise Failed(f"{who} did not say: {sentence}")


def filled(notebook: Path) -> str:
    "The notebook with its form filled in: the task and the tables that lie on Drive."
    told = json.loads(notebook.read_text(encoding="utf-8"))
    tables = "task.data=/content/drive/MyDrive/spectrakit/tables"
    more = "trainer.max_epochs=40 data.micro_batch_size=8 checkpoint.every_n_steps=10"
    values = {"TASK": "table", "MORE": f"{tables} {more}"}
    for cell in told["cells"]:
        lines = "".join(cell["source"]).split("\n")
        cell["source"] = "\n".join(
            next(
                (f'{name} = "{value}"  # @param' for name, value in values.items() if line.startswith(f"{name} = ")),
                line,
            )
            for line in lines
        )
    return json.dumps(told)


def difference(first: list[list[str]], second: list[list[str]]) -> float:
    "How far two submissions are from each other, at most."
    return max(
        abs(float(a) - float(b))
        for one, two in zip(first[1:], second[1:], strict=False)
        for a, b in zip(one[1:], two[1:], strict=False)
    )


def tell(
    folder: Path,
    limit_s: float = 600,
    layouts: tuple[str, str] = ("new", "legacy"),
    quiet: bool = False,
    python: Environment | None = None,
) -> None:
    "The whole story below `folder`, which is emptied. Failed where it does not end well."
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    say("what a person makes at home")
    datasets = build(folder)
    for name in KERNELS:
        staged(name, folder)
    say("the Python of the sealed Kaggle")
    python = python or environment("kaggle")
    print(*(f"  differs: {line}" for line in python.differences), sep="\n")
    fresh = chain(folder, datasets, layouts[0], limit_s, False, python, quiet)
    chained = chain(folder, datasets, layouts[1], limit_s, True, python, quiet)
    apart = difference(fresh, chained)
    if apart > 1e-4:
        raise Failed(f"the chained submission differs from the fresh one by {apart}")
    say(
        f"submission.csv, twice, {len(fresh) - 1} rows each, "
        f"{'the same to the last digit' if not apart else f'at most {apart:.1g} apart'}; "
        f"{time.monotonic() - began:.0f} s in all"
    )
    for name in ("fresh", "chained"):
        print(f"  {folder / name / 'infer' / 'working' / 'submission.csv'}")
    print(f"\n{REAL}")
