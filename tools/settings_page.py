"""Write docs/settings.md, every setting with its meaning, from the schema: `python tools/settings_page.py`."""

import collections
from pathlib import Path

from spectrakit.config.schema import settings
from spectrakit.config.setting_help import SettingHelp, setting_help

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every setting of a run, from the schema. In a shell: `spectrakit train coffee optimizer.lr=0.01`; in Python:
`sk.fit("coffee", "optimizer.lr=0.01")`. [Profiles](profiles.md) are named sets of settings. An empty default is null.
`spectrakit explain optimizer.lr`, or `sk.explain("optimizer.lr")`, shows one of them.
"""


def row(told: SettingHelp) -> str:
    "Return the row of one setting."
    text = f"{told.meaning} Accepts {told.accepts}."
    text += f" Other names: {', '.join(f'`{alias}`' for alias in told.aliases)}." if told.aliases else ""
    profiles = "; ".join(f"`{name}`: {value}" for name, value in told.profiles.items())
    text += f" Profiles: {profiles}." if profiles else ""
    default = "" if told.default == "null" else told.default
    return f'| <a id="{told.key}"></a>`{told.key}` | {default} | {text} | `{told.example}` |'.replace("||", "\\|\\|")


def render() -> str:
    "Return the text of the page."
    groups = collections.defaultdict(list)
    for key in settings():
        groups[key.partition(".")[0] if "." in key else "general"].append(row(setting_help(key)))
    tables = [
        f"## {name}\n\n| setting | default | meaning | example |\n|---|---|---|---|\n" + "\n".join(rows)
        for name, rows in groups.items()
    ]
    return HEAD + "\n" + "\n\n".join(tables) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
