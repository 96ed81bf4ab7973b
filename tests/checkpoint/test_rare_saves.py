"A profile that saves rarely saves the best ones rarely, too, and loses none of them at the end."

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from spectrakit.checkpoint.async_writer import CheckpointWriter, Snapshot
from spectrakit.checkpoint.store import CheckpointContent, find_checkpoint, read_pointer
from spectrakit.config.schema import CheckpointConfig


class Scored(sk.Task):
    "Its score at each evaluation is the next one of `scores`."

    def __init__(self, scores):
        self.scores, self.place = scores, 0

    def datasets(self, cfg):
        data = TensorDataset(torch.randn(16, 3), torch.randn(16))
        return data, data

    def model(self, cfg):
        return nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch[0]).float(), batch[1])

    def metrics_all(self, predictions, targets):
        return {"score": 0.0}


class Given(Scored):
    def metrics_all(self, predictions, targets):
        if len(targets) < 16:  # the check before the first step
            return {"score": 0.0}
        self.place += 1
        return {"score": self.scores[min(self.place, len(self.scores)) - 1]}


WORDS = (
    "trainer=kaggle_safe",
    "launch.mode=inline",
    "trainer.accelerator=cpu",
    "run.dir=runs",
    "data.batch_size=8",
    "dataloader.num_workers=0",
    "dataloader.persistent_workers=false",
    "checkpoint.monitor=val_score",
    "checkpoint.mode=max",
    "early_stopping.enabled=false",
    "watchdog.limit=none",
)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [12, 7])
@pytest.mark.parametrize("falls_after", [100, 3])
def test_each_epoch_is_better_and_few_are_saved(here, epochs, falls_after):
    "Either every epoch is better than all before, or the third one is the best."
    scores = [float(n if n <= falls_after else -n) for n in range(1, 40)]
    run = sk.fit(Given(scores), *WORDS, f"trainer.max_epochs={epochs}", show=False)
    assert run.status == "completed", run.error
    saves = [event["step"] for event in run.events if event["type"] == "checkpoint"]
    evaluations = [event for event in run.events if event["type"] == "eval"]
    best = max(evaluations, key=lambda event: event["metrics"]["val_score"])
    assert len(evaluations) >= epochs and len(saves) <= 2 + 2 * (epochs // 5), saves
    assert read_pointer(run.path / "checkpoints", "BEST") == f"step-{best['step']:08d}"
    whole, notes = find_checkpoint(run.path / "checkpoints", "BEST")
    assert whole is not None and notes == [] and run.best.step == best["step"]


def snapshot(step, best=False):
    return Snapshot(step, CheckpointContent({"w": torch.full((2,), float(step))}, {"step": step}, [{}]), best)


@pytest.fixture
def writer(tmp_path):
    clock = [0.0]
    (tmp_path / "checkpoints").mkdir()
    made = CheckpointWriter(tmp_path, CheckpointConfig(every_minutes=20, max_share=1.0), clock=lambda: clock[0])
    return made, clock, lambda name: read_pointer(tmp_path / "checkpoints", name)


def test_a_best_one_waits_for_the_clock_and_the_newest_of_them_is_written(writer):
    saving, clock, named = writer
    for step in (1, 2, 3):
        clock[0] += 10
        assert saving.wants("best") and saving.put(snapshot(step, True), "best")
    saving.poll()
    assert named("BEST") == named("LATEST") == "step-00000001"  # the first one is on the disk
    clock[0] += 20 * 60
    saving.poll()
    saving.flush()
    assert named("BEST") == named("LATEST") == "step-00000003"


def test_a_best_one_goes_with_the_next_save_that_is_due(writer):
    saving, clock, named = writer
    for step in (1, 2):
        clock[0] += 10
        saving.put(snapshot(step, True), "best")
    saving.put(snapshot(5), "periodic")
    saving.poll()
    saving.flush()
    assert named("BEST") == "step-00000002" and named("LATEST") == "step-00000005"
    saving.put(snapshot(6, True), "best")
    saving.poll()
    assert named("BEST") == "step-00000002"
    saving.release_best()  # it is due by its number
    saving.put(snapshot(7, True), "best")
    saving.flush()
    assert named("BEST") == named("LATEST") == "step-00000007"


def test_the_end_writes_what_waits(writer):
    saving, clock, named = writer
    for step in (1, 2):
        clock[0] += 10
        saving.put(snapshot(step, True), "best")
    saving.put(snapshot(3), "last")
    saving.close()
    assert named("BEST") == "step-00000002" and named("LATEST") == "step-00000003"


def test_without_minutes_none_waits(tmp_path):
    saving = CheckpointWriter(tmp_path, CheckpointConfig(max_share=1.0))
    (tmp_path / "checkpoints").mkdir()
    for step in (1, 2):
        saving.put(snapshot(step, True), "best")
        saving.flush()
        assert read_pointer(tmp_path / "checkpoints", "BEST") == f"step-{step:08d}"
