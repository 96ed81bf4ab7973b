"Recorded and replayed steps: `recorded_ops` is in the place of CUDA graphs, and no value is read within a step."

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from exact_tasks import CountedScaler, scaled
from recorded_ops import OpsRecorder, on_a_gpu
from spectrakit.data.augmentation import random_crop
from spectrakit.runs.events import last_event
from spectrakit.task.loss import Loss
from spectrakit.train import gradient_accumulation
from spectrakit.train.cuda_graphs import step_capture
from spectrakit.train.parts import ema, loss_scaling, nan_guard

WORDS = ("data.batch_size=8", "trainer.max_epochs=4", "optimizer.name=adamw", "optimizer.lr=0.01", "data.shuffle=true")
SHARED = ("trainer.log_every_n_steps=3",)
ON, OFF = "trainer.cuda_graphs=true", "trainer.cuda_graphs=false"


class Small:
    "A net with batch norm and dropout on 44 samples: five whole windows of eight and a short one."

    def __init__(self, samples=44):
        self.samples = samples

    def datasets(self, cfg):
        x = torch.rand(61, 2, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x[: self.samples], x[: self.samples].sum(1)), TensorDataset(x[44:], x[44:].sum(1))

    def model(self, cfg):
        return nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 1))

    def loss(self, model, batch):
        value = (model(batch[0])[:, 0] - batch[1]).square().mean()
        return Loss(value, logs={"seen": (value, 1)})


@pytest.fixture
def captured(monkeypatch):
    "Runs on the CPU go the way of a GPU; the list of their recorders."
    made, choose = [], step_capture.choose_graphs

    def recorder(device):
        made.append(OpsRecorder())
        return made[-1]

    for module in (gradient_accumulation, ema, loss_scaling, nan_guard):
        monkeypatch.setattr(module, "reads_at_once", lambda context: False)
    monkeypatch.setattr(step_capture, "CudaRecorder", recorder)
    monkeypatch.setattr(step_capture, "choose_graphs", lambda c, context, *rest: choose(c, on_a_gpu(context), *rest))
    monkeypatch.setattr(
        step_capture.CudaGraphs, "wanted", classmethod(lambda cls, s: s.config.trainer.cuda_graphs is True)
    )
    return made


def why(run) -> str:
    return last_event(run.events, "start")["reasons"]["cuda_graphs"]


def messages(run) -> list[str]:
    return [event["text"] for event in run.events if event["type"] == "message"]


def assert_alike(one, other):
    assert one.status == other.status == "completed", (one.reason, other.reason)
    assert torch.equal(one.weights(), other.weights()) and torch.equal(one.weights(ema=True), other.weights(ema=True))
    for kind, name in (("step", "loss"), ("step", "lr"), ("step", "train_seen"), ("eval", "metrics")):
        assert one.column(kind, name) == other.column(kind, name), name


EMA = "training.ema_decay=0.9"
GUARANTEES = {
    "a short last window": (),
    "whole windows": ("data.batch_size=11",),
    "accumulation": ("data.global_batch_size=8", "data.micro_batch_size=2"),
    "a moving average while it warms up": (EMA,),
    "averaged buffers": (EMA, "training.ema_buffers=true"),
    "clipping by norm": ("trainer.gradient_clip_val=0.05",),
    "clipping by value": ("trainer.gradient_clip_val=0.01", "trainer.gradient_clip_algorithm=value"),
    "a changing rate": ("scheduler.name=cosine", "scheduler.warmup_ratio=0.3"),
    "bad updates left out": ("training.nan_policy=skip", EMA),
    "rollback": ("training.nan_policy=rollback",),
    "sgd": ("optimizer.name=sgd", "optimizer.momentum=0.9", EMA),
    "bf16": ("trainer.precision=bf16",),
    "an evaluation in each epoch's middle": ("trainer.check_val_every_n_steps=4", EMA),
    "saves between": ("checkpoint.every_n_steps=4", EMA),
    "rows in host memory": ("data.resident_gib=0", "dataloader.num_workers=0"),
    "a loader": ("dataloader.num_workers=0", "data.resident_gib=0", EMA),
}


