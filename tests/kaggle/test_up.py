"From nothing to a score with a client that answers as Kaggle's does: each step once, and what went wrong goes on."

import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from helpers import run_cli
from spectrakit.kaggle.offline.wheelhouse import WheelhouseOptions, make_wheelhouse
from spectrakit.kaggle.up import Submission, submit_kernel

pytestmark = pytest.mark.slow

CLIENT = """#!{python}
import json, pathlib, sys
place = pathlib.Path(__file__).parent
said = json.loads((place / "answers.json").read_text())
log = place / "asked.txt"
words = sys.argv[1:]
asked = log.read_text().splitlines() if log.exists() else []
log.write_text("".join(line + "\\n" for line in [*asked, " ".join(words)]))
key = " ".join(words[:2])
answers = said.get(key, [""])
answer = answers[min(sum(line.startswith(key) for line in asked), len(answers) - 1)]
if "checkpoint" in answer:
    step = pathlib.Path(words[words.index("-p") + 1], "runs/a/checkpoints/step-00000003")
    step.mkdir(parents=True, exist_ok=True)
    (step / "manifest.json").touch()
if key == "kernels output" and "timed out" not in answer and "no files" not in answer:
    out = pathlib.Path(words[words.index("-p") + 1])
    (out / "submission.csv").write_text("id,y\\n1,0\\n")
    if "summary.json" in answer:
        (out / "soil-1").mkdir(exist_ok=True)
        made = {"predicted": 7, "samples": 9}
        failed = {"status": "failed", "reason": "the fifth", "submission": made}
        (out / "soil-1" / "summary.json").write_text(json.dumps(failed))
print(answer)
sys.exit(any(word in answer for word in ("fails", "404", "timed out")))
"""
GOOD = {
    "datasets status": ["404 - Not Found", "blobs_received", "ready"],
    "datasets create": ["Your private Dataset is being created. Please check progress at https://www.kaggle.com/d/x"],
    "kernels push": ["Kernel version 4 successfully pushed.  Please check progress at https://www.kaggle.com/code/a/b"],
    "kernels logs": ["step 10, val_loss 0.5"],
    "kernels status": ['ada/soil-first has status "KernelWorkerStatus.COMPLETE"'],
    "competitions submit": ["Submission ref: 77\n4 submissions remaining today."],
    "competitions submissions": [
        "ref,fileName,date,description,status,publicScore,privateScore\n"
        "77,submission.csv,2026-11-24,first,SubmissionStatus.COMPLETE,0.812,"
    ],
}


class Kaggle:
    "The fake client in `folder`, and what it was asked."

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "kaggle").write_text(CLIENT.replace("{python}", sys.executable))
        (folder / "kaggle").chmod(0o755)
        self.answers()

    def answers(self, **other: list[str]) -> None:
        "Answer as Kaggle does, but for `other`: `datasets_status` and the like."
        told = GOOD | {name.replace("_", " "): lines for name, lines in other.items()}
        (self.folder / "answers.json").write_text(json.dumps(told))
        (self.folder / "asked.txt").unlink(missing_ok=True)

    def asked(self) -> list[str]:
        "The commands so far, two words each; the same one after another counts once."
        lines = [" ".join(line.split()[:2]) for line in (self.folder / "asked.txt").read_text().splitlines()]
        return [line for i, line in enumerate(lines) if i == 0 or line != lines[i - 1]]


