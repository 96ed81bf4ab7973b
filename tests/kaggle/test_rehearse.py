"`kaggle check --run`: what `kaggle init` makes passes both sessions, and what learns its test set by heart does not."

from pathlib import Path

import pandas as pd
import pytest

from helpers import run_cli

pytestmark = pytest.mark.slow


@pytest.fixture
def soil(tmp_path) -> Path:
    "A competition's files."
    folder = tmp_path / "files"
    folder.mkdir()
    rows = pd.DataFrame({"id": range(240), "size": range(240), "colour": ["red", "blue", "red"] * 80})
    rows = rows.assign(grade=["low", "high"] * 120)
    rows[:220].to_csv(folder / "train.csv", index=False)
    rows[220:].drop(columns="grade").to_csv(folder / "test.csv", index=False)
    rows[220:][["id"]].assign(grade="low").to_csv(folder / "sample_submission.csv", index=False)
    return folder


def test_what_init_makes_passes_both_sessions(tmp_path, soil):
    words = ("--owner", "ada", "--competition", "soil-2026", "--data", soil, "--kind", "script")
    made = run_cli(tmp_path, "kaggle", "init", "soil-first", *words)
    assert made.returncode == 0, made.stderr
    script = next((tmp_path / "soil-first").glob("*.py"))
    text = script.read_text()
    assert text.count("trainer.max_epochs=30") == 1
    script.write_text(text.replace("trainer.max_epochs=30", "trainer.max_epochs=1"))
    done = run_cli(tmp_path, "kaggle", "check", "soil-first", "--run", "--files", soil, "--rows", "150", timeout_s=400)
    assert "it ended well, and submission.csv has a row for each of 20 ids" in done.stdout, done.stdout + done.stderr
    assert "it ended well, and submission.csv has a row for each of 60 ids" in done.stdout
    assert done.returncode == 0 and "`spectrakit kaggle up` makes them" in done.stdout  # the wheels, later
    assert "train.csv has 150 of its 220 rows" in done.stdout and not list((tmp_path / "soil-first").glob("runs"))
    assert len(pd.read_csv(soil / "train.csv")) == 220 and len(pd.read_csv(soil / "test.csv")) == 20


def test_what_breaks_in_the_rerun_alone_is_said(tmp_path, soil):
    words = ("--owner", "ada", "--competition", "soil-2026", "--data", soil, "--kind", "script")
    run_cli(tmp_path, "kaggle", "init", "by-heart", *words)
    code = (
        "import pandas as pd\nimport spectrakit as sk\n"
        "test = pd.read_csv(sk.find_input('soil-2026') / 'test.csv')\n"
        "codes = {'red': 'low', 'blue': 'high'}\n"
        "test.assign(grade=[codes[c] for c in test['colour']])[['id', 'grade']].to_csv('submission.csv', index=False)\n"
    )
    next((tmp_path / "by-heart").glob("*.py")).write_text(code)
    done = run_cli(tmp_path, "kaggle", "check", "by-heart", "--run", "--files", soil, timeout_s=200)
    lines = [line for line in done.stdout.splitlines() if " rehearsal " in line]
    assert done.returncode == 1 and len(lines) == 2 and lines[0].startswith("ok") and "20 ids" in lines[0], done.stdout
    assert lines[1].startswith("error") and "KeyError: 'never seen before'" in lines[1] and "hidden" in lines[1]
    missing = run_cli(tmp_path, "kaggle", "check", "by-heart", "--run")
    assert missing.returncode == 2 and "kaggle competitions download soil-2026" in missing.stderr


@pytest.mark.parametrize("place", ["soil-2026", "competitions/soil-2026"])
def test_both_places_of_the_inputs_are_there(tmp_path, soil, place):
    words = ("--owner", "ada", "--competition", "soil-2026", "--data", soil, "--kind", "script")
    run_cli(tmp_path, "kaggle", "init", "by-path", *words)
    code = (
        f"import pandas as pd\ntest = pd.read_csv('/kaggle/input/{place}/test.csv')\n"
        "test.assign(grade='low')[['id', 'grade']].to_csv('submission.csv', index=False)\n"
    )
    next((tmp_path / "by-path").glob("*.py")).write_text(code)
    done = run_cli(tmp_path, "kaggle", "check", "by-path", "--run", "--files", soil, timeout_s=200)
    lines = [line for line in done.stdout.splitlines() if " rehearsal " in line]
    if any("not sealed" in line for line in lines):
        pytest.skip("/kaggle/input is only there in a sealed session")
    assert len(lines) == 2 and all(line.startswith("ok") for line in lines), done.stdout + done.stderr
