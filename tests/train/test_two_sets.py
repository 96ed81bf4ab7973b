"Optimizers that keep two sets of weights: gradients are computed at one of them, the other is the result."

import pytest
import torch

from exact_tasks import Exact
from in_process import vector
from spectrakit.runs.events import last_event

BETA, RATE = 0.9, 0.1


class ScheduleFree(torch.optim.Optimizer):
    "SGD without a schedule (Defazio et al., 2024): z learns, x is its mean, y lies between them."

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "train_mode": False, "k": 0})

    def _move(self, training, weight):
        for group in self.param_groups:
            if group["train_mode"] != training:
                for q in group["params"]:
                    if "z" in self.state[q]:
                        q.data.lerp_(self.state[q]["z"], weight)
            group["train_mode"] = training

    def eval(self):
        self._move(False, 1 - 1 / BETA)

    def train(self):
        self._move(True, 1 - BETA)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("the optimizer is not in train mode")
            group["k"] += 1
            for q in group["params"]:
                z = self.state[q].setdefault("z", q.detach().clone())
                x = (q - (1 - BETA) * z) / BETA
                z.sub_(q.grad, alpha=group["lr"])
                x.lerp_(z, 1 / group["k"])
                q.copy_((1 - BETA) * z + BETA * x)


class Free(Exact):
    def optimizer(self, model, cfg):
        return ScheduleFree(model.parameters(), RATE)


def by_hand(task, steps, rows=6):
    "Weights y and x after so many steps, and the loss of x on all samples after each epoch of four."
    model = task.model(None)
    optimizer, losses = ScheduleFree(model.parameters(), RATE), []
    optimizer.train()
    for step in range(steps):
        first = step % 4 * rows
        optimizer.zero_grad()
        task.errors(model, slice(first, first + rows)).mean().backward()
        optimizer.step()
        if step % 4 == 3:
            y = [q.detach().clone() for q in model.parameters()]
            optimizer.eval()
            losses.append(task.errors(model, slice(None)).mean().item())
            x = vector(model)
            optimizer.train()
            for q, value in zip(model.parameters(), y, strict=True):
                q.data.copy_(value)
    return vector(model), x, losses


def test_the_result_is_evaluated_and_saved_and_steps_are_those_of_a_loop_by_hand(train):
    run = train(Free(), "data.batch_size=6", "trainer.max_epochs=3")
    y, x, losses = by_hand(Free(), 12)
    assert run.status == "completed" and not torch.equal(x, y)
    torch.testing.assert_close(run.weights(), y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(run.weights(ema=True), x, rtol=1e-12, atol=1e-14)
    values = [event["metrics"]["val_loss"] for event in run.events if event["type"] == "eval"]
    assert values == pytest.approx(losses, rel=1e-12)


@pytest.mark.parametrize("cut", [3, 4, 7])
def test_a_run_that_is_cut_goes_on_to_the_bit(train, cut):
    whole = train(Free(), "data.batch_size=6", "trainer.max_steps=12", name="whole")
    train(Free(), "data.batch_size=6", f"trainer.max_steps={cut}", name="cut")
    rest = train(Free(), "data.batch_size=6", "trainer.max_steps=12", name="cut", resume=True)
    for ema in (False, True):
        assert torch.equal(rest.weights(ema=ema), whole.weights(ema=ema))
    assert last_event(rest.events, "end")["metrics"] == last_event(whole.events, "end")["metrics"]


def test_evaluations_leave_no_trace_in_the_weights(train):
    often = train(
        Free(), "data.batch_size=6", "trainer.max_epochs=3", "trainer.check_val_every_n_steps=1", name="often"
    )
    once = train(Free(), "data.batch_size=6", "trainer.max_epochs=3", "trainer.check_val_every_n_epoch=3", name="once")
    assert torch.equal(often.weights(), once.weights()) and torch.equal(often.weights(ema=True), once.weights(ema=True))


def test_a_moving_average_that_is_asked_for_is_the_one_that_counts(train):
    run = train(Free(), "data.batch_size=6", "trainer.max_epochs=3", "training.ema_decay=0.6")
    _, x, _ = by_hand(Free(), 12)
    assert run.status == "completed" and not torch.allclose(run.weights(ema=True), x)
