"""A run goes on with the code that it began with, or is told which part of it is another one."""

import itertools
import json
import linecache
import os
import sys
from pathlib import Path

import pytest

from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.runs.events import last_event
from spectrakit.runs.resume_compatibility import code_change
from spectrakit.system.errors import RequestError
from spectrakit.task.source_identity import code_fingerprint
from spectrakit.task.task import Task

pytestmark = pytest.mark.usefixtures("here")
MINE = """
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import spectrakit as sk
from near import scaled


class Mine(sk.Task):
    def datasets(self, cfg):
        x = torch.linspace(-1, 1, 32)[:, None]
        return TensorDataset(x, 2 * x), None

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        if Path("stop-now").exists():
            for run in Path("runs").iterdir():
                (run / "STOP").touch()
            time.sleep(1.0)  # a thread looks for it four times a second
        return scaled(nn.functional.mse_loss(model(batch[0]), batch[1]))
"""


@pytest.fixture
def written(here):
    "A function that writes the task's files anew and returns its name."

    def write(mine: str = MINE, near: str = "def scaled(x):\n    return 1.0 * x\n") -> str:
        (here / "mine.py").write_text(mine)
        (here / "near.py").write_text(near)
        return f"{here / 'mine.py'}:Mine"

    return write


def train(task: str, *words: str, stop: bool = False):
    Path("stop-now").unlink(missing_ok=True)
    if stop:
        Path("stop-now").touch()
    fixed = ("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=8", "trainer.max_epochs=2")
    return fit(task, compose(*fixed, "run.console=none", *words), resume="auto", show=False)


@pytest.mark.slow
def test_edited_code_is_named_refused_and_may_be_allowed(written, here, capsys):
    first = train(written(), stop=True)
    assert first.status == "interrupted"
    with pytest.raises(RequestError, match=r"was made with other code: loss of Mine\..*resume\.allow=\[task\.code\]"):
        train(written(MINE.replace("return scaled(", "return 2 * scaled(")))
    with pytest.raises(RequestError, match="other code: scaled in near"):
        train(written(near="def scaled(x):\n    return 3.0 * x\n"))
    tidied = written("# a comment\n" + MINE.replace("    def model", '    "Lines."\n\n\n    def model'))
    again = train(tidied, stop=True)
    assert again.path == first.path and again.status == "interrupted"  # only its form is another one
    edited = written(near="def scaled(x):\n    return 3.0 * x\n")
    done = train(edited, "resume.allow=[task.code]")
    assert done.path == first.path and done.status == "completed"
    assert last_event(done.events, "restart")["changed"]["task.code"][1] == "scaled in near"
    assert train(edited).path == done.path  # it is the code that the run has now


@pytest.mark.slow
def test_a_finished_run_is_not_the_result_of_other_code(written, capsys):
    first = train(written())
    assert first.status == "completed" and train(written()).path == first.path
    fit_again = fit(
        written(MINE.replace("2 * x), None", "3 * x), None")),
        compose("launch.mode=inline", "trainer.accelerator=cpu", "data.batch_size=8", "trainer.max_epochs=2"),
        resume="auto",
    )
    assert fit_again.path != first.path and fit_again.status == "completed"
    assert f"{first.path.name} is done, but was made with other code (datasets of Mine)" in capsys.readouterr().out
    third = train(written(near="def scaled(x):\n    return 3.0 * x\n"))
    assert third.path not in (first.path, fit_again.path)
    printed = capsys.readouterr().err  # also where nothing else is shown
    assert printed.count("Starting a new run: ") == 1 and "is done, but was made with other code (" in printed
    assert train(written(near="def scaled(x):\n    return 3.0 * x\n")).path == third.path
    assert "Starting a new run" not in capsys.readouterr().err


def test_a_run_without_a_fingerprint_goes_on_as_before(written):
    first = train(written(), stop=True)
    file = first.path / "environment.json"
    known = json.loads(file.read_text())
    assert set(known["code"]) >= {"mine:Mine.loss", "mine:Mine.datasets", "near:scaled"}
    file.write_text(json.dumps({name: value for name, value in known.items() if name != "code"}))
    done = train(written(near="def scaled(x):\n    return 3.0 * x\n"))
    assert done.path == first.path and done.status == "completed"


class Plain(Task):
    def loss(self, model, batch):
        return weighted(model(batch))


def weighted(x):
    return FACTOR * x


FACTOR = 2


def test_what_is_read_and_what_is_not():
    "Nothing of the kit's, nothing that is installed, nothing twice; a class within a function has its code too."

    def helper(x):
        return x

    class Local(Plain):
        def loss(self, model, batch):
            return helper(super().loss(model, batch))

    local = code_fingerprint(Local())
    assert {"test_changed_code:Plain.loss", "test_changed_code:weighted", "test_changed_code:FACTOR"} <= set(local)
    assert not any("Task" in name or "torch" in name for name in local), local
    assert code_fingerprint("coffee") == {} == code_fingerprint("no.such.module:Name") == code_fingerprint(7)
    of = Task.of(object(), [1], None, weighted)
    assert "test_changed_code:weighted" in code_fingerprint(of)


