"CPU threads: the user's variable, the setting, a share of the cores; and a notebook that is left as it was."

import os

import pytest
import torch

from helpers import SETTINGS
from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.distributed.topology import plan_threads
from spectrakit.runs.run_dir import read_environment
from spectrakit.system.platforms.detect import detect
from tasks import Line

MANY = detect().cores + 1  # what no share of the cores can be


@pytest.mark.parametrize(
    "words, environ, count, says",
    [
        ((), {}, 4, "a share of 8 cores for each of 2 processes"),
        ((), {"OMP_NUM_THREADS": "1"}, 1, "OMP_NUM_THREADS=1 is set"),
        ((), {"OMP_NUM_THREADS": "3,2"}, 3, "OMP_NUM_THREADS=3 is set"),
        ((), {"OMP_NUM_THREADS": "many"}, 4, "a share of 8 cores"),
        (("launch.threads=6",), {"OMP_NUM_THREADS": "1"}, 6, "launch.threads=6"),
    ],
)
def test_the_setting_goes_first_then_the_variable_then_a_share(words, environ, count, says):
    threads = plan_threads(compose(*words), 8, 2, environ)
    assert threads.count == count and threads.reason.startswith(f"{count} CPU thread") and says in threads.reason


def decided(*words):
    "What a run with these words wrote down when it began."
    run = fit(Line(), compose(*SETTINGS, "trainer.max_epochs=1", "trainer.accelerator=cpu", *words), show=False)
    assert run.status == "completed", run.error
    return read_environment(run.path)["decided"]


@pytest.mark.slow
def test_the_exported_variable_wins_in_the_child_and_is_recorded(here, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(MANY))
    known = decided()
    assert known["threads"] == MANY
    assert known["reasons"]["threads"] == f"{MANY} CPU threads: OMP_NUM_THREADS={MANY} is set"


@pytest.mark.slow
@pytest.mark.parametrize("words", [("launch.threads={}",), ("distributed.env.OMP_NUM_THREADS={}",)])
def test_both_settings_reach_the_child(here, monkeypatch, words):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    known = decided(*(word.format(MANY) for word in words))
    assert known["threads"] == MANY and f"={MANY}" in known["reasons"]["threads"]


@pytest.fixture
def notebook():
    "This process as a notebook with as many threads as no run would choose."
    before = torch.get_num_threads()
    torch.set_num_threads(MANY)
    yield
    torch.set_num_threads(before)


class Meddling(Line):
    "It sets, changes and removes variables, as libraries do."

    def model(self, cfg):
        os.environ["TINY_NEW"], os.environ["TINY_CHANGED"] = "1", "2"
        os.environ.pop("TINY_REMOVED", None)  # the check makes a second model in this process
        return super().model(cfg)


@pytest.mark.slow
@pytest.mark.parametrize("words, count", [((), MANY), (("launch.threads=1",), 1)])
def test_inline_leaves_the_notebooks_threads_and_environment(here, monkeypatch, notebook, words, count):
    monkeypatch.setenv("TINY_CHANGED", "1")
    monkeypatch.setenv("TINY_REMOVED", "1")
    before = dict(os.environ)
    config = compose(*SETTINGS, "trainer.max_epochs=1", "trainer.accelerator=cpu", "launch.mode=inline", *words)
    run = fit(Meddling(), config, show=False)
    known = read_environment(run.path)["decided"]
    assert run.status == "completed" and known["threads"] == count
    assert known["reasons"]["threads"].startswith(f"{count} CPU thread")
    assert torch.get_num_threads() == MANY and dict(os.environ) == before