@pytest.mark.parametrize("words", GUARANTEES.values(), ids=GUARANTEES)
def test_captured_steps_learn_what_plain_ones_do(train, captured, words):
    kept = [word for word in WORDS if word.partition("=")[0] not in {w.partition("=")[0] for w in words}]
    kept = [word for word in kept if not (word == WORDS[0] and any("global_batch" in w for w in words))]
    plain = train(Small(), *kept, *SHARED, *words, OFF, name="plain")
    run = train(Small(), *kept, *SHARED, *words, ON, name="captured")
    assert why(run) == "CUDA graphs: as set", why(run)
    (recorder,) = captured
    assert recorder.recordings == 2 and recorder.replays >= 3 + 13  # the comparison's, and the run's
    assert_alike(plain, run)


class Weighted(Small):
    def loss(self, model, batch):
        errors = (model(batch[0])[:, 0] - batch[1]).square()
        return (errors * batch[0][:, 0]).sum(), batch[0][:, 0].sum()


def test_the_weights_of_losses_are_summed_on_the_device(train, captured):
    words = (*WORDS[1:], *SHARED, "data.global_batch_size=8", "data.micro_batch_size=4")
    plain, run = train(Weighted(), *words, OFF, name="plain"), train(Weighted(), *words, ON, name="captured")
    assert why(run) == "CUDA graphs: as set" and torch.equal(plain.weights(), run.weights())
    assert plain.column("step", "loss") == run.column("step", "loss")


class Overflows(Small):
    "The loss of one batch in five is infinite."

    def loss(self, model, batch):
        value = (model(batch[0])[:, 0] - batch[1]).square().mean()
        return Loss(torch.where(batch[0][0, 0] < 0.2, value / 0, value), logs={"seen": (value, 1)})


@pytest.mark.parametrize("words", [(EMA,), ("trainer.gradient_clip_val=0.1", EMA)])
def test_updates_that_fp16_leaves_out_are_left_out_in_a_replay(train, captured, words):
    def run(word, name):
        scaler = CountedScaler(growth_interval=5)
        more = ("training.nan_policy=skip", *words, word)
        return train(Overflows(), *WORDS, *SHARED, *more, context=scaled(scaler), name=name), scaler.get_scale()

    (plain, scale), (replayed, other) = run(OFF, "plain"), run(ON, "captured")
    assert why(replayed) == "CUDA graphs: as set" and scale == other
    assert_alike(plain, replayed)


@pytest.mark.parametrize(
    "words", [(), (EMA, "data.global_batch_size=8", "data.micro_batch_size=4"), ("scheduler.name=linear", EMA)]
)
@pytest.mark.parametrize("cut", [4, 7, 13])
def test_a_captured_run_that_was_cut_goes_on_to_the_bit(train, captured, words, cut):
    kept = WORDS if "data.global_batch_size=8" not in words else WORDS[1:]
    whole = train(Small(), *kept, *words, ON, name="whole")
    train(Small(), *kept, *words, ON, stop=stops_after(cut), name="cut")
    rest = train(Small(), *kept, *words, ON, name="cut", resume=True)
    assert rest.status == "completed" and why(rest) == why(whole) == "CUDA graphs: as set"
    assert torch.equal(whole.weights(), rest.weights()) and torch.equal(whole.weights(ema=True), rest.weights(ema=True))


def stops_after(calls):
    "A stop as by ■, at the n-th question."
    asked = iter(range(10**9))
    return lambda: next(asked) >= calls


class Freezes(Small):
    "Trains its last layer alone at first, then everything, then with another factor in the loss."

    factor = 1.0

    def on_epoch(self, model, moment):
        model[0].requires_grad_(moment.epoch >= 1)
        self.factor = 1.0 if moment.epoch < 3 else 3.0

    def loss(self, model, batch):
        return super().loss(model, batch).value * self.factor


