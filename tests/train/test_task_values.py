"State of a task outside modules: arrays, slots, schedulers, and what no checkpoint can hold."

import collections
import dataclasses
import random
import types

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import in_process
import spectrakit as sk
from spectrakit.checkpoint.store import find_checkpoint, load_task_tensors, load_weights

WORDS = (*in_process.PLAIN, "data.batch_size=8", "trainer.max_steps=20")
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Base(sk.Task):
    def datasets(self, cfg):
        return TensorDataset(X, Y), TensorDataset(X[:16], Y[:16])

    def model(self, cfg):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))

    def loss(self, model, batch):
        loss = F.cross_entropy(self.head(model(batch[0] - self.shift()))[:, :2], batch[1])
        if model.training:
            self.learn(batch[0].mean(0), batch[1])
        return loss

    def head(self, out):
        return out

    def shift(self):
        return 0.0

    def learn(self, mean, y):
        pass


class Pointer(Base):
    "A queue that is filled in place at a pointer; the queue has more than a megabyte."

    def __init__(self):
        self.queue, self.place = torch.zeros(100_000, 4), {"next": numpy.zeros(1, int)}

    def shift(self):
        return self.queue[:4].sum(0)

    def learn(self, mean, y):
        self.queue[self.place["next"][0]] = mean
        self.place["next"] = (self.place["next"] + 1) % 4


class Numbers(Base):
    "A counter and a factor that are replaced, and an array that is moved in place."

    def __init__(self):
        self.steps, self.factor, self.parts = (
            numpy.array([0]),
            numpy.array([1.0]),
            {"mean": numpy.zeros(4, numpy.float32)},
        )

    def shift(self):
        return torch.from_numpy(self.parts["mean"] * self.factor[0]).float() * min(1, self.steps[0] / 15)

    def learn(self, mean, y):
        self.steps, self.factor = self.steps + 1, self.factor * 0.9
        self.parts["mean"] += 0.1 * mean.numpy()


@dataclasses.dataclass(slots=True)
class Box:
    head: nn.Module
    mean: torch.Tensor | None = None


class Slots(Base):
    "A module and a mean, unknown at first, in slots."

    def __init__(self):
        torch.manual_seed(2)
        self.box = Box(nn.Linear(6, 2))

    def head(self, out):
        return self.box.head(out)

    def shift(self):
        return 0.0 if self.box.mean is None else self.box.mean

    def learn(self, mean, y):
        self.box.mean = 0.5 * (self.shift() + mean)


class Rows(Base):
    "The last means in a deque."

    def __init__(self):
        self.rows = collections.deque([torch.zeros(4), torch.zeros(4), torch.zeros(4)], maxlen=3)

    def shift(self):
        return sum(self.rows) / 3

    def learn(self, mean, y):
        self.rows.append(mean)


class Scheduled(Base):
    "A critic with an optimizer and a scheduler that the task steps."

    def __init__(self):
        torch.manual_seed(2)
        self.critic = nn.Linear(4, 4)
        self.made = [torch.optim.Adam(self.critic.parameters(), lr=0.1)]
        self.decay = torch.optim.lr_scheduler.StepLR(self.made[0], 3, 0.5)

    def shift(self):
        return self.critic.bias.detach()

    def learn(self, mean, y):
        self.critic.zero_grad()
        (self.critic(mean) - 1).square().sum().backward()
        self.made[0].step()
        self.decay.step()


class Leaf(Base):
    "A tensor that is no Parameter, in the task's optimizer."

    def __init__(self):
        self.scale = torch.ones(6, requires_grad=True)

    def optimizer(self, model, cfg):
        return torch.optim.SGD([*model.parameters(), self.scale], lr=0.1)

    def head(self, out):
        return out * self.scale


class Draws(Base):
    "Generators of each kind, in a list."

    def __init__(self):
        self.made = [numpy.random.RandomState(1), numpy.random.PCG64(2), random.Random(3)]

    def shift(self):
        return self.made[0].rand() + self.made[2].random() + self.made[1].random_raw() / 2**64


class Namespace(Base):
    "A module, a mean and a generator in a namespace and in an object that has items."

    class Bank:
        def __init__(self, head):
            self.head = head

        def __getitem__(self, key):
            return self.head

    def __init__(self):
        torch.manual_seed(2)
        self.box = types.SimpleNamespace(head=nn.Linear(6, 2), mean=torch.zeros(4), random=random.Random(3))
        self.bank = collections.UserDict(head=self.Bank(self.box.head))

    def head(self, out):
        return self.bank["head"]["it"](out)

    def shift(self):
        return self.box.mean + self.box.random.random()

    def learn(self, mean, y):
        self.box.mean = 0.5 * (self.box.mean + mean)


