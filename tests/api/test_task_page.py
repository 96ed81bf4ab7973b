"The tasks on the page about tasks train, predict and hand in."

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

import spectrakit as sk
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from test_pages import FENCE

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "trainer.max_epochs=2",
    "data.batch_size=16",
    "run.dir=runs/one",
)


@pytest.fixture(scope="module")
def page():
    "What the Python blocks of the page define."
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for _, language, text in FENCE.findall(PAGE):
        if language == "python":
            exec(text, names)
    return names


def trained(task, *words, **keywords):
    run = sk.fit(task, compose(*WORDS, *words), show=False, **keywords)
    assert run.status == "completed"
    return run


def weights(run, name="BEST"):
    return load_weights(find_checkpoint(run.path / "checkpoints", name)[0])


def test_the_head_learns_first(here, page):
    run = trained(page["Phases"](), "trainer.max_epochs=1", "task.samples=200")
    torch.manual_seed(run.config.seed)
    before = page["Phases"]().model(run.config)
    assert torch.equal(weights(run)["0.weight"], before[0].weight) and not torch.equal(
        weights(run)["2.weight"], before[2].weight
    )
    more = trained(page["Phases"](), "run.dir=runs/two", "task.samples=200")
    assert not torch.equal(weights(more, "LATEST")["0.weight"], before[0].weight)
    points = [event for event in more.events if event["type"] == "step"]
    assert points and all(set(point["lrs"]) == {"body", "head"} for point in points)


def test_a_run_begins_with_another_runs_weights(here, page):
    first = trained(page["Parity"](), "task.samples=200")
    words = (f"task.start={first.path}", "run.dir=runs/two", "optimizer.lr=1e-12", "task.samples=200")
    run = trained(page["Continued"](), *words, "trainer.max_epochs=1")
    for name, values in weights(first).items():
        assert torch.allclose(weights(run)[name], values, atol=1e-6)


def test_lists_are_handed_in(here, page):
    run = trained(page["Boxes"](), predict="submission.csv")
    arrays = sk.predict(page["Boxes"](), run).arrays
    assert np.isnan(arrays["score"]).any() == np.isnan(arrays["corners"]).any()
    with open("submission.csv") as file:
        rows = list(csv.DictReader(file))
    counts = [4 * int((~np.isnan(scores)).sum()) for scores in arrays["score"]]
    assert [len(row["boxes"].split()) for row in rows] == counts and len(rows) == 16


def test_the_average_begins_as_the_page_says():
    from spectrakit.train.parts.ema import ema_stays

    assert [round(ema_stays(0.999, n), 2) for n in (10, 100, 1000)] == [0.55, 0.92, 0.99]
    assert "0.55 at the tenth, 0.92 at the hundredth, 0.99 at the thousandth" in PAGE
