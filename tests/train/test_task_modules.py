"What a task holds beside its model: compared with the same loop in plain torch, cut and gone on with, on two ranks."

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import in_process
import spectrakit as sk
from spectrakit.checkpoint.store import find_checkpoint, load_task_tensors
from spectrakit.system.errors import RequestError
from spectrakit.task.task_modules import held_by

INLINE = "launch.mode=inline"
MORE = ("data.batch_size=8", "trainer.log_min_seconds=0", "trainer.max_steps=24")
PLAIN = (*(word for word in in_process.PLAIN if word != INLINE), *MORE)
generator = torch.Generator().manual_seed(0)
X = torch.randn(64, 4, generator=generator)
Y = (X[:, 0] + 0.3 * torch.randn(64, generator=generator) > 0).long()


def net():
    torch.manual_seed(1)
    return nn.Linear(4, 6)


class Proxies(nn.Module):
    "Learned class centres, with counts of what they have seen."

    def __init__(self):
        super().__init__()
        self.proxies = nn.Parameter(torch.linspace(-1, 1, 12).reshape(2, 6).clone())
        self.register_buffer("seen", torch.ones(2))

    def forward(self, out, y):
        if self.training:
            self.seen += torch.bincount(y, minlength=2)
        return F.cross_entropy(out @ self.proxies.T, y, weight=self.seen.sum() / self.seen / 2)


class Base(sk.Task):
    def datasets(self, cfg):
        return TensorDataset(X, Y), TensorDataset(X[:16], Y[:16])

    def model(self, cfg):
        return net()

    def loss(self, model, batch):
        return self.criterion(model(batch[0]), batch[1])


class Attribute(Base):
    def __init__(self):
        self.criterion = Proxies()


class Nested(Base):
    "In a mapping in an object of a class of one's own."

    class Parts:
        def __init__(self):
            self.by_name = {"proxies": [Proxies()]}

    def __init__(self):
        self.parts = self.Parts()

    def criterion(self, out, y):
        return self.parts.by_name["proxies"][0](out, y)


class OfTheClass(Base):
    "In a closure that is an attribute."

    def __init__(self):
        made = Proxies()
        self.criterion = lambda out, y: made(out, y)


class OwnOptimizer(Attribute):
    def optimizer(self, model, cfg):
        return torch.optim.SGD([*model.parameters(), *self.criterion.parameters()], lr=0.1)


class Bare(Base):
    "A parameter and a tensor on the task itself, which is replaced at each step."

    def __init__(self):
        self.scale, self.mean = nn.Parameter(torch.ones(())), torch.zeros(4)

    def loss(self, model, batch):
        if model.training:
            self.mean = 0.9 * self.mean + 0.1 * batch[0].mean(0)
        out = model(batch[0] - self.mean)
        return F.cross_entropy(self.scale * (out[:, :2] + out[:, 2:4]), batch[1])


class Teacher(Base):
    "A momentum teacher, made of the model."

    def model(self, cfg):
        made = net()
        self.teacher = copy.deepcopy(made)
        return made

    def loss(self, model, batch):
        if model.training:
            with torch.no_grad():
                for mine, theirs in zip(self.teacher.parameters(), model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
        out = model(batch[0])
        return F.cross_entropy(out[:, :2], batch[1]) + (out - self.teacher(batch[0]).detach()).square().mean()


class Against(Base):
    "A second network with an optimizer of its own, as of a generator and its discriminator."

    def __init__(self):
        torch.manual_seed(2)
        self.critic = nn.Linear(6, 1)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.01)

    def loss(self, model, batch):
        out = model(batch[0])
        if model.training:
            self.critic_optimizer.zero_grad()
            (self.critic(out.detach())[:, 0] - batch[1].float()).square().mean().backward()
            self.critic_optimizer.step()
        return F.cross_entropy(out[:, :2], batch[1]) + 0.1 * self.critic(out).mean()


KINDS = [Attribute, Nested, OfTheClass, OwnOptimizer, Bare, Teacher, Against]


