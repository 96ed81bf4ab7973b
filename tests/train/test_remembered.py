"What a resumed run knows again: counts of parts, rollbacks, and random numbers of epochs, of the task and of failures."

import random

import numpy
import pytest
import torch
from test_two_sets import ScheduleFree
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit.train.loop as loop
from exact_tasks import CountedScaler, scaled
from in_process import trainer_in
from spectrakit.checkpoint.store import checkpoints, read_pointer
from spectrakit.data.samples import global_generators
from spectrakit.runs.events import last_event
from spectrakit.task.task import Task
from spectrakit.train.part import Parts

WORDS = (
    "data.shuffle=true",
    "data.micro_batch_size=8",
    "trainer.max_epochs=3",  # of six steps
    "optimizer.name=adamw",
    "optimizer.lr=0.01",
    "checkpoint.every_n_steps=4",
)


class Points(Task):
    "A classifier with dropout and batch norm. `stop` is set in the pass before the end of step `cut`."

    def __init__(self, cut=None):
        self.cut, self.stop = cut, False

    def datasets(self, cfg):
        x = torch.randn(62, 3, generator=torch.Generator().manual_seed(1))
        whole = TensorDataset(x, (x.sum(1) > 0).long())
        return torch.utils.data.Subset(whole, range(46)), torch.utils.data.Subset(whole, range(46, 62))

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    def noise(self):
        return 0.0

    def loss(self, model, batch, moment=None):
        self.stop = self.stop or (moment is not None and self.cut is not None and moment.step >= self.cut - 1)
        noise = self.noise() if model.training else 0.0
        self.before(model, moment)
        return F.cross_entropy(model(batch[0] + noise), batch[1])

    def before(self, model, moment):
        "Called in each pass after its random numbers."

    def targets(self, batch):
        return batch[1]


def same(one, other):
    return one.status == other.status == "completed" and torch.equal(one.weights(), other.weights())


def cut_and_resumed(train, kind, cut, *words):
    "The run of a task that is stopped after step `cut`, and goes on with another object."
    task = kind(cut)
    part = train(task, *WORDS, *words, name="cut", stop=lambda: task.stop)
    assert part.status == "interrupted" and part.events[-1]["step"] == cut, part.reason
    return train(kind(), *WORDS, *words, name="cut", resume=True)


def drawn():
    return 0.1 * (random.gauss(0, 1) + float(numpy.random.randn()) + float(torch.randn(())))


class Shifts(Points):
    "Each epoch has a shift of its own, which `on_epoch` draws, and fewer weights after the first."

    shift = 0.0

    def on_epoch(self, model, moment):
        self.shift = drawn()
        if moment.epoch == 1:
            with torch.no_grad():
                model[0].weight.mul_(0.5)

    def noise(self):
        return self.shift


class Own(Points):
    "Its noise comes from generators that the task holds."

    def __init__(self, cut=None):
        super().__init__(cut)
        self.made = {"a": numpy.random.default_rng(3), "b": random.Random(3)}
        self.torchs, self.old = torch.Generator().manual_seed(3), numpy.random.RandomState(3)

    def noise(self):
        made = self.made["a"].normal() + self.made["b"].gauss(0, 1) + self.old.randn()
        return 0.1 * (float(made) + float(torch.randn((), generator=self.torchs)))


@pytest.mark.parametrize(
    ("kind", "cut", "words"),
    [
        (Shifts, 8, ()),
        (Shifts, 12, ()),
        (Own, 9, ("trainer.val_check_interval=0.5",)),
        (Own, 6, ("training.mixup=0.2",)),
    ],
)
def test_random_numbers_of_epochs_and_of_the_task_are_those_of_a_run_in_one_go(train, kind, cut, words):
    assert same(cut_and_resumed(train, kind, cut, *words), train(kind(), *WORDS, *words, name="whole"))


class Everywhere(Own):
    "It draws in evaluations too; each epoch has a shift, which `on_epoch` draws. `spoiled` are steps with NaN, once."

    shift, spoiled = 0.0, ()

    def optimizer(self, model, cfg):
        return ScheduleFree(model.parameters(), 0.05)

    def on_epoch(self, model, moment):
        self.shift = super().noise()

    def loss(self, model, batch, moment=None):
        self.stop = self.stop or (moment is not None and self.cut is not None and moment.step >= self.cut - 1)
        loss = F.cross_entropy(model(batch[0] + super().noise() + self.shift), batch[1])
        if self.spoiled and model.training and moment is not None and moment.step == self.spoiled[0]:
            del self.spoiled[0]
            return loss * float("nan")
        return loss


