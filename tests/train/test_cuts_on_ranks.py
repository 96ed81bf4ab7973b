"Two ranks that are cut after any step go on to the bit: random draws of strategy, parts and cuts."

import json
import random
import shutil
from pathlib import Path

import numpy
import pytest
import torch
from test_rounds import run
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from spectrakit.checkpoint.store import checkpoints, find_checkpoint, load_weights
from spectrakit.task.task import Task

pytestmark = [pytest.mark.slow, pytest.mark.long]  # every test here starts processes

WORDS = (
    "optimizer.name=adamw",
    "optimizer.lr=0.01",
    "trainer.max_steps=14",  # epochs of five
    "trainer.log_every_n_steps=1",
    "checkpoint.every_n_steps=1",
    "checkpoint.keep_last=99",
)
STRATEGIES = {
    "ddp": ("trainer.strategy.name=ddp",),
    "fsdp": ("trainer.strategy.name=fsdp",),
    "diloco": ("trainer.strategy.name=diloco", "diloco.max_steps=4"),
    "fragments": ("trainer.strategy.name=diloco", "diloco.max_steps=4", "diloco.fragments=2", "diloco.overlap_steps=1"),
}
PARTS = {
    "ema": ("training.ema_decay=0.9",),
    "buffers": ("training.ema_decay=0.9", "training.ema_buffers=true"),
    "average": ("training.average=last:2",),
    "best": ("training.average=best:2",),
    "mixup": ("training.mixup=0.2",),
    "clipping": ("trainer.gradient_clip_val=0.5",),
    "memory": ("training.oom_recovery=true",),
    "half": ("trainer.precision=bf16-mixed",),
    "often": ("trainer.check_val_every_n_steps=3",),
}


class Points(Task):
    "A classifier with batch norm, dropout and a generator of its own. The loss of each of the `bad` steps is NaN once."

    def __init__(self, bad=()):
        self.bad, self.made = list(bad), numpy.random.default_rng(3)

    def datasets(self, cfg):
        x = torch.randn(98, 3, generator=torch.Generator().manual_seed(1))
        whole = TensorDataset(x, (x.sum(1) > 0).long())
        return Subset(whole, range(78)), Subset(whole, range(78, 98))

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))

    def loss(self, model, batch, moment=None):
        loss = F.cross_entropy(model(batch[0] + 0.1 * float(self.made.normal()) + 0.1 * random.gauss(0, 1)), batch[1])
        if model.training and moment is not None and moment.step in self.bad:
            self.bad.remove(moment.step)
            return loss * float("nan")
        return loss

    def targets(self, batch):
        return batch[1]


def drawn(seed: int) -> tuple[tuple, list[int], list[int]]:
    "Settings, steps with NaN and cuts of a draw."
    rng = random.Random(seed)
    parts = rng.sample(sorted(PARTS), rng.choice([2, 3, 4]))
    policy = rng.choice(["skip", "rollback", "stop"])
    bad = [] if policy == "stop" else [rng.choice([5, 6, 7])]
    strategy = sorted(STRATEGIES)[seed % len(STRATEGIES)]
    words = [*STRATEGIES[strategy], *(word for part in parts for word in PARTS[part]), f"training.nan_policy={policy}"]
    return (*WORDS, *words), bad, sorted(rng.sample(range(1, 14), 2))


def cut_copy(whole: Path, folder: Path, cut: int, bad: list[int]) -> None:
    "Copy a run as a kill soon after step `cut` would have left it."
    shutil.copytree(whole, folder)
    for path in checkpoints(folder / "checkpoints"):
        if int(path.name[-8:]) > cut:
            shutil.rmtree(path)
    file = folder / "environment.json"
    known = json.loads(file.read_text())
    if bad and cut <= bad[0]:
        known.pop("rollbacks", None)
    file.write_text(json.dumps(known))


@pytest.mark.parametrize("seed", range(16))
def test_a_run_of_two_ranks_goes_on_to_the_bit(tmp_path, seed):
    words, bad, cuts = drawn(seed)
    outcome, events = run(tmp_path / "whole", Points(bad), *words)
    assert outcome.status == "completed", (words, outcome)
    assert len(bad) == sum(event["type"] == "nan" for event in events)
    expected, _ = find_checkpoint(tmp_path / "whole" / "checkpoints")
    for cut in cuts:
        folder = tmp_path / f"cut-{cut}"
        cut_copy(tmp_path / "whole", folder, cut, bad)
        outcome, events = run(folder, Points(bad), *words, kind="resume")
        assert outcome.status == "completed", (words, cut, outcome)
        assert cut in [event["step"] for event in events if event["type"] == "restart"]
        found, _ = find_checkpoint(folder / "checkpoints")
        for ema in (False, True):
            one, other = (load_weights(path, ema=ema) for path in (found, expected))
            different = [name for name in one if not torch.equal(one[name], other[name])]
            assert not different, (words, bad, cut, ema, different)
