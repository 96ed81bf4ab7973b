"Cross-validation: every sample is predicted once by a model that has not seen it, across ranks and sessions."

import json
import shutil
import signal
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
import spectrakit.tuning.cross_validation
from helpers import run_cli, start_cli, task, tree_hashes, wait_for
from spectrakit.api.run import RunFailed
from spectrakit.config.compose import compose, override
from spectrakit.runs import resume_plan
from spectrakit.runs.events import last_event
from spectrakit.runs.run_dir import read_environment
from spectrakit.system.errors import RequestError
from spectrakit.train.start.setup import read_datasets
from spectrakit.watchdog.time_budget import NoTimeLeft
from tasks import Line, in_sanity_check

pytestmark = pytest.mark.slow
SHORT = ("trainer.accelerator=cpu", "data.batch_size=4", "trainer.max_epochs=2", "accumulate_grad_batches=1")
INLINE = (*SHORT, "launch.mode=inline")
HERE = ("run.dir=runs",)


class Numbered(Line):
    "Each input is its own number, and so is each prediction: what is where can be seen."

    def datasets(self, cfg):
        rows = torch.arange(23.0)
        return TensorDataset(rows[:, None].repeat(1, 3), rows), None

    def test_dataset(self, cfg):
        return TensorDataset(torch.zeros(4, 3))

    def predict(self, model, batch):
        return batch[0][:, 0]

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

    def loss(self, model, batch):
        second = [path for path in Path("runs").glob("*/fold-1/*") if path.is_dir()]
        if self.stops and second and model.training:
            (second[0] / "STOP").touch()
            time.sleep(1.0)  # a thread looks for it four times a second
        return super().loss(model, batch)

    metrics = None
    stops = False


def stopping():
    "The same, which asks for a stop in its second fold."
    made = Numbered()
    made.stops = True
    return made


def test_every_sample_is_held_out_once_and_lies_at_its_place(here):
    cv = sk.cross_validate(Numbered(), compose(*INLINE, "run.dir=runs"), folds=4, show=False)
    assert cv.status == "completed" and len(cv.trials) == 4
    assert cv.values.tolist() == cv.targets.tolist() == list(range(23))
    for fold in range(4):
        seen, out = read_datasets(Numbered(), cv.runs[fold].config)
        assert sorted([*seen[:][1].tolist(), *out[:][1].tolist()]) == list(range(23))
        assert out[:][1].tolist() == cv.folds.held_out(fold).tolist()
    saved = np.load(cv.path / "out_of_fold.npz")
    assert saved["predictions"].tolist() == list(range(23)) and len(cv.test["predictions"]) == 4
    facts = json.loads((cv.path / "cv.json").read_text())
    assert facts["scores"] == list(cv.scores) and facts["folds_sha256"] == cv.folds.sha256


def test_two_ranks_hold_out_what_one_does(here):
    (here / "numbered.py").write_text(
        "import sys\n" + f"sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]\n"
        "from test_cross_validation import Numbered\n"
    )
    words = (*SHORT, "trainer.devices=2", "data.batch_size=2", "folds.count=2")
    two = sk.cross_validate(f"{here / 'numbered.py'}:Numbered", compose(*words), show=False)
    one = sk.cross_validate(Numbered(), compose(*INLINE, "folds.count=2", f"run.dir={here / 'one'}"), show=False)
    assert two.status == "completed" and two.folds.sha256 == one.folds.sha256
    assert two.values.tolist() == list(range(23)) and two.mean == pytest.approx(one.mean, rel=1e-4)


@pytest.mark.long
def test_side_by_side_they_bring_what_they_bring_one_after_another(here):
    words = (*SHORT, "launch.threads=1")
    both = sk.cross_validate(task("Line"), compose(*words, "run.dir=two", "folds.parallel=2"), folds=3, show=False)
    alone = sk.cross_validate(task("Line"), compose(*words, "run.dir=one"), folds=3, show=False)
    assert both.status == alone.status == "completed" and both.folds.sha256 == alone.folds.sha256
    assert both.scores == alone.scores and both.score == alone.score
    assert np.array_equal(both.values, alone.values) and "2 at a time" in (both.path / "cv.json").read_text()