# what an edit may hide in

TASK = """
import torch
from torch import nn
import spectrakit as sk
{top}

class Hidden(sk.Task):
    k = 1.0

    def datasets(self, cfg):
        x = torch.linspace(-1, 1, 8)[:, None]
        return torch.utils.data.TensorDataset(x, x), None

    def model(self, cfg):
        return nn.Linear(1, 1)

    def loss(self, model, batch):
        {inner}
        return {value} * model(batch[0]).square().mean()

{after}
"""
HELPER = """
REG = {{}}
K1 = 1.0

def reg(name):
    def keep(function):
        REG[name] = function
        return function
    return keep

@reg("a")
def fa(x=1.0):
    return x * {number}

def unused():
    return {other}

def fb():
    return 1

class Table:
    made = []
    def add(self, f):
        self.made.append(f)
        return f

TABLE = Table()
"""
HIDING_PLACES = {
    "import in a method": dict(inner="import helper", value="helper.fa()"),
    "name imported in a method": dict(inner="from helper import fa", value="fa()"),
    "import in a try": dict(top="try:\n    import helper as h\nexcept ImportError:\n    h = None", value="h.fa()"),
    "registry of a module": dict(top="import helper", value='helper.REG["a"]()'),
    "registry by name": dict(top="from helper import REG", value='REG["a"]()'),
}
PLACES_HERE = {
    "part of a table": dict(top="T = {{}}\nT['a'] = {number}", value="T['a']"),
    "updated table": dict(top="T = {{}}\nT.update(a={number})", value="T['a']"),
    "grown list": dict(top="L = []\nL.append({number})", value="L[0]"),
    "bound twice": dict(top="K = 1.0\nK = {number}", value="K"),
    "attribute set later": dict(value="self.k", after='setattr(Hidden, "k", {number})'),
    "method replaced": dict(
        value="1", after="Hidden.loss = lambda self, model, batch: {number} * model(batch[0]).sum()"
    ),
    "constant of a module": dict(top="import helper\nhelper.K1 = {number}", value="helper.K1"),
    "global": dict(top="K = 1.0\ndef begin():\n    global K\n    K = {number}\nbegin()", value="K"),
    "default of torch": dict(top="torch.set_printoptions(precision={number})", value="1"),
}


_MOMENTS = itertools.count(10**18, 10**9)  # files of one size that were written at once may have one time on disk


def prints(here, place: dict, number: str, other: str = "0") -> dict[str, str]:
    parts = {"top": "", "inner": "pass", "value": "1.0", "after": "", **place}
    parts = {name: text.replace("{{}}", "{}").replace("{number}", number) for name, text in parts.items()}
    (here / "helper.py").write_text(HELPER.format(number=number, other=other))
    (here / "hidden.py").write_text(TASK.format(**parts))
    moment = next(_MOMENTS)
    for name in ("helper.py", "hidden.py"):
        os.utime(here / name, ns=(moment, moment))
    return code_fingerprint(f"{here / 'hidden.py'}:Hidden")


@pytest.mark.parametrize("place", HIDING_PLACES | PLACES_HERE, ids=str)
def test_an_edit_is_seen_wherever_it_hides(here, place):
    where = (HIDING_PLACES | PLACES_HERE)[place]
    first = prints(here, where, "1.0")
    assert prints(here, where, "1.0") == first
    assert prints(here, where, "2.0") != first


@pytest.mark.parametrize("place", HIDING_PLACES, ids=str)
def test_code_that_is_not_used_may_change(here, place):
    assert prints(here, HIDING_PLACES[place], "1.0", "0") == prints(here, HIDING_PLACES[place], "1.0", "1")


@pytest.mark.parametrize(
    "after", ["sk.fit(Hidden(), epochs={number})", "if __name__ == '__main__':\n    Hidden.k = {number}"]
)
def test_what_a_script_does_with_its_task_is_not_its_code(here, after):
    assert prints(here, {"after": after}, "1.0") == prints(here, {"after": after}, "2.0")


# names are read by Python's rules: N stands for a value that must not count in the first table, and must in the second

