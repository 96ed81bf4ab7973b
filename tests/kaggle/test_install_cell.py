"""The first cell of a notebook: what it installs, what it refuses, and that nothing runs before it was compared."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from spectrakit.kaggle.check import check_kernel
from spectrakit.kaggle.client import LocalInputs, push_kernel
from spectrakit.kaggle.init import KernelCode, KernelSources, init_kernel
from spectrakit.kaggle.offline import installer
from spectrakit.kaggle.offline.install_cell import INSTALL_CELL, install_cell, list_sha256, named_sha256, naming

INSTALLER = "import pathlib\ndef install(sha256): pathlib.Path(__file__).with_name('installed').write_text(sha256)\n"


def wheelhouse(folder: Path, installer: str = INSTALLER, **entries) -> Path:
    "A folder that looks like a wheelhouse; `entries` of its list."
    folder.mkdir(parents=True)
    (folder / "install.py").write_text(installer)
    listed = {"installer": hashlib.sha256(installer.encode()).hexdigest(), **entries}
    (folder / "wheelhouse.json").write_text(json.dumps(listed))
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs the cell where the kit is missing, and /kaggle/input and Drive are folders of the test: what
    pip was asked for. `network`: what the user wrote down; `kit`: where a package of the kit's name is.
    """

    def run(cell: str = INSTALL_CELL, network: str = "", kit: Path | None = None) -> list[list[str]]:
        asked = []
        monkeypatch.setattr(subprocess, "run", lambda words, check: asked.append(words[1:]) or SimpleNamespace())
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: kit and SimpleNamespace(origin=str(kit)))
        text = cell.replace("/kaggle/input", str(tmp_path / "input")).replace("/content/drive", str(tmp_path / "drive"))
        exec(text.replace('NETWORK = ""', f"NETWORK = {network!r}"), {})
        return asked

    return run


def refusal(run, *words, **keywords) -> str:
    with pytest.raises(ImportError) as error:
        run(*words, **keywords)
    return str(error.value)


PLACES = [
    "input/spectrakit-wheels",
    "input/datasets/ada/spectrakit-wheels",
    "input/notebooks/ada/make/spectrakit-wheels",
    "drive/MyDrive/spectrakit-wheels",
]


@pytest.mark.parametrize("place", PLACES)
def test_the_wheels_that_are_named_are_installed_wherever_they_are_mounted(run, tmp_path, place):
    house = wheelhouse(tmp_path / place)
    assert run(naming(INSTALL_CELL, list_sha256(house)), network="spectrakit-train") == []
    assert (house / "installed").read_text() == list_sha256(house)


@pytest.mark.parametrize("place", PLACES)
def test_wheels_that_the_notebook_does_not_name_are_not_run(run, tmp_path, place):
    house = wheelhouse(tmp_path / place)
    line = f'write into this cell: SHA256 = "{list_sha256(house)}"'
    assert "SHA256 names no wheels" in (told := refusal(run)) and line in told
    other = naming(INSTALL_CELL, "0" * 64)
    assert "is not the list of wheels that SHA256 names" in (told := refusal(run, other)) and line in told
    assert not (house / "installed").exists()


def test_a_strangers_data_set_of_the_same_name_changes_nothing(run, tmp_path):
    "It may come first in the order of names, and its list may be a copy: its installer is another."
    ours = wheelhouse(tmp_path / "input" / "datasets" / "bob" / "spectrakit-wheels", kit="1")
    strange = wheelhouse(tmp_path / "input" / "datasets" / "ada" / "spectrakit-wheels", kit="2")
    run(naming(INSTALL_CELL, list_sha256(ours)))
    assert (ours / "installed").exists() and not (strange / "installed").exists()
    (ours / "installed").unlink()
    (strange / "wheelhouse.json").write_bytes((ours / "wheelhouse.json").read_bytes())
    (strange / "install.py").write_text("raise SystemExit('a stranger was here')")
    (ours / "install.py").write_text("raise SystemExit('a stranger was here')")
    assert "install.py is not the one that is listed" in refusal(run, naming(INSTALL_CELL, list_sha256(ours)))


def test_an_installer_elsewhere_is_not_looked_at(run, tmp_path):
    for name in ("tools", "wheels", "spectrakit-wheels-2"):
        wheelhouse(tmp_path / "input" / name)
    assert "there is no spectrakit-wheels/wheelhouse.json" in refusal(run)
    assert not list(tmp_path.rglob("installed"))


@pytest.mark.parametrize(
    "listed", ["", "{", "[]", "null", '{"installer": 1}', '{"installer": null}', "\x00", "[" * 9999]
)
def test_a_list_that_is_none_is_refused(run, tmp_path, listed):
    house = wheelhouse(tmp_path / "input" / "spectrakit-wheels")
    (house / "wheelhouse.json").write_text(listed)
    assert "SHA256 names no wheels" in refusal(run)
    with pytest.raises(Exception):  # noqa: B017 - whoever names such a list has damaged it: any end, but nothing runs
        run(naming(INSTALL_CELL, list_sha256(house)))
    assert not (house / "installed").exists()


