"One forward pass for loss and metrics, batches of any form, names and types in predictions, autocast over a loss."

import zipfile
from collections import namedtuple
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from exact_tasks import Exact
from helpers import why_failed
from spectrakit.config.compose import compose
from spectrakit.data.batch_forms import collate_samples, default_targets, ids_of
from spectrakit.data.loaders import eval_batches, find_non_finite
from spectrakit.distributed.context import create_run_context
from spectrakit.jobs.prediction import predict_dataset, save_arrays
from spectrakit.prediction.prediction_arrays import submission_table, table_text
from spectrakit.runs.events import last_event
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.task.loss import Loss
from spectrakit.task.shared_forward import Recorder
from spectrakit.task.task import Task, provides
from spectrakit.train import evaluation
from spectrakit.train.evaluation import evaluate
from tasks import in_sanity_check

SAMPLES, BATCHES = 23, 6  # in batches of four
SMALL = "data.batch_size=4"


class Net(nn.Linear):
    "A linear model that counts its passes."

    passes, scale = 0, 1.0

    def forward(self, x):
        self.passes += 1
        return super().forward(x)[:, 0] * self.scale

    def embed(self, x):
        return x * 2


class Fit(Task):
    "Least squares with two metrics; `predict` may be given."

    def __init__(self, predict=None, loss=None):
        draw = torch.Generator().manual_seed(2)
        self.data = TensorDataset(torch.randn(SAMPLES, 3, generator=draw), torch.randn(SAMPLES, generator=draw))
        if predict:
            self.predict = predict
        if loss:
            self.loss = loss

    def datasets(self, cfg):
        return self.data, self.data

    def model(self, cfg):
        torch.manual_seed(0)
        return Net(3, 1)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def metrics(self, outputs, batch):
        return {"mae": ((outputs - batch[1]).abs().sum(), len(outputs))}

    def metrics_all(self, predictions, targets):
        return {"worst": (predictions - targets).abs().max()}


def scores(task, model=None):
    "(metrics, forward passes) of an evaluation."
    cfg = compose("data.micro_batch_size=4")
    model = model or task.model(cfg)
    before = model.passes
    return evaluate(task, model, eval_batches(task.data, cfg)), model.passes - before


def apart(model, batch):
    "A prediction that the recorder cannot give: other inputs."
    return model(batch[0].clone())


def test_an_evaluation_runs_the_model_once_for_loss_and_metrics():
    once, passes = scores(Fit())
    twice, more = scores(Fit(apart))
    assert (passes, more) == (BATCHES, 2 * BATCHES)
    assert once == twice  # to the last bit


def test_metrics_of_all_types_are_read_once_in_an_evaluation(monkeypatch):
    class Five(Fit):
        metrics_all = None

        def metrics(self, outputs, batch):
            errors, count = (outputs - batch[1]).abs(), torch.tensor(len(outputs))
            kinds = (torch.float16, torch.float32, torch.float64, torch.int32, torch.int64)
            return {f"of_{kind}": (errors.sum().to(kind), count) for kind in kinds}

    reads, plain = [], torch.Tensor.tolist
    for name in ("item", "cpu", "numpy", "__float__", "__int__", "__bool__"):  # what would wait for a device
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a batch was waited for"))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda values: (reads.append(values.numel()), plain(values))[1])
    metrics, passes = scores(Five())
    assert reads == [11 * BATCHES] and passes == BATCHES  # five metrics and the loss; its counts are plain numbers
    assert metrics["val_of_torch.float64"] == pytest.approx(metrics["val_of_torch.float32"])


@pytest.mark.parametrize("held_bytes, moves", [(64 * 2**20, []), (64, [3])])
def test_what_metrics_all_sees_is_moved_from_a_device_at_the_end_or_when_it_is_much(monkeypatch, held_bytes, moves):
    "Batches of four outputs and four targets, 16 bytes each: 32 a batch."
    plain, moved, batches = torch.Tensor.cpu, [], []

    class Reused(Fit):
        "Its model writes all outputs into one tensor, as CUDA graphs do."

        out = torch.zeros(4)

        def predict(self, model, batch):
            batches.append(len(batch[0]))
            return self.out[: len(batch[0])].copy_(model(batch[0]))

    expected = scores(Fit())[0]
    monkeypatch.setattr(evaluation, "_HELD_BYTES", held_bytes)
    monkeypatch.setattr(evaluation, "_on_accelerator", torch.is_tensor)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: (moved.append(len(batches)), plain(t))[1])
    batches.clear()
    found = scores(Reused())[0]
    assert found == expected
    assert sorted({n for n in moved if n < BATCHES}) == moves