def test_side_by_side_all_save_when_they_are_stopped(here):
    words = (*SHORT, "folds.parallel=2", "folds.count=4", "trainer.max_epochs=400", "task.slow_s=0.02")
    process = start_cli(here, "cross-validate", task("Planned"), *words, "run.dir=runs")
    saved = lambda: {path.parents[2].name for path in here.glob("runs/*/fold-*/*/checkpoints/step*")}  # noqa: E731  # used in this test alone
    wait_for(lambda: len(saved()) == 2, "a checkpoint of each")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    runs = [sk.open_run(path.parent) for path in sorted(here.glob("runs/*/fold-*/*/events.jsonl"))]
    assert [run.status for run in runs] == ["interrupted"] * 2 and "stopping" in out


class Shown(Numbered):
    "Is looked at twice: as it is, and with 2 added to each input."

    def views(self, batch):
        return [batch, [batch[0] + 2, *batch[1:]]]


def test_what_is_predicted_is_the_mean_over_the_views(here, capsys):
    cv = sk.cross_validate(Shown(), compose(*INLINE, "run.dir=runs"), folds=2)
    assert "the score is the mean of evaluations, which use one view per sample" in capsys.readouterr().out
    assert cv.values.tolist() == [row + 1 for row in range(23)] and cv.test["predictions"].tolist() == [1.0] * 4
    once = sk.cross_validate(Shown(), compose(*INLINE, "run.dir=runs", "data.average_views=false"), folds=2, show=False)
    assert once.values.tolist() == list(range(23))


@pytest.mark.long
def test_processes_that_do_not_come_about_are_tried_once(here):
    (here / "late").touch()
    words = (*SHORT, "trainer.devices=2", "launch.mode=torchrun", "run.dir=runs")
    cv = sk.cross_validate(task("Late"), compose(*words), folds=2, show=False)
    first, second = (read_environment(run.path)["launch"] for run in cv.runs)
    assert cv.status == "completed" and first["fallback"].startswith("rank 1 was killed") and not second["fallback"]
    assert json.loads((cv.path / "cv.json").read_text())["fallback"] == first["fallback"]


def test_what_was_stopped_goes_on_and_what_is_done_stays_done(here, capsys):
    first = sk.cross_validate(stopping(), compose(*INLINE, *HERE), folds=3)
    assert first.status == "interrupted" and [t.status for t in first.trials] == ["completed", "interrupted"]
    assert first.score is None and np.isnan(first.values).sum() == 23 - 8
    told = capsys.readouterr().out
    assert "fold 0: completed, val_loss=" in told and "2 of 3 folds left" in told
    whole = sk.cross_validate(Numbered(), compose(*INLINE, *HERE), folds=3, show=False)
    with pytest.raises(RequestError, match=r"started with other settings \(optimizer.lr\)"):
        sk.cross_validate(
            Numbered(), compose(*INLINE, *HERE, "optimizer.lr=0.5"), folds=3, resume=first.path, show=False
        )
    elsewhere = compose(
        *INLINE, f"run.dir={here / 'next'}"
    )  # the first session's output is attached: it stays as it is
    before = tree_hashes(first.path)
    moved = sk.cross_validate(Numbered(), elsewhere, folds=3, resume=first.path, show=False)
    assert moved.status == "completed" and moved.path.parent == here / "next" and tree_hashes(first.path) == before
    assert moved.scores == whole.scores and moved.values.tolist() == whole.values.tolist()
    again = sk.cross_validate(Numbered(), compose(*INLINE, *HERE), folds=3, resume=first.path, show=False)
    assert again.path == first.path and again.status == "completed"
    assert again.runs[0].path == first.runs[0].path and again.runs[1].path == first.runs[1].path
    assert again.scores == whole.scores and again.values.tolist() == whole.values.tolist()


class Broken(Line):
    def groups(self, dataset, cfg):
        return [1, 2]


class Sloped(Line):
    "Predictions that differ from seed to seed."

    metrics = None


def test_each_fold_is_trained_with_several_seeds_on_one_division(here):
    words = (*INLINE, *HERE, "folds.count=2", "seed=4")
    both = sk.cross_validate(Sloped(), compose(*words, "folds.seeds=2"), show=False)
    assert [run.path.parent.name for run in both.runs] == ["fold-0", "fold-0-seed-1", "fold-1", "fold-1-seed-1"]
    assert [run.config.seed for run in both.runs] == [4, 5, 4, 5] and both.status == "completed"
    one = sk.cross_validate(Sloped(), compose(*words), show=False)
    assert one.folds.sha256 == both.folds.sha256 and not np.allclose(one.values, both.values)
    single = [np.load(run.path / "out_of_fold.npz")["predictions"] for run in both.runs]
    rows = both.folds.held_out(0)
    assert np.allclose(both.values[rows], (single[0] + single[1]) / 2)
    assert np.allclose(one.values[rows], single[0])