NO_USE = {
    "nobody reads it": dict(top="x = {number}"),
    "parameter": dict(top="batch = {number}"),
    "variable": dict(top="t = {number}", inner="t = 1", value="t"),
    "comprehension": dict(top="k = {number}", value="sum([k for k in (1, 2)])"),
    "nested comprehension": dict(top="a = {number}", value="sum(a + b for a in (1, 2) for b in (a, 3))"),
    "lambda": dict(top="u = {number}", value="(lambda u=2: u)()"),
    "inner function": dict(top="p = {number}", inner="def q(p, *r, s=1):\n            return p + s", value="q(1)"),
    "attribute": dict(top="mean = {number}"),
    "attribute of the class": dict(top="k = {number}", value="self.k"),
    "keyword": dict(top="lr = {number}", value="dict(lr=1)['lr']"),
    "name bound by with": dict(
        top="f = {number}", inner="with torch.no_grad() as f:\n            pass", value="1 if f else 2"
    ),
    "name bound by except": dict(
        top="e = {number}", inner="try:\n            pass\n        except OSError as e:\n            raise e"
    ),
    "name bound by match": dict(
        top="m = {number}", inner="match 2:\n            case m:\n                pass", value="m"
    ),
    "name bound by :=": dict(top="w = {number}", value="[w := 1, w][1]"),
    "local import": dict(top="math = {number}", inner="import math", value="math.pi"),
    "docstring": dict(inner='"{number}"'),
    "comment": dict(inner="pass  # {number}"),
    "half of a pair": dict(top="A, B = 1, {number}", value="A"),
    "neighbour in a block": dict(top="if torch:\n    A = 1\n    B = {number}", value="A"),
    "another name of a module": dict(top="import helper as h", value="h.K1", other=True),
    "name of the class": dict(top="z = {number}\n\nclass C:\n    z = 1\n    y = z + 1", value="C.y"),
    "type of a class": dict(
        top="dim = {number}\n\nclass C:\n    def f(self, dim: int):\n        return dim", value="C().f(1)"
    ),
    "own use of eval": dict(top="k = {number}", inner="model.eval()", value="self.k"),
    "order of definitions": dict(top="if {number} > 1:\n    pass\nA = 1", value="A"),
    "main block": dict(after="if __name__ == '__main__':\n    x = {number}"),
    "name of a class above": dict(top="class C:\n    z = {number}\n\nz = 1", value="z"),
    "loop var in method": dict(top="i = {number}", inner="for i in range(2):\n            pass", value="i"),
    "star args": dict(top="args = {number}", inner="f = lambda *args, **kw: args\n        f(1)"),
    "dict comp": dict(top="v = {number}", value="sum({k: v for k, v in {1: 2}.items()})"),
    "class in method": dict(
        top="w = {number}", inner="class A:\n            w = 1\n            q = w\n        a = A()"
    ),
    "property setter": dict(
        top="v = {number}\n\nclass P:\n    @property\n    def v(self):\n        return 1\n    @v.setter\n"
        "    def v(self, x):\n        pass",
        value="P().v",
    ),
    "enum members": dict(
        top="from enum import Enum\nA = {number}\nclass E(Enum):\n    A = 1\n    B = A", value="E.A.value"
    ),
    "unused function": dict(top="def unused(x):\n    return {number}"),
    "unused class with registry call": dict(top="class Un:\n    z = {number}\n"),
    "type checking": dict(top="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    U = {number}"),
    "print at top": dict(top="print({number})"),
    "logger": dict(top="import logging\nlog = logging.getLogger('a')\nother = {number}", inner="log.info('x')"),
    "docstring of helper": dict(top="def h():\n    '''{number}'''\n    return 1", value="h()"),
    "docstring of nested": dict(inner="def h():\n            '''{number}'''\n            return 1", value="h()"),
    "module docstring after imports": dict(top="'''{number}'''"),
    "type var scope": dict(top="T = {number}", inner="T: int = 3", value="T"),
    "del local": dict(top="d = {number}", inner="d = 1\n        del d"),
    "with as tuple": dict(top="a = {number}", inner="(a, b) = (1, 2)", value="a"),
    "for else unused": dict(top="for q in (1,):\n    A = 1\nelse:\n    B = {number}", value="A"),
    "function with a decorator of a module": dict(
        top="import helper\n@helper.reg('z')\ndef z():\n    return {number}", value="helper.fb()"
    ),
    "while block": dict(top="n = 0\nwhile n < 2:\n    n += 1\n    U = {number}", value="n"),
}
USE = {
    "value": dict(top="x = {number}", value="x"),
    "condition": dict(top="if {number} > 1:\n    A = 1\nelse:\n    A = 2", value="A"),
    "error that is expected": dict(
        top="try:\n    import nowhere as n\nexcept ImportError:\n    n = {number}", value="n"
    ),
    "field of a dataclass": dict(
        top="from dataclasses import dataclass\n\n@dataclass\nclass C:\n    lr: float = {number}", value="C().lr"
    ),
    "all names of a module": dict(top="from helper import *", value="fa()"),
    "all names of a package that hands on all names": dict(top="from pack.more import *", value="f()"),
    "constant of a package": dict(top="from pack.more import weight", value="weight()"),
    "other library function of a module's": dict(top="import pack.more as p", value="p.root(1)"),
    "name that is made by eval": dict(top="k = {number}", value="eval('k')"),
    "name that is made by globals": dict(top="k = {number}", value="globals()['k']"),
    "module by name": dict(top="import importlib\nk = {number}", value="importlib.import_module(__name__).k"),
    "name of a module by getattr": dict(top="import helper", value="getattr(helper, 'fa')()"),
    "name that a module makes": dict(top="import helper", value="helper.made()"),
    "module and a name of it": dict(top="import helper", value="getattr(helper, 'f' + 'a')() + helper.K1"),
    "function in a comprehension": dict(top="def f(x):\n    return {number}", value="sum(f(k) for k in (1, 2))"),
    "lambda": dict(top="f = lambda x: x * {number}", value="f(1)"),
    "named value": dict(top="x = {number}", inner="if (y := x):\n            pass", value="y"),
    "nested function": dict(top="x = {number}", inner="def f():\n            return x", value="f()"),
    "counted up": dict(top="x = {number}\nx += 1", value="x"),
    "half of a pair": dict(top="A, B = {number}, 2", value="A"),
    "pair from itself": dict(top="A = {number}\nA, B = A + 1, A", value="B"),
    "loop variable": dict(top="for k in ({number},):\n    A = k", value="A"),
    "metaclass": dict(top="class M(type):\n    n = {number}\n\nclass C(metaclass=M):\n    pass", value="C.n"),
    "default": dict(top="x = {number}\n\ndef f(y=x):\n    return y", value="f()"),
    "decorator": dict(
        top="def by(n):\n    return lambda f: lambda x: n * f(x)\n\n@by({number})\ndef g(x):\n    return x",
        value="g(1)",
    ),
    "decorator's body": dict(
        top="def twice(f):\n    return lambda x: {number} * f(x)\n\n@twice\ndef g(x):\n    return x", value="g(1)"
    ),
    "property": dict(
        top="x = {number}\n\nclass Base:\n    @property\n    def k(self):\n        return x", value="Base().k"
    ),
    "nested class": dict(
        top="x = {number}\n\nclass O:\n    class I:\n        def v(self):\n            return x", value="O.I().v()"
    ),
    "first list of a comprehension": dict(top="k = [{number}]", value="sum(k for k in k)"),
    "class body before it is bound": dict(top="z = {number}\n\nclass C:\n    z = z", value="C.z"),
    "method reads the module, not the class": dict(
        top="z = {number}\n\nclass C:\n    z = 1\n    def v(self):\n        return z", value="C().v()"
    ),
    "global": dict(top="n = {number}", inner="global n\n        n = n + 1"),
    "closure": dict(top="x = {number}\n\ndef make():\n    y = x\n    return lambda: y\n\nf = make()", value="f()"),
    "own name of a built-in": dict(top="def sum(x):\n    return {number}", value="sum([1])"),
    "aliased import in a method": dict(inner="import helper as h", value="h.fa()"),
    "module of a package": dict(top="import pack.inner", value="pack.inner.f()"),
    "module of a package by from": dict(top="from pack import inner as i", value="i.f()"),
    "package that hands on": dict(top="import pack", value="pack.given()"),
    "library's name": dict(top="from math import {function} as f", value="f(1)"),
    "loop": dict(top="T = {}\nfor k in 'ab':\n    T[k] = {number}", value="T['a']"),
    "base class": dict(
        top="class Mixin:\n    def v(self):\n        return {number}\n\nclass Base(Mixin):\n    pass",
        value="Base().v()",
    ),
    "for body": dict(top="T = []\nfor q in (1,):\n    T += [{number}]", value="T[0]"),
    "augmented": dict(top="x = 1\nx *= {number}", value="x"),
    "with at top": dict(top="import contextlib\nwith contextlib.suppress(OSError):\n    x = {number}", value="x"),
    "walrus at top": dict(top="if (x := {number}) > 0:\n    pass", value="x"),
    "match at top": dict(top="match {number}:\n    case x:\n        pass", value="x"),
    "finally": dict(top="try:\n    x = 1\nfinally:\n    x = {number}", value="x"),
    "global in helper called at top": dict(top="x = 1\ndef s():\n    global x\n    x = {number}\ns()", value="x"),
    "async helper": dict(top="async def f():\n    return {number}", value="(f(), 1)[1]"),
    "nested attr class": dict(top="class A:\n    class B:\n        z = {number}", value="A.B.z"),
    "default factory": dict(
        top="from dataclasses import dataclass, field\n@dataclass\nclass C:\n"
        "    x: list = field(default_factory=lambda: [{number}])",
        value="C().x[0]",
    ),
    "namedtuple": dict(
        top="from collections import namedtuple\nP = namedtuple('P', 'a')\nQ = P({number})", value="Q.a"
    ),
    "starred": dict(top="a, *b = 1, {number}", value="b[0]"),
    "swap": dict(top="a = {number}\nb = 2\na, b = b, a", value="b"),
    "starred base": dict(top="class M:\n    z = {number}\nBASES = (M,)\nclass C(*BASES):\n    pass", value="C.z"),
    "kw default": dict(top="W = {number}\ndef f(*, w=W):\n    return w", value="f()"),
    "conditional import": dict(top="try:\n    from helper import fa\nexcept ImportError:\n    fa = None", value="fa()"),
    "import in class body": dict(top="class C:\n    from helper import fa", value="C.fa()"),
    "helper via init subclass": dict(
        top="class B:\n    def __init_subclass__(cls):\n        cls.z = {number}\nclass C(B):\n    pass", value="C.z"
    ),
    "table of functions": dict(top="def f():\n    return {number}\nT = dict(a=f)", value="T['a']()"),
    "partial": dict(
        top="from functools import partial\ndef f(x, w):\n    return w\ng = partial(f, w={number})", value="g(1)"
    ),
    "nested def global": dict(
        top="x = {number}",
        inner="def a():\n            def b():\n                return x\n            return b()",
        value="a()",
    ),
    "exec string": dict(top="K = {number}\nexec('M = K')", value="M"),
    "setattr of a module attr": dict(top="import helper\nsetattr(helper, 'K1', {number})", value="helper.K1"),
    "module alias chain": dict(top="import pack.inner\ni = pack.inner", value="i.f()"),
    "sys.modules": dict(top="import sys\nk = {number}", value="getattr(sys.modules[__name__], 'k')"),
    "module getattr": dict(top="import helper as h\ng = getattr(h, 'fa')", value="g()"),
    "local import of package": dict(inner="import pack.inner", value="pack.inner.f()"),
    "local from dot": dict(inner="from pack import inner as z", value="z.f()"),
    "type annotation string": dict(top="x = {number}", inner="y: int = x", value="y"),
    "del then rebinding": dict(top="x = 1\ndel x\nx = {number}", value="x"),
    "lambda default": dict(top="x = {number}\nf = lambda y=x: y", value="f()"),
    "decorator class": dict(
        top="class D:\n    def __init__(self, f):\n        self.f = f\n    def __call__(self, *a):\n"
        "        return {number}\n@D\ndef f():\n    return 1",
        value="f()",
    ),
    "module function list": dict(top="import helper\nFS = [helper.fa]", value="FS[0]()"),
    "vars of module": dict(top="import helper", value="vars(helper)['fa']()"),
    "globals alias": dict(top="k = {number}\ng = globals()", value="g['k']"),
    "builtins.eval": dict(top="import builtins\nk = {number}", value="builtins.eval('k')"),
    "attrgetter": dict(top="import helper, operator", value="operator.attrgetter('fa')(helper)()"),
    "registry with a method": dict(
        top="class R(dict):\n    def add(self, f):\n        self['a'] = f\n        return f\nr = R()\n"
        "@r.add\ndef f():\n    return {number}",
        value="r['a']()",
    ),
    "registry of a module by its method": dict(
        top="from helper import TABLE\n@TABLE.add\ndef f():\n    return {number}", value="TABLE.made[0]()"
    ),
    "subclass that its base registers": dict(
        top="class B:\n    made = []\n    def __init_subclass__(cls):\n        B.made.append(cls)\n"
        "class C(B):\n    k = {number}",
        value="B.made[0].k",
    ),
    "subclasses": dict(top="class B:\n    pass\nclass C(B):\n    k = {number}", value="B.__subclasses__()[0].k"),
    "module by its name": dict(
        top="import importlib", inner="h = importlib.import_module('pack.inner')", value="h.CONST"
    ),
    "fn attr": dict(top="def f():\n    return f.k\nf.k = {number}", value="f()"),
}


