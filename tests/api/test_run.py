"A run's folder: what is refused before it is made, what survives, and how it goes on when parts of it are broken."

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import signal
from pathlib import Path

import numpy
import pytest
import torch

import tasks
from helpers import Touch, flip_bit, task, tree_hashes, why_failed
from spectrakit.api import actions
from spectrakit.api.actions import fit, predict, resume
from spectrakit.api.run import Run, list_runs, open_run, run_rows
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, load_weights, verify
from spectrakit.cli.output import report_outcome
from spectrakit.config.compose import compose, sha256
from spectrakit.launch.launcher import launch
from spectrakit.pages.comparison import compare
from spectrakit.pages.report_sections import result_rows
from spectrakit.prediction.submission_file import read_record
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.runs.history import read_history
from spectrakit.runs.run_dir import is_locked, locked
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task
from spectrakit.view.run_state import RunState, apply_event
from tasks import Line, Listed, Submitting

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]
INLINE = (
    "local/accumulate_grad_batches=debug",  # a step for each batch: steps are counted here
    "launch.mode=inline",
    "trainer.accelerator=cpu",
    "data.batch_size=8",
    "trainer.max_epochs=3",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
)


def inline(*overrides: str):
    return compose(*INLINE, *overrides)


def weights(run: Run) -> dict:
    return load_weights(find_checkpoint(run.path / "checkpoints")[0], ema=False)


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Failing(Line):
    "Its thirteenth training loss raises."

    def during(self, number):
        if number == 13:
            raise ZeroDivisionError("as planned")