def test_after_each_epoch_that_may_change_the_step_it_is_recorded_again(train, captured):
    words = (*WORDS, *SHARED, EMA)
    plain, run = train(Freezes(), *words, OFF, name="plain"), train(Freezes(), *words, ON, name="captured")
    (recorder,) = captured
    assert recorder.recordings == 1 + 4 and recorder.replays == 3 + 4 * 2
    assert torch.equal(plain.weights(), run.weights()) and torch.equal(plain.weights(ema=True), run.weights(ema=True))
    assert plain.column("step", "loss") == run.column("step", "loss")


class LaterByHand(Freezes):
    "From the third epoch on its loss draws with NumPy."

    def loss(self, model, batch):
        return super().loss(model, batch) * (1.0 if self.factor == 1.0 else np.random.rand())


def test_a_step_that_draws_elsewhere_later_is_no_longer_replayed(train, captured):
    plain = train(LaterByHand(), *WORDS, OFF, name="plain")
    run = train(LaterByHand(), *WORDS, ON, name="captured")
    assert "no CUDA graphs from here on: the loss draws random numbers that are not torch's on the device" in messages(
        run
    )
    assert torch.equal(plain.weights(), run.weights())


class Held(Small):
    "Holds a slow copy of its output, which the loss moves in place."

    def __init__(self):
        super().__init__()
        self.mean, self.scale = torch.zeros(()), nn.Linear(1, 1)

    def loss(self, model, batch):
        value = self.scale((model(batch[0])[:, 0] - batch[1])[:, None]).square().mean()
        self.mean.lerp_(value.detach(), 0.5)
        return value + 0.1 * self.mean


def test_tensors_of_the_task_are_part_of_the_step_and_of_the_comparison(train, captured):
    one, other = Held(), Held()
    other.scale.load_state_dict(one.scale.state_dict())
    plain, run = train(one, *WORDS, OFF, name="plain"), train(other, *WORDS, ON, name="captured")
    assert why(run) == "CUDA graphs: as set" and torch.equal(plain.weights(), run.weights())
    assert torch.equal(one.mean, other.mean) and torch.equal(one.scale.weight, other.scale.weight)


class Own(Small):
    def __init__(self):
        super().__init__()
        self.state = {"phase": 0}
        self.generator, self.dice = np.random.default_rng(1), random.Random(1)


class ByNumPy(Own):
    def loss(self, model, batch):
        return super().loss(model, batch).value * (2 if self.generator.random() < 1e-9 else 1)


class ByPython(Own):
    def loss(self, model, batch):
        return super().loss(model, batch).value * (2 if random.random() < 1e-9 else 1)


class ByDice(Own):
    def loss(self, model, batch):
        return super().loss(model, batch).value + 0 * self.dice.random()


class Phases(Own):
    def loss(self, model, batch):
        self.state["phase"] += 1
        return super().loss(model, batch).value


class CountsBackward(Own):
    "A gradient's hook counts."

    def model(self, cfg):
        net = super().model(cfg)
        net[0].weight.register_hook(lambda grad: grad * (1 + self.state["phase"]))
        return net


class Reads(Own):
    def loss(self, model, batch):
        value = super().loss(model, batch).value
        return value * 2 if model.training and value > 1e9 else value


class ReadsFloat(Own):
    def loss(self, model, batch):
        value = super().loss(model, batch).value
        return Loss(value, logs={"seen": (float(value.detach()), 1)})


class Masks(Own):
    def loss(self, model, batch):
        return (model(batch[0])[:, 0] - batch[1])[batch[1] > 0.1].square().mean()


class Finds(Own):
    def loss(self, model, batch):
        return (model(batch[0])[:, 0] - batch[1]).square().mean() + 0 * batch[1].nonzero().sum()


class ByMoment(Own):
    def loss(self, model, batch, moment=None):
        return super().loss(model, batch).value * (1 if moment is None or moment.epoch < 2 else 2)