MORE = """
from math import {function} as root
from .inner import *
from . import inner

def weight():
    return inner.CONST
"""


def prints_named(here, place: dict, number: str) -> dict[str, str]:
    pack = here / "pack"
    pack.mkdir(exist_ok=True)
    (pack / "__init__.py").write_text("from .inner import f as given\n")
    (pack / "inner.py").write_text(f"CONST = {number}\n\ndef f():\n    return {number}\n\ndef g():\n    return 1\n")
    function = "sqrt" if number == "1.0" else "sin"
    (pack / "more.py").write_text(MORE.replace("{function}", function))
    place = {name: text.replace("{function}", function) for name, text in place.items() if name != "other"}
    return prints(here, place, number, other=number)


@pytest.mark.parametrize("place", NO_USE, ids=str)
def test_a_name_of_a_smaller_scope_never_reaches_the_module(here, place):
    assert prints_named(here, NO_USE[place], "1.0") == prints_named(here, NO_USE[place], "2.0")


@pytest.mark.parametrize("place", USE, ids=str)
def test_what_is_reachable_by_name_counts(here, place):
    first = prints_named(here, USE[place], "1.0")
    assert prints_named(here, USE[place], "1.0") == first
    assert code_change(first, prints_named(here, USE[place], "2.0"))


