"A wheel of this tree, and an environment that holds it, for tests of what a person has installed."

import subprocess
import sys
import sysconfig
from pathlib import Path

import sync


def built_wheel(folder: Path) -> Path:
    "A wheel built from a copy of the tree, so that the checkout gets no build folder."
    source = sync.copy_tree(folder / "source")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", source],
        check=True,
        capture_output=True,
        timeout=300,
    )
    built = list((folder / "dist").iterdir())
    assert len(built) == 1
    return built[0]


def environment_with(wheel: Path, folder: Path) -> Path:
    """The Python of a fresh environment that holds the wheel and sees this environment's packages behind it.

    A `.pth` file in a folder that another `.pth` names is not read, so the editable install stays unseen.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    (site / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel], check=True, timeout=120
    )
    return python
