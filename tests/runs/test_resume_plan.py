"A run that was stopped goes on as if it had not been: it is found, what changed is named, and it is exact to a bit."

import errno
import functools
import json
import os
import random
import shutil
import time
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helpers import TESTS, flip_bit, only_run, task, tree_hashes
from spectrakit.api.actions import fit, predict, resume
from spectrakit.api.run import Run, list_runs, open_run
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, verify
from spectrakit.config.compose import compose
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.runs.history import read_history, samples_at
from spectrakit.runs.run_dir import find_runs, locked
from spectrakit.system.errors import RequestError
from spectrakit.system.files import file_sha256
from spectrakit.task.task import Task
from tasks import in_sanity_check

pytestmark = pytest.mark.slow  # every test here trains a run

SAMPLES, STEPS = 22, 12  # six optimizer steps an epoch, the last one short
BASE = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "launch.mode=inline",
    "trainer.accelerator=cpu",
    "data.batch_size=4",
    "trainer.max_epochs=2",
    "optimizer.lr=0.02",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "checkpoint.every_n_epochs=1",
    "dataloader.num_workers=0",
    "watchdog.limit=none",
)


class Augmented:
    "Samples with noise from all three generators."

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + 0.1 * torch.randn(3) + random.random() + float(numpy.random.rand()), self.y[i]


class Tiny(Task):
    """Dropout makes the random state matter.

    `stop`: the number of the training loss during which it asks for a stop. `fail`: of the one that raises.
    """

    options = {"width": 6}

    def __init__(  # noqa: PLR0913  a test names the one or two that it needs
        self, stop=None, fail=None, augment=False, own_schedule=False, samples=SAMPLES, dropout=0.3, norm=False
    ):
        self.stop, self.fail, self.samples = stop, fail, samples
        self.augment, self.own_schedule, self.dropout, self.norm = augment, own_schedule, dropout, norm
        self.losses, self.nap_s = 0, 0.0
        if self.stop is None and "TINY_STOP" in os.environ:
            self.stop = int(os.environ["TINY_STOP"])

    def datasets(self, cfg):
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))
        y = x @ torch.tensor([1.0, -2.0, 0.5])
        made = Augmented if self.augment else TensorDataset
        return made(x[: self.samples], y[: self.samples]), TensorDataset(x[32:], y[32:])

    def model(self, cfg):
        width = self.option(cfg, "width")
        return nn.Sequential(
            nn.Linear(3, width),
            *([nn.BatchNorm1d(width)] if self.norm else []),
            nn.Dropout(self.dropout),
            nn.Linear(width, 1),
            nn.Flatten(0),
        )

    def scheduler(self, optimizer, cfg, steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)

    def __getattribute__(self, name):  # without it the built-in schedule is used
        if name == "scheduler" and not self.own_schedule:
            raise AttributeError(name)
        return super().__getattribute__(name)

    def loss(self, model, batch):
        if model.training and not in_sanity_check():  # the check computes losses, too
            self.losses += 1
            time.sleep(self.nap_s)
            if self.losses == self.fail:
                raise OSError("the data's disk went away")
            if self.losses == self.stop:
                [(run / "STOP").touch() for run in Path("runs").iterdir()]
                time.sleep(1.0)  # a thread looks for it four times a second
        return nn.functional.mse_loss(model(batch[0]).float(), batch[1])

    def metrics(self, outputs, batch):
        return {"mae": ((outputs.float() - batch[1]).abs().sum(), len(outputs))}


@functools.cache
def settings(*words):
    return compose(*BASE, *words)


def tensors(run, which="LATEST"):
    "Weights, averages and optimizer of a checkpoint."
    from spectrakit.checkpoint.store import load_state, load_weights

    path = find_checkpoint(run.path / "checkpoints", which)[0]
    state = load_state(path)[0]
    flat = [t for values in state["optimizer"]["state"].values() for _, t in sorted(values.items())]
    return path.name, [*load_weights(path, ema=False).values(), *load_weights(path).values(), *flat]


def history(run):
    "What a run logged, by step: losses and rates; and its evaluations at the ends of epochs."
    points = {e["step"]: (e["loss"], e["lr"]) for e in run.events if e["type"] == "step"}
    return points, {
        e["step"]: e["metrics"] for e in run.events if e["type"] == "eval" and float(e["epoch"]).is_integer()
    }