class Learned(Line):
    "Classes, whose names the task keeps in `datasets`; its metric is in torch's words, as those of an evaluation are."

    def datasets(self, cfg):
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
        self.classes = [0, 1]
        return TensorDataset(x, (x.sum(1) > 0).long()), None

    def model(self, cfg):
        return nn.Linear(3, 2)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def predict(self, model, batch):
        return model(batch[0]).softmax(1)

    metrics = None
    metric_modes = {"hits": "max"}

    def metrics_all(self, predictions, targets):
        hits = torch.nn.functional.one_hot(targets, len(self.classes)).mul(predictions.round()).sum(1)
        return {"hits": hits.mean()}


class Counted(Learned):
    "Its metric is a mean over samples; the mean of several models is another model."

    metrics_all = None

    def metrics(self, outputs, batch):
        return {"hits": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}


@pytest.mark.parametrize("monitor", ["val_hits", "val_loss"])
def test_the_mean_over_seeds_and_repeats_has_a_score_of_its_own(here, monitor):
    words = (*INLINE, *HERE, f"checkpoint.monitor={monitor}", "optimizer.lr=0.05", "folds.count=2")
    cv = sk.cross_validate(Counted(), compose(*words, "folds.seeds=2", "folds.repeats=2"), show=False)
    targets, odds = cv.targets.astype(int), cv.values
    right = (odds.argmax(1) == targets).mean() if monitor == "val_hits" else -np.log(odds[range(40), targets]).mean()
    assert cv.score == pytest.approx(right, rel=1e-4) and len(cv.single_scores) == 4
    first = {run.path.parent.name: np.load(run.path / "out_of_fold.npz")["predictions"] for run in cv.runs}
    rows = [cv.folds.held_out(fold) for fold in (0, 1)]
    alone = np.empty_like(odds)
    for fold in (0, 1):
        alone[rows[fold]] = first[f"fold-{fold}-seed-1"]
    own = (alone.argmax(1) == targets).mean() if monitor == "val_hits" else -np.log(alone[range(40), targets]).mean()
    assert cv.single_scores[1] == pytest.approx(own, rel=1e-4)  # the second seed of the first division
    facts = json.loads((cv.path / "cv.json").read_text())
    assert facts["score"] == cv.score and tuple(facts["single_scores"]) == cv.single_scores
    opened = sk.open_cross_validation(cv.path)
    assert opened.score == cv.score and opened.single_scores == cv.single_scores and str(opened) == str(cv)
    shown = run_cli(here, "show", cv.path)
    assert shown.returncode == 0 and shown.stdout.startswith(str(cv)), shown.stdout + shown.stderr
    assert "all, averaged" in str(cv) and "by the mean of 4 models not trained on it" in cv._repr_html_()


def test_a_score_that_does_not_follow_from_predictions_is_said_to_be_unknown(here, capsys):
    class Other(Counted):
        "Predicts what its loss cannot be computed from."

        def predict(self, model, batch):
            return model(batch[0]).softmax(1).round()

    words = compose(*INLINE, *HERE, "folds.seeds=2")
    cv = sk.cross_validate(Other(), words, folds=2, show=False)
    assert cv.status == "completed" and cv.score is None and len(cv.single_scores) == 2
    why = "val_loss does not follow from what `predict` returns"
    assert why in capsys.readouterr().err and why in cv.score_missing and why in str(cv)
    assert sk.open_cross_validation(cv.path).score_missing == cv.score_missing


class Named(Counted):
    "Predicts a mapping, which its metric takes and its loss does not."

    metric_modes: ClassVar = {"far": "min"}

    def predict(self, model, batch):
        odds = model(batch[0]).softmax(1)
        return {"odds": odds, "sure": odds.amax(1)}

    def metrics(self, outputs, batch):
        hits = outputs["odds"].argmax(1) == batch[1]
        return {"hits": (hits.sum(), len(hits)), "far": ((outputs["sure"] - hits.float()).abs().sum(), len(hits))}


