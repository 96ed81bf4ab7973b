"""Resolve requirements-dev.in anew and write requirements-dev.lock: `python tools/lock.py`, or `make lock`.

The packages are installed into a fresh environment, which is thrown away; what `pip freeze` finds there is the lock.
It has to be made with the lowest Python that the package supports, because newer ones may get releases it cannot run.
"""

import os
import re
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parent.parent

HEADER = """\
# The development environment, pinned. Made by `make lock` from requirements-dev.in: do not edit by hand.
# To refresh it: edit requirements-dev.in where needed, run `make lock`, then `make test`, and commit both files.
# torch stands without a local version, so a CPU or a CUDA build of it serves; the CUDA libraries come with torch.
"""
# Which of these torch brings depends on the build that pip finds, not on this project.
FROM_TORCH = re.compile(r"(nvidia-(?!ml-py).*|cuda-.*|triton)$")


def lock_lines(frozen: str) -> list[str]:
    "The lines of `pip freeze` that belong into the lock, sorted by name, without local versions such as `+cpu`."
    lines = []
    for line in frozen.splitlines():
        name, equals, version = line.partition("==")
        if not equals or line.startswith(("#", "-e")):
            continue
        if name.lower() == "pip" or FROM_TORCH.match(name.lower()):
            continue
        lines.append(f"{name}=={version.split('+')[0]}")
    return sorted(lines, key=lambda line: line.split("==")[0].lower())


def main() -> None:
    settings = ConfigParser()
    settings.read(root / "settings.ini", encoding="utf-8")
    lowest = settings["DEFAULT"]["min_python"]
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != lowest:
        sys.exit(
            f"The lock is made with Python {lowest}, and this is {sys.version.split()[0]}. "
            f"Run `make lock PYTHON=python{lowest}`."
        )
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--quiet", "-r", "requirements-dev.in"], check=True, cwd=root)
        subprocess.run([*pip, "check"], check=True)
        frozen = subprocess.run([*pip, "freeze", "--all"], check=True, capture_output=True, text=True).stdout
    path = root / "requirements-dev.lock"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(HEADER + "\n".join(lock_lines(frozen)) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    print(f"{path.name}: {len(lock_lines(frozen))} packages")


if __name__ == "__main__":
    main()
