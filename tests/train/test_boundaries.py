"What parts keep from one step boundary to the next, over epochs, bad steps and resumes."

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from in_process import trainer_in
from spectrakit.task.task import Task

THREE_EPOCHS = ("data.batch_size=4", "trainer.max_epochs=3")  # of six steps


@pytest.fixture
def train(tmp_path):
    return trainer_in(tmp_path)


class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
        self.register_buffer("heat", torch.zeros(()))

    def forward(self, x):
        return self.line(x) * (1 + self.heat)


class Regression(Task):
    "`bad`: the passes, of the model in train mode, whose loss is not finite."

    def __init__(self, bad=()):
        self.bad, self.seen, self.heats = bad, 0, []

    def datasets(self, cfg):
        x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        return data, torch.utils.data.Subset(data, range(8))

    def model(self, cfg):
        return Warm()

    def loss(self, model, batch):
        loss = (model(batch[0]) - batch[1]).square().mean()
        if model.training:
            self.seen += 1
            self.heats.append(model.heat.item())
            loss = loss * float("nan") if self.seen in self.bad else loss
        return loss


class Heated(Regression):
    def on_epoch(self, model, moment):
        model.heat.fill_(moment.epoch / 10)


@pytest.mark.parametrize("step", [7, 13])
def test_a_bad_first_step_of_an_epoch_leaves_what_on_epoch_wrote(train, step):
    task = Heated()
    assert train(task, *THREE_EPOCHS, "training.nan_policy=skip").status == "completed"
    before = len(task.heats) - 18  # passes of the rehearsal
    bad = Heated(bad=(before + step,))
    assert train(bad, *THREE_EPOCHS, "training.nan_policy=skip", name="bad").status == "completed"
    assert bad.heats == task.heats


def test_a_log_point_after_a_resume_knows_the_steps_that_were_left_out_before(train):
    words = (
        *THREE_EPOCHS,
        "training.nan_policy=skip",
        "trainer.log_every_n_steps=5",
        "trainer.log_min_seconds=0",
        "trainer.log_max_seconds=null",
    )
    probe = Regression()
    train(probe, *words, name="probe")
    before = probe.seen - 18
    whole = train(Regression(bad=(before + 2,)), *words, name="whole")
    task = Regression(bad=(before + 2,))
    early = train(task, *words, name="early", stop=lambda: task.seen >= before + 3)
    assert early.status == "interrupted"
    rest = train(Regression(), *words, name="early", resume=True)
    assert rest.column("step", "loss")[-2:] == whole.column("step", "loss")[-2:]
    found = dict(zip(rest.column("step", "step"), rest.column("step", "loss"), strict=True))
    assert found[5] == dict(zip(whole.column("step", "step"), whole.column("step", "loss"), strict=True))[5]


@pytest.mark.parametrize("at", [3, 9])
def test_a_run_that_goes_on_in_the_middle_of_a_round_evaluates_where_one_in_one_go_does(train, at):
    words = (*THREE_EPOCHS, "trainer.strategy.name=diloco", "diloco.max_steps=5", "trainer.check_val_every_n_steps=3")
    words = (*words, "checkpoint.every_n_steps=1")
    probe = Regression()
    whole = train(probe, *words, name="whole")
    before = probe.seen - 18
    task = Regression()
    train(task, *words, name="cut", stop=lambda: task.seen >= before + at)
    rest = train(Regression(), *words, name="cut", resume=True)
    assert sorted(set(rest.column("eval", "step"))) == sorted(set(whole.column("eval", "step")))
    assert torch.equal(rest.weights(), whole.weights())
