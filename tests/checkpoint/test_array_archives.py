"Arrays and journals of a stranger: what they would unfold to, and ask for, is known before any memory is taken."

import contextlib
import functools
import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from spectrakit.checkpoint.store import CheckpointContent, CheckpointError, load_state, save_checkpoint
from spectrakit.data.folds import Folds, read_folds, write_folds
from spectrakit.pages.report_sections import read_predictions
from spectrakit.prediction.prediction_spool import stored_arrays
from spectrakit.runs.events import LONGEST_LINE, EventReader, lines_of
from spectrakit.system import array_archive as arrays
from spectrakit.system.array_archive import array_facts, array_heads, check_stored, read_arrays, save_arrays
from spectrakit.system.errors import RequestError
from spectrakit.system.files import file_sha256

MOST = 2**26  # bytes of memory that a refusal may take


@contextlib.contextmanager
def in_little_memory():
    "Within this block no more than MOST bytes are taken from Python's and NumPy's allocators."
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def head(descr="'<f8'", shape="(4,)", order="False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text += b" " * (118 - len(text) % 118 - 1) + b"\n" if len(text) < 9000 else b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def archive(file: Path, content: bytes, name: str = "predictions.npy", kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(file, "w", kind) as made:
        made.writestr(name, content)


@functools.cache
def zeros(size: int) -> bytes:
    "A bomb whose numbers are all right: the array has as many zeros as it says."
    file = io.BytesIO()
    packed = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packed as made, made.open("predictions.npy", "w") as part:
        part.write(head(shape=f"({size // 8},)"))
        for _ in range(size >> 20):
            part.write(bytes(2**20))
    return file.getvalue()


def many(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as made:
        for number in range(2000):
            made.writestr(f"{number}.npy", head() + bytes(32))


def twice(file: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(file, "w") as made:
        for _ in range(2):
            made.writestr("a.npy", head() + bytes(32))


def overlapping(file: Path) -> None:
    "Many names for the bytes of one array."
    content = head(shape=f"({2**17},)") + bytes(2**20)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a0.npy", content)
        (first,) = made.infolist()
        for number in range(1, 100):
            entry = zipfile.ZipInfo(f"a{number}.npy")
            for field in ("header_offset", "CRC", "compress_size", "file_size"):
                setattr(entry, field, getattr(first, field))
            made.filelist.append(entry)
            made.NameToInfo[entry.filename] = entry


def long_list(file: Path) -> None:
    "The end says that the list of entries is as long as the file, which is sparse."
    with open(file, "wb") as made:
        made.truncate(2**34)
        made.seek(0, os.SEEK_END)
        made.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 2**31, 0, 0))


def long_list_of_64(file: Path) -> None:
    with open(file, "wb") as made:
        made.truncate(2**34)
        made.seek(0, os.SEEK_END)
        made.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, 2**33, 0))
        made.write(struct.pack("<4sLQL", b"PK\6\7", 0, 2**34, 1))
        made.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0))


def locked(file: Path) -> None:
    archive(file, head() + bytes(32))
    data = bytearray(file.read_bytes())
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(mark) + offset] |= 1
    file.write_bytes(data)


