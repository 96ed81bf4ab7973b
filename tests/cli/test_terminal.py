"""The terminal: what fits into its width, colours, the tab key, and that a person is answered at once."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import clean_environ
from spectrakit.cli.commands import completion
from spectrakit.cli.main import COMMANDS, main
from spectrakit.cli.output import in_colour, table_text
from spectrakit.config.compose import compose, describe
from spectrakit.view.run_state import RunState, apply_event
from spectrakit.view.terminal import fitting, progress_line

ROOT = Path(__file__).resolve().parents[2]


def a_run(folder: Path, name: str) -> Path:
    "A run that has not begun, in ./runs of `folder`."
    path = folder / "runs" / name
    path.mkdir(parents=True)
    (path / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    (path / "events.jsonl").touch()
    return path


NAME = "a-run-with-quite-a-name-20261120-101500"
FITTING = (
    "--help",
    "train --help",
    "info",
    "profiles",
    "profiles env",
    "profiles kaggle_safe",
    "profiles --compare kaggle kaggle_safe a100",
    "explain trainer=kaggle_2xt4 --samples 20000",
    "runs",
    f"show {NAME}",
    f"trust {NAME}",
)


@pytest.mark.parametrize("words", FITTING)
@pytest.mark.parametrize("columns", [80, 60, 40])
def test_what_a_command_prints_fits_into_the_terminal(words, columns, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path, NAME)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    whole = r"  spectrakit | *\S+$| *\[TASK"  # an example, a name, and a usage that argparse leaves, are not broken
    assert lines and [line for line in lines if len(line) > columns and not re.match(whole, line)] == []


def test_a_profile_that_is_printed_in_a_narrow_terminal_is_still_a_configuration(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for columns in ("40", "70"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["profiles", "kaggle_safe"]) == 0
        Path("kept.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
        assert describe(compose(config="kept.yaml")) == describe(compose("trainer=kaggle_safe"))


def test_what_is_piped_has_whole_lines(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["profiles"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said and max(map(len, said.splitlines())) > 100


def test_columns_are_left_out_in_their_order_and_the_last_goes_on_below():
    rows = [("name", "first", "second", "what for"), ("x" * 10, "a" * 10, "b" * 10, "some words " * 6)]
    wide = table_text(rows, 200, spare=(1, 2)).splitlines()
    assert len(wide) == 2 and "first" in wide[0] and "second" in wide[0]
    one = table_text(rows, 60, spare=(1, 2))
    assert "first" not in one and "second" in one
    none = table_text(rows, 40, spare=(1, 2))
    assert "second" not in none and max(map(len, none.splitlines())) <= 40 and none.split().count("words") == 6
    below = table_text([("run", "status", "best"), ("x" * 47, "failed", "–"), ("y", "completed", "z" * 20)], 40)
    assert below.splitlines() == ["run", "  status · best", "x" * 47, "  failed", "y", f"  completed · {'z' * 20}"]


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
)
def test_colours_are_for_a_terminal_that_wants_them(variables, coloured, monkeypatch):
    class Terminal:
        def isatty(self):
            return True

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert in_colour(Terminal()) is coloured
    with open(os.devnull) as nothing:
        assert not in_colour(nothing)


@pytest.mark.parametrize("command", ["show", "plot", "watch", "resume", "trust", "report"])
def test_a_run_is_named_without_its_folder(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = a_run(tmp_path, "coffee-20261120-101500").name
    main([command, "coffee-20261120-1015"])
    assert f"'{name}'" in capsys.readouterr().err  # did you mean
    main([command, name])
    assert "no run" not in capsys.readouterr().err.lower()


@pytest.mark.parametrize("command", ["show", "plot", "watch", "resume", "trust", "report", "compare", "predict"])
def test_a_name_that_is_no_run_is_answered_with_those_that_are_near(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("coffee-20261120-101500", "coffee-20261121-101500", "digits-20261120-101500", "cv/fold-0/digits-1"):
        a_run(tmp_path, name)
    for name, words in (
        ("cofee-20261120-101500", "Did you mean 'coffee-20261120-101500'"),
        ("coffee", "2 begin so: 'coffee-2026112"),
        ("digits", "Did you mean 'digits-20261120-101500'?"),
        ("tea", "`spectrakit runs` lists the runs"),
        ("", "The name of the run is empty"),
        ("runs/digits-20261120-101500/logs.txt", "Give the run: "),
    ):
        if name.startswith("runs/"):
            Path(name).touch()
        assert main([command, name]) == 2
        said = capsys.readouterr().err
        assert words in said and said.count("\n") == 1, (name, said)
    assert command == "predict" or main([command, "cv/fold-0"]) == 2
    assert command == "predict" or "folder of 1 run. Name a run in it, such as 'runs/cv/fold-0/digits-1'" in (
        capsys.readouterr().err.replace(f"{tmp_path}/", "")
    )


def completed(line: str) -> list[str]:
    "What the tab key offers in bash behind `line`."
    script = f"""{completion.BASH}
