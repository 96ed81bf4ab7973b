"""Kernels that a stranger made: notebooks and metadata of any form, code files that lead out, a picker's choices."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile_harness import Case, Place, check
from test_hostile_runs import CONFIGS, shell

from spectrakit.kaggle.client import kernel_name
from spectrakit.kaggle.metadata import DATASET_FILE, KERNEL, KERNEL_FILE
from spectrakit.picker.provenance import read_selection

GOOD = {key: entry.default for key, entry in KERNEL.items()} | {"id": "ada/my-kernel", "title": "My kernel"}
SIGNS = "\x1b[2J\x1b]0;x\x07\u202e\u200b"
DEEP = 100_000


def cell(source: Any = "print(1)", **more: Any) -> dict:
    return {"cell_type": "code", "metadata": {}, "execution_count": None, "source": source, "outputs": [], **more}


def notebook(*cells: Any, **more: Any) -> str:
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more})


def written(text: str, error: str = "") -> str:
    "A notebook whose output is `text`."
    shown = {"output_type": "display_data", "data": {"text/html": text, "text/plain": [text]}, "metadata": {}}
    failed = {"output_type": "error", "ename": text, "evalue": error, "traceback": [text]}
    return notebook(cell(outputs=[{"output_type": "stream", "name": "stdout", "text": text}, shown, failed]))


# What the code file may be.
NOTEBOOKS: dict[str, str | bytes] = {
    "nothing": "",
    "half of it": '{"cells": [',
    "bytes": bytes(range(256)) * 40,
    "other letters": notebook(cell()).encode("utf-16"),
    "no signs": bytes(1000),
    "a list": "[]",
    "a number": "7",
    "nested deeply": "[" * DEEP,
    "nested deeply in a cell": '{"cells": [{"source": ' + "[" * DEEP + "]" * DEEP + "}]}",
    "metadata that are nested deeply": '{"cells": [], "metadata": ' + '{"a":' * DEEP + "1" + "}" * DEEP + "}",
    "a number without an end": notebook(cell()).replace("null", "9" * 5000),
    "a number that is none": notebook(cell()).replace("null", "NaN"),
    "cells of nothing": '{"cells": null}',
    "a cell that is a number": '{"cells": [1, "a", null]}',
    "a source that is a number": notebook(cell(7), cell({"a": 1}), cell([1, None, ["x"]]), cell(None)),
    "a kind that is a list": notebook(cell(cell_type=["code"]), cell(cell_type=None)),
    "outputs of any kind": notebook(
        cell(outputs=7), cell(outputs=[1, "a", {}]), cell(outputs=[{"data": 7}]), cell(outputs=[{"data": ["a"]}])
    ),
    "an output without a type": notebook(cell(outputs=[{"output_type": ["error"], "data": {"a": {"b": [1]}}}])),
    "text that is a mapping": notebook(cell(outputs=[{"output_type": "stream", "text": {"a": 1}}])),
    "metadata of a cell": notebook(cell(metadata=7), cell(metadata=["tags"]), cell(metadata={"tags": 7})),
    "attachments of any kind": notebook(
        cell(attachments=7), cell(attachments={"a": 7}), cell(attachments={"a": {"b": 7}})
    ),
    "metadata that are a list": notebook(cell(), metadata=[1]),
    "widgets of any kind": notebook(cell(), metadata={"widgets": {"a": 7, "b": {"state": 7}}}),
    "a kernel of any kind": notebook(cell(), metadata={"kernelspec": 7, "language_info": [1], "kaggle": 7}),
    "html in an output": written("<script>document.location='http://x'</script>"),
    "signs in an output": written(SIGNS, SIGNS),
    "signs in the code": notebook(cell(f"print('{SIGNS}')"), cell(f"{SIGNS}")),
    "signs in a command": notebook(cell(f"!pip install x{SIGNS}"), cell(f"!wget http://{SIGNS}")),
    "signs in a path": notebook(cell(f"open('/kaggle/input/x{SIGNS}/y')"), cell(f"find_input('{SIGNS}')")),
    "signs in a call": notebook(cell(f"import torch\ntorch.hub.load('{SIGNS}')\nm.from_pretrained('{SIGNS}')")),
    "signs in the settings": notebook(cell(f"import spectrakit as sk\nsk.compose('trainer={SIGNS}', '{SIGNS}')")),
    "signs in a name": notebook(
        cell(f"%load_ext {SIGNS}"), cell(f"%%writefile {SIGNS}.py\nx = 1"), cell(f"%run {SIGNS}")
    ),
    "half of a letter": notebook(cell("print('\ud800')"), cell("\ud800"), cell("!pip install \ud800")),
    "a zero": notebook(cell("x = 1\0"), cell("!pip install a\0b"), cell("find_input('\0')")),
    "a file that is written outside": notebook(
        cell("%%writefile ../outside/new.py\nx = 1"), cell("%%writefile /etc/x")
    ),
    "code that is run": notebook(
        cell("%run evil.py"), cell("import evil"), cell("!python evil.py"), cell("%load_ext evil")
    ),
    "a magic without a word": notebook(
        cell("%"), cell("%%"), cell("!"), cell("%run"), cell("%%writefile"), cell("%load_ext")
    ),
    "a magic that is not known": notebook(
        cell("%%nonsense\nx"), cell("%time"), cell("%timeit ("), cell("!!"), cell("??")
    ),
    "a quote that is not closed": notebook(cell("!pip install 'x"), cell('!echo "'), cell("%pip install `x")),
    "brackets nested deeply": notebook(cell("(" * DEEP), cell("x = " + "[" * 150 + "]" * 150)),
    "signs nested deeply": notebook(cell("-" * DEEP + "1"), cell("not " * DEEP + "x")),
    "a sum without an end": notebook(cell("x = " + " + ".join(["'a'"] * 20_000))),
    "calls in calls": notebook(cell("f(" * 180 + ")" * 180), cell("x" + ".y" * 20_000), cell("x" + "()" * 20_000)),
    "blocks in blocks": notebook(cell("\n".join(" " * n + "if x:" for n in range(99)) + "\n" + " " * 99 + "pass")),
    "a line without an end": notebook(cell("x = '" + "a" * 2**22 + "'")),
    "a command without an end": notebook(cell("!pip install " + "a" * 2**20), cell("!" + "a;" * 2**18)),
    "lines without an end": notebook(cell("x = 1\n" * 100_000)),
    "magics without an end": notebook(cell("!a\n" * 3_000)),
    "lines that go on": notebook(cell("x = 1 \\\n" * 20_000), cell("!a \\\n" * 20_000)),
    "strings that stay open": notebook(cell("'''\n!a\n" * 1_000)),
    "what may be a secret": notebook(cell("A" * 2**20), cell("key=" * 2**17), cell("a@" * 2**17), cell(":/" * 2**17)),
    "an output that may be one": written("eyJ" * 2**17 + "." + "A" * 2**17),
    "an output without an end": written("x" * 2**20),
    "cells without an end": notebook(*[cell("x = 1")] * 10_000),
    "settings that explode": notebook(
        cell("import spectrakit as sk\nsk.compose('data.batch_size=${oc.env:KAGGLE_KEY}')")
    ),
    "settings of a file": notebook(cell("import spectrakit as sk\nsk.compose('--config', 'outside/secret.yaml')")),
    "settings of any kind": notebook(
        cell("import spectrakit as sk\nsk.compose('=', '~', '+a.b=[', 'watchdog.limit=x')")
    ),
}


def kernel(code: str | bytes, name: str = "kernel.ipynb", **values: Any) -> Callable[[Place], Path]:
    "A kernel with this code file and, besides what is right, these `values`."

    def made(place: Place) -> Path:
        folder = place.folder / "theirs"
        folder.mkdir()
        place.code("theirs/evil.py")
        place.code("evil.py")
        (folder / name).write_bytes(code if isinstance(code, bytes) else code.encode("utf-8", "surrogatepass"))
        (folder / KERNEL_FILE).write_text(json.dumps(GOOD | {"code_file": name} | values))
        return folder

    return made


ACTS: dict[str, Callable[[Path], Any]] = {
    "check": shell("kaggle", "check", lambda folder: folder),
    "push": shell("kaggle", "push", lambda folder: folder, "--dry-run", "--anyway", "--owner", "ada"),
    "status": shell("kaggle", "status", lambda folder: folder, "--dry-run"),
    "name": kernel_name,
}


def cases(table: dict[str, Callable[[Place], Path]], acts: tuple[str, ...], quick_of: int) -> list[Any]:
    "Every act with every kernel; each `quick_of`-th kernel once in `make test`."
    found = []
    for turn, (name, make) in enumerate(table.items()):
        for number, how in enumerate(acts):
            quick = not turn % quick_of and number == turn // quick_of % len(acts)
            case = Case(f"{name}: {how}", make, ACTS[how])
            found.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return found


@pytest.mark.parametrize("case", cases({name: kernel(code) for name, code in NOTEBOOKS.items()}, ("check", "push"), 5))
def test_notebooks_of_a_stranger(case, hostile):
    check(case, hostile)


SCRIPTS = ("half of it", "bytes", "no signs", "nested deeply", "signs in the code", "what may be a secret")


@pytest.mark.parametrize(
    "case", cases({name: kernel(NOTEBOOKS[name], "kernel.py") for name in SCRIPTS}, ("check", "push"), 6)
)
def test_scripts_of_a_stranger(case, hostile):
    check(case, hostile)


# --- metadata ---------------------------------------------------------------------------------------------------------

ODD: dict[str, Any] = {
    "nothing": None,
    "a number": 7,
    "an endless number": float("inf"),
    "a list": [7, None, ["a"], {"a": 1}],
    "a mapping": {"a": [1]},
    "signs": SIGNS,
    "half of a letter": "\ud800/\ud800",
    "a zero": "a\0/b",
    "a way out": "../../outside/secret.txt",
    "a whole path": "/etc/passwd",
    "an option": "-rf",
    "a command": "$(touch EXECUTED)/`touch EXECUTED`",
    "a long text": "x" * 100_000,
    "many": ["a/b"] * 5_000,
    "many with signs": [SIGNS, f"a/{SIGNS}", f"a/b/{SIGNS}"] * 100,
}
ENTRIES = ("code_file", "id", "title", "dataset_sources", "model_sources", "kernel_type", "machine_shape", "keywords")
METADATA = {
    f"{entry} is {what}": kernel(notebook(cell()), **{entry: value}) for entry in ENTRIES for what, value in ODD.items()
}


@pytest.mark.parametrize("case", cases(METADATA, tuple(ACTS), 10))
def test_metadata_of_a_stranger(case, hostile):
    check(case, hostile)


def instead(name: str, text: str | bytes | Path | None) -> Callable[[Place], Path]:
    "A kernel in which the file `name` is `text`, a link to a path, or a pipe on which nobody writes."

    def made(place: Place) -> Path:
        folder = kernel(notebook(cell()))(place)
        file = folder / name
        file.unlink(missing_ok=True)
        if text is None:
            os.mkfifo(file)
        elif isinstance(text, Path):
            file.symlink_to(place.folder / text)
        else:
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    return made


INSTEAD: dict[str, str | bytes | Path | None] = {
    "nothing": "",
    "a list": "[1]",
    "nested deeply": "[" * DEEP,
    "a number without an end": '{"id": ' + "9" * 5000 + "}",
    "bytes": b"\xff\xfe\x00",
    "signs": json.dumps({SIGNS: SIGNS, "id": SIGNS}),
    "keys without an end": json.dumps({f"k{n}": n for n in range(5_000)}),
    "large": b" " * 2**25,
    "a pipe": None,
    "a device": Path("/dev/zero"),
    "a folder": Path("."),
    "a link out": Path("outside/secret.txt"),
    "a link to nothing": Path("nowhere"),
}
FILES = {
    f"{name} is {what}": instead(name, text)
    for name in (KERNEL_FILE, "kernel.ipynb", DATASET_FILE, "wheelhouse.json", ".env", "notes.md")
    for what, text in INSTEAD.items()
}


@pytest.mark.parametrize("case", cases(FILES, tuple(ACTS), 13))
def test_files_of_a_kernel_of_a_stranger(case, hostile):
    check(case, hostile)


def leads_out(how: str) -> Callable[[Place], Path]:
    "A kernel whose code file is a file of the user's."

    def made(place: Place) -> Path:
        (place.outside / "key.py").write_text("print('what is mine')\n")
        if how == "a link":
            folder = kernel(notebook(cell()), code_file="key.py")(place)
            (folder / "key.py").symlink_to(place.outside / "key.py")
            return folder
        name = str(place.outside / "key.py") if how == "a whole path" else "../outside/key.py"
        return kernel(notebook(cell()), code_file=name, kernel_type="script")(place)

    return made


@pytest.mark.parametrize("how", ["a way up", "a whole path", "a link"])
def test_a_code_file_that_leads_out_is_not_pushed(how, hostile):
    check(Case(how, leads_out(how), ACTS["push"], "leads out"), hostile)


# --- a picker's file --------------------------------------------------------------------------------------------------


def chosen(text: Callable[[Place], str]) -> Callable[[Place], Path]:
    def made(place: Place) -> Path:
        file = place.folder / "spectrakit.yaml"
        file.write_text(text(place), encoding="utf-8")
        return file

    return made


def selections() -> list[Any]:
    found = []
    for turn, (name, (text, _)) in enumerate(CONFIGS.items()):
        case = Case(f"{name}: read as a selection", chosen(text), lambda file: read_selection(file, "a file"))
        found.append(pytest.param(case, id=case.name, marks=() if not turn % 13 else pytest.mark.long))
    return found


@pytest.mark.parametrize("case", selections())
def test_selections_of_a_stranger(case, hostile):
    check(case, hostile)
