"What happens to a training process that is killed, stopped, refused or left alone; each test starts real processes."

import contextlib
import json
import os
import signal
import threading
import time

import psutil
import pytest

import tasks
from helpers import SETTINGS, is_relay, only_run, run_cli, task, wait_for
from spectrakit.api.actions import fit, resume
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, verify
from spectrakit.config.compose import compose
from spectrakit.launch.job import check_task_name, load_task, name_of
from spectrakit.runs.events import columns, last_event
from spectrakit.runs.run_dir import is_locked
from spectrakit.system.errors import RequestError
from spectrakit.system.files import file_sha256
from tasks import Line

pytestmark = pytest.mark.slow  # every test here starts processes


class Held:
    "A command that trains, held in the middle of its run: `process`, `run`, and `go()` to let it go on."

    def __init__(self, start_cli, folder, words, at=21):
        self.folder = folder
        self.process = start_cli("train", *words, cwd=folder, env={"TINY_HOLD": f"{at}:{folder}"})
        wait_for(lambda: (folder / "held").exists() or self.process.poll() is not None, "the run to be held")
        assert self.process.poll() is None, self.process.communicate()
        self.run = only_run(folder)

    @property
    def children(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if not is_relay(child)]

    def go(self) -> None:
        (self.folder / "go").touch()

    def end(self, timeout_s: float = 90) -> tuple[int, str, str]:
        "(exit status, stdout, stderr) of the command."
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err


@pytest.fixture
def hold(start_cli, tmp_path):
    "A function that starts a training and returns it held in its eleventh optimizer step of twenty."

    def held(*words, name="Submitting") -> Held:
        return Held(start_cli, tmp_path, [task(name), *SETTINGS, *words])

    return held


def same_result(run, other) -> bool:
    "Whether two runs saw the same losses and evaluations, and ended with the same bytes."
    ends = [find_checkpoint(path / "checkpoints")[0] for path in (run, other)]
    logs = [open_run(path).events for path in (run, other)]
    files = ("model.safetensors", "ema.safetensors")
    return (
        ends[0].name == ends[1].name
        and all((ends[0] / name).read_bytes() == (ends[1] / name).read_bytes() for name in files)
        and columns(logs[0], "step", "step", "loss", "lr") == columns(logs[1], "step", "step", "loss", "lr")
        and columns(logs[0], "eval", "step", "metrics") == columns(logs[1], "eval", "step", "metrics")
    )


def here_and_now(run) -> None:
    "Have a run resumed in this process, without workers: that spares a process, and the result may not depend on it."
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        text.replace("launch:\n  mode: auto", "launch:\n  mode: inline").replace("num_workers: 1", "num_workers: 0")
    )
    assert compose(config=run / "config.yaml").launch.mode == "inline"


# killed


def test_a_killed_training_process_is_a_failed_run_that_goes_on_bit_for_bit(hold, trained):
    held = hold("launch.max_restarts=0")
    (child,) = held.children
    assert is_locked(held.run) and open_run(held.run).status == "running"
    child.kill()
    status, out, err = held.end()
    assert status == 1 and "failed" in out and "killed by SIGKILL" in err and "memory" in err and "Traceback" not in err
    run = open_run(held.run)
    assert run.status == "failed" and "SIGKILL" in run.error and not is_locked(held.run)
    assert json.loads((held.run / "summary.json").read_text())["status"] == "failed"
    newest, notes = find_checkpoint(held.run / "checkpoints")
    assert newest.name in ("step-00000009", "step-00000010") and not notes
    done = run_cli(held.folder, "resume", held.run)
    assert done.returncode == 0 and f"continues from optimizer step {int(newest.name[5:])}" in done.stdout, done.stderr
    assert same_result(held.run, trained.run)
    assert all(verify(path) == [] for path in checkpoints(held.run / "checkpoints"))


def test_a_killed_training_process_starts_again_and_ends_as_if_nothing_had_been(hold, trained):
    held = hold()
    (child,) = held.children
    held.go()  # so that the second start is not held
    child.kill()
    status, out, err = held.end()
    assert status == 0 and "completed" in out and "killed by SIGKILL" in out and "starting again (1 of 2)" in out, (
        out,
        err,
    )
    assert same_result(held.run, trained.run)
    run = open_run(held.run)
    assert last_event(run.events, "restart")["notes"][0].startswith("the training process was killed by SIGKILL")
    assert json.loads((held.run / "summary.json").read_text())["launch"]["restarts"] == 1