# a slow disk leaves none out
OFTEN = ("checkpoint.every_n_steps=4", "checkpoint.keep_last=9", "checkpoint.max_share=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Run, Run]:
    "A run of 15 steps that failed in step 13, saving every 4 steps and every epoch; and the same run unbroken."
    folder = f"run.dir={tmp_path_factory.mktemp('made')}"
    failed, whole = (fit(task, inline(folder, *OFTEN), show=False) for task in (Failing(), Line()))
    assert failed.status == "failed" and "as planned" in failed.error and whole.status == "completed"
    return failed, whole


@pytest.fixture
def whole(made) -> Run:
    "The unbroken run. Not to be changed."
    return made[1]


@pytest.fixture
def broken_off(made, here) -> Run:
    "A copy of the failed run, below ./runs."
    return open_run(shutil.copytree(made[0].path, here / "runs" / made[0].path.name))


# a run, from start to end


def test_a_finished_run_can_be_opened_by_its_folder_alone(here):
    made = fit(Submitting(), inline("run.name=mine"), predict="table.csv", show=False)
    run = open_run(made.path)
    assert (run.status, run.error, run.path.name.startswith("mine-")) == ("completed", None, True)
    assert run.best.monitor == "val_loss" and run.metrics == run.best.metrics
    assert set(run.metrics) == {"val_loss", "val_mae"}
    assert run.best.value == min(e["metrics"]["val_loss"] for e in run.events if e["type"] == "eval")
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["status"], summary["steps"], summary["metrics"]) == ("completed", 15, run.metrics)
    assert len((run.path / "metrics.csv").read_text().splitlines()) == 16
    model = run.load_model(Submitting())
    x, y = tasks.tensors()
    with torch.inference_mode():
        loss = torch.nn.functional.mse_loss(model(x[40:]), y[40:]).item()
    assert not model.training and loss == pytest.approx(run.best.value, rel=1e-5)
    rows = Path("table.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["id", "s0", "s1", "s2", "s3", "s4"]


def test_a_run_that_goes_on_for_longer_shows_its_new_length(here):
    first = fit(Line(), inline("trainer.max_epochs=1"), show=False)
    before = read_history(first.path).total_steps
    longer = resume(first, Line(), "trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]", show=False)
    state = RunState(longer.path.name)
    for event in longer.events:
        apply_event(state, event)
    assert state.step == state.total_steps == read_history(longer.path).total_steps == 3 * before
    told = compare(longer, fit(Line(), inline("trainer.max_epochs=2"), show=False)).table
    assert [line["total_steps"] for line in told] == [3 * before, 2 * before]
    assert (
        dict(result_rows(read_history(longer.path), "completed"))["optimizer steps"] == f"{state.step} of {state.step}"
    )


@pytest.mark.parametrize("status", ["failed", "interrupted", "out_of_time", ""])
def test_the_next_call_is_resume_only_with_a_checkpoint(here, status):
    run = Run(here / f"coffee-{status or 'cut'}")
    run.path.mkdir()
    (run.path / "config.yaml").write_text("")
    events = [{"t": 0.0, "type": "start", "schema": 1, "monitor": "val_loss", "task": "__main__:Cups"}]
    events += [{"t": 1.0, "type": "end", "status": status, "reason": "no luck", "step": 3}] * bool(status)
    (run.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    told = dict(run_rows(run))["next"]
    assert "resume" not in told and "nothing was saved" in told


def test_a_saved_step_is_in_the_next_call(broken_off):
    run = open_run(broken_off)
    saved = find_checkpoint(run.path / "checkpoints")[0]
    assert f"sk.resume(run) continues from step {int(saved.name[5:])}" in dict(run_rows(run))["next"]


def test_a_checkpoint_in_place_of_its_run_is_answered_with_the_run(whole):
    newest = find_checkpoint(whole.path / "checkpoints")[0]
    for ask in (open_run, resume):
        with pytest.raises(RequestError, match=f"lies in one. Give the run: {whole.path}"):
            ask(newest)


def test_the_snapshot_repeats_a_run_bit_for_bit():
    first = fit(Line(), inline("training.ema_decay=0.9"), show=False)
    again = fit(Line(), compose(config=first.path / "config.yaml"), show=False)
    assert again.path != first.path and same(weights(first), weights(again))
    assert columns(first.events, "step", "loss") == columns(again.events, "step", "loss")
    known = [json.loads((run.path / "environment.json").read_text())["config_sha256"] for run in (first, again)]
    assert known[0] == known[1] == sha256(first.config)


def test_a_run_is_repeated_after_another_one_in_the_same_process():
    first = fit(Line(), inline(), show=False)
    fit(Listed(), inline("seed=9", "distributed.mixed_precision=bf16"), show=False)
    assert same(weights(first), weights(fit(Line(), inline(), show=False)))


def test_runs_of_the_same_second_get_folders_of_their_own():
    paths = {
        fit(Line(), inline("trainer.max_steps=1", "checkpoint.enabled=false", "run.name=twin"), show=False).path
        for _ in range(3)
    }
    assert len(paths) == 3 and {run.path for run in list_runs("runs")} == paths


def test_a_task_of_plain_objects():
    train, valid = Line().datasets(None)
    model = Line().model(compose())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    run = fit(Task.of(model, train, valid, torch.nn.MSELoss()), inline(), show=False)
    assert run.status == "completed" and same(before, model.state_dict()) and not same(before, weights(run))


def test_fit_prints_where_it_is_what_was_decided_and_how_it_ended(capsys):
    run = fit(Line(), inline("trainer.precision=16"))
    said = capsys.readouterr().out
    for words in (
        str(run.path),
        "40 samples",
        "effective batch 8",
        "fp32: precision 16 needs a GPU",
        "val_loss",
        "★ best",
        "completed",
    ):
        assert words in said, words
    fit(Line(), inline(), show=False)
    assert capsys.readouterr().out == ""


# wrong requests: nothing is left, nothing is lost


@pytest.mark.parametrize(
    "name, words",
    [
        ("NoLoss", ("NoLoss", "`loss`")),
        ("Stream", ("stream without a length", "data.samples_per_epoch")),
    ],
)
def test_no_task_and_a_missing_setting_are_refused_before_training_and_leave_nothing(name, words):
    fit(Line(), inline("trainer.max_steps=1"), show=False)
    before = tree_hashes(Path("runs"))
    with pytest.raises(RequestError) as caught:
        fit(getattr(tasks, name)(), inline(), show=False)
    said = str(caught.value)
    assert all(word in said for word in words) and "\n" not in said, said
    assert tree_hashes(Path("runs")) == before and len(list(Path("runs").iterdir())) == 1


@pytest.mark.parametrize(
    "name, words",
    [
        ("EmptyTraining", ("training data set has no samples", "datasets")),
        ("EmptyValidation", ("validation data set has no samples", "None")),
        ("OneDataset", ("OneDataset.datasets", "(train, valid)")),
        ("NotAModel", ("NotAModel.model returned str", "Module")),
        ("Frozen", ("no trainable parameter", "requires_grad_(True)")),
        ("NanTraining", ("training data[0]", "1 values that are not finite", "sample 11")),
        ("InfiniteValidation", ("validation data[0]", "not finite", "sample 3")),
        ("NanValidationListed", ("validation", "not finite")),
        ("LossIsNone", ("LossIsNone.loss returned NoneType", "(sum, weight)")),
        ("LossIsVector", ("LossIsVector.loss returned a tensor of shape [8]", "scalar")),
        ("LossIsNumber", ("LossIsNumber.loss returned float", "scalar")),
        ("LossIsDetached", ("does not depend on the model's weights", "detach")),
        ("LossIsMapping", ("LossIsMapping.loss returned dict", "(sum, weight)")),
        ("LossIsTriple", ("LossIsTriple.loss returned tuple", "(sum, weight)")),
        ("LossWithoutWeight", ("LossWithoutWeight.loss", "weight")),
        ("LossWithTextWeight", ("LossWithTextWeight.loss", "weight")),
    ],
)
def test_a_wrong_task_ends_as_a_failed_run_before_training(name, words):
    run = fit(getattr(tasks, name)(), inline(), show=False)
    said = why_failed(run)
    assert all(word in said for word in words) and "\n" not in said, said
    assert columns(run.events, "step", "step") == {"step": []} and not list(run.path.glob("checkpoints/*"))


@pytest.mark.parametrize(
    "override, words",
    [
        ("data.batch_size=41", ("data.micro_batch_size=41", "40 samples")),
        ("task.widht=4", ("no option 'widht'", "'width'")),
        ("checkpoint.monitor=val_accuracy", ("checkpoint.monitor=val_accuracy", "val_mae")),
        ("trainer.accelerator=gpu", ("trainer.accelerator=gpu", "auto")),
        ("run.name=../up", ("run.name=../up", "letters")),
        ("run.name=.hidden", ("run.name=.hidden",)),
        ("run.dir=a_file", ("a_file", "run.dir")),
        ("run.dir=a_file/below", ("a_file/below", "run.dir")),
    ],
)
def test_a_wrong_setting_is_refused_before_training_and_leaves_nothing(here, override, words):
    if override.endswith("=gpu") and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (here / "a_file").write_text("precious")
    with pytest.raises(RequestError) as caught:
        fit(Line(), inline(override), show=False)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value), caught.value
    assert (here / "a_file").read_text() == "precious"
    assert not any(path.is_file() for path in (here / "runs").rglob("*"))
    assert {path.name for path in here.iterdir()} <= {"a_file", "runs"}


def test_a_pair_is_a_pair_whatever_its_type():
    "A named tuple (sum, weight) gives what the mean gives."
    named, plain = (fit(task, inline(), show=False) for task in (tasks.LossIsNamedPair(), Line()))
    assert named.status == "completed", named.error
    losses = [columns(run.events, "step", "loss")["loss"] for run in (named, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_where_predictions_shall_go_is_checked_before_training():
    with pytest.raises(RequestError, match="nowhere"):
        fit(Line(), inline(), predict="nowhere/table.csv", show=False)
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


@pytest.mark.parametrize("task", [Line, "class", 3, None])
def test_something_that_is_no_task_is_refused(task):
    with pytest.raises(RequestError):
        fit(task, inline(), show=False)


def test_a_mapping_is_no_config():
    with pytest.raises(RequestError, match="compose"):
        fit(Line(), {"seed": 1}, show=False)


def test_a_task_of_a_script_has_to_be_passed_along():
    class Script(Line):
        pass

    Script.__module__, Script.__qualname__ = "__main__", "Script"
    run = fit(Script(), inline("trainer.max_steps=2"), show=False)
    with pytest.raises(RequestError, match="Pass it as an argument"):
        open_run(run.path).load_model()
    with pytest.raises(RequestError, match="Pass it as an argument"):
        predict(None, run.path)
    assert predict(Script(), run.path).values.shape == (12,)


# what fails later on is a failed run, and `fit` returns it


@pytest.mark.parametrize(
    "name, words",
    [
        ("RaisesInDatasets", "PermissionError: the spectra are locked"),
        ("RaisesInLoss", "ZeroDivisionError: in the seventh loss"),
        ("Exits", "SystemExit"),
    ],
)
def test_an_exception_in_the_task_is_a_failed_run(name, words, capsys):
    run = fit(getattr(tasks, name)(), inline(), show=False)
    assert run.status == "failed" and words in run.error
    assert words.split(":")[0] in (run.path / "logs" / "error-rank-0.txt").read_text()
    assert json.loads((run.path / "summary.json").read_text())["status"] == "failed" and not is_locked(run.path)
    with pytest.raises(RuntimeError, match=words.split(":")[0]):
        run.raise_for_status()


def test_a_model_that_cannot_be_made_is_a_failed_run_with_its_line(here, capsys):
    why_failed(
        fit(tasks.RaisesInModel(), inline(), show=False),
        r"RaisesInModel.model raised FileNotFoundError: weights.bin .*tasks.py, line",
    )
    assert [run.status for run in list_runs()] == ["failed"]


@pytest.mark.parametrize(
    "text, words",
    [("import nothing_of_this_name\nclass Mine: pass\n", "nothing_of_this_name"), ("class Mine(:\n", "SyntaxError")],
)
@pytest.mark.parametrize("mode", ["inline", pytest.param("auto", marks=pytest.mark.slow)])
def test_a_task_file_that_cannot_be_imported_is_no_traceback(here, text, words, mode, capsys):
    "Refused, or a failed run: a sentence in both cases."
    (here / "mine.py").write_text(text)
    try:
        said = fit("mine.py:Mine", inline(f"launch.mode={mode}"), show=False).error
    except RequestError as error:
        said = str(error)
    assert words in said and "\n" not in said


def test_the_model_of_a_failed_run_is_saved_and_it_goes_on(broken_off, whole):
    assert find_checkpoint(broken_off.path / "checkpoints")[0].name == "step-00000012"
    run = resume(broken_off, Line(), show=False)
    assert run.status == "completed" and run.path == broken_off.path
    assert last_event(run.events, "restart")["step"] == 12
    assert columns(run.events, "step", "step")["step"] == list(range(1, 16))
    assert same(weights(run), weights(whole))
    assert columns(run.events, "step", "loss") == columns(whole.events, "step", "loss")


def test_a_run_that_is_done_is_returned_as_it_is():
    run = fit(Line(), inline("trainer.max_steps=2"), show=False)
    before = tree_hashes(run.path)
    assert resume(run.path, show=False).status == "completed" and tree_hashes(run.path) == before


# parts of a run are broken


def test_a_torn_last_line_is_cut_off(broken_off):
    log = broken_off.path / "events.jsonl"
    whole = read_events(log)
    with open(log, "a") as file:
        file.write('{"t": 9.5, "type": "step", "st')
    assert read_events(log) == whole and open_run(broken_off.path).status == "failed"
    run = resume(broken_off, Line(), show=False)
    assert run.status == "completed" and all(json.loads(line)["type"] for line in log.read_text().splitlines())


@pytest.mark.parametrize("content", ["step-00000099\n", "", "../../elsewhere\n", "\0\n"])
def test_a_latest_that_points_nowhere_falls_back_to_the_newest(broken_off, content):
    (broken_off.path / "checkpoints" / "LATEST").write_text(content)
    run = resume(broken_off, Line(), show=False)
    assert run.status == "completed" and last_event(run.events, "restart")["step"] == 12


def test_no_latest_at_all(broken_off):
    (broken_off.path / "checkpoints" / "LATEST").unlink()
    assert last_event(resume(broken_off, Line(), show=False).events, "restart")["step"] == 12


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: flip_bit(path / "model.safetensors"),
        lambda path: flip_bit(path / "state.pt"),
        lambda path: flip_bit(path / "rank-00000.pt"),
        lambda path: (path / "state.pt").unlink(),
        lambda path: (path / "manifest.json").unlink(),
        lambda path: (path / "manifest.json").write_text("{"),
        lambda path: (path / "model.safetensors").write_bytes(b""),
        lambda path: [file.unlink() for file in path.iterdir()],
    ],
    ids=[
        "bit in the weights",
        "bit in the state",
        "bit in the random state",
        "no state",
        "no manifest",
        "half a manifest",
        "empty weights",
        "nothing",
    ],
)
def test_a_spoiled_newest_checkpoint_falls_back_to_the_one_before(broken_off, whole, spoil):
    newest = broken_off.path / "checkpoints" / "step-00000012"
    older = verify(broken_off.path / "checkpoints" / "step-00000010")
    assert older == []
    spoil(newest)
    run = resume(broken_off, Line(), show=False)
    restart = last_event(run.events, "restart")
    assert run.status == "completed" and restart["step"] == 10
    assert any("step-00000012" in note for note in restart["notes"])
    assert same(weights(run), weights(whole))
    assert columns(run.events, "step", "loss") == columns(whole.events, "step", "loss")
    assert all(verify(path) == [] for path in checkpoints(run.path / "checkpoints") if path != newest)


def test_without_a_whole_checkpoint_resume_is_refused_and_touches_nothing(broken_off):
    for path in checkpoints(broken_off.path / "checkpoints"):
        flip_bit(path / "model.safetensors")
    before = tree_hashes(broken_off.path)
    assert is_locked(broken_off.path) is False
    with pytest.raises(RequestError, match="no valid checkpoint"):
        resume(broken_off, Line(), show=False)
    with pytest.raises(RequestError, match="no valid checkpoint"):
        broken_off.load_model(Line())
    assert tree_hashes(broken_off.path) == before


@pytest.mark.parametrize("name", ["state.pt", "rank-00000.pt"])
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_malicious_pickle_in_a_checkpoint_runs_nothing(broken_off, here, name, how, capsys):
    marker, evil = here / "ran", here / "evil.pt"
    if how == "pickle":
        evil.write_bytes(pickle.dumps(Touch(marker), protocol=2))
    else:
        torch.save({"progress": Touch(marker)}, evil)
    torch.load(evil, weights_only=False) if how == "torch" else pickle.loads(evil.read_bytes())
    assert marker.exists()  # it would do it
    marker.unlink()
    for path in checkpoints(broken_off.path / "checkpoints"):
        shutil.copy(evil, path / name)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["files"][name] = {
            "bytes": evil.stat().st_size,
            "sha256": hashlib.sha256(evil.read_bytes()).hexdigest(),
        }
        (path / "manifest.json").write_text(json.dumps(manifest))
        assert verify(path) == []
    kept = weights(broken_off)
    try:
        said = resume(broken_off, Line(), show=False).error
    except RequestError as error:
        said = str(error)
    assert not marker.exists() and name in said and "refused" in said, said
    assert same(weights(broken_off), kept)
    model = open_run(broken_off.path).load_model(Line())  # the weights alone are safe to use
    assert not marker.exists() and not model.training


def test_weights_that_do_not_fit_are_one_sentence(broken_off, capsys):
    class Wide(Line):
        def model(self, cfg):
            return torch.nn.Linear(9, 9)

    with pytest.raises(RequestError, match="do not fit the model of Wide") as caught:
        broken_off.load_model(Wide())
    assert "\n" not in str(caught.value)
    before = {path.name: tree_hashes(path) for path in checkpoints(broken_off.path / "checkpoints")}
    try:
        said = resume(broken_off, Wide(), show=False).error
    except RequestError as error:
        said = str(error)
    assert said and "\n" not in said
    assert {path.name: tree_hashes(path) for path in checkpoints(broken_off.path / "checkpoints")} == before


@pytest.mark.parametrize(
    "text",
    [
        "seed: [1\n",
        "data:\n\tbatch_size: 3\n",
        "seed: 1\nseed: 2\n",
        "colour: red\n",
        "seed: -4\n",
        "- 1\n",
        "\xff\xfe",
        "trainer:\n  max_epochs: 0\n",
    ],
)
def test_a_broken_config_of_a_run_is_one_sentence_and_changes_nothing(broken_off, text):
    (broken_off.path / "config.yaml").write_bytes(text.encode("latin-1"))
    before = tree_hashes(broken_off.path)
    for action in (
        lambda: resume(broken_off.path, Line(), show=False),
        lambda: predict(Line(), broken_off.path),
        lambda: open_run(broken_off.path).config,
        lambda: fit(Line(), compose(config=broken_off.path / "config.yaml"), show=False),
    ):
        with pytest.raises(RequestError) as caught:
            action()
        assert "\n" not in str(caught.value)
    run = open_run(broken_off.path)
    assert run.status == "failed" and run.plot() and list_runs("runs")  # what was learned can still be looked at
    assert tree_hashes(broken_off.path) == before


def test_an_events_file_full_of_something_else_is_survived(broken_off):
    lines = [b"\x00\xff", b"[]", b'{"type": 3}', b'{"type": "eval"}', b"null", b'{"type": "step", "step": null}', b""]
    (broken_off.path / "events.jsonl").write_bytes(b"\n".join(lines))
    run = open_run(broken_off.path)
    assert run.status == "unfinished" and run.best is None and run.metrics == {} and str(run)
    assert [found.path.name for found in list_runs("runs")] == [broken_off.path.name]


@pytest.mark.parametrize("missing", ["config.yaml", "events.jsonl"])
def test_a_folder_that_is_no_run_is_said_to_be_none(broken_off, missing, here):
    (broken_off.path / missing).unlink()
    before = tree_hashes(here)
    for path in (broken_off.path, here, here / "nowhere", broken_off.path / "summary.json"):
        for action in (open_run, resume, lambda path: predict(Line(), path)):
            with pytest.raises(RequestError):
                action(path)
    assert list_runs("runs") == [] and tree_hashes(here) == before


# one at a time, read-only, no space


def test_a_run_that_is_worked_on_is_not_resumed(broken_off):
    with locked(broken_off.path):
        assert is_locked(broken_off.path)
        with pytest.raises(RequestError, match="another process"):
            resume(broken_off, Line(), show=False)
    assert not is_locked(broken_off.path) and resume(broken_off, Line(), show=False).status == "completed"


def test_a_read_only_run_can_be_looked_at_and_is_resumed_in_a_copy(broken_off, read_only, here):
    read_only(broken_off.path)
    with pytest.raises(OSError):
        (broken_off.path / "proof").touch()
    run = open_run(broken_off.path)
    assert run.status == "failed" and run.best and run.plot() and run.load_model(Line())
    assert run.config.trainer.max_epochs == 3
    before = tree_hashes(run.path)
    on = resume(run, Line(), show=False)  # in a copy
    assert on.status == "completed" and on.path != run.path and tree_hashes(run.path) == before


@pytest.mark.parametrize("mode", ["inline", pytest.param("auto", marks=pytest.mark.slow)])
def test_predicting_with_a_read_only_run_works_or_says_why_not(read_only, here, mode):
    "On Kaggle a run that comes as an input is read-only, and predicting with it is what it was brought for."
    run = fit(Line(), inline("trainer.max_steps=2"), show=False)
    text = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(text.replace("mode: inline", f"mode: {mode}"))
    expected = predict(Line(), run).values if mode == "inline" else None
    read_only(run.path)
    try:
        found = predict(Line(), open_run(run.path), out="table.csv")
    except (RequestError, RuntimeError) as error:
        assert "\n" not in str(error) and run.path.name in str(error)
        assert "ead-only" in str(error) or "denied" in str(error)
    else:
        assert Path("table.csv").is_file() and (expected is None or numpy.array_equal(found.values, expected))


def test_a_folder_that_may_not_be_written_is_refused(read_only, here):
    (here / "theirs").mkdir()
    read_only(here / "theirs")
    with pytest.raises(RequestError, match="theirs.*run.dir"):
        fit(Line(), inline("run.dir=theirs"), show=False)
    assert list((here / "theirs").iterdir()) == []


def test_too_little_space_at_the_start_is_refused_and_leaves_nothing(small_disk):
    (small_disk / "precious").write_bytes(b"x" * 20 * 2**20)
    with pytest.raises(RequestError, match="MiB are free.*run.dir"):
        fit(Line(), inline(f"run.dir={small_disk}/runs"), show=False)
    assert not list((small_disk / "runs").rglob("*")) and (small_disk / "precious").stat().st_size == 20 * 2**20


@pytest.mark.parametrize("left", [200_000, 0])
@pytest.mark.parametrize("again", [True, False], ids=["room again later", "full to the end"])
def test_no_space_in_the_middle_costs_a_warning_and_keeps_the_older_checkpoint(small_disk, left, again, capsys):
    class Filling(Line):
        def during(self, number):
            if number == 7:
                (log,) = small_disk.rglob("events.jsonl")
                fill_last_page(log)
                fill(small_disk, left)
            if number == 12 and again:
                (small_disk / "filler").unlink()

    run = fit(
        Filling(),
        inline(
            f"run.dir={small_disk}/runs", "checkpoint.every_n_steps=1", "checkpoint.keep_last=2", "trainer.max_epochs=4"
        ),
        show=False,
    )
    whole = fit(Line(), inline("trainer.max_epochs=4"), show=False)
    newest, notes = find_checkpoint(run.path / "checkpoints")
    assert notes == [] and all(verify(path) == [] for path in checkpoints(run.path / "checkpoints"))
    assert not list((run.path / "checkpoints").glob(".*")), "remains of a save that failed"
    if again:
        assert run.status == "completed" and newest.name == "step-00000020" and same(weights(run), weights(whole))
        said = [e["text"] for e in run.events if e["type"] == "message"]
        assert any("not saved" in text and "Older checkpoints are kept" in text for text in said), said
        steps = columns(run.events, "step", "step")["step"]
        assert steps == list(range(1, 21))  # lines that had no room were written later
    else:
        assert newest.name == "step-00000006"
        assert open_run(run.path).config == run.config
        if left:
            said = [e["text"] for e in run.events if e["type"] == "message"]
            assert run.status == "completed" and any("not saved" in text for text in said), said
        else:  # the disk had no room for the word that it is done
            assert run.status == "unfinished" and report_outcome(run) != 0


def fill_last_page(log: Path) -> None:
    "Add a line up to the end of the log's last page: it could take the next lines, however full the disk is."
    text = json.dumps({"t": 0.0, "type": "message", "text": ""})
    room = -(log.stat().st_size + len(text) + 1) % 4096
    with open(log, "a") as file:
        file.write(text.replace('""', f'"{"x" * room}"') + "\n")
    assert log.stat().st_size % 4096 == 0


def fill(folder: Path, left: int) -> None:
    "Leave `left` bytes free on the disk of `folder`."
    free = shutil.disk_usage(folder).free
    with open(folder / "filler", "wb") as file:
        try:
            file.write(b"x" * max(0, free - left))
            if not left:
                while True:
                    file.write(b"x" * 4096), file.flush()
        except OSError as error:
            assert error.errno == 28
        finally:
            with contextlib.suppress(OSError):
                file.close()


def test_no_secret_of_the_environment_reaches_the_runs_folder(here, monkeypatch, capsys):
    secret = "sesame-4711"
    for name in ("WANDB_API_KEY", "HF_TOKEN", "KAGGLE_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, secret)
    run = fit(
        task("Line"),
        compose("trainer.max_steps=3", "trainer.accelerator=cpu", "trainer.devices=1", "+distributed.env.TORCH_MINE=7"),
    )
    assert run.status == "completed" and secret not in capsys.readouterr().out
    assert not [path for path in run.path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    with pytest.raises(RequestError, match="HF_TOKEN looks like a secret") as caught:
        compose(f"+distributed.env.HF_TOKEN={secret}")
    assert secret not in str(caught.value)


class Pressed(Submitting):
    "Sends signals to its own process, where it trains: before its first step, or `times` times in its fifth."

    def __init__(self, before=0, times=0):
        self.before, self.times = before, times

    def datasets(self, cfg):
        press(self.before)
        return super().datasets(cfg)

    def during(self, number):
        press(self.times if number == 5 else 0)


def press(times: int) -> None:
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_before_the_first_step_ends_at_once_in_this_process_too(capsys):
    before = signal.getsignal(signal.SIGINT)
    run = fit(Pressed(before=1), inline(), show=False)
    assert (
        run.status == "interrupted" and last_event(run.events, "end")["reason"] == "interrupted before the first step"
    )
    assert not checkpoints(run.path / "checkpoints") and not is_locked(run.path)
    assert signal.getsignal(signal.SIGINT) is before
    run = fit(Pressed(times=1), inline(), predict="made.csv", show=False)
    assert run.status == "interrupted" and Path("made.csv").is_file()  # one leaves time for the submission


class FailsLate(Submitting):
    "Fails in its fifth step, when there are checkpoints."

    def during(self, number):
        if number == 5:
            raise ValueError("the fifth")


def test_a_run_that_fails_late_leaves_a_submission_and_says_what_it_holds(capsys):
    run = fit(FailsLate(), inline("checkpoint.every_n_steps=1"), predict="made.csv", show=False)
    assert run.status == "failed" and run.submission.source == "predictions"
    assert run.submission.predicted == run.submission.samples > 0 and run.submission.file == str(
        Path("made.csv").absolute()
    )
    Path("made.csv").write_text("another's")
    assert run.submission is None
    with pytest.raises(RuntimeError, match="the fifth"):
        run.raise_for_status()


def test_a_second_interrupt_never_starts_predictions(monkeypatch, capsys):
    def launched(job, task, tick):
        assert job.kind.name != "predict"
        ended = launch(job, task, tick)
        press(2)
        return ended

    monkeypatch.setattr(actions, "launch", launched)
    run = fit(Submitting(), inline(), predict="made.csv", show=False)
    assert run.status == "completed" and read_record(run.path).source == "constant"  # the guess of before
    assert ": no predictions were made: interrupted a second time" in capsys.readouterr().err


def test_runs_that_lie_in_a_folder_predict_together(here):
    "Two seeds, found below their folder, by rank; the table has the mean, and the arrays lie in a folder of their own."
    made = [fit(Submitting(), inline(f"seed={seed}"), show=False) for seed in (1, 2)]
    alone = [predict(Submitting(), run).values for run in made]
    together = predict(Submitting(), runs=["runs"], out="mean.csv")
    numpy.testing.assert_allclose(together.values, sum(alone) / 2, rtol=1e-5)
    assert together.submission.is_whole and together.path.parent not in [run.path for run in made]
    weighted = predict(Submitting(), runs=made, how=[1, 3]).values
    numpy.testing.assert_allclose(weighted, (alone[0] + 3 * alone[1]) / 4, rtol=1e-5)
    for wrong in ({"runs": []}, {"runs": ["nowhere"]}, {"runs": made, "how": [1]}, {"runs": made, "how": "median"}):
        with pytest.raises(RequestError):
            predict(Submitting(), **wrong)
    for one in (None, made):
        with pytest.raises(RequestError, match=r"one run, or several as runs=\["):
            predict(Submitting(), one)
