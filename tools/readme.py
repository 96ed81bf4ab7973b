"""Render README.md from nbs/index.ipynb: `python tools/readme.py [--check]`, or `make readme`.

Text stays as it is, code becomes a fenced block, and so does what it printed. Cells marked `#| hide` are left out.
With `--check` nothing is written, and the exit status is 1 where README.md is not what the notebook gives.
"""

import argparse
import json
import re
import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent


def text_of(value: str | list[str]) -> str:
    "A notebook's text, which is a string or a list of lines."
    return value if isinstance(value, str) else "".join(value)


def output_text(output: dict) -> str:
    "What a reader of plain text sees of one output: printed text or a value; '' for a picture or an error."
    data = output.get("data", {})
    if output["output_type"] == "stream":
        text = text_of(output["text"])
    else:
        text = "" if "image/png" in data else text_of(data.get("text/plain", ""))
    return re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip("\n")


def fenced(text: str, language: str = "") -> str:
    "`text` as a fenced block; the fence is longer than any inside it."
    longest = max((len(run) for run in re.findall(r"^`{3,}", text, re.M)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def render(notebook: dict) -> str:
    "The README of `notebook`, as Markdown."
    blocks = []
    for cell in notebook["cells"]:
        source = text_of(cell["source"])
        directives = re.match(r"(?:#\|[^\n]*\n?)*", source)[0] if cell["cell_type"] == "code" else ""
        if re.search(r"^#\|\s*hide\b", directives, re.M):
            continue
        source = source[len(directives) :].strip("\n")
        if cell["cell_type"] == "markdown":
            blocks.append(source)
        elif cell["cell_type"] == "code" and source:
            blocks.append(fenced(source, "python"))
            blocks += [fenced(text) for text in map(output_text, cell["outputs"]) if text]
    return "\n\n".join(block for block in blocks if block) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where README.md differs")
    check = parser.parse_args().check
    path = root / "README.md"
    text = render(json.loads((root / "nbs" / "index.ipynb").read_text(encoding="utf-8")))
    if path.exists() and path.read_text(encoding="utf-8") == text:
        print("README.md is what nbs/index.ipynb gives")
    elif check:
        sys.exit("README.md is not what nbs/index.ipynb gives. Edit the notebook, not README.md; run `make readme`.")
    else:
        path.write_text(text, encoding="utf-8")
        print("README.md written")


if __name__ == "__main__":
    main()
