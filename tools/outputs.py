"""Name the cells of notebooks whose outputs are too large for git: `python tools/outputs.py [NOTEBOOK ...]`."""

import json
import sys
from pathlib import Path

root = Path(__file__).resolve().parent.parent
MAX_BYTES = 400_000  # a page of plots; what is larger belongs into a smaller figure, or is not shown


def large_outputs(path: Path) -> list[str]:
    "A line for each cell of the notebook at `path` with more than MAX_BYTES of outputs."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sizes = [(number, len(json.dumps(cell.get("outputs", [])))) for number, cell in enumerate(cells)]
    return [
        f"{path}: the outputs of cell {number} have {size:,} bytes, more than {MAX_BYTES:,}. Draw less, or smaller."
        for number, size in sizes
        if size > MAX_BYTES
    ]


if __name__ == "__main__":
    named = [Path(name) for name in sys.argv[1:]]
    notebooks = named or [path for folder in ("nbs", "kaggle") for path in sorted((root / folder).rglob("*.ipynb"))]
    lines = [line for path in notebooks for line in large_outputs(path)]
    print("\n".join(lines) or "no large outputs")
    sys.exit(bool(lines))
