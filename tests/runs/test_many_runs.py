"Among thousands of folders a run is found; what was not looked at is said; only a run that is taken is hashed."

import os
import shutil
from pathlib import Path

import pytest

from helpers import flip_bit
from spectrakit.api.actions import fit
from spectrakit.checkpoint.store import checkpoints
from spectrakit.config.compose import compose
from spectrakit.runs import history, run_dir
from spectrakit.runs.run_dir import MARKERS, find_runs, near_names, unread_text
from spectrakit.runs.run_groups import why_no_run
from spectrakit.serving.attached import attached_runs
from spectrakit.system import inputs
from spectrakit.system.errors import RequestError
from spectrakit.system.inputs import find_input

MANY = 2100
BASE = (
    "trainer.max_steps=3",
    "data.batch_size=4",
    "launch.mode=inline",
    "watchdog.limit=none",
    "checkpoint.max_share=1",
)


def looks_like_a_run(folder: Path) -> Path:
    "A folder with the names that a run has."
    (folder / "checkpoints").mkdir(parents=True)
    for name in MARKERS - {"checkpoints"}:
        (folder / name).touch()
    return folder


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    "A folder of many runs, and beside it inputs that hold it. Not to be changed."
    folder = tmp_path_factory.mktemp("many") / "input" / "owner" / "runs"
    for number in range(MANY):
        looks_like_a_run(folder / f"run-{number:04d}")
    return folder


@pytest.mark.parametrize(("up", "depth"), [(0, 1), (1, 2), (2, 8)])
def test_every_run_of_a_large_folder_is_found(many, up, depth):
    unread = []
    found = find_runs(many.parents[up - 1] if up else many, depth, unread)
    assert [path.name for path in found] == [f"run-{number:04d}" for number in range(MANY)] and unread == []


def test_every_name_is_near_or_counted(many):
    last = [entry.name for entry in os.scandir(many)][-1]  # the order of a folder is by chance
    assert near_names(many / last[:-1]).count(last[:-1]) >= 3
    assert f"Did you mean {last!r}" in near_names(many / last) and f"a folder of {MANY} runs" in why_no_run(many)


def test_files_beside_runs_do_not_hide_them(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "MAX_FILES_EACH", 3)
    for number in range(9):
        (tmp_path / f"image-{number}.png").touch()
    run, unread = looks_like_a_run(tmp_path / "run"), []
    assert find_runs(tmp_path / "run", 1, unread) == [run] and unread == []
    assert find_runs(tmp_path, 1, unread) in ([run], []) and unread == [tmp_path]
    assert str(tmp_path) in unread_text(unread) and unread_text([]) == ""


def test_a_folder_that_may_not_be_read_is_named_and_one_that_is_not_there_is_not(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    unread = []
    assert find_runs(tmp_path / "nowhere", 1, unread) == [] and unread == []
    monkeypatch.setattr(run_dir.os, "scandir", refuse)
    assert find_runs(tmp_path, 1, unread) == [] and unread == [tmp_path]


def test_auto_says_what_it_has_not_looked_at(here, monkeypatch):
    monkeypatch.setattr(run_dir, "MAX_FILES_EACH", 3)
    (here / "input" / "images").mkdir(parents=True)
    for number in range(9):
        (here / "input" / "images" / f"{number}.png").touch()
    monkeypatch.setenv("SPECTRAKIT_INPUT", str(here / "input"))
    run = fit("coffee", compose(*BASE, "resume.source=auto"), show=False)
    told = [event["text"] for event in run.events if event["type"] == "message"]
    assert any("no run" in text and "images" in text and "could not be read whole" in text for text in told), told
    with pytest.raises(RequestError, match=r"No run of 'ariel'.*images.*could not be read whole"):
        attached_runs("ariel")


def test_a_marker_that_was_not_looked_for_everywhere_is_not_said_to_be_missing(tmp_path, monkeypatch):
    for name in "abcd":
        (tmp_path / "input" / name).mkdir(parents=True)
    monkeypatch.setattr(inputs, "MAX_FOLDERS", 3)
    with pytest.raises(FileNotFoundError, match=r"in 3 folders below .*, and there are more"):
        find_input("x", "x.csv", environ={"SPECTRAKIT_INPUT": "/input"}, root=tmp_path)


@pytest.fixture
def hashed(monkeypatch):
    "The runs with a checkpoint that was hashed while a run was looked for."
    names, verify = [], history.verify

    def note(path, hashes=True):
        if hashes:
            names.append(path.parent.parent.name)
        return verify(path, hashes)

    monkeypatch.setattr(history, "verify", note)
    return names


def train(*words, **options):
    return fit("coffee", compose(*BASE, *words), show=False, **options)


@pytest.mark.slow
def test_no_checkpoint_of_other_settings_is_hashed(here, hashed):
    for rate in (0.1, 0.2, 0.3):
        train(f"optimizer.lr={rate}")
    assert train("optimizer.lr=0.4", resume="auto").status == "completed" and hashed == []


@pytest.mark.slow
def test_only_the_run_that_goes_on_is_hashed(here, hashed):
    for rate in (0.1, 0.2):
        train(f"optimizer.lr={rate}", "trainer.max_steps=5")
    mine = train("optimizer.lr=0.3")
    assert train("optimizer.lr=0.3", resume="auto").path == mine.path and set(hashed) == {mine.path.name}


@pytest.mark.slow
def test_of_a_damaged_copy_the_other_one_is_taken_and_other_settings_refuse_only_with_a_whole_checkpoint(here, hashed):
    cut = train("optimizer.lr=0.3", "trainer.max_steps=4", "checkpoint.every_n_steps=2")
    (cut.path / "events.jsonl").write_bytes(  # a run that was killed
        b"".join(line for line in (cut.path / "events.jsonl").read_bytes().splitlines(True) if b'"end"' not in line)
    )
    copy = shutil.copytree(cut.path, here / "runs" / "zzz")
    with pytest.raises(RequestError, match="other settings"):
        train("optimizer.lr=0.4", "trainer.max_steps=4", resume="auto")
    assert len(set(hashed)) == 1
    for path in checkpoints(copy / "checkpoints")[-1:]:
        flip_bit(path / "model.safetensors")
    again = train("optimizer.lr=0.3", "trainer.max_steps=4", "checkpoint.every_n_steps=2", resume="auto")
    assert again.path == cut.path and again.status == "completed"
    for path in [*checkpoints(copy / "checkpoints"), *checkpoints(cut.path / "checkpoints")]:
        flip_bit(path / "model.safetensors")
    assert train("optimizer.lr=0.4", "trainer.max_steps=4", resume="auto").status == "completed"