@pytest.mark.parametrize("monitor, words", [("val_hits", "folds.seeds=2"), ("val_far", "folds.repeats=2")])
def test_a_metric_of_mappings_has_a_score_of_their_mean(here, monitor, words):
    cv = sk.cross_validate(
        Named(), compose(*INLINE, *HERE, f"checkpoint.monitor={monitor}", words), folds=2, show=False
    )
    hits = cv.values["odds"].argmax(1) == cv.targets
    right = hits.mean() if monitor == "val_hits" else np.abs(cv.values["sure"] - hits).mean()
    assert cv.score == pytest.approx(right, rel=1e-4) and not cv.score_missing and len(cv.single_scores) == 2
    lost = sk.cross_validate(
        Named(), compose(*INLINE, *HERE, "checkpoint.monitor=val_loss", words), folds=2, show=False
    )
    assert (
        lost.score is None and "val_loss does not follow" in lost.score_missing and "metrics_all" in lost.score_missing
    )


def test_what_cannot_be_divided_is_a_sentence(here):
    for made, words, parts in (
        (Numbered(), ("folds.count=24",), ["folds.count=24", "23 samples"]),
        (Numbered(), ("folds.kind=group",), ["folds.kind=group needs `groups(dataset, cfg)`"]),
        (Broken(), ("folds.kind=group",), ["There are 2 groups for"]),
        (Numbered(), ("folds.count=1",), ["folds.count=1"]),
        (Numbered(), ("folds.kind=stratify",), ["stratified"]),
    ):
        with pytest.raises(RequestError) as refused:
            sk.cross_validate(made, compose(*INLINE, *words), show=False)
        assert all(part in str(refused.value) for part in parts), refused.value
    cv = sk.cross_validate(Numbered(), compose(*INLINE), folds=2, show=False)
    with pytest.raises(RequestError, match="is not a cross-validation"):
        sk.cross_validate(Numbered(), compose(*INLINE), folds=2, resume=cv.runs[0].path, show=False)
    with pytest.raises(RequestError, match="is a cross-validation, not a search"):
        sk.search(Numbered(), compose(*INLINE), "optimizer.lr=0.1,0.2", resume=cv.path, show=False)
    for spoiled in (cv.runs[1].path, cv.path):
        (spoiled / "out_of_fold.npz").write_bytes(b"PK")
    with pytest.raises(RequestError, match="out_of_fold.npz of .* is broken"):
        sk.blend(cv, cv.path)
    again = sk.cross_validate(Numbered(), compose(*INLINE), folds=2, resume=cv.path, show=False)
    assert again.values.tolist() == cv.values.tolist()  # predicted anew


def test_a_task_that_divides_by_itself_is_told_the_fold(here):
    cv = sk.cross_validate(
        "digits", compose(*INLINE, "data.batch_size=64", "limits.max_train_batches=2"), folds=2, show=False
    )
    assert cv.status == "completed" and cv.folds is None
    assert [run.config.task["fold"] for run in cv.runs] == [0, 1] and len(cv.values) == len(cv.targets)
    again = override(cv.runs[0].config, "run.dir=again")
    second = sk.run_single_trial(again, fold=1, task="digits", predict=False)  # not a part of what fold 0 trains with
    assert second.value == cv.trials[1].value and second.run.config.folds.fold is None


