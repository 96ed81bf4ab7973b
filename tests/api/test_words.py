"""What a call takes in words, and what a cell shows of what it returns."""

import inspect
import re

import pytest

import spectrakit as sk
from spectrakit.runs.run_dir import named_run, run_names
from spectrakit.system.errors import RequestError

TAKE_WORDS = ("fit", "check", "preflight", "cross_validate", "search", "find_lr", "predict", "resume")


@pytest.mark.parametrize("name", TAKE_WORDS)
def test_settings_stand_behind_the_task(name):
    parameters = inspect.signature(getattr(sk, name)).parameters
    assert parameters["overrides"].kind is inspect.Parameter.VAR_POSITIONAL


@pytest.mark.parametrize("name", ["fit", "check", "preflight", "cross_validate", "search", "find_lr"])
@pytest.mark.parametrize(
    "words", [("trainer=kaggle_saef",), (None, "trainer=kaggle_saef"), ("seed=1", "trainer=kaggle_saef")]
)
def test_a_word_that_is_wrong_is_a_sentence(name, words):
    with pytest.raises(RequestError, match="kaggle_safe"):
        getattr(sk, name)("coffee", *words)


def test_a_word_without_a_value_says_how_it_is_written():
    with pytest.raises(RequestError, match="trainer=kaggle_safe"):
        sk.fit("coffee", "kaggle_safe")


def a_run(tmp_path, monkeypatch, name="coffee-20261120-101500"):
    "A run that has not begun, where this platform keeps its runs; the working folder is another from now on."
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    (folder / "events.jsonl").touch()
    return folder


def test_a_run_is_named_by_its_folder_or_by_its_name(tmp_path, monkeypatch):
    folder = a_run(tmp_path, monkeypatch)
    assert run_names() == [folder.name]
    for given in (folder, f"runs/{folder.name}", folder.name):
        assert sk.open_run(given).path.samefile(folder)
    with pytest.raises(RequestError, match=f"'{folder.name}'"):
        sk.open_run("coffee-20261120-10150")
    with pytest.raises(RequestError, match="neither a folder nor a name"):
        named_run(tmp_path / "nowhere" / folder.name)  # a path is not looked for by its last part


def test_predict_takes_words_in_the_place_of_the_run_only_where_runs_are_given(tmp_path, monkeypatch):
    folder = a_run(tmp_path, monkeypatch)
    with pytest.raises(RequestError, match="one run, or several"):
        sk.predict("coffee", "data.eval_batch_size=16")
    with pytest.raises(RequestError, match=r"data\.eval_batch_size"):
        sk.predict("coffee", folder, "data.eval_batch_size=none at all")
    with pytest.raises(RequestError, match=r"data\.eval_batch_size"):
        sk.predict("coffee", "data.eval_batch_size=none at all", runs=[folder.name])


def test_what_a_cell_ends_with_is_drawn_without_scripts_and_styles(tmp_path, monkeypatch):
    run = sk.open_run(a_run(tmp_path, monkeypatch, "<b>bold</b>"))
    config = sk.compose("trainer=kaggle_safe", "task.password=hunter2")
    for value in (run, config, sk.detect(), sk.profiles(), sk.profiles):
        page = value._repr_html_()
        assert "<table>" in page and not re.search(r"<script|<style|class=", page) and "hunter2" not in page
        assert all(len(line) < 200 for line in repr(value).splitlines())
    assert "&lt;b&gt;bold" in run._repr_html_() and "<b>bold" not in run._repr_html_()
    assert "hunter2" not in repr(config) and "watchdog.limit" in repr(config)
