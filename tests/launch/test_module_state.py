"""State of the user's own modules: what a notebook has changed in them is there after a fresh import, and nothing else
is touched.
"""

import functools
import gc
import importlib
import io
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from spectrakit.launch.pickling import module_state
from spectrakit.launch.pickling.module_state import read_modules, write_modules
from spectrakit.system.errors import RequestError


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    "Returns a function that writes a module and imports it. What was imported is forgotten afterwards."
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(module_state, "_SETTLED", module_state.Settled())
    monkeypatch.setattr(module_state, "_CARRIED", [])
    monkeypatch.setattr(module_state, "own_modules", _modules_below(tmp_path))
    monkeypatch.chdir(tmp_path)

    def module(name: str, text: str):
        file = tmp_path / Path(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    before, opened = set(sys.modules), {id(file) for file in _open_files()}
    yield module
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]
    for file in _open_files():
        if id(file) not in opened:
            file.close()  # else a later test hears that it was left open


def _open_files() -> list[io.FileIO]:
    "The null devices and temporary files that this process holds open, as the modules of these tests do."
    files = [each for each in gc.get_objects() if type(each) is io.FileIO and not each.closed]
    return [file for file in files if str(file.name).startswith((os.devnull, tempfile.gettempdir()))]


def _modules_below(folder: Path):
    "own_modules, without those of the tests."
    found = module_state.own_modules
    return lambda: {n: m for n, m in found().items() if Path(m.__file__).is_relative_to(folder)}


def fresh(tmp_path, *names: str, by_hand=None):
    "The modules `names` as a training process has them."
    job = tmp_path / f"job{len(list(tmp_path.glob('job*')))}"
    job.mkdir()
    write_modules(job, mapped_from_bytes=4096)
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    if by_hand:
        by_hand()
    read_modules(job)
    found = [importlib.import_module(name) for name in names]
    return found[0] if len(found) == 1 else found


# attributes that arrive

SETTINGS = """
import enum, threading, logging, types
from dataclasses import dataclass, field
import numpy as np, torch
LR, NAMES, SHAPE, SEEN = 0.1, ["a"], (1, 2), {"x"}
WEIGHTS, TENSOR = np.ones(3), torch.zeros(2)
LOG, GUARD = logging.getLogger("own"), threading.Lock()
class CFG:
    shift, scale = 1.0, {"x": 1.0, "deep": {"y": [1]}}
    class Model:
        width = 8
        class Head: bias = True
class Sub(CFG): pass
@dataclass
class Point:
    x: int = 0
    tags: list = field(default_factory=list)
    guard: object = field(default_factory=threading.Lock)
POINT, SPACE = Point(), types.SimpleNamespace(a=1)
class Color(enum.Enum): RED = 1; BLUE = 2
COLOR = Color.RED
def area(x, by=2, *, plus=0): return x * by + plus
def default(names=NAMES): return names
def learning_rate(): return LR
class Net:
    def forward(self, x): return x
    @staticmethod
    def twice(x): return 2 * x
    @property
    def size(self): return 1
"""


def test_each_kind_of_change_arrives(notebook, tmp_path):
    m = notebook("own_settings", SETTINGS)
    m.LR, m.SHAPE, m.COLOR = 5, (3,), m.Color.BLUE
    m.NAMES.append("b"), m.SEEN.add("y")
    m.WEIGHTS[1], m.TENSOR[0] = 7, 9
    m.CFG.shift, m.CFG.scale["deep"]["y"] = 2.0, [4]
    m.CFG.Model.width, m.CFG.Model.Head.bias, m.Sub.extra, m.Sub.shift = 16, False, "new", 3.0
    m.POINT.x, m.POINT.tags, m.SPACE.b = 4, ["t"], 2
    m.area.__defaults__, m.area.calls = (10,), 3
    m.NEW = {"k": 1}
    del m.GUARD
    f = fresh(tmp_path, "own_settings")
    assert f is not m and (f.LR, f.SHAPE, f.COLOR) == (5, (3,), f.Color.BLUE)
    assert f.NAMES == ["a", "b"] == f.default() and f.default() is f.NAMES and {"x", "y"} == f.SEEN
    assert f.WEIGHTS.tolist() == [1, 7, 1] and f.TENSOR.tolist() == [9, 0]
    assert f.CFG.shift == 2 and f.CFG.scale == {"x": 1.0, "deep": {"y": [4]}}
    assert f.CFG.Model.width == 16 and f.CFG.Model.Head.bias is False and (f.Sub.extra, f.Sub.shift) == ("new", 3.0)
    assert type(f.POINT) is f.Point and (f.POINT.x, f.POINT.tags) == (4, ["t"]) and vars(f.SPACE) == {"a": 1, "b": 2}
    assert f.area(1) == 10 and f.area.calls == 3 and f.NEW == {"k": 1} and not hasattr(f, "GUARD")
    assert (
        f.learning_rate() == 5 and f.POINT.guard.acquire(blocking=False) and "own_settings.LR" in module_state.carried()
    )


