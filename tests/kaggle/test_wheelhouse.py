"""The wheelhouse: what goes in, what its installer does on platforms of every kind, and what launch processes see of
it.
"""

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from helpers import SETTINGS, clean_environ, only_run
from spectrakit.distributed.topology import launch_folder
from spectrakit.kaggle.check import check_kernel
from spectrakit.kaggle.init import init_kernel
from spectrakit.kaggle.offline import installer, wheels
from spectrakit.kaggle.offline.dry_install import build_environment, find_python, without_network
from spectrakit.kaggle.offline.platform_packages import LISTS, PlatformPackages, normal_name, read_list, shipped_on
from spectrakit.kaggle.offline.wheelhouse import WheelhouseOptions, make_wheelhouse, own_requirements, staging_folder
from spectrakit.system.errors import RequestError

root = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLATFORM = {
    "torch": "2.10.0+cu128",
    "omegaconf": "2.3.0",
    "accelerate": "1.13.0",
    "packaging": "26.0",
    "ipywidgets": "8.1.5",
}
pytestmark = [
    pytest.mark.slow,  # wheels are built and environments made
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="wheelhouses are tried on Linux"),
]


def offer(shop: Path, name: str, version: str, *lines: str, tag: str = "py3-none-any", **files: bytes) -> Path:
    "A wheel in the folder `shop` that stands for an index; `lines` of its METADATA."
    base = f"{name}-{version}"
    text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n" + "".join(
        f"{line}\n" for line in lines
    )
    content = {
        f"{base}.dist-info/METADATA": text.encode(),
        f"{base}.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        f"{name}/__init__.py": f"__version__ = {version!r}\n".encode(),
        **files,
    }
    return wheels.write_wheel(shop / f"{base}-{tag}.whl", content, f"{base}.dist-info")


def stock(folder: Path) -> Path:
    "Fill the folder that is pip's only index: a kit, a Hydra, a newer accelerate; and `freeze.txt`, the platform."
    folder.mkdir()
    offer(
        folder,
        "spectrakit_train",
        "9.0",
        "Requires-Python: >=3.11",
        "Requires-Dist: torch>=2.6",
        "Requires-Dist: hydra-core<1.5,>=1.3.8",
        "Requires-Dist: accelerate>=1.13",
        "Provides-Extra: pretty",
        'Requires-Dist: paint>=1; extra == "pretty"',
        "Provides-Extra: all",
        'Requires-Dist: spectrakit-train[pretty]; extra == "all"',
    )
    offer(folder, "hydra_core", "1.3.8", "Requires-Dist: omegaconf<2.4,>=2.2", "Requires-Dist: packaging")
    offer(
        folder,
        "paint",
        "1.0",
        "Requires-Dist: brush; python_version >= '3.12'",
        "Requires-Dist: tomli; python_version < '3.12'",
    )
    for name, version in (("accelerate", "1.14.0"), ("brush", "1.0"), ("tomli", "1.0")):
        offer(folder, name, version)
    (folder / "freeze.txt").write_text("".join(f"{name}=={version}\n" for name, version in PLATFORM.items()))
    return folder


def only_index(patch: pytest.MonkeyPatch, folder: Path) -> None:
    "Let pip know of that folder alone."
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        patch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        patch.setenv(name, value)


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Path:
    "A stocked shop, and nothing else that pip could reach."
    only_index(monkeypatch, folder := stock(tmp_path / "shop"))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "A wheelhouse of such a shop with an accelerate for launch processes. Not to be changed."
    with pytest.MonkeyPatch.context() as patch:
        only_index(patch, folder := stock(tmp_path_factory.mktemp("made") / "shop"))
        return make(folder, launch=["accelerate>=1.14"])


@pytest.fixture
def house(made, tmp_path):
    "A copy of it, to be spoiled, without what is for launch processes."
    path = Path(shutil.copytree(made.path, tmp_path / "house"))
    wheels_ = [wheel for wheel in made.manifest["wheels"] if wheel["where"] == "session"]
    (path / "wheelhouse.json").write_text(json.dumps({**made.manifest, "wheels": wheels_}, indent=2))
    return replace(made, path=path)