def test_outputs_that_come_with_the_loss_are_those_of_the_metrics():
    def loss(model, batch):
        outputs = model(batch[0].clone())
        return Loss(nn.functional.mse_loss(outputs, batch[1]), outputs=outputs)

    assert scores(Fit(loss=loss)) == (scores(Fit())[0], BATCHES)


def flipped(model, batch):
    return (model(batch[0]) + model(batch[0].flip(0)).flip(0)) / 2


def scaled(model, batch):
    model.scale = 3.0
    try:
        return model(batch[0])
    finally:
        model.scale = 1.0


def changed(model, batch):
    "The inputs are other numbers in the same tensor, and afterwards what they were."
    batch[0].mul_(2)
    try:
        return model(batch[0])
    finally:
        batch[0].div_(2)


def by_method(model, batch):
    return model(model.embed(batch[0]))


def in_float64(model, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(batch[0]).float()


@pytest.mark.parametrize("predict", [flipped, scaled, changed, by_method, in_float64])
def test_whoever_predicts_otherwise_gets_what_the_model_itself_returns(predict):
    task = Fit(predict)
    found, _ = scores(task)
    model = task.model(None).eval()
    with torch.no_grad():
        parts = [
            (predict(model, (x, y)) - y).abs() for x, y in zip(*(t.split(4) for t in task.data.tensors), strict=True)
        ]
    assert found["val_worst"] == float(torch.cat(parts).max())


def test_outputs_that_the_loss_has_changed_are_not_given_again():
    def loss(model, batch):
        outputs = model(batch[0])
        value = nn.functional.mse_loss(outputs, batch[1])
        outputs.zero_()
        return value

    assert scores(Fit(loss=loss)) == (scores(Fit())[0], 2 * BATCHES)


def test_what_stands_in_for_a_model_behaves_as_it_does():
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU()).eval()
    recorder, x = Recorder(model), torch.ones(2, 3)
    with torch.no_grad():
        for look in (lambda m: m[0](x), lambda m: next(iter(m))(x), lambda m: m.get_submodule("0")(x)):
            with recorder.recording():
                model(x)
            stand_in = recorder.stand_in()
            assert isinstance(stand_in, nn.Module) and len(stand_in) == 2 and not stand_in.training
            assert torch.equal(look(stand_in), model[0](x))
    assert not model._forward_hooks


class Caching(Net):
    "Keeps a tensor that is made in its first pass, as rotary embeddings do."

    def forward(self, x):
        if not hasattr(self, "angles"):
            self.angles = torch.ones(3).cos()
        return super().forward(x * self.angles * self.weight[0])


def test_what_a_model_keeps_of_an_evaluation_can_be_trained_with(train):
    class Task(Fit):
        def model(self, cfg):
            return Caching(3, 1)

    run = train(Task(), "data.batch_size=4", "trainer.max_epochs=2")
    assert run.status == "completed", run.reason


def test_a_run_makes_no_pass_twice(train):
    class Whole(Fit):
        def model(self, cfg):
            self.made = super().model(cfg)
            return self.made

    once, twice = Whole(), Whole(apart)
    runs = [train(t, "data.batch_size=4", "trainer.max_epochs=5", name=f"{i}") for i, t in enumerate((once, twice))]
    assert all(run.status == "completed" for run in runs)
    assert last_event(runs[0].events, "eval")["metrics"] == last_event(runs[1].events, "eval")["metrics"]
    assert twice.made.passes - once.made.passes >= 5 * BATCHES  # one less for each batch of each evaluation


# training metrics


class Logged(Exact):
    def loss(self, model, batch):
        value = super().loss(model, batch)
        rows = len(batch[3])
        return Loss(value, logs={"rows": (batch[3].sum(), rows), "half": (value.detach() / 2 * rows, rows)})


def test_logs_of_losses_are_means_since_the_last_log_point(train):
    run = train(
        Logged(),
        "data.batch_size=4",
        "trainer.log_every_n_steps=3",
        "trainer.log_min_seconds=0",
        "trainer.max_epochs=1",
    )
    assert run.column("step", "train_rows") == [np.arange(12).mean(), np.arange(12, 23).mean()]
    halves = np.array(run.column("step", "train_half"))
    np.testing.assert_allclose(halves, np.array(run.column("step", "loss")) / 2)
    assert last_event(run.events, "eval")["metrics"]["val_rows"] == 11.0