# a notebook: names are what they are now

_CELLS = itertools.count()


def run_cells(*cells: str) -> dict[str, str]:
    "The fingerprint of `task` after these cells of a notebook."
    names: dict = {"__name__": "__main__", "Task": Task}
    for cell in cells:
        file = f"<ipython-input-{next(_CELLS)}>"
        linecache.cache[file] = (len(cell), None, cell.splitlines(keepends=True), file)
        exec(compile(cell, file, "exec"), names)
    return code_fingerprint(names["task"])


LOSS = "class T(Task):\n    def loss(self, model, batch):\n        return {}\n"
LIVE = {
    "value": ("K = {n}", LOSS.format("K"), "task = T()"),
    "table": ("K = {{'a': [1, {n}]}}", LOSS.format("K"), "task = T()"),
    "array": ("import torch\nK = torch.ones(3) * {n}", LOSS.format("K"), "task = T()"),
    "record": ("from types import SimpleNamespace as S\nK = S(lr={n})", LOSS.format("K.lr"), "task = T()"),
    "class of settings": ("class C:\n    lr = {n}", LOSS.format("C.lr"), "task = T()"),
    "dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    lr: float = {n}",
        LOSS.format("C().lr"),
        "task = T()",
    ),
    "dataclass instance": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    lr: float",
        "CONFIG = C(lr={n})",
        LOSS.format("CONFIG.lr"),
        "task = T()",
    ),
    "loss with settings": (
        "from torch import nn\nL = nn.CrossEntropyLoss(label_smoothing={n} / 4)",
        LOSS.format("L(1)"),
        "task = T()",
    ),
    "cached helper": (
        "from functools import lru_cache\n@lru_cache\ndef f(x):\n    return {n}",
        LOSS.format("f(1)"),
        "task = T()",
    ),
    "the task's partial": (
        "from functools import partial\ndef f(m, b, w):\n    return w",
        "task = Task.of(object(), [1], None, partial(f, w={n}))",
    ),
    "the task's library function": (
        "import math",
        "task = Task.of(object(), [1], None, math.sqrt if {n} == 1 else math.sin)",
    ),
    "read by eval in the cell": ("K = {n}\n" + LOSS.format("eval('K')"), "task = T()"),
    "decorators that close over each other": (
        "def pair():\n    def a(*x):\n        return {n} or b()\n\n    def b(*x):\n        return a()\n    return b",
        "class T(Task):\n    loss = pair()\ntask = T()",
    ),
    "functions of a registry": (
        "class R:\n    made = {{}}\n    def add(f):\n        R.made['a'] = f\n        return f",
        "@R.add\ndef f():\n    return {n}",
        LOSS.format("R.made['a']()"),
        "task = T()",
    ),
    "functions of a registry's object": (
        "class R(dict):\n    def add(self, f):\n        self['a'] = f\n        return f\nr = R()",
        "@r.add\ndef f():\n    return {n}",
        LOSS.format("r['a']()"),
        "task = T()",
    ),
    "function by type": (
        "from functools import singledispatch\n@singledispatch\ndef g(x):\n    return 0",
        "@g.register\ndef h(x: int):\n    return {n}",
        LOSS.format("g(1)"),
        "task = T()",
    ),
    "functions in a table": ("def f(x):\n    return {n}\nK = {{'a': f}}", LOSS.format("K['a'](1)"), "task = T()"),
    "lambda": ("task = Task.of(object(), [1], None, lambda m, b: {n} * m(b))",),
    "two lambdas in a line": (
        "a, b = (lambda m, b: m(b)), (lambda m, b: {n} * m(b))",
        "task = Task.of(object(), [1], None, b)",
    ),
    "partial": (
        "from functools import partial\ndef f(m, b, w):\n    return w",
        "task = Task.of(object(), [1], None, partial(f, w={n}))",
    ),
    "default": ("fs = [lambda m, b, k=k: k for k in ({n},)]", "task = Task.of(object(), [1], None, fs[0])"),
    "closure": (
        "def make(k):\n    def loss(m, b):\n        return k\n    return loss",
        "task = Task.of(object(), [1], None, make({n}))",
    ),
    "class in a function": (
        "def make(k):\n    class T(Task):\n        def loss(self, m, b):\n            return k\n    return T()",
        "task = make({n})",
    ),
    "closures of one function": (
        "def make(k):\n    return lambda m, b: k",
        "task = Task.of(object(), [1], None, make(1))\ntask.other = [make({n})]",
    ),
    "decorator": (
        "def by(n):\n    def d(f):\n        def g(*a):\n            return n * f(*a)\n        return g\n    return d",
        "class T(Task):\n    @by({n})\n    def loss(self, m, b):\n        return 1\ntask = T()",
    ),
    "decorated function behind it": (
        "def d(f):\n    return lambda *a: f(*a)",
        "@d\ndef loss(m, b):\n    return {n}\ntask = Task.of(object(), [1], None, loss)",
    ),
    "method given later": (LOSS.format("1"), "def better(self, m, b):\n    return {n}\nT.loss = better", "task = T()"),
    "property": ("K = {n}\nclass T(Task):\n    @property\n    def k(self):\n        return K\ntask = T()",),
    "library's function": ("import math\nf = math.sqrt if {n} == 1 else math.sin", LOSS.format("f(1)"), "task = T()"),
    "enum": (
        "from enum import Enum\nclass E(Enum):\n    A = {n}",
        "class T(Task):\n    def loss(self, model, batch):\n        return E.A.value\n",
        "task = T()",
    ),
    "namedtuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'a')\nQ = P({n})",
        "class T(Task):\n    def loss(self, model, batch):\n        return Q.a\n",
        "task = T()",
    ),
    "base in other cell": (
        "class B(Task):\n    k = {n}\n    def m(self):\n        return 1",
        "class T(B):\n    def loss(self, m, b):\n        return self.k\ntask = T()",
    ),
    "mixin without functions": (
        "class Mix:\n    k = {n}",
        "class T(Mix, Task):\n    def loss(self, m, b):\n        return self.k\ntask = T()",
    ),
    "task without methods": (
        "class B(Task):\n    def loss(self, m, b):\n        return self.k",
        "class T(B):\n    k = {n}\ntask = T()",
    ),
    "big list": (
        "K = [0] * 2000 + [{n}]",
        "class T(Task):\n    def loss(self, model, batch):\n        return K[-1]\n",
        "task = T()",
    ),
    "numpy": (
        "import numpy as np\nK = np.full(3, {n})",
        "class T(Task):\n    def loss(self, model, batch):\n        return K\n",
        "task = T()",
    ),
    "callable object": (
        "class F:\n    def __call__(self, x):\n        return {n}\nf = F()",
        "class T(Task):\n    def loss(self, model, batch):\n        return f(1)\n",
        "task = T()",
    ),
    "static method": (
        "class F:\n    @staticmethod\n    def f(x):\n        return {n}",
        "class T(Task):\n    def loss(self, model, batch):\n        return F.f(1)\n",
        "task = T()",
    ),
    "no_grad helper": (
        "import torch\n@torch.no_grad()\ndef f(x):\n    return {n}",
        "class T(Task):\n    def loss(self, model, batch):\n        return f(1)\n",
        "task = T()",
    ),
    "no_grad method": (
        "import torch\nclass T(Task):\n    @torch.no_grad()\n    def loss(self, m, b):\n        return {n}\ntask = T()",
    ),
    "cached property": (
        "from functools import cached_property\nclass T(Task):\n    @cached_property\n    def k(self):\n"
        "        return {n}\ntask = T()",
    ),
    "torch dtype": (
        "import torch\nD = torch.float16 if {n} == 1 else torch.float32",
        "class T(Task):\n    def loss(self, model, batch):\n        return D\n",
        "task = T()",
    ),
    "module of the task": (
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return {n}",
        "import torch\ntask = Task.of(Net(), [1], None, torch.nn.functional.mse_loss)",
    ),
    "own loss class": (
        "from torch import nn\nclass L(nn.Module):\n    def forward(self, o, t):\n        return {n}",
        "task = Task.of(object(), [1], None, L())",
    ),
}
LIVE_NO_USE = {
    "nobody reads it": ("x = {n}", LOSS.format("1"), "task = T()"),
    "parameter": ("batch = {n}", LOSS.format("batch"), "task = T()"),
    "variable of a function around": (
        "k = {n}",
        "def make(k):\n    class T(Task):\n        r = k\n\n        def loss(self, *a):\n"
        "            return k\n    return T()",
        "task = make(3)",
    ),
    "counter of its own": (
        "STEP = {n}\nclass T(Task):\n    def loss(self, m, b):\n        global STEP\n        STEP += 1\ntask = T()",
    ),
    "value that a cell gives to a class": (LOSS.format("self.pause"), "T.pause = {n}", "task = T()"),
    "variable that an inner function counts up": (
        "c = {n}",
        "def make():\n    c = 0\n    class T(Task):\n        def loss(self, m, b):\n            nonlocal c\n"
        "            c = c + 1\n    return T()",
        "task = make()",
    ),
    "other lambda in the line": (
        "a, b = (lambda m, b: {n}), (lambda m, b: m(b))",
        "task = Task.of(object(), [1], None, b)",
    ),
    "comment": (LOSS.format("1  # {n}"), "task = T()"),
    "comment cell": ("# {n}", "class T(Task):\n    def loss(self, model, batch):\n        return 1\n", "task = T()"),
    "other variable named as attribute": (
        "mean = {n}",
        "class T(Task):\n    def loss(self, model, batch):\n        return batch.mean()\n",
        "task = T()",
    ),
    "comp": (
        "k = {n}",
        "class T(Task):\n    def loss(self, model, batch):\n        return [k for k in batch]\n",
        "task = T()",
    ),
    "unused object": (
        "import torch\nW = torch.ones({n})",
        "class T(Task):\n    def loss(self, model, batch):\n        return 1\n",
        "task = T()",
    ),
    "later cells": (
        "class T(Task):\n    def loss(self, model, batch):\n        return 1\n",
        "task = T()\nrun = {n}\nprint(run)",
    ),
}


