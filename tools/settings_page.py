"""Write docs/settings.md, every setting with its meaning, from the schema: `python tools/settings_page.py`."""

import collections
from pathlib import Path

from spectrakit.config.aliases import ALIASES, flat
from spectrakit.config.profile_files import load_yaml, package_profiles
from spectrakit.config.schema import settings
from spectrakit.config.validation import Setting, accepted_values, shown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
HEAD = """# Settings

Every setting of a run, from the schema. In a shell: `spectrakit train coffee optimizer.lr=0.01`; in Python:
`sk.fit("coffee", "optimizer.lr=0.01")`. [Profiles](profiles.md) are named sets of settings. An empty default is null.
"""


def by_profile() -> dict[str, list[str]]:
    "Return for each setting the profiles that set it, as `group=name: value`."
    found = collections.defaultdict(list)
    for group in ("trainer", "env"):
        for file in sorted((package_profiles() / group).glob("*.yaml")):
            for key, value in flat({k: v for k, v in load_yaml(file).items() if k != "defaults"}):
                found[key].append(f"`{group}={file.stem}`: {shown(value)}")
    return found


def row(key: str, spec: Setting, aliases: list[str], profiles: list[str]) -> str:
    "Return the row of one setting."
    accepted = accepted_values(spec)
    words = ", ".join(f"`{word}`" for word in spec.limits.get("words", ()))
    text = spec.help[:1].upper() + spec.help[1:] + "."
    text += f" Accepts {accepted}{f', or {words}' if words else ''}."
    text += f" Other names: {', '.join(f'`{alias}`' for alias in aliases)}." if aliases else ""
    text += f" Profiles: {'; '.join(profiles)}." if profiles else ""
    default = shown(spec.default) if spec.default not in (None, {}, ()) else ""
    return f'| <a id="{key}"></a>`{key}` | {default} | {text} |'.replace("||", "\\|\\|")


def render() -> str:
    "Return the text of the page."
    aliases, profiles, groups = collections.defaultdict(list), by_profile(), collections.defaultdict(list)
    for alias, key in ALIASES.items():
        aliases[key].append(alias)
    for key, spec in settings().items():
        groups[key.partition(".")[0] if "." in key else "general"].append(row(key, spec, aliases[key], profiles[key]))
    tables = [
        f"## {name}\n\n| setting | default | meaning |\n|---|---|---|\n" + "\n".join(rows)
        for name, rows in groups.items()
    ]
    return HEAD + "\n" + "\n\n".join(tables) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