def make(shop: Path, **options):
    "The wheelhouse of that shop, for its platform."
    rare = {"wheel": shop / "spectrakit_train-9.0-py3-none-any.whl", "check": False}
    rare |= {name: options.pop(name) for name in ("owner", "check", "wheel") if name in options}
    return make_wheelhouse(
        shop.parent / "house", **{"packages": shop / "freeze.txt", "options": WheelhouseOptions(**rare), **options}
    )


class Stage:
    "A fresh environment with `packages` as entries, in which a wheelhouse is installed."

    def __init__(self, folder: Path, **changes: str | None):
        packages = {**PLATFORM, **{name.replace("_", "-"): version for name, version in changes.items()}}
        self.folder = folder.parent  # a checkout that is the current folder would be found first
        self.python, self.site = build_environment(
            sys.executable, PlatformPackages("kaggle", HERE, "now", {n: v for n, v in packages.items() if v}), folder
        )

    def run(self, *words, **environ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.python, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            env={**clean_environ(), "PYTHONNOUSERSITE": "1", "PIP_CONFIG_FILE": os.devnull, **environ},
        )

    def install(self, house, *words, **environ) -> tuple[int, str]:
        done = self.run(house.path / "install.py", *words, **environ)
        return done.returncode, (done.stdout + done.stderr).strip()

    def packages(self) -> dict[str, str]:
        said = self.run(
            "-c",
            "import importlib.metadata as m, json; print(json.dumps({d.metadata['Name']: "
            "d.version for d in m.distributions()}))",
        )
        return {normal_name(name): version for name, version in json.loads(said.stdout).items()}


# --- the lists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["kaggle.txt", "colab.txt", "colab-3.12.txt"])
def test_a_list_has_what_the_platform_is_known_for(file):
    found = read_list(LISTS / file)
    versions = {
        "kaggle.txt": ("3.12", "2.10.0+cu128", "1.13.0", "8.1.5"),
        "colab.txt": ("3.13", "2.11.0+cu128", "1.14.0", "7.7.1"),
        "colab-3.12.txt": ("3.12", "2.11.0+cu128", "1.13.0", "7.7.1"),
    }[file]
    assert (found.minor, *(found.packages[name] for name in ("torch", "accelerate", "ipywidgets"))) == versions
    assert len(found.dated) == 10 and len(found.packages) > 600
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [Requirement(text) for several in project["optional-dependencies"].values() for text in several]
    needed = {normal_name(Requirement(text).name) for text in project["dependencies"]} | {
        normal_name(r.name) for r in extras
    }
    own = {"aim", "hydra-core", "trackio", "chemotools", "mlflow-skinny", "spectrakit-train"}
    assert needed - set(found.packages) == own | ({"optuna"} if file.startswith("colab") else set())
    assert {"omegaconf", "antlr4-python3-runtime", "packaging", "huggingface-hub", "scikit-learn", "scipy"} <= set(
        found.packages
    )


def test_a_freeze_from_the_platform_becomes_a_list(tmp_path):
    freeze = "torch==2.10.0+cu128\n# a remark\nkit @ file:///x/kit-1.2-py3-none-any.whl\n"
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parents[2] / "tools" / "platform_list.py"),
            "-",
            "--for",
            "kaggle",
            "--dated",
            "2026-11-20",
            "--out",
            str(tmp_path / "mine.txt"),
        ],
        input=freeze,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    found = read_list(tmp_path / "mine.txt")
    assert found.packages == {"torch": "2.10.0+cu128", "kit": "1.2"} and (found.minor, found.dated, found.platform) == (
        HERE,
        "2026-11-20",
        "kaggle",
    )


# --- what goes in -----------------------------------------------------------------------------------------------------


