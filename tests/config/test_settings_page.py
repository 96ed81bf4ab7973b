"""Each setting is read by the code, and stands on docs/settings.md with its meaning."""

import ast
from pathlib import Path

import settings_page
from spectrakit.config.schema import settings

ROOT = Path(__file__).resolve().parents[2]
DECLARING = {"schema.py", "aliases.py", "_modidx.py"}  # they name settings without using them


def names_read() -> set[str]:
    "The attributes and the texts in all modules that use settings."
    found = set()
    for path in (ROOT / "spectrakit").rglob("*.py"):
        if path.name not in DECLARING:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


def test_each_setting_is_read_by_the_code():
    read = names_read()
    assert not [key for key in settings() if key not in read and key.rpartition(".")[2] not in read]
    assert "no_such_setting" not in read


def test_the_page_of_settings_is_that_of_the_schema():
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.render(), (
        "run `python tools/settings_page.py`"
    )


def test_each_setting_is_on_the_page_with_a_meaning():
    text = settings_page.PAGE.read_text(encoding="utf-8")
    for key, spec in settings().items():
        assert f'<a id="{key}"></a>' in text and len(spec.help) > 5, key
