"The pairs of Python and torch of `make platforms`: what is asked for, and what is said where it is missing."

import subprocess
import sys
from pathlib import Path

import pytest

import platforms

VERSION = ".".join(map(str, sys.version_info[:2]))


def test_a_pair_is_the_platforms_own():
    kaggle, colab = map(platforms.pair_of, ("kaggle", "colab"))
    assert (kaggle.python, kaggle.torch, colab.python, colab.torch) == ("3.12", "2.10.0", "3.13", "2.11.0")
    pins = dict(line.split("==") for line in platforms.constraints(kaggle).split())
    assert pins["torch"] == "2.10.0" and pins["accelerate"] == "1.13.0" and pins["ipywidgets"] == "8.1.5"
    assert pins["nvidia-ml-py"] and not [name for name in pins if name.startswith(("nvidia-cu", "cuda-", "triton"))]
    assert pins["pytest-timeout"] == platforms.locked()["pytest-timeout"], "the lock has what the platform lacks"
    wanted = platforms.requirements(colab)
    assert {"ipython==7.34.0", "ipywidgets==7.7.1", "accelerate==1.14.0"} <= set(wanted)
    assert not [text for text in wanted if text.startswith(("transformers", "datasets"))], (
        "nothing of the tests needs them"
    )


def test_the_light_tests_are_there():
    tests = Path(__file__).parent
    assert not [name for name in platforms.LIGHT if not (tests / name).is_dir()]


def test_an_interpreter_is_found_on_the_path_or_among_pyenvs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        platforms.Missing, match=rf"there is no Python {VERSION} here. Install one: pyenv install {VERSION}"
    ):
        platforms.find_python(VERSION, tmp_path)
    python = tmp_path / "versions" / f"{VERSION}.1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 1\n")  # one that does not run
    python.chmod(0o755)
    with pytest.raises(platforms.Missing):
        platforms.find_python(VERSION, tmp_path)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    assert platforms.find_python(VERSION, tmp_path) == python


def test_a_platform_without_its_interpreter_is_skipped_with_a_sentence(monkeypatch, capsys):
    def missing(pair):
        raise platforms.Missing(f"there is no Python {pair.python} here")

    monkeypatch.setattr(platforms, "built", missing)
    monkeypatch.setattr(sys, "argv", ["platforms", "kaggle"])
    assert platforms.main() == 0
    assert capsys.readouterr().out == "=== kaggle: skipped, there is no Python 3.12 here\n"


def test_a_part_that_fails_is_the_status_and_the_last_line(monkeypatch, capsys):
    def part(pair, python):
        "A part."
        return pair.name == "kaggle"

    monkeypatch.setattr(platforms, "built", lambda pair: Path(sys.executable))
    monkeypatch.setattr(platforms, "versions", lambda python: "Python")
    monkeypatch.setitem(platforms.PARTS, "kernel", part)
    monkeypatch.setattr(sys, "argv", ["platforms", "--only", "kernel"])
    assert platforms.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "=== failed: colab, kernel"


def test_pip_that_fails_is_a_sentence(monkeypatch, tmp_path):
    done = subprocess.CompletedProcess([], 1, "", "WARNING: x\nERROR: No matching distribution found for torch==0\n")
    monkeypatch.setattr(subprocess, "run", lambda *words, **keywords: done)
    with pytest.raises(platforms.Missing, match="pip cannot install torch==0: ERROR: No matching distribution"):
        platforms.pip(tmp_path, "-c", "limits", "torch==0")