def by_hand(task, steps=24):
    "The losses of a plain loop, and its model."
    model, losses = task.model(None), []
    held = [t for t in tensors_of(task) if t.requires_grad] if not isinstance(task, (Teacher, Against)) else []
    optimizer = torch.optim.SGD([*model.parameters(), *held], lr=0.1)
    for step in range(steps):
        rows = slice(step * 8 % 64, step * 8 % 64 + 8)
        loss = task.loss(model, (X[rows], Y[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def tensors_of(task):
    if isinstance(task, Nested):
        return list(task.parts.by_name["proxies"][0].parameters())
    if isinstance(task, OfTheClass):
        return list(task.criterion.__closure__[0].cell_contents.parameters())
    return [task.scale] if isinstance(task, Bare) else list(task.criterion.parameters())


def losses_of(run):
    assert run.status == "completed", run.error
    return [event["loss"] for event in run.events if event["type"] == "step"]


def told(run):
    return [event["text"] for event in run.events if event["type"] == "message"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_trains_as_a_plain_loop_and_evaluations_change_nothing(here, kind):
    wanted, model = by_hand(kind())
    run = sk.fit(kind(), *PLAIN, INLINE, show=False)
    assert losses_of(run) == wanted
    found = run.load_model(kind())
    assert list(found.state_dict()) == list(model.state_dict())  # the model alone
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in model.state_dict().items())
    assert not [text for text in told(run) if "outside the model" in text or "no checkpoint" in text]


@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        pytest.param(kind, stop, id=f"{kind.__name__}-{stop}", marks=[pytest.mark.long] * (number % 3 != turn))
        for number, kind in enumerate(KINDS)
        for turn, stop in enumerate((3, 8, 13))
    ],
)
def test_a_run_that_is_cut_goes_on_with_a_new_task_as_one_in_one_go(here, kind, stop):
    whole = losses_of(sk.fit(kind(), *PLAIN, INLINE, show=False))
    cut = sk.fit(kind(), *PLAIN, INLINE, f"trainer.max_steps={stop}", show=False)
    words = ("trainer.max_steps=24", "resume.allow=[trainer.max_steps]")
    assert losses_of(sk.resume(cut.path, kind(), *words, show=False)) == whole


def test_task_of_trains_its_criterion_in_a_group_of_its_own_and_says_so(here):
    wanted, _ = by_hand(Attribute())
    criterion = Proxies()
    task = sk.Task.of(net(), TensorDataset(X, Y), TensorDataset(X[:16], Y[:16]), criterion)
    run = sk.fit(task, *PLAIN, INLINE, show=False)
    assert losses_of(run) == pytest.approx(wanted, rel=1e-6)
    assert any("_loss:proxies" in text and "in a separate group" in text for text in told(run))
    assert not any("_model" in text for text in told(run))
    kept = load_task_tensors(find_checkpoint(run.path / "checkpoints")[0])
    assert set(kept) == {"_loss:proxies", "_loss:seen"} and torch.equal(kept["_loss:proxies"], criterion.proxies)


class Head(Attribute):
    "Predicts with what it holds."

    def predict(self, model, batch):
        return (model(batch[0]) @ self.criterion.proxies.T).softmax(-1)


def test_predictions_are_those_of_the_trained_criterion(here):
    task = Head()
    run = sk.fit(task, *PLAIN, INLINE, show=False)
    found = sk.predict(Head(), run).values
    last = find_checkpoint(run.path / "checkpoints", "BEST")[0]
    proxies = load_task_tensors(last)["criterion:proxies"]
    wanted = (run.load_model(Head())(X[:16]) @ proxies.T).softmax(-1)
    assert torch.allclose(torch.as_tensor(found), wanted.detach(), atol=1e-6)
    assert not torch.equal(proxies, Proxies().proxies)


class Perceptual(Base):
    "A fixed network in eval mode, frozen parameters, and data on the task."

    def __init__(self):
        torch.manual_seed(3)
        self.fixed = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).eval()
        self.other = nn.Linear(6, 1).requires_grad_(False)
        self.data = torch.randn(100, 4)

    def loss(self, model, batch):
        out = model(batch[0])
        return F.cross_entropy(out[:, :2], batch[1]) + self.fixed(out).square().mean() + self.other(out).mean()


def test_what_is_fixed_stays_and_is_saved_nowhere(here):
    task = Perceptual()
    before = copy.deepcopy((task.fixed.state_dict(), task.other.state_dict()))
    run = sk.fit(task, *PLAIN, INLINE, show=False)
    assert run.status == "completed" and not task.fixed.training and task.other.training
    for now, then in zip((task.fixed, task.other), before, strict=True):
        assert all(torch.equal(value, then[name]) for name, value in now.state_dict().items())
    assert load_task_tensors(find_checkpoint(run.path / "checkpoints")[0]) == {}


class Backbone(Base):
    "A network that `model` copies and completes."

    def __init__(self):
        torch.manual_seed(4)
        self.backbone = nn.Linear(4, 6)

    def model(self, cfg):
        torch.manual_seed(1)
        return nn.Sequential(copy.deepcopy(self.backbone), nn.Linear(6, 2))

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize("words", [(), ("optimizer.name=adamw", "optimizer.weight_decay=0.1")])
def test_what_a_model_was_copied_from_is_saved_nowhere(here, words):
    task = Backbone()
    before = copy.deepcopy(task.backbone.state_dict())
    run = sk.fit(task, *PLAIN, INLINE, *words, show=False)
    assert run.status == "completed" and not [text for text in told(run) if "in a separate group" in text]
    assert all(torch.equal(value, before[name]) for name, value in task.backbone.state_dict().items())
    assert load_task_tensors(find_checkpoint(run.path / "checkpoints")[0]) == {}