def test_the_network_is_asked_only_for_what_the_user_wrote(run, tmp_path):
    assert "say in NETWORK what pip is to fetch" in refusal(run)
    assert run(network="spectrakit-train[demo]") == [["-m", "pip", "install", "--quiet", "spectrakit-train[demo]"]]
    wheelhouse(tmp_path / "input" / "spectrakit-wheels")
    assert "SHA256 names no wheels" in refusal(run, network="spectrakit-train"), "attached wheels come first"


def test_another_package_of_the_name_is_told_and_the_kit_is_left_alone(run, tmp_path):
    strange = tmp_path / "site" / "spectrakit" / "__init__.py"
    strange.parent.mkdir(parents=True)
    strange.write_text("raise SystemExit('a stranger was here')")
    assert f"{strange} is another package named spectrakit" in (told := refusal(run, kit=strange))
    assert "pip uninstall pyspectrakit" in told
    assert run(kit=Path(installer.__file__).parents[2] / "__init__.py") == []


# --- the hash is written in -------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path) -> tuple[Path, Path]:
    "Two wheelhouses that do not lie beside a kernel."
    return tuple(wheelhouse(tmp_path / "far" / name / "wheels", kit=name) for name in ("first", "second"))


def code_of(kernel: Path) -> str:
    return next(p for p in kernel.iterdir() if p.suffix in (".py", ".ipynb")).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["notebook", "script", "utility"])
def test_a_new_kernel_names_the_wheels_that_are_given_or_lie_beside(tmp_path, monkeypatch, made, kind):
    monkeypatch.chdir(tmp_path)
    first, second = made

    def kernel(name: str, **sources) -> Path:
        init_kernel(tmp_path / name, owner="ada", code=KernelCode(kind), sources=KernelSources(**sources))
        return tmp_path / name

    assert named_sha256(code_of(kernel("named", wheels=first))) == list_sha256(first)
    assert named_sha256(code_of(kernel("unnamed"))) == ""
    wheelhouse(tmp_path / "wheels", kit="beside")
    assert named_sha256(code_of(kernel("beside"))) == list_sha256(tmp_path / "wheels")
    assert named_sha256(code_of(kernel("given", wheels=second))) == list_sha256(second)
    assert compile(naming(INSTALL_CELL, list_sha256(first)), "cell", "exec")


def test_the_data_sets_own_name_goes_into_the_cell(tmp_path, made):
    (made[0] / "dataset-metadata.json").write_text('{"id": "ada/my-wheels"}')
    init_kernel(tmp_path / "kernel", owner="ada", sources=KernelSources(wheels=made[0]))
    assert 'WHEELS = \\"my-wheels\\"' in code_of(tmp_path / "kernel")


def about_wheels(kernel: Path, wheels: Path | None) -> list[tuple[str, str]]:
    return [(f.level, f.text) for f in check_kernel(kernel, wheels=wheels).findings if f.about == "wheels"]


def test_the_check_compares_and_the_push_writes(tmp_path, monkeypatch, made, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = made
    for house in made:
        (house / "x-1-py3-none-any.whl").write_bytes(b"PK\5\6" + bytes(18))  # an empty archive
    kernel = tmp_path / "kernel"
    init_kernel(kernel, owner="ada")
    ((level, told),) = about_wheels(kernel, None)
    assert level == "warning" and "push with --wheels OUT" in told
    ((level, told),) = about_wheels(kernel, first)
    assert level == "ok" and f"a push writes in those of {first}" in told

    client = tmp_path / "bin" / "kaggle"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\necho Kernel version 1 successfully pushed.  Please check progress at https://k\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(client.parent), prepend=":")
    push_kernel(kernel, inputs=LocalInputs(wheels=first), anyway=True)
    assert named_sha256(code_of(kernel)) == list_sha256(first) and "it names the wheels of" in capsys.readouterr().out
    assert about_wheels(kernel, first) == [("ok", "it installs only the wheels that it names")]

    ((level, told),) = about_wheels(kernel, second)
    assert level == "error" and f"push with --wheels {second}" in told
    push_kernel(kernel, inputs=LocalInputs(wheels=second), anyway=True, dry_run=True)
    assert named_sha256(code_of(kernel)) == list_sha256(first), "a dry run writes nothing"
    push_kernel(kernel, inputs=LocalInputs(wheels=second), anyway=True)
    assert named_sha256(code_of(kernel)) == list_sha256(second)
    json.loads(code_of(kernel))


def test_the_older_cell_is_named(tmp_path):
    init_kernel(tmp_path / "kernel", owner="ada")
    file = next((tmp_path / "kernel").glob("*.ipynb"))
    told = json.loads(file.read_text())
    cell = next(cell for cell in told["cells"] if cell["id"] == "install")
    cell["source"] = ["import runpy\n", 'runpy.run_path(str(houses[0]))["install"]()']
    file.write_text(json.dumps(told))
    ((level, said),) = about_wheels(tmp_path / "kernel", None)
    assert level == "warning" and "runs the install.py of any data set" in said


# --- whose name it is -------------------------------------------------------------------------------------------------


def test_a_distribution_that_brings_the_same_package_is_refused_before_anything_changes(tmp_path):
    site = tmp_path / "site"
    info = site / "pyspectrakit-1.9.6.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspectrakit\nVersion: 1.9.6\n")
    (info / "RECORD").write_text("spectrakit/__init__.py,,\nspectrakit/x.py,,\n")
    with pytest.raises(
        installer.Refused, match=r"pyspectrakit 1.9.6 brings another package named spectrakit.*pip uninstall py"
    ):
        installer.check_name_is_free([str(site)])
    (info / "RECORD").write_text("spectrakit_extras/__init__.py,,\nother/spectrakit/x.py,,\n")
    installer.check_name_is_free([str(site)])