@pytest.mark.parametrize("cells", LIVE, ids=str)
def test_what_a_notebook_reaches_counts(cells):
    first, again, other = (run_cells(*(cell.format(n=n) for cell in LIVE[cells])) for n in (1, 1, 2))
    assert first == again and code_change(first, other)


@pytest.mark.parametrize("cells", LIVE_NO_USE, ids=str)
def test_what_a_notebook_does_not_reach_may_change(cells):
    first, other = (run_cells(*(cell.format(n=n) for cell in LIVE_NO_USE[cells])) for n in (1, 2))
    assert first == other and first


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (LOSS.format("sum(b)"), "def sum(x):\n    return 1\n" + LOSS.format("sum(b)")),
        (LOSS.format("1"), LOSS.format("1") + "T.loss = lambda self, model, batch: 2"),
        (LOSS.format("self.k"), LOSS.format("self.k") + "T.k = 2"),
    ],
    ids=["Python's name is hidden", "method given later", "value given later"],
)
def test_a_definition_that_is_added_or_taken_away_counts(here, before, now):
    if "T.k" not in now:
        first, second = (run_cells(text, "task = T()") for text in (before, now))
        assert code_change(first, second) and code_change(second, first)
    files = []
    for text in (before, now):
        (here / "mine.py").write_text(f"from spectrakit.task.task import Task\n{text}")
        files.append(code_fingerprint(f"{here / 'mine.py'}:T"))
    assert code_change(*files) and code_change(*reversed(files))


