"Optimizers, schedulers and samplers as people use them, against plain PyTorch."

import itertools
import os
import re
import warnings

import numpy
import pytest
import torch
from test_loop import (
    ACCUMULATED,
    WINDOWS,
    CountedScaler,
    Exact,
    Overflow,
    OwnSchedule,
    Rated,
    scaled,
)
from torch import nn
from torch.optim.lr_scheduler import (
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import TensorDataset

from helpers import why_failed
from in_process import vector
from spectrakit.config.compose import compose
from spectrakit.config.effective_batch import plan_batches
from spectrakit.config.schema import OPTIMIZERS
from spectrakit.data.loaders import Placement, train_batches
from spectrakit.system.errors import RequestError
from spectrakit.task.checks.error_diagnosis import Scene, explain_known
from spectrakit.task.sampler import sampled_order
from spectrakit.train.learner.model import save_activations
from spectrakit.train.learner.optimizer import build_optimizer
from spectrakit.train.learner.seeding import repeatable
from spectrakit.train.parts.ema import ema_stays, update_ema
from spectrakit.train.parts.nan_guard import multiply_rates
from spectrakit.train.start.restore import with_entries

# schedulers of the task's own; 4 steps an epoch, 12 in all


class Warming(Rated):
    "A warm-up of torch's own over eight steps: it changes the rates where it is made."

    def scheduler(self, optimizer, cfg, total_steps):
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 8))


class EachEpoch(Rated):
    "A rate that is halved after each epoch."

    def scheduler(self, optimizer, cfg, total_steps):
        return ExponentialLR(optimizer, 0.5)


class Plateau(Rated):
    "A rate that falls to a tenth where an evaluation brings nothing better; nothing is better than 100."

    def scheduler(self, optimizer, cfg, total_steps):
        return ReduceLROnPlateau(
            optimizer, mode=getattr(self, "mode", "min"), patience=0, threshold=100, threshold_mode="abs"
        )


def test_a_scheduler_moves_with_each_epoch(train):
    task = EachEpoch()
    train(task, *ACCUMULATED, "scheduler.interval=epoch")
    assert task.made.rates == [0.1] * 4 + [0.05] * 4 + [0.025] * 4


def test_a_plateau_is_recognised_and_sees_the_monitored_metric(train):
    task = Plateau()
    train(task, *ACCUMULATED)
    assert task.made.rates == pytest.approx([0.1] * 8 + [0.01] * 4)  # the first evaluation is the best there is


@pytest.mark.parametrize("kind", ["within another", "one cycle", "cyclic"])
def test_after_a_rollback_a_scheduler_goes_on_from_the_smaller_rates(kind):
    def rates(change):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        if kind == "within another":
            parts = [LambdaLR(optimizer, lambda step: 1 / (1 + step)) for _ in range(2)]
            scheduler = SequentialLR(optimizer, parts, milestones=[4])
        elif kind == "one cycle":
            scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=8)
        else:
            scheduler = CyclicLR(optimizer, base_lr=0.01, max_lr=0.1, step_size_up=3)
        seen = []
        for step in range(7):
            if step == 2:
                multiply_rates(optimizer.param_groups, scheduler, change)
            optimizer.step()
            scheduler.step()
            seen.append(optimizer.param_groups[0]["lr"])
        return seen

    whole, half = rates(1.0), rates(0.5)
    assert half[:2] == whole[:2] and half[2:] == pytest.approx([lr / 2 for lr in whole[2:]])


def test_a_scheduler_within_another_takes_the_length_of_today():
    kept = {"_milestones": [2], "_schedulers": [{"T_max": 4, "last_epoch": 3}, {"T_max": 6, "last_epoch": 0}]}
    today = {"_milestones": [5], "_schedulers": [{"T_max": 8, "last_epoch": 0}, {"T_max": 9, "last_epoch": 0}]}
    inner = [{"T_max": 8, "last_epoch": 3}, {"T_max": 9, "last_epoch": 0}]
    assert with_entries(kept, today, ("T_max", "_milestones")) == {"_milestones": [5], "_schedulers": inner}