def test_what_was_not_changed_is_the_fresh_import_itself(notebook, tmp_path):
    notebook("own_settings", SETTINGS)
    fresh(tmp_path, "own_settings")
    assert module_state.carried() == []


def test_functions_and_methods_of_a_cell_arrive(notebook, tmp_path):
    m = notebook("own_patched", SETTINGS)
    cell = {"__name__": "__main__", "own": m, "factor": 3}
    exec(
        "import functools\n"
        "def forward(self, x): return x * factor\n"
        "own.Net.forward, own.Net.size = forward, property(lambda self: 5)\n"
        "own.Net.twice = staticmethod(lambda x: 20 * x)\n"
        "own.Net.__len__ = lambda self: 4\n"
        "original = own.area\n"
        "@functools.wraps(original)\n"
        "def area(x): return -original(x)\n"
        "own.area = area",
        cell,
    )
    f = fresh(tmp_path, "own_patched")
    assert (f.Net().forward(2), f.Net().size, f.Net.twice(1), len(f.Net()), f.area(4)) == (6, 5, 20, 4, -8)


def test_modules_that_share_an_object_share_it_there(notebook, tmp_path):
    notebook("own_base", "SCALE = {'x': 1}\nDEFAULTS = {'lr': 1}\nCFG = DEFAULTS\n")
    notebook("own_user", "from own_base import SCALE, CFG\nAREA = SCALE['x'] * 10\ndef lr(c=CFG): return c['lr']\n")
    base, user = sys.modules["own_base"], sys.modules["own_user"]
    base.SCALE["x"] = 3
    base.CFG = {"lr": 5}  # a new object: the module that imported the old one keeps it
    base.OTHER = user.OTHER = [1]
    user, base = fresh(tmp_path, "own_user", "own_base")
    assert base.SCALE is user.SCALE and base.SCALE == {"x": 3} and user.AREA == 10
    assert (base.CFG, base.DEFAULTS, user.CFG, user.lr()) == ({"lr": 5}, {"lr": 1}, {"lr": 1}, 1)
    assert base.OTHER is user.OTHER