# --- Colab ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def colab(run, tmp_path, monkeypatch):
    """A function that runs the cell on a machine of Colab, whose Drive stays; what was asked of the person.

    `chosen`: the folder whose files are chosen in the dialog; None: it is closed. `drive`: whether there is one.
    """

    def colab(cell: str = INSTALL_CELL, chosen: Path | None = None, drive: bool = True, **words) -> list[str]:
        asked = []

        def mount(place: str) -> None:
            asked.append("Drive")
            if not drive:
                raise NotImplementedError("Mounting drive is unsupported in this environment.")
            Path(place, "MyDrive").mkdir(parents=True, exist_ok=True)

        def upload() -> dict[str, bytes]:
            asked.append("files")
            return {file.name: file.read_bytes() for file in chosen.iterdir()} if chosen else {}

        module = ModuleType("google.colab")
        module.drive, module.files = SimpleNamespace(mount=mount), SimpleNamespace(upload=upload)
        monkeypatch.setitem(sys.modules, "google.colab", module)
        monkeypatch.chdir(tmp_path)
        shell = "def get_ipython(): return '<google.colab._shell.Shell object>'\n"
        run(shell + cell.replace('Path("/content/', f'Path("{tmp_path}/'), **words)
        return asked

    return colab


def test_drive_is_mounted_before_it_is_looked_into_and_only_the_first_machine_asks_for_the_wheels(colab, tmp_path):
    ours = wheelhouse(tmp_path / "home" / "wheels")
    kept = tmp_path / "drive" / "MyDrive" / "spectrakit-wheels"
    assert colab(chosen=ours) == ["Drive", "files"]
    assert (kept / "installed").read_text() == list_sha256(ours)
    (kept / "installed").unlink()
    assert colab() == [], "a mounted Drive is not mounted again"
    assert (kept / "installed").read_text() == list_sha256(ours)


def test_wheels_on_drive_that_nobody_has_chosen_here_are_not_run(colab, tmp_path):
    kept = wheelhouse(tmp_path / "drive" / "MyDrive" / "spectrakit-wheels")
    with pytest.raises(ImportError, match="SHA256 names no wheels"):
        colab()
    assert colab(naming(INSTALL_CELL, list_sha256(kept))) == []
    (kept / "installed").unlink()
    with pytest.raises(ImportError, match="is not the list of wheels that SHA256 names"):
        colab(naming(INSTALL_CELL, "0" * 64))
    assert not (kept / "installed").exists()


def test_wheels_that_were_changed_after_they_were_chosen_are_refused(colab, tmp_path):
    colab(chosen=wheelhouse(tmp_path / "home" / "wheels"))
    kept = tmp_path / "drive" / "MyDrive" / "spectrakit-wheels"
    (kept / "installed").unlink()
    (kept / "wheelhouse.json").write_text("{}")
    with pytest.raises(ImportError, match="is not the list of wheels that SHA256 names"):
        colab()
    assert not (kept / "installed").exists()


def test_without_drive_the_dialog_comes_and_a_closed_dialog_is_a_sentence(colab, tmp_path, capsys):
    with pytest.raises(ImportError, match="there is no spectrakit-wheels/wheelhouse.json. .*on Colab choose its files"):
        colab(drive=False)
    assert "Drive is not mounted" in capsys.readouterr().out
    assert colab(chosen=wheelhouse(tmp_path / "home" / "wheels"), drive=False) == ["Drive", "files"]
    assert (tmp_path / "spectrakit-wheels" / "installed").exists()


def test_a_release_that_is_named_needs_neither_drive_nor_dialog(colab):
    assert colab(network="spectrakit-train @ https://host/x.whl") == []


def test_a_release_is_named_by_the_one_address_and_by_no_other():
    assert install_cell("", "1.0") == INSTALL_CELL
    cell = install_cell("https://host/ada/kit/", "1.2.0")
    wheel = "https://host/ada/kit/releases/download/v1.2.0/spectrakit_train-1.2.0-py3-none-any.whl"
    assert f'NETWORK = "spectrakit-train @ {wheel}"' in cell and "http" not in INSTALL_CELL