class Adagrad(Own):
    def optimizer(self, model, cfg):
        return torch.optim.RMSprop(model.parameters(), lr=0.01)


class Hooked(Own):
    def optimizer(self, model, cfg):
        made = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
        made.register_step_post_hook(lambda *_: self.state.update(phase=self.state["phase"] + 1))
        return made


STREAM = "RuntimeError: operation not permitted when stream is capturing"
REFUSED = [
    (ByNumPy, (), "the loss draws random numbers that are not torch's on the device"),
    (ByPython, (), "the loss draws random numbers that are not torch's on the device"),
    (ByDice, (), "the loss draws random numbers that are not torch's on the device"),
    (Phases, (), "the loss changes 'state' of the task"),
    (CountsBackward, (), "a hook of the optimizer or of a parameter would run once"),
    (Hooked, (), "a hook of the optimizer or of a parameter would run once"),
    (Reads, (), STREAM),
    (ReadsFloat, (), STREAM),
    (Masks, (), STREAM),
    (Finds, (), STREAM),
    (ByMoment, (), "the loss asks for the moment"),
    (Adagrad, (), "the optimizer is not one of torch's fused ones"),
    (Small, ("training.mixup=0.2",), "training.mixup draws its shares on the CPU"),
]


@pytest.mark.parametrize(("task", "words", "reason"), REFUSED, ids=[task.__name__ for task, *_ in REFUSED])
def test_a_step_that_cannot_be_replayed_is_computed_and_the_reason_told(train, captured, task, words, reason):
    plain = train(task(), *WORDS, *words, OFF, name="plain")
    run = train(task(), *WORDS, *words, ON, name="captured")
    assert why(run) == f"no CUDA graphs: {reason}"
    assert torch.equal(plain.weights(), run.weights()) and plain.column("step", "loss") == run.column("step", "loss")


class Wrong(OpsRecorder):
    "Replays with one call left out."

    def __init__(self, left_out):
        super().__init__()
        self.left_out = left_out

    def record(self, function):
        replay = super().record(function)
        calls = replay.__closure__[1].cell_contents.calls
        calls[:] = [call for call in calls if self.left_out not in str(call[0])]
        return replay


@pytest.mark.parametrize(
    ("left_out", "part"),
    [
        ("_fused_adamw", "loss"),
        ("native_batch_norm_backward", "loss"),
        ("foreach_mul_", "moving average"),
        ("bernoulli", "loss"),
    ],
)
def test_the_comparison_notices_a_replay_that_computes_something_else(train, captured, monkeypatch, left_out, part):
    monkeypatch.setattr(step_capture, "CudaRecorder", lambda *_: Wrong(left_out))
    plain = train(Small(), *WORDS, EMA, OFF, name="plain")
    run = train(Small(), *WORDS, EMA, ON, name="captured")
    assert why(run) == f"no CUDA graphs: replayed steps gave another {part}"
    assert torch.equal(plain.weights(), run.weights()) and torch.equal(plain.weights(ema=True), run.weights(ema=True))