COMP_LINE={shell_quoted(line)} COMP_POINT=${{#COMP_LINE}}
_spectrakit 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    folder = Path(sys.executable).parent
    environ = {**clean_environ(), "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environ, check=True)
    return done.stdout.split()


def shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_tab_key_in_bash(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path, "coffee-20261120-101500")
    assert completed("spectrakit sh") == ["show"]
    assert completed("spectrakit show cof") == ["coffee-20261120-101500"]
    assert completed("spectrakit train coffee trainer=kaggle_") == ["kaggle_2xt4", "kaggle_safe"]  # behind the =
    assert "trainer.max_epochs=" in completed("spectrakit train coffee trainer.max")


ZSHRC = f"""PS1='ready> '
autoload -Uz compinit && compinit -u -d ./.zcompdump
{completion.ZSH}
told() {{ print -r -- "<$BUFFER>" }}
zle -N told && bindkey '^X' told && setopt nobeep
"""


def typed_in_zsh(*lines: str) -> list[str]:
    "What stands in the line after each of `lines`, at whose end the tab key is pressed."
    Path(".zshrc").write_text(ZSHRC, encoding="utf-8")
    folder = Path(sys.executable).parent
    environ = {**clean_environ(), "PATH": f"{folder}:{os.environ['PATH']}", "ZDOTDIR": os.getcwd(), "TERM": "dumb"}
    leader, follower = pty.openpty()
    shell = subprocess.Popen(["zsh", "-i"], stdin=follower, stdout=follower, stderr=follower, env=environ)
    os.close(follower)
    seen, found = "", []

    def until(what: str) -> str:
        nonlocal seen
        ends = time.monotonic() + 240
        while not (there := re.search(what, seen)):
            assert time.monotonic() < ends, seen
            if select.select([leader], [], [], 1)[0]:
                seen += os.read(leader, 65536).decode(errors="replace")
        seen = seen[there.end() :]
        return there[1]

    try:
        until("(ready> )")
        for line in lines:
            os.write(leader, f"{line}\t\x18".encode())
            found.append(until(r"<(.*)>"))
            os.write(leader, b"\x15")  # an empty line again
        return found
    finally:
        shell.kill()
        shell.wait(60)
        os.close(leader)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not here")
def test_the_tab_key_in_zsh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path, "coffee-20261120-101500")
    lines = "spectrakit sh", "spectrakit watch cof", "spectrakit train coffee trainer.max_ep", "spectrakit show not"
    (tmp_path / "notes.txt").touch()
    assert typed_in_zsh(*lines) == [
        "spectrakit show ",
        "spectrakit watch coffee-20261120-101500 ",
        "spectrakit train coffee trainer.max_epochs=",
        "spectrakit show notes.txt ",  # no run is called so, but a file
    ]


def test_the_tab_key_says_nothing_where_there_is_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in (
        "",
        "spectrakit",
        "spectrakit nonsense x",
        "spectrakit train coffee nothing.such=",
        "spectrakit show -",
    ):
        assert completion.candidates(line, []) == []
    assert set(completion.candidates("spectrakit ", list(COMMANDS))) == set(COMMANDS)
    assert main(["completion", "zsh"]) == 0 and re.search(r"^#compdef spectrakit$", completion.ZSH, re.M)


@pytest.mark.slow
def test_a_person_at_a_terminal_is_answered_before_torch_is_imported(tmp_path):
    leader, follower = pty.openpty()
    words = [sys.executable, "-X", "importtime", "-m", "spectrakit", "train", "coffee", "trainer=no_such"]
    process = subprocess.Popen(words, cwd=tmp_path, env=clean_environ(), stdout=follower, stderr=follower)
    os.close(follower)
    said, ends = b"", time.monotonic() + 240
    while b"composing the settings" not in said and time.monotonic() < ends:
        if select.select([leader], [], [], 1)[0]:
            try:
                said += os.read(leader, 65536)
            except OSError:
                break
    process.kill()  # what comes after that is not read
    process.wait(60)
    os.close(leader)
    before = said.partition(b"composing the settings")[0].decode(errors="replace").replace("\r", "")
    assert b"coffee trainer=no_such: composing the settings" in said and re.search(r"\| +argparse$", before, re.M)
    assert not re.search(r"\| +(torch|hydra|matplotlib)$", before, re.M)  # nothing that takes long came first


def test_a_narrow_terminal_shows_how_long_a_run_takes_beside_its_bar():
    state = RunState("coffee-1")
    for event in ({"type": "start", "total_steps": 60}, {"type": "step", "step": 30, "loss": 0.5, "lr": 1e-3}):
        apply_event(state, {"t": 9.0, **event})
    assert fitting(progress_line(state, 8), 39) == "████░░░░ 30/60 · 0:00:09 elapsed"
    assert fitting(progress_line(state), 20) == "██████████░░░░░░░░░░"
