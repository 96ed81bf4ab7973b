"Mixup: one setting, for classes and for numbers, exact over a resume."

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.config.compose import compose
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task
from spectrakit.train.parts.mixup import mixup_loss, roles_of
from tasks import Line

pytestmark = pytest.mark.slow
WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=8",
    "accumulate_grad_batches=1",
    "run.dir=runs",
)
MIXED = (*WORDS, "training.mixup=0.4", "scheduler.name=constant", "trainer.log_min_seconds=0")


class Classes(Task):
    def datasets(self, cfg):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, (x.sum(1) > 0).long())
        return data, data

    def model(self, cfg):
        return nn.Linear(4, 2)

    def loss(self, model, batch):
        outputs = model(batch[0])
        return sk.Loss(F.cross_entropy(outputs, batch[1]), outputs=outputs)

    def metrics(self, outputs, batch):
        return {"accuracy": ((outputs.argmax(1) == batch[1]).sum(), len(outputs))}


@pytest.mark.parametrize("make", [Classes, Line])
def test_what_follows_a_resume_is_what_would_have_been(here, make):
    whole = sk.fit(make(), compose(*MIXED, "trainer.max_epochs=4"), show=False)
    half = sk.fit(make(), compose(*MIXED, "trainer.max_epochs=2"), show=False)
    words = ("trainer.max_epochs=4", "resume.allow=[trainer.max_epochs]")
    more = sk.resume(half, make(), *words, show=False)
    plain = sk.fit(make(), compose(*MIXED, "trainer.max_epochs=4", "training.mixup=0"), show=False)
    last = [[row["loss"] for row in run.events if row["type"] == "step"][-1] for run in (whole, more, plain)]
    assert last[0] == last[1] != last[2] and whole.metrics == more.metrics


def test_inputs_that_cannot_be_mixed_are_refused_before_a_run(here):
    class Tokens(Classes):
        def datasets(self, cfg):
            data = TensorDataset(torch.arange(64).reshape(16, 4), torch.arange(16) % 2)
            return data, None

        def loss(self, model, batch):
            return F.cross_entropy(model(batch[0].float()), batch[1])

    with pytest.raises(RequestError, match="training.mixup mixes float inputs"):
        sk.fit(Tokens(), compose(*MIXED), show=False)


class Heads(Task):
    "Two outputs a sample; `targets` and the loss are those of each form of a batch."

    def targets(self, batch):
        return batch.get("kind")


def compare(outputs, batch):
    "The loss of the parts that a batch has, as a task would write it."
    total = outputs.sum() * 0
    if "kind" in batch:
        total = total + F.cross_entropy(outputs[:, :2], batch["kind"])
    if "mask" in batch:
        total = total + F.cross_entropy(outputs[:, :, None].expand(-1, -1, 3), batch["mask"])
    if "soft" in batch:
        total = total + F.cross_entropy(outputs, batch["soft"])
    if "age" in batch:
        errors = (outputs[:, 0] - batch["age"]).abs()  # so that the loss of a mixture is not the mixture of losses
        total = total + (errors * batch.get("sample_weight", 1)).mean()
    return total


def parts():
    g = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(6, 4, generator=g),
        "kind": torch.arange(6) % 2,
        "mask": torch.randint(0, 3, (6, 3), generator=g),
        "soft": torch.rand(6, 3, generator=g).softmax(1),
        "age": torch.rand(6, generator=g),
        "sample_weight": torch.rand(6, generator=g),
        "image_id": torch.arange(6),
        "length": torch.arange(6) + 3,
        "name": [f"image {i}" for i in range(6)],
    }


def several(batch):
    return {"kind": batch["kind"], "age": batch["age"]}


def computed(batch):
    found = torch.empty(6, 4, dtype=torch.long)
    found[:, 0] = batch["kind"]
    found[:, 1:] = batch["mask"]
    return found


FORMS = {  # the parts of a batch, what `targets` returns of it, and whether the loss is that of both partners
    "named": (("kind",), lambda batch: batch["kind"], True),
    "dense": (("mask",), lambda batch: batch["mask"], True),
    "listed": (("mask", "kind"), lambda batch: [batch["mask"], batch["kind"]], True),
    "computed": (("mask", "kind"), computed, True),
    "by numpy": (("mask",), lambda batch: torch.from_numpy(batch["mask"].numpy() + 0), True),
    "by lists": (("kind",), lambda batch: torch.tensor([2 * int(v) for v in batch["kind"]]), True),
    "a class and a number": (("kind", "age"), several, True),
    "soft": (("soft",), lambda batch: batch["soft"], False),
    "number": (("age",), lambda batch: batch["age"] * 2, False),
    "weighed": (("age", "sample_weight"), lambda batch: batch["age"], True),
    "ids and lengths": (("kind", "image_id", "length", "name"), lambda batch: batch["kind"], True),
}


