"Files that several processes or threads write at the same time."

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from spectrakit.system.files import drop_leftovers, write_atomic


def test_a_file_may_be_removed_while_another_writes_it(tmp_path):
    "As when workers of DiLoCo try the folder in which they meet, all under one name."
    path = tmp_path / "trial"

    def write_and_remove(_):
        for _ in range(200):
            write_atomic(path, b"")
            path.unlink(missing_ok=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_and_remove, range(4)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a" * 250, "ж" * 120, "🔬" * 60], ids=["letters", "cyrillic", "pictures"])
def test_a_file_whose_name_is_as_long_as_names_may_be_is_replaced(name, tmp_path):
    file = tmp_path / name
    for text in ("one", "two"):
        write_atomic(file, text)
    assert file.read_text() == "two" and list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_beside_a_file_is_known_by_its_name(tmp_path, monkeypatch):
    file = tmp_path / ("ж" * 120)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 2**31 - 1)
        patch.setattr(os, "replace", lambda *_: os._exit(0))
        if (child := os.fork()) == 0:
            try:
                write_atomic(file, "half")
            finally:
                os._exit(1)
        os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 1
    drop_leftovers(file)
    assert len(list(tmp_path.iterdir())) == 1
    drop_leftovers(file, after_s=0)
    assert not list(tmp_path.iterdir())
