"What a session leaves behind: counted, listed with hashes, told where a limit is near; nothing that lies there raises."

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

import spectrakit as sk
from helpers import clean_environ, tree_hashes
from spectrakit.runs import session_outputs as outputs
from spectrakit.runs.run_dir import locked
from spectrakit.runs.session_outputs import MANIFEST, Sealed, limits, notes_on, seal_after, seal_output, walk
from spectrakit.system.errors import RequestError
from spectrakit.system.files import file_sha256
from spectrakit.system.platforms.detect import detect

pytestmark = pytest.mark.usefixtures("here")
KAGGLE = {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}


def put(folder: Path, **files: int) -> Path:
    "Files of so many bytes in `folder`; `__` in a name is a folder."
    for name, size in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    return folder


def listed(folder: Path) -> dict:
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def on_kaggle(folder: Path, mode: str = "batch"):
    return replace(detect(environ={}), name="kaggle", mode=mode, working_dir=str(folder))


# --- the list ---------------------------------------------------------------------------------------------------------


def test_every_file_is_listed_with_its_hash_and_sealing_again_gives_the_same(tmp_path):
    put(tmp_path, a=3, b__c=70_000, b__d__e=0)
    first = seal_output(tmp_path, show=False)
    known = listed(tmp_path)
    assert {f["path"]: f["sha256"] for f in known["files"]} == {
        k: v for k, v in tree_hashes(tmp_path).items() if k != MANIFEST
    }
    assert (known["count"], known["bytes"], known["schema"]) == (3, 70_003, 1) == (first.count, first.bytes, 1)
    assert seal_output(tmp_path, show=False) == first and {**listed(tmp_path), "sealed": 0} == {**known, "sealed": 0}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", MANIFEST]  # nothing half written beside it
    put(tmp_path, a=5)
    assert seal_output(tmp_path, show=False).bytes == 70_005


def test_the_folder_is_that_of_the_platform(here, monkeypatch, capsys):
    put(here, mine=1)
    assert seal_output().path == here / MANIFEST and "1 file, 1 B\n" in capsys.readouterr().out
    monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Batch")
    if not Path("/kaggle/working").exists():
        with pytest.raises(RequestError, match="no folder '/kaggle/working'"):
            seal_output()
    assert (
        seal_output(here).limits == {"files": 500, "bytes": 20_000_000_000}
        and listed(here)["platform"]["name"] == "kaggle"
    )
    assert "of 500 files and 20 GB" in capsys.readouterr().out


def test_a_home_folder_that_nobody_named_is_not_sealed(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    with pytest.raises(RequestError, match="holds more than its output.*seal_output\\('runs'\\)"):
        seal_output()
    assert not (here / MANIFEST).exists() and seal_output(here, show=False).count == 0


def test_a_folder_that_is_none_is_refused(tmp_path):
    put(tmp_path, file=1)
    with pytest.raises(RequestError, match="is a file"):
        seal_output(tmp_path / "file")
    with pytest.raises(RequestError, match="no folder"):
        seal_output(tmp_path / "nowhere")


def test_links_pipes_and_odd_names(tmp_path, capsys):
    outside = put(tmp_path / "outside", secret=9)
    folder = put(tmp_path / "out", plain=1)
    (
        (folder / "file").symlink_to(outside / "secret"),
        (folder / "folder").symlink_to(outside),
        (folder / "round").symlink_to(folder),
    )
    os.mkfifo(folder / "pipe")
    odd = os.path.join(os.fsencode(folder), b"\xff\n\xe9")
    with open(odd, "wb"):
        pass
    sealed = seal_output(folder)
    assert sealed.count == 2 and [item["path"] for item in listed(folder)["left_out"]] == [
        "file",
        "folder",
        "pipe",
        "round",
    ]
    assert {os.fsencode(f["path"]) for f in listed(folder)["files"]} == {b"plain", b"\xff\n\xe9"}
    capsys.readouterr().out.encode("utf-8")  # a name that is no text can be printed


def test_another_disk_is_left_out(small_disk, tmp_path):
    put(small_disk, drive=10)
    put(tmp_path, own=1)
    seal_output(tmp_path, show=False)
    assert [f["path"] for f in listed(tmp_path)["files"]] == ["own"] and listed(tmp_path)["left_out"] == [
        {"path": "disk", "why": "another disk is mounted there"}
    ]


def test_what_may_not_be_read_is_named(request):
    "As a user who is not root, and who may write the folder."
    folder = put(
        Path(tempfile.mkdtemp()), mine=1, locked=2, closed__inside=3
    )  # pytest's own folder nobody else may enter
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o777), folder.joinpath("locked").chmod(0), folder.joinpath("closed").chmod(0)
    code = (
        # that user may not read the packages themselves
        "import os\nfrom spectrakit.runs import session_outputs as outputs\noutputs.versions = dict\n"
        f"if not os.geteuid(): os.setgid(65534), os.setuid(65534)\noutputs.seal_output({str(folder)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environ(),
        cwd=Path(sk.__file__).parent.parent,
    )
    folder.joinpath("closed").chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert {item["path"]: item["why"] for item in listed(folder)["left_out"]} == dict.fromkeys(
        ("closed", "locked"), "cannot be read: Permission denied"
    )
    assert "locked is not in the list: cannot be read" in done.stdout and [
        f["path"] for f in listed(folder)["files"]
    ] == ["mine"]