def test_just_what_is_missing_goes_in_and_the_same_twice(shop):
    house = make(shop, owner="ada")
    names = {path.name for path in house.path.iterdir()}
    assert names == {
        "spectrakit_train-9.0-py3-none-any.whl",
        "hydra_core-1.3.8-py3-none-any.whl",
        "wheelhouse.json",
        "dataset-metadata.json",
        "install.py",
    }
    first = {path.name: path.read_bytes() for path in house.path.iterdir()}
    assert json.loads(first["dataset-metadata.json"]) == {
        "title": "spectrakit wheels",
        "id": "ada/spectrakit-wheels",
        "licenses": [{"name": "apache-2.0"}],
    }
    for wheel in house.manifest["wheels"]:
        assert hashlib.sha256(first[wheel["file"]]).hexdigest() == wheel["sha256"] and wheel["bytes"] == len(
            first[wheel["file"]]
        )
    make(shop)
    assert {path.name: path.read_bytes() for path in house.path.iterdir()} == first  # the owner stays, too
    assert [path.name for path in shop.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("target, python, more", [("python==3.11", "3.11", "tomli"), ("python==3.13", "3.13", "brush")])
def test_markers_are_those_of_the_platforms_python(shop, target, python, more):
    (shop / "more.txt").write_text((shop / "freeze.txt").read_text() + f"# python: {python}\n")
    house = make(shop, extras=["all"], target=target, packages=shop / "more.txt")
    assert {w["name"] for w in house.manifest["wheels"]} == {
        "spectrakit-train",
        "hydra-core",
        "paint",
        more,
    } and house.manifest["extras"] == ["all", "pretty"]


def test_a_wheel_with_code_in_it_serves_its_python_alone(shop, tmp_path):
    (
        offer(shop, "paint", "2.0", tag="cp313-cp313-manylinux2014_x86_64"),
        offer(shop, "paint", "3.0", tag="cp310-cp310-manylinux2014_x86_64"),
    )
    house = make(shop, extras=["pretty"], target="python==3.13", check=True)
    assert house.manifest["python"] == ["3.13"] and [
        w["python"] for w in house.manifest["wheels"] if w["name"] == "paint"
    ] == [["3.13"]]
    if HERE != "3.13":
        assert any("importing spectrakit" in line for line in house.dry_install.untried)
        status, said = Stage(tmp_path / "stage").install(house)
        assert status == 2 and said.startswith(
            f"spectrakit: These wheels are for Python 3.13, and this is Python {HERE}."
        )


def test_too_many_files_for_a_dataset(shop):
    many = [f"Requires-Dist: part{n}" for n in range(60)]
    for n in range(60):
        offer(shop, f"part{n}", "1.0")
    offer(shop, "paint", "4.0", *many)
    with pytest.raises(RequestError, match="66 files; a Kaggle data set shows 50"):
        make(shop, extras=["pretty"])
    assert not (shop.parent / "house").exists()


def test_the_kits_own_needs_with_nested_extras(shop):
    needs, extras = own_requirements(shop / "spectrakit_train-9.0-py3-none-any.whl", shipped_on("kaggle")[0], ["all"])
    assert [n.name for n in needs] == ["torch", "hydra-core", "accelerate", "paint"] and extras == ["all", "pretty"]


# --- nothing half-written ---------------------------------------------------------------------------------------------


def test_what_cannot_be_made_leaves_the_folder_as_it_was(shop, monkeypatch):
    house = make(shop)
    before = {path.name: path.read_bytes() for path in house.path.iterdir()}
    (shop / "hydra_core-1.3.8-py3-none-any.whl").unlink()
    with pytest.raises(RequestError, match="There is no wheel of hydra-core"):
        make(shop)
    monkeypatch.delenv("PIP_NO_INDEX"), monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(RequestError, match="The package index cannot be reached"):
        make(shop)
    assert {path.name: path.read_bytes() for path in house.path.iterdir()} == before
    assert [path.name for path in shop.parent.iterdir() if path.name.startswith(".")] == []


def test_a_folder_with_something_else_in_it_and_one_that_cannot_be_written(shop, tmp_path, read_only):
    house = make(shop)
    (house.path / "model.pt").write_bytes(b"mine")
    with pytest.raises(RequestError, match=r"model\.pt\. Nothing was changed"):
        make(shop)
    assert (house.path / "model.pt").read_bytes() == b"mine"
    (tmp_path / "frozen").mkdir()
    with pytest.raises(RequestError, match="frozen' cannot be written"):
        staging_folder(read_only(tmp_path / "frozen") / "house")


def test_an_installation_that_does_not_work_is_no_wheelhouse(shop):
    # on the stage spectrakit would be imported, and this one has no modules
    (shop / "freeze.txt").write_text((shop / "freeze.txt").read_text() + f"# python: {HERE}\n")
    with pytest.raises(RuntimeError, match="cannot be installed"):
        make(shop, check=True)
    assert not (shop.parent / "house").exists()


# --- the installer on platforms of every kind -------------------------------------------------------------------------


def test_it_installs_what_is_missing_and_then_nothing(house, tmp_path):
    stage = Stage(tmp_path / "stage")
    before = stage.packages()
    assert stage.install(house) == (0, "spectrakit: installed spectrakit-train 9.0, hydra-core 1.3.8")
    assert stage.packages() == {**before, "spectrakit-train": "9.0", "hydra-core": "1.3.8"}
    assert stage.install(house) == (0, "spectrakit: nothing to install: spectrakit-train 9.0 is here")
    called = stage.run("-c", f"import runpy; print(runpy.run_path({str(house.path / 'install.py')!r})['install']())")
    assert called.stdout.splitlines()[-1] == "[]", called


def test_another_version_of_the_kit_is_replaced(house, tmp_path):
    stage = Stage(tmp_path / "stage")
    assert stage.install(house)[0] == 0
    new, manifest = (
        offer(house.path, "spectrakit_train", "9.1", "Requires-Dist: hydra-core>=1.3.8"),
        json.loads((house.path / "wheelhouse.json").read_text()),
    )
    manifest["wheels"][0] |= {
        "file": new.name,
        "version": "9.1",
        "sha256": hashlib.sha256(new.read_bytes()).hexdigest(),
    }
    (house.path / "wheelhouse.json").write_text(json.dumps(manifest))
    assert (
        stage.install(house) == (0, "spectrakit: installed spectrakit-train 9.1")
        and stage.packages()["spectrakit-train"] == "9.1"
    )


@pytest.mark.parametrize(
    "there, told",
    [
        ({"hydra_core": "1.2.0"}, "hydra-core 1.2.0 is here, and spectrakit-train 9.0 needs hydra-core<1.5,>=1.3.8"),
        ({"hydra_core": "1.3.2"}, "hydra-core 1.3.2 is here, and spectrakit-train 9.0 needs hydra-core<1.5,>=1.3.8"),
        ({"omegaconf": "2.1.2"}, "omegaconf 2.1.2 is here, and hydra-core 1.3.8 needs omegaconf<2.4,>=2.2"),
        ({"omegaconf": "2.4.0.dev11"}, "omegaconf 2.4.0.dev11 is here, and hydra-core 1.3.8 needs omegaconf<2.4,>=2.2"),
        ({"omegaconf": None}, "omegaconf is missing, and hydra-core 1.3.8 needs omegaconf<2.4,>=2.2"),
    ],
)
def test_another_hydra_or_omegaconf_is_told_before_anything_is_changed(house, tmp_path, there, told):
    stage = Stage(tmp_path / "stage", **there)
    before = stage.packages()
    status, said = stage.install(house)
    assert status == 2 and said.startswith(f"spectrakit: {told}. Nothing was installed") and said.count("\n") == 0
    assert stage.packages() == before
    if there == {"hydra_core": "1.3.2"}:  # a person who knows better
        assert stage.install(house, "--anyway")[0] == 0 and stage.packages() == {**before, "spectrakit-train": "9.0"}


def test_a_hydra_that_fits_is_left_alone(house, tmp_path):
    stage = Stage(tmp_path / "stage", hydra_core="1.4.0")
    assert (
        stage.install(house) == (0, "spectrakit: installed spectrakit-train 9.0")
        and stage.packages()["hydra-core"] == "1.4.0"
    )


def test_a_damaged_folder_installs_nothing(house, tmp_path):
    stage = Stage(tmp_path / "stage")
    before, file = stage.packages(), house.path / "hydra_core-1.3.8-py3-none-any.whl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"x")
    assert stage.install(house)[0] == 2 and "hydra_core-1.3.8-py3-none-any.whl is damaged" in stage.install(house)[1]
    file.unlink()
    assert "hydra_core-1.3.8-py3-none-any.whl is missing" in stage.install(house)[1]
    file.write_bytes(whole)
    manifest = house.path / "wheelhouse.json"
    text = manifest.read_text()
    manifest.write_text(text[:-20])
    status, said = stage.install(house)
    assert status == 2 and "wheelhouse.json is damaged" in said and stage.packages() == before
    manifest.write_text(text)
    shutil.copy(
        file, house.path / "hydra_core-1.3.8-cp310-cp310-manylinux2014_x86_64.whl"
    )  # a stranger among them is nobody's business
    assert stage.install(house) == (0, "spectrakit: installed spectrakit-train 9.0, hydra-core 1.3.8")


def test_a_wheel_for_another_python_in_the_manifest(house, tmp_path):
    stage = Stage(tmp_path / "stage")
    (house.path / "hydra_core-1.3.8-py3-none-any.whl").rename(
        house.path / "hydra_core-1.3.8-cp310-cp310-manylinux2014_x86_64.whl"
    )
    manifest = house.path / "wheelhouse.json"
    manifest.write_text(
        manifest.read_text().replace(
            "hydra_core-1.3.8-py3-none-any", "hydra_core-1.3.8-cp310-cp310-manylinux2014_x86_64"
        )
    )
    status, said = stage.install(house)
    assert (
        status == 2
        and "is for another Python or another machine" in said
        and "spectrakit-train" not in stage.packages()
    )


def test_packages_that_cannot_be_written(house, tmp_path, read_only):
    stage = Stage(tmp_path / "stage")
    read_only(stage.site)
    status, said = stage.install(house)
    assert status == 2 and "cannot be written, so nothing can be installed there" in said and said.count("\n") == 0


def test_a_python_that_is_too_old_says_so(house):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installer, "sys", SimpleNamespace(version_info=(3, 10, 4)))
        with pytest.raises(installer.Refused, match=r"this is Python 3\.10\. spectrakit needs Python 3\.11 or newer"):
            installer.check_python(house.manifest)
    for minor in ("3.8", "3.9", "3.10"):
        if (python := find_python(minor)) is None:
            continue
        done = subprocess.run([python, house.path / "install.py"], capture_output=True, text=True)
        assert done.returncode == 2 and f"and this is Python {minor}" in done.stderr, done
    compile((house.path / "install.py").read_text(), "install.py", "exec", dont_inherit=True)
    import ast

    ast.parse((house.path / "install.py").read_text(), feature_version=(3, 8))


