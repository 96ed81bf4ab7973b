"""From an empty account to a score: `kaggle init`, `check`, `up` and `submit`, with a client that answers as Kaggle's
does, the sealed simulator behind it, and something that goes wrong on the way.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from faultlib.harness import Row
from helpers import clean_environ

TOOLS = Path(__file__).resolve().parents[2] / "tools"
CLIENT = """#!{python}
import csv, json, os, re, shutil, sys
from pathlib import Path
sys.path.insert(0, {tools!r})
from kaggle_sim.environment import environment
from kaggle_sim.kernels import run_kernel

account, words = Path({account!r}), sys.argv[1:]
option = dict(zip(words, words[1:]))
with open(account / "asked.txt", "a") as file:
    print(" ".join(words), file=file)

def once(name):
    "True the first time."
    try:
        (account / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

if os.environ.get("CUP_FLAKY") and once("_".join(["flaky", *words[:2]])):
    sys.exit("HTTPSConnectionPool(host='www.kaggle.com', port=443): Read timed out.")

def session(version, rerun):
    "Run a version in the simulator; its output's folder and how Kaggle would say that it ended."
    out = account / ("scored" if rerun else "runs") / str(version) / "working"
    cut = os.environ.get("CUP_CUT") and once("cut")
    done = run_kernel(
        account / "kernels" / str(version), account / ("hidden" if rerun else "sources"), out,
        limit_s=float(os.environ["CUP_LIMIT_S"]), python=environment("kaggle"), quiet=True, rerun=rerun,
        kill_after=("**/step-*/manifest.json", 0) if cut else None,
    )
    (out.parent / "ended.txt").write_text(done.verdict)
    (out.parent / "log.txt").write_text(done.text)
    return out

def latest():
    return max(int(path.name) for path in (account / "kernels").iterdir())

def datasets_status():
    there = (account / "sources" / words[2].rpartition("/")[2]).is_dir()
    print("ready" if there else "404 - Not Found")
    sys.exit(not there)

def datasets_create():
    told = json.loads(Path(option["-p"], "dataset-metadata.json").read_text())
    for what, value in (("slug", told["id"].rpartition("/")[2]), ("title", told["title"])):
        if not 6 <= len(value) <= 50:
            sys.exit(f"ValueError: The dataset {{what}} must be between 6 and 50 characters")
    def left_out(folder, names):
        "Folders are uploaded where --dir-mode asks for it; archives are unpacked where the data set is mounted."
        zipped = option.get("--dir-mode") == "zip"
        return {{"dataset-metadata.json", *(n for n in names if not zipped and Path(folder, n).is_dir())}}
    for place in ("sources", "hidden"):
        shutil.copytree(option["-p"], account / place / told["id"].rpartition("/")[2], ignore=left_out)
    print("Your private Dataset is being created. Please check progress at https://www.kaggle.com/datasets/x")

def kernels_push():
    version = 1 + max([0, *(int(path.name) for path in (account / "kernels").iterdir())])
    shutil.copytree(option["-p"], account / "kernels" / str(version))
    session(version, rerun=False)
    print(f"Kernel version {{version}} successfully pushed.  Please check progress at https://www.kaggle.com/code/a/b")

def kernels_logs():
    print((account / "runs" / str(latest()) / "log.txt").read_text())

def kernels_status():
    ended = (account / "runs" / str(latest()) / "ended.txt").read_text()
    print(f'{{words[2]}} has status "KernelWorkerStatus.{{ended}}"')

def kernels_output():
    left = account / "runs" / str(latest()) / "working"
    for path in left.rglob("*"):
        name = path.relative_to(left).as_posix()
        if path.is_file() and re.search(option.get("--file-pattern", ""), name):
            place = Path(option["-p"], name)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)

def competitions_submit():
    file = session(int(option["-v"]), rerun=True) / option["-f"]
    answers = dict(csv.reader(open(account / "answers.csv")))
    rows = dict(csv.reader(open(file))) if file.is_file() else {{}}
    whole = rows.keys() == answers.keys()
    right = sum(rows[name] == answer for name, answer in answers.items()) - 1 if whole else 0
    score = f"{{right / (len(answers) - 1):.3f}}" if whole else ""
    (account / "score.txt").write_text(f"COMPLETE,{{score}}" if whole else "ERROR,")
    print("Submission ref: 77")