def test_in_a_shell(here):
    done = run_cli(here, "cross-validate", task("Line"), *INLINE, "folds.count=2", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["status"] == "completed" and len(facts["scores"]) == 2 and facts["mean"] > 0
    again = run_cli(here, "cross-validate", task("Line"), *INLINE, "folds.count=2", "--resume", "auto")
    assert again.returncode == 0 and f"{facts['mean']:.5g}" in again.stdout and "fold 0: completed" in again.stdout, (
        again.stdout
    )


class Untested(Numbered):
    "The same without test data."

    test_dataset = None


def test_a_wrong_request_is_refused_before_anything_is_trained(here):
    with pytest.raises(RequestError, match="no `test_dataset"):
        sk.cross_validate(Untested(), compose(*INLINE, *HERE), folds=2, predict="submission.csv", show=False)
    assert not list(here.glob("runs/*"))


def test_by_time_the_first_samples_are_held_out_by_no_fold(here):
    cv = sk.cross_validate(Untested(), compose(*INLINE, *HERE, "folds.kind=time"), folds=3, show=False)
    assert np.isnan(cv.values[:8]).all() and "all but 8 samples, which no fold holds out" in str(cv)


class Handed(Numbered):
    "A task whose predictions say which fold made them, and which notes what there is to hand in when a fold begins."

    def sample_submission(self, cfg):
        return {"id": [3, 2, 1, 0], "y": [7, 7, 7, 7]}

    def test_dataset(self, cfg):
        self.ids = [0, 1, 2, 3]
        return TensorDataset(torch.full((4, 3), float(cfg.folds.fold or 0)))

    def submission(self, predictions):
        return {"id": self.ids, "y": predictions}

    def datasets(self, cfg):
        with Path("seen.txt").open("a") as file:
            file.write(f"{cfg.folds.fold} {Path('submission.csv').read_text().splitlines()[1]}\n")
        return super().datasets(cfg)


def test_the_submission_is_there_before_the_first_fold_and_grows_with_each(here):
    cv = sk.cross_validate(Handed(), compose(*INLINE, *HERE), folds=3, predict="submission.csv", show=False)
    seen = dict(line.split(" ") for line in Path("seen.txt").read_text().splitlines())
    assert seen == {"0": "3,7", "1": "3,0", "2": "3,0.5"}
    assert Path("submission.csv").read_text() == "id,y\n3,1\n2,1\n1,1\n0,1\n"
    state = json.loads((cv.path / "submission.json").read_text())
    assert cv.status == "completed" and state["notes"][0] == "the mean of 3 of 3 runs"
    assert cv.submission.predicted == cv.submission.samples == 4
    Path("submission.csv").unlink()
    assert cv.submission is None
    shutil.rmtree("runs")
    stopped = Handed()
    stopped.stops = True
    cut = sk.cross_validate(stopped, compose(*INLINE), folds=3, predict="submission.csv", show=False)
    assert cut.status == "interrupted" and Path("submission.csv").read_text().splitlines()[1] == "3,0"
    assert cut.submission.predicted == 4


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_fold_that_finds_no_time_left_costs_the_others_nothing(here, monkeypatch, capsys, at_once):
    "Between the question whether a fold fits and its start some time goes by."
    train = spectrakit.tuning.cross_validation.run_single_trial

    def late(config, **more):
        if config.folds.fold:
            raise NoTimeLeft("There is no time to train.")
        return train(config, **more)

    monkeypatch.setattr(spectrakit.tuning.cross_validation, "run_single_trial", late)
    words = (*(INLINE if at_once == 1 else SHORT), *HERE, f"folds.parallel={at_once}")
    cv = sk.cross_validate(Handed(), compose(*words), folds=3, predict="submission.csv")
    assert cv.status == "out_of_time" and [trial.status for trial in cv.trials] == ["completed"]
    assert Path("submission.csv").read_text().splitlines()[1] == "3,0"
    assert "fold 1 was not started. There is no time to train." in capsys.readouterr().out


def test_without_any_time_there_is_the_sample_or_an_error(here, monkeypatch):
    def late(config, **_):
        raise NoTimeLeft("There is no time to train.")

    monkeypatch.setattr(spectrakit.tuning.cross_validation, "run_single_trial", late)
    words = compose(*INLINE, *HERE)
    cv = sk.cross_validate(Handed(), words, folds=3, predict="submission.csv", show=False)
    assert cv.status == "out_of_time" and Path("submission.csv").read_text().splitlines()[1] == "3,7"
    with pytest.raises(NoTimeLeft, match="no time to train"):
        sk.cross_validate(Handed(), words, folds=3, show=False)


def test_a_table_that_the_task_cannot_write_leaves_the_sample(here, capsys):
    class Wrong(Handed):
        def submission(self, predictions):
            return {"name": self.ids, "y": predictions}

    cv = sk.cross_validate(Wrong(), compose(*INLINE, *HERE), folds=2, predict="submission.csv", show=False)
    assert cv.status == "completed" and Path("submission.csv").read_text().splitlines()[1] == "3,7"
    assert "submission.csv was not updated: " in capsys.readouterr().err


class Weighed(Numbered):
    "Each sample weighs what its number says, so that folds of one size have other weights."

    def loss(self, model, batch):
        errors = (model(batch[0]) - batch[1]).square()
        return (batch[1] * errors).sum(), batch[1].sum()

    def predict(self, model, batch):
        return model(batch[0])


def test_the_loss_of_all_samples_counts_what_they_weigh(here):
    cv = sk.cross_validate(Weighed(), compose(*INLINE, *HERE), folds=2, show=False)
    assert cv.score == pytest.approx(np.average(np.square(cv.values - cv.targets), weights=cv.targets), rel=1e-5)
    assert sk.open_cross_validation(cv.path).trials[0].weight == cv.targets[cv.folds.held_out(0)].sum()


@pytest.mark.parametrize("kind", ["auto", "time"])
def test_the_metric_of_all_samples_is_asked_for_as_in_an_evaluation(here, kind):
    words = (*INLINE, *HERE, "checkpoint.monitor=val_hits", f"folds.kind={kind}")
    cv = sk.cross_validate(Learned(), compose(*words), folds=3, show=False)  # targets with NaN where kind is time
    rows = np.isfinite(cv.values).all(axis=1)
    assert cv.score == pytest.approx((cv.values[rows].argmax(1) == cv.targets[rows]).mean())
    assert rows.all() == (kind == "auto")


def test_a_metric_that_fails_at_the_end_costs_nothing(here, capsys):
    class Strange(Learned):
        def metrics_all(self, predictions, targets):
            if len(predictions) > 20:
                raise ValueError("too many")
            return {"hits": 0.5}

    words = compose(*INLINE, *HERE, "checkpoint.monitor=val_hits", "checkpoint.mode=max")
    cv = sk.cross_validate(Strange(), words, folds=3, show=False)
    assert cv.status == "completed" and cv.score is None and np.isfinite(cv.values).all()
    assert "Strange.metrics_all raised ValueError: too many" in capsys.readouterr().err


class Labels(Learned):
    "Predicts labels, of which there is no mean; they are noise, so that each fold learns something else."

    def datasets(self, cfg):
        drawn = torch.Generator().manual_seed(4)
        return TensorDataset(torch.randn(40, 3, generator=drawn), torch.randint(0, 2, (40,), generator=drawn)), None

    def predict(self, model, batch):
        return model(batch[0]).argmax(1)

    def test_dataset(self, cfg):
        return TensorDataset(torch.randn(50, 3, generator=torch.Generator().manual_seed(3)))

    metrics_all = None


def test_of_labels_the_test_data_get_what_most_folds_say(here):
    words = (*INLINE, *HERE, "folds.repeats=2", "optimizer.lr=0.1", "folds.kind=kfold")
    cv = sk.cross_validate(Labels(), compose(*words), folds=3, show=False)
    each = np.stack([np.load(run.path / "predictions.npz")["predictions"] for run in cv.runs])
    assert len(np.unique(each.sum(0))) > 2  # the folds differ
    assert (cv.test["predictions"] == (each.sum(0) > 3)).all() and cv.test["predictions"].dtype.kind == "i"
    repeats = [np.zeros(40), np.zeros(40)]
    for fold, run in enumerate(cv.runs):
        repeats[fold // 3][cv.folds.held_out(fold)] = np.load(run.path / "out_of_fold.npz")["predictions"]
    assert (cv.values == np.mean(repeats, axis=0)).all()  # nothing is cut off to a whole number
    assert "the repeats predict different integers" in cv.score_missing


class BreaksLate(Line):
    def loss(self, model, batch):
        if not in_sanity_check():
            raise ValueError("this loss is broken")
        return super().loss(model, batch)


def test_why_a_fold_failed_stands_in_the_table(here):
    cv = sk.cross_validate(BreaksLate(), compose(*INLINE, *HERE), folds=3, show=False)
    assert cv.status == "failed" and "this loss is broken" in repr(cv) and "this loss is broken" in cv._repr_html_()
    with pytest.raises(RunFailed, match="this loss is broken"):
        cv.raise_for_status()
    with pytest.raises(RunFailed, match="this loss is broken"):
        sk.cross_validate(BreaksLate(), compose(*INLINE, *HERE), folds=3, show=False, on_error="raise")
    with pytest.raises(RequestError, match="on_error='stop' is not known"):
        sk.cross_validate(BreaksLate(), compose(*INLINE, *HERE), folds=3, show=False, on_error="stop")


@pytest.mark.long
def test_a_second_stop_ends_folds_side_by_side_at_once(here):
    words = (*SHORT, "folds.parallel=2", "folds.count=4", "trainer.max_epochs=400", "run.dir=runs")
    process = start_cli(here, "cross-validate", task("Line"), *words, env={"TINY_HOLD": f"9:{here}"})

    def asked():
        return len(list(here.glob("runs/*/fold-*/*/STOP"))) == 2

    try:
        wait_for(lambda: len(list(here.glob("runs/*/fold-*/*/checkpoints/step*"))) > 1, "a checkpoint of each")
        wait_for((here / "held").exists, "a step that does not end")
        process.send_signal(signal.SIGINT)
        wait_for(asked, "both to be asked")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        (here / "go").touch()
        process.kill()
    assert process.returncode == 130 and "Traceback" not in err, out + err
    runs = [sk.open_run(path.parent) for path in here.glob("runs/*/fold-*/*/events.jsonl")]
    reasons = [last_event(run.events, "end")["reason"] for run in runs]
    assert len(reasons) == 2 and all("interrupted a second time" in reason for reason in reasons)
    (path,) = (here / "runs").iterdir()
    assert json.loads((path / "cv.json").read_text())["status"] == "interrupted"


def test_predictions_that_are_cut_are_made_the_next_time(here, monkeypatch):
    from spectrakit.launch.launcher import Outcome
    from spectrakit.tuning import trial

    launch = trial.launch

    def cut(job, *rest):
        return Outcome("interrupted", "interrupted") if job.kind.name == "predict" else launch(job, *rest)

    monkeypatch.setattr(trial, "launch", cut)
    words = compose(*INLINE, *HERE)
    first = sk.cross_validate(Numbered(), words, folds=2, show=False)
    assert first.status == "interrupted" and first.runs[0].status == "completed" and len(first.runs) == 1
    monkeypatch.setattr(trial, "launch", launch)
    again = sk.cross_validate(Numbered(), words, folds=2, show=False, resume="auto")
    assert again.status == "completed" and again.path == first.path and again.runs[0].path == first.runs[0].path


def test_auto_finds_what_an_earlier_session_has_left_in_the_inputs(here, monkeypatch):

    words = compose(*INLINE, "run.dir=runs")
    cut = sk.cross_validate(stopping(), words, folds=3, show=False)
    assert cut.status == "interrupted"
    (here / "input" / "my-output").mkdir(parents=True)
    (here / "runs").rename(here / "input" / "my-output" / "runs")
    before = tree_hashes(here / "input")
    monkeypatch.setattr(resume_plan, "input_folders", lambda *_: [("my-output", here / "input" / "my-output")])
    done = sk.cross_validate(Numbered(), words, folds=3, show=False, resume="auto")
    assert done.status == "completed" and done.path.parent == Path("runs")
    assert done.runs[0].path.name == cut.runs[0].path.name and tree_hashes(here / "input") == before


@pytest.mark.parametrize(
    ("name", "said"), [("settings.yaml", "is not text in UTF-8"), ("folds.npz", "folds.npz holds no folds")]
)
def test_a_spoiled_folder_is_left_alone_by_auto_and_refused_by_name(here, name, said, capsys):
    words = compose(*INLINE, *HERE, "trainer.max_epochs=1")
    first = sk.cross_validate(Numbered(), words, folds=2, show=False)
    (first.path / name).write_bytes((first.path / name).read_bytes()[:40] + b"\xff\xfe")
    before = tree_hashes(first.path)
    with pytest.raises(RequestError, match=said):
        sk.cross_validate(Numbered(), words, folds=2, show=False, resume=first.path)
    again = sk.cross_validate(Numbered(), words, folds=2, show=False, resume="auto")
    assert again.status == "completed" and again.path != first.path and tree_hashes(first.path) == before
    assert f"{first.path.name} is not used" in (err := capsys.readouterr().err) and said in err


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of MLflow's own tables
def test_folds_are_children_of_one_run_in_mlflow(here):
    from mlflow import MlflowClient

    words = (*SHORT, *HERE, "tracking.names=[csv,mlflow,tensorboard]", "task.name=line")
    cv = sk.cross_validate(task("Line"), compose(*words, "tracking.mode=offline"), folds=2, show=False)
    assert cv.status == "completed"
    client = MlflowClient(f"sqlite:///{cv.path / 'trackers' / 'mlflow' / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'spectrakit'")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run is not parent]
    assert parent.info.run_name == cv.path.name and {run.info.status for run in runs} == {"FINISHED"}
    assert sorted(run.info.run_name for run in children) == ["fold-0", "fold-1"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children} == {parent.info.run_id}
    assert all(list((run.path / "trackers" / "tensorboard").rglob("events.out*")) for run in cv.runs)
