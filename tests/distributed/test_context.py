"One process and several learn the same, step by step, whatever does not divide; what two have saved one can load."

import json
import shutil

import numpy
import pytest
import torch

from rank_tasks import (
    Augmented,
    Curve,
    FailsAtTheEnd,
    Logged,
    Named,
    NanOnOneRank,
    Normed,
    NoRoom,
    Thawing,
    ThawingOwn,
    Weighted,
)
from spectrakit.api.actions import fit, predict
from spectrakit.checkpoint.store import find_checkpoint, load_weights, read_manifest, verify
from spectrakit.config.compose import compose
from spectrakit.data.loaders import eval_batches
from spectrakit.launch.job import Job
from spectrakit.launch.job_kind import TRAIN, kind_named
from spectrakit.launch.launcher import launch
from spectrakit.launch.request import new_request
from spectrakit.runs.events import columns, last_event, read_events
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.train.evaluation import evaluate
from spectrakit.view.figures import figures
from spectrakit.view.run_state import RunState, apply_event

pytestmark = pytest.mark.slow  # every test here starts processes

BASE = (
    "trainer.accelerator=cpu",
    "data.micro_batch_size=4",
    "scheduler.name=constant",
    "optimizer.lr=0.02",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
    "trainer.gradient_clip_val=0.5",
    "training.ema_decay=0.8",
    "checkpoint.every_n_steps=3",
    "checkpoint.max_share=1",  # a slow disk leaves none out
    "data.eval_batch_size=3",
)
ONE = ("launch.mode=inline", "accumulate_grad_batches=4")  # an effective batch of 16: windows of 16, 16 and 5 samples
TWO = ("trainer.devices=2", "accumulate_grad_batches=2")
TOLERANCE = 1e-5  # relative, of the loss of a step: sums are made in another order


def train(folder, task, *words, kind="train"):
    "The events of a run in `folder`."
    outcome = launch(
        Job(kind_named(kind), folder, new_request(compose(*BASE, *words), detect(environ={}))), task, lambda: None
    )
    assert outcome.status == "completed", outcome
    return read_events(folder / "events.jsonl")


def losses(events) -> dict[int, float]:
    "Loss by optimizer step."
    found = columns(events, "step", "step", "loss")
    return dict(zip(found["step"], found["loss"], strict=False))


def assert_equal_losses(some, reference):
    assert some and set(some) <= set(reference)
    for step, loss in some.items():
        assert loss == pytest.approx(reference[step], rel=TOLERANCE), step


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    "Twelve steps in one process: the reference."
    folder = tmp_path_factory.mktemp("alone")
    return train(folder, Curve(), *ONE, "trainer.max_steps=12"), folder


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    "The folders of runs of six steps, by how they were made."
    folder = tmp_path_factory.mktemp("halves")
    train(folder / "one", Curve(), *ONE, "trainer.max_steps=6")
    for strategy in ("ddp", "fsdp"):
        train(folder / strategy, Curve(), *TWO, f"distributed.strategy={strategy}", "trainer.max_steps=6")
    return folder


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (Thawing, "ddp"),
        pytest.param(Thawing, "fsdp", marks=pytest.mark.long),
        pytest.param(ThawingOwn, "ddp", marks=pytest.mark.long),
        (ThawingOwn, "fsdp"),
    ],
)
def test_layers_that_freeze_and_thaw_learn_on_two_ranks_what_they_learn_on_one(tmp_path, kind, strategy):
    words = ("trainer.max_epochs=4", "checkpoint.every_n_steps=null")
    one = train(tmp_path / "one", kind(), *ONE, *words)
    two = train(tmp_path / "two", kind(), *TWO, f"distributed.strategy={strategy}", *words)
    assert len(losses(two)) == 12
    assert_equal_losses(losses(two), losses(one))
    of_one, of_two = (load_weights(find_checkpoint(tmp_path / n / "checkpoints")[0]) for n in ("one", "two"))
    for name, average in of_one.items():  # moving averages, which what thaws has joined
        torch.testing.assert_close(of_two[name], average, rtol=1e-4, atol=1e-6)
    told = [e["text"] for e in two if e["type"] == "message" and "DDP was created again" in e["text"]]
    if strategy == "ddp":
        assert [text.split(":")[0] for text in told] == ["epoch 0", "epoch 1", "epoch 2"][kind is ThawingOwn :], told