def test_a_folder_behind_a_link_is_the_folder(shop, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    house = make_wheelhouse(
        tmp_path / "out",
        packages=shop / "freeze.txt",
        options=WheelhouseOptions(wheel=shop / "spectrakit_train-9.0-py3-none-any.whl", check=False),
    )
    assert (
        house.path == tmp_path / "disk"
        and (tmp_path / "out").is_symlink()
        and (tmp_path / "out" / "install.py").is_file()
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("out", [".", "", "../here"])
def test_the_folder_that_one_is_in_does_not_go(out, shop, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(RequestError, match="is the current folder"):
        make_wheelhouse(out, packages=shop / "freeze.txt", options=WheelhouseOptions(check=False))
    assert Path.cwd() == tmp_path / "here" and list(Path.cwd().iterdir()) == []


# --- for launch processes ---------------------------------------------------------------------------------------------


def test_a_newer_accelerate_is_for_launch_processes_alone(made, tmp_path):
    house, stage = made, Stage(tmp_path / "stage")
    assert [(w["name"], w["where"]) for w in house.manifest["wheels"]] == [
        ("spectrakit-train", "session"),
        ("hydra-core", "session"),
        ("accelerate", "launch"),
    ]
    status, said = stage.install(house)
    folder = tmp_path / "stage" / "share" / "spectrakit" / f"launch-{HERE}"
    assert (
        status == 0
        and said
        == "spectrakit: installed spectrakit-train 9.0, hydra-core 1.3.8, accelerate 1.14.0 for launch processes, "
        f"in {folder}"
    )
    assert stage.packages()["accelerate"] == "1.13.0" and (folder / "accelerate" / "__init__.py").is_file()
    assert "nothing to install" in stage.install(house)[1]
    other = tmp_path / "elsewhere" / "launch"
    assert stage.install(house, SPECTRAKIT_LAUNCH_PATH=str(other))[0] == 0 and (other / "accelerate").is_dir()
    assert [path.name for path in other.parent.iterdir()] == ["launch"]


def test_what_the_platform_has_is_not_taken_once_more(shop, made, tmp_path):
    (shop / "colab.txt").write_text(
        (shop / "freeze.txt").read_text().replace("accelerate==1.13.0", "accelerate==1.14.0")
    )
    house = make(shop, launch=["accelerate>=1.14"], packages=shop / "colab.txt")
    assert len(house.manifest["wheels"]) == 2 and "has accelerate 1.14.0: nothing is added" in house.notes[0]
    assert "nothing to install" not in Stage(tmp_path / "stage", accelerate="1.15.0").install(made)[1]
    assert not (tmp_path / "stage" / "share" / "spectrakit").exists()  # the session's own is newer


def test_what_the_platform_has_none_of_is_for_the_session_too(shop, tmp_path):
    "A notebook's cell imports it: that is what `spectrakit kaggle check` sends a person here for."
    offer(shop, "palette", "1.0", "Requires-Dist: brush")
    house = make(shop, launch=["palette>=1", "accelerate>=1.14"])
    where = {w["name"]: (w["where"], w["why"]) for w in house.manifest["wheels"]}
    assert (
        where["palette"] == ("session", "requested: palette>=1; kaggle has none") and where["accelerate"][0] == "launch"
    )
    assert where["brush"] == ("session", "palette 1.0 needs brush; kaggle has none")
    stage = Stage(tmp_path / "stage")
    status, said = stage.install(house)
    assert status == 0 and "palette 1.0" in said.partition("for launch")[0] and stage.packages()["palette"] == "1.0"
    init_kernel(kernel := tmp_path / "elsewhere" / "my kernel", owner="ada")
    (kernel / "my-kernel.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": "import palette"}]}))
    assert [f.level for f in check_kernel(kernel).findings if f.about == "imports"] == ["error"]
    assert [f.level for f in check_kernel(kernel, wheels=house.path).findings if f.about == "imports"] == ["ok"]
    assert "nothing to install" in stage.install(house)[1]