def test_a_file_that_vanishes_meanwhile_is_no_error(tmp_path, monkeypatch):
    put(tmp_path, a=1, b=2)

    def gone(path):
        if path.name == "a":
            path.unlink()
        return file_sha256(path)

    monkeypatch.setattr(outputs, "file_sha256", gone)
    assert seal_output(tmp_path, show=False).count == 1


def test_a_full_disk_is_told(small_disk, capsys):
    put(small_disk, first=1)
    seal_output(small_disk, show=False)
    before = (small_disk / MANIFEST).read_bytes()
    with pytest.raises(OSError), open(small_disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    sealed = seal_output(small_disk)
    assert (
        sealed.path is None
        and sealed.count == 2
        and f"{MANIFEST} was not written: No space left" in capsys.readouterr().out
    )
    assert (small_disk / MANIFEST).read_bytes() == before and len(list(small_disk.iterdir())) == 3


def test_a_folder_in_the_manifests_place_is_told(tmp_path, capsys):
    (tmp_path / MANIFEST).mkdir()
    assert seal_output(tmp_path).path is None and "was not written" in capsys.readouterr().out


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_listed_with_what_made_it(trained_copy, capsys):
    folder = trained_copy.parent
    seal_output(folder)
    (run,) = listed(folder)["runs"]
    facts = json.loads((trained_copy / "environment.json").read_text())
    assert {key: run[key] for key in ("path", "status", "seed", "config_sha256", "run_id", "versions")} == {
        "path": trained_copy.name,
        "status": "completed",
        "seed": 0,
        "config_sha256": facts["config_sha256"],
        "run_id": facts["run_id"],
        "versions": facts["versions"],
    }
    assert (
        run["checkpoint"]["latest"] == (trained_copy / "checkpoints" / "LATEST").read_text().strip()
        and run["step"] == 20
    )
    assert listed(folder)["seeds"] == {trained_copy.name: 0} and {"spectrakit", "torch", "python", "accelerate"} <= set(
        listed(folder)["versions"]
    )
    with locked(trained_copy):
        seal_output(folder)
    assert listed(folder)["runs"][0]["status"] == "running" and "still running" in capsys.readouterr().out


@pytest.mark.slow
def test_hashes_of_checkpoints_come_from_their_manifests_unless_they_were_touched(trained_copy, monkeypatch):
    folder, read = trained_copy.parent, []
    monkeypatch.setattr(outputs, "file_sha256", lambda path: read.append(path.name) or file_sha256(path))
    seal_output(folder, show=False)
    assert "model.safetensors" not in read and "state.pt" not in read and "config.yaml" in read
    whole = {f["path"]: f["sha256"] for f in listed(folder)["files"]}
    assert whole == {k: v for k, v in tree_hashes(folder).items() if k != MANIFEST}
    spoiled = sorted(trained_copy.glob("checkpoints/step-*/model.safetensors"))[-1]
    data = bytearray(spoiled.read_bytes())
    data[-1] ^= 1
    spoiled.write_bytes(data)  # same size, and younger than its manifest
    later = spoiled.with_name("manifest.json").stat().st_mtime + 10
    os.utime(spoiled, (later, later))
    seal_output(folder, show=False)
    assert {f["path"]: f["sha256"] for f in listed(folder)["files"]}[
        spoiled.relative_to(folder).as_posix()
    ] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "name, text",
    [
        ("environment.json", "{"),
        ("config.yaml", "a: [\n"),
        ("config.yaml", "- 1\n"),
        ("config.yaml", "task: 3\n"),
        ("events.jsonl", "nonsense\n"),
        ("checkpoints/LATEST", "\xff"),
        ("checkpoints/step-00000020/manifest.json", "[]"),
    ],
)
def test_a_broken_run_is_listed_as_far_as_it_goes(trained_copy, name, text):
    (trained_copy / name).write_text(text, encoding="latin-1")
    seal_output(trained_copy.parent, show=False)
    known = listed(trained_copy.parent)
    assert [run["path"] for run in known["runs"]] == [trained_copy.name] and known["count"] == len(
        tree_hashes(trained_copy)
    )


def test_a_stranger_s_manifest_vouches_for_nothing_outside_its_folder(tmp_path):
    put(tmp_path, ck__model=4, other=4)
    entry = {"bytes": 4, "sha256": "made up"}
    (tmp_path / "ck" / "manifest.json").write_text(
        json.dumps({"step": 1, "files": {"../other": entry, "model": [1], "": entry, "..": entry}})
    )
    seal_output(tmp_path, show=False)
    assert "made up" not in (tmp_path / MANIFEST).read_text()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_limits_are_kaggles():
    kinds = [replace(detect(environ={}), name=name) for name in ("kaggle", "colab", "local")]
    assert [limits(p) for p in kinds] == [
        {"files": 500, "bytes": 20_000_000_000},
        *[{"files": None, "bytes": None}] * 2,
    ]


