"Gradients that travel after the backward pass are those that DDP exchanges during it, to the bit."

import pytest
import torch

from spectrakit.api.actions import fit
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from spectrakit.runs.events import last_event

TWO = (
    "trainer.accelerator=cpu",
    "trainer.devices=2",
    "trainer.max_epochs=2",
    "data.micro_batch_size=4",
    "training.gradient_accumulation_steps=2",
    "distributed.bucket_cap_mb=1",
)

NORMS = """
import torch
from torch import nn
from rank_tasks import Blocks, Curve

class Net(Blocks):
    "With batch norm, whose means are those of rank 0, and a layer that only rank 1 uses."

    def __init__(self):
        super().__init__()
        self.norm, self.extra = nn.BatchNorm1d(3), nn.Linear(3, 1)

    def forward(self, x):
        found = super().forward(self.norm(x))
        return found + self.extra(x) if torch.distributed.get_rank() == 1 else found

class Norms(Curve):
    def model(self, cfg):
        return Net()
"""


@pytest.mark.slow
def test_both_ways_give_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "norms.py").write_text(NORMS)
    found = {}
    for way in ("overlap", "after_backward"):
        words = (*TWO, "distributed.find_unused_parameters=true", f"distributed.gradient_exchange={way}")
        run = fit(f"{tmp_path / 'norms.py'}:Norms", compose(*words), show=False)
        assert run.status == "completed", run.error
        reasons = last_event(run.events, "start")["reasons"]
        assert reasons["gradient_exchange"] == f"{way}: as asked"
        found[way] = load_weights(find_checkpoint(run.path / "checkpoints")[0])
    assert "extra.weight" in found["overlap"] and "norm.running_mean" in found["overlap"]
    for name, weight in found["overlap"].items():
        assert torch.equal(weight, found["after_backward"][name]), name
