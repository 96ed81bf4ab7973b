"""Checkpoints that a stranger made: weights whose header lies, states with code, manifests and pointers of any form."""

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_harness import Case, Place, check
from test_hostile_runs import ACTS, Line, their_run
from torch import nn

from spectrakit.api.actions import predict, resume
from spectrakit.api.run import open_run
from spectrakit.checkpoint.store import (
    CheckpointContent,
    averaged_names,
    checkpoints,
    drop_averages,
    find_checkpoint,
    load_state,
    load_weights,
    mirror_checkpoint,
    prune,
    read_pointer,
    save_checkpoint,
    verify,
)
from spectrakit.config.compose import compose, snapshot

SIGNS = "\x1b[2J\x1b]0;x\x07"
DEEP = 100_000
SETTINGS = ("task.name=coffee", "launch.mode=inline", "trainer.accelerator=cpu", "watchdog.limit=none")


def made(change: Callable[[Path, Place], Any], hashes: bool = True) -> Callable[[Place], Path]:
    "A run whose checkpoint is changed; with `hashes` its manifest then fits what its files hold."

    def make(place: Place) -> Path:
        run = their_run(place, snapshot(compose(*SETTINGS)), cut=False)
        folder = run / "checkpoints" / "step-00000020"
        shutil.rmtree(run / "checkpoints")
        model = nn.Linear(1, 1)
        state = {"step": 20, "optimizer": {}, "progress": {"step": 20}}
        content = CheckpointContent(dict(model.state_dict()), state, [{}])
        save_checkpoint(run / "checkpoints", 20, content, best=True)
        change(folder, place)
        if hashes and (folder / "manifest.json").is_file():
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["files"] = {
                file.name: {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
                for file in sorted(folder.iterdir())
                if file.name != "manifest.json"
            }
            (folder / "manifest.json").write_text(json.dumps(manifest))
        return run

    return make


# --- files ------------------------------------------------------------------------------------------------------------


def tensors(header: Any, data: bytes = bytes(8), size: int | None = None) -> Callable[[Path, Place], Any]:
    "Weights with this header, which says that it is `size` bytes long."
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    head = struct.pack("<Q", len(text) if size is None else size)
    return lambda folder, place: (folder / "model.safetensors").write_bytes(head + text + data)


def entry(**more: Any) -> dict:
    return {"weight": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]} | more}


