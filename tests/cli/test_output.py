"""Commands print through one function, which lets nothing move a terminal's cursor."""

import ast
from pathlib import Path

import spectrakit.cli

HAVE_THEIR_OWN = {"output.py", "parsing.py"}  # print_text itself, and argparse's error


def test_no_command_prints_past_print_text() -> None:
    modules = [file for file in Path(spectrakit.cli.__file__).parent.rglob("*.py") if file.name not in HAVE_THEIR_OWN]
    calls = {
        f"{file.name}:{node.lineno}"
        for file in modules
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert len(modules) > 5
    assert not calls