def test_a_method_that_a_later_cell_gives_to_a_class_counts():
    given = "def better(self, model, batch):\n    return 2\nT.loss = better"
    first, second = run_cells(LOSS.format("1"), "task = T()"), run_cells(LOSS.format("1"), given, "task = T()")
    assert code_change(first, second) == code_change(second, first) == "loss of T"


def test_a_long_chain_of_functions_is_followed_to_its_end(here):
    chain = "".join(f"def f{i}(x):\n    return f{i - 1}(x)\n\n" for i in range(1, 500))
    task = "import spectrakit as sk\n\n\nclass T(sk.Task):\n    def loss(self, m, b):\n        return f499(b)\n"
    found = []
    for number in (1, 2):
        (here / "long.py").write_text(f"def f0(x):\n    return {number}\n\n{chain}{task}")
        found.append(code_fingerprint(f"{here / 'long.py'}:T"))
    assert code_change(*found) == "f0 in long"


# ten edits of one task: those that may change its numbers are other code, also in a file that it imports

EDITED = """
import functools
import near
UNUSED, RATE = 1, 2


def twice(x):
    return 2 * x


def logged(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


class T(Task):
    "A task."

    share = 0.5

    # its model
    def model(self, cfg):
        return None

    @logged
    def loss(self, model, batch):
        mean = twice(batch) * RATE * self.share
        return near.half(mean)
"""
_MODEL = "    def model(self, cfg):\n        return None\n\n"
_TWICE = "def twice(x):\n    return 2 * x\n\n\n"
EDITS = {  # what becomes what, and the part that is named; None: the same code
    "comment": ("# its model", "# the model of it", None),
    "docstring": ('"A task."', '"Another task."', None),
    "unused global": ("UNUSED, RATE = 1", "UNUSED, RATE = 9", None),
    "used global": ("RATE = 1, 2", "RATE = 1, 9", "RATE"),
    "helper": ("return 2 * x", "return 9 * x", "twice"),
    "method": ("return None", "return 9", "model of T"),
    "class attribute": ("share = 0.5", "share = 0.9", "T"),
    "decorated method": ("near.half(mean)", "-near.half(mean)", "loss of T"),
    "decorator": ("return function(*args)", "return 9 * function(*args)", "logged"),
    "function of a local module": ("x / 2", "x / 9", "half"),
    "unused function of a local module": ("return 'unused'", "return 'other'", None),
    "name of a local variable": ("mean", "average", "loss of T"),  # it cannot be told from another variable
    "order of methods": (f"    # its model\n{_MODEL}", "", None),
    "order of definitions": (_TWICE, "", None),
    "type annotation": ("def model(self, cfg)", "def model(self, cfg: dict)", "model of T"),  # a dataclass reads them
}