WEIGHTS: dict[str, Callable[[Path, Place], Any]] = {
    "nothing": lambda folder, place: (folder / "model.safetensors").write_bytes(b""),
    "a header without an end": tensors(b"{}", size=2**63 - 1),
    "a header of a terabyte": tensors(b"{}", size=2**40),
    "a header below nothing": tensors(b"{}", size=2**64 - 1),
    "a header of other letters": tensors(b"\xff\xfe\x00"),
    "a header nested deeply": tensors(b"[" * DEEP),
    "a header that is a list": tensors([1, 2]),
    "a tensor that is a number": tensors({"weight": 7}),
    "a shape of exabytes": tensors(entry(shape=[2**32, 2**31])),
    "a shape that wraps around": tensors(entry(shape=[2**32, 2**32], data_offsets=[0, 0]), b""),
    "a shape of nothing and much": tensors(entry(shape=[0, 2**62], data_offsets=[0, 0]), b""),
    "a shape below nothing": tensors(entry(shape=[-1, -1])),
    "places that lie outside": tensors(entry(data_offsets=[0, 2**40])),
    "places that run back": tensors(entry(data_offsets=[8, 4])),
    "places that overlap": tensors(entry() | {"bias": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
    "a type that is none": tensors(entry(dtype="CODE")),
    "names with signs": tensors({SIGNS: entry()["weight"]}, bytes(4)),
    "names that climb": tensors({"../../outside/x": entry()["weight"]}, bytes(4)),
    "a name without an end": tensors({"x" * 10**6: entry()["weight"]}, bytes(4)),
    "names without an end": tensors(
        {f"w{n}": {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]} for n in range(50_000)}, bytes(50_000)
    ),
    "pairs of any kind": tensors(entry() | {"__metadata__": {"complex": "7"}}, bytes(4)),
    "pairs of nothing": tensors(entry() | {"__metadata__": {"complex": '["weight"]'}}, bytes(4)),
    "pairs nested deeply": tensors(entry() | {"__metadata__": {"complex": "[" * DEEP}}, bytes(4)),
    "other shapes": tensors(entry(shape=[4], data_offsets=[0, 16]), bytes(16)),
    "numbers that are none": tensors(entry(), struct.pack("<f", float("nan"))),
    "code": lambda folder, place: (folder / "model.safetensors").write_bytes(harmful(place)),
}


class Harm:
    "What executes something as it is unpickled."

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.system, (f"touch '{self.mark}'",)


def harmful(place: Place) -> bytes:
    return pickle.dumps({"step": Harm(place.mark)})


def archive(**parts: bytes) -> bytes:
    "A file as torch writes them, with these parts."
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in {"version": b"3\n", "byteorder": b"little", **parts}.items():
            opened.writestr(f"archive/{name.replace('_', '.', 1)}", data)
    return file.getvalue()


def saved(tree: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue()


def deep(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = [tree]
    return tree


STATES: dict[str, Callable[[Place], bytes]] = {
    "nothing": lambda place: b"",
    "code": harmful,
    "code in an archive": lambda place: archive(data_pkl=harmful(place)),
    "code as torch saves it": lambda place: saved({"step": Harm(place.mark)}),
    "code by an older protocol": lambda place: pickle.dumps({"step": Harm(place.mark)}, protocol=0),
    "a module": lambda place: saved(nn.Linear(1, 1)),
    "a name of Python": lambda place: b"\x80\x02cos\nsystem\nq\x00.",
    "an attribute of torch": lambda place: archive(data_pkl=b"\x80\x02ctorch.hub\nload\n(X\x01\x00\x00\x00atR."),
    "a list": lambda place: saved([1, 2]),
    "a number": lambda place: saved(7),
    "bytes": lambda place: bytes(range(256)),
    "half of it": lambda place: saved({"step": 20, "optimizer": {}})[:200],
    "a bomb": lambda place: archive(data_pkl=b"\x80\x02X" + struct.pack("<I", 2**26) + bytes(2**26) + b"."),
    "a text that is not there": lambda place: archive(data_pkl=b"\x80\x02X\xff\xff\xff\x7fabc."),
    "nested deeply": lambda place: archive(data_pkl=b"\x80\x02" + b"](" * DEEP + b"e" * DEEP + b"."),
    "a tensor of terabytes": lambda place: saved({"step": torch.zeros(1).as_strided((2**20, 2**20), (0, 0))}),
    "a mapping of itself": lambda place: archive(data_pkl=b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."),
    "no progress": lambda place: saved({}),
    "a step that is text": lambda place: saved({"step": SIGNS, "progress": SIGNS, "optimizer": SIGNS}),
    "a step without an end": lambda place: saved({"step": 10**400, "progress": {"step": 10**400}}),
    "a step below nothing": lambda place: saved({"step": -1, "progress": {"step": -1, "epoch": -1}}),
    "values that are lists": lambda place: saved({"optimizer": [1], "progress": [1], "scheduler": [1], "ema": [1]}),
    "values nested": lambda place: saved({"optimizer": deep(100), "progress": deep(100)}),
}
STATE_FILES = ("state.pt", "rank-00000.pt", "extra.pt")


def state(name: str, data: Callable[[Place], bytes]) -> Callable[[Path, Place], Any]:
    return lambda folder, place: (folder / name).write_bytes(data(place))


# --- manifests and pointers -------------------------------------------------------------------------------------------


def manifest(**values: Any) -> Callable[[Path, Place], Any]:
    "A manifest with these entries in place of its own."

    def change(folder: Path, place: Place) -> None:
        file = folder / "manifest.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def plain(name: str, data: bytes) -> Callable[[Path, Place], Any]:
    "The file `name`, seen from the checkpoint, holds `data`."
    return lambda folder, place: (folder / name).write_bytes(data)


def link(name: str, target: str) -> Callable[[Path, Place], Any]:
    def change(folder: Path, place: Place) -> None:
        (folder / name).unlink(missing_ok=True)
        if target == "pipe":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to(place.folder / target)

    return change


HASHED = {"bytes": 8, "sha256": "0" * 64}
MANIFESTS: dict[str, Callable[[Path, Place], Any]] = {
    "nothing": plain("manifest.json", b""),
    "a list": plain("manifest.json", b"[1]"),
    "nested deeply": plain("manifest.json", b"[" * DEEP),
    "a number without an end": plain("manifest.json", b'{"schema": ' + b"9" * 5000 + b"}"),
    "bytes": plain("manifest.json", b"\xff\xfe\x00"),
    "another schema": manifest(schema=99),
    "a schema that is a list": manifest(schema=[1]),
    "a step that is text": manifest(step=SIGNS),
    "another step": manifest(step=10**30),
    "ranks without an end": manifest(world_size=10**12),
    "ranks below nothing": manifest(world_size=-1),
    "files that are a list": manifest(files=[1]),
    "files that are nothing": manifest(files=None),
    "no files": manifest(files={}),
    "a file that is a number": manifest(files={"model.safetensors": 7}),
    "a size that is text": manifest(files={"model.safetensors": {"bytes": "8", "sha256": 7}}),
    "a size below nothing": manifest(files={"model.safetensors": {"bytes": -1, "sha256": "0"}}),
    "files that climb": manifest(files={"../../../../outside/secret.txt": HASHED}),
    "files of a whole path": manifest(files={"/etc/passwd": HASHED}),
    "files with signs": manifest(files={SIGNS: HASHED, "\ud800": HASHED, "a\0b": HASHED, "x" * 5000: HASHED}),
    "files without an end": manifest(files={f"f{n}": HASHED for n in range(50_000)}),
    "averages of any kind": manifest(averaged={"a": SIGNS}),
    "a pipe": link("manifest.json", "pipe"),
    "weights that are a pipe": link("model.safetensors", "pipe"),
    "a state that is a pipe": link("state.pt", "pipe"),
    "weights that are a folder": lambda folder, place: [
        (folder / "model.safetensors").unlink(),
        (folder / "model.safetensors").mkdir(),
    ],
    "weights of somebody else": link("model.safetensors", "outside/secret.txt"),
    "a state of somebody else": link("state.pt", "outside/secret.txt"),
    "a hash of other weights": plain("model.safetensors", bytes(100)),
}
TEXTS = {
    "a way out": b"../../../outside\n",
    "a whole path": b"/etc\n",
    "signs": SIGNS.encode() + b"\n",
    "a zero": b"step-\x000000020",
    "no text": b"\xff\xfe\x00",
    "a text without an end": b"x" * 2**22,
    "nothing": b"",
    "a checkpoint that is not there": b"step-99999999999999999999999999\n",
    "many lines": b"step-00000020\n" * 10_000,
}
POINTERS = {
    f"{name} is {what}": plain(f"../{name}", text)
    for name in ("LATEST", "BEST", "AVERAGE")
    for what, text in TEXTS.items()
}
FOLDERS = {
    "a step without an end": lambda folder, place: (folder.parent / f"step-{'9' * 200}").mkdir(),
    "a step of other digits": lambda folder, place: (folder.parent / "step-٠٠٠٠٠٠٩٩").mkdir(),
    "a folder that is linked": lambda folder, place: (folder.parent / "step-00000099").symlink_to(place.outside),
    "a file instead of a folder": lambda folder, place: (folder.parent / "step-00000099").touch(),
    "many of them": lambda folder, place: [(folder.parent / f"step-{n:08d}").mkdir() for n in range(100, 3_100)],
}


# --- what is done with them -------------------------------------------------------------------------------------------


def load(run: Path) -> Any:
    "Every reader of checkpoints, as it is asked by the others."
    folder = run / "checkpoints"
    path, notes = find_checkpoint(folder, "BEST")
    for one in checkpoints(folder):
        verify(one)
    averaged_names(folder), read_pointer(folder, "LATEST"), prune(folder, 1)
    if path is None:
        return [len(notes), notes[:5]]
    weights = load_weights(path)
    mirror_checkpoint(path, run.parent / "mirror", stop=lambda: False)
    drop_averages(folder)
    return [len(weights), str(load_state(path))[:2000], notes[:5]]


MORE = ("trainer.max_steps=22", "resume.allow=[trainer.max_steps, trainer.max_epochs]", "data.batch_size=4")
HOW: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "load": (load, False),
    "model": (lambda run: open_run(run).load_model(Line()), False),
    "predict": (lambda run: predict(Line(), run), True),
    "resume": (lambda run: resume(run, Line(), *MORE, show=False), True),
    "show": (ACTS["show"], False),
    "report": (ACTS["report"], False),
}


def cases(table: dict[str, Callable[[Place], Path]], quick_of: int, hows: tuple[str, ...] = tuple(HOW)) -> list[Any]:
    found = []
    for turn, (name, make) in enumerate(table.items()):
        for number, how in enumerate(hows):
            act, trains = HOW[how]
            quick = not turn % quick_of and number == turn // quick_of % len(hows)
            case = Case(f"{name}: {how}", make, act, trains=trains)
            found.append(pytest.param(case, id=case.name, marks=() if quick else pytest.mark.long))
    return found


READ = ("load", "model", "predict", "resume")


@pytest.mark.parametrize("case", cases({name: made(change) for name, change in WEIGHTS.items()}, 5, READ))
def test_weights_of_a_stranger(case, hostile):
    check(case, hostile)


@pytest.mark.parametrize(
    "case",
    cases({f"{f}: {name}": made(state(f, data)) for f in STATE_FILES for name, data in STATES.items()}, 9, READ),
)
def test_states_of_a_stranger(case, hostile):
    check(case, hostile)


@pytest.mark.parametrize("case", cases({name: made(change, False) for name, change in MANIFESTS.items()}, 7))
def test_manifests_of_a_stranger(case, hostile):
    check(case, hostile)


@pytest.mark.parametrize("case", cases({name: made(change) for name, change in {**POINTERS, **FOLDERS}.items()}, 8))
def test_pointers_of_a_stranger(case, hostile):
    check(case, hostile)