@pytest.mark.parametrize("kind", [EachEpoch, Plateau])
def test_a_run_that_was_stopped_goes_on_with_its_scheduler(train, kind):
    words = (*ACCUMULATED, "trainer.max_epochs=4", "scheduler.interval=epoch")
    whole, first, rest = kind(), kind(), kind()
    straight = train(whole, *words, name="straight")
    train(first, *words, name="cut", stop=lambda: len(first.made.rates) >= 10 if hasattr(first, "made") else 0)
    assert 10 <= len(first.made.rates) < 16
    resumed = train(rest, *words, name="cut", resume=True)
    assert first.made.rates + rest.made.rates == whole.made.rates
    assert torch.equal(resumed.weights(), straight.weights())


@pytest.mark.parametrize("kind", [Warming, Plateau])
def test_a_run_that_goes_on_with_twice_the_rate_has_twice_the_rate(train, kind):
    whole, first, rest = kind(), kind(), kind()
    train(whole, *ACCUMULATED, name="straight")
    train(first, *ACCUMULATED, name="cut", stop=lambda: len(first.made.rates) >= 3 if hasattr(first, "made") else 0)
    done = len(first.made.rates)
    assert 3 <= done < 12
    train(rest, *ACCUMULATED, "optimizer.lr=0.2", "resume.allow=[optimizer.lr]", name="cut", resume=True)
    assert rest.made.rates == pytest.approx([2 * rate for rate in whole.made.rates[done:]], rel=1e-12)


def test_a_plateau_that_looks_the_wrong_way_or_sees_nothing_is_refused(train):
    task = Plateau()
    task.mode = "max"
    with pytest.raises(RequestError, match=r"mode='max', but val_loss, .* is better if it is smaller"):
        train(task, *ACCUMULATED)

    class Blind(Plateau):
        def datasets(self, cfg):
            return super().datasets(cfg)[0], None

    with pytest.raises(RequestError, match="ReduceLROnPlateau moves after evaluations, and the task has no validation"):
        train(Blind(), *ACCUMULATED, name="blind")


# the optimizer that the settings name


def test_every_optimizer_of_torch_but_one_has_a_name_and_takes_a_step(train):
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    assert set(kinds) - {"optimizer", "lbfgs"} == set(OPTIMIZERS)
    model = Exact().model(None)
    for name in set(OPTIMIZERS) - {"sparseadam", "muon"}:
        optimizer = build_optimizer(model, compose(f"optimizer.name={kinds[name].__name__}"))
        assert type(optimizer) is kinds[name]
        before = vector(model)
        model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
        optimizer.step()
        assert not torch.equal(vector(model), before), name
    matrix = nn.Linear(3, 2, bias=False)
    assert type(build_optimizer(matrix, compose("optimizer.name=muon"))) is torch.optim.Muon
    table = nn.Embedding(5, 2, sparse=True)
    assert type(build_optimizer(table, compose("optimizer.name=sparseadam"))) is torch.optim.SparseAdam


def test_keywords_groups_and_decay_are_those_that_were_asked_for(train):
    words = (
        "optimizer.name=sgd",
        "optimizer.momentum=0.8",
        "optimizer.options.nesterov=true",
        "optimizer.weight_decay=0.3",
        "optimizer.groups=[{match: '2.*', lr_factor: 0.5, weight_decay: 0.1, momentum: 0.5, nesterov: false}]",
        "optimizer.decay_norms_and_biases=true",
    )
    task = Exact()
    run = train(task, *words, "data.batch_size=23", "trainer.max_epochs=4")
    model = task.model(None)
    optimizer = torch.optim.SGD(
        [
            {"params": list(model[0].parameters()), "weight_decay": 0.3},
            {
                "params": list(model[2].parameters()),
                "lr": 0.05,
                "weight_decay": 0.1,
                "momentum": 0.5,
                "nesterov": False,
            },
        ],
        lr=0.1,
        momentum=0.8,
        nesterov=True,
    )
    for _ in range(4):
        optimizer.zero_grad()
        task.errors(model, slice(None)).mean().backward()
        optimizer.step()
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-12, atol=1e-14)
    assert run.column("step", "lr") == [0.1] * 4  # the rest of the model comes first


def test_betas_and_eps_reach_adam_and_frozen_parameters_no_group():
    model = Exact().model(None)
    model[0].weight.requires_grad_(False)
    words = ("optimizer.name=adam", "optimizer.betas=[0.8,0.95]", "optimizer.eps=1e-6")
    groups = build_optimizer(
        model, compose(*words, "optimizer.groups=[{match: ['0.*', '2.bias'], lr: 0.5}]")
    ).param_groups
    assert [(len(g["params"]), g["lr"], g["betas"], g["eps"]) for g in groups] == [
        (1, 1e-3, (0.8, 0.95), 1e-6),
        (2, 0.5, (0.8, 0.95), 1e-6),
    ]