BAD = {
    "a bomb of a gigabyte": lambda file: file.write_bytes(zeros(2**30)),
    "a head of a terabyte": lambda file: archive(file, head(shape="(10**12,)".replace("10**12", str(10**12)))),
    "a head of a terabyte, compressed": lambda file: archive(
        file, head(shape=f"({10**12},)") + bytes(2**20), kind=zipfile.ZIP_DEFLATED
    ),
    "lengths whose product overflows": lambda file: archive(file, head(shape=f"({2**40}, {2**40})")),
    "a negative length": lambda file: archive(file, head(shape="(-1, 4)") + bytes(32)),
    "a length that is a truth": lambda file: archive(file, head(shape="(True, 4)") + bytes(32)),
    "fewer bytes than it says": lambda file: archive(file, head(shape="(5,)") + bytes(32)),
    "more bytes than it says": lambda file: archive(file, head(shape="(3,)") + bytes(32)),
    "objects": lambda file: archive(file, head("'|O'", "(1,)") + pickle.dumps([1])),
    "objects in a field": lambda file: archive(file, head("[('a', '|O')]", "(1,)") + bytes(8)),
    "fields": lambda file: archive(file, head("[('a', '<f8')]", "(1,)") + bytes(8)),
    "texts without letters": lambda file: archive(file, head("'<U0'", f"({10**12},)")),
    "a text of a terabyte": lambda file: archive(file, head("'<U250000000'", "(1000,)")),
    "a type that is none": lambda file: archive(file, head("'<z9'", "(1,)") + bytes(8)),
    "a head of brackets": lambda file: archive(file, head("(" * 4000 + ")" * 4000)),
    "a head of letters": lambda file: archive(file, head(f"'{'x' * 60000}'")),
    "a pickle": lambda file: archive(file, pickle.dumps([1])),
    "a pickle beside the archive": lambda file: file.write_bytes(pickle.dumps({"predictions": [1]})),
    "no array": lambda file: archive(file, b"a text", "predictions.txt"),
    "another kind of packing": lambda file: archive(file, head() + bytes(32), kind=zipfile.ZIP_LZMA),
    "too many": many,
    "one name twice": twice,
    "shared bytes": overlapping,
    "a list without an end": long_list,
    "a list without an end, of 64 bits": long_list_of_64,
    "a password": locked,
    "a cut archive": lambda file: (archive(file, head() + bytes(32)), os.truncate(file, 100)),
    "nothing": lambda file: file.touch(),
    "a pipe": lambda file: os.mkfifo(file),
    "a folder": lambda file: file.mkdir(),
    "other bytes": lambda file: (
        archive(file, head() + bytes(32)),
        file.write_bytes(file.read_bytes().replace(bytes(32), b"\1" * 32)),
    ),
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("read", [read_arrays, read_arrays, read_folds, read_predictions])
def test_what_a_stranger_may_have_written_is_refused_in_little_memory(tmp_path, what, read):
    file = tmp_path / "predictions.npz"
    BAD[what](file)
    with in_little_memory(), pytest.raises(ValueError) as refused:  # a RequestError is one
        read(file)
    assert "predictions.npz" in str(refused.value) or "cannot be read" in str(refused.value)


@pytest.mark.parametrize("what", sorted(set(BAD) - {"other bytes"}))
def test_the_heads_alone_are_refused_too(tmp_path, what):
    BAD[what](tmp_path / "train.npz")
    for read in (array_heads, stored_arrays):
        with in_little_memory(), pytest.raises(RequestError, match=r"train\.npz cannot be read"):
            read(tmp_path / "train.npz")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(24.0).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6, dtype="i2").reshape(2, 3)),
        np.array(["a", "bä", ""]),
        np.array([b"x", b"yz"]),
        np.array(3.5),
        np.zeros((0, 3)),
        np.zeros((3, 0), "U4"),
        np.ones(5, bool),
        np.ones(3, "c16"),
        np.array(["2026-11-26"], "M8[D]"),
        np.arange(3, dtype=">i4"),
    ],
)
@pytest.mark.parametrize("in_memory", [0, 2**26])
def test_what_the_kit_writes_is_read(tmp_path, values, in_memory):
    file = tmp_path / "a.npz"
    save_arrays(file, {"values": values, "other": np.arange(3)}, {"lists": ["values"]})
    found = read_arrays(file, in_memory=in_memory)
    np.testing.assert_array_equal(found["values"], values)
    assert found["values"].dtype == values.dtype and found["other"].tolist() == [0, 1, 2]
    assert array_facts(file) == {"lists": ["values"]} and stored_arrays(file)["values"].shape == values.shape
    np.savez(tmp_path / "b.npz", values=values)
    np.testing.assert_array_equal(read_arrays(tmp_path / "b.npz")["values"], values)


def test_what_would_unfold_too_far_is_not_packed_and_folds_are_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_COMPRESSED", 2**20 + 1000)
    given = {"a": np.zeros(600, "u1"), "b": np.zeros(600, "u1"), "c": np.zeros(300, "u1")}
    save_arrays(tmp_path / "a.npz", given)
    assert [head.begins is None for head in array_heads(tmp_path / "a.npz").values()] == [True, False, True]
    folds = Folds(np.arange(30, dtype="<i4")[None] % 3, "kfold", 3)
    write_folds(tmp_path / "folds.npz", folds)
    assert read_folds(tmp_path / "folds.npz").sha256 == folds.sha256