class Net(nn.Module):
    "State that a state dict omits: a number, a tensor, a small buffer and a generator. It matters after eight steps."

    def __init__(self):
        super().__init__()
        self.linear, self.steps, self.mean = nn.Linear(4, 6), 0, torch.zeros(4)
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.random = torch.Generator().manual_seed(3)

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.count += torch.rand((), generator=self.random)
        return self.linear(x - self.mean * (self.count > 4)) * (1 + 0.1 * max(0, self.steps - 8))


class Omitted(Base):
    def model(self, cfg):
        torch.manual_seed(1)
        return nn.Sequential(Net(), nn.BatchNorm1d(6))


class Lookahead(torch.optim.SGD):
    "It returns halfway to the weights of five steps before, and counts steps in no state dict."

    steps = 0

    def step(self, closure=None):
        super().step()
        self.steps += 1
        for weight in (weight for group in self.param_groups for weight in group["params"]):
            slow = self.state[weight].setdefault("slow", weight.detach().clone())
            if self.steps % 5 == 0:
                with torch.no_grad():
                    slow.lerp_(weight, 0.5)
                    weight.copy_(slow)


class Slow(Base):
    def optimizer(self, model, cfg):
        return Lookahead(model.parameters(), lr=0.1)


KINDS = [Pointer, Numbers, Slots, Rows, Scheduled, Leaf, Draws, Namespace, Omitted, Slow]