@pytest.mark.parametrize(
    "words, says",
    [
        (["optimizer.name=LBFGS"], "LBFGS asks for the loss several times in a step (a closure)"),
        (["optimizer.name=adamv"], "Did you mean"),
        (["optimizer.options.nestrov=true"], "torch.optim.AdamW takes .*"),
        (["optimizer.name=sgd", "optimizer.options.nestrov=true"], "Did you mean 'nesterov'?"),
        (["optimizer.options.lr=0.1"], "it has a setting of its own, optimizer.lr."),
        (["optimizer.name=sgd", "optimizer.betas=[0.9,0.99]"], "torch.optim.SGD has none."),
        (["optimizer.betas=[0.9,1.5]"], "it needs two numbers from 0 up to 1 in brackets"),
        (["optimizer.name=rprop", "optimizer.weight_decay=0.1"], "torch.optim.Rprop has none."),
        (["optimizer.groups=[{match: '3.*', lr: 0.1}]"], "no parameter of the model is called 3.*. Did you mean"),
        (["optimizer.groups=[{match: '2.*', momntum: 0.1}]", "optimizer.name=sgd"], "Did you mean 'momentum'?"),
        (["optimizer.groups=[{match: '2.*', lr: 0.1, lr_factor: 0.1}]"], "has both lr and lr_factor; keep one of them"),
        (["optimizer.groups=[{match: '2.*', lr: fast}]"], "lr of the group 2.* must be a number, not fast"),
        (["optimizer.groups=[{lr: 0.1}]"], "each group needs match"),
        (["optimizer.groups=head"], "it needs a list of groups"),
        (["optimizer.name=muon"], "Muon updates matrices only, .* or use optimizer.name=adamw."),
        (["optimizer.options.eps=small"], "eps=small is not possible: it needs a number; without it, it is 1e-08."),
        (["optimizer.options.amsgrad=1"], "amsgrad=1 is not possible: it needs true or false."),
        (["optimizer.options.betas=[0.9]"], "betas=[0.9] is not possible: it needs 2 values in brackets"),
        (["optimizer.options.eps=-1"], "Invalid epsilon value: -1. Change optimizer.options.eps=-1."),
        (["optimizer.lr=inf"], "it needs a finite number above 0."),
        (["optimizer.name=sparseadam"], "SparseAdam updates the weights of nn.Embedding(…, sparse=True) alone"),
        (["optimizer.beta2=0.95"], "Did you mean 'optimizer.betas'?"),
    ],
)
def test_what_an_optimizer_cannot_do_is_said_with_what_it_can(words, says):
    with pytest.raises(RequestError, match=re.escape(says).replace(r"\.\*", ".*")):
        build_optimizer(Exact().model(None), compose(*words))


def test_sparse_gradients_need_an_optimizer_that_takes_them():
    model = nn.Sequential(nn.Embedding(5, 2, sparse=True), nn.Linear(2, 1))
    with pytest.raises(RequestError, match="AdamW needs dense gradients, and 0 is an embedding with sparse=True"):
        build_optimizer(model, compose())
    with pytest.raises(RequestError, match="SGD with momentum needs dense gradients.*or optimizer.momentum=0"):
        build_optimizer(model, compose("optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.weight_decay=0"))


class Words(Exact):
    "The same samples as words of a table whose gradients are sparse; the loss is a weighed one."

    def datasets(self, cfg):
        words = (self.x[:, 0] > 0).long()
        return (TensorDataset(words, self.y),) * 2

    def model(self, cfg):
        torch.manual_seed(3)
        return nn.Sequential(nn.Embedding(2, 1, sparse=True), nn.Flatten(0)).double()

    def loss(self, model, batch):
        return (2.0 * (model(batch[0]) - batch[1]) ** 2).sum(), 2.0 * len(batch[1])


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_sgd_trains_sparse_embeddings_by_its_name(train, policy):
    task = Words()
    run = train(task, "data.batch_size=4", "accumulate_grad_batches=2", f"training.nan_policy={policy}")
    assert run.status == "completed", run.reason
    model, (words, y) = task.model(None), task.datasets(None)[0].tensors
    for _ in range(compose().trainer.max_epochs):
        for start in range(0, len(y), 8):
            model.zero_grad()
            ((model(words[start : start + 8]) - y[start : start + 8]) ** 2).mean().backward()
            with torch.no_grad():
                model[0].weight -= 0.1 * model[0].weight.grad.to_dense()
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-9, atol=1e-12)
    with pytest.raises(RequestError, match="gradient_clip_val needs dense gradients, and 0 is an embedding"):
        train(task, "data.batch_size=4", "trainer.gradient_clip_val=1", name="clipped")


