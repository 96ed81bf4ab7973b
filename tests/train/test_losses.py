"Losses of every form: weighted means are exact over micro batches; two mistakes that torch does not report are told."

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from in_process import vector
from spectrakit.config.effective_batch import BatchPlan
from spectrakit.runs.events import last_event
from spectrakit.system.errors import RequestError
from spectrakit.task.checks.loss_checks import adds_up, uneven_mean, watch_shapes
from spectrakit.task.loss import Loss, as_loss, check_loss, weighted_mean
from spectrakit.task.task import Task
from spectrakit.train.gradient_accumulation import scale_gradients

WEIGHTS = torch.tensor([1.0, 9.0, 0.2], dtype=torch.float64)


def data(*more: int) -> TensorDataset:
    "23 samples with classes 0 to 2, or left out (-100); `more`: dimensions of the targets beside the first."
    draw = torch.Generator().manual_seed(3)
    classes = torch.randint(0, 3, (23, *more), generator=draw)
    classes[torch.rand(23, *more, generator=draw) < 0.4] = -100
    classes[0], classes[12] = 1, 2
    return TensorDataset(torch.randn(23, 4, dtype=torch.float64, generator=draw), classes)


def scorer(*more: int) -> nn.Module:
    torch.manual_seed(1)
    out = int(torch.tensor([3, *more]).prod())
    return nn.Sequential(nn.Linear(4, out), nn.Unflatten(1, (3, *more))).double()


LOSSES = {
    "class weights": (nn.CrossEntropyLoss(WEIGHTS), ()),
    "left out": (nn.CrossEntropyLoss(WEIGHTS, ignore_index=-100, label_smoothing=0.2), ()),
    "smoothed": (nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=0.2), (2,)),
    "words": (nn.CrossEntropyLoss(), (5,)),
    "likelihood": (nn.NLLLoss(WEIGHTS), ()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_weighted_mean_is_exact_over_micro_batches_and_evaluations(train, name):
    loss, more = LOSSES[name]
    model, dataset = scorer(*more), data(*more)
    if name == "likelihood":
        model = nn.Sequential(model, nn.LogSoftmax(1))
    settings = ("trainer.max_epochs=2",)
    parts = train(
        Task.of(model, dataset, dataset, loss), "data.batch_size=4", "accumulate_grad_batches=3", *settings, name="a"
    )
    assert parts.status == "completed", parts.reason
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        for rows in (slice(0, 12), slice(12, 23)):
            optimizer.zero_grad()
            value = loss(model(dataset.tensors[0][rows]), dataset.tensors[1][rows])
            value.backward()
            optimizer.step()
            losses.append(value.item())
    torch.testing.assert_close(parts.weights(), vector(model), rtol=1e-9, atol=1e-12)
    assert parts.column("step", "loss") == pytest.approx(losses, rel=1e-9)
    whole = loss(model(dataset.tensors[0]), dataset.tensors[1]).item()
    assert last_event(parts.events, "eval")["metrics"]["val_loss"] == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.MSELoss(), nn.BCEWithLogitsLoss(pos_weight=torch.ones(3)), F.mse_loss]
)
def test_a_plain_mean_stays_a_scalar(loss):
    targets = torch.tensor([0, 2]) if isinstance(loss, nn.CrossEntropyLoss) else torch.ones(2, 3)
    found = weighted_mean(loss, torch.zeros(2, 3), targets)
    assert found.weight is None and found.value == loss(torch.zeros(2, 3), targets)


def test_probabilities_as_targets_are_a_mean_over_samples():
    loss, targets = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0])), torch.full((4, 3), 1 / 3)
    assert weighted_mean(loss, torch.zeros(4, 3), targets).weight is None


# forms


def test_every_form_is_the_same_loss():
    value = torch.tensor(2.0, requires_grad=True)
    forms = [as_loss(form) for form in (value, (value, 3), Loss(value, 3))]
    assert [form.weight for form in forms] == [None, 3, 3] and all(form.value is value for form in forms)


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"weight": -1}, "weight -1"),
        ({"logs": [1]}, "logs that are list"),
        ({"logs": {"loss": (1, 2)}}, "'loss' of its own"),
        ({"logs": {"f1": 0.5}}, "logged 'f1' as float"),
        ({"logs": {"f1": (torch.ones(3), 2)}}, "logged 'f1'"),
    ],
)
def test_a_wrong_form_is_told(extra, match):
    with pytest.raises(RequestError, match=match):
        check_loss(Task(), Loss(torch.tensor(1.0, requires_grad=True), **extra))


