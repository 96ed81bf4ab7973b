"The recipes on the page about competitions train, and give the numbers that plain code gives."

from pathlib import Path

import numpy as np
import pytest
import torch

import spectrakit as sk
from spectrakit.checkpoint.store import find_checkpoint, load_weights
from spectrakit.config.compose import compose
from test_pages import FENCE

pytestmark = pytest.mark.slow
PAGE = (Path(__file__).parents[2] / "docs" / "competition-recipes.md").read_text(encoding="utf-8")
WORDS = (
    "trainer.accelerator=cpu",
    "launch.mode=inline",
    "trainer.max_epochs=3",
    "data.batch_size=16",
    "training.gradient_accumulation_steps=2",
    "trainer.log_every_n_steps=1",
    "trainer.log_min_seconds=0",
)


@pytest.fixture
def page(here):
    "What a part of the page defines, after the first block; the calls there train with a few more settings."

    class Short:
        "The package, with settings for a small run."

        def __getattr__(self, name):
            return getattr(sk, name)

        def fit(self, task, *words):
            return sk.fit(task, compose(*WORDS, *words), show=False)

        def cross_validate(self, task, *words, folds):
            return sk.cross_validate(task, compose(*WORDS, *words), folds=folds, show=False)

    def of(*headings):
        names = {"__name__": "page"}
        for part in (PAGE.partition("\n## ")[0], *(PAGE.split(f"\n## {heading}\n")[1] for heading in headings)):
            for _, language, text in FENCE.findall(part.partition("\n## ")[0]):
                if language == "python":
                    exec(text, names)
                    names["sk"] = Short()
        return names

    return of


def rates(run):
    return [event["lr"] for event in run.events if event["type"] == "step"]


def weights(run):
    return load_weights(find_checkpoint(run.path / "checkpoints", "LATEST")[0])


def test_the_head_learns_first_and_a_resume_repeats_the_phases(page):
    names = page("The head first, then all at a fifth of the rate")
    run, optimizers = names["run"], []
    assert run.status == "completed", run.error
    each = len(rates(run)) // 3
    high = rates(run)[0]
    assert each == 6 and rates(run) == pytest.approx([high] * each + [high / 5] * (2 * each))

    class Kept(names["HeadFirst"]):
        def optimizer(self, model, cfg):
            optimizers.append(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1))
            return optimizers[-1]

    words = (*WORDS, "scheduler.interval=epoch", "training.ema_decay=0.9")
    whole = sk.fit(Kept(), compose(*words, "run.dir=runs/whole"), show=False)
    states = [optimizers[-1].state[q]["step"] for q in optimizers[-1].param_groups[0]["params"]]
    assert [int(step) for step in states] == [2 * each, 2 * each, 3 * each, 3 * each]  # no step while frozen
    first = sk.fit(Kept(), compose(*words, "run.dir=runs/cut", f"trainer.max_steps={each + 5}"), show=False)
    rest = sk.resume(
        first.path, Kept(), f"trainer.max_steps={3 * each}", "resume.allow=[trainer.max_steps]", show=False
    )
    assert rest.status == "completed" and rates(rest) == rates(whole)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(rest)[name]), name


def test_a_cyclic_rate_goes_on_after_a_resume(page):
    names = page("Cyclic learning rates")
    run = names["run"]
    assert run.status == "completed", run.error
    low, high = min(rates(run)), max(rates(run))
    assert low == pytest.approx(high / 10) and rates(run).index(high) == 3 and rates(run)[6] == low
    first = sk.fit(names["Cyclic"](), compose(*WORDS, "run.dir=runs/cut", "trainer.max_steps=17"), show=False)
    words = ("trainer.max_steps=36", "resume.allow=[trainer.max_steps]")
    rest = sk.resume(first.path, names["Cyclic"](), *words, show=False)
    assert rest.status == "completed" and len(rates(rest)) == 36, rest.error


def test_folds_and_thresholds_of_several_labels(page, capsys):
    names = page("Folds for several labels", "Thresholds from out-of-fold predictions")
    cv, f1 = names["cv"], names["f1"]
    assert cv.status == "completed" and cv.folds.kind == "stratified"
    counts = np.stack([cv.targets[cv.folds.held_out(fold)].sum(0) for fold in range(3)])
    assert (np.ptp(counts, axis=0) <= 1).all() and counts.sum() == cv.targets.sum()
    best = f1(cv.targets, cv.values > names["thresholds"](cv.values, cv.targets))
    assert best >= f1(cv.targets, names["honest"]) and best > f1(cv.targets, cv.values > 0.5)
    assert names["answer"].shape == (60, 3) and names["answer"].dtype == bool
    assert "at 0.5: " in capsys.readouterr().out


def test_random_views_are_averaged_and_repeat(page):
    names = page("Averaged random views")
    given = names["predictions"].arrays["predictions"]
    assert np.array_equal(given, sk.predict(names["Views"](), names["run"]).arrays["predictions"])
    model, (x, _) = names["run"].load_model(), names["Tags"]().test_dataset(None).tensors
    with torch.no_grad():
        one = model(x).sigmoid().numpy()
    assert 1e-4 < np.abs(given - one).max() < 0.2  # other numbers, near those of one view


def test_losses_of_a_detector_are_means_over_pictures(page):
    names = page("Losses as mappings, samples of unequal parts")
    run = names["run"]
    assert run.status == "completed", run.error
    model, task, data = run.load_model(), names["Boxes"](), names["Boxes"]().datasets(None)[1]
    with torch.no_grad():
        right = {name: float(loss) for name, loss in model(*task.collate([data[i] for i in range(21)])).items()}
    assert run.metrics["val_box"] == pytest.approx(right["box"], rel=1e-5)  # 16 and 5 pictures
    assert run.metrics["val_loss"] == pytest.approx(sum(right.values()), rel=1e-5)
    words = (*WORDS, "run.dir=runs/halves", "data.batch_size=8", "training.gradient_accumulation_steps=4")
    halves = sk.fit(task, compose(*(word for word in words if word not in WORDS[3:5])), show=False)
    for name, value in weights(run).items():
        assert torch.allclose(value, weights(halves)[name], atol=1e-6), name


def test_a_mapping_of_losses_is_answered_with_the_line_that_adds_them(page):
    class Apart(page("Losses as mappings, samples of unequal parts")["Boxes"]):
        def loss(self, model, batch):
            return model(*batch)

    run = sk.fit(Apart(), compose(*WORDS), show=False)
    assert run.status == "failed" and "dict of losses: box, score" in run.error and "sk.Loss(sum(" in run.error


def test_a_run_of_few_steps_says_so_once_before_it_starts(page, capsys):
    task = page()["Tags"]()
    few = "18 optimizer steps in all, few to learn from: trainer.max_epochs=34 makes 200 or more"
    run = sk.fit(task, compose(*WORDS))
    assert capsys.readouterr().out.count(few) == 1
    start = next(event for event in run.events if event["type"] == "start")
    assert start["reasons"]["steps"].startswith(few)
    assert not [event for event in run.events if event["type"] == "message" and few in event["text"]]
    assert few in str(sk.check(task, compose(*WORDS))) and few in str(sk.explain(compose(*WORDS), samples=180))
    long = sk.fit(task, compose(*WORDS, "trainer.max_epochs=34"), show=False)
    assert "steps" not in next(event for event in long.events if event["type"] == "start")["reasons"]