def edited(edit: str | None) -> tuple[str, str]:
    "The task, and the module that it imports, after an edit."
    old, new, _ = EDITS.get(edit, ("", "", None))
    texts = [EDITED, "def half(x):\n    return x / 2\n\n\ndef unused():\n    return 'unused'\n"]
    if edit is not None:
        assert sum(old in text for text in texts) == 1
        texts = [text.replace(old, new) for text in texts]
    later = {"order of methods": f"\n{_MODEL}", "order of definitions": f"\n\n{_TWICE}"}.get(edit, "")
    return texts[0] + later, texts[1]


@pytest.mark.parametrize("how", ["file", "cells"])
@pytest.mark.parametrize("edit", EDITS)
def test_edits_of_a_task_by_what_they_may_change(here, monkeypatch, how, edit):
    monkeypatch.syspath_prepend(here)
    found = []
    for text, near in (edited(None), edited(edit)):
        (here / "near.py").write_text(near)
        moment = next(_MOMENTS)
        os.utime(here / "near.py", ns=(moment, moment))
        (here / "mine.py").write_text(f"from spectrakit.task.task import Task\n{text}")
        sys.modules.pop("near", None)
        file = f"{here / 'mine.py'}:T"
        found.append(code_fingerprint(file) if how == "file" else run_cells(text, "task = T()"))
    sys.modules.pop("near", None)
    changed, part = code_change(*found), EDITS[edit][2]
    assert found[0] and ((part is None and not changed) or (part is not None and part in (changed or ""))), changed