def by_hand(task):
    "The losses of a plain loop."
    model = task.model(None)
    held = [task.scale] if isinstance(task, Leaf) else task.box.head.parameters() if hasattr(task, "box") else []
    kind = Lookahead if isinstance(task, Slow) else torch.optim.SGD
    optimizer, losses = kind([*model.parameters(), *held], lr=0.1), []
    for step in range(20):
        rows = slice(step * 8 % 64, step * 8 % 64 + 8)
        loss = task.loss(model, (X[rows], Y[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_of(run):
    assert run.status == "completed", run.error
    return [event["loss"] for event in run.events if event["type"] == "step"]


def state_of(run):
    path, _ = find_checkpoint(run.path / "checkpoints")
    return {**load_weights(path), **load_task_tensors(path)}


def told(run):
    return " ".join(event["text"] for event in run.events if event["type"] == "message")


@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step")  # torch, of a scheduler that was pickled
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_trains_as_a_plain_loop_and_two_cuts_change_nothing(here, kind):
    whole = sk.fit(kind(), *WORDS, "trainer.check_val_every_n_steps=3", show=False)
    assert losses_of(whole) == by_hand(kind())  # nothing is left of the rehearsal
    assert not [words for words in ("no checkpoint", "differs") if words in told(whole)]
    run = sk.fit(kind(), *WORDS, "trainer.max_steps=3", show=False)
    for steps in (13, 20):  # what was loaded is saved again
        allowed = (f"trainer.max_steps={steps}", "resume.allow=[trainer.max_steps]")
        run = sk.resume(run.path, kind(), *allowed, show=False)
    assert losses_of(run) == losses_of(whole)
    now, then = state_of(run), state_of(whole)
    assert now.keys() == then.keys() and all(torch.equal(now[name], then[name]) for name in then)


def test_one_task_object_counts_anew_in_its_next_run(here):
    task = Numbers()
    first = losses_of(sk.fit(task, *WORDS, show=False))
    assert losses_of(sk.fit(task, *WORDS, show=False)) == first


class Predicts(Omitted, Numbers):
    "Predictions need an array of the task, and state of the model that no state dict has."

    def __init__(self):
        Numbers.__init__(self)

    def predict(self, model, batch):
        return model(batch[0] - self.shift())

    def test_dataset(self, cfg):
        return TensorDataset(X)


def test_predictions_of_another_process_have_arrays_of_the_task(here):
    task = Predicts()
    run = sk.fit(task, *WORDS, show=False)
    found, new = torch.as_tensor(sk.predict(Predicts(), run).values), Predicts()
    model = run.load_model(new)
    assert new.steps[0] == 20 and model[0].steps == 20 and model[0].count > 8
    with torch.no_grad():
        assert torch.allclose(found, new.predict(model, (X,)), atol=1e-5)


class Thawed(Slots):
    "The head trains from the second epoch on, of eight steps."

    def on_epoch(self, model, moment):
        self.box.head.requires_grad_(moment.epoch > 0)


class Idle(Slots):
    "The loss does not use the head at first."

    steps = 0

    def head(self, out):
        return self.box.head(out) if self.steps > 8 else out[:, :2]

    def learn(self, mean, y):
        super().learn(mean, y)
        self.steps += 1


def test_a_module_that_the_loss_uses_later_is_saved(here):
    run = sk.fit(Idle(), *WORDS, show=False)
    found = state_of(run)["box.head:weight"]
    assert not torch.equal(found, Slots().box.head.weight)
    task = Idle()
    run.load_model(task)
    assert torch.equal(task.box.head.weight, found)


def test_a_criterion_that_is_thawed_later_trains_and_goes_on(here):
    whole = sk.fit(Thawed(), *WORDS, show=False)
    cut = sk.fit(Thawed(), *WORDS, "trainer.max_steps=5", show=False)
    assert torch.equal(state_of(cut)["box.head:weight"], Slots().box.head.weight)
    run = sk.resume(cut.path, Thawed(), "trainer.max_steps=20", "resume.allow=[trainer.max_steps]", show=False)
    assert losses_of(run) == losses_of(whole)
    assert not torch.equal(state_of(run)["box.head:weight"], Slots().box.head.weight)


class Spoiled(Base):
    "An array that is moved in place; the loss after 12 batches is not a number, once."

    def __init__(self):
        self.spoiled, self.mean = False, numpy.zeros(1)

    def shift(self):
        return float(self.mean[0])

    def learn(self, mean, y):
        self.mean += 0.1

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if model.training and not self.spoiled and round(float(self.mean[0]), 1) == 1.2:
            self.spoiled = True
            return loss * float("nan")
        return loss


def test_a_rollback_returns_arrays_to_the_checkpoint(here):
    words = ("training.nan_policy=rollback", "checkpoint.every_n_steps=5", "checkpoint.max_share=1")
    task = Spoiled()
    run = sk.fit(task, *WORDS, *words, show=False)
    assert run.status == "completed" and [event["step"] for event in run.events if event["type"] == "restart"], (
        run.error
    )
    assert task.spoiled and round(float(task.mean[0]), 1) == 2.0  # one for each of the 20 steps


class Grows(Base):
    def __init__(self):
        self.bank = {}

    def shift(self):
        return sum(self.bank.values())

    def learn(self, mean, y):
        self.bank[int(y.sum())] = 0.1 * mean


class Late(Base):
    def head(self, out):
        if not hasattr(self, "late"):
            self.late = nn.Linear(6, 2)
        return self.late(out)


class Spread(Base):
    def __init__(self):
        self.links = torch.eye(4).to_sparse()

    def shift(self):
        return self.links.to_dense().sum(0)

    def learn(self, mean, y):
        self.links = (self.links.to_dense() + mean).to_sparse()


def test_what_no_checkpoint_can_hold_is_named_before_the_first_step(here):
    run = sk.fit(Grows(), *WORDS, show=False)
    assert run.status == "completed" and "no checkpoint holds the parts that `loss` adds to bank" in told(run)
    for kind, words in (
        (Late, "Late.loss makes or changes the module late"),
        (Spread, "links has the layout torch.sparse_coo"),
    ):
        run = sk.fit(kind(), *WORDS, show=False)
        assert run.status == "failed" and words in run.error and not run.metrics, run.error


class Pair(torch.optim.Optimizer):
    "Two optimizers, without torch's own attributes."

    def __init__(self, *made):
        self.made = made

    @property
    def param_groups(self):
        return [group for each in self.made for group in each.param_groups]

    def zero_grad(self, set_to_none=True):
        for each in self.made:
            each.zero_grad(set_to_none)

    def step(self, closure=None):
        for each in self.made:
            each.step()

    def state_dict(self):
        return {"made": [each.state_dict() for each in self.made]}

    def load_state_dict(self, state):
        for each, kept in zip(self.made, state["made"], strict=True):
            each.load_state_dict(kept)


class Paired(Slots):
    def optimizer(self, model, cfg):
        return Pair(torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[1].parameters()))


def test_parameters_that_a_combined_optimizer_does_not_take_are_named(here):
    run = sk.fit(Paired(), *WORDS, show=False)
    assert run.status == "completed", run.error
    assert "not trained, because the optimizer does not have them: box.head:weight, box.head:bias" in told(run)
