"Which kernels a run uses: float32 products, the layout of convolutions, compiled models, captured passes."

import contextlib
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from in_process import vector
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.distributed.context import lay_out
from spectrakit.runs.events import last_event
from spectrakit.task.loss import Loss
from spectrakit.train.cuda_graphs import step_capture
from spectrakit.train.start.setup import choose_compile
from tasks import in_sanity_check


class Pictures:
    "Small pictures, a convolution and a norm; what the process and the weights are like is noted in the first loss."

    def __init__(self):
        self.seen = {}

    def datasets(self, cfg):
        x = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x[:16], x[:16].mean((1, 2, 3))), TensorDataset(x[16:], x[16:].mean((1, 2, 3)))

    def model(self, cfg):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1)
        )

    def loss(self, model, batch):
        x, y = batch
        convolved = model[0](x)
        self.seen |= {
            "matmul": torch.get_float32_matmul_precision(),
            "last": convolved.is_contiguous(memory_format=torch.channels_last),
        }
        return (model(x)[:, 0] - y).square().mean()


WORDS = ("data.batch_size=8", "trainer.max_epochs=2", "optimizer.name=adamw", "training.ema_decay=0.9")


def test_channels_last_learns_the_same_goes_on_the_same_and_leaves_plain_files(train):
    asked = (*WORDS, "trainer.channels_last=true", "trainer.float32_matmul=high")
    plain, laid = Pictures(), Pictures()
    one, other = train(plain, *WORDS, name="plain"), train(laid, *asked, name="laid")
    assert plain.seen == {"matmul": "highest", "last": False} and laid.seen == {"matmul": "high", "last": True}
    assert torch.get_float32_matmul_precision() == "highest"  # of this process, again
    torch.testing.assert_close(one.column("step", "loss"), other.column("step", "loss"), rtol=1e-4, atol=1e-6)
    reasons = last_event(other.events, "start")["reasons"]
    assert reasons["channels_last"] == "convolutions: channels last, as asked"
    assert reasons["float32_matmul"] == "float32 products: high, as asked"
    assert not {"channels_last", "float32_matmul"} & set(last_event(one.events, "start")["reasons"])
    weights = load_weights(find_checkpoint(other.folder / "checkpoints")[0])
    assert all(tensor.is_contiguous() for tensor in weights.values())
    train(Pictures(), *asked, "trainer.max_steps=3", name="cut")
    resumed = train(again := Pictures(), *asked, name="cut", resume=True)
    assert again.seen["last"] and torch.equal(resumed.weights(), other.weights())
    assert torch.equal(resumed.weights(ema=True), other.weights(ema=True))


def test_a_layout_is_not_told_of_where_nothing_convolves():
    model = nn.Linear(2, 2)
    before = vector(model)
    assert not lay_out(model, True) and torch.equal(vector(model), before)


class Whole(Pictures):
    "Its loss asks the model as a whole, as one that is compiled wants it."

    def loss(self, model, batch):
        return (model(batch[0])[:, 0] - batch[1]).square().mean()


def test_each_run_of_a_process_is_compiled(train, monkeypatch):
    "torch counts the models of a class together, and trains those past its limit without a word as they are."
    compiled, ours = [], torch.compile

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model: ours(model, backend=backend))
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    torch.compiler.reset()
    graphs = []
    for name in ("one", "two", "three"):
        assert train(Whole(), *WORDS, "trainer.compile=true", name=name).status == "completed"
        graphs.append(len(compiled) - sum(graphs))
    torch.compiler.reset()
    assert graphs[0] > 0 and graphs == graphs[:1] * 3


@pytest.mark.parametrize(("found", "compiles"), [(None, False), (object(), True)])
def test_auto_compiles_on_a_gpu_with_a_compiler(monkeypatch, found, compiles):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    decided, why = choose_compile(compose("trainer.compile=auto").trainer.compile, "cuda")
    assert decided == compiles and why.startswith("compiled" if compiles else "not compiled")