def test_no_orphan_is_left_when_the_parent_is_killed(hold):
    "Neither the training process nor its loader's worker; the run is unfinished, free, and goes on."
    held = hold("dataloader.num_workers=1", name="Listed")
    family = held.children
    assert len(family) >= 2  # the training process and a worker
    held.process.kill()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    # the parent's last thread, which holds the lock too, may end after its children have been told
    wait_for(lambda: open_run(held.run).status == "unfinished" and not is_locked(held.run), "the lock to be let go")
    here_and_now(held.run)  # which makes its settings somebody's
    assert resume(held.run, show=False, trust=True).status == "completed"


# stopped


@pytest.mark.parametrize(
    "to, words", [("group", ()), ("alone", ()), ("alone", ("launch.mode=inline",))], ids=["group", "alone", "inline"]
)
def test_an_interrupt_saves_the_model_and_the_run_goes_on(hold, trained, to, words):
    held = hold(*words)
    if to == "group":
        os.killpg(held.process.pid, signal.SIGINT)
    else:
        held.process.send_signal(signal.SIGINT)
    if not words:
        wait_for((held.run / "STOP").exists, "the interrupt to be heard")
    held.go()
    status, out, err = held.end()
    assert (status, err) == (130, "") and "interrupted" in out
    run = open_run(held.run)
    assert run.status == "interrupted" and last_event(run.events, "end")["reason"] and not is_locked(held.run)
    stopped_at = last_event(run.events, "end")["step"]
    newest, notes = find_checkpoint(held.run / "checkpoints")
    assert 11 <= stopped_at < 20 and newest.name == f"step-{stopped_at:08d}" and notes == []
    assert last_event(run.events, "eval")["step"] == stopped_at  # it was looked at before it was left
    if to == "group":
        return  # the other two go on: in a child process, and in the command itself
    here_and_now(held.run)  # which makes its settings somebody's
    assert resume(held.run, show=False, trust=True).status == "completed"
    ends = [find_checkpoint(path / "checkpoints")[0] for path in (held.run, trained.run)]
    assert (ends[0] / "model.safetensors").read_bytes() == (ends[1] / "model.safetensors").read_bytes()


def test_the_second_interrupt_kills_and_the_older_checkpoint_stays(hold):
    held = hold()
    held.process.send_signal(signal.SIGINT)
    wait_for((held.run / "STOP").exists, "the first interrupt to be heard")
    (child,) = held.children
    held.process.send_signal(signal.SIGINT)
    status, out, err = held.end()
    assert status == 130 and "interrupted" in out and "Traceback" not in err and not child.is_running()
    assert open_run(held.run).status == "interrupted"
    assert find_checkpoint(held.run / "checkpoints")[0].name in ("step-00000009", "step-00000010")


def test_an_interrupt_while_the_training_process_still_starts_is_not_lost(start_cli, tmp_path):
    process = start_cli("train", task("Line"), *SETTINGS, "trainer.max_epochs=4000", fresh=True)

    def started() -> bool:
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):  # git, which is asked for the commit, comes and goes
                if "spectrakit.launch.worker" in " ".join(child.cmdline()):
                    return True
        return False

    wait_for(started, "the training process to be started")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "") and "interrupted" in out
    run = open_run(only_run(tmp_path))
    assert run.status == "interrupted" and find_checkpoint(run.path / "checkpoints")[0] is None
    assert "before the first step" in last_event(run.events, "end")["reason"]


def test_while_a_run_trains_it_can_be_looked_at_and_not_be_resumed(hold, trained):
    def files() -> dict[str, str]:  # the command that trains keeps its page up to date meanwhile
        kept = [path for path in held.run.rglob("*") if path.is_file() and "dashboard.html" not in path.name]
        return {str(path): file_sha256(path) for path in kept}

    held = hold()
    before = files()
    shown, listed = run_cli(held.folder, "show", held.run), run_cli(held.folder, "runs")
    refused = run_cli(held.folder, "resume", held.run)
    assert shown.returncode == 0 and "running" in shown.stdout and "val_loss" in shown.stdout, shown.stderr
    assert listed.returncode == 0 and "running" in listed.stdout
    assert refused.returncode == 2 and "another process" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert files() == before and held.process.poll() is None
    (held.run / "STOP").touch()  # anyone may ask it to stop
    time.sleep(1.5)  # a thread looks for it four times a second
    held.go()
    status, _out, _ = held.end()
    assert status == 130 and open_run(held.run).status == "interrupted"


