"""An interrupt before there is a run: a sentence, nothing left behind, and the next `fit` trains."""

import os
import signal

import pytest

import spectrakit.api.actions as actions
from spectrakit.config.compose import compose
from tasks import Line

WORDS = ("trainer.accelerator=cpu", "trainer.max_epochs=1", "run.console=none", "launch.mode=inline")


@pytest.fixture(autouse=True)
def interrupts_arrive():
    "A shell starts what runs in its background with interrupts ignored; a notebook's kernel does not."
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["new_request", "plan_resume", "with_task"])
def test_an_interrupt_before_the_run_began_is_a_sentence(here, monkeypatch, name):
    real = getattr(actions, name)

    def pressed(*words):
        os.kill(os.getpid(), signal.SIGINT)
        return real(*words)

    config = compose(*WORDS)
    with monkeypatch.context() as changed:
        changed.setattr(actions, name, pressed)
        with pytest.raises(KeyboardInterrupt, match="before the run began: nothing was trained"):
            actions.fit(Line(), config)
    assert not list(here.glob("runs/*"))
    assert actions.fit(Line(), config).status == "completed"