class Inside(nn.Module):
    "A model that returns its loss."

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 1))

    def forward(self, x, y):
        return (self.layers(x)[:, 0] - y).square().mean()


class Outputs:
    "A loss that keeps what the model returned. `samples`: of the training data, up to 32."

    def __init__(self, samples=32):
        self.samples = samples

    def datasets(self, cfg):
        x = torch.rand(48, 2, generator=torch.Generator().manual_seed(1))
        train, valid = x[: self.samples], x[32:]
        return TensorDataset(train, train.sum(1)), TensorDataset(valid, valid.sum(1))

    def model(self, cfg):
        return Inside()

    def loss(self, model, batch):
        value = model(*batch)
        return Loss(value, logs={"seen": (value, 1)})


class Recorder:
    "Stands for a GPU: it computes the recorded step again, into the same tensors."

    def __init__(self, device):
        self.replays, self.logged = 0, ()

    @contextlib.contextmanager
    def warming_up(self):
        yield

    def record(self, function):
        def replay():
            self.replays += 1
            for value, _ in self.logged:  # of the replay before
                value.fill_(torch.nan)
            function()
            self.logged = function.__self__.outputs[1].values()

        return replay


class Forgets(Recorder):
    "Replays with the random numbers of the recording, as if a loss drew them on the CPU."

    def record(self, function):
        drawn = torch.get_rng_state()

        def replay():
            torch.set_rng_state(drawn)
            function()

        return replay


class CannotRecord(Recorder):
    def record(self, function):
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def replayed(monkeypatch):
    "Lets runs on the CPU replay their steps; a list of the recorders."
    made = []

    def use(kind):
        monkeypatch.setattr(step_capture, "CudaRecorder", lambda device: made.append(kind(device)) or made[-1])

    monkeypatch.setattr(
        step_capture,
        "choose_graphs",
        lambda config, *_: (config.trainer.cuda_graphs is True, "CUDA graphs: as asked"),
    )
    monkeypatch.setattr(step_capture, "_kept_on_device", lambda optimizer: True)
    use(Recorder)
    return SimpleNamespace(made=made, use=use)


SGD = ("data.batch_size=8", "trainer.max_epochs=3", "optimizer.name=sgd", "optimizer.lr=0.1", "training.ema_decay=0.9")


@pytest.mark.parametrize(
    ("words", "samples"),
    [
        ((), 32),
        ((), 30),  # the last window of an epoch is a short one
        (("data.global_batch_size=8", "data.micro_batch_size=4"), 32),
        (("trainer.gradient_clip_val=0.01", "scheduler.name=cosine"), 32),
        (("training.nan_policy=skip",), 32),
        (("data.resident_gib=0", "dataloader.num_workers=0"), 32),
    ],
)
def test_replayed_steps_learn_what_plain_ones_do(train, replayed, words, samples):
    words = (*SGD[1:], *(words if "data.global_batch_size=8" in words else (SGD[0], *words)))
    words = (
        *words,
        "trainer.log_every_n_steps=4",
        "trainer.log_min_seconds=0",
    )  # what is logged lies there for three more steps
    plain = train(Outputs(samples), *words, "trainer.cuda_graphs=false", name="plain")
    captured = train(Outputs(samples), *words, "trainer.cuda_graphs=true", name="captured")
    (recorder,) = replayed.made
    assert recorder.replays == 3 + 3 * (samples // 8) - 3  # in the comparison; whole windows but those that warm up
    assert torch.equal(plain.weights(), captured.weights())
    assert torch.equal(plain.weights(ema=True), captured.weights(ema=True))
    for name in ("loss", "train_seen"):
        torch.testing.assert_close(plain.column("step", name), captured.column("step", name))
    assert last_event(captured.events, "start")["reasons"]["cuda_graphs"] == "CUDA graphs: as asked"


def test_a_run_that_replays_its_steps_is_cut_and_goes_on_to_the_bit(train, replayed):
    words = (*SGD, "trainer.cuda_graphs=true", "trainer.max_steps=11", "scheduler.name=constant")
    whole = train(Outputs(), *words, name="whole")
    train(Outputs(), *words, "trainer.max_steps=6", name="cut")
    rest = train(Outputs(), *words, name="cut", resume=True)
    assert torch.equal(whole.weights(), rest.weights()) and torch.equal(whole.weights(ema=True), rest.weights(ema=True))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Forgets, "no CUDA graphs: replayed steps gave another loss"),
        (CannotRecord, "no CUDA graphs: RuntimeError: operation not permitted when stream is capturing"),
    ],
)
def test_steps_that_cannot_be_replayed_are_computed_as_usual(train, replayed, kind, why):
    plain = train(Outputs(), *SGD, "trainer.cuda_graphs=false", name="plain")
    replayed.use(kind)
    run = train(Outputs(), *SGD, "trainer.cuda_graphs=true", name="other")
    assert last_event(run.events, "start")["reasons"]["cuda_graphs"] == why
    assert torch.equal(plain.weights(), run.weights()) and plain.column("step", "loss") == run.column("step", "loss")


