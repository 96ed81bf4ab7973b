"The examples of docs/examples/: short, and each runs to its end with tiny data."

import ast
from pathlib import Path

import pytest

import examples
from helpers import clean_environ, run_script

TINY = ("launch.mode=inline", "trainer.accelerator=cpu", "trainer.max_epochs=1", "limits.max_train_batches=4")
WORDS = {
    "language_model": ("launch.mode=inline", "trainer.accelerator=cpu", "trainer.max_steps=4"),
    "diloco": ("trainer.max_epochs=1",),
    "ariel": ("4",),
}
LONG = ("language_model", "diloco", "ariel", "distillation", "spectra", "kaggle_kernel", "segmentation")
each_example = pytest.mark.parametrize("path", sorted(examples.FOLDER.glob("*.py")), ids=lambda path: path.stem)


@each_example
def test_an_example_is_short_and_tells_its_purpose(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60 and ast.get_docstring(ast.parse(text)).endswith(".")
    assert path.stem in examples.ORDER


def test_the_page_of_examples_is_that_of_the_scripts():
    assert examples.PAGE.read_text(encoding="utf-8") == examples.render(), "run `python tools/examples.py`"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in examples.ORDER]
)
def test_an_example_runs_to_its_end(name, tmp_path):
    path: Path = examples.FOLDER / f"{name}.py"
    done = run_script(tmp_path, path, *WORDS.get(name, TINY), env=clean_environ(), timeout_s=540)
    assert done.returncode == 0 and done.stdout.splitlines()[-1], f"{done.stdout}\n{done.stderr}"
    assert any(line.startswith("completed") for line in done.stdout.splitlines()[-2:]), done.stdout