def test_packages_late_imports_and_modules_off_the_path(notebook, tmp_path, monkeypatch):
    (tmp_path / "own_pkg").mkdir()
    (tmp_path / "own_pkg" / "__init__.py").write_text("from .config import CFG\nVERSION = 1\n")
    m = notebook("own_pkg.config", "class CFG: lr = 1\nclass Late: x = 1\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    other = notebook("own_other", "X = 1\n")
    (tmp_path / "own_other.py").rename(tmp_path / "elsewhere" / "own_other.py")
    other.__file__ = str(tmp_path / "elsewhere" / "own_other.py")
    m.CFG.lr, sys.modules["own_pkg"].VERSION, other.X = 2, 3, 4
    hidden = sys.path.copy()

    def forget():
        sys.path[:] = [p for p in hidden if "elsewhere" not in p]

    pkg, late = fresh(tmp_path, "own_pkg", "own_other", by_hand=forget)
    assert pkg.CFG is pkg.config.CFG and (pkg.CFG.lr, pkg.VERSION, late.X) == (2, 3, 4)


def test_large_arrays_are_files_and_arrive(notebook, tmp_path):
    m = notebook("own_large", "import numpy as np\nDATA = np.zeros(5000)\nSAME = np.zeros(5000)\n")
    m.DATA[7] = 1
    f = fresh(tmp_path, "own_large")
    assert f.DATA[7] == 1 and f.DATA.sum() == 1 and module_state.carried() == ["own_large.DATA"]
    assert list(tmp_path.glob("job0/module*-*.npy"))


def test_instances_of_a_cells_classes_arrive(notebook, tmp_path):
    m = notebook("own_registry", "MODELS = {}\ndef register(c): MODELS[c.__name__] = c; return c\n")
    cell = {"__name__": "__main__", "own": m}
    exec("@own.register\nclass Net:\n    def size(self): return 7\nown.CURRENT = Net()", cell)
    f = fresh(tmp_path, "own_registry")
    assert f.MODELS["Net"]().size() == 7 and f.CURRENT.size() == 7


# what is no change

CHANGING = """
import itertools, logging, os, random, tempfile, threading, time, uuid
from concurrent.futures import ThreadPoolExecutor
import numpy as np
START, RUN, DICE, PID = time.time(), uuid.uuid4(), random.random(), os.getpid()
RNG, COUNT = np.random.default_rng(), itertools.count()
GUARD, LOG, LOCAL = threading.Lock(), logging.getLogger(__name__), threading.local()
TEMP = tempfile.NamedTemporaryFile()
OUT = open(os.devnull, "w")
POOL, _connection, _CACHE = None, None, {}
MISSING = object()
NAN = float("nan")
ACT = lambda x, missing=MISSING: x is missing
class Reader:
    _file = None
    @classmethod
    def get(cls):
        cls._file = cls._file or open(os.devnull, "rb")
        return cls._file
def connection():
    global _connection, POOL
    import sqlite3
    _connection, POOL = _connection or sqlite3.connect(":memory:"), POOL or ThreadPoolExecutor(1)
    return _connection
def cached(name):
    if name not in _CACHE: _CACHE[name] = open(os.devnull, "rb")
    return _CACHE[name]
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # left open
def test_clocks_caches_locks_and_files_refuse_nothing(notebook, tmp_path):
    m = notebook("own_changing", CHANGING)
    m.connection(), m.cached("a"), m.Reader.get(), m.GUARD.acquire(), m.LOG.setLevel(10)
    f = fresh(tmp_path, "own_changing")
    assert (f.START, f.RUN, f.DICE) == (m.START, m.RUN, m.DICE) and f.ACT(f.MISSING)
    assert f._connection is None and f._CACHE == {} and f.Reader._file is None and not f.GUARD.locked()
    assert "own_changing.MISSING" not in module_state.carried() and "own_changing.TEMP" not in module_state.carried()
    assert f.connection() and f.cached("a")
    for module in (m, f):
        module.TEMP.close()  # else a process that a later test forks may delete the file first
    gc.collect()
    assert not [
        each for each in gc.get_objects() if type(each) is type(m.TEMP) and each.name not in (m.TEMP.name, f.TEMP.name)
    ]


def test_a_rank_keeps_what_its_own_variables_say(notebook, tmp_path, monkeypatch):
    text = "import os\nRANK = int(os.environ.get('RANK', 0))\nDEVICE = f'cuda:{RANK}'\nLR = 1\n"
    m = notebook("own_ranks", text)
    m.LR = 2

    def become_rank():
        for name, value in {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "MASTER_PORT": 9, "MASTER_ADDR": "a"}.items():
            monkeypatch.setenv(name, str(value))

    f = fresh(tmp_path, "own_ranks", by_hand=become_rank)
    assert (f.RANK, f.DEVICE, f.LR) == (1, "cuda:1", 2)


# what cannot be carried


@pytest.mark.parametrize(
    "change, words",
    [
        (
            "m.HOOK = threading.Lock()",
            r"own_simple\.HOOK was changed .*: own_simple\.HOOK is a lock\. Set it in .*own_simple\.py",
        ),
        ("m.CFG.batches = (n for n in 'abc')", r"own_simple\.CFG\.batches was changed .* is a generator"),
        ("m.TABLE['x'] = {'in': [1, threading.Lock()]}", r"own_simple\.TABLE\['x'\]\['in'\]\[1\] is a lock"),
        ("m.OUT = open(os.devnull, 'rb')", r"own_simple\.OUT is an open file"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # left open
def test_a_change_that_cannot_be_pickled_is_named(notebook, tmp_path, change, words):
    m = notebook("own_simple", "import sys\nHOOK, TABLE, OUT = None, {}, open(__file__)\nclass CFG: batches = 1\n")
    exec(change, {"m": m, "threading": threading, "os": os})
    with pytest.raises(RequestError, match=words):
        fresh(tmp_path, "own_simple")


def test_a_module_that_is_not_imported_there_refuses_nothing(notebook, tmp_path):
    m = notebook("own_plots", "FIGURE = None\n")
    m.FIGURE = threading.Lock()
    notebook("own_needed", "X = 1\n").X = 2
    assert fresh(tmp_path, "own_needed").X == 2 and "own_plots" not in sys.modules


def test_a_file_that_was_edited_after_the_import(notebook, tmp_path):
    m = notebook("own_edited", "LR = 1\ndef old(): return 1\n")
    assert m.LR == 1
    (tmp_path / "own_edited.py").write_text("LR = 100\ndef old(): return 1\n")
    assert fresh(tmp_path, "own_edited").LR == 1  # as the notebook has it
    (tmp_path / "own_edited.py").write_text("LR = 1\ndef new(): return 1\n")
    f = fresh(tmp_path, "own_edited")
    assert f.old() == 1 and not hasattr(f, "new")
    notebook("own_class", "class Net: pass\n")
    (tmp_path / "own_class.py").write_text("class Other: pass\n")
    with pytest.raises(RequestError, match=r"own_class\.Net .*edited after the notebook imported it"):
        fresh(tmp_path, "own_class")


CODE = """
import functools
LR = 1
def loud(f):
    @functools.wraps(f)
    def inner(*a): return f(*a) + 100
    return inner
def plain(x): return x * LR
@loud
def loudly(x): return x
@functools.lru_cache
def kept(x): return x
class Net:
    def forward(self, x): return plain(x)
    @staticmethod
    def twice(x): return 2 * x
    @property
    def size(self): return 1
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # left open
def test_code_of_a_file_that_was_edited_is_as_in_the_notebook(notebook, tmp_path):
    notebook("own_code", CODE)
    (tmp_path / "own_code.py").write_text("# a line more\n" + CODE)
    fresh(tmp_path, "own_code")
    assert module_state.carried() == []
    edited = CODE.replace("x * LR", "more(x)").replace("2 * x", "more(x)").replace("return 1", "return 7")
    edited = edited.replace("(x): return x\n", "(x): return -x\n") + "def more(x): return 9\n"
    (tmp_path / "own_code.py").write_text(edited)
    f = fresh(tmp_path, "own_code")
    assert (f.plain(3), f.loudly(1), f.kept(2), f.Net().forward(2), f.Net.twice(2), f.Net().size) == (
        3,
        101,
        2,
        2,
        4,
        1,
    )
    assert "own_code.Net.twice" in module_state.carried() and "own_code.loud" not in module_state.carried()


def test_wrappers_of_other_modules_arrive_and_read_the_module(notebook, tmp_path):
    m = notebook("own_code", CODE)
    m.plain, m.Net.forward, m.kept = functools.lru_cache(m.plain), torch.no_grad()(m.Net.forward), m.loud(m.kept)
    m.loudly = m.loudly.__wrapped__
    f = fresh(tmp_path, "own_code")
    assert (f.plain(2), f.Net().forward(2), f.kept(1), f.loudly(1)) == (2, 2, 101, 1)
    f.LR = 5
    assert f.plain(3) == 15 and f.plain.cache_info().misses == 2


def test_a_wrapper_that_holds_a_lock_is_named(notebook, tmp_path):
    m = notebook("own_code", CODE)
    cell = {"__name__": "__main__", "own": m, "functools": functools, "threading": threading}
    exec(
        "def guarded(f, guard):\n"
        "    @functools.wraps(f)\n"
        "    def inner(x):\n"
        "        with guard: return f(x)\n"
        "    return inner\n"
        "own.plain = guarded(own.plain, threading.Lock())",
        cell,
    )
    with pytest.raises(RequestError, match=r"own_code\.plain was changed .* is a lock"):
        fresh(tmp_path, "own_code")


def test_without_own_modules_nothing_is_written(notebook, tmp_path):
    write_modules(tmp_path)
    assert not (tmp_path / "modules.pkl").exists()
    before = list(sys.meta_path)
    read_modules(tmp_path)
    assert sys.meta_path == before