class Returns(Exact):
    "Has an `optimizer` that returns what `make` makes of the model."

    def __init__(self, make):
        super().__init__()
        self.make = make

    def optimizer(self, model, cfg):
        return self.make(model)


@pytest.mark.parametrize(
    "make, says",
    [
        (
            lambda model: [torch.optim.SGD(m.parameters()) for m in (model[0], model[2])],
            "returned 2 optimizers in a list",
        ),
        (lambda model: torch.optim.LBFGS(model.parameters()), "returned LBFGS, which computes the loss several times"),
        (lambda model: "sgd", "returned str. It has to return a torch optimizer, or None."),
    ],
)
def test_an_optimizer_that_is_not_one_is_refused(train, make, says):
    why_failed(train(Returns(make), "data.batch_size=23"), re.escape(says))


# gradients


@pytest.mark.parametrize("form", ["mean", "weighted"])
def test_clipping_by_value_acts_once_on_the_accumulated_gradient(train, form):
    task = Exact(form)
    run = train(
        task,
        "data.batch_size=4",
        "accumulate_grad_batches=3",
        "trainer.max_epochs=2",
        "trainer.gradient_clip_val=0.02",
        "trainer.gradient_clip_algorithm=value",
    )
    model = task.model(None)
    for start in (0, 12, 0, 12):
        errors, weight = task.errors(model, slice(start, start + 12)), task.w[start : start + 12]
        model.zero_grad()
        ((errors * weight).sum() / weight.sum() if form == "weighted" else errors.mean()).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.02)
        with torch.no_grad():
            for q in model.parameters():
                q -= 0.1 * q.grad
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-12, atol=1e-14)


def test_gradients_that_no_optimizer_owns_are_cleared_and_do_not_count(train):
    class HeadOnly(Returns):
        def loss(self, model, batch):
            if model.training:
                self.seen.append(model[0].weight.grad is not None)  # left over from a step before
            return super().loss(model, batch)

    task = HeadOnly(lambda model: torch.optim.SGD(model[2].parameters(), lr=0.1))
    run = train(task, "data.batch_size=23", "trainer.max_epochs=5", "trainer.gradient_clip_val=0.01")
    model = task.model(None)
    for _ in range(5):
        model.zero_grad()
        task.errors(model, slice(None)).mean().backward()
        nn.utils.clip_grad_norm_(model[2].parameters(), 0.01)
        with torch.no_grad():
            for q in model[2].parameters():
                q -= 0.1 * q.grad
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-12, atol=1e-14)
    assert True not in task.seen[::2]
    texts = [event["text"] for event in run.events if event["type"] == "message"]
    assert any("not trained, because the optimizer does not have them: 0.weight, 0.bias" in text for text in texts)


# fp16


class Averaged(OwnSchedule):
    "Has a scheduler of its own; the gradients of some of its optimizer steps, counted from 0, overflow."

    def __init__(self, overflowing=()):
        super().__init__()
        self.overflowing = overflowing

    def loss(self, model, batch):
        loss, micro = super().loss(model, batch), len(self.seen) - 1
        return Overflow.apply(loss) if model.training and micro % 3 == 0 and micro // 3 in self.overflowing else loss


