"The page of a study: small, whole, and without a script or an address, also with fifty trials of many settings."

import json
import random
import re

import optuna
import pytest

from spectrakit.tuning.study import open_study
from spectrakit.tuning.study_file import open_journal
from spectrakit.tuning.study_page import write_page

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
    named = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", page))
    assert named and named <= set(re.findall(r' id="([^"]+)"', page))  # no picture lacks a part
    classes = set(re.findall(r' class="(s\d+)"', page))
    assert classes and all(f".{name}{{" in page for name in classes)
    assert page.count("<svg") == 8 and "what mattered" in page and "50 trials" in page
