"A run whose folder, or the folder for temporary files, is full, read-only, moved or deleted."

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import spectrakit as sk
from helpers import mount, mounted, run_cli, task
from spectrakit.api.actions import fit, predict, resume
from spectrakit.api.run import open_run
from spectrakit.config.compose import compose
from spectrakit.distributed.hang_detector import create_page
from spectrakit.system.errors import RequestError
from spectrakit.system.files import storage_cause, storage_problem
from tasks import Submitting

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="folders are followed by /proc")
WORDS = ("trainer.accelerator=cpu", "data.batch_size=4", "trainer.max_epochs=4", "run.console=none")


@pytest.fixture(params=["bytes", "inodes", "read-only"])
def no_room(request, tmp_path, monkeypatch):
    "TMPDIR in which nothing can be written, and the words that say why."
    options = {"bytes": "size=64k", "inodes": "nr_inodes=2", "read-only": "size=64k"}[request.param]
    for folder in mounted(tmp_path / "full", "-t", "tmpfs", "-o", options, "tmpfs"):
        file = folder / "file"
        if request.param == "inodes":
            file.touch()
        elif request.param == "bytes":
            file.write_bytes(bytes(2**16))
        else:
            mount("-o", "remount,ro", folder)
        monkeypatch.setenv("TMPDIR", str(folder))
        yield {
            "bytes": "is full: 0 B are free of 64 KiB",
            "inodes": "has no room for another file: all 2 inodes are in use",
        }.get(request.param, "is read-only")


def test_a_folder_for_temporary_files_without_room_is_named_with_the_reason(here, no_room):
    run = fit(Submitting(), compose(*WORDS, "launch.mode=inline", "trainer.max_epochs=1"), show=False)
    before = sorted(run.path.rglob("*"))
    for action in (
        lambda: fit(Submitting(), compose(*WORDS), show=False),
        lambda: fit(task("Submitting"), compose(*WORDS), show=False),
        lambda: predict(Submitting(), run, "launch.mode=auto"),
        lambda: resume(
            run, Submitting(), "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]", "launch.mode=auto"
        ),
    ):
        with pytest.raises(RequestError) as caught:
            action()
        assert no_room in str(caught.value) and "TMPDIR" in str(caught.value)
    assert [each.name for each in (here / "runs").iterdir()] == [run.path.name]
    assert [each for each in before if not each.exists()] == [] and open_run(run.path).status == "completed"


@pytest.mark.slow
def test_the_command_line_says_it_in_a_line(here, no_room):
    done = run_cli(here, "train", task("Submitting"), *WORDS)
    assert done.returncode == 2 and no_room in done.stderr and "Traceback" not in done.stderr + done.stdout
    assert not list((here / "runs").glob("*"))


def test_a_page_without_room_says_which_folders_were_tried(tmp_path, no_room):
    full = os.environ["TMPDIR"]
    with pytest.raises(OSError, match="there is no room for a page of shared memory") as caught:
        create_page(2, (str(tmp_path / "none"), full))
    assert f"{tmp_path}/none does not exist; {full} {no_room}" in str(caught.value)
    told = f"OSError: [Errno {30 if 'read-only' in no_room else 28}] of a disk"
    assert storage_cause(told, tmp_path, full) == f" ({full} {no_room})"
    assert storage_cause(f"{told}: '{full}/file'", tmp_path) == f" ({full} {no_room})"
    assert storage_problem(tmp_path) == "" and storage_cause(told, tmp_path) == ""


