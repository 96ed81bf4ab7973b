"""Three commands from an empty account to a score: `pip install`, `kaggle init`, `kaggle up`, and then `kaggle submit`.

The client is a stand-in that answers as Kaggle's does, and behind it stands the sealed simulator: what is pushed runs
there, and what is handed in runs once more with a hidden test set, by which it is scored.
"""

from pathlib import Path

import pandas as pd
import pytest

from faultlib import chains
from kaggle_sim import environment, sealed
from test_wheel import installed, wheel  # noqa: F401 - fixtures

pytestmark = pytest.mark.slow


@pytest.fixture
def account(tmp_path, installed) -> Path:  # noqa: F811 - the fixture
    "An account with nothing in it, and a competition: its public files, and a larger hidden set with other ids."
    if reason := sealed.why_not():
        pytest.skip(reason)
    try:
        environment.environment("kaggle")
    except environment.CannotMake as error:
        pytest.skip(str(error))
    return chains.open_account(tmp_path / "account", installed.parent)


def run(home: Path, installed: Path, *words: object, limit_s: int = 300) -> str:  # noqa: F811 - the fixture
    "A command of the installed kit, as a person types it in an empty folder; what it printed."
    code, said = chains.finished(chains.started(home, installed, *words, limit_s=limit_s), 590)
    assert code == 0, said
    return said


CASES = {"as it is made": "nothing", "out of time": "time", "five folds": "folds"}


@pytest.mark.long  # with stand-ins: kaggle/test_up.py
@pytest.mark.parametrize("case", CASES)
def test_three_commands_lead_from_an_empty_account_to_a_submission(account, installed, tmp_path, case):  # noqa: F811 - the fixture
    home = tmp_path / "home"
    home.mkdir()
    data = account / "sources" / "soil-2026"
    run(home, installed, "init", "soil-first", "--owner", "ada", "--competition", "soil-2026", "--data", data)
    for change in chains.EDITS.get(CASES[case], ()):
        chains.edit(home, *change)
    said = run(home, installed, "up", "soil-first", limit_s=90 if case == "out of time" else 300)
    public = pd.read_csv(home / "soil-first" / "output" / "submission.csv")
    assert list(public["id"]) == list(range(1000, 1020)) and set(public["grade"]) == {"low", "high"}, said
    assert case != "out of time" or "out_of_time" in said
    asked = [" ".join(line.split()[:2]) for line in (account / "asked.txt").read_text().splitlines()]
    assert asked.count("datasets create") == asked.count("kernels push") == 1

    scored = run(home, installed, "submit", "soil-first", "-m", "x", limit_s=90 if case == "out of time" else 300)
    assert float(scored.rpartition("public score: ")[2]) > 0.8, scored  # of 60 rows that nobody had seen


@pytest.mark.long
def test_a_cut_session_goes_on_from_what_it_left(account, installed, tmp_path):  # noqa: F811 - the fixture
    assert chains.one_chain("kept", tmp_path / "chain", installed, seed=1).broken == ()
