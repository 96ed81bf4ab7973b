"""Public names in editors and type checkers: completion, the stub, errors of a type checker."""

import subprocess
import sys
from pathlib import Path

import jedi
import pytest

import stub

root = Path(__file__).resolve().parent.parent
PACKAGES = {path.parent.name for path in (root / "spectrakit").glob("*/__init__.py")}


def completed(code: str) -> set[str]:
    "The names that jedi offers at the end of `code`."
    return {name.name for name in jedi.Script(code, project=jedi.Project(root)).complete()}


def type_errors(path: Path, code: str) -> list[str]:
    "The errors that mypy finds in `code`, with the settings and the cache of this project."
    path.write_text(code)
    told = subprocess.run(
        [sys.executable, "-m", "mypy", str(path)], cwd=root, capture_output=True, text=True, timeout=600
    )
    return [line for line in told.stdout.splitlines() if " error: " in line]


def test_the_stub_has_the_lazy_names():
    assert stub.STUB.read_text() == stub.render(), "run `python tools/stub.py`"
    assert (root / "spectrakit" / "py.typed").exists()


def test_an_editor_completes_public_names():
    assert {"fit", "find_input", "find_lr"} <= completed("import spectrakit as sk\nsk.fi")


def test_an_editor_completes_a_run():
    assert {"status", "metrics", "plot"} <= completed("import spectrakit as sk\nrun = sk.fit('coffee')\nrun.")


def test_dir_shows_no_internal_folder():
    import spectrakit.runs.events
    import spectrakit.train.part

    shown = set(dir(spectrakit))
    assert {"fit", "resume", "lm"} <= shown
    assert not shown & (PACKAGES - set(spectrakit._PACKAGES))


@pytest.mark.slow
def test_a_type_checker_reports_misspelt_names_and_arguments(tmp_path):
    lines = ["sk.fitt", "sk.fit(7, showw=True)", "run = sk.fit('coffee', show=False)", "run.plott", "print(run.status)"]
    code = "\n".join(["import spectrakit as sk", *lines, ""])
    found = type_errors(tmp_path / "mine.py", code)
    assert len(found) == 3 and "fitt" in found[0] and "showw" in found[1] and "plott" in found[2]
