"""Public calls and command lines with what nobody should give: each is refused in a sentence, without a traceback.

FUZZ_LINES in the environment says how many command lines: `make hostile` tries many more.
"""

import contextlib
import inspect
import os
import random
import sys

import pytest

import spectrakit as sk
from helpers import run_cli
from spectrakit.cli.main import main
from spectrakit.system.errors import RequestError
from spectrakit.system.secrets import SecretError

pytestmark = pytest.mark.usefixtures("here")
MANY = int(os.environ.get("FUZZ_LINES", "60"))
WRONG = (
    None,
    7,
    -1.5,
    b"x",
    [],
    {},
    object(),
    "",
    "x" * 5000,
    "/" + "y" * 300,
    "a\0b",
    "\ud800",
    "\x1b[31mred",
    ["\ud800"],
)
WRONG += ({"a": 1}, float("nan"), True, ("a", "b"), "=", "a=", "trainer=\0", "\n", int, "~nobody/x", "../" * 50)
# these ask a person, a service or a clock, train, or are plain records
LEFT_OUT = {
    "fit",
    "find_lr",
    "has_internet",
    "detect",
    "serve",
    "ProfilePicker",
    "Platform",
    "Moment",
    "FoundLr",
    "Task",
}
REFUSALS = (RequestError, SecretError, FileNotFoundError)
COMMANDS = "train resume runs show plot predict preflight check report compare watch find-lr profiles info kaggle trust"
COMMANDS_OF_TWO = [["kaggle", word] for word in ("check", "status", "logs", "output", "pull")]
WORDS = (
    "coffee",
    "trainer=cpu",
    "trainer.max_epochs=x",
    "data.batch_size=-1",
    "--out",
    "--config",
    "resume.allow=[\ud800]",
)


def calls() -> list[tuple]:
    "Each public function with a wrong value in each of its places, and sound ones before it."
    found = []
    for name in sorted(set(sk.__all__) - LEFT_OUT):
        call = getattr(sk, name)
        if not callable(call) or inspect.isclass(call):
            continue
        places = [p for p in inspect.signature(call).parameters.values() if p.kind <= p.VAR_POSITIONAL]
        least = sum(p.default is p.empty and p.kind != p.VAR_POSITIONAL for p in places)
        for number in range(max(0, least - 1), len(places)):
            sound = ["coffee" if p.name == "task" else sk.compose() if p.name == "config" else "x" for p in places]
            found += [(name, *sound[:number], wrong) for wrong in WRONG]
    return found


def sentence(error: BaseException) -> bool:
    text = str(error)
    return 0 < len(text) <= 2000 and text.count("\n") <= 1 and all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.slow
def test_wrong_values_are_refused_in_a_sentence(capsys, monkeypatch):
    names = (
        "open_run list_runs compose override diff compare report predict resume watch secret seal_output init_kernel"
    )
    # the root of the disk is a folder that can be sealed, which would read all of it
    tried = [one for one in calls() if one[0] in names.split() and one != ("seal_output", "../" * 50)]
    assert len(tried) > 250
    monkeypatch.setenv("KAGGLE_API_TOKEN", "")
    wrong = []
    for name, *values in tried:
        try:
            getattr(sk, name)(*values)
        except REFUSALS as error:
            if isinstance(error, RequestError) and not sentence(error):
                wrong.append((name, values[-1], str(error)[:200]))
        except ValueError as error:
            if type(error) is not ValueError or not sentence(error):
                wrong.append((name, values[-1], repr(error)[:200]))
        except (Exception, SystemExit) as error:
            wrong.append((name, values[-1], repr(error)[:200]))
    assert wrong == []


def line(draw: random.Random) -> list[str]:
    words = [draw.choice([*WORDS, *(w for w in WRONG if isinstance(w, str) and "\0" not in w)]) for _ in range(3)]
    command = draw.choice([*([word] for word in COMMANDS.split()), *COMMANDS_OF_TWO, ["nonsense"]])
    return [*command, *words[: draw.randint(0, 3)]]


@pytest.mark.parametrize("command", COMMANDS_OF_TWO, ids=lambda command: command[1])
def test_a_kernel_of_any_name_is_refused_in_a_sentence(command, here, capsys, monkeypatch):
    monkeypatch.setattr("spectrakit.kaggle.client.call_client", lambda *_: pytest.fail("it would ask Kaggle"))
    for word in ("y" * 300, "/" + "y" * 300, "/".join(["y" * 200] * 40), "a\0b", "\ud800", "~nobody/x/y", "\x1b[31m/x"):
        assert main([*command, word, *(["out"] * (command[1] in ("output", "pull")))]) == 2
        assert sentence(ValueError(capsys.readouterr().err.strip()))


@pytest.mark.parametrize("seed", range(2))
def test_command_lines_end_with_a_sentence(seed, capsys, monkeypatch):
    "In this process, where training is left out: what is wrong with a line is found before that."
    monkeypatch.setattr("spectrakit.api.actions.launch", lambda *_: pytest.fail("it would train"))
    draw, wrong = random.Random(seed), []
    for _ in range(MANY // 2):
        words = line(draw)
        if words[:2] in (["train", "coffee"], ["check", "coffee"], ["find-lr", "coffee"]):
            continue  # these may be right
        monkeypatch.setattr(sys, "argv", ["spectrakit", *words])
        try:
            with contextlib.suppress(SystemExit):
                main()
        except Exception as error:
            wrong.append((words, repr(error)[:200]))
        out, err = capsys.readouterr()
        if "Traceback" in out + err or any(not (c.isprintable() or c in "\n\t") for c in err):
            wrong.append((words, err[-200:]))
    assert wrong == []


@pytest.mark.slow
def test_a_name_with_control_characters_moves_no_cursor(here):
    (here / "runs" / "red\x1b[31m\x07").mkdir(parents=True)
    folder = here / "runs" / "red\x1b[31m\x07"
    (folder / "config.yaml").write_text("task: {name: coffee}\n")
    (folder / "events.jsonl").write_text("")
    (folder / "environment.json").write_text("{}")
    assert "\x1b" not in str(sk.open_run(folder)) and "\x07" not in repr(sk.open_run(folder))
    for words in (("runs",), ("show", str(folder))):
        done = run_cli(here, *words)
        assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr, done
