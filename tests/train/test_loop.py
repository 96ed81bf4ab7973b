"The loop against plain PyTorch: the same weights, losses and learning rates, computed another way."

import gc
import itertools
import math
import multiprocessing

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from exact_tasks import CountedScaler, Exact, scaled
from in_process import PLAIN, vector
from spectrakit.checkpoint.store import checkpoints, find_checkpoint, load_weights, verify
from spectrakit.config.compose import compose
from spectrakit.distributed.context import create_run_context
from spectrakit.runs.events import last_event
from spectrakit.runs.run_dir import read_environment
from spectrakit.system.errors import RequestError
from spectrakit.system.platforms.detect import detect
from spectrakit.watchdog.time_budget import Budget, TimeLimit
from tasks import Line, NanTrainingListed, in_sanity_check

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that this torch can use")


def by_hand(task: Exact, epochs: int, window: int, *, clip: float | None = None, decay: float | None = None):
    "(model, losses of each step, moving average by name) of plain gradient descent with rate 0.1 on whole windows."
    model, losses = task.model(None), []
    average, step = {name: p.detach().clone() for name, p in model.named_parameters()}, 0
    for _ in range(epochs):
        for start in range(0, len(task.x), window):
            rows = slice(start, start + window)
            errors = task.errors(model, rows)
            weight = task.w[rows] if task.form == "weighted" else torch.ones_like(errors)
            loss = (weight * errors).sum() / weight.sum()
            model.zero_grad()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                step += 1
                if decay is not None:
                    now = min(decay, (1 + step) / (10 + step))
                    average = {name: now * average[name] + (1 - now) * p for name, p in model.named_parameters()}
            losses.append(loss.item())
    return model, losses, average


# gradients


@pytest.mark.parametrize("form", ["mean", "sum and count", "weighted"])
def test_accumulation_equals_the_one_big_batch(train, form):
    "23 samples in micro batches of 4, three to a window: 12 and 11, the last micro batch with 3 samples."
    task = Exact(form)
    run = train(task, "data.batch_size=4", "accumulate_grad_batches=3", "trainer.max_epochs=3")
    assert run.status == "completed", run.reason
    assert [len(batch) for batch in task.seen[:6]] == [4, 4, 4, 4, 4, 3]
    model, losses, _ = by_hand(task, 3, 12)
    assert run.column("step", "loss") == pytest.approx(losses, rel=1e-12)
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-12, atol=1e-14)


def test_the_means_of_unequal_micro_batches_would_be_something_else(train):
    "The test above can fail: what plain accumulation does differs by far more than its tolerance."
    task = Exact()
    model = task.model(None)
    right = task.errors(model, slice(12, 23)).mean()
    wrong = sum(task.errors(model, slice(a, min(a + 4, 23))).mean() for a in (12, 16, 20)) / 3
    assert abs(right - wrong) / right > 1e-3


def test_accumulation_changes_no_adaptive_optimizer_either(train):
    settings = ("optimizer.name=adamw", "optimizer.weight_decay=0.1", "optimizer.lr=0.01", "trainer.max_epochs=3")
    one = train(Exact(), "data.batch_size=12", *settings, name="one")
    many = train(Exact(), "data.batch_size=4", "accumulate_grad_batches=3", *settings, name="many")
    torch.testing.assert_close(many.weights(), one.weights(), rtol=1e-9, atol=1e-12)
    ends = [last_event(run.events, "eval")["metrics"]["val_loss"] for run in (many, one)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-10)


def test_adamw_is_that_of_torch_with_decay_on_matrices_alone(train):
    task = Exact()
    run = train(
        task,
        "data.batch_size=23",
        "optimizer.name=adamw",
        "optimizer.weight_decay=0.3",
        "optimizer.lr=0.05",
        "optimizer.momentum=0.8",
        "trainer.max_epochs=7",
    )
    model = task.model(None)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.999))
    for _ in range(7):
        optimizer.zero_grad()
        task.errors(model, slice(None)).mean().backward()
        optimizer.step()
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", ["mean", "weighted"])
def test_clipping_acts_once_on_the_accumulated_gradient(train, form):
    task = Exact(form)
    run = train(
        task, "data.batch_size=4", "accumulate_grad_batches=3", "trainer.gradient_clip_val=0.05", "trainer.max_epochs=2"
    )
    model, losses, _ = by_hand(task, 2, 12, clip=0.05)
    free, _, _ = by_hand(task, 2, 12)
    assert not torch.allclose(vector(model), vector(free), rtol=1e-3)  # it does clip
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-12, atol=1e-14)
    assert run.column("step", "loss") == pytest.approx(losses, rel=1e-12)


