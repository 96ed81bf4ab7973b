"""Surroundings that are not as they should be: modules that stand in for Python's, a folder that goes, a task that ends
its process.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import run_cli, task
from spectrakit.api.actions import fit
from spectrakit.api.run import open_run
from spectrakit.config.compose import compose
from tasks import Line

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux is the home of the launchers")
WORDS = ("trainer.accelerator=cpu", "data.batch_size=4", "trainer.max_epochs=4", "run.console=none")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 2])
def test_modules_beside_the_task_do_not_stand_in_for_pythons(here, devices):
    "Its own neighbour is found all the same."
    for name in ("random.py", "logging.py", "queue.py", "spectrakit/__init__.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(f"raise RuntimeError('this {name} is read')\n")
    (here / "near.py").write_text(Path(task("").rpartition(":")[0]).read_text())
    (here / "mine.py").write_text("import queue, random\nfrom near import Line\n\nrandom.random(), queue.Queue()\n")
    launcher = "import sys; from spectrakit.cli.main import main; sys.exit(main())"
    words = ("train", f"{here / 'mine.py'}:Line", *WORDS, f"trainer.devices={devices}", "launch.mode=torchrun")
    done = run_cli(here, *words, command=("-P", "-c", launcher), fresh=True)
    assert done.returncode == 0, done.stderr
    assert "this random.py" not in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random.py", "dataclasses.py", "random/__init__.py"])
def test_a_module_beside_the_script_that_hides_pythons_is_named(here, name):
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_text("")
    (here / "script.py").write_text("import spectrakit as sk\n\nsk.fit\n")
    done = subprocess.run([sys.executable, "script.py"], cwd=here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and f"{here / name} hides Python's own module" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["notes.txt", "__init__.py"])
def test_a_folder_of_the_kits_name_is_named(here, file):
    "Python may look no further than that folder: then only Python can say so."
    (here / "spectrakit").mkdir()
    (here / "spectrakit" / file).write_text("")
    done = run_cli(here, "--version", fresh=True)
    words = done.stdout + done.stderr
    assert "Traceback" not in words and len(words.splitlines()) == 1
    if done.returncode:
        assert "Give it another name" in words or "spectrakit.__main__" in words


class Quits(Line):
    def during(self, number):
        if number == 11:
            sys.stdout.flush()
            __import__("os")._exit(7)


def test_a_task_that_ends_its_process_is_told_as_the_cause(here):
    run = fit(Quits(), compose(*WORDS), show=False)
    assert run.status == "failed"
    assert "ended with exit status 7 (training, after optimizer step" in run.error and "os._exit" in run.error


class Removes(Line):
    "Its run's folder is deleted while it trains."

    def during(self, number):
        if number == 8:
            for run in Path("runs").iterdir():
                while run.exists():  # another process keeps its page up to date meanwhile
                    shutil.rmtree(run, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inline", "auto"])
def test_a_folder_that_is_deleted_is_noticed_at_the_next_save(here, capsys, mode):
    run = fit(Removes(), compose(*WORDS, f"launch.mode={mode}"), show=False)
    assert run.status == "failed" and "was deleted or moved away while it trained" in capsys.readouterr().err
    assert not list((here / "runs").iterdir())
    assert fit(Line(), compose(*WORDS, "launch.mode=inline"), show=False).status == "completed"
    assert open_run(next((here / "runs").iterdir())).status == "completed"


@pytest.mark.long  # modules beside the task
@pytest.mark.slow
def test_modules_in_the_working_folder_do_not_stand_in_for_pythons_in_a_shell(here):
    for name in ("random", "typing", "logging", "dataclasses", "yaml"):
        (here / f"{name}.py").write_text("raise SystemExit('taken for Python’s')")
    (here / "mine.py").write_text("from spectrakit.task.task import Task\n\n\nclass Mine(Task):\n    pass\n")
    command = [sys.executable, "-m", "spectrakit", "check", "mine:Mine"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "taken for" not in ended.stdout + ended.stderr
    assert "Mine" in ended.stderr and ended.returncode == 2  # a module beside it is found all the same