# shapes that are spread


class Shapes(Task):
    def __init__(self, compare):
        self.compare = compare

    def loss(self, model, batch):
        return self.compare(model(batch[0]), batch[1])


FLAT, COLUMN = torch.arange(4.0), torch.arange(4.0)[:, None]


@pytest.mark.parametrize(
    "compare",
    [
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        nn.MSELoss(),
        lambda o, y: ((o - y) ** 2).mean(),
        lambda o, y: (y - o).abs().mean(),
        lambda o, y: torch.sub(o, other=y).square().mean(),
        lambda o, y: (o.squeeze(1) * y[:, None]).mean(),
    ],
)
def test_outputs_and_targets_that_would_be_spread_are_an_error_with_both_shapes(compare):
    task = Shapes(compare)
    with pytest.raises(RequestError, match=r"Shapes.loss combines .*\[4.*\[4, 4\].*squeeze"), watch_shapes(task, 4):
        task.loss(nn.Linear(3, 1), (torch.ones(4, 3), FLAT))


@pytest.mark.parametrize(
    "compare",
    [
        lambda o, y: F.mse_loss(o, y[:, None]),
        lambda o, y: F.mse_loss(o.squeeze(1), y),
        lambda o, y: (o - o.squeeze(1)).square().mean(),  # each with each
        lambda o, y: (o - y[None, :]).square().mean(),  # pairwise, and it says so
        lambda o, y: (o * torch.ones(7)).mean(),
        lambda o, y: (o.squeeze(1)[:, None] * torch.ones(1)).mean(),
        lambda o, y: ((y[:, None] > y).float() * (o - o.T)).mean(),
    ],
)
def test_what_is_meant_to_be_spread_is_left_alone(compare):
    with watch_shapes(Task(), 4):
        assert Shapes(compare).loss(nn.Linear(3, 1), (torch.ones(4, 3), FLAT)).dim() == 0


def test_a_batch_of_one_sample_tells_nothing():
    with watch_shapes(Task(), 1):
        Shapes(lambda o, y: (o - y).sum()).loss(nn.Linear(3, 1), (torch.ones(1, 3), FLAT[:1]))


# means that do not add up


def halves(loss):
    return uneven_mean(Shapes(loss), scorer(), data()[:], 23)


def test_a_mean_that_is_none_over_samples_is_told_with_both_numbers():
    told = halves(nn.CrossEntropyLoss(WEIGHTS))
    assert told.startswith("Shapes.loss is no mean") and "sk.weighted_mean" in told
    assert halves(nn.CrossEntropyLoss()) is not None  # targets that are left out by default
    assert halves(lambda o, y: o.sum()) is not None  # a bare sum


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, y: o.mean(),
        lambda o, y: (o.sum(), o.numel()),
        lambda o, y: weighted_mean(nn.CrossEntropyLoss(WEIGHTS), o, y),
        lambda o, y: o.mean() + torch.rand(()),  # random: nobody can say
    ],
)
def test_a_mean_that_adds_up_is_not_named(loss):
    assert halves(loss) is None


def test_only_what_is_put_together_has_to_add_up():
    assert not adds_up(BatchPlan(32, 8)) and adds_up(BatchPlan(33, 8))
    assert adds_up(BatchPlan(32, 8, gradient_accumulation_steps=2)) and adds_up(BatchPlan(32, 8, world_size=2))


def test_ranks_add_up_the_weights_of_a_window_in_double_precision():
    weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
    weight.grad = torch.tensor([0.3, 0.7], dtype=torch.float64)
    context = SimpleNamespace(world_size=2, device=torch.device("cpu"), reduce_tensor=lambda own: own + 0.2)
    learner, window = SimpleNamespace(owned=[weight]), SimpleNamespace(alone=False)
    state: Any = SimpleNamespace(window=window, context=context, learner=learner)
    assert scale_gradients(state, 4.0, torch.tensor(0.1, dtype=torch.float64)) == pytest.approx(4 / 0.3, rel=1e-15)
    assert weight.grad.tolist() == pytest.approx([4.0, 2.8 / 0.3], rel=1e-15)