def test_one_task_object_that_trains_twice_begins_anew(here):
    task = Attribute()
    first = losses_of(sk.fit(task, *PLAIN, INLINE, show=False))
    sk.predict(task, sk.list_runs()[0])
    assert losses_of(sk.fit(task, *PLAIN, INLINE, show=False)) == first
    with torch.no_grad():
        task.criterion.proxies.fill_(0.5)  # by a cell: that is what it begins with
    assert losses_of(sk.fit(task, *PLAIN, INLINE, show=False)) != first


def test_the_folds_of_one_task_object_know_nothing_of_each_other(here):
    one = sk.cross_validate(Attribute(), *PLAIN, INLINE, folds=3, show=False)
    alone = [
        sk.run_single_trial(sk.compose(*PLAIN, INLINE, "folds.count=3", f"run.dir=alone{n}"), fold=n, task=Attribute())
        for n in range(3)
    ]
    assert [run.metrics for run in one.runs] == [trial.run.metrics for trial in alone]


@pytest.mark.parametrize(("policy", "batches"), [("skip", 23), ("rollback", 24)])
def test_a_bad_batch_leaves_no_trace_in_it(here, policy, batches):
    class Bad(Attribute):
        calls = 0

        def loss(self, model, batch):
            out = super().loss(model, batch)
            self.calls += model.training
            return out * (float("nan") if self.calls == 20 else 1)

    run = sk.fit(Bad(), *PLAIN, INLINE, f"training.nan_policy={policy}", "checkpoint.every_n_steps=1", show=False)
    assert run.status == "completed", run.error
    kept = load_task_tensors(find_checkpoint(run.path / "checkpoints")[0])
    assert torch.isfinite(kept["criterion:proxies"]).all() and float(kept["criterion:seen"].sum()) == 2 + 8 * batches


@pytest.mark.slow
def test_workers_of_diloco_would_part_and_are_refused(here):
    words = ("trainer.strategy.name=diloco", "diloco.max_steps=4", "trainer.devices=2", "data.batch_size=4")
    with pytest.raises(RequestError, match=r"trains criterion:proxies of the task.*ddp"):
        sk.fit(Attribute(), *PLAIN, *words, show=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "strategy"),
    [
        (Bare, "ddp"),
        (Attribute, "fsdp"),
        pytest.param(Attribute, "ddp", marks=pytest.mark.long),
        pytest.param(Bare, "fsdp", marks=pytest.mark.long),
    ],
)
def test_two_ranks_learn_what_one_does_and_go_on_exactly(here, kind, strategy):
    words = (*PLAIN, "checkpoint.every_n_steps=3")
    two = ("trainer.devices=2", "data.batch_size=4", f"distributed.strategy={strategy}")
    run = sk.fit(kind(), *words, *two, show=False)
    found = losses_of(run)
    assert len(found) == 24 and all(map(torch.isfinite, map(torch.tensor, found)))
    cut = sk.fit(kind(), *words, *two, "trainer.max_steps=9", show=False)
    more = ("trainer.max_steps=24", "resume.allow=[trainer.max_steps]")
    assert losses_of(sk.resume(cut.path, kind(), *more, show=False)) == found
    if kind is Bare or kind is Teacher:
        wanted = losses_of(sk.fit(kind(), *words, INLINE, show=False))
        assert found == pytest.approx(wanted, rel=1e-4 if kind is Teacher else 0.05)


OPTIMIZER = nn.Linear(4, 4)  # a global whose name is that of an attribute


class Settings:
    OPTIMIZER = 0.5


class ReadsAnAttribute(Attribute):
    def loss(self, model, batch):
        return super().loss(model, batch) * Settings.OPTIMIZER


CENTRE = nn.Linear(6, 2)


class ReadsAGlobal(Base):
    def criterion(self, out, y):
        return F.cross_entropy(CENTRE(out), y)


def test_globals_are_held_and_names_of_attributes_are_none(here):
    assert {held.name for held in held_by(ReadsAnAttribute())} == {"criterion"}
    assert {held.name for held in held_by(ReadsAGlobal())} == {"criterion.CENTRE"}
    before = copy.deepcopy(CENTRE.state_dict())
    run = sk.fit(ReadsAGlobal(), *PLAIN, INLINE, show=False)
    assert run.status == "completed" and any("criterion.CENTRE:weight" in text for text in told(run))
    assert not torch.equal(before["weight"], CENTRE.weight)


@pytest.mark.slow
def test_sharded_weights_and_whole_ones_are_clipped_together(here):
    words = [word for word in PLAIN if not word.startswith("optimizer.")]
    words += ["optimizer.name=adamw", "optimizer.lr=0.01", "trainer.gradient_clip_val=0.5", "training.ema_decay=0.9"]
    words += ["trainer.devices=2", "data.batch_size=4"]
    ddp, fsdp = (
        losses_of(sk.fit(Attribute(), *words, f"distributed.strategy={name}", show=False)) for name in ("ddp", "fsdp")
    )
    assert fsdp == pytest.approx(ddp, rel=1e-5)
