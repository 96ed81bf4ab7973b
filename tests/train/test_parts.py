"The parts of training: none knows another, and each can be removed by deleting its file and its line in the table."

import ast
import builtins
import difflib
import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from spectrakit.train.part import Part
from spectrakit.train.parts_table import PARTS

ROOT = Path(__file__).resolve().parent.parent.parent
TRAIN = ROOT / "spectrakit" / "train"
# what can be removed: the files below `train`, and the classes in the table
REMOVABLE = {
    "ema": (["parts/ema"], ["Ema"]),
    "weight averaging": (["parts/weight_average"], ["WeightAverage"]),
    "mixup": (["parts/mixup"], ["Mixup"]),
    "diloco": (["diloco/diloco", "diloco/workers"], ["Diloco"]),
    "cuda graphs": (["cuda_graphs/step_capture", "cuda_graphs/cuda_graphs"], ["CudaGraphs"]),
    "pictures": (["parts/pictures"], ["Pictures"]),
    "out-of-memory recovery": (["parts/out_of_memory"], ["OutOfMemory", "OutOfMemoryOfRanks"]),
    "nan guard": (["parts/nan_guard"], ["NanGuard"]),
    "trackers": (["parts/trackers"], ["Tracking"]),
    "clipping": (["parts/gradient_clipping"], ["Clipping"]),
    "loss scaling": (["parts/loss_scaling"], ["LossScaling"]),
    "exchange": (["parts/gradient_exchange"], ["Exchange"]),
    "early stopping": (["parts/early_stopping"], ["EarlyStopping"]),
}
FILES = {f"parts/{path.stem}" for path in (TRAIN / "parts").glob("*.py")} - {"parts/__init__"}
FILES |= {file for files, _ in REMOVABLE.values() for file in files}
HELPERS = {  # a part in two files
    ("diloco/diloco", "diloco/workers"),
    ("cuda_graphs/step_capture", "cuda_graphs/cuda_graphs"),
}
MOMENTS = [name for name, value in vars(Part).items() if callable(value) and not name.startswith("_")]


def imported_parts(path: Path) -> set[str]:
    "The parts that a file imports, as `folder/file` below `train`."
    found = set()
    package = ("spectrakit", *path.relative_to(ROOT / "spectrakit").parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            name = "/".join([*above, *(node.module or "").split(".")]).removeprefix("spectrakit/train/")
            found |= {file for file in (name, *(f"{name}/{alias.name}" for alias in node.names)) if file in FILES}
    return found


def test_no_part_imports_another_and_the_table_alone_names_them():
    assert {"parts/ema", "diloco/diloco"} <= imported_parts(TRAIN / "parts_table.py") and len(FILES) > 15
    for file in FILES:
        assert {(file, other) for other in imported_parts(TRAIN / f"{file}.py")} <= HELPERS, file
    others = [path for path in (ROOT / "spectrakit").rglob("*.py") if path not in {TRAIN / f"{f}.py" for f in FILES}]
    assert {path.name for path in others if imported_parts(path)} == {"parts_table.py"}


class Facts(NamedTuple):
    """Names and texts of a module: those that it makes (attributes, fields, functions, classes, variables, arguments),
    those that it reads, its texts without docstrings, and the keys with which it reads states of parts.
    """

    made: set[str]
    read: set[str]
    texts: set[str]
    states: set[str]


def facts_of(path: Path) -> Facts:
    found, nodes = Facts(set(), set(), set(), set()), list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    lone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.made.add(node.name)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                (found.made if isinstance(node.ctx, ast.Store) else found.read).add(name)
            case ast.arg(arg=name) | ast.keyword(arg=name):
                found.made.add(name)
            case ast.Constant(value=str() as text) if id(node) not in lone:
                found.texts.add(text)
            case ast.Subscript(slice=ast.Constant(value=key)) if ast.unparse(node.value).endswith("parts']"):
                found.states.add(key)
    return found


@functools.cache
def facts() -> dict[str, Facts]:
    "The facts of each module by its path below `spectrakit`."
    package = ROOT / "spectrakit"
    paths = [path for path in package.rglob("*.py") if path.name != "_modidx.py"]
    return {path.relative_to(package).with_suffix("").as_posix(): facts_of(path) for path in paths}


@pytest.mark.slow
@pytest.mark.parametrize("name", REMOVABLE)
def test_no_other_module_reads_what_a_part_makes_or_names_its_file(name):
    files, classes = REMOVABLE[name]
    own = {f"train/{file}" for file in files}
    others = {key: each for key, each in facts().items() if key not in own}
    alone = (
        set().union(*(facts()[key].made for key in own))
        - set().union(*(each.made for each in others.values()))
        - set(dir(builtins))
    )
    assert alone, name
    del others["train/parts_table"]
    places = [f"train/{file}".replace("/", sep) for file in files for sep in "./"]
    states = {kind.name for kind in PARTS if kind.__name__ in classes} - {""}
    for key, each in others.items():
        assert not (names := alone & each.read), (key, names)
        assert not [text for text in each.texts if any(place in text for place in places)], key
        assert not states & each.states, key


def test_each_method_that_is_called_like_a_moment_is_one():
    own = {(kind.__name__, name) for kind in PARTS for name, value in vars(kind).items() if callable(value)}
    near = {pair for pair in own if pair[1] not in MOMENTS and difflib.get_close_matches(pair[1], MOMENTS, 1, 0.8)}
    assert not near


def without(package: Path, name: str) -> None:
    "Remove a part from a copy of the package: its files, its import and its line in the table."
    files, classes = REMOVABLE[name]
    for file in files:
        (package / "train" / f"{file}.py").unlink()
    table = package / "train" / "parts_table.py"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    gone = [rf"from \.({'|'.join(files).replace('/', '.')}) import", *(rf"    {kind}\b" for kind in classes)]
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
