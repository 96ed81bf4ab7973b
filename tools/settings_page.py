"""Write docs/settings.md, docs/settings/ and docs/profile-cheat-sheet.md from the schema and the profiles.

`python tools/settings_page.py`
"""

import collections
import re
from pathlib import Path
from typing import Any

from spectrakit.config.aliases import flat
from spectrakit.config.profile_files import load_yaml, package_profiles
from spectrakit.config.schema import settings
from spectrakit.config.setting_help import SettingHelp, group_help
from spectrakit.config.validation import shown as as_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
HEAD = """# Settings

Every setting of a run, from the schema. In a shell: `spectrakit train coffee optimizer.lr=0.01`; in Python:
`sk.fit("coffee", "optimizer.lr=0.01")`. [Profiles](profiles.md) are named sets of settings.
`spectrakit explain optimizer.lr`, or `sk.explain("optimizer.lr")`, shows the text of one; the message of a wrong value
ends with that command. [Configuration](configuration.md) tells how values from several sources are merged.

| group | purpose | settings |
|---|---|---|
"""


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


CHEAT_SHEET = ROOT / "docs" / "profile-cheat-sheet.md"
CHEAT_HEAD = """# Profiles: a cheat sheet

Every built-in profile, from its file. A profile has the settings of those that it extends, changed by its own.
`spectrakit profiles NAME` shows the composed settings, `spectrakit profiles --compare kaggle a100` the differences.
[Choosing one](profiles.md) · [profiles of your own](configuration.md#profiles-of-your-own)
"""
ADD_ONE = """
## Add one

1. Write `spectrakit/profiles/GROUP/NAME.yaml` (your own: `./profiles/GROUP/NAME.yaml`). The first line is
   `# @package _global_`, the second a comment with its purpose.
2. Put the nearest profile into `defaults:` and set only differences, each with a comment.
3. Run `python tools/settings_page.py`: the profile is documented here and at its settings.
4. Test it: its name in `tests/config/test_profiles.py`; for your own `sk.compose("trainer=NAME")`.
"""


def as_typed(value: Any) -> str:
    "Return a value as it is typed after `key=`, quoted if Hydra would read more than a text in it."
    return f"'{value}'" if isinstance(value, str) and re.search(r"[\[\](){}:]", value) else as_text(value)


def profile_row(path: Path) -> str:
    "Return the row of a profile: name, purpose, extended profiles and own settings."
    comments = [line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    tree = load_yaml(path)
    extended = ", ".join(f"`{each}`" for each in tree.pop("defaults", ()) if isinstance(each, str) and each != "_self_")
    own = ", ".join(f"`{key}={as_typed(value)}`" for key, value in flat(tree))
    purpose = "; ".join(each for each in comments if not each.startswith("@"))
    return f"| `{path.stem}` | {purpose} | {extended} | {own} |".replace("||", "\\|\\|")


def cheat_sheet() -> str:
    "Return the page of profiles, one table per group."
    files = collections.defaultdict(list)
    for path in sorted(package_profiles().glob("*/**/*.yaml")):
        files[path.parent.relative_to(package_profiles()).as_posix()].append(path)
    head = "| profile | for | extends | own settings |\n|---|---|---|---|\n"
    tables = [f"## {group}\n\n{head}" + "\n".join(map(profile_row, paths)) for group, paths in files.items()]
    return CHEAT_HEAD + "\n" + "\n\n".join(tables) + "\n" + ADD_ONE


def render() -> dict[Path, str]:
    "Return the text of each page."
    rows, pages = [], {}
    for group in dict.fromkeys(key.partition(".")[0] if "." in key else "general" for key in settings()):
        told = group_help(group)
        names = [each.key.rpartition(".")[2] for each in told.settings]
        links = ", ".join(f"[{name}](settings/{group}.md#{name})" for name in names)
        rows.append(f"| [{group}](settings/{group}.md) | {told.purpose} | {links} |")
        head = f"# {group}\n\n{told.purpose} All groups: [settings](../settings.md).\n\n"
        pages[PAGE.with_suffix("") / f"{group}.md"] = head + "\n\n".join(map(section, told.settings)) + "\n"
    return {CHEAT_SHEET: cheat_sheet(), PAGE: HEAD + "\n".join(rows) + "\n", **pages}


if __name__ == "__main__":
    for path, text in render().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