@pytest.mark.parametrize("comment", [b"[" * 60000, b"no json", b"[1]", b'{"a": ' * 9000])
def test_odd_facts_are_none(tmp_path, comment):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as made:
        made.comment = comment
    assert array_facts(tmp_path / "a.npz") == array_facts(tmp_path / "a.npz") == {}


# --- what torch has saved


def put(folder: Path, content: bytes) -> Path:
    "A checkpoint whose state.pt is `content`, and whose manifest says so."
    path = save_checkpoint(folder, 3, CheckpointContent({"w": torch.zeros(2)}, {"step": 3}, [{}])).path
    (path / "state.pt").write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["state.pt"] = {"bytes": len(content), "sha256": file_sha256(path / "state.pt")}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def repacked(tree: dict, change) -> bytes:
    "What torch saves of `tree`, with each part as `change` makes it of its name and its bytes, compressed."
    saved, made = io.BytesIO(), io.BytesIO()
    torch.save(tree, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return made.getvalue()


def legacy(tree: dict) -> bytes:
    saved = io.BytesIO()
    torch.save(tree, saved, _use_new_zipfile_serialization=False)
    return saved.getvalue()


def stored_large() -> bytes:
    "A tensor whose pickle says that it has a thousand times the numbers that are stored."
    saved, made = io.BytesIO(), io.BytesIO()
    torch.save({"m": torch.zeros(1000)}, saved)
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):  # the number 1000 as a pickle has it, once as the size of the tensor
                at = data.rindex(b"M\xe8\x03")
                data = data[:at] + b"J" + struct.pack("<i", 10**6) + data[at + 3 :]
            new.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        lambda: repacked({"m": torch.zeros(2**20)}, lambda name, data: data),
        lambda: repacked({"m": torch.zeros(4)}, lambda name, data: bytes(2**27) if "/data/" in name else data),
        lambda: legacy({"m": torch.zeros(4)}),
        lambda: pickle.dumps({"m": 1}),
        stored_large,
    ],
)
def test_a_state_that_would_unfold_is_refused(tmp_path, content):
    path = put(tmp_path / "checkpoints", content())
    with in_little_memory(), pytest.raises(CheckpointError, match="is refused"):
        load_state(path)


def test_views_that_share_their_numbers_are_read(tmp_path):
    w = torch.arange(6.0)
    tree = {
        "step": 3,
        "a": w[:3],
        "b": w.reshape(2, 3).T,
        "c": torch.ones(1).expand(100),
        "s": torch.eye(3).to_sparse(),
    }
    path = save_checkpoint(tmp_path, 3, CheckpointContent({"w": w}, tree, [{}])).path
    check_stored(path / "state.pt")
    assert load_state(path)[0]["b"].tolist() == tree["b"].tolist()


# --- lines


def test_lines_that_are_longer_than_any_event_take_no_memory(tmp_path):
    file = tmp_path / "events.jsonl"
    event = '{"t": 1, "type": "message", "text": "%s"}\n'
    with open(file, "wb") as log:
        log.write((event % "first").encode())
        log.write(b'{"t": 1, "type": "message", "text": "')
        log.truncate(2**27)
        log.seek(0, os.SEEK_END)
        log.write(b'"}\n' + (event % "last").encode())
    with in_little_memory(), open(file, "rb") as log:
        assert [line is None for line, _ in lines_of(log)] == [False, True, False]
    reader = EventReader(file)
    with in_little_memory():
        assert [found["text"] for found in reader.poll()] == ["first", "last"] and reader.poll() == []
    with open(file, "ab") as log:
        log.write((event % "more").encode() + b'{"t": 2')
    assert [found["text"] for found in reader.poll()] == ["more"]
    assert LONGEST_LINE < MOST


@pytest.mark.parametrize("piece", [1, 7, 2**20])
def test_lines_are_the_same_whatever_is_read_at_once(piece):
    data = b"one\n\ntwo\nthree\nhalf"
    found = list(lines_of(io.BytesIO(data), piece))
    assert [line for line, _ in found] == [b"one", b"", b"two", b"three"] and data[: found[-1][1]] == data[:-4]
