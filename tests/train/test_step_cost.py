"What a step may cost beside forward, backward and update, in counts that are the same on every machine."

import contextlib
import itertools
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from helpers import only_run, run_cli
from spectrakit.config.compose import compose
from spectrakit.data.loaders import MicroBatch
from spectrakit.distributed.context import Gathering, RunContext, create_run_context
from spectrakit.runs.events import EventLog
from spectrakit.system.platforms.detect import detect
from spectrakit.task.loss import Loss
from spectrakit.task.task import Task
from spectrakit.train.loop import train_loop
from spectrakit.train.parts.logging import Logging
from spectrakit.train.parts_table import make_parts
from spectrakit.train.start.setup import make_learner, prepare
from spectrakit.train.state import Execution
from spectrakit.watchdog.time_budget import Budget, TimeLimit


class Squares(Task):
    "A regression of 64 samples with batch norm, if asked for; `form` says what its loss returns."

    def __init__(self, form: str = "mean", norm: bool = False):
        draw = torch.Generator().manual_seed(5)
        self.x, self.form, self.norm = torch.randn(64, 3, generator=draw), form, norm

    def datasets(self, cfg):
        return TensorDataset(self.x, self.x[:, :1]), None

    def model(self, cfg):
        torch.manual_seed(3)
        layers = [nn.Linear(3, 5), *([nn.BatchNorm1d(5)] if self.norm else []), nn.Tanh(), nn.Linear(5, 1)]
        return nn.Sequential(*layers)

    def loss(self, model, batch):
        errors = (model(batch[0]) - batch[1]) ** 2
        return errors.mean() if self.form == "mean" else (errors.sum(), len(errors))


class Counted(TorchDispatchMode):
    "Counts the operations of torch in this block, by name."

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


SETTINGS = (
    "data.batch_size=8",
    "trainer.log_every_n_steps=1000",
    "trainer.deterministic=false",
    "checkpoint.enabled=false",
    "optimizer.name=adamw",
)


@pytest.fixture
def per_step(train):
    "A function: the operations of torch in an optimizer step of a task, by name, start and log points left out."

    number = itertools.count()

    def count(task, *settings):
        found = []
        for steps in (3, 7):  # within one epoch
            with Counted() as counted:
                run = train(task(), *SETTINGS, f"trainer.max_steps={steps}", *settings, name=f"run-{next(number)}")
            assert run.status == "completed", run.reason
            found.append(counted.calls)
        return Counter({name: (n - found[0][name]) / 4 for name, n in found[1].items() if n != found[0][name]})

    return count


def more(ours: Counter, bare: Counter) -> float:
    return sum(ours.values()) - sum(bare.values())


def test_what_a_guard_may_add_to_a_step(per_step):
    "nan_policy=skip adds one pass over all gradients and its answer; a sum by its weight one division, and back."
    bare = per_step(Squares)
    skip = per_step(Squares, "training.nan_policy=skip")
    assert skip["aten._local_scalar_dense.default"] == 2  # the loss, and whether the gradients are finite
    assert more(skip, bare) <= 3, skip - bare
    weighted = per_step(lambda: Squares("sum and count"))
    assert more(weighted, bare) <= 1, weighted - bare
    norms = per_step(lambda: Squares(norm=True))
    kept = per_step(lambda: Squares(norm=True), "training.nan_policy=skip")
    assert more(kept, norms) <= 4, kept - norms  # with one copy of all buffers


@dataclass(frozen=True)
class Pair(RunContext):
    "Rank 0 of two, the other of which says the same; `happened` notes what is exchanged, and when it is waited for."

    happened: list = field(default_factory=list)

    def gathering_numbers(self, numbers: list[float]) -> Gathering:
        self.happened.append("begin")
        rows = [torch.tensor(numbers, dtype=torch.float64)] * 2
        return Gathering(rows, SimpleNamespace(wait=lambda: self.happened.append("read")))

    def gather(self, value) -> list:
        return [value, value]

    gather_on_main = gather

    def broadcast(self, value):
        return value

    def reduce_tensor(self, tensor):
        return tensor * 2


class Noted(Squares):
    def loss(self, model, batch):
        self.happened.append("step")
        return super().loss(model, batch)