@pytest.mark.parametrize(
    "files, told",
    [
        (398, []),
        (399, ["400 files, and 500 are sure"]),
        (499, ["500 files, and 500"]),
        (500, ["501 files, more than the 500"]),
    ],
)
def test_many_files_are_told_with_where_they_are(tmp_path, files, told):
    put(tmp_path, **{f"pictures__p{number}": 0 for number in range(files)})
    notes = notes_on(tmp_path, walk(tmp_path), {"files": 500, "bytes": 20_000}, [])
    assert len(notes) == len(told) and all(text in notes[0] and f"pictures ({files})" in notes[0] for text in told)


def test_a_large_output_is_told_with_what_may_go(tmp_path):
    put(
        tmp_path,
        **{
            "r__checkpoints__step-00000001__model": 9000,
            "r__checkpoints__step-00000002__model": 8000,
            "r__trackers__wandb__run": 700,
            "r__logs__rank-0.log": 10,
            "x__.ipynb_checkpoints__n": 300,
            "submission.csv": 50,
        },
    )
    run = {"path": "r", "checkpoint": {"latest": "step-00000002"}}
    big, *spare = notes_on(tmp_path, walk(tmp_path), {"files": 500, "bytes": 20_000}, [run])
    assert "18.1 kB, and 20 kB are kept" in big and "r/checkpoints (17 kB), r/trackers (700 B)" in big
    assert [("1 of them, 9 kB: checkpoint.keep_last=1" in spare[0]), "700 B" in spare[1], "300 B" in spare[2]] == [
        True
    ] * 3
    assert notes_on(tmp_path, walk(tmp_path), {"files": None, "bytes": None}, [run]) == []


def test_a_walk_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(outputs, "MOST_FILES", 5)
    put(tmp_path, **{f"f{number}": 1 for number in range(9)})
    seen = walk(tmp_path)
    assert len(seen.files) == 5 and "more than 5 files" in seen.left_out[0]["why"]


# --- at the end of a run ----------------------------------------------------------------------------------------------


def test_after_a_run_on_kaggle(trained_copy, capsys, monkeypatch):
    folder = trained_copy.parent
    (
        seal_after(trained_copy, detect(environ={})),
        seal_after(trained_copy, on_kaggle(folder, "interactive")),
        seal_after(trained_copy, on_kaggle(folder / "elsewhere")),
    )
    assert not (folder / MANIFEST).exists() and capsys.readouterr() == ("", "")
    put(folder, **{f"pictures__p{number}": 0 for number in range(480)})
    seal_after(trained_copy, on_kaggle(folder, "interactive"))
    out, told = capsys.readouterr()
    assert (
        out == ""
        and told.count("\n") == 1
        and "500 that are sure to be kept" in told
        and not (folder / MANIFEST).exists()
    )
    monkeypatch.setattr(outputs, "QUICK_BYTES", 10)
    seal_after(trained_copy, on_kaggle(folder))
    assert "500 that are sure" in capsys.readouterr().err and not (folder / MANIFEST).exists()
    monkeypatch.setattr(outputs, "QUICK_BYTES", 10**6)
    seal_after(trained_copy, on_kaggle(folder), show=False)
    assert capsys.readouterr() == ("", "") and listed(folder)["runs"][0]["status"] == "completed"


@pytest.mark.slow
def test_fit_seals_after_the_predictions(here, capsys, monkeypatch):
    from spectrakit.api import actions as kit
    from spectrakit.launch import request
    from tasks import Submitting

    monkeypatch.setattr(request, "detect", lambda: on_kaggle(here))
    cfg = sk.compose(
        "launch.mode=inline",
        "trainer.accelerator=cpu",
        "data.batch_size=8",
        "trainer.max_epochs=2",
        "run.dir=runs",
        "env=local",
    )
    run = kit.fit(Submitting(), cfg, predict="submission.csv")
    known = listed(here)
    assert (
        "submission.csv" in {f["path"] for f in known["files"]} and known["runs"][0]["path"] == f"runs/{run.path.name}"
    )
    assert f"{MANIFEST}: {known['count']} files" in capsys.readouterr().out
    assert [f["path"] for f in known["files"] if not f["bytes"]] == [
        f"runs/{run.path.name}/lock"
    ]  # empty files count as well as full ones


def test_a_run_in_a_child_leaves_no_empty_stacks(trained):
    assert not list(trained.run.glob("logs/stacks-*")) and len(tree_hashes(trained.run)) < 30


def test_what_is_returned_reads_well(tmp_path):
    assert (
        str(Sealed(None, 12, 3_400_000, {"files": 500, "bytes": 20_000_000_000}))
        == "12 files, 3.4 MB (of 500 files and 20 GB)"
    )
    assert (
        repr(Sealed(None, 1, 20, {"files": None, "bytes": None})) == "Sealed(1 file, 20 B)"
        and sk.seal_output is seal_output
    )
