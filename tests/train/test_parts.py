"The parts of training: none knows another, and each can be removed by deleting its file and its line in the table."

import ast
import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spectrakit.train.part import Part
from spectrakit.train.parts_table import PARTS

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ROOT / "spectrakit" / "training" / "parts"
# what can be removed: the files, and the classes in the table
REMOVABLE = {
    "ema": (["ema"], ["Ema"]),
    "weight averaging": (["weight_average"], ["WeightAverage"]),
    "mixup": (["mixup"], ["Mixup"]),
    "diloco": (["diloco", "workers"], ["Diloco"]),
    "cuda graphs": (["step_capture", "cuda_graphs"], ["CudaGraphs"]),
    "pictures": (["pictures"], ["Pictures"]),
    "out-of-memory recovery": (["out_of_memory"], ["OutOfMemory", "OutOfMemoryOfRanks"]),
    "nan guard": (["nan_guard"], ["NanGuard"]),
    "trackers": (["trackers"], ["Tracking"]),
    "clipping": (["clipping"], ["Clipping"]),
    "loss scaling": (["loss_scaling"], ["LossScaling"]),
    "exchange": (["exchange"], ["Exchange"]),
}
HELPERS = {("diloco", "workers"), ("step_capture", "cuda_graphs")}  # a part in two files
MOMENTS = [name for name, value in vars(Part).items() if callable(value) and not name.startswith("_")]


def imported_parts(path: Path) -> set[str]:
    "The modules of `training.parts` that a file imports."
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if path.parent == FILES and node.level == 1:
                found.add(name)
            elif re.search(r"\bparts\.\w+$", name):
                found.add(name.rpartition(".")[2])
    return found


def test_no_part_imports_another_and_the_table_alone_names_them():
    for path in FILES.glob("*.py"):
        assert {(path.stem, other) for other in imported_parts(path)} <= HELPERS, path.name
    others = [path for path in (ROOT / "spectrakit").rglob("*.py") if FILES not in path.parents]
    assert {path.name for path in others if imported_parts(path)} == {"parts_table.py"}


def test_each_method_that_is_called_like_a_moment_is_one():
    own = {(kind.__name__, name) for kind in PARTS for name, value in vars(kind).items() if callable(value)}
    near = {pair for pair in own if pair[1] not in MOMENTS and difflib.get_close_matches(pair[1], MOMENTS, 1, 0.8)}
    assert not near


def without(package: Path, name: str) -> None:
    "Remove a part from a copy of the package: its files, its import and its line in the table."
    files, classes = REMOVABLE[name]
    for file in files:
        (package / "training" / "parts" / f"{file}.py").unlink()
    table = package / "training" / "parts_table.py"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    gone = [rf"from \.parts\.({'|'.join(files)}) import", *(rf"    {kind}\b" for kind in classes)]
    table.write_text("".join(line for line in lines if not any(re.match(each, line) for each in gone)))


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOVABLE)
def test_all_else_works_without_a_part(tmp_path, name):
    shutil.copytree(ROOT / "spectrakit", tmp_path / "spectrakit", ignore=shutil.ignore_patterns("__pycache__"))
    without(tmp_path / "spectrakit", name)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("without_part.py")), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    left = set(done.stdout.split())
    assert left == {kind.__name__ for kind in PARTS} - set(REMOVABLE[name][1])