class TensorRate(Small):
    "Its learning rate is a tensor, which torch's schedulers change in place."

    def optimizer(self, model, cfg):
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), fused=True)

    def scheduler(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


class Peeks(torch.autograd.Function):
    "The identity, which reads a value in its backward pass."

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad if grad.sum().item() < 1e9 else 2 * grad


class LaterPeeks(Small):
    "From the second epoch on its backward pass cannot be recorded, when some gradients are there already."

    peeks = False

    def on_epoch(self, model, moment):
        self.peeks = moment.epoch >= 1

    def loss(self, model, batch):
        inner = model[:3](batch[0])
        return (model[3:](Peeks.apply(inner) if self.peeks else inner)[:, 0] - batch[1]).square().mean()


class Measured(Small):
    "Each evaluation changes a factor of the loss."

    def __init__(self):
        super().__init__()
        self.held = {"factor": 1.0}

    def loss(self, model, batch):
        return super().loss(model, batch).value * self.held["factor"]

    def predict(self, model, batch):
        return model(batch[0])[:, 0]

    def metrics(self, outputs, batch):
        self.held["factor"] = self.held["factor"] * 0.5
        return {"mean": (outputs.sum(), len(outputs))}


class MeasuredTensor(Measured):
    def __init__(self):
        super().__init__()
        self.held = {"factor": torch.ones(())}


class Counting(nn.Module):
    "Counts its passes in a dict, for a factor in the later ones."

    def __init__(self):
        super().__init__()
        self.line, self.seen = nn.Linear(2, 1), {"passes": 0}

    def forward(self, x):
        self.seen["passes"] += self.training
        return self.line(x) * (3 if self.seen["passes"] > 12 else 1)


class CountsInModel(Small):
    def model(self, cfg):
        return Counting()


class CountsInHook(Small):
    def model(self, cfg):
        net, passes = super().model(cfg), [0]

        def counted(module, inputs, outputs):
            passes[0] += 1
            return outputs * (1 if passes[0] < 1000 else 2)

        net[0].register_forward_hook(counted)
        return net


class ReadsSchedule(Small):
    rule = None

    def scheduler(self, optimizer, cfg, total_steps):
        self.rule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return self.rule

    def loss(self, model, batch):
        return super().loss(model, batch).value * (2 if self.rule is not None and self.rule.last_epoch > 9 else 1)


class LaterWide(Small):
    "One sample is wider, in the third micro batch of an eighth window."

    def datasets(self, cfg):
        return [(torch.ones(4 if n == 60 else 1) * n / 72, torch.tensor(n / 36)) for n in range(72)], None

    def collate(self, samples):
        rows = nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
        return rows, torch.stack([y for _, y in samples])

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        return (model(batch[0].sum(1, keepdim=True))[:, 0] - batch[1]).square().mean()


class Crops(Small):
    def loss(self, model, batch):
        rows = random_crop(batch[0][:, None, None, :], padding=1)[:, 0, 0]
        return (model(rows)[:, 0] - batch[1]).square().mean()


CAPTURED = "CUDA graphs: as set"
PARTS = ("data.global_batch_size=8", "data.micro_batch_size=2")
WIDE = ("data.shuffle=false", "dataloader.num_workers=0", *PARTS)
LATER = "no CUDA graphs from here on: "
BETWEEN = [  # what changes between two steps, outside of the loss: (task, settings, (decision, recordings, message))
    (TensorRate, (), (CAPTURED, 2, None)),
    (LaterPeeks, (), (CAPTURED, 2, f"{LATER}{STREAM}")),
    (LaterPeeks, PARTS, (CAPTURED, 2, f"{LATER}{STREAM}")),
    (Measured, (), (CAPTURED, 5, None)),
    (MeasuredTensor, (), (CAPTURED, 5, None)),
    (CountsInModel, (), ("no CUDA graphs: the model changes an attribute in each pass", 0, None)),
    (CountsInHook, (), ("no CUDA graphs: the model changes an attribute in each pass", 0, None)),
    (ReadsSchedule, (), (CAPTURED, 1, f"{LATER}task.rule._step_count changes between steps")),
    (Crops, (), (CAPTURED, 2, None)),
    (LaterWide, WIDE, (CAPTURED, 2, None)),
]


@pytest.mark.parametrize(("task", "words", "told"), BETWEEN, ids=[task.__name__ for task, *_ in BETWEEN])
def test_a_change_between_steps_reaches_captured_ones(train, captured, task, words, told):
    decision, recordings, message = told
    kept = WORDS if not words else [word for word in WORDS[1:] if word != "data.shuffle=true"]
    plain = train(task(), *kept, *SHARED, *words, OFF, name="plain")
    run = train(task(), *kept, *SHARED, *words, ON, name="captured")
    assert why(run) == decision and sum(each.recordings for each in captured) == recordings
    assert message is None or message in messages(run)
    assert torch.equal(plain.weights(), run.weights()) and plain.column("step", "loss") == run.column("step", "loss")
