"The tutorials: each opens by its badge, begins with the same cell, and that cell installs the kit where it is missing."

import importlib.util
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from spectrakit.kaggle.init import INSTALL_CELL

root = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((root / "nbs" / "tutorials").glob("*.ipynb"))
BADGE = "https://colab.research.google.com/github/spectrakit/spectrakit/blob/main/nbs/tutorials/"


def cells(path: Path) -> list[dict]:
    "The cells of a notebook, `source` as one string."
    return [
        {**cell, "source": "".join(cell["source"])} for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]


def first_code(path: Path) -> str:
    return next(cell["source"] for cell in cells(path) if cell["cell_type"] == "code")


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_begins_with_what_it_is_its_badge_and_the_installation(path):
    first, second = cells(path)[:2]
    assert first["cell_type"] == "markdown" and first["source"].startswith("# ") and "\n\n> " in first["source"]
    assert f"({BADGE}{path.name})" in first["source"]
    assert second["cell_type"] == "code" and second["source"] == INSTALL_CELL
    assert second["outputs"] == [], "where the kit is there, the cell does nothing and says nothing"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_shows_what_it_computes(path):
    code = [cell for cell in cells(path)[2:] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in code) and any("assert" in cell["source"] for cell in code)
    assert not [cell["source"] for cell in code if "#| eval: false" in cell["source"]]


def test_links_between_tutorials_lead_somewhere():
    import re

    for path in TUTORIALS:
        text = "\n".join(cell["source"] for cell in cells(path) if cell["cell_type"] == "markdown")
        for target in re.findall(r"\]\(([\w.-]+\.ipynb)\)", text):
            assert (path.parent / target).is_file(), f"{path.name} links to {target}"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that runs the first cell where /kaggle/input and Drive are the test's own folders: the commands it
    starts.
    """

    def run(*attached: str, there: bool = False) -> list[list[str]]:
        for name in attached:
            name = name if name.startswith("drive/") else f"input/{name}"
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            told = f"import pathlib\ndef install(): pathlib.Path({str(tmp_path)!r}, 'told').write_text(__file__)\n"
            (tmp_path / name).write_text(told if name.endswith("install.py") else "")
        started = []
        monkeypatch.setattr(
            subprocess, "run", lambda words, check: started.append(words) or SimpleNamespace(returncode=0)
        )
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if there else None)
        exec(
            first_code(TUTORIALS[0])
            .replace("/kaggle/input", str(tmp_path / "input"))
            .replace("/content/drive/MyDrive", str(tmp_path / "drive")),
            {},
        )
        return [words[1:] for words in started]

    return run


def test_where_the_kit_is_there_nothing_is_installed(install):
    assert install("wheels/spectrakit-0.1.0-py3-none-any.whl", there=True) == []


@pytest.mark.parametrize("folder", ["wheels", "datasets/ada/wheels", "notebooks/ada/wheels/dist"])
def test_attached_wheels_are_installed_without_the_network(install, tmp_path, folder):
    "In both layouts in which Kaggle mounts inputs; everything that lies beside the kit's wheel comes along."
    (words,) = install(
        f"{folder}/spectrakit-0.1.0-py3-none-any.whl",
        f"{folder}/hydra_core-1.3.8-py3-none-any.whl",
        "other/torch-2.6-py3-none-any.whl",
    )
    assert words[:6] == ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    assert words[6:] == [
        str(tmp_path / "input" / folder / f"{name}-py3-none-any.whl")
        for name in ("hydra_core-1.3.8", "spectrakit-0.1.0")
    ]


@pytest.mark.parametrize("folder", ["input/wheels", "input/datasets/ada/spectrakit-wheels", "drive/spectrakit-wheels"])
def test_a_wheelhouse_installs_itself(install, tmp_path, folder):
    "Its own install.py checks the hashes and leaves alone what is there; plain wheels beside it do not count."
    assert (
        install(
            *(
                f"{folder.removeprefix('input/')}/{name}"
                for name in ("install.py", "wheelhouse.json", "spectrakit-0.1.0-py3-none-any.whl")
            )
        )
        == []
    )
    assert (tmp_path / "told").read_text() == str(tmp_path / folder / "install.py")


def test_somebody_elses_install_py_is_not_run(install, tmp_path):
    (words,) = install("tools/install.py", "wheels/spectrakit-0.1.0-py3-none-any.whl")
    assert "--no-index" in words and not (tmp_path / "told").exists()


def test_wheels_on_drive_are_installed_without_the_network(install, tmp_path):
    (words,) = install("drive/spectrakit-wheels/spectrakit-0.1.0-py3-none-any.whl")
    assert (
        words[-1] == str(tmp_path / "drive" / "spectrakit-wheels" / "spectrakit-0.1.0-py3-none-any.whl")
        and "--no-index" in words
    )


def test_without_wheels_it_comes_from_the_network(install):
    "From its own repository: somebody else may hold the name in an index."
    (words,) = install("competitions/soil/train.csv")
    assert words[:4] == ["-m", "pip", "install", "--quiet"] and words[4:] == [
        "spectrakit[demo] @ git+https://github.com/spectrakit/spectrakit"
    ]
