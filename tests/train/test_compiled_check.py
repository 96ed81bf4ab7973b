"Models that the task itself compiles, whole or in parts, are saved, loaded and resumed by plain names."

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from in_process import INLINE, furthest, weights
from spectrakit.task.task import Task
from spectrakit.train.learner.model import compiled_in_place

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:The .grad attribute")]  # torch's own warning

DRAW = torch.Generator().manual_seed(5)
X, Y = torch.randn(24, 4, generator=DRAW), torch.randn(24, generator=DRAW)
QUICK = (
    *INLINE,
    "trainer.max_epochs=2",
    "scheduler.name=constant",
    "checkpoint.max_share=1",
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).tanh())[:, 0]


def whole(net):
    return torch.compile(net, backend="eager")


def part(net):
    net.head = torch.compile(net.head, backend="eager")
    return net


def nested(net):
    net.norm = torch.compile(net.norm, backend="eager")
    return torch.compile(part(net), backend="eager")


def in_place(net):
    net.compile(backend="eager")
    return net


KINDS = {kind.__name__: kind for kind in (whole, part, nested, in_place)}


class Compiled(Task):
    def __init__(self, kind=None):
        self.kind = kind

    def datasets(self, cfg):
        return TensorDataset(X, Y), TensorDataset(X[:8], Y[:8])

    def test_dataset(self, cfg):
        return TensorDataset(X[8:18], Y[8:18])

    def model(self, cfg):
        return KINDS[self.kind](Net()) if self.kind else Net()

    def loss(self, model, batch):
        return F.mse_loss(model(batch[0]), batch[1])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return sk.fit(Compiled(), *QUICK, f"run.dir={tmp_path_factory.mktemp('plain') / 'run'}", show=False)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_compiled_trains_as_what_is_not_and_its_checkpoint_is_the_same(kind, plain, tmp_path):
    run = sk.fit(Compiled(kind), *QUICK, f"run.dir={tmp_path / 'run'}", show=False, predict=str(tmp_path / "out.csv"))
    assert run.status == "completed" and furthest(weights(run.path), weights(plain.path)) < 1e-5
    assert not any("_orig_mod" in name for name in weights(run.path))
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert len(rows) == 11 and len(set(row.partition(",")[2] for row in rows)) == 11  # no guess, the same for all


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_run_is_loaded_into_a_compiled_model_and_the_other_way_round(kind, plain, tmp_path):
    run = sk.fit(Compiled(kind), *QUICK, f"run.dir={tmp_path / 'run'}", show=False)
    with torch.no_grad():
        results = [one.load_model(Compiled(of))(X[:4]) for one in (run, plain) for of in (kind, None)]
    assert all(torch.allclose(results[0], result, atol=1e-5) for result in results)


@pytest.mark.parametrize("kind", ["whole", "nested"])
def test_averages_groups_and_a_resumed_run_know_plain_names(kind, plain, tmp_path):
    words = ("optimizer.groups=[{match: 'body.*', lr_factor: 0.5}]", "training.ema_decay=0.5")
    whole_run = sk.fit(Compiled(kind), *QUICK, *words, f"run.dir={tmp_path / 'whole'}", show=False)
    half = sk.fit(Compiled(kind), *QUICK, *words, "trainer.max_epochs=1", f"run.dir={tmp_path / 'half'}", show=False)
    rest = sk.resume(half, Compiled(), "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]", show=False)
    assert furthest(weights(rest.path), weights(whole_run.path)) < 1e-5


def test_the_passes_go_on_being_compiled_with_the_hooks_of_the_wrapper():
    compiled, seen = [], []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    class Fresh(Net):  # torch compiles the code of one `forward` a few times in a process only
        def forward(self, x):
            return self.body(x).sum()

    net = Fresh()
    wrapped = torch.compile(net, backend=backend)
    wrapped.register_forward_hook(lambda module, inputs, output: seen.append(output))
    again = compiled_in_place(wrapped)
    again(X)
    assert again is net and compiled and seen


def test_a_part_that_stands_at_two_places_stays_one():
    shared = torch.compile(nn.Linear(4, 4), backend="eager")
    net = compiled_in_place(nn.Sequential(shared, nn.Tanh(), shared))
    assert net[0] is net[2] and list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
