"The effective batch as the one quantity that stays, the learning rate that follows it, and what `explain` says."

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from helpers import run_cli
from spectrakit import explain
from spectrakit.config.compose import compose, override
from spectrakit.config.effective_batch import plan_batches
from spectrakit.system.errors import RequestError
from spectrakit.task.task import Task


class Line(Task):
    def datasets(self, cfg):
        x = torch.arange(64.0)[:, None]
        return TensorDataset(x / 64, x / 32), None

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_a_run_keeps_the_whole_and_says_where_its_parts_come_from(train):
    run = train(
        Line(),
        "global_batch_size=32",
        "data.micro_batch_size=8",
        "optimizer.lr_scaling=sqrt",
        "optimizer.base_batch_size=8",
        "trainer.max_epochs=1",
    )
    assert run.status == "completed", run.reason
    start = next(e for e in run.events if e["type"] == "start")
    assert (start["effective_batch_size"], start["gradient_accumulation_steps"], start["total_steps"]) == (32, 4, 2)
    assert start["base_lr"] == pytest.approx(0.2) and run.column("step", "lr") == pytest.approx([0.2, 0.2])
    assert start["reasons"]["batch"].startswith("training.gradient_accumulation_steps=4: derived from")
    assert "optimizer.lr=0.2: 0.1 × 2" in start["reasons"]["batch"]
    assert (
        any("also scales with accumulation" in e["text"] for e in run.events if e["type"] == "message") is False
    )  # K was derived


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_whole_stays_on_any_number_of_processes(world):
    config = compose("global_batch_size=64")
    assert plan_batches(config, 1000, world).effective_batch_size == 64
    fewer = override(config, "trainer.devices=4", "data.micro_batch_size=8", "accumulate_grad_batches=2")
    assert plan_batches(fewer, 1000, world).effective_batch_size == 64  # also where not all come about


@pytest.mark.parametrize(
    "words, parts",
    [
        (["global_batch_size=0"], ["global_batch_size=0", "from 1 up"]),
        (["global_batch_size=33", "trainer.devices=2"], ["33", "2 processes", "32 or 34"]),
        (["global_batch_size=100", "data.batch_size=16"], ["96 or 112", "10 or 20"]),
        (["global_batch_size=64", "data.batch_size=16", "grad_accum=2"], ["is 32", "gradient_accumulation_steps=4"]),
        (["optimizer.lr_scaling=linear"], ["optimizer.base_batch_size=64"]),
        (["optimizer.lr_scaling=lineer"], ["linear"]),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_would_not(words, parts):
    with pytest.raises(RequestError) as refused:
        explain(compose(*words), world_size=2 if "trainer.devices=2" in words else 1)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_odd_values_are_answered_in_a_sentence():
    for wrong in ({"samples": 0}, {"samples": True}, {"world_size": "2"}, {"samples": 1.5}):
        with pytest.raises(RequestError, match="whole number from 1 up"):
            explain(compose(), **wrong)
    with pytest.raises(RequestError, match="needs a Config"):
        explain("trainer=kaggle")


@pytest.mark.slow
def test_the_command_says_it_too(tmp_path):
    words = ("explain", "trainer=kaggle", "data.global_batch_size=256", "--samples", "20000", "--world-size", "2")
    done = run_cli(tmp_path, *words, "--json")
    assert done.returncode == 0, done.stderr
    numbers = {row["what"]: row["value"] for row in json.loads(done.stdout)["rows"]}
    assert (numbers["effective batch"], numbers["accumulation K"], numbers["steps per epoch"]) == ("256", "2", "79")
    table = run_cli(tmp_path, *words).stdout
    assert "effective batch" in table and "derived from data.global_batch_size=256" in table
    refused = run_cli(tmp_path, "explain", "data.global_batch_size=7", "--world-size", "2")
    assert refused.returncode == 2 and "is not divisible by" in refused.stderr
