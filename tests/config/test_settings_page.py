"""Each setting is read by the code, and has its section in docs/settings/ with its meaning."""

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import settings_page
from spectrakit.cli.main import main
from spectrakit.config.explain import explain
from spectrakit.config.profile_files import profiles
from spectrakit.config.schema import Config, settings
from spectrakit.config.setting_help import group_help, setting_help, setting_page
from spectrakit.system.errors import RequestError

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


def test_the_pages_of_settings_are_those_of_the_schema():
    rendered = settings_page.render()
    written = {settings_page.PAGE, settings_page.CHEAT_SHEET}
    assert {*rendered} == {*written, *settings_page.PAGE.with_suffix("").glob("*.md")}
    for path, text in rendered.items():
        assert path.read_text(encoding="utf-8") == text, "run `python tools/settings_page.py`"


def anchors(path: Path) -> set[str]:
    "The anchors of a page in docs/settings/."
    return set(re.findall(r'<a id="(\w+)"></a>', path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("key", settings())
def test_each_setting_is_on_its_page_as_it_is_explained(key):
    told = setting_help(key)
    page, _, name = setting_page(key).partition("#")
    assert name in anchors(ROOT / page) and len(settings()[key].help) > 5
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"## {name}\n")[2].partition("<a id=")[0]
    assert told.type and told.acts_in and all(f"[{module}](" in section for module in told.acts_in)
    for text in (told.meaning, told.type, told.unit, told.default, told.accepts, told.example, *told.aliases):
        assert text.replace("|", "\\|") in section, text


@pytest.mark.parametrize("page", sorted(settings_page.PAGE.with_suffix("").glob("*.md")), ids=lambda page: page.stem)
def test_each_group_is_explained_with_the_settings_of_its_page(page, capsys):
    told, text = group_help(page.stem), page.read_text(encoding="utf-8")
    assert main(["explain", page.stem]) == 0
    printed = capsys.readouterr().out
    assert told.purpose in text and [each.key.rpartition(".")[2] for each in told.settings] == re.findall(
        r'<a id="(\w+)"></a>', text
    )
    assert all(each.key in printed for each in told.settings) and f"docs/settings/{page.name}" in printed


@pytest.mark.parametrize("word, answer", [("batchsize", "'batch_size'"), ("kaggle_safe", "trainer=kaggle_safe")])
def test_a_word_that_is_no_setting_is_answered_with_the_nearest(word, answer, capsys):
    assert main(["explain", word]) == 2 and answer in capsys.readouterr().err


@pytest.mark.parametrize("key", [key for key, spec in settings().items() if spec.type != dict[str, Any]])
def test_the_message_of_a_wrong_value_names_a_command_that_explains_the_setting(key):
    block, _, name = key.rpartition(".")
    wrong = {name: b"no setting holds bytes"}
    with pytest.raises(RequestError) as caught:
        replace(Config(), **{block: replace(getattr(Config(), block), **wrong)} if block else wrong)
    command = re.search(r" More: `spectrakit explain (\S+)`\.$", str(caught.value))
    assert command and explain(command[1]).key == key


def test_every_anchor_that_the_package_names_exists():
    for path in [*(ROOT / "spectrakit").rglob("*.py"), ROOT / "README.md"]:
        for page, anchor in re.findall(r"(docs/settings/\w+\.md)#(\w+)", path.read_text(encoding="utf-8")):
            assert anchor in anchors(ROOT / page), path


def test_each_built_in_profile_is_on_the_cheat_sheet():
    text = settings_page.CHEAT_SHEET.read_text(encoding="utf-8")
    assert not [name for names in profiles().values() for name in names if f"| `{name}` |" not in text]