def test_installer_and_launcher_look_in_the_same_place(tmp_path, monkeypatch):
    monkeypatch.delenv("SPECTRAKIT_LAUNCH_PATH", raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    Path(installer.launch_folders()[0]).mkdir(parents=True)
    assert launch_folder({}) == Path(installer.launch_folders()[0])


@pytest.mark.slow
def test_launch_processes_see_it_and_the_notebook_does_not(tmp_path, run_cli):
    import accelerate

    folder = tmp_path / "launch"
    (folder / "accelerate-99.0.dist-info").mkdir(parents=True)
    (folder / "accelerate-99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: accelerate\nVersion: 99.0\n"
    )
    (folder / "accelerate").symlink_to(Path(accelerate.__file__).parent)
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path.append({str(root / 'tests')!r})\nimport tasks\n"
        "class Looks(tasks.Submitting):\n    def model(self, cfg):\n        import accelerate\n        "
        "print('SEEN', accelerate.__file__)\n        return super().model(cfg)\n"
    )
    done = run_cli(
        "train",
        "mine.py:Looks",
        *SETTINGS,
        "trainer.max_epochs=1",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        env={"SPECTRAKIT_LAUNCH_PATH": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    for rank in (0, 1):
        assert f"SEEN {folder}/accelerate/__init__.py" in (run / "logs" / f"rank-{rank}.log").read_text()
    said = json.loads((run / "environment.json").read_text())
    assert (
        said["launch"]["packages"] == {"accelerate": "99.0"}
        and "their own Accelerate 99.0" in said["launch"]["reasons"]["launcher"]
    )
    assert said["versions"]["accelerate"] != "99.0"
    wrong = run_cli(
        "train",
        "mine.py:Looks",
        *SETTINGS,
        "trainer.accelerator=cpu",
        env={"SPECTRAKIT_LAUNCH_PATH": str(tmp_path / "gone")},
    )
    assert wrong.returncode == 2 and "is not a folder" in wrong.stderr


# --- the real kit, the real index -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kit(tmp_path_factory) -> Path:
    "The kit's own wheel, built from this checkout."
    return wheels.own_wheel(tmp_path_factory.mktemp("kit"))


@pytest.mark.slow
def test_for_kaggle_two_wheels_are_enough(kit, tmp_path, run_cli):
    done = run_cli("wheelhouse", "out", "--wheel", kit, "--owner", "ada", "--extras", "tensorboard,console")
    if "index cannot be reached" in done.stderr:
        pytest.skip("there is no network")
    assert done.returncode == 0, done.stderr
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert [name.partition("-")[0] for name in files] == [
        "dataset",
        "hydra_core",
        "install.py",
        "spectrakit_train",
        "wheelhouse.json",
    ]
    assert f"with Python {HERE}" in done.stdout and "importing spectrakit and composing a profile" in done.stdout
    assert "not tried: the platform's own packages" in done.stdout and "kaggle datasets create -p" in done.stdout
    if without_network():
        assert "no network" in done.stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_machine_without_omegaconf_gets_the_package_that_has_no_wheel(kit, tmp_path):
    there, told = shipped_on("kaggle")[0].packages, wheels.metadata_of(kit)
    names = {normal_name(Requirement(text).name) for text in told.get_all("Requires-Dist")} & set(there) | {"packaging"}
    (tmp_path / "freeze.txt").write_text(
        "".join(f"{name}=={there[name]}\n" for name in sorted(names) if there[name]) + f"# python: {HERE}\n"
    )
    try:
        house = make_wheelhouse(
            tmp_path / "out", packages=tmp_path / "freeze.txt", options=WheelhouseOptions(wheel=kit)
        )
    except RequestError as error:
        if "index cannot be reached" in str(error):
            pytest.skip("there is no network")
        raise
    assert {w["name"] for w in house.manifest["wheels"]} == {
        "spectrakit-train",
        "hydra-core",
        "omegaconf",
        "antlr4-python3-runtime",
    }
    assert (
        all(path.suffix in (".whl", ".json", ".py") for path in house.path.iterdir()) and not house.dry_install.problems
    )


def test_the_kit_is_made_a_wheel_again_where_it_is_installed_without_its_source(kit, tmp_path):
    stage = Stage(tmp_path / "stage")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", stage.python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", kit], check=True, timeout=120)
    code = (
        "import sys; sys.path += sys.argv[2:]; from pathlib import Path; "
        "from spectrakit.kaggle.offline.wheels import own_wheel; print(own_wheel(Path(sys.argv[1])))"
    )
    behind = [entry for entry in sys.path if entry.endswith("-packages")]
    done = stage.run("-c", code, tmp_path, *behind)
    assert done.returncode == 0, done.stderr
    again, first = (zipfile.ZipFile(path) for path in (done.stdout.strip(), kit))
    assert set(again.namelist()) == set(first.namelist()) and all(
        again.read(name) == first.read(name) for name in first.namelist() if not name.endswith("/RECORD")
    )
    changed = stage.site / "spectrakit" / "system" / "units.py"
    changed.write_text(changed.read_text() + "\n# mine\n")
    done = stage.run("-c", code, tmp_path, *behind)
    assert "spectrakit/system/units.py was changed after spectrakit was installed" in done.stderr


