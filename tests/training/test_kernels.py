"Which kernels a run uses: float32 products, the layout of convolutions, compiled models, captured passes."

import importlib.util

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from in_process import vector
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.contract.loss import Loss
from spectrakit.distributed.context import lay_out
from spectrakit.runs.events import last_event
from spectrakit.training import setup
from spectrakit.training.setup import choose_compile


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
    "A loss that keeps what the model returned."

    def datasets(self, cfg):
        x = torch.rand(48, 2, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x[:32], x[:32].sum(1)), TensorDataset(x[32:], x[32:].sum(1))

    def model(self, cfg):
        return Inside()

    def loss(self, model, batch):
        value = model(*batch)
        return Loss(value, logs={"seen": (value, 1)})


class Replayed:
    "A model whose passes are replayed: what it returned is overwritten as soon as the next step begins."

    def __init__(self, module, passes, mode):
        self.module, self.room, self.mode, self.returned, self.marks = module, passes, mode, [], 0

    def next_step(self):
        self.marks += 1
        for tensor in self.returned:
            tensor.detach().fill_(torch.nan)
        self.returned = []

    def __call__(self, *batch):
        self.room -= 1
        if self.room == 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        assert torch.is_grad_enabled()  # an evaluation goes by the plain model
        self.returned.append(self.module(*batch))
        return self.returned[-1]


@pytest.fixture
def replayed(monkeypatch):
    "The stand-ins that runs have made; `replayed.passes`: where memory runs out."

    class Made(list):
        passes = 0

    made = Made()
    monkeypatch.setattr(setup, "choose_graphs", lambda *given: (True, "CUDA graphs: as asked"))
    monkeypatch.setattr(
        torch, "compile", lambda module, mode: made.append(Replayed(module, made.passes, mode)) or made[-1]
    )
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: made[-1].next_step())
    return made


def test_captured_passes_learn_what_plain_ones_do(train, replayed, monkeypatch):
    words = (*WORDS, "trainer.log_every_n_steps=4")  # what is logged lies there for three more steps
    with monkeypatch.context() as alone:
        alone.setattr(setup, "choose_graphs", lambda *given: (False, ""))
        plain = train(Outputs(), *words, name="plain")
    captured = train(Outputs(), *words, "trainer.cuda_graphs=true", name="captured")
    (model,) = replayed
    assert model.mode == "reduce-overhead" and model.marks == 3 + 8  # it was tried three times, and left no trace
    assert torch.equal(plain.weights(), captured.weights())
    for name in ("loss", "train_seen"):
        assert plain.column("step", name) == captured.column("step", name)
    assert last_event(captured.events, "start")["reasons"]["cuda_graphs"] == "CUDA graphs: as asked"


def test_without_memory_a_step_is_made_again_without_graphs(train, replayed):
    replayed.passes = 3 + 5
    run = train(Outputs(), *WORDS, "trainer.cuda_graphs=true", "training.oom_recovery=true", name="short")
    assert run.status == "completed" and replayed[0].marks == 3 + 5
    said = [event["text"] for event in run.events if event["type"] == "message"]
    assert "no CUDA graphs from here on: a step has 2 micro batches" in said
