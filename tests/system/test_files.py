"Files that several processes or threads write at the same time."

from concurrent.futures import ThreadPoolExecutor

from spectrakit.system.files import write_atomic


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
