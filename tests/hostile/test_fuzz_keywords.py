"""Every parameter of every public call with values of the wrong kind: a sentence, never a fault of ours.

What would train, predict, build or push is stopped where the request has been read.
"""

import inspect

import pytest
from hostile_harness import bounded
from test_fuzz import WRONG, sentence

import spectrakit as sk
import spectrakit.api.actions
import spectrakit.api.preflight
import spectrakit.kaggle.client
import spectrakit.kaggle.offline.wheelhouse
import spectrakit.tuning.lr_finder
import spectrakit.tuning.search.search
from spectrakit.checkpoint.store import CheckpointError
from spectrakit.kaggle.client import KaggleError
from spectrakit.system.errors import TaskError
from spectrakit.system.secrets import SecretError

pytestmark = pytest.mark.slow
SAID = (sk.RequestError, TaskError, SecretError, KaggleError, CheckpointError, FileNotFoundError)
# records with typed fields; what asks a service; `check` trains for a moment, and its settings are those of `fit`;
# `seal_output` looks through the folder that it is given, which may be all there is
LEFT_OUT = {"Config", "FoundLr", "Moment", "Platform", "RequestError", "Run", "Study", "Task"}
LEFT_OUT |= {"has_internet", "check", "profiles", "seal_output"}
QUICK = {"trust", "weighted_mean", "push_kernel", "Watchdog"}  # the others are played by `make hostile`


class Began(Exception):
    "The request was read, and the work would begin."


def began(*_, **__):
    raise Began


@pytest.fixture(autouse=True)
def nothing_begins(here, monkeypatch):
    monkeypatch.setattr(spectrakit.api.actions, "launch", began)
    monkeypatch.setattr(spectrakit.api.preflight, "launch", began)
    monkeypatch.setattr(spectrakit.tuning.lr_finder, "launch", began)
    monkeypatch.setattr(spectrakit.tuning.search.search, "run_trials", began)
    monkeypatch.setattr(spectrakit.kaggle.offline.wheelhouse, "_gather", began)
    monkeypatch.setattr(spectrakit.kaggle.client, "call_client", began)
    monkeypatch.setattr(spectrakit.kaggle.client, "client", began)


def parameters() -> list:
    "(call, parameter) for all that the package offers."
    return [
        pytest.param(name, parameter.name, marks=() if name in QUICK else pytest.mark.long)
        for name in sorted(set(sk.__all__) - LEFT_OUT)
        if callable(getattr(sk, name))
        for parameter in inspect.signature(getattr(sk, name)).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]


def asked(name: str, changed: str, value) -> None:
    "Call it with `value` in one place, and what is sound in the places that have no default."
    words, keywords = [], {}
    for parameter in inspect.signature(getattr(sk, name)).parameters.values():
        sound = {"task": "coffee", "config": sk.compose()}.get(parameter.name, "x")
        if parameter.kind is parameter.VAR_POSITIONAL:
            words += [value] if parameter.name == changed else []
        elif parameter.default is parameter.empty:
            words.append(value if parameter.name == changed else sound)
        elif parameter.name == changed:
            keywords[changed] = value
    getattr(sk, name)(*words, **keywords)


@pytest.mark.parametrize("name, parameter", parameters())
def test_a_value_of_the_wrong_kind_is_told_in_a_sentence(name, parameter, capsys):
    wrong = []
    for value in WRONG:
        try:
            with bounded():
                asked(name, parameter, value)
        except Began:
            pass
        except (*SAID, ValueError) as error:
            if type(error) not in (*SAID, ValueError) or not sentence(error):
                wrong.append((value, repr(error)[:300]))
        except Exception as error:
            wrong.append((value, repr(error)[:300]))
    assert not wrong