def competitions_submissions():
    print("ref,fileName,date,description,status,publicScore,privateScore")
    state, score = (account / "score.txt").read_text().split(",")
    print(f"77,submission.csv,2026-11-24,x,SubmissionStatus.{{state}},{{score}},")

globals()["_".join(words[:2])]()
"""


def rows(first: int, count: int, colours: tuple[str, ...]) -> pd.DataFrame:
    "Rows of the competition: the grade follows from the size."
    found = pd.DataFrame({"id": range(first, first + count), "size": [(7 * i) % 100 for i in range(count)]})
    found["colour"] = [colours[i % len(colours)] for i in range(count)]
    return found.assign(grade=["high" if size >= 50 else "low" for size in found["size"]])


def files(folder: Path, test: pd.DataFrame) -> Path:
    "The competition's files, with this test set."
    folder.mkdir(parents=True)
    rows(0, 400, ("red", "blue")).to_csv(folder / "train.csv", index=False)
    test.drop(columns="grade").to_csv(folder / "test.csv", index=False)
    test[["id"]].assign(grade="low").to_csv(folder / "sample_submission.csv", index=False)
    return folder


def open_account(folder: Path, bin_folder: Path) -> Path:
    """An account with nothing in it, and a competition: its public files, and a larger hidden set with other ids.

    `bin_folder`: where the client is written, which this account's commands find first.
    """
    (folder / "kernels").mkdir(parents=True)
    files(folder / "sources" / "soil-2026", rows(1000, 20, ("red", "blue")))
    hidden = rows(5000, 60, ("red", "green")).sample(frac=1, random_state=1)
    files(folder / "hidden" / "soil-2026", hidden)
    hidden[["id", "grade"]].to_csv(folder / "answers.csv", index=False)
    client = bin_folder / "kaggle"
    client.write_text(CLIENT.format(python=sys.executable, tools=str(TOOLS), account=str(folder)))
    client.chmod(0o755)
    return folder


def started(home: Path, python: Path, *words: object, limit_s: int = 300, **environ: str) -> subprocess.Popen:
    "A command of the installed kit, as a person types it in an empty folder; `python`: of its environment."
    path = f"{python.parent}:/usr/local/bin:/usr/bin:/bin"
    return subprocess.Popen(
        [python.parent / "spectrakit", "kaggle", *map(str, words)],
        cwd=home,
        env={**clean_environ(), "PATH": path, "HOME": str(home), "CUP_LIMIT_S": str(limit_s), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def edit(home: Path, old: str, new: str) -> None:
    "Change the notebook that init has written, as one does in an editor."
    notebook = home / "soil-first" / "soil-first.ipynb"
    text = notebook.read_text()
    assert text.count(json.dumps(old)[1:-1]) == 1, old
    notebook.write_text(text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1]))


FIT = 'run = sk.fit(\'table\', cfg, resume="auto", predict="submission.csv")'
FOLDS = "run = sk.cross_validate('table', cfg, folds=5, predict=\"submission.csv\")"
ENDLESS = '"trainer.max_epochs=1000000", "early_stopping.enabled=false"'
EDITS = {
    "time": [('"trainer.max_epochs=30"', ENDLESS)],
    "folds": [('"trainer.max_epochs=30"', '"trainer.max_epochs=4"'), (FIT, FOLDS)],
}
FAULTS = {
    "nothing": "nothing goes wrong",
    "time": "training that never ends, and a session of 90 s",
    "folds": "nothing goes wrong while five folds train",
    "client": "each of the client's commands fails the first time",
    "killed": "`kaggle up` is killed at a random moment",
    "cut": "the first session is cancelled after its first checkpoint",
    "kept": "the same, and `kaggle up --keep` goes on from what it has left",
}

SAYS = {  # what the last session's log has to hold; on a busy machine fewer folds fit
    "time": "out_of_time",
    "folds": r"the mean of \d of 5 runs",
    "kept": "continues from optimizer step",
}


def finished(process: subprocess.Popen, kill_after_s: float | None = None) -> tuple[int, str]:
    "How a command ended, and what it printed; after `kill_after_s` it is killed."
    try:
        text, _ = process.communicate(timeout=kill_after_s or 900)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, text


def _persisted(
    begin: Callable[..., subprocess.Popen], words: list[str], kill_after_s: float | None, option: str
) -> tuple[int, str]:
    """A command, typed again while it fails, five times at the most: how often, and what the last one printed.

    `option`: what `up` is given the next time where it has named it.
    """
    said = ""
    for attempt in range(1, 6):
        again = [option] if attempt > 1 and words[0] == "up" and option in said else []
        code, said = finished(begin(*words, *again), kill_after_s if attempt == 1 else None)
        if code == 0:
            return attempt, said
    return 0, said


def one_chain(fault: str, folder: Path, python: Path, seed: int) -> Row:
    "An account from nothing to a score while `fault`, one of FAULTS, happens. `python`: of the installed kit."
    began, home = time.monotonic(), folder / "home"
    account = open_account(folder / "account", python.parent)
    home.mkdir()
    limit_s = 90 if fault == "time" else 300
    environ = {"client": {"CUP_FLAKY": "1"}, "cut": {"CUP_CUT": "1"}, "kept": {"CUP_CUT": "1"}}.get(fault, {})

    def begin(*words: str) -> subprocess.Popen:
        return started(home, python, *words, limit_s=limit_s, **environ)

    data, broken = account / "sources" / "soil-2026", list[str]()
    code, said = finished(
        begin("init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", str(data))
    )
    for change in EDITS.get(fault, ()) if code == 0 else ():
        edit(home, *change)
    kill_after_s = random.Random(seed).uniform(2, 40) if fault == "killed" else None
    steps = [["check", "soil-first"], ["up", "soil-first"], ["submit", "soil-first", "-m", "x"]]
    typed, option = 0, "--keep" if fault == "kept" else "--again"
    for words in steps if code == 0 else ():
        times, said = _persisted(begin, words, kill_after_s if words[0] == "up" else None, option)
        typed += times
        if not times:
            broken.append(f"{words[0]} did not end well: {said.strip()[-300:]}")
            break
    broken += [f"init failed: {said[-300:]}"] if code else []
    broken += [] if broken else _wrong(fault, home, account)
    status, seconds = "broken" if broken else "submitted", round(time.monotonic() - began, 1)
    note = f"{typed} commands after init, {seconds:.0f} s"
    return Row(fault, FAULTS[fault], status=status, broken=tuple(broken), note=note, seconds=seconds)


def _wrong(fault: str, home: Path, account: Path) -> list[str]:
    "What is wrong with what was fetched and scored, in words."
    public = pd.read_csv(home / "soil-first" / "output" / "submission.csv")
    state, score = (account / "score.txt").read_text().split(",")
    found = [] if list(public["id"]) == list(range(1000, 1020)) else ["the public submission has other ids"]
    if state != "COMPLETE" or float(score) < 0.8:
        found.append(f"of 60 rows that nobody had seen: {state} {score}")
    log = max((account / "runs").iterdir(), key=lambda path: int(path.name)) / "log.txt"
    if not re.search(SAYS.get(fault, ""), log.read_text()):
        found.append(f"the session that was handed in does not say {SAYS[fault]!r}")
    return found


def chains(
    count: int, seed: int, folder: Path, python: Path, tell: Callable[[str], None], faults: Sequence[str]
) -> list[Row]:
    "`count` accounts, each with the next of `faults`. The sum is told after each; Ctrl-C ends it with those so far."
    found: list[Row] = []
    for number in range(count):
        place = folder / f"chain-{number}"
        place.mkdir(parents=True)
        try:
            found.append(one_chain(faults[number % len(faults)], place, python, seed + number))
        except KeyboardInterrupt:
            tell(f"chain {number + 1} was stopped, and does not count")
            break
        well = sum(row.status == "submitted" for row in found)
        tell(f"chain {number + 1}: {found[-1].scenario}: {found[-1].status}, {found[-1].note}; {well} of {len(found)}")
        for sentence in found[-1].broken:
            tell(f"  {sentence}")
    return found
