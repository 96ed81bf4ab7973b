"""Workers of DiLoCo that are runs of their own: two against a few plain lines, and three of which one dies."""

import copy
import os
import signal
import subprocess
import time

import pytest
import torch
from torch import nn

from helpers import TESTS, only_run, run_cli, start_cli
from rank_tasks import Curve
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.batch_plan import plan_batches
from spectrakit.config.compose import compose
from spectrakit.contract.optimizer import build_optimizer
from spectrakit.data.loaders import Placement, train_batches
from spectrakit.distributed.fragments import divide
from spectrakit.runs.events import columns, read_events
from spectrakit.steps.model import make_model
from spectrakit.training.setup import own_order

pytestmark = pytest.mark.slow  # every test here starts processes

WORDS = (
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.strategy.name=diloco",
    "diloco.max_steps=5",
    "local/accumulate_grad_batches=debug",
    "data.micro_batch_size=8",
    "scheduler.name=constant",
    "optimizer.name=adamw",
    "optimizer.lr=0.02",
    "optimizer.weight_decay=0",
    "launch.threads=1",
)


class Dies(Curve):
    "Worker 2 is killed once, in the middle of its second round; nobody is in a hurry."

    seen = 0

    def loss(self, model, batch):
        if model.training:
            time.sleep(0.02)
            self.seen += 1
        marker = os.environ["MARKER"]
        if os.environ["MEMBER"] == "2" and self.seen == 8 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch)


def start(folder, task: str, workers: int, *words) -> list:
    "So many runs that meet in a folder, each in one of its own."
    started = []
    for member in range(workers):
        place = folder / f"worker-{member}"
        place.mkdir()
        own = (f"diloco.member={member}", f"diloco.workers={workers}", f"diloco.meeting={folder / 'meeting'}")
        environ = {"MEMBER": str(member), "MARKER": str(folder / "marker"), "PYTHONPATH": str(TESTS)}
        started.append(start_cli(place, "train", task, *WORDS, *own, *words, env=environ))
    return started


def finish(started: list) -> None:
    for process in started:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, out + err


def weights(run) -> dict:
    return load_weights(find_checkpoint(run / "checkpoints")[0])


def by_hand(config, steps: int, turns: dict[int, list[int]]) -> dict:
    """Two workers in turn, each with an order of its own; knows nothing of how they meet.

    `turns`: after a step, the parameters that are exchanged.
    """
    train_set, _ = Curve().datasets(config)
    plan = plan_batches(config, len(train_set), 1)
    models = [make_model(Curve(), config)]
    models.append(copy.deepcopy(models[0]))
    inner = [torch.optim.AdamW(m.parameters(), lr=0.02, weight_decay=0.0) for m in models]
    theta = [p.detach().clone() for p in models[0].parameters()]
    moment = [torch.zeros_like(p) for p in theta]
    batches = []
    for member in range(2):
        own = own_order(compose(*WORDS, *meets(member)))
        reader = train_batches(train_set, plan, own, Placement(torch.device("cpu")))
        batches.append([b.data for epoch in range(9) for b in reader.epoch(epoch)][:steps])
    for step in range(steps):
        for model, optimizer, mine in zip(models, inner, batches, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(mine[step][0]), mine[step][1]).backward()
            optimizer.step()
        for i, each in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            if i not in turns.get(step + 1, ()):
                continue
            mean = sum(theta[i] - p.detach() for p in each) / 2
            moment[i] = 0.9 * moment[i] + mean
            theta[i] = theta[i] - 0.7 * (mean + 0.9 * moment[i])
            for p in each:
                p.data.copy_(theta[i])
    return {name: p.detach() for name, p in models[0].named_parameters()}


def meets(member: int) -> tuple[str, ...]:
    return ("diloco.quorum=2", "diloco.workers=2", f"diloco.member={member}", "diloco.meeting=there")


EVERY = list(range(99))  # all parameters, however many there are


def test_two_runs_that_meet_are_two_workers_by_hand(tmp_path):
    finish(start(tmp_path, f"{TESTS / 'rank_tasks.py'}:Curve", 2, "diloco.quorum=2", "trainer.max_steps=15"))
    runs = [only_run(tmp_path / f"worker-{member}") for member in range(2)]
    expected = by_hand(compose(*WORDS, *meets(0)), steps=15, turns=dict.fromkeys((5, 10, 15), EVERY))
    for run in runs:
        found = weights(run)
        assert max((found[name] - expected[name]).abs().max() for name in expected) < 1e-6
        rounds = columns(read_events(run / "events.jsonl"), "round", "step", "members", "bytes", "goodput")
        assert rounds["step"] == [5, 10, 15] and rounds["members"] == [{"0": 5, "1": 5}] * 3
        assert rounds["bytes"] == [4 * 185] * 3 and rounds["goodput"] == [1.0] * 3


