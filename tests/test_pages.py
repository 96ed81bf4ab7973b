"""README.md and the pages of docs/: short, with links that lead somewhere, and words that the kit understands."""

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import spectrakit as sk
from spectrakit.cli.main import COMMANDS
from spectrakit.cloud.cloud_job import CloudJob
from spectrakit.cloud.modal_app import modal_commands
from spectrakit.config import schema
from spectrakit.config.aliases import is_known
from spectrakit.config.compose import compose

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES]
FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.M | re.S)
COMPOSED = ("train", "preflight", "cross-validate")  # commands after whose task settings follow
each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def blocks(page: Path, language: str) -> list[str]:
    "The fenced blocks of a page in one language."
    return [text for _, said, text in FENCE.findall(page.read_text(encoding="utf-8")) if said == language]


def prose(page: Path) -> str:
    "A page without its fenced blocks."
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchor(heading: str) -> str:
    "What a link to a heading ends with, as Git hosts make it."
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def commands(page: Path) -> list[list[str]]:
    "The words of each `spectrakit …` on a page, without what a comment says of it."
    lines = [line for text in blocks(page, "bash") for line in text.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(spectrakit [^`]+)`", prose(page).replace("\n", " "))
    return [shlex.split(line, comments=True) for line in lines if re.match(r"(torchrun .* -m )?spectrakit ", line)]


def test_the_first_page_is_short_and_begins_with_a_picture_code_and_two_commands():
    text = README.read_text(encoding="utf-8")
    first = text.partition("\n## ")[0]
    assert len(text.splitlines()) <= 200
    assert re.search(r"!\[.+\]\(docs/images/live\.png\)", first) and len(first.splitlines()) < 50
    code = blocks(README, "python")[0]
    assert code in first and len(code.splitlines()) <= 10
    assert re.search(r"^make demo ", first, re.M) and re.search(r"^make test ", first, re.M)


def test_every_page_is_found_from_the_first():
    reached, new = set(), {README}
    while new:
        page = new.pop()
        reached.add(page)
        linked = re.findall(r"\]\((?![a-z]+:|#)([^)#]+\.md)", prose(page))
        new |= {(page.parent / target).resolve() for target in linked} & set(PAGES) - reached
    assert not set(PAGES) - reached, "link to it: in nbs/index.ipynb, or from a page that README.md links to"


def links(page: Path) -> list[tuple[str, str]]:
    "(file, heading) of each link of a page into this repository."
    return re.findall(r"\]\((?![a-z]+:)([^)#\s]*)#?([^)\s]*)\)", prose(page))


def settings_in(page: Path) -> list[str]:
    "The settings that the text of a page names."
    return re.findall(r"`([a-z_]+(?:\.[a-z_]+)+=[^`\s…|]+)`", prose(page))


def test_what_is_looked_for_on_the_pages_is_found():
    "A pattern that finds nothing would let every page pass."
    assert sum(len(links(page)) for page in PAGES) > 30 and sum(len(commands(page)) for page in PAGES) > 30
    assert sum(len(settings_in(page)) for page in PAGES) > 20 and sum(len(blocks(page, "python")) for page in PAGES) > 5


@each_page
def test_links_lead_to_files_and_headings(page):
    for target, heading in links(page):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if heading:
            headings = re.findall(r"^#+ (.+)$", prose(path), re.M)
            assert heading in map(anchor, headings), f"{page.name} links to {target}#{heading}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "bench/README.md", "kaggle/README.md"])
def test_files_that_the_other_pages_name_are_there(page):
    path = ROOT / page
    named = {ROOT / name for name in re.findall(r"`((?:bench|nbs|tests|tools)/[a-z0-9_/]+\.\w+)`", prose(path))}
    linked = {path.parent / target for target, _ in links(path) if target}
    assert named and not [file for file in named | linked if not file.exists()]


@each_page
def test_python_on_a_page_uses_what_there_is(page):
    for text in blocks(page, "python"):
        for node in ast.walk(ast.parse(text)):
            call = node.func if isinstance(node, ast.Call) else node
            if not (isinstance(call, ast.Attribute) and ast.unparse(call.value) == "sk"):
                continue
            there = getattr(sk, call.attr)  # AttributeError: the page names what there is not
            if isinstance(node, ast.Call) and inspect.isfunction(there):
                inspect.signature(there).bind_partial(
                    *node.args, **{word.arg: word for word in node.keywords if word.arg}
                )


def test_the_example_of_a_cost_prints_what_its_page_says():
    page, printed = ROOT / "docs" / "cost.md", io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(blocks(page, "python")[0], {})
    assert printed.getvalue() == blocks(page, "text")[0] and "25 h, 139.75 $" in printed.getvalue()


def test_the_tables_of_places_name_what_their_profiles_set():
    rows = re.findall(
        r"^\| (micro batch|loader workers) \| (.+) \|$", (ROOT / "docs" / "cost.md").read_text("utf-8"), re.M
    )
    configs = [compose(f"trainer={name}", "env=auto") for name in ("smoke", "local_safe", "kaggle", "a100")]
    values = {
        "micro batch": [config.data.micro_batch_size for config in configs],
        "loader workers": [config.dataloader.num_workers for config in configs],
    }
    assert dict(rows) == {name: " | ".join(map(str, found)) for name, found in values.items()}


@each_page
def test_commands_on_a_page_are_there_and_their_settings_compose(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for target in re.findall(r"(?m)(?:^|`)make ([a-z-]+)", page.read_text(encoding="utf-8")):
        assert target in targets, target
    for words in commands(page):
        command, *rest = words[words.index("spectrakit") + 1 :]
        assert command in COMMANDS or command == "COMMAND", words
        if command in COMPOSED:
            settings = [word for word in rest if re.match(r"[+~]?\w[\w./]*=", word)]
            compose(*[word for word in settings if "…" not in word])


@each_page
def test_settings_in_the_text_of_a_page_compose(page):
    for setting in settings_in(page):
        if not re.search(r"[A-Z]{3}", setting):  # a word in capitals stands for a value
            compose(setting)


@each_page
def test_settings_that_a_page_names_exist(page):
    "Only words such as `trainer.max_epochs`: `run.error` is a field of a run, `trainer.predict` is Lightning's."
    groups = {key.partition(".")[0] for key in schema.settings() if "." in key} - {"run", "task"}
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", prose(page))
    known = [name for name in named if name.partition(".")[0] in groups and name != "trainer.predict"]
    assert not [name for name in known if not is_known(name)]


def test_the_commands_for_modal_are_those_that_its_folder_prints():
    printed = modal_commands(Path("my-run"), CloudJob("my-run", "my_task.py:Mine"))
    lines = [line for text in blocks(ROOT / "docs" / "cloud.md", "bash") for line in text.splitlines()]
    shown = [line.partition("  ")[0] for line in lines if line.startswith("modal ")]
    assert shown and not [line for line in shown if line not in [one.partition("  ")[0] for one in printed]]


def test_each_field_of_trainer_config_is_on_its_page():
    text = (ROOT / "docs" / "lm.md").read_text(encoding="utf-8")
    assert not [field.name for field in dataclasses.fields(sk.lm.TrainerConfig) if f"`{field.name}`" not in text]


def test_the_api_page_has_each_public_name_once():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^\.\. (?:auto\w+|py:data):: spectrakit\.(\w+)$", text, re.M)
    assert sorted(named) == sorted(set(sk.__all__) - {"__version__"})


def test_an_undocumented_public_name_breaks_the_build(monkeypatch):
    check = runpy.run_path(str(ROOT / "docs" / "conf.py"))["refuse_undocumented_names"]
    check(None)
    monkeypatch.setattr(sk, "__all__", [*sk.__all__, "undocumented"])
    with pytest.raises(ValueError, match="lacks undocumented"):
        check(None)


def test_a_failed_cell_breaks_the_build(tmp_path):
    check = runpy.run_path(str(ROOT / "docs" / "conf.py"))["refuse_failed_cells"]
    check(None)
    check.__globals__["root"] = tmp_path
    failed = {"cell_type": "code", "metadata": {}, "source": [], "outputs": [{"output_type": "error"}]}
    (tmp_path / "nbs").mkdir()
    (tmp_path / "nbs" / "broken.ipynb").write_text(json.dumps({"cells": [failed]}), encoding="utf-8")
    with pytest.raises(ValueError, match="broken.ipynb has a failed cell"):
        check(None)


BROKEN = {  # a word of Sphinx's warning: the link
    "'gone.md'": "[page](gone.md)",
    "'gone.ipynb'": "[notebook](gone.ipynb)",
    "'no-heading'": "[heading](#no-heading)",
    "'no-setting'": "[setting](other.md#no-setting)",
    "gone.png": "![picture](gone.png)",
    "spectrakit.gone": "```{eval-rst}\n:func:`spectrakit.gone`\n```",
    "unqualified_gone": "```{eval-rst}\n:meth:`unqualified_gone`\n```",
    "no_document": "```{toctree}\nno_document\n```",
}


@pytest.mark.slow
def test_a_broken_link_of_each_kind_breaks_the_build(tmp_path):
    (tmp_path / "page.md").write_text("\n\n".join(["# Page", *BROKEN.values()]) + "\n", encoding="utf-8")
    (tmp_path / "other.md").write_text('---\norphan: true\n---\n# Other\n\n<a id="setting"></a>\n', encoding="utf-8")
    only = ["-D", "include_patterns=page.md,other.md", "-D", "root_doc=page"]
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c", "docs", *only]
    done = subprocess.run(
        [*command, str(tmp_path), str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert not [word for word in BROKEN if word not in done.stderr], done.stderr


def test_each_page_is_in_the_contents_of_the_site():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^([\w./-]+)$", index, re.M))
    assert not [page.stem for page in PAGES if page.parent.name == "docs" and page.stem not in {*listed, "index"}]
    tutorials = (ROOT / "nbs" / "tutorials").glob("*.ipynb")
    assert not [path.stem for path in tutorials if f"../nbs/tutorials/{path.stem}" not in listed]


@pytest.mark.slow
@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--keep-going",
        "-c",
        "docs",
        ".",
        tmp_path,
    ]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr
    assert "sk.fit" in (tmp_path / "README.html").read_text(encoding="utf-8")
