"""Three commands from an empty account to a score: `pip install`, `kaggle init`, `kaggle up`, and then `kaggle submit`.

The client is a stand-in that answers as Kaggle's does, and behind it stands the sealed simulator: what is pushed runs
there, and what is handed in runs once more with a hidden test set, by which it is scored.
"""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from helpers import clean_environ
from kaggle_sim import environment, sealed
from test_wheel import installed, wheel  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow
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

def session(version, rerun):
    "Run a version in the simulator; its output's folder and how Kaggle would say that it ended."
    out = account / ("scored" if rerun else "runs") / str(version) / "working"
    done = run_kernel(
        account / "kernels" / str(version), account / ("hidden" if rerun else "sources"), out,
        limit_s=float(os.environ["CUP_LIMIT_S"]), python=environment("kaggle"), quiet=True, rerun=rerun,
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
    for place in ("sources", "hidden"):
        shutil.copytree(option["-p"], account / place / told["id"].rpartition("/")[2])
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
    for path in (account / "runs" / str(latest()) / "working").iterdir():
        if path.is_file() and re.match(option["--file-pattern"], path.name):
            shutil.copy(path, option["-p"])

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


@pytest.fixture
def account(tmp_path, installed) -> Path:  # noqa: F811 - the fixture
    "An account with nothing in it, and a competition: its public files, and a larger hidden set with other ids."
    if reason := sealed.why_not():
        pytest.skip(reason)
    try:
        environment.environment("kaggle")
    except environment.CannotMake as error:
        pytest.skip(str(error))
    found = tmp_path / "account"
    (found / "kernels").mkdir(parents=True)
    files(found / "sources" / "soil-2026", rows(1000, 20, ("red", "blue")))
    hidden = rows(5000, 60, ("red", "green")).sample(frac=1, random_state=1)
    files(found / "hidden" / "soil-2026", hidden)
    hidden[["id", "grade"]].to_csv(found / "answers.csv", index=False)
    client = installed.parent / "kaggle"
    client.write_text(CLIENT.format(python=sys.executable, tools=str(TOOLS), account=str(found)))
    client.chmod(0o755)
    return found


def run(home: Path, installed: Path, *words: object, limit_s: int = 300) -> str:  # noqa: F811 - the fixture
    "A command of the installed kit, as a person types it in an empty folder; what it printed."
    path = f"{installed.parent}:/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        [installed.parent / "spectrakit", "kaggle", *map(str, words)],
        cwd=home,
        env={**clean_environ(), "PATH": path, "HOME": str(home), "CUP_LIMIT_S": str(limit_s)},
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def edit(home: Path, old: str, new: str) -> None:
    "Change the notebook that init has written, as one does in an editor."
    notebook = home / "soil-first" / "soil-first.ipynb"
    text = notebook.read_text()
    assert text.count(json.dumps(old)[1:-1]) == 1, old
    notebook.write_text(text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1]))


FIT = 'run = sk.fit(\'table\', cfg, resume="auto", predict="submission.csv")'
FOLDS = "run = sk.cross_validate('table', cfg, folds=5, predict=\"submission.csv\")"
CASES = {
    "as it is made": None,
    "out of time": ('"trainer.max_epochs=30"', '"trainer.max_epochs=1000000", "early_stopping.enabled=false"'),
    "five folds": ('"trainer.max_epochs=30"', '"trainer.max_epochs=4"'),
}


@pytest.mark.parametrize(
    "case", [case if case == "as it is made" else pytest.param(case, marks=pytest.mark.long) for case in CASES]
)
def test_three_commands_lead_from_an_empty_account_to_a_submission(account, installed, tmp_path, case):  # noqa: F811 - the fixture
    home = tmp_path / "home"
    home.mkdir()
    data = account / "sources" / "soil-2026"
    run(home, installed, "init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", data)
    if change := CASES[case]:
        edit(home, *change)
    if case == "five folds":
        edit(home, FIT, FOLDS)
        edit(home, "run.raise_for_status()", "")
    said = run(home, installed, "up", "soil-first", limit_s=90 if case == "out of time" else 300)
    public = pd.read_csv(home / "soil-first" / "output" / "submission.csv")
    assert list(public["id"]) == list(range(1000, 1020)) and set(public["grade"]) == {"low", "high"}, said
    assert case != "out of time" or "out_of_time" in said
    asked = [" ".join(line.split()[:2]) for line in (account / "asked.txt").read_text().splitlines()]
    assert asked.count("datasets create") == asked.count("kernels push") == 1

    scored = run(home, installed, "submit", "soil-first", "-m", "x", limit_s=90 if case == "out of time" else 300)
    assert float(scored.rpartition("public score: ")[2]) > 0.8, scored  # of 60 rows that nobody had seen