@pytest.mark.parametrize("cut", [3, 6, 7, 8, 16])
def test_generators_of_the_task_in_epochs_evaluations_and_rollbacks(train, cut):
    def spoiled():
        return type("Spoiled", (Everywhere,), {"spoiled": [7, 12]})

    words = ("training.nan_policy=rollback", "training.ema_decay=0.9", "checkpoint.every_n_steps=1")
    words = (*words, "trainer.check_val_every_n_steps=5", "scheduler.name=constant")
    whole = train(spoiled()(), *WORDS, *words, name="whole")
    assert [e["step"] for e in whole.events if e["type"] == "nan"] == [7, 12]
    assert same(cut_and_resumed(train, spoiled(), cut, *words), whole)


def test_evaluations_move_no_generator_of_the_task(train):
    every = "trainer.check_val_every_n_steps={}".format
    one, other = (train(Everywhere(), *WORDS, every(n), "checkpoint.every_n_steps=7", name=str(n)) for n in (1, 6))
    assert same(one, other)


class Fails(Own):
    "In step 10 the first pass fails, after its random numbers were drawn."

    error: list = []

    def noise(self):
        return drawn() + super().noise()

    def before(self, model, moment):
        if moment is not None and moment.step == 9 and self.error:
            raise self.error.pop()


def test_a_pass_that_fails_takes_no_random_numbers_from_the_next(train):
    class Broken(Fails):
        error = [ValueError("odd")]

    whole, ended = train(Fails(), *WORDS, name="whole"), train(Broken(), *WORDS)
    assert ended.status == "failed" and ended.events[-1]["step"] == 9
    assert same(train(Fails(), *WORDS, resume=True), whole)


def test_a_step_that_runs_out_of_memory_repeats_its_random_numbers(tmp_path):
    made = {}

    class Full(Fails):
        def before(self, model, moment):
            if moment is not None and moment.step == 9:
                made.setdefault(len(made), [generator.state() for generator in global_generators().values()])
            super().before(model, moment)

    class Broken(Full):
        error = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")]

    trained = []
    for kind in (Full, Broken):
        (tmp_path / kind.__name__).mkdir()
        trained.append(trainer_in(tmp_path / kind.__name__)(kind(), *WORDS, "trainer.max_steps=10"))
    assert [run.status for run in trained] == ["completed"] * 2
    whole, broken, repeated = (plain(made[number]) for number in (0, 1, 2))
    assert whole == broken == repeated


class Spoiled(Points):
    "The loss of some steps is NaN, once in all runs with this class or always."

    bad: frozenset = frozenset()
    always, killed = False, 0
    fired: set = set()

    def loss(self, model, batch, moment=None):
        loss, step = super().loss(model, batch, moment), moment.step if moment is not None and model.training else 0
        if step == self.killed and step and self.fired:
            raise KeyboardInterrupt  # as after a kill nothing is saved
        if step not in self.bad or (step in self.fired and not self.always):
            return loss
        self.fired.add(step)
        return loss * float("nan")


def test_a_run_that_is_killed_after_its_rollback_remembers_it(train):
    class Killed(Spoiled):
        bad, fired, killed = frozenset({7}), set(), 6

    class Later(Spoiled):
        bad, always = frozenset({7}), True

    words = (*WORDS, "training.nan_policy=rollback", "training.max_rollbacks=2", "scheduler.name=constant")
    with pytest.raises(KeyboardInterrupt):
        train(Killed(), *words)
    rest = train(Later(), *words, resume=True)
    assert [e["lr"] for e in rest.events if e["type"] == "step" and e["step"] == 7] == [0.01, 0.005, 0.0025]
    assert rest.status == "failed" and "rolled back 2 times" in rest.reason


@pytest.mark.parametrize("cut", [5, 7, 13, 14])
@pytest.mark.parametrize("words", [("checkpoint.keep_last=1",), ("training.average=best:2", "training.ema_decay=0.9")])
def test_a_rollback_after_a_stop_returns_to_the_checkpoint_of_a_run_in_one_go(train, cut, words):
    def spoiled():
        return type("Once", (Spoiled,), {"bad": frozenset({7, 14}), "fired": set()})

    words = ("training.nan_policy=rollback", "scheduler.name=constant", "trainer.check_val_every_n_steps=50", *words)
    whole = train(spoiled()(), *WORDS, *words, name="whole")
    assert [e["step"] for e in whole.events if e["type"] == "restart"] == [6, 12]  # ends of epochs
    rest = cut_and_resumed(train, spoiled(), cut, *words)
    assert same(rest, whole)
    left = [[path.name for path in checkpoints(run.folder / "checkpoints")] for run in (rest, whole)]
    assert left[0] == left[1]


def test_a_rollback_without_a_regular_checkpoint_returns_to_the_one_of_a_stop(train):
    class Once(Spoiled):
        bad, fired = frozenset({3}), set()

    words = ("training.nan_policy=rollback", "scheduler.name=constant")
    rest = cut_and_resumed(train, Once, 2, *words)
    assert rest.status == "completed" and [e["step"] for e in rest.events if e["type"] == "restart"] == [2, 2]


