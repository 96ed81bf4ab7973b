"The parts of training: none knows another, and each can be removed by deleting its file and its line in the table."

import ast
import builtins
import difflib
import functools
import json
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
CHOSEN = {  # fast tests of training, and the parts that each needs
    "test_loop.py::test_accumulation_equals_the_one_big_batch[weighted]": (),
    "test_loop.py::test_the_moving_average_is_the_one_written_by_hand_and_is_what_is_evaluated": ("ema",),
    "test_loop.py::test_max_steps_ends_in_the_middle_of_an_epoch_and_may_go_past_max_epochs[7]": (),
    "test_loop.py::test_a_resumed_run_goes_on_with_its_scale": ("loss scaling",),
    "test_loop.py::test_a_loss_that_is_not_finite_ends_the_run_and_keeps_what_was_before": ("nan guard",),
    "test_loop.py::test_a_stopped_run_goes_on_in_the_middle_of_an_epoch_bit_for_bit": ("ema",),
    "test_averaging.py::test_a_stop_in_the_middle_changes_nothing": ("weight averaging",),
    "test_memory.py::test_the_step_is_undone_to_the_bit[backward]": ("out-of-memory recovery",),
    "test_remembered.py::test_random_numbers_of_epochs_and_of_the_task_are_those_of_a_run_in_one_go[Own-6-words3]": (
        "mixup",
    ),
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


@pytest.fixture(scope="module")
def server():
    "A process that forks one for each package that lacks a part."
    words = [sys.executable, str(Path(__file__).with_name("fork_without_part.py"))]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        yield process
        process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (number >= 9)) for number, name in enumerate(REMOVABLE)],
)
def test_all_else_works_without_a_part(tmp_path, server, name):
    "All modules can be imported, a run is cut and resumed, and chosen tests of training pass."
    shutil.copytree(ROOT / "spectrakit", tmp_path / "spectrakit")  # with its bytecode, which saves seconds
    without(tmp_path / "spectrakit", name)
    chosen = [test for test, needed in CHOSEN.items() if name not in needed]
    server.stdin.write(json.dumps([str(tmp_path), *chosen]) + "\n")
    server.stdin.flush()
    status, said = server.stdout.readline(), (tmp_path / "said.txt").read_text()
    assert status == "0\n", said[-3000:]
    left, passed = said.splitlines()[0].split(), re.search(r"(\d+) passed", said)
    assert set(left) == {kind.__name__ for kind in PARTS} - set(REMOVABLE[name][1])
    assert passed and int(passed[1]) >= len(chosen) >= len(CHOSEN) // 2, said[-3000:]
