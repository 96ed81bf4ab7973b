"""`report` and `spectrakit report`: one page that opens offline, of a run in any condition, without secrets and without
running its code.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_comparison import Parsed

import spectrakit as sk
from helpers import clean_environ, tree_hashes
from odd_runs import ODD, SCRIPT, START, end, evaluation, odd_run, plain_run, step, write_run
from spectrakit.api.actions import predict
from spectrakit.api.run import Run
from spectrakit.cli.main import main
from spectrakit.pages.prediction_plots import plot_predictions
from spectrakit.runs.run_dir import locked
from spectrakit.system.errors import RequestError

PARTS = (
    "results",
    "curves",
    "clock",
    "faults",
    "checkpoints",
    "predictions",
    "settings",
    "environment",
    "reproducibility",
)


def part(text: str, name: str) -> str:
    "One part of a page, without its pictures."
    return re.sub(
        r"<svg.*?</svg>|data:image[^\"]*",
        "",
        text.partition(f'<section id="{name}"')[2].partition("</section>")[0],
        flags=re.S,
    )


@pytest.fixture
def page(here):
    "A function that reports on a run and returns the page, checked for what no page may hold."

    def make(run, **options) -> str:
        text = sk.report(run, **options).read_text(encoding="utf-8")
        parsed = Parsed(text)
        assert (
            parsed.loads == []
            and not parsed.tags & {"script", "link", "iframe", "object", "base", "form"}
            and not [a for a in parsed.attributes if a.startswith("on")]
        )
        assert (
            "could not be made" not in text
            and "://" not in text
            and text.startswith("<!doctype html>")
            and len(text) < 2_000_000
        )
        assert all(f'<section id="{name}" aria-label=' in text for name in PARTS)
        return text

    return make


@pytest.mark.slow
def test_a_trained_run_on_one_page(trained_copy, page):
    from tasks import Submitting

    run = Run(trained_copy)
    predict(Submitting(), run)
    text = page(run)
    assert (trained_copy / "report.html").is_file() and "prefers-color-scheme:dark" in text and "tabular-nums" in text
    assert f"{run.best.value:.4g}" in part(text, "results") and "20 of 20" in part(text, "results")
    found = part(text, "checkpoints")
    assert (
        found.count("verified") == len(list(trained_copy.glob("checkpoints/step-*")))
        and "best" in found
        and "latest" in found
    )
    assert "all 20 optimizer steps done" in part(text, "faults") and "no time limit" in part(text, "clock")
    assert (
        all(key in part(text, "settings").partition("all ")[0] for key in ("trainer.max_epochs", "optimizer.lr"))
        and "seed" not in part(text, "settings").partition("all ")[0]
    )
    told = part(text, "reproducibility")
    assert (
        re.search(r"training data.*40 samples; all: [0-9a-f]{16}", told)
        and "spectrakit train" in told
        and run.config.seed == 0
        and "torch" in told
    )
    assert "predictions" in part(text, "predictions") and re.search(r">5<.*float32", part(text, "predictions"))
    assert Parsed(text).attributes >= {"aria-label", "role"}


def test_a_damaged_checkpoint_is_told(trained_copy, page):
    name = (trained_copy / "checkpoints" / "BEST").read_text().strip()
    with open(trained_copy / "checkpoints" / name / "model.safetensors", "r+b") as file:
        file.seek(60), file.write(b"????")
    found = part(page(trained_copy), "checkpoints")
    assert (
        "model.safetensors" in found
        and found.count("verified") == len(list(trained_copy.glob("checkpoints/step-*"))) - 1
    )


def test_a_failed_run_tells_why_without_its_secrets(here, page, monkeypatch):
    monkeypatch.setenv("FORUM_PASSWORD", "s3cret-&-more")
    events = [
        START,
        step(1),
        {"t": 2, "type": "oom", "reason": "out of memory", "step": 1},
        {"t": 3, "type": "restart", "step": 1, "notes": ["again, smaller"]},
        end(1, "failed", "ValueError: s3cret-&-more"),
    ]
    run = write_run(here / "run", events, "+extra.hf_token=hf_0123456789")
    (run / "logs").mkdir()
    (run / "logs" / "error-rank-1.txt").write_text("Traceback\n  <b>line</b>\nValueError: s3cret-&-more\n")
    (run / "logs" / "rank-0.log").write_text(
        "x\n" * 100_000 + "logged in, WANDB_API_KEY=abcdef0123456789 steps=1234567\n"
    )
    text = page(run)
    found = part(text, "faults")
    assert (
        "again, smaller" in found
        and "out of memory" in found
        and "&lt;b&gt;line" in found
        and "steps=1234567" in found
        and len(found) < 30_000
    )
    for secret in ("s3cret", "hf_0123456789", "abcdef0123456789"):
        assert secret not in text
    assert "&lt;FORUM_PASSWORD&gt;" in found and re.search(r'class="state">failed<', text)


def test_what_the_clock_did(here, page):
    events = [
        START,
        {
            "t": 0.1,
            "type": "budget",
            "left_s": 600.0,
            "reserve_s": 90.0,
            "told": "10 min left",
            "held": {"predictions": 60.0},
        },
        step(5),
        {"t": 500, "type": "budget", "left_s": 95.0, "reserve_s": 91.0, "held": {"predictions": 61.0}},
        end(5, "out_of_time", "the time is up"),
    ]
    run = write_run(here / "run", events)
    (run / "environment.json").write_text(json.dumps({"time_limit": {"limit_s": 3600, "reason": "watchdog.limit=1h"}}))
    found = part(page(run), "clock")
    for words in (
        "10 min left",
        "1:00:00 (watchdog.limit=1h)",
        "0:10:00",
        "0:01:35",
        "0:01:31",
        "61.0 s",
        "yes: the time is up",
    ):
        assert words in found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ODD)
def test_a_run_of_any_condition_has_a_page(here, page, kind):
    odd = odd_run(here, kind)
    text = page(odd)
    assert SCRIPT not in text and "\x1b" not in text
    if kind == "words":
        assert "val_loss&quot;: &quot;low" in part(text, "results") and "config.yaml cannot be read" in part(
            text, "results"
        )
    if kind == "torn":
        assert "cannot be read" in part(text, "predictions") and "manifest.json" in part(text, "checkpoints")
    if kind == "newer":
        assert "optimizer.lr" in part(text, "settings") and "schema 9" in part(text, "results")


def test_a_run_that_goes_on_is_reported_as_it_is(here, page):
    run = write_run(here / "run", [START, step(1), step(2)])
    with locked(run):
        assert 'class="state">running<' in page(run)
    assert 'class="state">unfinished<' in page(run)


@pytest.mark.slow
def test_a_long_run_fits_on_a_page(here, page):
    run = write_run(
        here / "run",
        [
            START,
            *(step(n, loss=1 / n + n % 7) for n in range(1, 60_001)),
            *(evaluation(n) for n in range(10, 60_000, 10)),
        ],
    )
    assert "60000" in page(run) and (run / "report.html").stat().st_size < 500_000


# where it goes


@pytest.mark.slow
def test_where_nothing_can_be_written_another_file_is_asked_for(here, page, read_only):
    run = read_only(plain_run(here / "run"))
    with pytest.raises(RequestError, match="out="):
        sk.report(run)
    assert "completed" in page(run, out=here / "mine.html")
    for wrong in (here, here / "mine.pdf", here / "no" / "mine.html"):
        with pytest.raises(RequestError):
            sk.report(run, out=wrong)


def test_only_the_page_is_written_and_the_old_one_replaced(here, page):
    run = plain_run(here / "run")
    (run / "report.html").write_text("old")
    before = tree_hashes(run)
    page(run)
    after = tree_hashes(run)
    assert set(after) == set(before) and {name for name in after if after[name] != before[name]} == {"report.html"}


def test_what_is_no_run_is_refused(here):
    plain_run(here / "runs" / "coffee")
    for wrong, words in (("cofee", "Did you mean 'coffee'"), ("runs", "a folder of 1 run"), (7, "not a run")):
        with pytest.raises(RequestError, match=words):
            sk.report(wrong)


# predictions


@pytest.mark.slow
def test_pictures_are_the_tasks_own_or_go_by_the_shapes(here, page):
    class Own:
        def pictures(self, predictions):
            return {"my <own>": plot_predictions(predictions.values["predictions"], predictions.targets)}

    class Broken:
        def pictures(self, predictions):
            raise KeyError("not <mine>")

    run = plain_run(here / "run", "task.name=somewhere.else:Thing")
    np.savez(run / "predictions.npz", predictions=np.arange(6.0), targets=np.arange(6.0) + 1, sigma=np.ones(6))
    assert "<h3>my &lt;own&gt;</h3>" in page(run, task=Own()) and "<h3>my &lt;own&gt;</h3>" in page(Run(run, Own()))
    assert "<h3>predictions</h3>" in page(run) and "inside 1 sigma" in (run / "report.html").read_text()
    found = part(page(run, task=Broken()), "predictions")
    assert "not &lt;mine&gt;" in found and "<h3>predictions</h3>" in found  # those of the shapes in their place


@pytest.mark.slow
def test_code_that_a_runs_settings_name_is_not_run(here, page):
    (here / "evil.py").write_text("open('was_here', 'w')\nclass Task: pass\n")
    run = plain_run(here / "run", f"task.name='{here}/evil.py:Task'")
    np.savez(run / "predictions.npz", predictions=np.arange(6.0), targets=np.arange(6.0))
    page(run)
    assert not (here / "was_here").exists()


@pytest.mark.slow
def test_predictions_of_any_kind_are_listed(here, page):
    run = plain_run(here / "run")
    np.savez(
        run / "predictions.npz",
        words=np.array(["<b>", "x"]),
        none=np.zeros((0, 3)),
        waves=np.array([1j]),
        nan=np.full((4, 2), np.nan),
        targets=np.array([[1, 2]]),
    )
    found = part(page(run), "predictions")
    assert "4 × 2" in found and "complex128" in found and ">8<" in found
    np.savez(run / "predictions.npz", predictions=np.array([object()]))
    assert "cannot be read" in part(page(run), "predictions") or "object" in part(page(run), "predictions").lower()


# the command


@pytest.mark.slow
def test_the_command_writes_the_page(here, trained_copy, capsys):
    assert main(["report", str(trained_copy)]) == 0 and capsys.readouterr().out.strip() == str(
        trained_copy / "report.html"
    )
    assert main(["report", str(trained_copy), "--out", "mine.html"]) == 0 and Path("mine.html").stat().st_size > 50_000
    capsys.readouterr()
    for words in (["report", "nowhere"], ["report", str(trained_copy), "--out", "x.doc"], ["report"]):
        try:
            status = main(words)
        except SystemExit as ending:
            status = ending.code
        captured = capsys.readouterr()
        assert status == 2 and captured.out == "" and captured.err.count("\n") == 1, words


@pytest.mark.slow
def test_no_torch_is_imported_where_the_task_is_ones_own(here):
    run = plain_run(here / "run", "task.name=somewhere.else:Thing")
    np.savez(run / "predictions.npz", predictions=np.arange(6.0), targets=np.arange(6.0))
    code = (
        f"import sys, spectrakit as sk; sk.report({str(run)!r}); assert not {{'torch', 'accelerate', "
        f"'pandas'}} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, env=clean_environ(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
