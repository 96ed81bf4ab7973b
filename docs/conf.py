"""Settings of the documentation site: `make docs` builds it from pages, notebooks and docstrings into build/docs."""

import json
import re
import sys
from configparser import ConfigParser
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root))
import spectrakit  # noqa: E402 - found by the line above

settings = ConfigParser()
settings.read(root / "settings.ini", encoding="utf-8")
facts = settings["DEFAULT"]

project = facts["title"]
author, copyright, release = facts["author"], facts["copyright"], facts["version"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/settings/*.md",
    "bench/*.md",
    "kaggle/**",
    "nbs/*_*/**",
    "nbs/tutorials/*",
]
exclude_patterns = ["kaggle/wheels", "**/runs", "**/.ipynb_checkpoints"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

nb_execution_mode = "off"  # `make test` runs every cell; the site shows the stored outputs
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # lessons begin with h1 and go on with h3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
viewcode_line_numbers = True
nitpicky = True  # a reference to a name that no page has is a warning
nitpick_ignore_regex = [("py:(class|exc)", r"(?!spectrakit).*")]  # types of other packages

html_theme = "furo"
html_title = f"{project} {release}"
html_theme_options = {}
if facts["git_url"]:
    html_theme_options = {
        "source_repository": facts["git_url"],
        "source_branch": facts["branch"],
        "source_directory": "",
    }


def refuse_failed_cells(app: Sphinx) -> None:
    "Raise ValueError if a notebook of the site has an error as stored output that it does not announce."
    for path in [*root.glob("nbs/**/*.ipynb"), *root.glob("kaggle/*/*.ipynb")]:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            failed = any(output["output_type"] == "error" for output in cell.get("outputs", []))
            if failed and "raises-exception" not in cell["metadata"].get("tags", []):
                raise ValueError(f"{path.relative_to(root)} has a failed cell. Run `make notebooks`.")


def refuse_undocumented_names(app: Sphinx) -> None:
    "Raise ValueError if a public name is not in docs/api.md."
    named = re.findall(r":: spectrakit\.(\w+)$", (root / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    if missing := sorted({*spectrakit.__all__} - {*named, "__version__"}):
        raise ValueError(f"docs/api.md lacks {', '.join(missing)}. Add a line for each.")


def setup(app: Sphinx) -> None:
    "Add the lexer of diagrams, and the checks of notebooks and names."
    app.add_lexer("mermaid", TextLexer)
    app.connect("builder-inited", refuse_failed_cells)
    app.connect("builder-inited", refuse_undocumented_names)
