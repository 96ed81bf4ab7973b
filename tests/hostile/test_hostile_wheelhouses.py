"""Wheelhouses that a stranger made: lists of any form, wheels that lie, pipes and links. Nothing reaches pip."""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_harness import Case, Place, check
from test_hostile_kernels import INSTEAD, cell, kernel, notebook
from test_hostile_runs import shell

from spectrakit.kaggle.offline import installer
from spectrakit.kaggle.offline.import_names import read_wheels
from spectrakit.kaggle.offline.installer import PYTHON

SIGNS = "\x1b[2J\x1b]0;x\x07"
NAME = "thing-1.0-py3-none-any.whl"


def wheel(
    metadata: bytes = b"Name: thing\nVersion: 1.0\n", folder: str = "thing-1.0.dist-info", **more: bytes
) -> bytes:
    "A wheel with these files besides its METADATA."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {f"{folder}/METADATA": metadata, "thing.py": b"", **more}.items():
            archive.writestr(name, data)
    return file.getvalue()


def entry(content: bytes = b"", **more: Any) -> dict:
    listed = {"file": NAME, "name": "thing", "version": "1.0", "where": "session", "python": [PYTHON]}
    return listed | {"sha256": hashlib.sha256(content).hexdigest()} | more


def house(content: bytes, name: str = NAME, listed: Any = None, **values: Any) -> Callable[[Place], Path]:
    "A folder with one wheel of this content, and a list that has `listed` in place of its entry."

    def made(place: Place) -> Path:
        folder = place.folder / "wheels"
        folder.mkdir()
        place.code("wheels/install.py")
        if os.path.basename(name) == name:
            (folder / name).write_bytes(content)
        wheels = [entry(content, file=name)] if listed is None else listed
        text = json.dumps({"schema": 1, "wheels": wheels, "python": [PYTHON]} | values)
        (folder / "wheelhouse.json").write_text(text)
        return folder

    return made


def listing(change: Callable[[Place], Any]) -> Callable[[Place], Path]:
    "A folder whose wheelhouse.json is another thing."

    def made(place: Place) -> Path:
        folder = house(wheel())(place)
        (folder / "wheelhouse.json").unlink()
        what = change(place)
        if what is None:
            os.mkfifo(folder / "wheelhouse.json")
        elif isinstance(what, Path):
            (folder / "wheelhouse.json").symlink_to(place.folder / what)
        else:
            (folder / "wheelhouse.json").write_bytes(what if isinstance(what, bytes) else what.encode())
        return folder

    return made


def leading(target: str) -> Callable[[Place], Path]:
    "A folder in which the wheel that the list names is a pipe, a device or a link."

    def made(place: Place) -> Path:
        folder = house(b"")(place)
        (folder / NAME).unlink()
        if target == "pipe":
            os.mkfifo(folder / NAME)
        else:
            (folder / NAME).symlink_to(place.folder / target)
        return folder

    return made


ODD = {
    "nothing": None,
    "a number": 7,
    "a list": [1],
    "a mapping": {"a": 1},
    "signs": SIGNS,
    "a way out": "../outside/x-1.0-py3-none-any.whl",
    "a whole path": "/etc/passwd",
    "a zero": "a\0b-1.0-py3-none-any.whl",
    "a long text": "x" * 5000,
    "no parts": "x.whl",
}
LIES = wheel()
HOUSES: dict[str, Callable[[Place], Path]] = {
    **{f"the list is {name}": listing(lambda place, what=what: what) for name, what in INSTEAD.items()},
    **{
        f"{key} is {name}": house(LIES, listed=[entry(LIES, **{key: what})])
        for key in ("file", "name", "version", "sha256", "where", "python")
        for name, what in ODD.items()
    },
    **{
        f"the list's {key} is {name}": house(LIES, **{key: what})
        for key in ("schema", "wheels", "python", "extras", "installer")
        for name, what in ODD.items()
    },
    "an entry without anything": house(LIES, listed=[{}]),
    "entries without an end": house(LIES, listed=[entry(LIES)] * 5_000),
    "another hash": house(LIES, listed=[entry(b"another")]),
    "a wheel that is a pipe": leading("pipe"),
    "a wheel that is a device": leading("/dev/zero"),
    "a wheel that is a link": leading("outside/secret.txt"),
    "a wheel that is nothing": house(b""),
    "a wheel that is text": house(b"x" * 1000),
    "half a wheel": house(LIES[:100]),
    "a bomb": house(wheel(b"Name: thing\n" + bytes(2**27))),
    "many files": house(wheel(**{f"f{n}": b"" for n in range(20_000)})),
    "no metadata": house(wheel(folder="other")),
    "metadata of other letters": house(wheel(b"\xff\xfe\x00Requires-Dist: x\n")),
    "metadata with signs": house(wheel(f"Name: thing\nRequires-Dist: {SIGNS}\n".encode())),
    "a need that is none": house(wheel(b"Name: thing\nRequires-Dist: ===;;;\n")),
    "a need that is missing": house(wheel(b"Name: thing\nRequires-Dist: no-such-thing-x>=2\n")),
    "a mark that is none": house(wheel(b"Name: thing\nRequires-Dist: x; sys_platform ==\n")),
    "needs without an end": house(wheel(b"Name: thing\n" + b"Requires-Dist: no-such-thing-x\n" * 3_000)),
    "a code for every start": house(LIES, listed=[entry(b"of ours")]),
}


def install(folder: Path) -> Any:
    "Install from there; pip itself is left out, and leaves the mark where it would be asked for a strange wheel."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installer, "_pip", lambda *words: (folder.parent / "PIP").write_text(" ".join(words)))
        return installer.install(str(folder), sha256=hashlib.sha256(b"ours").hexdigest())


def install_it_all_the_same(folder: Path) -> Any:
    "As somebody who runs install.py by hand; its wheels are then the user's own choice."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installer, "_pip", lambda *words: None)
        return installer.install(str(folder))


def with_kernel(folder: Path) -> Any:
    made = kernel(notebook(cell("import thing")))(Place(folder.parent))
    return shell("kaggle", "check", lambda _: made, "--wheels", lambda _: folder)(folder)


HOW = {"install": install, "install by hand": install_it_all_the_same, "check": with_kernel, "read": read_wheels}


def cases() -> list[Any]:
    found = []
    for turn, (name, make) in enumerate(HOUSES.items()):
        for number, (how, act) in enumerate(HOW.items()):
            case = Case(f"{name}: {how}", make, act)
            quick = not turn % 9 and number == turn // 9 % len(HOW)
            found.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return found


@pytest.mark.parametrize("case", cases())
def test_wheelhouses_of_a_stranger(case, hostile):
    check(case, hostile)
    assert not (hostile / "PIP").exists()
