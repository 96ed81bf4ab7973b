"""The wheel: what is in it, what it asks for, and that it works where neither the checkout nor nbdev is."""

import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import sync
from spectrakit.kaggle.offline.wheels import write_wheel
from wheel_env import built_wheel, environment_with

pytestmark = pytest.mark.slow
root = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    "A wheel of this tree."
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    "The Python of a fresh environment that holds the wheel and sees this environment's packages behind it."
    return environment_with(wheel, tmp_path_factory.mktemp("environment") / "environment")


def run(python: Path, cwd: Path, env: dict, *words) -> subprocess.CompletedProcess:
    "Run the environment's Python from a folder that is not the checkout."
    return subprocess.run([python, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


def test_the_wheel_holds_the_package_and_its_profiles_and_nothing_else(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    information = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"spectrakit", information}
    package = {name.as_posix() for name in sync.tree_files() if name.parts[0] == "spectrakit"}
    assert package == {name for name in names if name.startswith("spectrakit/")}
    assert "spectrakit/profiles/train.yaml" in names and any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_asks_for_no_upper_caps_and_no_nbdev(wheel):
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(name).decode())
    needs = {r.name: r for r in map(Requirement, metadata.get_all("Requires-Dist")) if r.marker is None}
    assert str(needs["torch"].specifier) == ">=2.6" and str(needs["accelerate"].specifier) == ">=1.13"
    capped = {name for name, need in needs.items() if any(s.operator not in (">=", "!=") for s in need.specifier)}
    assert capped == {"hydra-core"}  # the compose API of 1.5 is not known yet, and no platform ships Hydra itself
    assert not set(needs) & {"nbdev", "fastcore"} and metadata["License-Expression"] == "Apache-2.0"


def test_the_installed_wheel_is_the_one_imported(installed, tmp_path, clean_env):
    done = run(installed, tmp_path, clean_env, "-c", "import spectrakit; print(spectrakit.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.parent.parent)


def test_the_command_of_the_wheel_helps(installed, tmp_path, clean_env):
    done = run(installed, tmp_path, clean_env, installed.with_name("spectrakit"), "--help")
    assert done.returncode == 0 and "train" in done.stdout, done.stderr


def test_the_profiles_of_the_wheel_compose(installed, tmp_path, clean_env):
    code = (
        "from spectrakit.config.compose import compose\n"
        "print(compose('trainer=defaults', 'trainer.max_epochs=3').trainer.max_epochs)"
    )
    done = run(installed, tmp_path, clean_env, "-c", code)
    assert done.returncode == 0 and done.stdout.strip() == "3", done.stderr


def test_no_exported_module_of_the_wheel_needs_nbdev(installed, tmp_path, clean_env):
    # None in sys.modules makes an import of that name fail
    code = (
        "import sys, pkgutil, importlib, spectrakit\n"
        "sys.modules.update(dict.fromkeys(['nbdev', 'fastcore', 'execnb']))\n"
        "names = [m.name for m in pkgutil.walk_packages(spectrakit.__path__, 'spectrakit.')]\n"
        "names.remove('spectrakit.__main__') if 'spectrakit.__main__' in names else None\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))"
    )
    done = run(installed, tmp_path, clean_env, "-c", code)
    assert done.returncode == 0 and int(done.stdout) > 0, done.stderr


def test_another_distribution_in_the_same_folder_is_told(installed, tmp_path, clean_env):
    "Last: it writes into the environment of the tests above. pyspectrakit on PyPI brings a package of this name."
    assert "also here" not in run(installed, tmp_path, clean_env, "-m", "spectrakit", "info").stdout
    other = write_wheel(
        tmp_path / "pyspectrakit-1.9.6-py3-none-any.whl",
        {
            "spectrakit/spectra.py": b"",
            "pyspectrakit-1.9.6.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pyspectrakit\nVersion: 1.9.6\n",
            "pyspectrakit-1.9.6.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        },
        "pyspectrakit-1.9.6.dist-info",
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", installed]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", other], check=True, timeout=120)
    done = run(installed, tmp_path, clean_env, "-m", "spectrakit", "info")
    assert re.search(r"also here +pyspectrakit 1\.9\.6.*pip uninstall pyspectrakit", done.stdout), done.stderr
