"The page of a study: small, whole, and without a script or an address, also with fifty trials of many settings."

import json
import random
import re

import optuna
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from lab import PICTURES
from spectrakit.tuning.search.study import open_study
from spectrakit.tuning.search.study_file import open_journal
from spectrakit.tuning.search.study_page import write_page

pytestmark = pytest.mark.slow
MOST_BYTES = 300 * 2**10


def filled(folder) -> None:
    "A study of fifty trials with eight settings, thirty evaluations each; some ended early, some failed."
    journal, draw = open_journal(folder, "minimize"), random.Random(0)
    for number in range(50):
        trial = journal.ask()
        rate = trial.suggest_float("optimizer.lr", 1e-5, 1e-1, log=True)
        for name in ("dropout", "mixup", "decay", "noise", "width"):
            trial.suggest_float(f"task.{name}", 0, 1)
        trial.suggest_categorical("data.micro_batch_size", [16, 32, 64])
        trial.suggest_categorical("task.name_of_it", ["relu", "a rather long name of something <b>bold</b>"])
        for step in range(30):
            trial.report(rate + 1 / (step + 1) + draw.random() / 10, step + 1)
        if number % 5 == 4:
            journal.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif number % 11 == 10:
            trial.set_user_attr("note", "ValueError: <script>alert(1)</script> " * 6)
            journal.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            journal.tell(trial, rate + draw.random() / 10)
    (folder / "study.json").write_text(json.dumps({"status": "completed", "metric": "val_loss"}))


def test_fifty_trials_fit_into_a_page_that_needs_nothing_else(tmp_path):
    filled(tmp_path)
    page = write_page(open_study(tmp_path)).read_text()
    assert len(page.encode()) <= MOST_BYTES
    assert "<script" not in page and "<b>bold" not in page and not re.search(r"(?:src|href)=\"(?!#)", page)
    classes = set(re.findall(r' class="(s\d+)"', page))
    assert classes and all(f".{name}{{" in page for name in classes)
    assert page.count('class="p"') == 11 and "what mattered" in page and "50 trials" in page


class Odds(sk.Task):
    "Three classes, and what is predicted are their odds."

    def datasets(self, cfg):
        x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        return TensorDataset(x, x[:, :3].argmax(1)), None

    def model(self, cfg):
        return nn.Linear(4, 3)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def predict(self, model, batch):
        return model(batch[0]).softmax(1)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    "The page of a study, and that of a cross-validation with a long name."
    folder = tmp_path_factory.mktemp("a-study-with-a-name-that-somebody-has-thought-about-20261120-120000")
    filled(folder)
    words = ("trainer.accelerator=cpu", "launch.mode=inline", "trainer.max_epochs=6", "data.batch_size=10")
    cv = sk.cross_validate(Odds(), *words, "folds.seeds=2", f"run.dir={folder}/runs", folds=3, show=False)
    return {"study": write_page(open_study(folder)), "folds": sk.report(cv.path)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1290])
@pytest.mark.parametrize("name", ["study", "folds"])
def test_on_a_phone_no_page_is_wider_than_the_screen(browser, pages, name, width, theme):
    with browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme) as opened:
        opened.goto(pages[name].as_uri())
        PICTURES.mkdir(parents=True, exist_ok=True)
        opened.screenshot(path=PICTURES / f"page-{name}-{width}-{theme}.png", full_page=True)
        assert opened.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        out = "e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth + 1 }"
        outside = [
            e.evaluate("e => e.outerHTML.slice(0, 80)")
            for e in opened.query_selector_all("h1, p, svg, summary")
            if e.evaluate(out)
        ]
        assert not outside
        small = "e => Math.min(...[...e.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
        assert opened.evaluate(f"({small})(document)") >= 7  # pixels of a line of text in a picture