def test_a_loss_without_logs_logs_none(train):
    run = train(Exact(), "data.batch_size=4", "trainer.max_epochs=1")
    assert not any(key.startswith("train_") for key in last_event(run.events, "step"))


# precision


def test_autocast_covers_the_whole_loss():
    seen = []

    class Contrast(Fit):
        def loss(self, model, batch):
            seen.append((model(batch[0])[:, None] @ torch.ones(1, 2)).dtype)  # outside of the model
            return super().loss(model, batch)

    cfg = compose("trainer.accelerator=cpu", "distributed.mixed_precision=bf16", "data.micro_batch_size=4")
    context = create_run_context(cfg, detect({"PATH": ""}, shell=""))
    assert context.mixed_precision == "bf16"
    task = Contrast()
    evaluate(task, context.prepare(task.model(cfg)), eval_batches(task.data, cfg), context)
    assert set(seen) == {torch.bfloat16}


# batches of any form


@dataclass(frozen=True)
class Item:
    flux: torch.Tensor
    star_id: str
    y: float


Pair = namedtuple("Pair", "x label")


def test_samples_of_any_form_become_a_batch():
    items = [Item(torch.ones(2), "a", 1.0), Item(torch.zeros(2), "b", 2.0)]
    batch = collate_samples(items)
    assert batch.flux.shape == (2, 2) and batch.star_id == ["a", "b"] and batch.y.dtype == torch.float64
    nested = collate_samples([{"in": Pair(np.ones(2), 3), "mask": None}] * 2)
    assert nested["in"].x.shape == (2, 2) and nested["in"].label.tolist() == [3, 3] and nested["mask"] is None
    assert default_targets(batch) is batch.y and ids_of(batch) == {"star_id": ["a", "b"]}
    assert find_non_finite(collate_samples([Item(torch.full((2,), np.nan), "a", 1.0)])).startswith("batch.flux holds 2")


@pytest.mark.parametrize("workers", [0, 1])
def test_ragged_samples_name_collate(workers):
    rows = [(torch.ones(n), n) for n in (3, 3, 5)]
    cfg = compose("data.micro_batch_size=3", f"dataloader.num_workers={workers}")
    with pytest.raises(
        RequestError, match=r"differ in shape: a sample\[0\] is \[3\] in one and \[5\].*`collate"
    ) as told:
        list(eval_batches(rows, cfg).epoch(0))
    assert "Traceback" not in str(told.value)


def predicted(task, dataset, model=None):
    cfg = compose("trainer.accelerator=cpu", "data.micro_batch_size=2")
    context = create_run_context(cfg, detect({"PATH": ""}, shell=""))
    return predict_dataset(task, (model or nn.Identity()).eval(), dataset, cfg, context)


@pytest.mark.slow
def test_names_pass_through_to_the_file_and_the_table(tmp_path):
    arrays = predicted(Task(), [(torch.ones(1) * i, f"image-{i}.png") for i in range(5)])
    save_arrays(tmp_path / "predictions.npz", arrays)
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as stored:
        assert stored["ids"].tolist() == [f"image-{i}.png" for i in range(5)] and set(stored) == {"ids", "predictions"}
    table = table_text(submission_table(Task(), arrays)).splitlines()
    assert table[:2] == ["id,prediction", "image-0.png,0.0"]


def test_fractions_are_stored_as_they_are_and_the_rest_is_compressed(tmp_path):
    arrays = {"predictions": np.linspace(0, 1, 3000, dtype="f4").reshape(-1, 3), "mask": np.zeros((50, 99), "u1")}
    arrays |= {"ids": np.array(["a", "bä"]), "none": np.zeros((0, 4))}
    save_arrays(tmp_path / "predictions.npz", arrays)
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as stored:
        assert list(stored) == list(arrays)
        for name, values in arrays.items():
            assert np.array_equal(stored[name], values) and stored[name].dtype == values.dtype, name
    with zipfile.ZipFile(tmp_path / "predictions.npz") as archive:
        small = {entry.filename: entry.compress_size < entry.file_size for entry in archive.infolist()}
    assert small == {"predictions.npy": False, "mask.npy": True, "ids.npy": True, "none.npy": False}


class FromDict(Task):
    def predict(self, model, batch):
        return batch["x"]


def test_the_parts_of_a_mapping_are_known_by_their_names():
    rows = [{"x": torch.ones(1) * i, "image_id": 7 + i, "label": i} for i in range(3)]
    arrays = predicted(FromDict(), rows)
    assert arrays["image_id"].tolist() == [7, 8, 9] and arrays["targets"].tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.int64, torch.float64, torch.bool, torch.uint8])
