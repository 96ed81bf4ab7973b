"What is promised about a person's own doings: edited code, ■ early and twice, files of odd names, a deleted folder."

import hashlib
import shutil
import signal
from pathlib import Path

from helpers import wait_for
from spectrakit.api.run import Run
from spectrakit.prediction.submission_file import read_record
from spectrakit.runs.events import last_event, read_events

from .crashes import restarts
from .harness import TASKS, Place, compare, ended, ranks, said, to_the_end, whole


def _content(run: Run) -> dict[str, str]:
    "Every file of a run, with its hash."
    files = (path for path in run.path.rglob("*") if path.is_file())
    return {str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _code(p: Place) -> Path:
    "A copy of the tasks, to be edited."
    folder = p.folder / "code"
    folder.mkdir()
    for file in (TASKS, TASKS.with_name("tasks.py")):
        shutil.copy(file, folder)
    return folder / TASKS.name


def the_code_of_the_task_is_edited(p: Place) -> None:
    """A session that would go on with another `loss` is refused by its name, and the run stays as it is; allowed, it
    goes on, here with the same arithmetic and so with the same bits.
    """
    file = _code(p)
    kernel = p.held(f"{file}:Drops")
    run = p.run()
    kernel.process.send_signal(signal.SIGINT)
    p.let_go(heard=run)
    run = ended(p, kernel.wait(), "interrupted")
    before, text = _content(run), file.read_text()
    file.write_text(text.replace("return spoil(result) if spoil", "return 1.0 * spoil(result) if spoil"))
    p.want(file.read_text() != text, "nothing was edited")
    words = ("resume.source=" + str(run.path),)
    refused = p.start(f"{file}:Drops", *words).wait().get("refused", "")
    p.want("loss" in refused and "resume.allow=[task.code]" in refused, f"it was told {refused!r}")
    p.want(_content(run) == before, "the run is not as it was")
    run = ended(p, p.start(f"{file}:Drops", *words, "resume.allow=[task.code]").wait(), "completed")
    compare(p, run, "Drops")


def it_is_stopped_before_the_first_step(p: Place) -> None:
    "■ while the data are read: back without a step, and without a word of a failure."
    kernel = p.start("Drops", TINY_FAULTS="data 0 1 linger_when_told")
    p.file("fault-data-0-1")
    kernel.process.send_signal(signal.SIGINT)
    p.let_go(heard=p.run())  # training must not begin meanwhile
    word = kernel.wait()
    p.want(word.get("status") == "interrupted", f"the run ended {word.get('status')}: {word.get('error')}")
    steps = [event for event in read_events(Path(word["path"]) / "events.jsonl") if event["type"] == "step"]
    p.want(not steps, f"it trained {len(steps)} steps")
    p.facts["status"] = word.get("status")


@ranks(2)
def it_is_stopped_twice(p: Place) -> None:
    "■, and ■ again when training has ended: the run is saved, on both ranks, and not all is predicted."
    kernel = p.held("Long", "data.batch_size=2", predict="table.csv", TINY_PREDICT_S="20", TINY_STEP_S="0.02")
    run = p.run()
    kernel.process.send_signal(signal.SIGINT)
    p.let_go(heard=run)
    wait_for(lambda: last_event(read_events(run.path / "events.jsonl"), "end"), "the end of the training", 60)
    kernel.process.send_signal(signal.SIGINT)
    word = kernel.wait()
    run = ended(p, word, "interrupted")
    state = read_record(run.path)  # the submission that is there before
    p.want(state is not None and not state.is_whole, f"the submission: {state}")
    p.want(max(whole(run)) >= 12, f"the checkpoints are those of steps {whole(run)}")


def files_of_pythons_names_lie_beside(p: Place) -> None:
    "random.py, logging.py and spectrakit/ in the working folder are not imported: the same bits come out."
    for name in ("random.py", "logging.py", "spectrakit/__init__.py", "torch.py"):
        (p.folder / name).parent.mkdir(exist_ok=True)
        (p.folder / name).write_text("raise SystemExit('a file of the person was imported')\n")
    compare(p, ended(p, p.start("Drops").wait(), "completed"), "Drops")


def the_folder_of_the_run_is_deleted(p: Place) -> None:
    "It is noticed at the next save and told; nothing more is written to where it was, and no process stays."
    kernel = p.held("Drops")
    run = p.run()
    run.path.rename(p.folder / "aside")  # at once: nothing is written in between
    shutil.rmtree(p.folder / "aside", ignore_errors=True)
    p.let_go()
    word = kernel.wait()
    p.want(word.get("status") == "failed", f"the run ended {word.get('status')}")
    p.want("was deleted or moved away" in kernel.log.read_text(), "nobody was told")
    left = list(run.path.glob("checkpoints/step-*"))  # a save that was under way makes its folder anew
    p.want(len(left) <= 1, f"it went on saving where the run was: {len(left)} checkpoints")
    p.facts["status"] = word.get("status")


def the_task_ends_the_process(p: Place) -> None:
    "os._exit in a task: the run has failed, the cause is told, and resume goes on to the same bits."
    run = ended(p, p.start("Drops", TINY_FAULTS="loss 0 18 vanish").wait(), "failed", "something called os._exit")
    to_the_end(p, run, "Drops")


@ranks(2)
def one_rank_ends_its_process(p: Place) -> None:
    "os._exit on one rank: the cause is told, both start again, and every bit is the same."
    run = ended(p, p.start("Walk", TINY_FAULTS="loss 1 18 vanish").wait(), "completed")
    p.want(len(restarts(run)) == 1 and "exit status 0" in said(run), f"the person was told: {said(run)!r}")
    compare(p, run, "Walk")