def test_two_runs_exchange_fragments_in_turn_as_two_workers_by_hand(tmp_path):
    words = ("diloco.quorum=2", "diloco.fragments=2", "trainer.max_steps=15")
    finish(start(tmp_path, f"{TESTS / 'rank_tasks.py'}:Curve", 2, *words))
    runs = [only_run(tmp_path / f"worker-{member}") for member in range(2)]
    config = compose(*WORDS, *meets(0))
    model = make_model(Curve(), config)
    sizes, place = [p.numel() for p in model.parameters()], {id(p): k for k, p in enumerate(model.parameters())}
    order = [place[id(p)] for group in build_optimizer(model, config).param_groups for p in group["params"]]
    first, second = [[order[k] for k in part] for part in divide([sizes[k] for k in order], 2)]
    turns = {2: first, 5: second, 7: first, 10: second, 12: first, 15: EVERY}
    expected = by_hand(config, steps=15, turns=turns)
    for run in runs:
        found = weights(run)
        assert max((found[name] - expected[name]).abs().max() for name in expected) < 1e-6
        rounds = columns(read_events(run / "events.jsonl"), "round", "step", "bytes")
        each = [4 * sum(sizes[k] for k in part) for part in (first, second)]
        assert rounds["step"] == [*turns] and rounds["bytes"] == [*each, *each, each[0], sum(each)]


@pytest.mark.parametrize("fragments", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_others_go_on_without_a_worker_that_dies_and_it_comes_in_again(tmp_path, fragments):
    words = ("diloco.quorum=2", "diloco.grace_s=0.5", "trainer.max_steps=60", "checkpoint.every_n_steps=5")
    words = (*words, f"diloco.fragments={fragments}")
    finish(start(tmp_path, f"{__file__}:Dies", 3, *words))
    assert (tmp_path / "marker").exists()
    runs = [only_run(tmp_path / f"worker-{member}") for member in range(3)]
    assert [open_run(run).status for run in runs] == ["completed"] * 3
    first, *others = [weights(run) for run in runs]
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)
    events = read_events(runs[2] / "events.jsonl")
    restart = next(event for event in events if event["type"] == "restart")
    turns = {0, 2 * (fragments - 1)}  # steps of a round after which there is an exchange
    assert restart["step"] % 5 in turns  # its own, or the one that the others had reached
    rounds = columns(read_events(runs[0] / "events.jsonl"), "round", "members", "step")
    assert rounds["step"][-1] == 60 and {step % 5 for step in rounds["step"]} <= turns
    assert all(len(members) >= 2 for members in rounds["members"])


class Spoilt(Curve):
    "Member 1 has no number for a loss from its sixth step to its tenth: a whole round."

    steps = 0

    def optimizer(self, model, cfg):
        found = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
        found.register_step_post_hook(lambda *_: setattr(self, "steps", self.steps + 1))
        return found

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        if not model.training or os.environ["MEMBER"] != "1" or self.steps < FIRST + 5 or self.left_out == 5:
            return loss
        self.left_out += 1
        return loss * float("nan")

    left_out = 0


FIRST = 0  # updates that the sanity check makes before the run


def test_a_share_without_a_number_does_not_count_and_the_others_go_on(tmp_path):
    words = ("diloco.quorum=2", "trainer.max_steps=15", "training.nan_policy=skip", "training.ema_decay=0.9")
    finish(start(tmp_path, f"{__file__}:Spoilt", 2, *words))
    runs = [only_run(tmp_path / f"worker-{member}") for member in range(2)]
    first, other = [weights(run) for run in runs]
    assert all(torch.equal(first[name], other[name]) and first[name].isfinite().all() for name in first)
    rounds = columns(read_events(runs[0] / "events.jsonl"), "round", "step", "members")
    assert rounds["step"] == [5, 10, 15]
    assert sum(sum(members.values()) for members in rounds["members"]) == 30 - 5
    good = columns(read_events(runs[1] / "events.jsonl"), "round", "goodput")["goodput"]
    assert good[-1] == pytest.approx(10 / 15)

    used = start_one(tmp_path, "again", "diloco.quorum=2", "trainer.max_steps=15", "training.ema_decay=0.9")
    assert used.returncode == 2 and "a run has ended" in used.stderr
    other = start_one(tmp_path, "other", "diloco.quorum=2", "trainer.max_steps=20", "training.ema_decay=0.9")
    assert other.returncode == 2 and "a run meets that has total_steps=15, and this one has 20" in other.stderr
    slower = start_one(tmp_path, "slower", *words[:2], "training.ema_decay=0.9", "diloco.outer_momentum=0.8")
    assert slower.returncode == 2 and "has outer_momentum=0.9, and this one has 0.8" in slower.stderr


def start_one(folder, name: str, *words) -> subprocess.CompletedProcess:
    "Worker 0 of two, to its end, in a folder of its own."
    (folder / name).mkdir()
    own = ("diloco.member=0", "diloco.workers=2", f"diloco.meeting={folder / 'meeting'}")
    return run_cli(folder / name, "train", f"{TESTS / 'rank_tasks.py'}:Curve", *WORDS, *own, *words, timeout_s=300)


def test_fewer_than_a_quorum_end_after_the_time_that_is_given(tmp_path):
    words = ("diloco.quorum=2", "diloco.grace_s=0.1", "trainer.max_steps=15", "distributed.timeout_s=1")
    done = start_one(tmp_path, "alone", *words, "launch.max_restarts=0")
    run = only_run(tmp_path / "alone")
    assert done.returncode == 1 and open_run(run).status == "failed"
    assert "2 of 2 workers did not come within 1 s (diloco.quorum=2)" in read_events(run / "events.jsonl")[-1]["reason"]
    assert find_checkpoint(run / "checkpoints")[0].name == "step-00000005"  # what it has learned is kept
