"""`tools/mutants.py`: every behaviour of its table is still where it says, and its verdicts are right."""

import ast
import json

import pytest

import mutants

TABLE = mutants.read_table()


def test_sixty_behaviours_or_more_are_named_once():
    names = [mutant.name for mutant in TABLE]
    assert len(names) >= 60 and len(set(names)) == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", TABLE, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies_and_its_tests_are_there(mutant):
    module = mutants.root / "spectrakit" / mutant.file
    ast.parse(mutants.mutated(mutant, module.read_text(encoding="utf-8")))
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (mutants.root / "tests" / file).read_text(encoding="utf-8")
        assert f"\ndef {name.partition('[')[0]}(" in text, test


VERDICTS = [
    ({"status": 1, "kinds": ["AssertionError"], "tests": 1}, "killed"),
    ({"status": 1, "kinds": ["Failed"], "tests": 1}, "killed"),
    ({"status": 1, "kinds": ["NameError"], "tests": 1}, "broken"),
    ({"status": 0, "kinds": [], "tests": 3}, "survived"),
    ({"status": 0, "kinds": ["Skipped"], "tests": 0}, "broken"),
    ({"status": 2, "kinds": [], "tests": 0}, "broken"),
    (None, "broken"),
]


@pytest.mark.parametrize(("result", "expected"), VERDICTS)
def test_only_an_assertion_that_failed_kills(tmp_path, result, expected):
    (tmp_path / "output.txt").write_text("the last line\n")
    if result is not None:
        result["of"] = str(tmp_path / "spectrakit" / "__init__.py")
        (tmp_path / "result.json").write_text(json.dumps(result))
    assert mutants.outcome(tmp_path).partition(":")[0] == expected


def test_tests_that_have_used_another_tree_say_nothing(tmp_path):
    found = {"status": 1, "kinds": ["AssertionError"], "tests": 1, "of": "/elsewhere/spectrakit/__init__.py"}
    (tmp_path / "result.json").write_text(json.dumps(found))
    assert mutants.outcome(tmp_path) == "broken: the tests have used /elsewhere/spectrakit/__init__.py"