class Disturbed(Submitting):
    "Its run's folder is no longer there from a moment on: in the middle of training, or when the test data are read."

    def __init__(self, when, what):
        self.when, self.what = when, what

    def disturb(self):
        for run in Path("runs").iterdir() if os.environ.get("RANK", "0") == "0" else ():
            if not (run / "checkpoints" / "LATEST").exists() or Path("moved").exists():
                continue
            run.rename("moved")
            if self.what == "delete":
                shutil.rmtree("moved")
                Path("moved").touch()
            elif self.what == "file":
                run.touch()

    def during(self, number):
        if self.when == "training":
            self.disturb()

    def metrics(self, outputs, batch):
        if self.when == "evaluation":
            self.disturb()
        return super().metrics(outputs, batch)

    def test_dataset(self, cfg):
        if self.when == "prediction":
            self.disturb()
        return super().test_dataset(cfg)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "mode", "what"),
    [
        ("training", "inline", "file"),
        ("training", "auto", "rename"),
        ("training", "auto trainer.devices=2", "rename"),
        ("evaluation", "auto", "file"),
        ("prediction", "auto", "rename"),
        pytest.param("training", "inline", "rename", marks=pytest.mark.long),
        pytest.param("training", "auto", "file", marks=pytest.mark.long),
        pytest.param("training", "auto trainer.devices=2", "file", marks=pytest.mark.long),
        pytest.param("evaluation", "auto", "rename", marks=pytest.mark.long),
        pytest.param("prediction", "auto", "file", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_moved_is_found_where_it_is(here, capsys, when, what, mode):
    "It keeps its checkpoints, predicts with the best one, and can go on."

    run = fit(
        Disturbed(when, what), compose(*WORDS, *f"launch.mode={mode}".split()), predict="submission.csv", show=False
    )
    told = capsys.readouterr().err
    assert (
        run.path == here / "moved"
        and "without an error" not in told
        and f"was moved to {here / 'moved'}" in told
        and "Traceback" not in told
    )
    assert run.status == ("completed" if when == "prediction" else "failed")
    assert run.submission is not None and run.submission.is_whole
    if when == "prediction":
        return
    kept = [path.name for path in (run.path / "checkpoints").glob("step-*")]
    assert "while it trained: step-" in run.error and "spectrakit resume" in run.error and len(kept) >= 1
    gone_on = resume(run, Submitting(), "launch.mode=inline", show=False)
    assert gone_on.path == run.path and gone_on.status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["training", "evaluation", "prediction"])
def test_a_run_that_is_deleted_has_failed_and_says_why(here, capsys, when):
    run = fit(Disturbed(when, "delete"), compose(*WORDS), predict="submission.csv", show=False)
    told = capsys.readouterr().err
    assert run.status == "failed" and "was deleted or moved away while it trained" in told
    assert "submission.csv is unchanged" in told and "Traceback" not in told
    assert not list((here / "runs").iterdir())


class MovedEarly(Disturbed):
    "Its folder goes while the task is tried, before the first step."

    def disturb(self):
        for run in Path("runs").iterdir():
            if (run / "events.jsonl").exists() and not Path("moved").exists():
                run.rename("moved")

    def metrics(self, outputs, batch):
        self.disturb()
        return super().metrics(outputs, batch)


@pytest.mark.slow
def test_a_run_that_is_moved_before_it_trains_does_not_blame_the_task(here):
    run = fit(MovedEarly("check", "rename"), compose(*WORDS), show=False)
    assert run.status == "failed" and "MovedEarly" not in run.error
    assert re.search("The run's folder .* was moved to .*moved while it trained", run.error)


class Unsettling(Submitting):
    "A task whose second training step takes away the folder of its group of runs."

    how = "move"
    steps = 0

    def loss(self, model, batch):
        self.steps += model.training
        group = next(Path("runs").glob("*-cv-*"), None) or next(Path("runs").glob("*-search-*"), None)
        if self.steps > 1 and group is not None:
            group.rename("moved") if self.how == "move" else shutil.rmtree(group)
        return super().loss(model, batch)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["move", "delete"])
@pytest.mark.parametrize("begin", [sk.cross_validate, sk.search])
def test_many_runs_whose_folder_is_moved_or_deleted_end_with_a_sentence(here, begin, how):
    words = [*WORDS, "launch.mode=inline"]
    words += ["folds.count=2"] if begin is sk.cross_validate else ["optimizer.lr=choice(0.1,0.2)"]
    task = Unsettling()
    task.how = how
    with pytest.raises(RequestError) as caught:
        begin(task, *words, show=False)
    said = "was moved to" if how == "move" else "was deleted or moved"
    assert said in str(caught.value) and "while its runs trained" in str(caught.value)
    if how == "move":
        assert repr(str(here / "moved")) in str(caught.value)
