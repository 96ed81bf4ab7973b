"""Turn a `pip freeze` into the dated list of a platform: `python tools/platform_list.py --help`.

On the platform: `pip freeze --all | python tools/platform_list.py - --for kaggle --out kaggle.txt`. At home, from a
file: `python tools/platform_list.py freeze.txt --for kaggle --python 3.12.13 --out kaggle.txt`. The list belongs into
spectrakit/shipped/.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from spectrakit.kaggle.offline.platform_packages import PlatformPackages, parse_list, read_list
from spectrakit.system.errors import RequestError


def list_text(listed: PlatformPackages) -> str:
    """Return a list's file: facts, then sorted packages, one a line."""
    facts = {
        "source": listed.source or "pip freeze",
        "platform": listed.platform,
        "python": listed.python,
        "dated": listed.dated,
        "glibc": listed.glibc,
    }
    lines = [
        f"{name}{'==' * bool(version)}{version}{'  # inferred' * (name in listed.inferred)}"
        for name, version in sorted(listed.packages.items())
    ]
    return "\n".join([*(f"# {key}: {value}" for key, value in facts.items()), "", *lines]) + "\n"


def _python_and_glibc(python: str | None, source: str) -> tuple[str, str]:
    """Return Python and glibc of the listed machine; a file needs `--python`."""
    import platform

    if python is None and source != "-":
        mend = "Add --python 3.12.13, or pipe `pip freeze` in on the platform itself."
        raise RequestError(f"A file does not contain the Python of its packages. {mend}")
    if python is not None and not re.fullmatch(r"\d+\.\d+(\.\d+)?", python):
        raise RequestError(f"--python {python} is not a version. Write it as 3.12.13.")
    library, glibc = platform.libc_ver()
    return python or platform.python_version(), glibc if python is None and library == "glibc" else "2.28"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tools/platform_list.py",
        description="Turn a `pip freeze` into the dated list of a platform.",
        allow_abbrev=False,
    )
    freeze = "output file of `pip freeze --all`; - reads it from a pipe, on the platform itself"
    parser.add_argument("freeze", metavar="FREEZE", help=freeze)
    parser.add_argument("--for", dest="platform", default="kaggle", metavar="NAME", help="default: kaggle")
    parser.add_argument("--python", metavar="VERSION", help="the platform's Python, as 3.12.13; with -, this one")
    parser.add_argument(
        "--dated", default=date.today().isoformat(), metavar="DATE", help="of the image; default: today"
    )
    parser.add_argument("--out", metavar="FILE", help="default: print it")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert a `pip freeze` into a dated list; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        python, glibc = _python_and_glibc(options.python, options.freeze)
        facts = {"platform": options.platform, "python": python, "glibc": glibc, "dated": options.dated}
        if options.freeze == "-":
            listed = parse_list(sys.stdin.read(), "the pipe", **facts)
        else:
            listed = read_list(options.freeze, **facts)
        if options.out is None:
            print(list_text(listed), end="")
        else:
            Path(options.out).write_text(list_text(listed), encoding="utf-8")
    except (RequestError, OSError) as error:
        print(f"tools/platform_list.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