def test_skipped_updates_are_counted_over_a_resume(train):
    class Always(Spoiled):
        bad, always = frozenset(range(1, 99)), True

    rest = cut_and_resumed(train, Always, 30, "training.nan_policy=skip", "trainer.max_epochs=9")
    assert rest.status == "failed" and "The loss became nan at optimizer step 52" in rest.reason


def test_an_evaluation_that_a_stop_put_off_counts_for_averages_and_the_best(train):
    words = ("training.average=best:2", "accumulate_grad_batches=2", "checkpoint.every_n_steps=3", "optimizer.lr=0.001")
    whole = train(Points(), *WORDS, *words, name="whole")  # three steps an epoch
    rest = cut_and_resumed(train, Points, 6, *words)
    assert same(rest, whole)
    said = [[e["text"] for e in run.events if e["type"] == "message"][-1] for run in (rest, whole)]
    best = [read_pointer(run.folder / "checkpoints", "BEST") for run in (rest, whole)]
    assert best[0] == best[1] and said[0] == said[1], (best, said)


# what a run in one go and a resumed one need not share, with the reasons
FREE = {
    "s": "the train state",
    "collected": "bound methods",
    "modes": "modules",
    "look": "a clock",
    "looked_at": "a clock",
    "budget_at": "a clock",
    "told_at": "a clock",
    "step_s": "a clock",
    "last": "a clock",
    "cost_s": "a clock",
    "waited_s": "a clock",
    "tries": "counts steps of this process, as the other ranks do",
    "retries": "of this process's allocator",
    "trackers": "files",
    "scaler": "compared by its own state",
    "workers": "compared by its own state",
}


def plain(value):
    "A value with tensors as lists; of other objects their names."
    if torch.is_tensor(value):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if key not in FREE}
    if isinstance(value, (list, tuple, set)):
        return [plain(each) for each in value]
    if hasattr(value, "__dict__") and not callable(value):
        return {type(value).__name__: plain({k: v for k, v in vars(value).items() if k != "module"})}
    return value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__


@pytest.fixture
def ended(monkeypatch):
    "The attributes of all parts, and their states, at the end of each run."
    found, real = [], loop.end_run

    def noted(s, *args):
        parts: Parts = s.parts
        found.append({f"{type(p).__name__}.{n}": plain(v) for p in parts for n, v in vars(p).items() if n not in FREE})
        found[-1] |= {"state": plain(s.state_dict()["parts"]), "own": plain(s.rank_state_dict())}
        return real(s, *args)

    monkeypatch.setattr(loop, "end_run", noted)
    return found


SKIPS = ("training.nan_policy=skip", "training.ema_decay=0.9", "training.ema_buffers=true", "training.average=best:2")
SETS = {
    "skip": SKIPS,
    "rollback": ("training.nan_policy=rollback", "training.mixup=0.2", "training.oom_recovery=true"),
    "rounds": (
        "trainer.strategy.name=diloco",
        "diloco.max_steps=4",
        "diloco.fragments=2",
        "trainer.gradient_clip_val=1.0",
    ),
    "fp16": ("trainer.log_every_n_steps=5",),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_no_part_forgets_an_attribute(tmp_path, ended, name):
    def kind_of(cut=None):
        class Late(Spoiled):
            bad = frozenset({"skip": {5, 15, 16, 17}, "rollback": {6}}.get(name, ()))
            always, fired = name == "skip", set()

            def before(self, model, moment):
                if name == "rollback" and moment is not None and moment.step >= 3 and self.size > 4:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

            def loss(self, model, batch, moment=None):
                self.size = len(batch[0])
                scale = 1e36 if name == "fp16" and moment is not None and moment.step >= 14 else 1.0
                return super().loss(model, batch, moment) * scale

        return Late(cut)

    for folder, cut in (("a", None), ("b", 16)):
        (tmp_path / folder).mkdir()
        train = trainer_in(tmp_path / folder)
        task, fp16 = kind_of(cut), name == "fp16"
        more = {"context": scaled(CountedScaler()) if fp16 else None}
        run = train(task, *WORDS, *SETS[name], stop=lambda task=task: task.stop, **more)
        if cut is not None:
            assert run.status == "interrupted", run.reason
            more = {"context": scaled(CountedScaler()) if fp16 else None}
            run = train(kind_of(), *WORDS, *SETS[name], resume=True, **more)
        assert run.status == "completed", run.reason
    whole, resumed = ended[0], ended[-1]
    different = [
        (key, whole.get(key), resumed.get(key)) for key in whole | resumed if whole.get(key) != resumed.get(key)
    ]
    assert not different
    assert last_event(run.events, "end")["step"] == 18