@pytest.mark.parametrize("own", [True, False])
def test_a_step_that_fp16_left_out_counts_for_the_schedule_and_leaves_the_averages(train, own):
    class Run(Averaged):
        def scheduler(self, optimizer, cfg, total_steps):
            return super().scheduler(optimizer, cfg, total_steps) if own else None

    words = (*WINDOWS, "trainer.max_epochs=5", "data.shuffle=false", "scheduler.name=linear", "training.ema_decay=0.6")
    task, scaler = Run({1, 2}), CountedScaler(growth_interval=1000)
    run = train(task, *words, context=scaled(scaler))
    assert run.status == "completed" and run.events[-1]["step"] == 10
    made = (0, 3, 4, 5, 6, 7, 8, 9)  # the updates at 1 and 2 were left out
    rates = [0.1 * 0.5 ** (step // 5) if own else 0.1 * (1 - step / 10) for step in made]
    assert run.column("step", "lr")[0] == 0.1 and task.made.rates == pytest.approx(rates)
    assert scaler.get_scale() == 256.0

    model = task.model(None)
    average = vector(model)
    for step, rate in zip(made, rates, strict=True):
        rows = slice(12 * (step % 2), 12 * (step % 2) + 12)  # epochs of two windows
        model.zero_grad()
        task.errors(model, rows).mean().backward()
        with torch.no_grad():
            for q in model.parameters():
                q -= rate * q.grad
        now = min(0.6, (2 + step) / (11 + step))
        average = now * average + (1 - now) * vector(model)
    torch.testing.assert_close(run.weights(ema=True), average, rtol=1e-9, atol=1e-12)
    assert run.column("step", "overflows")[-1] == 2
    texts = [event["text"] for event in run.events if event["type"] == "message"]
    assert any(text.startswith("fp16: 1 of the last 1 updates were skipped") for text in texts)


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("cut", [3, 4, 6])
def test_a_run_cut_near_an_update_that_fp16_left_out_goes_on_to_the_bit(train, cut, every):
    class Linear(Averaged):
        def scheduler(self, optimizer, cfg, total_steps):
            return None

    words = (*WINDOWS, "trainer.max_epochs=6", "scheduler.name=linear", "training.ema_decay=0.6")
    log = (f"trainer.log_every_n_steps={every}", "trainer.log_min_seconds=0")

    def run(overflowing, name, *more, **keywords):
        task = Linear(overflowing)
        return train(task, *words, *more, context=scaled(CountedScaler(growth_interval=1000)), name=name, **keywords)

    whole = run({2, 5}, "whole", "trainer.log_every_n_steps=1", "trainer.log_min_seconds=0")
    task = Linear({2, 5})
    first = train(
        task,
        *words,
        *log,
        context=scaled(CountedScaler(growth_interval=1000)),
        name="cut",
        stop=lambda: len(task.seen) >= 3 * cut,
    )
    made = first.events[-1]["step"]  # a stop is heard of a little later
    assert first.status == "interrupted" and cut <= made < 9
    rest = run({update - made for update in (2, 5)}, "cut", *log, resume=True)
    assert rest.status == "completed", rest.reason
    for ema in (False, True):
        assert torch.equal(rest.weights(ema=ema), whole.weights(ema=ema))


def test_an_average_on_a_gpu_stands_still_without_waiting():
    average, weights = [torch.zeros(3)], [torch.ones(3)]
    update_ema(average, weights, ema_stays(0.5, 1), torch.tensor(True))
    assert average[0].tolist() == [0, 0, 0]
    update_ema(average, weights, ema_stays(0.5, 100), torch.tensor(False))
    assert average[0].tolist() == [0.5, 0.5, 0.5]


def test_a_run_in_which_every_update_overflows_does_not_complete(train):
    run = train(Averaged(range(100)), *WINDOWS, "trainer.max_steps=80", context=scaled(CountedScaler()))
    assert run.status == "failed" and "fp16: 50 steps without an update" in run.reason


# samplers


class Weighted(Exact):
    "Draws its samples by weights, the first two never; its data may be read by a loader."

    def __init__(self, loaded=False):
        super().__init__()
        self.loaded = loaded

    def datasets(self, cfg):
        data, valid = super().datasets(cfg)
        return Listed(data) if self.loaded else data, valid

    def sampler(self, dataset, cfg):
        return torch.arange(len(dataset)).sub(1).clamp(min=0)


class Listed(torch.utils.data.Dataset):
    "The same samples, which nobody can hold as tensors."

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def drawn(task, epochs: int) -> list:
    "The indices that each epoch has read; the first batch was tried before."
    flat = [index for batch in task.seen for index in batch]
    assert len(flat) == 23 * epochs
    return [flat[23 * epoch : 23 * (epoch + 1)] for epoch in range(epochs)]


def test_weights_draw_the_same_samples_from_tensors_and_a_loader_and_after_a_resume(train):
    words = ("data.batch_size=4", "accumulate_grad_batches=2", "trainer.max_epochs=3", "dataloader.num_workers=0")
    held, read, first, rest = Weighted(), Weighted(loaded=True), Weighted(), Weighted()
    whole = train(held, *words, name="held")
    train(read, *words, name="read")
    epochs = drawn(held, 3)
    assert epochs == drawn(read, 3) and epochs[0] != epochs[1] and not {0, 1} & {i for e in epochs for i in e}
    train(first, *words, name="cut", stop=lambda: len(first.seen) >= 8)
    assert 8 <= len(first.seen) < 18
    resumed = train(rest, *words, name="cut", resume=True)
    assert first.seen + rest.seen == held.seen
    assert torch.equal(resumed.weights(), whole.weights())


def test_a_list_of_numbers_is_weights():
    task, orders = Exact(), []
    for made in (torch.arange(23.0), torch.arange(23.0).tolist(), torch.arange(23.0).numpy()):
        task.sampler = lambda dataset, cfg, made=made: made
        orders.append(sampled_order(task, task.datasets(None)[0], compose())(0).tolist())
    assert orders[0] == orders[1] == orders[2]


def test_two_ranks_share_out_the_order_of_a_sampler():
    config = compose("data.batch_size=2", "training.gradient_accumulation_steps=2")
    task = Weighted()
    data, _ = task.datasets(config)
    order = sampled_order(task, data, config)
    plan = plan_batches(config, len(order), 2)
    ranks = [train_batches(data, plan, config, Placement("cpu", rank, 2), None, order) for rank in range(2)]
    for epoch in range(2):
        parts = [[b for b in rank.epoch(epoch)] for rank in ranks]
        found = []
        for one, other in zip(*parts, strict=True):
            for batch in (one, other):
                found += batch.data[-1][: batch.samples].tolist()
        assert found == order(epoch).tolist()


class Grouped(torch.utils.data.Sampler):
    "Pairs of neighbours in random order, by NumPy's global generator; half of the samples."

    def __init__(self, samples, of_its_own=False):
        self.samples, self.own = samples, numpy.random.default_rng(0) if of_its_own else None

    def __len__(self):
        return 2 * (self.samples // 4)

    def __iter__(self):
        starts = (self.own or numpy.random).permutation(self.samples // 2)[: self.samples // 4]
        return iter([int(index) for start in starts for index in (2 * start, 2 * start + 1)])


def test_an_epoch_is_as_long_as_its_sampler(train):
    class Pairs(Exact):
        def sampler(self, dataset, cfg):
            return Grouped(len(dataset))

    task, before = Pairs(), numpy.random.get_state()[1].tolist()
    run = train(task, "data.batch_size=2", "trainer.max_epochs=2")
    assert run.events[-1]["step"] == 10 and all(b == a + 1 and a % 2 == 0 for a, b in task.seen)
    assert task.seen[:5] != task.seen[5:] and len({a for a, _ in task.seen[:5]}) == 5
    assert numpy.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    "made, says",
    [
        (torch.ones(5), "returned weights of shape [5] for 23 samples"),
        (-torch.ones(23), "It needs a finite weight from 0 up"),
        (torch.zeros(23), "and one above 0"),
        (itertools.count(), "returned a count without __iter__ or __len__"),
        ([1.0] * 5, "returned weights of shape [5] for 23 samples"),
        ([1, 2, 23], "yields 23. It needs indices from 0 to 22."),
        ([[1, 2], [3, 4]], "yields [1, 2]. It needs indices"),
        (Grouped(23, of_its_own=True), "yields another order when epoch 0 is drawn again"),
        (torch.utils.data.BatchSampler(range(23), 4, False), "which yields batches"),
        (torch.utils.data.DistributedSampler(range(23), 2, 0), "The ranks divide an epoch themselves"),
    ],
)
def test_a_sampler_that_cannot_be_repeated_or_has_no_end_is_refused(made, says):
    task = Exact()
    task.sampler = lambda dataset, cfg: made
    with pytest.raises(RequestError, match=re.escape(says)):
        sampled_order(task, task.datasets(None)[0], compose())


# what changes with time


class Thawing(Exact):
    "Its first layer learns from epoch 1 on; its loss fades; notes when it was told what."

    def __init__(self):
        super().__init__()
        self.told, self.moments = [], []

    def on_epoch(self, model, moment):
        self.told.append((moment.epoch, moment.step, moment.total_steps))
        model[0].requires_grad_(moment.epoch >= 1)

    def loss(self, model, batch, moment=None):
        if model.training:
            self.moments.append(moment.step)
        assert (moment is None) == (not model.training)
        return super().loss(model, batch) * (1 if moment is None else 1 / (1 + moment.step))


def test_a_task_is_told_the_epoch_and_its_loss_the_step_also_after_a_resume(train):
    words = ("data.batch_size=8", "trainer.max_epochs=3")  # three steps an epoch
    whole, first, rest = Thawing(), Thawing(), Thawing()
    straight = train(whole, *words, name="straight")
    assert whole.told == [(0, 0, 9), (1, 3, 9), (2, 6, 9)]
    assert whole.moments[-9:] == list(range(9)) and set(whole.moments[:-9]) <= {0}  # the sanity check comes before it
    train(first, *words, name="cut", stop=lambda: max(first.moments, default=0) >= 3)
    done = first.moments[-1] + 1
    assert 4 <= done < 9
    resumed = train(rest, *words, name="cut", resume=True)
    assert rest.moments[done - 9 :] == list(range(done, 9)) and done - done % 3 in [step for _, step, _ in rest.told]
    assert torch.equal(resumed.weights(), straight.weights())

    model = whole.model(None)
    for step in range(9):
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        model.zero_grad()
        (whole.errors(model, rows).mean() / (1 + step)).backward()
        with torch.no_grad():
            for q in model[2 if step < 3 else 0 :].parameters():
                q -= 0.1 * q.grad
    torch.testing.assert_close(straight.weights(), vector(model), rtol=1e-9, atol=1e-12)


def test_momentum_begins_where_a_layer_thaws(train):
    task = Thawing()
    run = train(task, "data.batch_size=8", "trainer.max_epochs=2", "optimizer.momentum=0.9")
    assert run.status == "completed", run.reason
    model = task.model(None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for step in range(6):
        rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
        optimizer.zero_grad()
        (Exact.errors(task, model, rows).mean() / (1 + step)).backward()
        for q in model[:2].parameters() if step < 3 else ():
            q.grad = None
        optimizer.step()
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-9, atol=1e-12)


class Changed(Rated):
    def on_epoch(self, model, moment):
        if moment.epoch == 1:
            self.change(model)


def test_an_epoch_that_would_train_nothing_is_refused_before_the_first_step(train):
    class Frozen(Changed):
        def change(self, model):
            model.requires_grad_(False)

    why_failed(
        train(Frozen(), "data.batch_size=8", "trainer.max_epochs=2"),
        "on_epoch froze every parameter, so that epoch 1 would train nothing",
    )


def test_an_epoch_with_other_groups_of_parameters_is_said(train):
    class Grouped(Changed):
        def change(self, model):
            self.made.add_param_group({"params": [nn.Parameter(torch.ones(1))]})

    run = train(Grouped(), "data.batch_size=8", "trainer.max_epochs=2")
    said = "Grouped.on_epoch left the optimizer with 2 groups of parameters instead of 1"
    assert run.status == "failed" and said in run.reason


def test_what_thaws_and_is_nobodys_is_named(train):
    class Lost(Thawing):
        def model(self, cfg):
            model = super().model(cfg)
            model[0].requires_grad_(False)
            return model

    run = train(Lost(), "data.batch_size=8", "trainer.max_epochs=2")
    said = [e["text"] for e in run.events if e["type"] == "message"]
    assert run.status == "completed" and any("0.weight" in text and "0.bias" in text for text in said), said

    class Needs(Exact):
        def loss(self, model, batch, moment):
            return super().loss(model, batch)

    with pytest.raises(RequestError, match="Write moment=None: evaluations pass none."):
        train(Needs(), "data.batch_size=8", name="needs")


# activations that are computed again


class Tower(Exact):
    "Blocks with batch norm and dropout; counts what a forward pass keeps."

    def model(self, cfg):
        torch.manual_seed(3)
        self.net = nn.Sequential(
            nn.Sequential(nn.Linear(3, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Tanh()),
            nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Tanh()),
            nn.Sequential(nn.Linear(32, 1), nn.Flatten(0)),
        ).double()
        self.kept = 0
        return self.net

    def loss(self, model, batch):
        if not model.training:
            return super().loss(model, batch)
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(id(t), t), lambda t: t):
            result = super().loss(model, batch)
        self.kept = len(kept)
        return result


def test_activations_that_are_computed_again_change_nothing_but_the_memory(train):
    plain, lean = Tower(), Tower()
    words = ("data.batch_size=8", "trainer.max_epochs=3", "data.drop_last=true")
    one = train(plain, *words, name="plain")
    other = train(lean, *words, "training.gradient_checkpointing=['[01]']", name="lean")
    assert torch.equal(one.weights(), other.weights()) and one.column("step", "loss") == other.column("step", "loss")
    assert 0 < lean.kept < 0.7 * plain.kept


def test_a_models_own_switch_is_used_wherever_it_stands():
    class Backbone(nn.Linear):
        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
            self.asked = gradient_checkpointing_kwargs

    class Stem(nn.Linear):
        def set_grad_checkpointing(self, enable=True):
            self.asked = enable

    model = nn.Sequential(Backbone(2, 2), nn.Sequential(Stem(2, 2)))
    assert save_activations(model, True) == ["0", "1.0"]
    assert model[0].asked == {"use_reentrant": False} and model[1][0].asked is True
    with pytest.raises(RequestError, match="Name the blocks, such as"):
        save_activations(nn.Sequential(nn.Linear(2, 2)), True)


def test_operations_that_are_not_deterministic_are_named_once_and_cublas_is_told(train, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    class Uncertain(Exact):
        def loss(self, model, batch):
            self.cublas = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
            return super().loss(model, batch)

    task = Uncertain()
    run = train(task, "data.batch_size=8", "trainer.max_epochs=2", "trainer.deterministic=true")
    named = [e["text"] for e in run.events if e["type"] == "message" and "have no deterministic form" in e["text"]]
    assert len(named) == 1 and "put_" in named[0]
    assert task.cublas == ":4096:8" and "CUBLAS_WORKSPACE_CONFIG" not in os.environ


class Scattering(Exact):
    "An operation without a deterministic form, from the epoch `since` on, which may be after the sanity check."

    def __init__(self, since):
        super().__init__()
        self.since = since

    def loss(self, model, batch, moment=None):
        if moment is not None and moment.epoch >= self.since:
            torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        return super().loss(model, batch)


def test_strict_refuses_what_has_no_deterministic_form_in_plain_words(train):
    words = ("data.batch_size=8", "trainer.max_epochs=2", "trainer.deterministic=strict")
    says = "put_ has no deterministic implementation on this device, and trainer.deterministic=strict requires one"
    told = why_failed(train(Scattering(0), *words), f"Scattering.loss failed on a training batch: .*{says}.*")
    assert "Use another operation, or trainer.deterministic=true" in told
    late = train(Scattering(1), *words, name="late")
    assert late.status == "failed" and late.events[-1]["step"] == 3 and says in late.reason
    assert "torch.use_deterministic_algorithms" not in late.reason and "Traceback" not in late.reason
    assert train(Scattering(9), *words, name="never").status == "completed"
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_torch_says_of_other_operations_is_understood():
    "The texts are those of aten/src/ATen/Context.cpp and of attention's backward pass."
    told = {
        "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
        "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses "
        "CuBLAS and you have CUDA >= 10.2. To enable deterministic behavior in this case, you must set an environment "
        "variable before running your PyTorch application: CUBLAS_WORKSPACE_CONFIG=:4096:8 or "
        "CUBLAS_WORKSPACE_CONFIG=:16:8.": "cuBLAS",
        "Memory Efficient attention defaults to a non-deterministic algorithm. To explicitly enable determinism call "
        "torch.use_deterministic_algorithms(True, warn_only=False).": "Memory Efficient attention",
    }
    with repeatable(True) as found:
        for text in told:
            warnings.warn(text, stacklevel=1)
    assert found == list(told.values())
    known = explain_known(RuntimeError(next(iter(told))), Scene(Exact(), "loss", "on a training batch"))
    assert "cuBLAS started before" in known.error and "CUBLAS_WORKSPACE_CONFIG" in known.mend
