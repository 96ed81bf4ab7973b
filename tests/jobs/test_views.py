"Predictions over the views of a batch: averaged in each form that `predict` may return, or refused at the start."

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from helpers import why_failed
from spectrakit.config.compose import compose
from spectrakit.runs.events import read_events
from spectrakit.task.task import Task

WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "data.batch_size=8",
    "accumulate_grad_batches=1",
    "trainer.max_epochs=1",
    "run.dir=runs/one",
)


class Shown(Task):
    "A line, looked at as it is and three times as large; `form` makes of the outputs what `predict` returns."

    def __init__(self, form):
        self.form = form

    def datasets(self, cfg):
        x = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x[:16], x[:16, :1] * 2), TensorDataset(x[16:], x[16:, :1] * 2)

    def model(self, cfg):
        return nn.Linear(4, 3)

    def loss(self, model, batch):
        return ((model(batch[0]) - batch[1]) ** 2).mean()

    def predict(self, model, batch):
        return self.form(model(batch[0]))

    def views(self, batch):
        return [batch, [batch[0] * 3, batch[1]]]


def ragged(outputs):
    "One tensor a sample, of different lengths."
    return [row[: 1 + i % 3] for i, row in enumerate(outputs)]


AVERAGED = {
    "list": list,
    "arrays": lambda outputs: [row.numpy() for row in outputs],
    "halves": lambda outputs: outputs.half().numpy(),
    "doubles": lambda outputs: outputs.double(),
    "numbers": lambda outputs: outputs[:, 0].tolist(),
    "ragged": ragged,
    "named": lambda outputs: {"p": list(outputs), "image_id": torch.arange(len(outputs))},
    "array by name": lambda outputs: {"p": outputs.numpy(), "q": ragged(outputs)},
}


@pytest.mark.parametrize("form", AVERAGED)
def test_each_form_is_averaged(here, form):
    task = Shown(AVERAGED[form])
    run = sk.fit(task, compose(*WORDS), show=False)
    assert run.status == "completed"
    arrays = sk.predict(task, run).arrays
    found = np.asarray(arrays.get("p", arrays.get("predictions")), dtype=float)
    x, model = task.datasets(None)[1].tensors[0], run.load_model()
    with torch.no_grad():
        wanted = ((model(x) + model(3 * x)) / 2).double().numpy()
    if form == "numbers":
        wanted = wanted[:, 0]
    there = ~np.isnan(found)
    assert np.allclose(found[there], wanted[there], atol=0.01 if form == "halves" else 1e-6)
    assert form == "ragged" or there.all()
    if form == "named":
        assert arrays["image_id"].tolist() == list(range(8))


REFUSED = {
    "classes": lambda outputs: outputs.argmax(1),
    "masks": lambda outputs: outputs > 0,
    "listed classes": lambda outputs: outputs.argmax(1).tolist(),
    "labels of boxes": lambda outputs: {
        "scores": ragged(outputs),
        "labels": [row.argsort() for row in ragged(outputs)],
    },
    "boxes": lambda outputs: {"boxes": ragged(outputs)},
    "texts": lambda outputs: {"p": outputs, "word": ["cat"] * len(outputs)},
    "detections": lambda outputs: [torch.zeros(int(abs(row[0]) * 10), 6) for row in outputs],
    "other names": lambda outputs: {f"p{outputs[0, 0].item()}": outputs},
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_has_no_mean_is_refused_before_the_first_step(here, form):
    run = sk.fit(Shown(REFUSED[form]), compose(*WORDS), show=False)
    why_failed(run, r"Shown.predict returned .* data.average_views=false")
    logs = list(here.glob("runs/*/events.jsonl"))
    assert not any(event["type"] == "step" for log in logs for event in read_events(log))


@pytest.mark.parametrize("form", ["classes", "boxes"])
def test_without_views_everything_can_be_predicted(here, form):
    task = Shown(REFUSED[form])
    run = sk.fit(task, compose(*WORDS, "data.average_views=false"), show=False)
    assert run.status == "completed" and len(sk.predict(task, run).values) > 0