def test_what_losses_log_is_added_up_over_ranks_with_uneven_shares(tmp_path):
    words = (
        "trainer.max_epochs=2",
        "checkpoint.enabled=false",
        "trainer.log_every_n_steps=3",
        "trainer.log_min_seconds=0",
    )  # once an epoch
    one, two = train(tmp_path / "one", Logged(), *ONE, *words), train(tmp_path / "two", Logged(), *TWO, *words)
    names = ("train_number", "train_late")
    for events in (one, two):
        found = columns(events, "step", *names)
        assert found["train_number"] == [sum(range(37)) / 37] * 2  # each sample once, also where a rank has fewer
        assert found["train_late"] == [35.5] * 2  # of the samples 35 and 36, which one rank alone may have seen
        evals = columns(events, "eval", "metrics")["metrics"]
        assert [row["val_number"] for row in evals] == [sum(range(37, 50)) / 13] * 2
    assert columns(one, "step", "train_batch")["train_batch"] == [37 / 10] * 2  # 4 + 4 + 2 micro batches of a process
    assert columns(two, "step", "train_batch")["train_batch"] == [37 / 10] * 2  # the borrowed ones left out


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_learn_what_one_process_learns(alone, halves, strategy):
    events, reference = read_events(halves / strategy / "events.jsonl"), alone[0]
    assert len(losses(events)) == 6
    assert_equal_losses(losses(events), losses(reference))
    start = last_event(events, "start")
    assert (start["world_size"], start["strategy"], start["backend"]) == (2, strategy, "gloo")
    assert start["effective_batch_size"] == last_event(reference, "start")["effective_batch_size"] == 16
    for mine, other in zip(
        columns(events, "eval", "metrics")["metrics"], columns(reference, "eval", "metrics")["metrics"], strict=False
    ):
        assert mine == pytest.approx(other, rel=1e-4) and set(mine) == {"val_loss", "val_mae", "val_last", "val_middle"}
    state = RunState()
    for event in events:
        apply_event(state, event)
    assert "rank 0" in figures(state) and "rank 1" in figures(state)
    assert [len(e["ranks"]) for e in events if e["type"] == "step"] == [2] * 6 and last_event(events, "step")["ranks"][
        1
    ]["memory_gib"] > 0


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_files_are_written_once(halves, strategy):
    folder = halves / strategy
    events = read_events(folder / "events.jsonl")
    assert [e["type"] for e in events].count("start") == [e["type"] for e in events].count("end") == 1
    assert len({e["step"] for e in events if e["type"] == "checkpoint"}) == [e["type"] for e in events].count(
        "checkpoint"
    )
    newest, notes = find_checkpoint(folder / "checkpoints")
    assert notes == [] and verify(newest) == [] and read_manifest(newest)["world_size"] == 2
    assert {"rank-00000.pt", "rank-00001.pt", "ema.safetensors"} <= set(read_manifest(newest)["files"])
    assert not [p for p in (folder / "checkpoints").iterdir() if p.name.startswith(".")]
    assert {p.name for p in (folder / "logs").iterdir()} >= {"rank-0.log", "rank-1.log"}
    one = load_weights(find_checkpoint(halves / "one" / "checkpoints")[0])
    assert {k: v.shape for k, v in load_weights(newest).items()} == {k: v.shape for k, v in one.items()}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("towards", ["one", "two"])
def test_saved_by_two_and_loaded_by_one_and_the_other_way_round(alone, halves, tmp_path, strategy, towards):
    folder = shutil.copytree(halves / (strategy if towards == "one" else "one"), tmp_path / "run")
    words = ONE if towards == "one" else (*TWO, f"distributed.strategy={strategy}")
    events = train(folder, Curve(), *words, "trainer.max_steps=12", kind="resume")
    assert last_event(events, "restart")["step"] == 6
    second_half = {step: loss for step, loss in losses(events).items() if step > 6}
    assert len(second_half) == 6
    assert_equal_losses(second_half, losses(alone[0]))
    for ema in (True, False):  # momentum, averages and counters came along, or these would differ
        mine, reference = (load_weights(find_checkpoint(f / "checkpoints")[0], ema=ema) for f in (folder, alone[1]))
        for name in reference:
            assert mine[name] == pytest.approx(reference[name], abs=2e-5), name


def test_metrics_over_uneven_shards_are_exactly_those_of_one_process(tmp_path, monkeypatch):
    "With a rate of zero, so that only the evaluation differs: 13 samples in batches of 3, on 1 and on 2 ranks."
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ("optimizer.lr=1e-30", "trainer.max_steps=2", "checkpoint.enabled=false")
    one, two = (
        train(tmp_path / name, Curve(), *how, *words)
        for name, how in (("one", ("accumulate_grad_batches=4",)), ("two", TWO))
    )
    assert last_event(one, "eval")["metrics"] == last_event(two, "eval")["metrics"]


@pytest.mark.parametrize(
    "task, words",
    [
        (Weighted(), ()),
        (Augmented(), ("dataloader.num_workers=1",)),
        (
            Curve(),
            (
                "distributed.static_graph=true",
                "distributed.bucket_cap_mb=1",
                "distributed.gradient_as_bucket_view=false",
                "data.drop_last=true",
            ),
        ),
        (
            Curve(),
            (
                "distributed.find_unused_parameters=true",
                "distributed.sync_batchnorm=true",
                "data.micro_batch_size=9",
                "accumulate_grad_batches=2",
            ),
        ),
    ],
    ids=["weighted", "augmented by loader workers", "static graph", "one window larger than the data"],
)
def test_other_ways_to_learn_are_the_same_on_two_ranks(tmp_path, task, words):
    one = train(
        tmp_path / "one",
        task,
        *ONE,
        "trainer.max_steps=4",
        *words,
        *(["accumulate_grad_batches=4"] if "accumulate_grad_batches=2" in words else []),
    )
    two = train(tmp_path / "two", task, *TWO, "trainer.max_steps=4", *words)
    assert len(losses(two)) == 4
    assert_equal_losses(losses(two), losses(one))