class Counts(Outputs):
    "Its loss counts its calls, and doubles after a while."

    calls = 0

    def loss(self, model, batch):
        self.calls += model.training
        return super().loss(model, batch).value * (1 + self.calls // 100)


class CountsInside(Outputs):
    def model(self, cfg):
        inside = Inside()
        inside.calls, forward = 0, inside.forward

        def counted(x, y):
            inside.calls += inside.training
            return forward(x, y)

        inside.forward = counted
        return inside


CALLS = []


class CountsOutside(Outputs):
    def loss(self, model, batch):
        CALLS.append(model.training)
        return super().loss(model, batch)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Counts, "the loss changes 'calls' of the task"),
        (CountsInside, "the model changes an attribute in each pass"),
        (CountsOutside, "the loss changes a value outside the task"),
    ],
)
def test_a_step_that_counts_is_not_replayed(train, replayed, task, why):
    run = train(task(), *SGD, "trainer.cuda_graphs=true")
    assert last_event(run.events, "start")["reasons"]["cuda_graphs"] == f"no CUDA graphs: {why}"
    assert run.status == "completed" and replayed.made[0].replays == 0


class Cycle(Outputs):
    "Its scheduler changes the momentum, too."

    def scheduler(self, optimizer, cfg, total_steps):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total_steps)


def test_a_scheduler_that_changes_more_than_the_rate_ends_the_replays(train, replayed):
    plain = train(Cycle(), *SGD, "optimizer.momentum=0.9", "trainer.cuda_graphs=false", name="plain")
    run = train(Cycle(), *SGD, "optimizer.momentum=0.9", "trainer.cuda_graphs=true", name="other")
    assert torch.equal(plain.weights(), run.weights()) and replayed.made[0].replays == 3 + 1
    said = [event["text"] for event in run.events if event["type"] == "message"]
    assert "no CUDA graphs from here on: a scheduler changes more than the learning rate" in said


class Short(Outputs):
    "Once there is no room for the last batch of an epoch, of six samples."

    full = False

    def loss(self, model, batch):
        if model.training and len(batch[0]) == 6 and not self.full and not in_sanity_check():
            self.full = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return super().loss(model, batch)


def test_without_memory_a_step_is_made_again_without_graphs(train, replayed):
    run = train(Short(30), *SGD, "trainer.cuda_graphs=true", "training.oom_recovery=true", name="short")
    assert run.status == "completed" and replayed.made[0].replays == 3
    said = [event["text"] for event in run.events if event["type"] == "message"]
    assert "no CUDA graphs from here on: the micro batch is 4 now" in said
