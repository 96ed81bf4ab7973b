"Several processes look for a run at the same moment: one trains, the others name it, and nothing is trained twice."

import json
import os
import shutil
from pathlib import Path

import pytest

from helpers import ONE_PROCESS, run_cli, start_cli, task, wait_for
from spectrakit.runs.run_dir import claiming, is_locked

pytestmark = pytest.mark.slow
WORDS = (
    *ONE_PROCESS,
    "dataloader.num_workers=0",
    "run.dir=runs",
)


def cut_run(here: Path) -> Path:
    "A run that was stopped after an epoch, and has a checkpoint."
    done = run_cli(here, "train", task("Line"), *WORDS, "trainer.max_epochs=3", env={"TINY_HOLD": ""})
    assert done.returncode == 0, done.stderr
    (run,) = (here / "runs").iterdir()
    lines = [line for line in (run / "events.jsonl").read_text().splitlines() if json.loads(line)["type"] != "end"]
    (run / "events.jsonl").write_text("\n".join(lines) + "\n")
    newest = max((run / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    (run / "checkpoints" / "LATEST").write_text(max((run / "checkpoints").glob("step-*")).name)
    return run


def three(here: Path, *words: str, inputs: Path | None = None, command: str = "train") -> tuple[list, list[str]]:
    "Start the same command three times: those that ended while one held its first step, and what the held one printed."
    env = {"TINY_HOLD": f"1:{here}"} | ({} if inputs is None else {"SPECTRAKIT_INPUT": str(inputs)})
    started = [
        start_cli(here, command, task("Line"), *WORDS, "trainer.max_epochs=3", *words, env=env) for _ in range(3)
    ]
    wait_for(lambda: sum(process.poll() is not None for process in started) == 2, "the two that are refused")
    ended = [(process.returncode, *process.communicate()) for process in started if process.poll() is not None]
    (held,) = [process for process in started if process.poll() is None]
    wait_for((here / "held").exists, "the one that trains")
    (here / "go").touch()
    out, err = held.communicate(timeout=240)
    assert held.returncode == 0, out + err
    return ended, [out, err]


@pytest.mark.parametrize(
    "found", ["nothing", "a run that was cut", "a run in the inputs", "one that may not be written"]
)
def test_one_of_three_trains_and_the_others_name_its_run(here, found):
    inputs, before = None, set()
    if found != "nothing":
        run = cut_run(here)
        before = {run.name}
    if found == "a run in the inputs":
        inputs = here / "input"
        shutil.move(here / "runs", inputs / "earlier")
    if found == "one that may not be written" and os.getuid():
        run.chmod(0o555)
    ended, _ = three(here, "resume.source=auto", inputs=inputs)
    (made,) = (here / "runs").iterdir()
    assert before <= {made.name}
    for status, out, err in ended:
        assert status == 2 and f"{made.name} is being worked on by another process" in err, out + err
    assert not is_locked(made) and json.loads((made / "summary.json").read_text())["status"] == "completed"


def test_folds_are_trained_by_one_of_three(here):
    ended, _ = three(here, "folds.count=2", "--resume", "auto", command="cross-validate")
    (group,) = (here / "runs").iterdir()
    for status, out, err in ended:
        assert status == 2 and f"{group.name} is in use by another process" in err, out + err
    assert len(list(group.glob("fold-*/*/events.jsonl"))) == 2 and not is_locked(group)


def test_a_folder_that_is_claimed_is_left_as_it_was(tmp_path, monkeypatch):
    for folder in (tmp_path / "a" / "b", tmp_path / "file" / "runs"):
        (tmp_path / "file").touch()
        with claiming(folder):
            pass
        assert not folder.exists()
    (tmp_path / "kept").mkdir()
    with claiming(tmp_path / "kept"):
        (tmp_path / "kept" / "run").mkdir()
    assert (tmp_path / "kept" / "run").is_dir()
    with monkeypatch.context() as without:  # a drive without locks
        without.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(95, "not supported")))
        with claiming(tmp_path / "kept"), claiming(tmp_path / "kept"):
            pass