def test_drop_last_leaves_out_the_short_window(train):
    task = Exact()
    run = train(task, "data.batch_size=4", "accumulate_grad_batches=3", "data.drop_last=true", "trainer.max_epochs=2")
    assert [sum(map(len, task.seen))] == [24] and run.events[-1]["step"] == 2


def test_evaluation_is_the_mean_over_samples_not_over_batches(train):
    for form in ("mean", "weighted"):
        task = Exact(form)
        run = train(task, "data.batch_size=5", "trainer.max_epochs=1", name=form)
        model = task.model(None)
        model.load_state_dict(load_weights(find_checkpoint(run.folder / "checkpoints")[0]))
        weight = task.w if form == "weighted" else torch.ones_like(task.w)
        expected = ((weight * task.errors(model, slice(None))).sum() / weight.sum()).item()
        assert last_event(run.events, "eval")["metrics"]["val_loss"] == pytest.approx(expected, rel=1e-12)


# learning rate


class Recorded(torch.optim.SGD):
    "SGD that notes the learning rate of every step."

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.rates = []

    def step(self, closure=None):
        self.rates.append(self.param_groups[0]["lr"])
        return super().step(closure)


class Rated(Exact):
    "Notes the learning rates of its optimizer."

    def optimizer(self, model, cfg):
        self.made = Recorded(model.parameters(), cfg.optimizer.lr)
        return self.made


# 23 samples: 4 steps an epoch, 12 in all
ACCUMULATED = ("data.batch_size=2", "accumulate_grad_batches=3", "trainer.max_epochs=3")


def test_the_cosine_steps_once_per_optimizer_step(train):
    task = Rated()
    run = train(
        task, *ACCUMULATED, "scheduler.name=cosine", "scheduler.warmup_steps=2", "scheduler.final_lr_fraction=0.1"
    )
    warm, rest = [0.1 / 3, 0.2 / 3], [0.1 * (0.1 + 0.9 * (1 + math.cos(math.pi * i / 10)) / 2) for i in range(10)]
    assert task.made.rates == pytest.approx(warm + rest, rel=1e-12)
    assert run.column("step", "lr") == pytest.approx(warm + rest, rel=1e-12)


def test_warm_up_in_epochs_keeps_its_share_when_accumulation_changes(train):
    few, many = Rated(), Rated()
    train(few, *ACCUMULATED, "scheduler.warmup_epochs=1.5", name="few")
    train(many, "data.batch_size=2", "trainer.max_epochs=3", "scheduler.warmup_epochs=1.5", name="many")
    assert few.made.rates == pytest.approx([0.1 * (i + 1) / 7 for i in range(6)] + [0.1] * 6)
    assert many.made.rates == pytest.approx([0.1 * (i + 1) / 19 for i in range(18)] + [0.1] * 18)


def test_warm_up_as_a_ratio_is_that_share_of_all_steps(train):
    task = Rated()
    train(task, *ACCUMULATED, "warmup_ratio=0.25")
    assert task.made.rates == pytest.approx([0.1 * (i + 1) / 4 for i in range(3)] + [0.1] * 9)


class OwnSchedule(Rated):
    "With a schedule of torch's own."

    def scheduler(self, optimizer, cfg, total_steps):
        self.told = total_steps
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)


def test_a_tasks_own_scheduler_steps_once_per_optimizer_step(train):
    task = OwnSchedule()
    run = train(task, *ACCUMULATED, "scheduler.name=cosine")
    assert task.told == 12 and task.made.rates == pytest.approx([0.1] * 5 + [0.05] * 5 + [0.025] * 2)
    assert run.column("step", "lr") == pytest.approx(task.made.rates)  # not those of the next steps


# moving average, early stop, lengths