@pytest.fixture
def kaggle(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    found = Kaggle(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:{Path(sys.executable).parent}:/usr/bin:/bin")
    return found


def tables(folder: Path) -> Path:
    "A competition's files."
    folder.mkdir(parents=True)
    rows = pd.DataFrame({"id": range(60), "size": range(60), "grade": ["low", "high"] * 30})
    rows[:40].to_csv(folder / "train.csv", index=False)
    rows[40:].drop(columns="grade").to_csv(folder / "test.csv", index=False)
    rows[40:][["id"]].assign(grade="low").to_csv(folder / "sample_submission.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    "The wheels that `up` makes where there are none, as the first test has it."
    house = tmp_path_factory.mktemp("made") / "wheels"
    return make_wheelhouse(house, options=WheelhouseOptions(owner="ada", check=False)).path


def begin(folder: Path, made: Path) -> None:
    "What `init` writes for the competition, and wheels beside it."
    words = ("--owner", "ada", "--competition", "soil-2026", "--data", tables(folder / "files"))
    done = run_cli(folder, "kaggle", "init", "soil-first", *words)
    assert done.returncode == 0, done.stderr
    shutil.copytree(made, folder / "wheels")


OLD = "70,submission.csv,2026-11-20,first,SubmissionStatus.COMPLETE,0.111,"


@pytest.mark.parametrize("ref", ["Submission ref: 77", "Successfully submitted to soil-2026"])
@pytest.mark.parametrize("with_ref", [True, False])
def test_the_score_of_an_earlier_submission_with_the_same_message_is_not_reported(kaggle, tmp_path, ref, with_ref):
    head = "ref,fileName,date,description,status,publicScore,privateScore"
    new = "77,submission.csv,2026-11-24,first,SubmissionStatus.{},"
    tables = [
        [head, OLD],
        [head, OLD],  # the new one does not show up at once
        [head, new.format("PENDING") + ",", OLD],
        [head, new.format("COMPLETE") + "0.812,", OLD],
    ]
    lines = ["\n".join(row if with_ref else row.partition(",")[2] for row in rows) for rows in tables]
    kaggle.answers(competitions_submit=[ref], competitions_submissions=lines)
    kernel = tmp_path / "k"
    kernel.mkdir()
    (kernel / "kernel-metadata.json").write_text(json.dumps({"id": "ada/k", "competition_sources": ["soil-2026"]}))
    assert submit_kernel(kernel, Submission("first", version=3, poll_s=0)) == "0.812"


def test_no_score_is_told_where_an_earlier_one_could_be_taken_for_it(kaggle, tmp_path, capsys):
    "The table could not be read before, and an older submission has the same message."
    head = "ref,fileName,date,description,status,publicScore,privateScore"
    new = "77,submission.csv,2026-11-24,first,SubmissionStatus.COMPLETE,0.812,"
    done = "Successfully submitted to soil-2026"
    kaggle.answers(competitions_submit=[done], competitions_submissions=["403 fails"] * 9 + [f"{head}\n{new}\n{OLD}"])
    kernel = tmp_path / "k"
    kernel.mkdir()
    (kernel / "kernel-metadata.json").write_text(json.dumps({"id": "ada/k", "competition_sources": ["soil-2026"]}))
    assert submit_kernel(kernel, Submission("first", version=3, poll_s=0)) == ""
    assert "its score cannot be identified" in capsys.readouterr().out


@pytest.mark.parametrize("message", [" first ", "first\n", "a\nlong one " + "x" * 600])
def test_a_message_is_known_as_kaggle_keeps_it(kaggle, tmp_path, message):
    head = "fileName,date,description,status,publicScore,privateScore"
    new = f"submission.csv,2026-11-24,{' '.join(message.split())[:500]},SubmissionStatus.COMPLETE,0.812,"
    kaggle.answers(competitions_submit=["Successfully submitted"], competitions_submissions=[head, f"{head}\n{new}"])
    kernel = tmp_path / "k"
    kernel.mkdir()
    (kernel / "kernel-metadata.json").write_text(json.dumps({"id": "ada/k", "competition_sources": ["soil-2026"]}))
    assert submit_kernel(kernel, Submission(message, version=3, poll_s=0)) == "0.812"


def test_three_commands_from_nothing_to_a_score(tmp_path, kaggle):
    data = tables(tmp_path / "files")
    made = run_cli(
        tmp_path, "kaggle", "init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", data
    )
    assert made.returncode == 0 and "2 classes" in made.stdout, made.stderr
    text = (tmp_path / "soil-first" / "soil-first.ipynb").read_text()
    assert all(word in text for word in ("task.data=soil-2026", "task.target=grade", "task.answer=label", "'table'"))
    up = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert up.returncode == 0, up.stdout + up.stderr
    steps = ["datasets status", "datasets create", "datasets status", "kernels push", "kernels logs", "kernels status"]
    assert kaggle.asked() == [*steps, "kernels output"]
    assert (tmp_path / "soil-first" / "output" / "submission.csv").is_file() and "version 4" in up.stdout
    score = run_cli(tmp_path, "kaggle", "submit", "soil-first", "-m", "first")
    assert score.returncode == 0 and "public score: 0.812" in score.stdout
    assert "-k ada/soil-first -v 4 -f submission.csv -m first" in (kaggle.folder / "asked.txt").read_text()

    # the same once more: nothing has changed; its run, which has failed late, is said beside its submission
    kaggle.answers(datasets_status=["ready"], kernels_output=["soil-1/summary.json"])
    again = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert again.returncode == 0 and "nothing has changed" in again.stdout
    assert "soil-1 has failed: the fifth; 7 of 9 samples are predicted in its submission" in again.stdout
    assert kaggle.asked() == ["datasets status", "kernels status", "kernels logs", "kernels status", "kernels output"]

    cell = tmp_path / "soil-first" / "soil-first.ipynb"
    cell.write_text(cell.read_text().replace("trainer.max_epochs=30", "trainer.max_epochs=60"))
    kaggle.answers(
        datasets_status=["ready"],
        kernels_status=['ada/soil-first has status "ERROR"\nFailure message: "out of memory"'],
    )
    failed = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert "ada/soil-first: out of memory" in failed.stdout
    assert failed.returncode == 1 and "ended as ERROR" in failed.stderr and "kernels push" in kaggle.asked()

    away = "Could not find competition - please verify that you entered the correct competition ID"
    kaggle.answers(competitions_submit=[away])  # the client ends well with it
    unknown = run_cli(tmp_path, "kaggle", "submit", "soil-first", "-m", "second")
    assert unknown.returncode == 1 and "Kaggle did not take it: Could not find competition" in unknown.stderr
    assert kaggle.asked() == ["competitions submissions", "competitions submit"]
    kaggle.answers(competitions_submit=["404 fails"])
    refused = run_cli(tmp_path, "kaggle", "submit", "soil-first", "-m", "second")
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    shown = run_cli(tmp_path, "kaggle", "up", "soil-first", "--dry-run", "--again")
    assert shown.returncode == 0 and "$ kaggle kernels push -p soil-first" in shown.stdout
    assert kaggle.asked() == ["competitions submissions", "competitions submit"]  # a dry run asks nothing


def ended(status: str, why: str = "") -> str:
    "What the client says of a run."
    return f'ada/soil-first has status "KernelWorkerStatus.{status}"' + (f'\nFailure message: "{why}"' if why else "")


def test_the_same_command_goes_on_after_a_session_was_cut_short_but_repeats_no_error(tmp_path, kaggle, made):
    begin(tmp_path, made)
    there = {"datasets_status": ["ready"]}
    kaggle.answers(**there, kernels_status=[ended("CANCEL_ACKNOWLEDGED")])
    cut = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert (
        cut.returncode == 1
        and "The same command pushes the kernel once more, and it starts from the beginning" in cut.stderr
    )
    assert "spectrakit kaggle up soil-first --keep" in cut.stderr and "watchdog.limit" not in cut.stderr
    kaggle.answers(**there, kernels_status=[ended("ERROR", "exceeded the maximum allowed execution duration")])
    late = run_cli(tmp_path, "kaggle", "up", "soil-first", "--again")
    assert late.returncode == 1 and "watchdog.limit=8h" in late.stderr

    for state in (ended("CANCEL_ACKNOWLEDGED"), ended("ERROR", "exceeded the maximum allowed execution duration")):
        kaggle.answers(**there, kernels_status=[state, ended("COMPLETE")])
        again = run_cli(tmp_path, "kaggle", "up", "soil-first")
        assert again.returncode == 0 and "pushed once more" in again.stdout, again.stderr
        assert kaggle.asked().count("kernels push") == 1

    kaggle.answers(**there, kernels_status=[ended("ERROR", "ValueError: no column named size")])
    failed = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert failed.returncode == 1 and "--again" in failed.stderr and "kernels push" not in kaggle.asked()
    kaggle.answers(**there)
    assert run_cli(tmp_path, "kaggle", "up", "soil-first", "--again").returncode == 0
    assert kaggle.asked().count("kernels push") == 1


@pytest.mark.long
def test_what_a_version_has_left_is_attached_to_the_next_one(tmp_path, kaggle, made):
    begin(tmp_path, made)
    none = run_cli(tmp_path, "kaggle", "up", "soil-first", "--keep")
    assert none.returncode == 2 and "no output to keep" in none.stderr and not (kaggle.folder / "asked.txt").exists()

    new = GOOD["datasets status"][:2]  # the wheels are there, the other data set is not
    kaggle.answers(datasets_status=["ready"], kernels_status=[ended("CANCEL_ACKNOWLEDGED")])
    assert run_cli(tmp_path, "kaggle", "up", "soil-first").returncode == 1
    for status in (ended("RUNNING"), ended("QUEUED")):
        kaggle.answers(datasets_status=["ready"], kernels_status=[status])
        runs = run_cli(tmp_path, "kaggle", "up", "soil-first", "--keep")
        assert runs.returncode == 2 and "has not ended" in runs.stderr and "kernels push" not in kaggle.asked()
    cut = [ended("CANCEL_ACKNOWLEDGED"), ended("COMPLETE")]
    kaggle.answers(datasets_status=["ready", "ready", *new, "ready"], kernels_status=cut)
    empty = run_cli(tmp_path, "kaggle", "up", "soil-first", "--keep")
    assert empty.returncode == 2 and "has left no checkpoint" in empty.stderr and "kernels push" not in kaggle.asked()

    for attached in ([True], [False]):  # the second time the data set is there already, as after Ctrl-C
        status = ["ready", "ready", *new, "ready"] if attached[0] else ["ready"]
        output = ["a checkpoint", ""]
        kaggle.answers(datasets_status=status, kernels_status=cut, kernels_output=output)
        done = run_cli(tmp_path, "kaggle", "up", "soil-first", "--keep")
        assert done.returncode == 0, done.stdout + done.stderr
        asked = (kaggle.folder / "asked.txt").read_text()
        assert ("datasets create -p soil-first/kept/version-4 --dir-mode zip" in asked) == attached[0]
        told = json.loads((tmp_path / "soil-first" / "kernel-metadata.json").read_text())
        assert told["dataset_sources"] == ["ada/spectrakit-wheels", "ada/soil-first-kept-4"]
        made = json.loads((tmp_path / "soil-first" / "kept" / "version-4" / "dataset-metadata.json").read_text())
        assert made["id"] == "ada/soil-first-kept-4" and "kernels push" in kaggle.asked()


def test_a_complete_run_without_a_submission_is_said_and_an_older_file_is_not_taken_for_it(tmp_path, kaggle, made):
    begin(tmp_path, made)
    first = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert "submission.csv is the submission of version 4" in first.stdout and "next: " in first.stdout
    there = {"datasets_status": ["ready"], "kernels_output": ["no files"]}
    kaggle.answers(**there)
    none = run_cli(tmp_path, "kaggle", "up", "soil-first", "--again")
    assert none.returncode == 0 and (tmp_path / "soil-first" / "output" / "submission.csv").is_file()
    assert "has written no submission.csv, which soil-2026 scores" in none.stdout, none.stdout
    assert "is the submission of" not in none.stdout and "next: " not in none.stdout
    kaggle.answers(**there)
    others = run_cli(tmp_path, "kaggle", "up", "soil-first", "--files", "curves.*")  # it was not asked for
    assert others.returncode == 0 and "has written no submission" not in others.stdout


def test_what_only_reads_is_tried_again_and_a_push_is_not(tmp_path, kaggle, made):
    begin(tmp_path, made)
    late = "HTTPSConnectionPool(host='www.kaggle.com', port=443): Read timed out."
    kaggle.answers(
        datasets_status=[late, "ready"],
        kernels_push=[late, *GOOD["kernels push"]],
        kernels_status=[late, *GOOD["kernels status"]],
        kernels_output=[late, ""],
    )
    first = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert first.returncode == 1 and "Read timed out" in first.stderr and kaggle.asked()[-1] == "kernels push"
    second = run_cli(tmp_path, "kaggle", "up", "soil-first")
    assert second.returncode == 0 and "Kaggle did not answer" in second.stdout, second.stdout + second.stderr
    lines = (kaggle.folder / "asked.txt").read_text().splitlines()
    assert sum(line.startswith("kernels output") for line in lines) == 2