@pytest.mark.parametrize(
    "words, told",
    [
        ([], "the following arguments are required: OUT"),
        (["out", "--for", "kagle"], "Did you mean 'kaggle'?"),
        (["out", "--extras", "demos"], "Did you mean 'demo'?"),
        (["out", "--for", "python==3.8"], "does not run on Python 3.8"),
        (["out", "--packages", "nowhere.txt"], "cannot be read"),
        (["out", "--owner", "a b"], "not a Kaggle user name"),
        (["out", "--with", "ipywidgets>=8"], "cannot be added"),
        (["out", "--wheel", "nowhere.whl"], "There is no wheel"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_makes_nothing(words, told, here, capsys):
    from spectrakit.cli.main import main

    assert main(["wheelhouse", *words]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1 and list(here.iterdir()) == []


def test_the_cell_installs_from_an_attached_folder(house, tmp_path):
    "And from no other: a stranger's beside it, with an installer of its own, stays as it is."
    stage, inputs = Stage(tmp_path / "stage"), tmp_path / "input"
    shutil.copytree(house.path, inputs / "datasets" / "ada" / "spectrakit-wheels")
    strange = inputs / "spectrakit-wheels"
    shutil.copytree(house.path, strange)
    (strange / "wheelhouse.json").write_text((strange / "wheelhouse.json").read_text() + "\n")
    (strange / "install.py").write_text(f"open({str(tmp_path / 'EXECUTED')!r}, 'w')")
    cell = house.cell.replace("/kaggle/input", str(inputs))
    done = stage.run("-c", cell)
    assert (done.returncode, stage.packages().get("spectrakit-train")) == (0, "9.0"), done.stderr
    assert not (tmp_path / "EXECUTED").exists()
    again = stage.run(
        "-c", house.cell.replace(house.cell.split('SHA256 = "')[1][:64], "").replace("/kaggle", "/nowhere")
    )
    assert "there is no spectrakit-wheels/wheelhouse.json" in again.stderr  # this kit has no package of that name
    found = runpy.run_path(str(house.path / "install.py"))
    assert callable(found["install"]) and found["launch_folders"]() == installer.launch_folders()
