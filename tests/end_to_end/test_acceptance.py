"The notebook that a person pushes to the real Kaggle, as far as this machine goes, and the page of its report."

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import notebooks

root = Path(__file__).resolve().parents[2]
NOTEBOOK = root / "kaggle" / "acceptance" / "acceptance.ipynb"
NAME = "report-acceptance.json"
NEEDS = ("two T4s", "GPU figures", "precision on a T4", "DDP on both GPUs", "samples a second on one and on two GPUs")


def session(folder: Path, changes: dict[str, str], earlier: Path | None = None) -> dict:
    "The report of the notebook after `changes` to its code; `earlier`: what is attached."
    notebook, working, inputs = nbformat.read(NOTEBOOK, as_version=4), folder / "working", folder / "input"
    working.mkdir(parents=True), inputs.mkdir()
    if earlier is not None:
        shutil.copytree(earlier, inputs / "notebooks" / "ada" / "spectrakit-acceptance")
    for old, new in changes.items():
        assert any(old in cell.source for cell in notebook.cells), old
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    told = {"SPECTRAKIT_INPUT": str(inputs), "SPECTRAKIT_OVERRIDES": "env=local trainer.accelerator=cpu"}
    notebooks.played(notebook, working, told)
    return json.loads((working / NAME).read_text())


def page(folder: Path, *reports: Path) -> subprocess.CompletedProcess:
    "What bench/real.py says of reports; the page is in `folder`."
    command = [sys.executable, root / "bench" / "real.py", *reports, "--out", folder]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.long
@pytest.mark.slow
def test_a_check_that_breaks_is_a_row_and_the_others_run(tmp_path):
    "Each training fails, so each check that needs one does; the page shows their tracebacks first."
    changes = {
        "return nn.functional.mse_loss(model(batch[0]), batch[1])": "raise ValueError('the loss of this test')",
        "time.time() + 240": "time.time()",
    }
    report = session(tmp_path, changes)
    rows = {row["name"]: row for row in report["rows"]}
    assert len(rows) == len(report["rows"]) == 24 and report["platform"] == "local"
    assert rows["train on one device"]["outcome"] == "failed"
    assert "the loss of this test" in rows["train on one device"]["traceback"]
    for name in ("submission", "■", "resume after ■", "time limit", "chained session, its end"):
        assert rows[name]["outcome"] == "failed" and "Traceback" in rows[name]["traceback"], rows[name]
    assert {rows[name]["outcome"] for name in (*NEEDS, "platform", "no internet")} == {"not run"}
    assert rows["output"]["outcome"] == rows["time"]["outcome"] == "passed"
    done = page(tmp_path, tmp_path / "working" / NAME)
    assert done.returncode == 1 and "failed: train on one device, submission, ■" in done.stdout
    text = (tmp_path / "real.md").read_text()
    assert "## local, " in text and "6 failed" in text and "the loss of this test" in text
    assert text.index("**failed**") < text.index("| passed |") < text.index("| not run |")


@pytest.mark.long
@pytest.mark.slow
def test_two_sessions_pass_what_this_machine_has_and_count_the_rest_as_not_run(tmp_path):
    "The second goes on from the output of the first."
    limit = {"LIMIT_S = 90": "LIMIT_S = 30"}
    first = session(tmp_path / "first", limit)
    second = session(tmp_path / "second", limit, tmp_path / "first" / "working")
    for report, chained in ((first, "not run"), (second, "passed")):
        rows = {row["name"]: row for row in report["rows"]}
        assert rows["chained session, its beginning"]["outcome"] == chained, rows
        for name in ("train on one device", "submission", "■", "resume after ■", "output"):
            assert rows[name]["outcome"] == "passed", rows[name]
        assert {rows[name]["outcome"] for name in NEEDS} == {"not run"}
        assert not [row for row in rows.values() if re.search(r"\b(Name|Type|Key|Attribute)Error", str(row))]


# --- the page -------------------------------------------------------------------------------------------------------


def row(name: str, outcome: str, **more) -> dict:
    return {"name": name, "expected": "16 GiB | each", "outcome": outcome, "found": ["a", "b"], "seconds": 1.5, **more}


def written(folder: Path, platform: str, *rows: dict) -> Path:
    "A report made by hand."
    facts = {"schema": 1, "platform": platform, "mode": "batch", "gpus": ["Tesla T4"], "seconds": 90.0, "began": "now"}
    (file := folder / f"{platform}.json").write_text(json.dumps({**facts, "rows": rows}))
    return file


def test_the_page_keeps_a_report_of_each_platform(tmp_path):
    kaggle = written(tmp_path, "kaggle", row("one", "passed"), row("two", "failed", traceback="Traceback\n```\nno"))
    colab = written(tmp_path, "colab", row("three", "passed"), row("four", "not run"))
    assert page(tmp_path, kaggle).returncode == 1
    done = page(tmp_path, colab)
    assert done.returncode == 0 and "no check failed" in done.stdout
    text = (tmp_path / "real.md").read_text()
    assert "## colab, batch: 1 passed, 0 failed, 1 not run" in text
    assert "## kaggle, batch: 1 passed, 1 failed, 0 not run" in text
    assert '| **failed** | two | 16 GiB \\| each | ["a", "b"] | 1.5 |' in text and "### two" in text
    assert text.count("```") == 2 and "1.5 min, Tesla T4" in text
    kaggle = written(tmp_path, "kaggle", row("one", "passed"), row("two", "passed"))
    assert page(tmp_path, kaggle).returncode == 0  # the later report takes the place of the earlier one
    text = (tmp_path / "real.md").read_text()
    assert "2 passed, 0 failed, 0 not run" in text and "**failed**" not in text


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"rows": []}', '{"schema": 1, "rows": [{"outcome": "won"}]}', '{"schema": 2, "rows": [1]}']
)
def test_a_file_that_is_no_report_is_refused_in_a_sentence(tmp_path, text):
    (file := tmp_path / "report.json").write_text(text)
    done = page(tmp_path, file)
    assert done.returncode == 1 and "is no report of kaggle/acceptance" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "real.md").exists()
