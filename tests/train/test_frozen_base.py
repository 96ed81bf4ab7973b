"""Checkpoints that leave out what does not learn: a part that learns for a while is held from then on, and a run that
was cut is the same to the bit.
"""

import pytest
import torch
from torch import nn

from in_process import furthest, trainer_in, weights
from rank_tasks import Curve
from spectrakit.checkpoint.store import find_checkpoint, load_weights, read_manifest
from spectrakit.config.compose import compose
from spectrakit.jobs.prediction import trained_model
from spectrakit.system.errors import RequestError
from tasks import in_sanity_check

FROZEN = {"first.weight", "first.bias"}
GIVEN = ("trainer.max_epochs=4", "checkpoint.every_n_steps=4", "checkpoint.keep_last=9", "optimizer.lr=0.05")


class Adapted(Curve):
    "Its first layer is loaded from somewhere, and stays; with `learns`, its bias learns in these epochs."

    def __init__(self, learns=(), cut=None, seed=7, source="./first"):
        self.learns, self.cut, self.seed, self.source = learns, cut, seed, source

    def model(self, cfg):
        model, state = super().model(cfg), torch.get_rng_state()
        torch.manual_seed(self.seed)
        model.first.load_state_dict(nn.Linear(3, 8).state_dict())
        torch.set_rng_state(state)
        model.first.requires_grad_(False)
        return model

    def optimizer(self, model, cfg):
        return torch.optim.SGD(model.parameters(), lr=cfg.optimizer.lr)

    def on_epoch(self, model, moment):
        model.first.bias.requires_grad_(moment.epoch in self.learns)
        if moment.epoch == self.cut and not in_sanity_check():  # the check tries all epochs
            raise RuntimeError("cut")

    def frozen_from(self, cfg):
        return self.source


def held(folder, step: int) -> set:
    return FROZEN & set(load_weights(folder / "checkpoints" / f"step-{step:08d}"))


@pytest.mark.parametrize("learns", [(), (1,)], ids=["never", "in-the-second-epoch"])
def test_it_goes_on_to_the_bit_with_what_has_learned_for_a_while(tmp_path, learns):
    train = trainer_in(tmp_path)
    whole = train(Adapted(learns), *GIVEN, name="whole")
    assert whole.status == "completed", whole.reason
    steps = whole.column("checkpoint", "step")
    by_epoch = [held(whole.folder, step) for step in sorted(set(steps))]
    assert by_epoch == [set(), *[{"first.bias"} if learns else set()] * 3]
    for cut in (2, 3):
        assert train(Adapted(learns, cut), *GIVEN, name="cut", resume=cut > 2).status == "failed"
    done = train(Adapted(learns), *GIVEN, name="cut", resume=True)
    assert done.status == "completed", done.reason
    assert furthest(weights(whole.folder), weights(done.folder)) == 0.0
    model, _, _ = trained_model(Adapted(learns), compose(*GIVEN), done.folder)
    begun = Adapted().model(None).first
    assert torch.equal(model.first.weight, begun.weight) and torch.equal(model.first.bias, begun.bias) == (not learns)


def test_another_base_is_refused_before_a_step(tmp_path):
    train = trainer_in(tmp_path)
    assert train(Adapted(cut=2), *GIVEN).status == "failed"
    kept = find_checkpoint(tmp_path / "run/checkpoints")[0]
    assert read_manifest(kept)["base"] | {"sha256": ""} == {
        "source": "./first",
        "sha256": "",
        "weights": 2,
        "bytes": 128,
    }
    with pytest.raises(RequestError, match="'./first' has changed: SHA-256"):
        train(Adapted(seed=8), *GIVEN, resume=True)
    with pytest.raises(RequestError, match="leaves out the frozen weights of './first'"):
        train(Adapted(source=None), *GIVEN, resume=True)
    assert train(Adapted(source="./moved"), *GIVEN, resume=True).status == "completed"
