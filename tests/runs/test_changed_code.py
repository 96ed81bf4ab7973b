"""A run goes on with the code that it began with, or is told which part of it is another one."""

import itertools
import json
import os
from pathlib import Path

import pytest

from spectrakit.api.actions import fit
from spectrakit.config.compose import compose
from spectrakit.contract.task import Task
from spectrakit.contract.task_code import code_fingerprint
from spectrakit.runs.events import last_event
from spectrakit.system.errors import RequestError

pytestmark = pytest.mark.usefixtures("here")
MINE = """
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
        return scaled(nn.functional.mse_loss(model(batch[0]), batch[1]))
"""


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("spectrakit.api.run.save_figure", lambda figure, path: path.write_bytes(b"x"))


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