@pytest.mark.parametrize("form", FORMS)
def test_targets_are_those_of_both_partners(form):
    names, targets, twice = FORMS[form]
    batch = {name: parts()[name] for name in ("x", *names)}
    task, model, seen = Heads(), nn.Linear(4, 3), []
    task.targets = targets

    def loss(model, batch):
        seen.append(batch)
        return compare(model(batch["x"]), batch)

    torch.manual_seed(1)
    share, other = float(torch.distributions.Beta(0.4, 0.4).sample()), torch.randperm(6)
    share = max(share, 1 - share)
    torch.manual_seed(1)
    found = mixup_loss(task, loss, 0.4)(model, batch)
    outputs = model(batch["x"].lerp(batch["x"][other], 1 - share))
    mixable = [name for name in names if name in ("kind", "mask", "age", "soft", "sample_weight")]
    partner = {name: batch[name][other] for name in mixable}
    if twice:
        wanted = share * compare(outputs, batch) + (1 - share) * compare(outputs, {**batch, **partner})
    else:
        wanted = compare(outputs, {name: batch[name].lerp(partner[name], 1 - share) for name in mixable})
    assert torch.allclose(getattr(found, "value", found), wanted) and len(seen) == 1 + twice
    for one in seen:
        fixed = [name for name in names if name in ("image_id", "length", "name")]
        assert all(list(one[name]) == list(batch[name]) for name in fixed)


def on_numpy(batch):
    return {**batch, "kind": batch["kind"].numpy()}


REFUSED = {
    "a mask beside the class": (
        lambda batch: batch,
        "batch['mask'] holds whole numbers that `targets` does not return",
    ),
    "a flag": (lambda batch: {"x": batch["x"], "flag": batch["kind"] > 0}, "batch['flag'] holds whole numbers"),
    "a nested part": (lambda batch: {"x": batch["x"], "y": {"a": batch["kind"]}}, "batch['y']['a'] holds whole"),
    "boxes": (lambda batch: {"x": batch["x"], "boxes": torch.rand(6, 3, 4)}, "batch['boxes'] holds boxes"),
    "a list of boxes": (
        lambda batch: {"x": batch["x"], "kind": [{"boxes": torch.rand(i, 4)} for i in range(6)]},
        "have different numbers of samples",
    ),
    "arrays": (on_numpy, "targets are not tensors"),
    "texts": (lambda batch: {"x": batch["x"], "kind": ["a"] * 6}, "targets are not tensors"),
    "labels as a list": (lambda batch: {"x": batch["x"], "kind": [0, 1] * 3}, "targets are not tensors"),
    "other labels as a list": (lambda batch: {"x": batch["x"], "other": [0, 1] * 3}, "holds whole numbers"),
    "an array beside": (lambda batch: {"x": batch["x"], "other": batch["kind"].numpy()}, "is not a dense tensor"),
    "sparse inputs": (lambda batch: {"x": batch["x"].to_sparse(), "kind": batch["kind"]}, "is not a dense tensor"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_cannot_be_mixed_is_refused(form):
    change, said = REFUSED[form]
    batch = {name: part for name, part in parts().items() if name in ("x", "kind", "mask")}
    with pytest.raises(RequestError, match="training.mixup mixes") as refused:
        roles_of(Heads(), change(batch))
    assert said in str(refused.value)


def test_a_tuple_with_three_parts_asks_for_targets():
    x, y, z = parts()["x"], parts()["kind"], parts()["mask"]
    with pytest.raises(RequestError, match=r"batch\[1\] holds whole numbers that `targets` does not return"):
        roles_of(Task(), [x, y, z])
    task = Heads()
    task.targets = lambda batch: batch[1:]
    assert roles_of(task, [x, y, z]).swapped == {1, 2}


def test_a_run_is_refused_before_its_first_step(here):
    class Both(Classes):
        def datasets(self, cfg):
            x, y = super().datasets(cfg)[0].tensors
            return TensorDataset(x, y, 1 - y), None

    with pytest.raises(RequestError, match="Let `targets"):
        sk.fit(Both(), compose(*MIXED), show=False)
    Both.targets = lambda self, batch: (batch[1], batch[2])
    assert sk.fit(Both(), compose(*MIXED, "trainer.max_epochs=1"), show=False).status == "completed"