def test_the_moving_average_is_the_one_written_by_hand_and_is_what_is_evaluated(train):
    task = Exact()
    run = train(task, "data.batch_size=6", "trainer.max_epochs=3", "training.ema_decay=0.6")
    model, losses, average = by_hand(task, 3, 6, decay=0.6)
    torch.testing.assert_close(run.weights(ema=True), vector(average), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(run.weights(), vector(model), rtol=1e-12, atol=1e-14)
    assert run.column("step", "loss") == pytest.approx(losses, rel=1e-12)
    model.load_state_dict(average)
    expected = task.errors(model, slice(None)).mean().item()
    assert last_event(run.events, "eval")["metrics"]["val_loss"] == pytest.approx(expected, rel=1e-12)


class Scored(Exact):
    "Its metric `rating` takes prescribed values, one for each epoch."

    def __init__(self, values):
        super().__init__()
        self.values, self.batches = values, 4

    def metrics_all(self, predictions, targets):
        assert len(predictions) == len(targets) == 23
        return {"rating": self.values[max(0, len(self.seen) // self.batches - 1)]}


@pytest.mark.parametrize(
    "mode, values, settings, ends, best",
    [
        ("min", [5, 3, 4, 3.5, 1, 1, 1], (), 4, 2),
        ("max", [5, 6, 4, 3.5, 9, 9, 9], (), 4, 2),
        ("min", [5, 3, 4, 2, 3, 3, 1], (), 6, 4),  # the count starts again after an improvement
        # too small to go on for, and yet the best
        ("min", [5, 4.95, 4.9, 1, 1, 1, 1], ("early_stopping.min_delta=0.1",), 3, 3),
        ("min", [5, 3, 3, 3, 1, 1, 1], (), 4, 2),  # as good is not better
        ("min", [5, math.nan, math.nan, 1, 1, 1, 1], (), 3, 1),
    ],
)
def test_early_stopping_ends_at_the_right_evaluation(train, mode, values, settings, ends, best):
    run = train(
        Scored(values),
        "data.batch_size=6",
        "trainer.max_epochs=7",
        "early_stopping.enabled=true",
        "early_stopping.patience=2",
        "checkpoint.monitor=rating",
        f"checkpoint.mode={mode}",
        *settings,
    )
    assert run.status == "early_stopped" and "rating did not improve in 2 evaluations" in run.reason
    assert run.column("eval", "step")[-1] == 4 * ends
    assert [e["step"] for e in run.events if e["type"] == "eval" and e["best"]][-1] == 4 * best
    kept, notes = find_checkpoint(run.folder / "checkpoints", "BEST")
    assert kept.name == f"step-{4 * best:08d}" and notes == []


def test_without_early_stopping_the_same_run_goes_to_its_end(train):
    run = train(
        Scored([5, 3, 4, 3.5, 1, 1]),
        "data.batch_size=6",
        "trainer.max_epochs=6",
        "checkpoint.monitor=rating",
        "checkpoint.mode=min",
    )
    assert run.status == "completed" and run.column("eval", "step")[-1] == 24


@pytest.mark.parametrize("steps", [7, 17])
def test_max_steps_ends_in_the_middle_of_an_epoch_and_may_go_past_max_epochs(train, steps):
    task = Exact()
    run = train(task, "data.batch_size=6", "trainer.max_epochs=2", f"trainer.max_steps={steps}")
    assert (run.status, run.events[-1]["step"], len(task.seen)) == ("completed", steps, steps)
    assert run.column("eval", "step")[-1] == steps and run.column("checkpoint", "step")[-1] == steps
    assert run.column("eval", "epoch")[-1] == steps / 4


def test_evaluations_come_after_every_n_steps_too(train):
    run = train(
        Exact(),
        "data.batch_size=6",
        "trainer.max_epochs=2",
        "trainer.check_val_every_n_steps=3",
        "trainer.check_val_every_n_epoch=2",
    )
    assert run.column("eval", "step") == [3, 6, 8]


@pytest.mark.parametrize(
    "words, steps",
    [
        (("data.batch_size=6", "trainer.val_check_interval=0.5"), [2, 4, 6, 8]),  # 4 steps an epoch
        (("data.batch_size=8", "trainer.val_check_interval=0.5"), [2, 3, 5, 6]),  # 3 steps an epoch
        (("data.batch_size=6", "trainer.val_check_interval=0.1"), list(range(1, 9))),
        (("data.batch_size=6", "trainer.val_check_interval=0.75", "trainer.check_val_every_n_epoch=2"), [3, 6, 8]),
    ],
)
def test_evaluations_come_after_every_fraction_of_an_epoch_too(train, words, steps):
    run = train(Exact(), *words, "trainer.max_epochs=2", "trainer.log_every_n_steps=100")
    assert run.column("eval", "step") == steps


# what is seen, and how much of it


def test_a_fraction_of_an_epoch_that_is_less_than_a_step_is_a_step(train):
    run = train(Exact(), "data.batch_size=8", "trainer.max_epochs=1", "trainer.val_check_interval=0.3")
    assert run.status == "completed" and run.column("eval", "step") == [1, 2, 3], run.reason


def test_every_epoch_visits_every_sample_once_in_an_order_of_its_own(train):
    task = Exact()
    train(task, "data.shuffle=true", "data.batch_size=6", "trainer.max_epochs=2")
    first, second = (
        list(itertools.chain.from_iterable(task.seen[:4])),
        list(itertools.chain.from_iterable(task.seen[4:])),
    )
    assert sorted(first) == sorted(second) == list(range(23)) and first != second


def test_samples_come_in_the_same_order_from_tensors_and_from_a_loader(train):
    class Loaded(Exact):
        def datasets(self, cfg):
            return tuple(list(zip(*part.tensors, strict=False)) for part in super().datasets(cfg))

    tensors, loaded = Exact(), Loaded()
    runs = [
        train(task, "data.shuffle=true", "data.batch_size=6", "trainer.max_epochs=2", name=type(task).__name__)
        for task in (tensors, loaded)
    ]
    assert tensors.seen == loaded.seen
    assert torch.equal(runs[0].weights(), runs[1].weights())


def test_an_evaluation_that_changes_its_batch_in_place_leaves_the_data_alone(train):
    class InPlace(Exact):
        def predict(self, model, batch):
            return model(batch[0].mul_(0.5))

        def metrics(self, outputs, batch):
            return {"mean": (outputs.sum(), len(outputs))}

    task, words = InPlace(), ("data.batch_size=8", "trainer.max_epochs=2", "dataloader.num_workers=0")
    before = task.x.clone()
    held = train(task, *words)
    read = train(InPlace(), *words, "data.resident_gib=0", name="read")
    assert held.column("eval", "metrics") == read.column("eval", "metrics") and torch.equal(task.x, before)


def test_workers_end_with_the_run_and_leave_alone_what_they_were_forked_with(train):
    class Frozen(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            assert get_worker_info() is None or gc.get_freeze_count() > 0
            return tensors[index]

    class Read(Line):
        def datasets(self, cfg):
            return Frozen(), Frozen()

    tensors = list(Line().datasets(None)[0])[:8]
    gc.collect()
    gc.disable()  # which would end them at some time
    try:
        run = train(Read(), "data.batch_size=4", "dataloader.num_workers=1", "trainer.max_epochs=1")
        assert run.status == "completed" and not multiprocessing.active_children(), run.reason
    finally:
        gc.enable()


def test_limits_of_batches(train):
    class Counted(Exact):
        evaluated = 0

        def metrics(self, outputs, batch):
            Counted.evaluated += len(outputs)
            return {"mae": (outputs.sum(), len(outputs))}

    task = Counted()
    run = train(
        task,
        "data.shuffle=true",
        "data.batch_size=4",
        "accumulate_grad_batches=2",
        "trainer.max_epochs=2",
        "limits.max_train_batches=3",
        "limits.max_val_batches=2",
    )
    assert [len(batch) for batch in task.seen] == [4] * 6 and run.events[-1]["step"] == 4
    assert Counted.evaluated == 2 * 8  # after both epochs; the check before the first step leaves no trace
    assert set(list(itertools.chain.from_iterable(task.seen[:3]))) != set(
        list(itertools.chain.from_iterable(task.seen[3:]))
    )  # another part of the data in every epoch


def test_a_fraction_of_the_samples_is_the_same_one_in_every_epoch(train):
    seen = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        task = Exact()
        run = train(
            task,
            "data.shuffle=true",
            "data.batch_size=4",
            "trainer.max_epochs=2",
            "limits.train_frac=0.5",
            f"seed={seed}",
            name=name,
        )
        assert last_event(run.events, "start")["train_samples"] == 12
        epochs = list(itertools.chain.from_iterable(task.seen[:3])), list(itertools.chain.from_iterable(task.seen[3:]))
        assert set(epochs[0]) == set(epochs[1]) and len(set(epochs[0])) == 12
        seen.append(epochs)
    assert seen[0] == seen[1] and set(seen[0][0]) != set(seen[2][0])


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_gives_others(train, deterministic):
    settings = (
        "data.shuffle=true",
        "data.batch_size=8",
        "trainer.max_epochs=2",
        f"trainer.deterministic={deterministic}",
    )
    torch.manual_seed(123)
    one = train(Line(), *settings, "seed=5", name="one")
    torch.manual_seed(321)  # what the process drew before does not matter
    again, other = train(Line(), *settings, "seed=5", name="again"), train(Line(), *settings, "seed=6", name="other")
    assert torch.equal(one.weights(), again.weights()) and not torch.equal(one.weights(), other.weights())
    assert one.column("step", "loss") == again.column("step", "loss") != other.column("step", "loss")
    assert one.column("eval", "metrics") == again.column("eval", "metrics")


def test_a_run_leaves_the_process_as_it_was(train):
    before = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    train(Line(), "trainer.max_epochs=1", "trainer.deterministic=true")
    after = torch.get_rng_state(), torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]


# precision


# two windows of three micro batches an epoch
WINDOWS = ("data.batch_size=4", "accumulate_grad_batches=3", "trainer.max_epochs=3")


@pytest.mark.parametrize("form", ["mean", "weighted"])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_the_scaler_updates_once_per_optimizer_step_and_changes_no_weight(train, form, clip, name):
    settings = (*WINDOWS, f"optimizer.name={name}", *([f"trainer.gradient_clip_val={clip}"] if clip else []))
    scaler = CountedScaler()
    plain = train(Exact(form), *settings, name="plain")
    run = train(Exact(form), *settings, context=scaled(scaler), name="scaled")
    assert run.status == "completed", run.reason
    one_step = ["scale"] * 3 + (["unscale"] if clip else []) + ["step", "update"]
    assert scaler.calls == one_step * 6
    torch.testing.assert_close(run.weights(), plain.weights(), rtol=1e-9, atol=1e-12)
    assert run.column("step", "loss") == pytest.approx(plain.column("step", "loss"), rel=1e-9)


class Overflow(torch.autograd.Function):
    "The value as it is, its gradient infinite: what fp16 does when the scale is too large."

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


class Overflowing(OwnSchedule):
    "The gradient of its micro batch number `when` overflows; keeps its weights after every micro batch."

    def __init__(self, when):
        super().__init__()
        self.when, self.weights = when, []

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if model.training:
            self.weights.append(vector(model))
        return Overflow.apply(loss) if model.training and len(self.seen) == self.when else loss


@pytest.mark.parametrize("when", [2, 8])  # in the first window, where a scale that is too large shows, and in the third
def test_an_overflow_skips_one_step_and_halves_the_scale(train, when):
    scaler, task = CountedScaler(growth_interval=1000), Overflowing(when)
    run = train(task, *WINDOWS, context=scaled(scaler))
    assert run.status == "completed", run.reason
    assert scaler.calls.count("update") == scaler.calls.count("step") == 6 and scaler.get_scale() == 512.0
    edges = [*task.weights[::3], run.weights()]  # before every optimizer step, and after the last
    unchanged = [bool(torch.equal(a, b)) for a, b in itertools.pairwise(edges)]
    assert unchanged == [index == (when - 1) // 3 for index in range(6)]
    assert run.events[-1]["step"] == 6 and all(math.isfinite(loss) for loss in run.column("step", "loss"))


def test_a_resumed_run_goes_on_with_its_scale(train):
    task = Overflowing(5)
    first = train(
        task, *WINDOWS, context=scaled(CountedScaler()), stop=lambda: len(task.weights) >= 9
    )  # in the third window
    assert first.status == "interrupted", first.reason
    scaler = CountedScaler()
    rest = train(OwnSchedule(), *WINDOWS, context=scaled(scaler), resume=True)
    assert rest.status == "completed", rest.reason
    assert scaler.get_scale() == 512.0 and scaler.calls.count("update") == 3


class Watched(Line):
    "Notes whether its model runs under autocast, and in which type."

    def model(self, cfg):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.types = nn.Linear(3, 1), set()

            def forward(self, x):
                out = self.inner(x)
                self.types.add(out.dtype)
                return out.flatten()

        self.net = Net()
        return self.net


@pytest.mark.parametrize(
    "asked, used, inside, words",
    [
        ("bf16", "bf16", torch.bfloat16, "bf16: as asked, on the CPU"),
        ("fp16", "no", torch.float32, "fp32: precision 16 needs a GPU"),
        ("32", "no", torch.float32, "fp32: as asked"),
        ("auto", "no", torch.float32, "fp32"),
    ],
)
def test_precisions_on_a_cpu(train, asked, used, inside, words):
    task = Watched()
    run = train(task, f"trainer.precision={asked}", "data.batch_size=8", "trainer.max_epochs=6")
    start = last_event(run.events, "start")
    assert run.status == "completed" and start["mixed_precision"] == used
    assert words in start["reasons"]["mixed_precision"]
    assert task.net.types == {inside} and run.weights().isfinite().all()
    losses = run.column("step", "loss")
    assert losses[-1] < losses[0] / 2  # it learns
    assert {p.dtype for p in task.net.parameters()} == {torch.float32}


# guards and ends


class NanLater(Exact):
    "Its eleventh training loss is not finite: the third micro batch of the fourth window."

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * (math.nan if model.training and len(self.seen) == 11 else 1.0)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_what_was_before(train):
    run = train(NanLater(), *WINDOWS, "checkpoint.every_n_steps=1")
    assert run.status == "failed"
    assert "nan at optimizer step 4 of epoch 2" in run.reason and "optimizer.lr" in run.reason
    assert "The checkpoint of step 3" in run.reason
    assert [e["type"] for e in run.events].count("nan") == 1 and last_event(run.events, "end")["status"] == "failed"
    path, notes = find_checkpoint(run.folder / "checkpoints")
    assert path.name == "step-00000003" and not notes and run.weights().isfinite().all()


def test_a_sample_that_is_not_finite_is_named_when_it_is_read(train):
    "Sample 11 is in the third batch; the check before the start sees the first."
    run = train(NanTrainingListed(), "data.batch_size=4")
    assert run.status == "failed" and "batch[0] holds 1 values that are not finite" in run.reason
    assert "step 3" in run.reason


class InfiniteGradient(Exact):
    "Its gradients overflow in the second window, its loss does not."

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return Overflow.apply(loss) if model.training and len(self.seen) == 5 else loss


def test_weights_that_are_not_finite_are_never_saved(train):
    run = train(InfiniteGradient(), *WINDOWS, "checkpoint.every_n_steps=1", "checkpoint.keep_last=9")
    assert run.status == "failed"
    assert [path.name for path in checkpoints(run.folder / "checkpoints")] == ["step-00000001"]
    assert run.weights().isfinite().all()
    assert any("step 2 was not saved" in e["text"] for e in run.events if e["type"] == "message")


def test_the_clock_ends_a_run_that_saves_and_says_so(train):
    now = [0.0]
    budget = Budget(TimeLimit(100.0, 0.0, "a test"), clock=lambda: now[0], wall=lambda: 0.0)

    class Slow(Exact):
        def loss(self, model, batch):
            if model.training and not in_sanity_check():
                now[0] += 49.0  # 2 s are left after the second, and 3 s are held back
            return super().loss(model, batch)

    run = train(Slow(), "data.batch_size=23", "trainer.max_epochs=10", budget=budget)
    assert run.status == "out_of_time" and run.events[-1]["step"] == 2, run.reason
    assert find_checkpoint(run.folder / "checkpoints")[0].name == "step-00000002"


def test_a_stopped_run_goes_on_in_the_middle_of_an_epoch_bit_for_bit(train):
    settings = (
        "data.shuffle=true",
        "data.batch_size=4",
        "accumulate_grad_batches=2",
        "trainer.max_epochs=3",
        "training.ema_decay=0.9",
        "optimizer.name=adamw",
        "scheduler.name=one_cycle",
        "checkpoint.every_n_epochs=null",
    )
    whole = train(Line(), *settings, name="whole")

    class Stopping(Line):
        asked = False

        def during(self, number):  # the fourteenth is in the seventh window, the second of its epoch
            self.asked = self.asked or number == 14

    task = Stopping()
    first = train(task, *settings, "trainer.check_val_every_n_steps=1", name="parts", stop=lambda: task.asked)
    assert first.status == "interrupted" and first.events[-1]["step"] == 7
    rest = train(Line(), *settings, name="parts", resume=True)
    assert rest.status == "completed" and last_event(rest.events, "restart")["step"] == 7
    assert torch.equal(rest.weights(), whole.weights()) and torch.equal(rest.weights(ema=True), whole.weights(ema=True))


@pytest.mark.parametrize(("seconds", "made", "said"), [(4.0, True, "one more"), (40.0, False, "no evaluation")])
def test_a_last_evaluation_after_a_stop_is_made_where_it_is_short(train, seconds, made, said):
    "How long one takes is known from the sanity check before the first step, or from the last one."
    budget = Budget(TimeLimit(None, 0.0, "none"))
    task = Exact()

    def stop():
        budget.observe("eval", seconds)
        return len(task.seen) > 3  # one of them was the sanity check's

    run = train(task, "data.batch_size=4", "trainer.max_epochs=9", stop=stop, budget=budget)
    step = run.events[-1]["step"]
    assert run.status == "interrupted" and find_checkpoint(run.folder / "checkpoints")[0].name == f"step-{step:08d}"
    assert (step in run.column("eval", "step")) == made
    assert next(text for text in run.column("message", "text") if "after the stop" in text).startswith(said)


class KnowsEpoch(Exact):
    "Its metric is the epoch that `on_epoch` was told."

    epoch = -1

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch(self, model, moment):
        self.epoch = moment.epoch

    def loss(self, model, batch, moment=None):
        self.losses += [moment.step] if moment and moment.step else []
        return super().loss(model, batch)

    def metrics(self, outputs, batch):
        return {"epoch": (self.epoch * len(outputs), len(outputs))}


def test_an_overdue_evaluation_in_the_middle_of_an_epoch_belongs_to_that_epoch(train):
    budget, task = Budget(TimeLimit(None, 0.0, "none")), KnowsEpoch()
    words = ("data.batch_size=6", "trainer.max_epochs=3", "trainer.val_check_interval=0.5")  # 4 steps an epoch

    def stop():
        budget.observe("eval", 40.0)  # no time for one after the stop
        return 5 in task.losses

    first = train(task, *words, name="cut", stop=stop, budget=budget)
    assert first.events[-1]["step"] == 6 and first.column("eval", "step") == [2, 4]
    rest = train(KnowsEpoch(), *words, name="cut", resume=True)
    found = {event["step"]: event["metrics"]["val_epoch"] for event in rest.events if event["type"] == "eval"}
    assert found == {2: 0, 4: 0, 6: 1, 8: 1, 10: 2, 12: 2}


def test_every_checkpoint_of_a_run_verifies_and_no_more_are_kept_than_asked(train):
    run = train(
        Scored([5, 1, 2, 3, 4, 5]),
        "data.batch_size=6",
        "trainer.max_epochs=6",
        "checkpoint.every_n_steps=4",
        "checkpoint.keep_last=2",
        "checkpoint.monitor=rating",
        "checkpoint.mode=min",
    )
    names = [path.name for path in checkpoints(run.folder / "checkpoints")]
    assert names == ["step-00000008", "step-00000020", "step-00000024"]  # the best, and the newest two
    assert [verify(path) for path in checkpoints(run.folder / "checkpoints")] == [[], [], []]


def test_no_validation_set(train):
    class Blind(Exact):
        def datasets(self, cfg):
            return super().datasets(cfg)[0], None

    run = train(Blind(), "data.batch_size=6", "trainer.max_epochs=2")
    assert run.status == "completed" and run.column("eval", "step") == []
    assert find_checkpoint(run.folder / "checkpoints", "BEST")[0].name == "step-00000008"


@pytest.mark.parametrize("monitor", ["val_mea", "accuracy"])
def test_a_monitor_that_nobody_computes_is_refused_before_training(train, monitor):
    task = Line()
    asked = f"checkpoint.monitor={monitor}"
    with pytest.raises(RequestError, match=asked):
        train(task, asked)
    assert task.losses == 0


class Wayward(Scored):
    "Its metric is called `name`, and `modes` is all that it says about it."

    def __init__(self, values, name, modes):
        super().__init__(values)
        self.name, self.metric_modes = name, modes

    def metrics_all(self, predictions, targets):
        return {self.name: super().metrics_all(predictions, targets)["rating"]}


@pytest.mark.parametrize(
    "name, modes, words, best",
    [
        ("smape", {}, (), 2),
        ("brier_score", {}, (), 2),
        ("qwk", {}, (), 3),
        ("ours", {"ours": "max"}, (), 3),
        ("ours", {"val_ours": "min"}, (), 2),
        ("ours", {"ours": "min"}, ("checkpoint.mode=max",), 3),
    ],
)
def test_the_best_checkpoint_goes_the_way_of_the_metric_and_the_reason_is_recorded(train, name, modes, words, best):
    task = Wayward([3, 1, 5, 2], name, modes)
    run = train(task, "data.batch_size=6", "trainer.max_epochs=4", f"checkpoint.monitor={name}", *words)
    assert [e["step"] for e in run.events if e["type"] == "eval" and e["best"]][-1] == 4 * best
    start, decided = last_event(run.events, "start"), read_environment(run.folder)["decided"]
    assert start["mode"] == decided["mode"] == ("min" if best == 2 else "max")
    assert f"val_{name}, {'lower' if best == 2 else 'higher'} is better" in start["reasons"]["mode"]
    assert decided["reasons"]["mode"] == start["reasons"]["mode"]


def test_a_metric_whose_name_does_not_tell_is_refused_before_training(train):
    task = Wayward([1, 2], "ours", {})
    with pytest.raises(
        RequestError, match=r"direction of the metric val_ours .* checkpoint\.mode=max or checkpoint\.mode=min"
    ):
        train(task, "data.batch_size=6", "checkpoint.monitor=ours")
    assert task.seen == []


def test_a_run_that_goes_on_keeps_the_direction_that_it_recorded(train):
    words = ("data.batch_size=6", "checkpoint.monitor=ours")
    task = Wayward([3, 1, 5, 4], "ours", {"ours": "max"})
    train(task, *words, "trainer.max_epochs=2", name="kept")
    task.metric_modes = {}
    run = train(task, *words, "trainer.max_epochs=4", name="kept", resume=True)
    assert [e["best"] for e in run.events if e["type"] == "eval"] == [True, False, True, False]
    assert read_environment(run.folder)["decided"]["mode"] == "max"


# a GPU


@needs_gpu
@pytest.mark.parametrize("asked", ["fp16", "bf16"])
def test_mixed_precision_on_a_gpu(train, asked):
    if asked == "bf16" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no bf16")
    task = Watched()
    settings = (
        "trainer.accelerator=gpu",
        f"trainer.precision={asked}",
        "data.batch_size=8",
        "accumulate_grad_batches=2",
        "trainer.gradient_clip_val=10",
        "trainer.deterministic=false",
    )
    context = create_run_context(compose(*PLAIN, *settings), detect())
    run = train(task, *settings, "trainer.max_epochs=8", context=context)
    assert run.status == "completed", run.reason
    assert last_event(run.events, "start")["mixed_precision"] == asked == context.mixed_precision
    assert task.net.types == {{"fp16": torch.float16, "bf16": torch.bfloat16}[asked]}
    losses = run.column("step", "loss")
    assert losses[-1] < losses[0] / 2 and (context.scaler is None) == (asked == "bf16")


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch calls it a prototype
@pytest.mark.parametrize("asked", ["32", "fp16"])
def test_the_loop_never_waits_for_the_device_between_log_points(train, asked):
    class Guarded(Line):
        "From its third to its ninth training loss any wait for the GPU is an error; the log point is the tenth."

        def during(self, number):
            if number == 3:
                torch.cuda.set_sync_debug_mode("error")
            if number == 10:
                torch.cuda.set_sync_debug_mode("default")

    settings = (
        "trainer.accelerator=gpu",
        f"trainer.precision={asked}",
        "data.batch_size=2",
        "optimizer.name=adamw",
        "scheduler.name=cosine",
        "trainer.gradient_clip_val=1.0",
        "training.ema_decay=0.9",
        "trainer.log_every_n_steps=10",
        "trainer.log_min_seconds=0",
        "trainer.max_epochs=1",
        "trainer.deterministic=false",
    )
    try:
        run = train(Guarded(), *settings, context=create_run_context(compose(*PLAIN, *settings), detect()))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.status == "completed", run.reason
