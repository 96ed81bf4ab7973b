"""Write docs/settings.md and a page per group in docs/settings/ from the schema: `python tools/settings_page.py`."""

import collections
import re
from pathlib import Path

from spectrakit.config.schema import Config, settings
from spectrakit.config.setting_help import SettingHelp, setting_help

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

Every setting of a run, from the schema. In a shell: `spectrakit train coffee optimizer.lr=0.01`; in Python:
`sk.fit("coffee", "optimizer.lr=0.01")`. [Profiles](profiles.md) are named sets of settings.
`spectrakit explain optimizer.lr`, or `sk.explain("optimizer.lr")`, shows the text of one; the message of a wrong value
ends with that command.

| group | purpose | settings |
|---|---|---|
"""


def grouped() -> dict[str, list[SettingHelp]]:
    "Return the settings of each group, in the order of the schema."
    groups = collections.defaultdict(list)
    for key in settings():
        groups[key.partition(".")[0] if "." in key else "general"].append(setting_help(key))
    return groups


def purpose(group: str) -> str:
    "Return the docstring of a group's dataclass."
    block = getattr(Config(), group, None)
    return "Profiles, task and seed." if block is None else type(block).__doc__


def source(module: str) -> str:
    "Return a link to the notebook of a module."
    text = (ROOT / "spectrakit" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    notebook = re.search(r"File to edit: (?:\.\./)+(nbs/\S+)\.$", text, re.M)[1]
    return f"[{module}](../../{notebook})"


def shown(name: str, text: str, told: SettingHelp) -> str:
    "Return the text of one line of a setting as Markdown."
    if name == "acts in":
        return ", ".join(map(source, told.acts_in))
    if name == "profiles":
        return "; ".join(f"`{profile}`: {value}" for profile, value in told.profiles.items())
    if name == "other names":
        return ", ".join(f"`{alias}`" for alias in told.aliases)
    return f"`{text}`" if name in ("setting", "example") else text.replace("|", "\\|")


def section(told: SettingHelp) -> str:
    "Return the section of one setting, the lines of `spectrakit explain` without those that the page itself shows."
    name = told.key.rpartition(".")[2]
    lines = [f"| {line} | {shown(line, text, told)} |" for line, text in told.rows() if line not in ("meaning", "page")]
    return f'<a id="{name}"></a>\n\n## {name}\n\n{told.meaning}\n\n| | |\n|---|---|\n' + "\n".join(lines)


def render() -> dict[Path, str]:
    "Return the text of each page."
    groups, pages = grouped(), {}
    rows = []
    for group, told in groups.items():
        links = ", ".join(f"[{(name := each.key.rpartition('.')[2])}](settings/{group}.md#{name})" for each in told)
        rows.append(f"| [{group}](settings/{group}.md) | {purpose(group)} | {links} |")
        head = f"# {group}\n\n{purpose(group)} All groups: [settings](../settings.md).\n\n"
        pages[PAGE.with_suffix("") / f"{group}.md"] = head + "\n\n".join(map(section, told)) + "\n"
    return {PAGE: HEAD + "\n".join(rows) + "\n", **pages}


if __name__ == "__main__":
    for path, text in render().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