# failed and refused, through a child process


@pytest.mark.parametrize(
    "name, words",
    [
        ("RaisesInLoss", "ZeroDivisionError: in the seventh loss"),
        ("Exits", "SystemExit"),
        ("Vanishes", "exit status 0"),
    ],
)
def test_a_task_that_breaks_is_a_failed_run_with_a_readable_reason(tmp_path, name, words):
    done = run_cli(tmp_path, "train", task(name), *SETTINGS)
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2
    run = open_run(only_run(tmp_path))
    assert run.status == "failed" and words in run.error and not is_locked(run.path)
    assert (run.path / "summary.json").is_file() and list((run.path / "logs").iterdir())
    if name == "RaisesInLoss":
        assert find_checkpoint(run.path / "checkpoints")[0].name == "step-00000003"


def test_a_request_that_the_child_refuses_leaves_nothing(tmp_path):
    twice = "scheduler.warmup_steps=3", "scheduler.warmup_epochs=1"
    done = run_cli(tmp_path, "train", task("Line"), *SETTINGS, *twice)
    assert done.returncode == 2 and done.stderr.startswith("spectrakit: scheduler.warmup_steps=3 and "), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list((tmp_path / "runs").iterdir())


def test_a_fault_of_the_task_that_the_child_finds_is_a_failed_run(tmp_path):
    done = run_cli(tmp_path, "train", task("LossIsMapping"), *SETTINGS)
    (run,) = (tmp_path / "runs").iterdir()
    assert done.returncode == 1 and "LossIsMapping.loss returned dict" in done.stdout + done.stderr
    assert f"see runs/{run.name}/logs" in done.stderr


def test_a_task_object_is_carried_to_the_child_and_back_to_the_notebook(here):
    "A class that no module holds, as a cell makes it, with a value of its own; called from a thread."

    class Cell(Line):
        def __init__(self, shift):
            self.shift = shift

        def metrics(self, outputs, batch):
            return {"shifted": (outputs.sum() * 0 + self.shift * len(outputs), len(outputs))}

    found = []
    thread = threading.Thread(target=lambda: found.append(fit(Cell(7), compose("trainer.max_steps=3"), show=False)))
    thread.start()
    thread.join(180)
    assert found and found[0].status == "completed", found and found[0].error
    assert found[0].metrics["val_shifted"] == pytest.approx(7.0)
    assert not (found[0].path / "logs" / "rank-0.log").read_text()  # neither a warning nor a print
    assert found[0].load_model().training is False  # the run still knows its task


def test_a_task_that_cannot_be_pickled_is_refused(here):
    class Locked(Line):
        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(RequestError, match="cannot be pickled.*lock") as caught:
        fit(Locked(), compose(), show=False)
    assert "\n" not in str(caught.value) and not list((here / "runs").iterdir())


# names of tasks


@pytest.mark.parametrize(
    "name, words",
    [
        ("coffe", "'coffee'"),
        ("digit", "'digits'"),
        ("", "There is no task"),
        ("no.such.module:Name", "There is no module 'no'"),
        ("missing.py:Name", "There is no file 'missing.py'"),
        (":Name", "There is no task"),
        ("tasks:", "There is no task"),
        ("tasks:Lin", "'Line'"),
        ("tasks:1x", "There is no task"),
        (f"{tasks.__file__}:Lien", "'Line'"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_the_nearest_right_one(here, name, words):
    with pytest.raises(RequestError) as caught:
        load_task(name)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_task_is_found_by_the_name_it_gives():
    assert name_of(Line()) == "tasks:Line" and isinstance(load_task("tasks:Line"), Line)
    check_task_name(task("Line"))
    assert type(load_task(task("Line"))).__name__ == "Line"


@pytest.mark.parametrize("folder", ["it's here", "a b", "ünï", "x=1"])
def test_a_task_file_may_lie_in_any_folder(here, folder):
    (here / folder).mkdir()
    name = f"{folder}/my_task.py:Mine"
    (here / folder / "my_task.py").write_text("from tasks import Line\nclass Mine(Line): pass\n")
    run = fit(name, compose("launch.mode=inline", "trainer.max_steps=1", "checkpoint.enabled=false"), show=False)
    assert run.status == "completed" and run.config.task["name"] == str(here / name)
