"""A pytest plugin that leaves out each test whose code, or the code of a name that it reads, matches $UNNAMED."""

import ast
import os
import re
from functools import cache
from pathlib import Path

import spectrakit


@cache
def definitions(path: str) -> dict[str, str]:
    "The code of each name at the top level of a file."
    text, found = Path(path).read_text(encoding="utf-8"), {}
    for node in ast.parse(text).body:
        names = [node.name] if hasattr(node, "name") else [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        decorated = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
        code = "\n".join([*decorated, ast.get_source_segment(text, node) or ""])
        for name in names:
            found[name] = f"{found.get(name, '')}\n{code}"
    return found


def reached(path: str, name: str) -> str:
    "The code of a test and of all names that it reads."
    known, seen, todo = definitions(path), set(), [name]
    while todo:
        if (each := todo.pop()) not in seen and each in known:
            seen.add(each)
            todo += re.findall(r"\w+", known[each])
    return "\n".join(known[each] for each in seen)


def pytest_configure(config):
    assert str(Path(spectrakit.__file__).resolve()).startswith(str(Path(os.environ["PACKAGE"]).resolve()))


def pytest_collection_modifyitems(config, items):
    words = re.compile(os.environ["UNNAMED"])
    named = [item for item in items if words.search(f"{item.nodeid} {reached(str(item.path), item.originalname)}")]
    config.hook.pytest_deselected(items=named)
    items[:] = [item for item in items if item not in named]