def test_numbers_keep_their_type(kind):
    arrays = predicted(Task(), TensorDataset(torch.ones(5, 2).to(kind), torch.arange(5)))
    assert torch.from_numpy(arrays["predictions"]).dtype == kind and arrays["targets"].dtype == np.int64
    half = predicted(Task(), TensorDataset(torch.ones(5, 2, dtype=torch.bfloat16)))
    assert half["predictions"].dtype == np.float32 and set(half) == {"predictions"}


class Ragged(Task):
    "As many numbers a sample as its first one says."

    def predict(self, model, batch):
        return [torch.arange(int(n)) * self.kind for n in batch[0][:, 0]]


@pytest.mark.parametrize(("kind", "blank"), [(1.5, np.nan), (1, -1)])
def test_predictions_of_any_length_are_kept_whole(kind, blank):
    task = Ragged()
    task.kind = kind
    arrays = predicted(task, TensorDataset(torch.tensor([[2.0], [3.0], [1.0]])))
    assert arrays["prediction_lengths"].tolist() == [2, 3, 1]
    np.testing.assert_array_equal(arrays["predictions"], [[0, kind, blank], [0, kind, 2 * kind], [0, blank, blank]])


def test_outputs_that_are_not_one_a_sample_are_refused_by_name():
    class Pairs(Task):
        def predict(self, model, batch):
            return model(batch[0]), None

    with pytest.raises(RequestError, match=r"Pairs.predict returned 'predictions' as tuple.*predict\(model, batch\)"):
        predicted(Pairs(), TensorDataset(torch.ones(4, 2)))


class Own(Fit):
    "Its targets stand first in the batch."

    def __init__(self):
        super().__init__()
        self.data = TensorDataset(*reversed(self.data.tensors))

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[1]), batch[0])

    def predict(self, model, batch):
        return model(batch[1])

    def metrics(self, outputs, batch):
        return {}

    def targets(self, batch):
        return batch[0]


def test_a_task_says_which_part_the_targets_are():
    assert scores(Own())[0]["val_worst"] == scores(Fit())[0]["val_worst"]


# values that are missing


class Masked(Exact):
    "Targets may be missing; with `skip` the loss leaves them out."

    def __init__(self, skip=True):
        super().__init__("weighted")
        self.y[3], self.skip = float("nan"), skip

    def loss(self, model, batch):
        x, y, *_ = batch
        there = ~y.isnan() if self.skip else torch.ones_like(y, dtype=torch.bool)
        return (model(x)[there] - y[there]).square().sum(), there.sum()


def test_missing_values_are_allowed_where_the_loss_leaves_them_out(train):
    why_failed(train(Masked(), SMALL, name="refused"), "allow_nan|Clean")
    run = train(Masked(), SMALL, "data.allow_nan=true", "trainer.max_epochs=1", name="allowed")
    assert run.status == "completed", run.reason
    why_failed(train(Masked(skip=False), SMALL, "data.allow_nan=true", name="spoiled"), "Ignore those values in `loss`")


# what a task has written


def test_methods_stand_in_the_class_with_their_contracts():
    for name in ("datasets", "model", "loss", "metrics", "metrics_all", "collate", "targets", "submission"):
        assert not provides(Task(), name) and getattr(Task, name).__doc__
    assert provides(Fit(), "metrics") and not provides(object(), "metrics") and not provides(Fit(), "predict")


class SometimesScored(Exact):
    "Its score is missing in one evaluation, as an AUC where there is one class alone; `scores`: of each evaluation."

    metric_modes: ClassVar[dict[str, str]] = {"score": "max"}

    def metrics_all(self, predictions, targets):
        if in_sanity_check():
            return {"score": 0.0}
        return {} if (score := self.scores.pop(0)) is None else {"score": score}


@pytest.mark.parametrize("average", [(), ("training.average=last:2",)])
def test_an_evaluation_without_the_monitored_metric_is_not_the_best(train, average):
    "val_loss, which falls, would be compared with the score."
    task = SometimesScored()
    task.scores = [0.1, 0.2, None, 0.15, None]
    words = ("checkpoint.monitor=val_score", "trainer.max_epochs=4", "data.batch_size=23", *average)
    run = train(task, *words)
    assert run.status == "completed", run.reason
    assert run.column("eval", "best")[:4] == [True, True, False, False]
    said = [e["text"] for e in run.events if e["type"] == "message" and "is not among" in e["text"]]
    assert said == ["checkpoint.monitor=val_score is not among val_loss; the evaluation at step 3 is not the best"]