def test_ranks_wait_for_a_log_point_when_the_next_step_is_done(train):
    "Where the epoch ends, or something else is due, they wait at once."
    alone = create_run_context(compose("trainer.accelerator=cpu"), detect({"PATH": ""}, shell=""))
    pair, task = Pair(alone.accelerator, "no", {}, 0, 2), Noted()
    task.happened = pair.happened
    settings = (
        "trainer.log_every_n_steps=2",
        "trainer.log_min_seconds=0",
        "data.batch_size=8",
        "trainer.max_epochs=1",
        "checkpoint.enabled=false",
    )
    run = train(task, *settings, context=pair)  # 4 steps of two ranks' batches
    assert run.status == "completed", run.reason
    assert run.column("step", "step") == [2, 4]
    assert "step step begin step read step begin read" in " ".join(pair.happened)


LOGGED = ("data.batch_size=8", "trainer.max_epochs=1", "checkpoint.enabled=false")  # 8 steps


def test_fast_steps_are_logged_less_often_and_none_is_lost(train):
    "How long a step takes is known after the second one; after that, 10 days are longer than the run."
    often = train(Squares(), *LOGGED, name="often")
    rarely = train(Squares(), *LOGGED, "trainer.log_min_seconds=864000", name="rarely")
    assert rarely.column("step", "step") == [1, 2, 8]
    losses, means = often.column("step", "loss"), rarely.column("step", "loss")
    assert means == pytest.approx([losses[0], losses[1], sum(losses[2:]) / 6])


def test_a_slow_step_is_logged_though_the_next_log_point_is_far(train):
    "At the first step the clock is looked at, and a nanosecond is over."
    words = (*LOGGED, "trainer.log_every_n_steps=1000")
    assert train(Squares(), *words, name="by-count").column("step", "step") == [8]
    found = train(Squares(), *words, "trainer.log_max_seconds=1e-9", name="by-time").column("step", "step")
    assert found[0] == 1 and found[-1] == 8
    found = train(Squares(), *words, "trainer.log_max_seconds=null", name="never").column("step", "step")
    assert found == [8]


OWN_TASK = """
import sys
from pathlib import Path
import torch
from spectrakit import Task

class Own(Task):
    def datasets(self, cfg):
        return torch.utils.data.TensorDataset(torch.ones(64, 1)), None

    def test_dataset(self, cfg):
        return torch.utils.data.TensorDataset(torch.ones(4, 1))

    def model(self, cfg):
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch):
        return model(batch[0]).mean()

    def predict(self, model, batch):
        seen = torch.are_deterministic_algorithms_enabled(), "torch._inductor" in sys.modules
        Path(__file__).with_name("seen.txt").write_text(str(seen))
        return model(batch[0])
"""


@pytest.mark.slow
def test_a_deterministic_run_imports_no_compiler_of_its_own(tmp_path):
    "torch imports it where an optimizer is made; a prediction needs none."
    (tmp_path / "own.py").write_text(OWN_TASK)
    settings = ("trainer.deterministic=true", "trainer.max_steps=2", "trainer.accelerator=cpu", "trainer.devices=1")
    done = run_cli(tmp_path, "train", "own.py:Own", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_cli(tmp_path, "predict", "own.py:Own", only_run(tmp_path), fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "seen.txt").read_text() == "(True, False)"  # deterministic, without the compiler


class OnMeta(RunContext):
    "A device that computes nothing and holds no values, so that whatever reads one fails; to the loop it is a GPU."

    device = torch.device("meta")


class OnMetaInFp16(OnMeta):
    scaler = torch.amp.GradScaler("meta", growth_interval=5)


class Fused(torch.optim.SGD):
    "What torch's fused optimizers do on a GPU, where they read on the device whether an update is to be left out."

    _step_supports_amp_scaling = True

    def __init__(self, params, lr):
        super().__init__(params, lr)
        for group in self.param_groups:
            group["fused"] = True

    @torch.no_grad()
    def step(self, closure=None):
        left_out = getattr(self, "found_inf", None)
        for group in self.param_groups:
            for q in group["params"]:
                change = q.grad * -group["lr"]
                q.add_(change if left_out is None else torch.where(left_out > 0, 0.0, change))


class Enough(Exception):
    pass


class MetaTask(Squares):
    "Its batches, of `parts` micro batches, have no values; after 22 losses it has seen enough."

    losses, parts = 0, 1

    def optimizer(self, model, cfg):
        return Fused(model.parameters(), cfg.optimizer.lr)

    def loss(self, model, batch):
        self.losses += 1
        if self.losses > 22:
            raise Enough
        loss = (model(batch) ** 2).mean()
        total = (model(batch) ** 2).sum(), torch.ones((), device="meta")
        logs = {"size": (loss, 1)}
        return Loss(loss, logs=logs) if self.form == "mean" else Loss(*total, logs=logs)

    def epoch(self, epoch, first_step=0):
        for _ in range(first_step, 8):
            for part in range(self.parts):
                batch = torch.empty(8 // self.parts, 3, device="meta")
                yield MicroBatch(batch, len(batch), 8, part == self.parts - 1)


class Unfused(MetaTask):
    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), cfg.optimizer.lr)


