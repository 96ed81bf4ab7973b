"A session at home: sealed from an ordinary person's shell, and with a clock of its own where it is not sealed."

import pytest

from spectrakit.kaggle.rehearsal import session

LOOKS = """
import spectrakit as sk
here = sk.detect()
print(here.name, here.limit_s, here.session_start_source)
none = 0
1 / none
"""


def test_a_session_that_is_not_sealed_begins_when_it_is_started(tmp_path, monkeypatch, capfd):
    "The oldest process here is the machine's own; counted from there the session would have been over for long."
    monkeypatch.setattr(session, "sealing", lambda: ((), "not allowed here"))
    (tmp_path / "look.py").write_text(LOOKS)
    for name in ("input", "working"):
        (tmp_path / name).mkdir()
    done = session.run_session(tmp_path / "look.py", tmp_path / "input", tmp_path / "working", 600)
    assert "kaggle 600.0 SPECTRAKIT_SESSION_START" in done.text and done.unsealed == "not allowed here"
    assert done.error == "cell 1: ZeroDivisionError: division by zero"
    assert 'File "look.py, cell 1", line 6' in done.text and "1 / none\n" in done.text  # the kernel's own line


def test_a_persons_path_without_the_systems_folders_is_enough_to_seal(monkeypatch):
    session.sealing.cache_clear()
    words, reason = session.sealing()
    if not words:
        pytest.skip(reason)
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    session.sealing.cache_clear()
    assert session.sealing()[0] == words
    session.sealing.cache_clear()
