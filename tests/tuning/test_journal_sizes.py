"The journal of a stranger's search is bounded before it is read."

import json
import os

import pytest

from spectrakit.system.errors import RequestError
from spectrakit.tuning.search.study import open_study
from spectrakit.tuning.search.study_file import JOURNAL, LEASE, check_journal, is_leased, mend_journal, open_journal


def sparse(file, size, begin=b"", end=b""):
    with open(file, "wb") as journal:
        journal.write(begin)
        journal.truncate(size)
        journal.seek(0, os.SEEK_END)
        journal.write(end)


BAD = {
    "a line of a gigabyte": lambda file: sparse(file, 2**30, b'{"op_code": 0, "a": "', b'"}\n'),
    "a line of eight megabytes": lambda file: sparse(file, 2**23, b'{"op_code": 0, "a": "', b'"}\n'),
    "a hole of a terabyte": lambda file: sparse(file, 2**40),
    "a pipe": os.mkfifo,
    "a folder": lambda file: file.mkdir(),
}


@pytest.mark.parametrize("what", BAD)
def test_what_no_search_has_written_is_refused(tmp_path, what):
    BAD[what](tmp_path / JOURNAL)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(RequestError, match="The journal of .* cannot be used"):
        open_journal(tmp_path, "minimize")
    with pytest.raises(RequestError):
        open_study(tmp_path)
    if what not in ("a pipe", "a folder"):
        for use in (lambda: check_journal(tmp_path), lambda: mend_journal(tmp_path / JOURNAL)):
            with pytest.raises(RequestError, match="The journal of .* cannot be used"):
                use()


@pytest.mark.parametrize("line", [b"[" * 10**6 + b"\n", b'{"op_code": 7}\n', b"1\n", b'{"a": ' * 10**5 + b"\n"])
def test_lines_that_are_no_records_are_a_sentence(tmp_path, line):
    open_journal(tmp_path, "minimize")
    whole = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(whole + line + b'{"op_code": 0')
    with pytest.raises(RequestError, match="The journal of .* cannot be read"):
        open_journal(tmp_path, "minimize", create=False)


def test_many_lines_that_are_none_are_cut_off_in_one_pass(tmp_path):
    open_journal(tmp_path, "minimize")
    whole = (tmp_path / JOURNAL).read_bytes()
    (tmp_path / JOURNAL).write_bytes(whole + b"x\n" * 10**6)
    assert mend_journal(tmp_path / JOURNAL) == 2 * 10**6 and (tmp_path / JOURNAL).read_bytes() == whole


@pytest.mark.parametrize("lease", ["[" * 10**5, "[]", json.dumps({"pid": 1, "host": "x", "born": 1, "time": "now"})])
def test_an_odd_lease_holds_nothing(tmp_path, lease):
    (tmp_path / LEASE).write_text(lease)
    assert is_leased(tmp_path) is False


@pytest.mark.timeout(60)
def test_the_lock_of_a_journal_that_was_taken_away_is_not_waited_for(tmp_path):
    journal = open_journal(tmp_path, "minimize")
    (tmp_path / JOURNAL).unlink()
    trial = None
    for _ in range(2):
        with pytest.raises(OSError):
            trial = journal.ask()
    assert trial is None and [path.name for path in tmp_path.iterdir()] == []