def test_a_nan_on_one_rank_ends_all_ranks_together(tmp_path):
    outcome = launch(
        Job(TRAIN, tmp_path / "run", new_request(compose(*BASE, *TWO, "trainer.max_epochs=3"), detect(environ={}))),
        NanOnOneRank(),
        lambda: None,
    )
    assert (
        outcome.status == "failed"
        and "on rank" in outcome.reason
        and "not finite" in outcome.reason
        and "clean the data" in outcome.reason
    )
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert last_event(events, "end")["status"] == "failed" and outcome.launch["restarts"] == 0
    newest = find_checkpoint(tmp_path / "run" / "checkpoints")[0]
    assert newest is None or verify(newest) == []


def test_fit_and_predict_use_both_ranks(tmp_path):
    words = [
        *BASE,
        "accumulate_grad_batches=2",
        "trainer.max_epochs=1",
        f"run.dir={tmp_path}",
        "tracking.names=[csv,tensorboard]",
    ]
    run = fit(Curve(), compose(*words, "trainer.devices=2"), show=False)
    assert run.status == "completed", run.error
    both = predict(Curve(), run, out=tmp_path / "two.csv")
    assert both.targets.tolist() == list(range(37, 50))  # every sample once, in its order
    one = predict(Curve(), fit(Curve(), compose(*words, "launch.mode=inline", "trainer.devices=2"), show=False))
    assert numpy.allclose(both.values, one.values, atol=1e-4)
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["launch"] == {"launcher": "notebook_launcher", "world_size": 2, "restarts": 0, "fallback": None}
    writers = {file.name.split(".")[-2] for file in (run.path / "trackers").rglob("events.out.tfevents*")}
    assert len(writers) == 1  # process ids


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_what_was_evaluated_is_what_was_saved(tmp_path, strategy):
    "Batch norm: each rank has seen other samples, and the checkpoint holds the statistics of rank 0."
    words = [
        *BASE,
        "accumulate_grad_batches=2",
        "trainer.max_epochs=2",
        "training.ema_decay=null",
        f"run.dir={tmp_path}",
    ]
    run = fit(Normed(), compose(*words, "trainer.devices=2", f"distributed.strategy={strategy}"), show=False)
    assert run.status == "completed", run.error
    config = compose(*words)
    found = evaluate(Normed(), run.load_model(), eval_batches(Normed().datasets(config)[1], config))
    assert found == pytest.approx(run.metrics, rel=1e-5)


@pytest.mark.long
def test_a_task_sees_its_own_module_and_the_variables_that_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # what is exported would hold
    words = (
        "+distributed.env.TORCH_MINE=7",
        "+distributed.env.OMP_NUM_THREADS=2",
        "trainer.max_steps=3",
        "checkpoint.enabled=false",
    )
    two = train(tmp_path / "two", Named(), *TWO, *words)
    one = train(tmp_path / "one", Named(), "accumulate_grad_batches=4", *words)
    assert_equal_losses(losses(two), losses(one))


def test_ranks_do_not_part_where_nothing_can_be_saved(tmp_path):
    run = tmp_path / "run"
    words = (*BASE, *TWO, "trainer.max_steps=7", "launch.max_restarts=0", "launch.hang_floor_s=5")
    outcome = launch(
        Job(kind_named("train"), run, new_request(compose(*words), detect(environ={}))), NoRoom(run), lambda: None
    )
    assert outcome.status == "failed" and "leaves no checkpoint" in outcome.reason
    events = read_events(run / "events.jsonl")
    assert [e["text"] for e in events if e["type"] == "message" and "not saved" in e["text"]]
    assert max(losses(events)) == 7


def test_a_last_evaluation_that_fails_on_one_rank_costs_no_checkpoint(tmp_path):
    folder, asked = tmp_path / "run", []

    def stop_after_a_while():
        steps = [e["step"] for e in read_events(folder / "events.jsonl") if e["type"] == "step"]
        if steps and steps[-1] >= 4 and not asked:
            asked.append((folder / "STOP").touch())

    config = compose(
        *BASE,
        *TWO,
        "trainer.max_epochs=40",
        "checkpoint.every_n_steps=1000",
        "checkpoint.every_n_epochs=null",
        "trainer.check_val_every_n_epoch=100",
    )
    outcome = launch(
        Job(TRAIN, folder, new_request(config, detect(environ={}))), FailsAtTheEnd(folder), stop_after_a_while
    )
    assert (outcome.status, outcome.reason) == ("failed", "rank 1: ArithmeticError: at the end")
    assert verify(find_checkpoint(folder / "checkpoints")[0]) == []


def test_another_effective_batch_is_refused_on_resume(halves, tmp_path):
    folder = shutil.copytree(halves / "one", tmp_path / "run")
    with pytest.raises(RequestError, match="effective batch of 16 samples, and would now have 8"):
        train(folder, Curve(), "launch.mode=inline", "accumulate_grad_batches=2", "trainer.max_steps=12", kind="resume")