@pytest.fixture
def meta_run(tmp_path, monkeypatch):
    """A function: trains a `MetaTask` until it has seen enough, and returns the state.

    Values of log points never arrive; there is one at the end of an epoch.
    """

    def wait():
        raise RuntimeError("a wait for the device")

    event = SimpleNamespace(query=lambda: False, synchronize=wait)
    monkeypatch.setattr("spectrakit.train.evaluation.to_host", lambda tensor: (tensor, event))

    def begin(task, *settings, device=OnMeta):
        words = ("trainer.accelerator=cpu", "data.batch_size=8", "trainer.log_every_n_steps=1000")
        words += ("trainer.log_max_seconds=null", "trainer.max_epochs=9", "checkpoint.enabled=false")
        config = compose(*words, "trainer.gradient_clip_val=1.0", "training.ema_decay=0.9", *settings)
        context = create_run_context(config, detect({"PATH": ""}, shell=""))
        with contextlib.closing(EventLog(tmp_path / "events.jsonl")) as log:
            execution = Execution(context, tmp_path, Budget(TimeLimit(None, 0.0, "none")))
            s = prepare(Squares(task.form), config, execution, log)
            s.task, s.data.train, s.context = task, task, device(context.accelerator, "no", {})
            s.learner = make_learner(task, config, s.context, task.model(config).to("meta"), steps=72)
            s.parts = make_parts(s)
            with pytest.raises(Enough):
                train_loop(s)
        return s

    return begin


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("form", ["mean", "sum"])
@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("device", [OnMeta, OnMetaInFp16])
def test_a_step_on_a_device_waits_for_nothing_between_two_log_points(meta_run, parts, form, policy, device):
    """On a device without values each read of one is an error, as each would be a wait for a GPU.

    Gradients are clipped and averages kept in all of them.
    """
    task = MetaTask(form)
    task.parts = parts
    s = meta_run(task, f"training.nan_policy={policy}", device=device)
    assert s.progress.step == 22 // parts and s.record.interval.loss.is_meta
    logging = next(part for part in s.parts if isinstance(part, Logging))
    logging.start()
    with pytest.raises((RuntimeError, NotImplementedError)):
        logging.advance(every=True)  # which does read it


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("device", [OnMeta, OnMetaInFp16])
def test_log_points_on_a_device_wait_for_nothing(meta_run, policy, device):
    "As long as their values have not arrived, nothing reads them, and no log point is lost."
    often = ("trainer.log_every_n_steps=2", "trainer.log_min_seconds=0", f"training.nan_policy={policy}")
    s = meta_run(MetaTask("mean"), *often, device=device)
    closed = next(part for part in s.parts if isinstance(part, Logging)).closed
    assert [log.point.step for log in closed] == list(range(2, 23, 2))


def test_an_optimizer_that_is_not_fused_has_to_be_asked_where_steps_are_skipped(meta_run):
    "So what the test above looks for is found, where it is."
    assert meta_run(Unfused()).progress.step == 22
    with pytest.raises((RuntimeError, NotImplementedError)):
        meta_run(Unfused(), "training.nan_policy=skip")