def assert_same(run, whole):
    "Every logged loss and rate, every evaluation, the last weights and the best are those of the other run, to a bit."
    assert run.status == whole.status == "completed"
    assert history(run) == history(whole)
    for which in ("LATEST", "BEST"):
        (name, mine), (other, theirs) = tensors(run, which), tensors(whole, which)
        assert name == other and len(mine) == len(theirs)
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert run.metrics == whole.metrics


def stopped(config, number, **options):
    "A run that was asked to stop in its `number`-th training loss."
    run = fit(Tiny(stop=number, **options), config, show=False)
    assert run.status == "interrupted"
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    "The base case, not interrupted. Not to be changed."
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("whole"))
    try:
        return Run(fit(Tiny(), settings(), show=False).path.absolute())
    finally:
        os.chdir(before)


# --- the very same run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_run_that_is_stopped_at_any_step_goes_on_to_the_same_bits(here, whole, step):
    run = stopped(settings(), step)
    assert last_event(run.events, "end")["step"] == step
    assert_same(resume(run, Tiny(), show=False), whole)


VARIANTS = {
    "augmented": (("training.ema_decay=0.9",), {"augment": True}, 7),
    "accumulation": (
        ("data.batch_size=2", "accumulate_grad_batches=2", "training.ema_decay=0.9", "scheduler.name=one_cycle"),
        {},
        8,
    ),
    "own schedule": (("optimizer.name=sgd",), {"own_schedule": True}, 5),
    "in order": (("data.shuffle=false", "data.drop_last=true", "scheduler.warmup_steps=5"), {"norm": True}, 6),
    "bf16": (("distributed.mixed_precision=bf16", "trainer.gradient_clip_val=0.5"), {}, 4),
    "rare log points": (
        ("trainer.log_every_n_steps=4", "trainer.log_min_seconds=0", "trainer.check_val_every_n_steps=3"),
        {},
        None,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_so_does_every_other_kind_of_run(here, name):
    words, options, number = VARIANTS[name]
    config = settings(*words)
    other = fit(Tiny(**options), config, show=False)
    run = stopped(config, number, **options) if number else fit(Tiny(fail=7, **options), config, show=False)
    assert run.status in ("interrupted", "failed")
    assert_same(resume(run, Tiny(**options), show=False), other)


@pytest.mark.parametrize(
    "words",
    [
        ("dataloader.num_workers=2", "trainer.max_epochs=1"),
        pytest.param(("dataloader.num_workers=2", "dataloader.persistent_workers=true"), marks=pytest.mark.slow),
    ],
)
def test_workers_and_where_the_samples_are_read_make_no_difference(here, words):
    other = fit(
        Tiny(augment=True),
        settings(*words, "dataloader.num_workers=0", "dataloader.persistent_workers=false"),
        show=False,
    )
    run = stopped(settings(*words), 4, augment=True)
    assert_same(resume(run, Tiny(augment=True), show=False), other)


@pytest.mark.parametrize("copied", [False, True])
def test_an_evaluation_that_only_the_stop_has_asked_for_changes_nothing(here, copied):
    config = settings(
        "optimizer.name=sgd",
        "optimizer.lr=0.9",
        "trainer.gradient_clip_val=1.0",
        "scheduler.name=constant",
        "trainer.max_epochs=3",
    )
    other = fit(Tiny(), config, show=False)
    planned = history(other)[1]
    best, chosen = min(m["val_loss"] for m in planned.values()), None
    for step in (1, 2, 7, 8, 9, 10, 11, 13, 14, 15):  # one of them is better than what any planned evaluation sees
        run = stopped(config, step)
        if run.metrics["val_loss"] < best and (chosen := run):
            break
        shutil.rmtree(run.path)
    assert chosen, planned
    if copied:
        run = Run(Path(shutil.move(run.path, here / "input" / "part" / run.path.name)))
    assert_same(resume(run, Tiny(), show=False), other)


def test_a_kill_before_best_is_written_does_not_cost_the_best(here):
    config = settings("checkpoint.mode=max", "checkpoint.keep_last=1", "trainer.max_epochs=3")  # the first is the best
    run = stopped(config, 8)
    (run.path / "checkpoints" / "BEST").unlink()
    kept = find_checkpoint(resume(run, Tiny(), show=False).path / "checkpoints", "BEST")
    assert run.best.step == 6 and (kept[0] and kept[0].name, kept[1]) == ("step-00000006", [])


def test_a_kill_while_the_only_checkpoint_is_replaced_does_not_cost_the_run(here):
    run = stopped(settings(), 4)
    folder = run.path / "checkpoints"
    (kept,) = checkpoints(folder)
    kept.rename(folder / f".old-{kept.name}")
    (folder / ".writing-step-00000009-1").mkdir()
    again = fit(Tiny(), settings("resume.source=auto"), show=False)
    assert again.path == run.path and last_event(again.events, "restart")["step"] == 4
    assert not list(folder.glob(".*"))


def test_a_kill_before_a_copy_has_its_facts_leaves_a_run_that_goes_on(here, monkeypatch):
    config = settings("checkpoint.mirror=drive", "resume.source=auto")
    run = stopped(config, 4)
    shutil.rmtree(run.path)

    class Killed(BaseException):
        "Nothing is tidied up after it."

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("spectrakit.runs.resume_dir.write_environment", kill)
        fit(Tiny(), config, show=False)
    assert fit(Tiny(), config, show=False).path == run.path and only_run(here) == here / run.path


def test_a_full_disk_at_the_beginning_of_a_session_is_a_sentence_and_changes_nothing(here, monkeypatch):
    run = stopped(settings(), 4)
    before = tree_hashes(run.path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("spectrakit.runs.run_dir.write_atomic", full)
    monkeypatch.setattr("spectrakit.runs.resume_dir.write_atomic", full)
    with pytest.raises(RequestError, match=f"{run.path.name} cannot be written: No space left on device. Make room"):
        resume(run, Tiny(), show=False)
    assert tree_hashes(run.path) == before


def test_a_folder_in_place_of_a_file_is_a_sentence_or_no_run(here):
    run = stopped(settings(), 4)
    (run.path / "environment.json").unlink()
    (run.path / "environment.json").mkdir()
    with pytest.raises(RequestError, match=f"{run.path.name} cannot be written: Is a directory"):
        resume(run, Tiny(), show=False)
    (run.path / "events.jsonl").unlink()
    (run.path / "events.jsonl").mkdir()
    assert fit(Tiny(), settings("resume.source=auto"), show=False).path != run.path


def test_stopped_again_and_again_it_is_still_the_same(here, whole):
    run = stopped(settings(), 2)
    for _ in range(3):
        run = resume(run, Tiny(stop=3), show=False)
    assert run.status == "interrupted"
    run = resume(run, Tiny(), show=False)
    assert_same(run, whole)
    t = [e["t"] for e in read_events(run.path / "events.jsonl")]
    assert t == sorted(t) and [e["type"] for e in run.events].count("restart") == 4
    known = json.loads((run.path / "environment.json").read_text())
    assert [s["session"] for s in known["sessions"]] == [1, 2, 3, 4, 5]


def test_predictions_are_the_same(here, whole):
    run = resume(stopped(settings(), 7), Tiny(), show=False)
    assert numpy.array_equal(predict(Tiny(), run).values, predict(Tiny(), whole).values)


# --- found by itself --------------------------------------------------------------------------------------------------


def mounted_at(run, folder):
    "A copy of a run's output below `folder`, as Kaggle mounts it."
    folder.parent.mkdir(parents=True, exist_ok=True)
    return shutil.copytree(run.path.parent, folder / "runs")


def test_auto_begins_goes_on_and_returns_what_is_done(here, whole, capsys):
    config = settings("resume.source=auto")
    run = fit(Tiny(stop=5), config)
    said = capsys.readouterr().out
    assert run.status == "interrupted" and said.count("a new one begins") == 1
    assert "a new one begins" in next(e["text"] for e in run.events if e["type"] == "message")
    again = fit(Tiny(), config)
    assert again.path == run.path and "continues from step 5" in capsys.readouterr().out
    assert any("continues from step 5" in note for note in last_event(again.events, "restart")["notes"])
    assert_same(again, whole)
    before = tree_hashes(again.path)
    done = fit(Tiny(), config, predict="table.csv")
    assert done.path == again.path and Path("table.csv").is_file() and "nothing to resume" in capsys.readouterr().out
    del before["summary.json"]  # it says now what the table holds
    assert before == {k: v for k, v in tree_hashes(done.path).items() if k in before}
    assert len(list_runs("runs")) == 1
    assert fit(Tiny(), config, resume=None, show=False).path == run.path


def test_a_run_in_three_sessions_with_the_same_lines(here, whole, read_only, monkeypatch):
    config = settings("resume.source=auto")
    inputs, last = here / "input", None
    for number, stop in enumerate((4, 5, None), 1):
        session = here / f"session-{number}"
        session.mkdir()
        monkeypatch.chdir(session)
        monkeypatch.setenv("SPECTRAKIT_INPUT", str(inputs))
        run = fit(Tiny(stop=stop), config, show=False)
        assert run.path.is_relative_to("runs") and run.status == ("interrupted" if stop else "completed")
        if stop:
            read_only(mounted_at(Run(run.path.absolute()), inputs / "notebooks" / "ada" / f"part-{number}"))
        last = Run(run.path.absolute())
    assert_same(last, whole)
    events = read_events(last.path / "events.jsonl")
    t = [e["t"] for e in events]
    assert t == sorted(t) and [e["type"] for e in events if e["type"] in ("start", "restart")] == [
        "start",
        "restart",
        "restart",
    ]
    known = json.loads((last.path / "environment.json").read_text())
    assert known["resumed"]["session"] == 3 and "/" not in known["resumed"]["source"]
    assert len({json.loads((p / "environment.json").read_text())["run_id"] for p in find_runs(here)}) == 1


def test_of_several_the_furthest_is_chosen_and_a_copy_is_no_second_run(here):
    config = settings()
    near, far = stopped(config, 3), stopped(config, 8)
    shutil.copytree(near.path, here / "input" / "x" / "copy")
    run = fit(Tiny(), config, resume="auto", show=False)
    assert run.path == far.path and "furthest of 2 runs" in last_event(run.events, "restart")["notes"][0]


def test_other_tasks_and_other_names_are_left_alone(here):
    class Other(Tiny):
        pass

    run = fit(Other(stop=3), settings(), show=False)
    assert fit(Tiny(), settings("run.name=mine"), resume="auto", show=False).path != run.path
    assert fit(Other(), settings("run.name=mine"), resume="auto", show=False).path != run.path
    assert open_run(run.path).status == "interrupted"
    with pytest.raises(RequestError, match="a run of the task"):
        fit(Tiny(), settings(), resume=run, show=False)


def test_a_run_that_another_process_works_on_is_not_taken(here):
    run = stopped(settings(), 3)
    shutil.copytree(run.path, here / "input" / "copy")
    with locked(run.path):
        with pytest.raises(RequestError, match="another process"):
            resume(run, Tiny(), show=False)
        with pytest.raises(RequestError, match=f"resume.source=auto: {run.path.name} is being worked on by another"):
            fit(Tiny(), settings(), resume="auto", show=False)
        assert [path.name for path in (here / "runs").iterdir()] == [run.path.name]
        other = fit(Tiny(), settings("optimizer.lr=0.5"), resume="auto", show=False)  # no duplicate of that
    assert other.path != run.path and any("another process" in e.get("text", "") for e in other.events)
    assert last_event(other.events, "restart") is None


def test_a_run_without_a_whole_checkpoint_is_no_candidate(here):
    run = stopped(settings(), 3)
    for path in checkpoints(run.path / "checkpoints"):
        flip_bit(path / "model.safetensors")
    assert fit(Tiny(), settings(), resume="auto", show=False).path != run.path


# --- a run, a read-only run, a checkpoint -----------------------------------------------------------------------------


def test_a_read_only_run_goes_on_in_a_copy(here, whole, read_only):
    run = stopped(settings(), 8)
    source = here / "elsewhere" / "old"
    shutil.copytree(run.path, source)
    read_only(source)
    before = tree_hashes(source)
    copy = resume(source, Tiny(), show=False)
    assert copy.path.name == "old" and copy.path.parent.name == "runs" and tree_hashes(source) == before
    assert_same(copy, whole)
    second = fit(Tiny(), settings(), resume=source, show=False)
    assert second.path.name == "old-2" and second.status == "completed"
    assert not list(Path("runs").glob(".copying-*"))


def test_where_the_newest_is_damaged_the_copy_goes_on_from_the_one_before(here, whole, read_only):
    run = Run(stopped(settings(), 8).path.absolute())
    flip_bit(checkpoints(run.path / "checkpoints")[-1] / "state.pt")
    read_only(run.path)
    copy = resume(run, Tiny(), show=False)
    assert last_event(copy.events, "restart")["step"] == 6
    assert_same(copy, whole)


def test_a_copy_that_is_cut_leaves_nothing(here, read_only, monkeypatch):
    from spectrakit.runs import resume_dir

    run = Run(stopped(settings(), 8).path.absolute())
    read_only(run.path)

    def cut(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(resume_dir, "_copy_records", cut)
        with pytest.raises(RequestError, match="cannot be copied"):
            resume(run, Tiny(), show=False)
    assert [p.name for p in Path("runs").iterdir()] == [run.path.name]
    (Path("runs") / ".copying-left-behind").mkdir()
    os.utime(Path("runs") / ".copying-left-behind", (0, 0))
    assert resume(run, Tiny(), show=False).status == "completed" and not list(Path("runs").glob(".copying-*"))
    assert len(list_runs("runs")) == 2


def test_a_checkpoint_begins_a_run_of_its_own(here, whole):
    run = fit(Tiny(), settings("checkpoint.keep_last=9", "checkpoint.every_n_steps=4"), show=False)
    before = tree_hashes(run.path)
    branch = fit(Tiny(), settings(), resume=run.path / "checkpoints" / "step-00000008", show=False)
    assert branch.path != run.path and tree_hashes(run.path) == before
    assert_same(branch, whole)
    events = read_events(branch.path / "events.jsonl")
    at = next(i for i, e in enumerate(events) if e["type"] == "restart")
    assert events[at]["step"] == 8 and max(e.get("step") or 0 for e in events[:at]) == 8
    ids = [json.loads((r.path / "environment.json").read_text())["run_id"] for r in (run, branch)]
    assert ids[0] != ids[1] and json.loads((branch.path / "environment.json").read_text())["parent"]["run_id"] == ids[0]


def test_a_checkpoint_without_a_run_around_it(here, whole, capsys):
    run = stopped(settings(), 8)
    shutil.copytree(run.path / "checkpoints" / "step-00000008", here / "bare" / "step-00000008")
    branch = fit(Tiny(), settings(), resume=here / "bare" / "step-00000008")
    assert "could not be compared" in capsys.readouterr().out and branch.status == "completed"
    assert torch.equal(tensors(branch)[1][0], tensors(whole)[1][0])


def test_a_checkpoint_under_another_name(here):
    run = stopped(settings(), 8)
    shutil.copytree(run.path / "checkpoints" / "step-00000008", here / "kept")
    assert last_event(fit(Tiny(), settings(), resume=here / "kept", show=False).events, "restart")["step"] == 8


def test_a_mirror_is_copied_back_and_not_trained_in(here, whole):
    config = settings("checkpoint.mirror=drive")
    run = stopped(config, 8)
    copy = here / "drive" / run.path.name
    if not copy.is_dir():
        shutil.copytree(run.path, copy)
    before = tree_hashes(copy / "checkpoints" / "step-00000008")
    shutil.rmtree(run.path)
    again = fit(Tiny(), settings("checkpoint.mirror=drive", "resume.source=auto"), show=False)
    assert again.path == run.path and before == tree_hashes(again.path / "checkpoints" / "step-00000008")
    assert_same(again, whole)


# --- what has changed -------------------------------------------------------------------------------------------------


def test_settings_that_do_not_matter_change_freely(here, whole):
    run = stopped(settings(), 5)
    again = resume(
        run,
        Tiny(),
        "watchdog.limit=5h",
        "checkpoint.keep_last=4",
        "data.batch_size=2",
        "accumulate_grad_batches=2",
        "tracking.names=[csv]",
        show=False,
    )
    assert (
        again.status == "completed"
        and again.config.checkpoint.keep_last == 4
        and (run.path / "config-1.yaml").is_file()
    )
    rates = [{step: lr for step, (_, lr) in history(r)[0].items()} for r in (again, whole)]
    assert rates[0] == rates[1]


def assert_close(run, other, relative=1e-5):
    one, two = history(run)[0], history(other)[0]
    assert one.keys() == two.keys() and all(abs(one[k][1] - two[k][1]) < 1e-9 for k in one)
    assert all(abs(one[k][0] - two[k][0]) <= relative * abs(two[k][0]) for k in one)


def test_another_micro_batch_with_the_same_effective_batch_learns_the_same(here):
    whole, run = fit(Tiny(dropout=0.0), settings(), show=False), stopped(settings(), 5, dropout=0.0)
    assert_close(resume(run, Tiny(dropout=0.0), "data.batch_size=2", "accumulate_grad_batches=2", show=False), whole)


def test_settings_that_matter_are_listed_and_have_to_be_allowed(here):
    run = stopped(settings(), 5)
    before = tree_hashes(run.path)
    for source in ("auto", run.path):
        with pytest.raises(RequestError) as caught:
            fit(Tiny(), settings("optimizer.lr=0.5", "seed=3"), resume=source, show=False)
        assert all(
            word in str(caught.value)
            for word in (
                "optimizer.lr was 0.02 and is 0.5",
                "seed was 0 and is 3",
                "resume.allow=[",
                "resume.source=null",
            )
        )
    assert tree_hashes(run.path) == before
    again = resume(
        run,
        Tiny(),
        "optimizer.lr=0.5",
        "scheduler.name=constant",
        "resume.allow=[optimizer.lr,scheduler.name]",
        show=False,
    )
    assert {e["lr"] for e in again.events if e["type"] == "step" and e["step"] > 5} == {0.5}
    assert again.config.optimizer.lr == 0.5 and compose(config=run.path / "config-1.yaml").optimizer.lr == 0.02
    assert "optimizer.lr" in json.dumps(last_event(again.events, "restart")) and again.config.resume.allow == []


def test_a_run_that_is_done_goes_on_where_more_epochs_are_allowed(here):
    longer = fit(Tiny(), settings("scheduler.name=constant", "trainer.max_epochs=3"), show=False)
    run = fit(Tiny(), settings("scheduler.name=constant"), show=False)
    with pytest.raises(RequestError, match="trainer.max_epochs was 2 and is 3"):
        resume(run, Tiny(), "trainer.max_epochs=3", show=False)
    again = resume(run, Tiny(), "trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]", show=False)
    assert again.path == run.path
    assert_same(again, longer)


def test_another_effective_batch_is_carried_over_by_samples(here):
    run = stopped(settings(), 8)
    with pytest.raises(RequestError, match="data.micro_batch_size was 4 and is 8"):
        resume(run, Tiny(), "data.batch_size=8", show=False)
    again = resume(run, Tiny(), "data.batch_size=8", "resume.allow=[data.micro_batch_size]", show=False)
    assert (
        again.status == "completed" and last_event(again.events, "end")["step"] == 10
    )  # 2 of 6 steps of epoch 2 are 1 of 3
    assert samples_at(read_history(run.path), [8, 10]).tolist() == [32, 48]  # the last two steps are twice as large
    rates = columns(again.events, "step", "lr")["lr"]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.1 * rates[0]
    more = resume(run, Tiny(), show=False)
    assert more.status == "completed"


def test_other_data_are_noticed_and_have_to_be_allowed(here):
    run = stopped(settings(), 8)
    before = tree_hashes(run.path)
    with pytest.raises(RequestError, match="data.train"):
        resume(run, Tiny(samples=18), show=False)
    after = tree_hashes(run.path)
    assert {k for k in before if after.get(k) != before[k]} <= {"STOP", "events.jsonl"} and open_run(
        run.path
    ).status == "interrupted"
    assert resume(run, Tiny(samples=18), "resume.allow=[data.train]", show=False).status == "completed"


@pytest.mark.parametrize("split", ["training", "validation"])
def test_as_many_samples_with_other_content_are_refused(here, monkeypatch, split):
    run = stopped(settings(), 3)
    datasets = Tiny.datasets

    def other(self, cfg):
        parts = dict(zip(("training", "validation"), datasets(self, cfg), strict=True))
        parts[split] = TensorDataset(parts[split].tensors[0], parts[split].tensors[1] + 1)
        return tuple(parts.values())

    monkeypatch.setattr(Tiny, "datasets", other)
    with pytest.raises(RequestError, match=f"The {split} data set differs from the one of step-00000003"):
        resume(run, Tiny(), show=False)


@pytest.mark.parametrize("key", ["asked_steps", "parts", "fingerprints"])
def test_a_state_that_lacks_a_part_is_refused_by_its_name(here, key):
    run = stopped(settings(), 3)
    (path,) = checkpoints(run.path / "checkpoints")
    state = torch.load(path / "state.pt", weights_only=True)
    torch.save({name: part for name, part in state.items() if name != key}, path / "state.pt")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.pt"] = {
        "bytes": (path / "state.pt").stat().st_size,
        "sha256": file_sha256(path / "state.pt"),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RequestError, match=rf"state\.pt is refused: it lacks {key}\. Start a new run"):
        resume(run, Tiny(), show=False, trust=True)


def test_a_limit_that_counts_micro_batches_is_noticed(here):
    run = stopped(settings("limits.max_train_batches=4"), 5)
    words = ("data.batch_size=2", "accumulate_grad_batches=2")
    with pytest.raises(RequestError, match="An epoch of the run had 16 samples, and would now have 8"):
        resume(run, Tiny(), *words, show=False)
    assert (
        resume(
            run, Tiny(), *words, "limits.max_train_batches=8", "resume.allow=[limits.max_train_batches]", show=False
        ).status
        == "completed"
    )


def test_the_task_s_own_scheduler_goes_on_over_more_epochs(here):
    run = fit(Tiny(own_schedule=True), settings(), show=False)
    longer = resume(
        run, Tiny(own_schedule=True), "trainer.max_epochs=4", "resume.allow=[trainer.max_epochs]", show=False
    )
    assert longer.status == "completed", longer.error
    other = resume(
        stopped(settings(), 8, own_schedule=True),
        Tiny(own_schedule=True),
        "data.batch_size=2",
        "resume.allow=[data.micro_batch_size]",
        show=False,
    )
    assert other.status == "completed", other.error


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_what_is_no_run_is_said_to_be_none(here):
    run = stopped(settings(), 5)
    newest = checkpoints(run.path / "checkpoints")[-1]
    for path in (here, here / "nowhere", run.path / "config.yaml", here / "step-00000001"):
        with pytest.raises(RequestError) as caught:
            fit(Tiny(), settings(), resume=path, show=False)
        assert "\n" not in str(caught.value)
    (newest / "manifest.json").unlink()
    with pytest.raises(RequestError, match="manifest"):
        fit(Tiny(), settings(), resume=newest, show=False)
    assert len(list_runs("runs")) == 1


def test_a_model_of_another_shape_is_one_sentence(here):
    run = stopped(settings(), 5)
    before = tree_hashes(run.path)
    with pytest.raises(RequestError, match="task.width"):
        resume(run, Tiny(), "+task.width=9", show=False)
    with pytest.raises(RequestError, match="does not fit the model of Tiny.*shape") as caught:
        resume(run, Tiny(), "+task.width=9", "resume.allow=[task.width]", show=False)
    after = tree_hashes(run.path)
    assert "\n" not in str(caught.value) and {k for k in before if after.get(k) != before[k]} <= {
        "STOP",
        "events.jsonl",
    }


def test_a_torn_log_and_no_permission(here, whole, monkeypatch):
    run = stopped(settings(), 5)
    with open(run.path / "events.jsonl", "a") as file:
        file.write('{"t": 3, "ty')
    assert_same(resume(run, Tiny(), show=False), whole)

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("spectrakit.runs.resume_plan.outline", refused)
    with pytest.raises(RequestError, match="Permission denied"):
        fit(Tiny(), settings(), resume=run.path, show=False)


# --- several processes ------------------------------------------------------------------------------------------------

TWO = ("launch.mode=auto", "distributed.world_size=2", "data.batch_size=2")


@pytest.mark.slow
def test_two_ranks_go_on_to_the_same_bits(here):
    other = fit(Tiny(), settings(*TWO), show=False)
    run = stopped(settings(*TWO), 7)
    assert_same(resume(run, Tiny(), show=False), other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first, then",
    [
        (TWO, ("distributed.world_size=1", "data.batch_size=4", "launch.mode=inline")),
        (TWO, ("distributed.world_size=1", "data.batch_size=2", "accumulate_grad_batches=2")),
        ((), TWO),
        (("distributed.world_size=auto",), TWO),
    ],
)
def test_another_number_of_processes_sees_the_same_samples(here, first, then):
    whole = fit(Tiny(dropout=0.0), settings(), show=False)
    run = stopped(settings(*first), 5, dropout=0.0)
    again = resume(run, Tiny(dropout=0.0), *then, show=False)
    assert again.status == "completed"
    assert_close(again, whole)


@pytest.mark.slow
def test_sessions_that_end_by_the_clock(here, read_only, monkeypatch):
    began = time.monotonic()
    whole = fit(Tiny(), settings(), show=False)
    slow = max(1.0, (time.monotonic() - began) / 2)  # on an idle machine it takes a second
    whole, inputs, number = Run(whole.path.absolute()), here / "input", 0
    config, status = settings("resume.source=auto", f"watchdog.limit={5 * slow:.0f}s", "watchdog.since=run"), None
    monkeypatch.setenv("SPECTRAKIT_INPUT", str(inputs))
    while status != "completed" and number < STEPS + 2:
        number += 1
        (here / f"session-{number}").mkdir()
        monkeypatch.chdir(here / f"session-{number}")
        patient = Tiny()
        patient.nap_s = 0.4 * slow
        run = Run(fit(patient, config, show=False).path.absolute())
        status = run.status
        assert status in ("out_of_time", "completed")
        if status != "completed":
            read_only(mounted_at(run, inputs / f"part-{number}"))
    assert number > 1
    assert_same(run, whole)
    assert [e["type"] for e in run.events if e["type"] in ("start", "restart")] == ["start"] + ["restart"] * (
        number - 1
    )


@pytest.mark.slow
def test_two_processes_that_copy_one_run_have_a_folder_each(start_cli, run_cli, tmp_path, read_only):
    words = [w for w in BASE if not w.startswith("launch")]
    env = {"PYTHONPATH": str(TESTS)}  # this file imports helpers
    began = run_cli("train", f"{__file__}:Tiny", *words, "launch.mode=inline", env={**env, "TINY_STOP": "5"})
    assert began.returncode == 130, began.stderr
    run = only_run(tmp_path)
    source = read_only(shutil.move(run, tmp_path / "old"))
    both = [start_cli("resume", source, env=env) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"old", "old-2"}
    assert all(
        r.status == "completed" and last_event(r.events, "restart")["step"] == 5 for r in list_runs(tmp_path / "runs")
    )


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_same_words_in_a_shell(run_cli, tmp_path):
    words = (
        "train",
        task("Line"),
        *(w for w in BASE if w != "launch.mode=inline"),
        "launch.mode=inline",
        "resume.source=auto",
    )
    assert run_cli(*words).returncode == 0
    again = run_cli(*words)
    assert again.returncode == 0 and "nothing to resume" in again.stdout
    run = only_run(tmp_path)
    refused = run_cli("resume", run, "trainer.max_epochs=3")
    assert (
        refused.returncode == 2
        and "resume.allow=[trainer.max_epochs]" in refused.stderr
        and refused.stderr.count("\n") == 1
    )
    assert run_cli("resume", run, "trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]").returncode == 0
    assert open_run(run).config.trainer.max_epochs == 3 and all(
        verify(p) == [] for p in checkpoints(run / "checkpoints")
    )


def test_what_a_run_still_had_to_write_when_it_was_killed_at_its_end_is_written_by_whoever_asks_for_it(
    here, monkeypatch
):
    monkeypatch.setattr("spectrakit.api.run.save_figure", lambda figure, path: path.write_bytes(b"a picture"))
    run = fit(Tiny(), settings(), show=False)
    whole = json.loads((run.path / "summary.json").read_text())
    for name in ("summary.json", "curves.png"):
        (run.path / name).unlink()
    again = resume(run, Tiny(), show=False)
    assert (
        json.loads((again.path / "summary.json").read_text()) == whole
        and (again.path / "curves.png").read_bytes() == b"a picture"
    )
    before = (run.path / "summary.json").stat().st_mtime_ns
    assert fit(Tiny(), settings(), resume=run.path, show=False).path == run.path
    assert (run.path / "summary.json").stat().st_mtime_ns == before  # what is there already stays
