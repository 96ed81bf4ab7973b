"The tutorials: each says what it is, begins with the cell that installs, and shows what it computes."

import json
from pathlib import Path

import pytest

import notebooks

root = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((root / "nbs" / "tutorials").glob("*.ipynb"))


def cells(path: Path) -> list[dict]:
    "The cells of a notebook, `source` as one string."
    return [
        {**cell, "source": "".join(cell["source"])} for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_begins_with_what_it_is_and_the_installation(path):
    first, second = cells(path)[:2]
    assert first["cell_type"] == "markdown" and first["source"].startswith("# ") and "\n\n> " in first["source"]
    assert second["cell_type"] == "code" and second["source"] == notebooks.install_cell()
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
