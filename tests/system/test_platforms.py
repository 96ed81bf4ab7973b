"What `spectrakit.system.platforms` finds on faked machines: variables and file systems made up for each test."

import json
import math
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from spectrakit.system import hardware, inputs
from spectrakit.system.hardware import Gpu
from spectrakit.system.inputs import find_input, has_internet
from spectrakit.system.platforms.detect import detect, writable_bytes
from spectrakit.system.platforms.known_platforms import FLAVOURS
from spectrakit.system.platforms.platform import Platform, platform_rows
from spectrakit.system.precision import choose_precision
from spectrakit.system.units import format_duration, parse_duration

NOW = 1_800_000_000.0
HOUR = 3600
UPTIME_S = 40 * 86400  # the host has been up for weeks
COLAB_SHELL, KERNEL = "google.colab._shell.Shell", "ipykernel.zmqshell.ZMQInteractiveShell"
T4, P100 = Gpu("Tesla T4", 15.0, (7, 5)), Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0))
A100 = Gpu("NVIDIA A100-SXM4-40GB", 40.0, (8, 0))


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def stat_line(age_s: float) -> str:
    ticks = int((UPTIME_S - age_s) * os.sysconf("SC_CLK_TCK"))
    return f"1 (a b) c) S {' '.join(['0'] * 18)} {ticks} 0 0"


@pytest.fixture
def root(tmp_path) -> Path:
    "A container that began two hours ago on an old host; this process is five minutes old."
    (tmp_path / "tmp").mkdir()
    return put(
        tmp_path,
        {
            "/proc/stat": f"cpu 1 2\nbtime {int(NOW) - UPTIME_S}\n",
            "/proc/1/stat": stat_line(2 * HOUR),
            "/proc/self/stat": stat_line(300),
            "/proc/meminfo": "MemTotal:       32768000 kB\nSwapTotal:       2048000 kB\n",
            "/proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-3\n",
            "/proc/self/cgroup": "0::/\n",
        },
    )


def on(root: Path, environ: dict | None = None, shell: str = "", now: float = NOW) -> Platform:
    return detect({"PATH": "", **(environ or {})}, root, shell=shell, now=now)


# durations


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("8h30m", 30600),
        ("90m", 5400),
        ("45s", 45),
        ("1h", 3600),
        ("1h5s", 3605),
        ("8:30:00", 30600),
        ("0:00:05", 5),
        ("100:00:00", 360000),
        (" 8H 30M ", 30600),
        ("1.5h", 5400),
        ("0s", 0),
    ],
)
def test_duration_is_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value, words",
    [
        ("540", "no unit"),
        ("0.5", "no unit"),
        (540, "not text"),
        (30600.0, "not text"),
        (True, "not text"),
        (None, "not text"),
        ("9:00", "hours and minutes"),
        ("8:30", "hours and minutes"),
        *(
            (text, "not a duration")
            for text in ("", "  ", "soon", "-5m", "8:61:00", "30m8h", "8h8h", "9" * 400 + "h", "٣h", "1e3s", "nan")
        ),
    ],
)
def test_duration_is_refused_with_a_way_out(value, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_duration(value)
    assert "540" in str(caught.value) and "8h30m" in str(caught.value)


def test_durations_make_the_round_trip():
    for seconds in [*range(0, 100000, 37), 359999, 360000]:
        assert parse_duration(format_duration(seconds)) == seconds


def test_format_never_shows_more_time_than_there_is():
    assert format_duration(59.999) == "0:00:59" and format_duration(-65) == "-0:01:05"
    assert format_duration(-0.5) == "0:00:00"
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            format_duration(bad)


# which platform

RUN, RERUN = "KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_IS_COMPETITION_RERUN"


@pytest.mark.parametrize(
    "environ, files, shell, expected",
    [
        # Kaggle, whatever else it looks like
        ({RUN: "Interactive"}, {}, KERNEL, ("kaggle", "interactive")),
        ({RUN: "Batch"}, {}, KERNEL, ("kaggle", "batch")),
        ({RUN: "Batch"}, {}, "", ("kaggle", "batch")),
        ({RUN: "Batch", RERUN: "1"}, {}, KERNEL, ("kaggle", "competition_rerun")),
        ({RERUN: "true"}, {}, "", ("kaggle", "competition_rerun")),
        ({RUN: "Interactive", "COLAB_RELEASE_TAG": "x", "COLAB_GPU": ""}, {}, KERNEL, ("kaggle", "interactive")),
        ({RUN: "Interactive"}, {"/var/colab/hostname": "x"}, KERNEL, ("kaggle", "interactive")),
        # (this one is Colab's page on a Kaggle server)
        ({RUN: "Interactive", "TBE_RUNTIME_ADDR": "x"}, {}, COLAB_SHELL, ("kaggle", "interactive")),
        # Colab, also with a Kaggle user's variables and mounts, and in its child processes
        ({}, {}, COLAB_SHELL, ("colab", "interactive")),
        ({"KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "k"}, {}, COLAB_SHELL, ("colab", "interactive")),
        ({"TBE_RUNTIME_ADDR": "x"}, {"/kaggle/input/x": ""}, COLAB_SHELL, ("colab", "interactive")),
        ({"TBE_RUNTIME_ADDR": "x"}, {}, "", ("colab", "script")),
        ({}, {"/var/colab/hostname": "x"}, "", ("colab", "script")),
        # at home, with the platforms' image or names
        ({"COLAB_RELEASE_TAG": "x", "COLAB_GPU": "1"}, {}, KERNEL, ("local", "interactive")),
        ({"KAGGLE_USERNAME": "ada"}, {"/kaggle/input/x": ""}, "", ("local", "script")),
        ({RUN: "", RERUN: ""}, {}, "", ("local", "script")),
    ],
)
def test_platform_and_mode(root, environ, files, shell, expected):
    found = on(put(root, files), environ, shell)
    assert (found.name, found.mode) == expected and found.name_source


def test_folders(root, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kaggle = on(root, {RUN: "Batch"})
    assert (kaggle.input_dir, kaggle.working_dir, kaggle.scratch_dir) == (None, "/kaggle/working", "/tmp")
    put(root, {"/kaggle/input/x": "", "/scratch/x": ""})
    assert on(root, {RUN: "Batch"}).input_dir == "/kaggle/input"
    assert on(root, {"TMPDIR": "/scratch"}).scratch_dir == "/scratch"
    assert on(root, {"TMPDIR": "/nowhere"}).scratch_dir == "/tmp"
    assert on(root, shell=COLAB_SHELL).working_dir == str(tmp_path)  # Colab Enterprise without /content
    put(root, {"/content/sample_data/x": ""})
    assert on(root, shell=COLAB_SHELL).working_dir == "/content"
    assert on(root).working_dir == str(tmp_path)


def test_the_input_folder(root, monkeypatch, tmp_path):
    at_home = tmp_path / "project"
    at_home.mkdir()
    monkeypatch.chdir(at_home)
    assert on(root).input_dir is None is on(root, shell=COLAB_SHELL).input_dir
    (at_home / "input").mkdir()
    assert on(root).input_dir == str(at_home / "input")
    (at_home / "data").mkdir()
    assert on(root).input_dir == str(at_home / "data")
    put(root, {"/kaggle/input/x": "", "/mine/x": ""})
    assert on(root, shell=COLAB_SHELL).input_dir == "/kaggle/input"  # where a download cache of Kaggle's lies on Colab
    assert on(root, {RUN: "Batch", "SPECTRAKIT_INPUT": "/mine"}).input_dir == "/mine"
    assert on(root, {RUN: "Batch", "SPECTRAKIT_INPUT": f"/nowhere{os.pathsep}/mine"}).input_dir == "/mine"
    assert on(root, {RUN: "Batch", "SPECTRAKIT_INPUT": "/nowhere"}).input_dir == "/kaggle/input"


# flavours

RELEASE, ENTERPRISE = "/proc/sys/kernel/osrelease", {"VERTEX_PRODUCT": "COLAB_ENTERPRISE"}
WSL2 = {RELEASE: "5.15.167.4-microsoft-standard-WSL2\n"}


@pytest.mark.parametrize(
    "environ, files, shell, name, flavour",
    [
        ({}, {}, "", "local", "plain"),
        ({}, {RELEASE: "6.8.0-45-generic\n"}, KERNEL, "local", "plain"),
        ({}, WSL2, "", "local", "wsl2"),
        ({}, {RELEASE: "4.19.67-microsoft-standard\n"}, "", "local", "wsl2"),
        ({}, {RELEASE: "4.4.0-19041-Microsoft\n"}, "", "local", "wsl1"),
        ({"MODAL_TASK_ID": "ta-1"}, {}, "", "local", "modal"),
        ({"MODAL_IS_REMOTE": "1"}, {}, "", "local", "modal"),
        ({"SM_TRAINING_ENV": "{}"}, {}, "", "local", "sagemaker"),
        ({}, {"/opt/ml/input/config/hyperparameters.json": "{}"}, "", "local", "sagemaker"),
        ({}, {"/opt/ml/metadata/resource-metadata.json": "{}"}, KERNEL, "local", "sagemaker"),
        ({"DATABRICKS_RUNTIME_VERSION": "16.4"}, {}, KERNEL, "local", "databricks"),
        ({"VERTEX_PRODUCT": "WORKBENCH_INSTANCE"}, {}, KERNEL, "local", "vertex_workbench"),
        (ENTERPRISE, {}, COLAB_SHELL, "colab", "colab_enterprise"),
        (ENTERPRISE, {}, "", "colab", "colab_enterprise"),  # its child processes
        ({}, {}, COLAB_SHELL, "colab", "plain"),
        ({"MODAL_TASK_ID": "ta-1"}, WSL2, "", "local", "modal"),  # whoever rents is asked before the kernel
        ({RUN: "Batch", "MODAL_TASK_ID": "x", **ENTERPRISE}, WSL2, KERNEL, "kaggle", "plain"),
        ({"MODAL_TASK_ID": "", "SM_TRAINING_ENV": ""}, {}, "", "local", "plain"),
    ],
)
def test_flavour(root, environ, files, shell, name, flavour):
    found = on(put(root, files), environ, shell)
    assert (found.name, found.flavour) == (name, flavour) and flavour in FLAVOURS
    assert f"flavour        {flavour}" in found.table() and found.to_dict()["flavour"] == flavour
    assert ("flavour=" in found.line()) == (flavour != "plain")
    assert bool(found.flavour_source) == (name == "local" or flavour != "plain")


def pretend_shell(monkeypatch, **names):
    shell = SimpleNamespace(user_ns=names)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def here(root, environ=None):
    return detect({"PATH": "", **(environ or {})}, root, now=NOW)  # in the shell that runs


def test_vs_code_is_known_by_its_shell(root, monkeypatch):
    pretend_shell(monkeypatch, __vsc_ipynb_file__="a.ipynb")
    assert here(root).flavour == "vscode" and here(root).mode == "interactive"
    assert here(put(root, WSL2)).flavour == "wsl2"  # its kernel matters more than its editor
    assert here(root, {RUN: "Interactive"}).flavour == "plain"
    assert on(root).flavour == "wsl2" and on(root, {"MODAL_TASK_ID": "x"}).flavour == "modal"


@pytest.mark.parametrize("app, flavour", [("Databricks Shell", "databricks"), ("another", "plain")])
def test_databricks_is_known_by_its_tools(root, monkeypatch, app, flavour):
    pretend_shell(monkeypatch)
    tools = SimpleNamespace(shell=SimpleNamespace(sc=SimpleNamespace(appName=app)))
    monkeypatch.setitem(sys.modules, "dbutils", tools)
    assert here(root).flavour == flavour
    monkeypatch.setitem(sys.modules, "dbutils", SimpleNamespace())  # another module of that name
    assert here(root).flavour == "plain"


@pytest.mark.parametrize(
    "environ", [{"MODAL_TASK_ID": "ta-1"}, {"SM_TRAINING_ENV": "{}"}, {"DATABRICKS_RUNTIME_VERSION": "16.4"}]
)
def test_a_rented_machine_has_a_limit_that_nothing_tells(root, environ):
    found = on(root, environ)
    assert found.limit_s is None and "SPECTRAKIT_TIME_LIMIT" in found.limit_source
    assert "time_left=unknown" in found.line() and "no limit" not in found.table()
    told = on(root, {**environ, "SPECTRAKIT_TIME_LIMIT": "1h"})
    assert told.limit_s == HOUR and "time_left=0:55:00" in told.line(NOW)


def test_the_flavour_is_inherited(root, tmp_path):
    parent = on(root, {"MODAL_TASK_ID": "ta-1"})
    child = on(root, parent.child_environ())
    assert (child.flavour, child.flavour_source) == ("modal", "the parent process")
    without = json.dumps({"name": "kaggle", "mode": "batch", "session_start": NOW - 60})
    assert on(root, {"SPECTRAKIT_PLATFORM": without}).flavour == "plain"


# what a person should know

EMPTY_SMI = "echo 'No devices were found'"
MENU = {"kaggle": "Settings > Accelerator", "colab": "Runtime > Change runtime type"}
KAGGLE, COLAB = {RUN: "Batch"}, {"TBE_RUNTIME_ADDR": "x"}


@pytest.mark.parametrize("environ, name", [(KAGGLE, "kaggle"), (COLAB, "colab"), ({RERUN: "1"}, "kaggle")])
def test_no_accelerator_names_the_menu_to_change(root, smi, environ, name):
    for path in ("", smi(EMPTY_SMI)):
        (note,) = on(root, {**environ, "PATH": path}).notes
        assert note.startswith("This session has no GPU") and MENU[name] in note and note.count(".") == 1
    assert not on(root, {**environ, "PATH": smi(TWO)}).notes


def test_no_menu_is_named_where_it_would_not_help(root, smi):
    assert not on(root).notes  # at home there is none
    assert not on(root, {**KAGGLE, "PATH": smi(TWO), "CUDA_VISIBLE_DEVICES": ""}).notes  # hidden on purpose
    (note,) = on(root, {**KAGGLE, "PATH": smi("exit 9")}).notes  # a broken driver is another matter
    assert "nvidia-smi failed" in note


PCI = "/sys/bus/pci/devices/0000:00:0"


@pytest.mark.parametrize(
    "environ, files, tpu",
    [
        ({}, {}, None),
        ({"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, {}, "v5litepod-8"),
        ({"COLAB_TPU_ADDR": "10.0.0.2:8470"}, {}, "unknown kind"),
        ({}, {"/dev/accel0": ""}, "unknown kind"),
        ({}, {PCI + "4.0/vendor": "0x1ae0\n", PCI + "4.0/device": "0x0063\n"}, "v5e"),
        (
            {},
            {
                PCI + "3.0/vendor": "0x8086\n",
                PCI + "3.0/device": "0x0063\n",
                PCI + "5.0/vendor": "0x1ae0\n",
                PCI + "5.0/device": "0x0027\n",
            },
            "v2 or v3",
        ),
        ({}, {PCI + "4.0/vendor": "0x1ae0\n", PCI + "4.0/device": "0x0042\n"}, None),  # Google's network card
        ({}, {PCI + "4.0/vendor": "0x8086\n", PCI + "4.0/device": "0x0063\n"}, None),  # another maker's
        ({}, {"/sys/bus/pci/devices": "not a folder"}, None),
    ],
)
@pytest.mark.parametrize("where", [{}, KAGGLE, COLAB])
def test_a_tpu_is_seen_and_said(root, environ, files, tpu, where):
    found = on(put(root, files), {**where, **environ})
    assert found.tpu == tpu and found.to_dict()["tpu"] == tpu and found.gpus == ()
    notes = [note for note in found.notes if "TPU" in note]
    assert ("seen, and not used" in found.table()) == bool(tpu) == bool(notes)
    if tpu:
        assert notes == list(found.notes) and notes[0].count(".") == 1 and "trains on the CPU" in notes[0]
        assert not where or MENU[found.name] in notes[0]


def test_a_gpu_beside_a_tpu_needs_no_advice(root, smi):
    found = on(root, {"TPU_ACCELERATOR_TYPE": "v5e-1", "PATH": smi(TWO)})
    assert found.tpu == "v5e-1" and not found.notes


@pytest.mark.parametrize("environ, menu", [(KAGGLE, "Settings > Accelerator"), (COLAB, "Runtime > Change"), ({}, None)])
def test_a_p100_says_it_is_available_and_is_not_believed(root, smi, environ, menu):
    found = on(root, {**environ, "PATH": smi("echo Tesla P100-PCIE-16GB, 16384, 6.0, GPU-p")})
    assert [gpu.short for gpu in found.gpus] == ["P100"]  # it is there, and listed
    (note,) = found.notes
    for words in (
        "P100 says that it is available",
        "no kernels",
        "6.0",
        "accelerator=auto",
        "CPU",
        "fp32",
        "accelerator=gpu is refused",
    ):
        assert words in note
    assert (menu in note) if menu else ("Choose" not in note)
    assert f"note: {note}" in found.table()
    assert choose_precision("auto", found.gpus)[0] == "no"


def test_old_and_unknown_gpus():
    def note(*capability):
        return hardware.dead_gpu_note([A100, Gpu("X", 8.0, capability or None)])

    assert "5.2" in note(5, 2) and "6.1" in note(6, 1) and note(7, 0) is None and note() is None
    assert hardware.dead_gpu_note([]) is None


@pytest.mark.parametrize(
    "environ, shell, told",
    [
        ({RUN: "Interactive"}, KERNEL, ["/kaggle/working may vanish", "Save & Run All"]),
        ({RUN: "Batch"}, KERNEL, []),
        ({RUN: "Interactive", RERUN: "1"}, KERNEL, []),
        ({}, KERNEL, []),
        ({}, COLAB_SHELL, ["deletes /content", "checkpoint.mirror=/content/drive", "Run all then resumes"]),
    ],
)
def test_an_editor_warns_that_the_working_folder_may_vanish(root, smi, environ, shell, told):
    found = on(root, {**environ, "PATH": smi(TWO)}, shell)
    assert len(found.notes) == bool(told) and all(part in found.notes[0] for part in told)
    kept = {row[0]: row[2] for row in platform_rows(found, None)}["working"]
    assert kept.startswith("goes with this machine" if shell == COLAB_SHELL else "is kept")


def test_a_deleted_current_folder_is_survived(root, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert on(root).working_dir == "/tmp"


# since when, how long


def test_container_start_wins_on_kaggle(root):
    found = on(root, {RUN: "Batch"})
    assert found.session_start == NOW - 2 * HOUR and found.session_start_source == "PID 1"
    assert found.time_left_s(NOW) == 7 * HOUR and found.time_left_s(NOW + 8 * HOUR) == -HOUR


def test_at_home_the_session_is_this_process(root):
    found = on(root)
    assert found.session_start == NOW - 300 and found.session_start_source == "this process"
    assert found.limit_s is None and found.time_left_s() is None
    assert not list((root / "tmp").iterdir())  # and no file is left behind


def test_the_hosts_init_is_not_taken_for_the_session(root):
    put(root, {"/proc/1/stat": stat_line(30 * 86400)})
    assert on(root, {RUN: "Batch"}).session_start == NOW - 300


def test_a_session_past_its_limit_does_not_look_new(root):
    put(root, {"/proc/1/stat": stat_line(10 * HOUR)})
    assert on(root, {RUN: "Interactive"}).time_left_s(NOW) == -HOUR


def test_nothing_readable_counts_from_now(root):
    put(root, {"/proc/1/stat": "nonsense", "/proc/self/stat": stat_line(-500)})  # the clock was set back
    found = on(root, {RUN: "Batch"})
    assert found.session_start == NOW and found.session_start_source.startswith("now")


def test_a_restarted_kernel_finds_the_note_of_the_first(root):
    (root / "proc/1/stat").unlink()
    first = on(root, {RUN: "Interactive"})
    (note,) = (root / "tmp").iterdir()
    assert stat.S_IMODE(note.stat().st_mode) == 0o600 and first.session_start == NOW - 300
    written = note.read_text()
    put(root, {"/proc/self/stat": stat_line(-3000)})
    again = on(root, {RUN: "Interactive"}, now=NOW + HOUR)
    assert again.session_start == NOW - 300 and "earlier in this session" in again.session_start_source
    assert note.read_text() == written  # written once
    tomorrow = on(put(root, {"/proc/self/stat": stat_line(-86400)}), {RUN: "Interactive"}, now=NOW + 86400)
    assert tomorrow.session_start == NOW + 86400  # another session, whose note replaces the old one
    assert float(note.read_text().split()[0]) == NOW + 86400


@pytest.mark.parametrize("obstacle", ["link", "pipe", "torn", "folder"])
def test_a_strange_note_is_not_believed(root, obstacle):
    (root / "proc/1/stat").unlink()
    note, elsewhere = root / "tmp" / f"spectrakit-session-{os.getuid()}", root / "elsewhere"
    elsewhere.write_text(str(NOW - 4 * HOUR))
    if obstacle == "link":
        note.symlink_to(elsewhere)
    if obstacle == "pipe":
        os.mkfifo(note)  # reading it must not wait
    if obstacle == "torn":
        note.write_text("18000")
    if obstacle == "folder":
        note.mkdir()
    assert on(root, {RUN: "Batch"}).session_start == NOW - 300
    assert elsewhere.read_text() == str(NOW - 4 * HOUR)


@pytest.mark.parametrize(
    "text, start_s",
    [(str(NOW - 77), NOW - 77), ("2027-01-15T07:00:00Z", NOW - HOUR), ("2027-01-15T08:00:00+01:00", NOW - HOUR)],
)
def test_the_user_knows_better(root, text, start_s):
    parent = json.dumps({"name": "kaggle", "mode": "batch", "session_start": 1.7e9})
    found = on(root, {RUN: "Batch", "SPECTRAKIT_SESSION_START": text, "SPECTRAKIT_PLATFORM": parent})
    assert found.session_start == start_s and found.session_start_source == "SPECTRAKIT_SESSION_START"


@pytest.mark.parametrize("text", ["9:00", "540", "nan", "inf", "1800000000000", "yesterday", "0001-01-01"])
def test_a_wrong_session_start_is_refused(root, text):
    with pytest.raises(ValueError, match=r"SPECTRAKIT_SESSION_START.*2026-11-20T09:00:00Z"):
        on(root, {"SPECTRAKIT_SESSION_START": text})


def test_limits(root):
    assert on(root, {RUN: "Batch"}).limit_s == 9 * HOUR
    colab = on(root, shell=COLAB_SHELL)
    assert colab.limit_s == 12 * HOUR and "uncertain" in colab.limit_source
    mine = on(root, {RUN: "Batch", "SPECTRAKIT_TIME_LIMIT": "12h"})
    assert mine.limit_s == 12 * HOUR and mine.limit_source == "SPECTRAKIT_TIME_LIMIT=12h"
    assert on(root, {RUN: "Batch", "SPECTRAKIT_TIME_LIMIT": "1h"}).time_left_s(NOW) == -HOUR  # and not a new one
    assert on(root, {"SPECTRAKIT_TIME_LIMIT": "1h"}).time_left_s(NOW) == HOUR - 300
    assert on(root, {"SPECTRAKIT_TIME_LIMIT": "4m"}).time_left_s(NOW) == 240  # this kernel is older than such a session
    for wrong in ("9", "9:00", "0s"):
        with pytest.raises(ValueError, match=r"SPECTRAKIT_TIME_LIMIT.*8h30m"):
            on(root, {"SPECTRAKIT_TIME_LIMIT": wrong})


def test_a_child_process_inherits(root, tmp_path):
    parent = on(root, {RUN: "Batch"})
    code = (
        "import json; from spectrakit.system.platforms.detect import detect; p = detect(); "
        "print(json.dumps([p.name, p.mode, p.session_start, p.session_start_source]))"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("KAGGLE", "SPECTRAKIT"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environ, **parent.child_environ()},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == ["kaggle", "batch", NOW - 2 * HOUR, "the parent process"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        '{"name": "kaggle"}',
        '{"name": "moon", "mode": "batch", "session_start": 1.8e9}',
        '{"name": "kaggle", "mode": [], "session_start": 1.8e9}',
        '{"name": "kaggle", "mode": "batch", "flavour": "vanilla", "session_start": 1.8e9}',
        '{"name": "kaggle", "mode": "batch", "flavour": [], "session_start": 1.8e9}',
        '{"name": "kaggle", "mode": "batch", "session_start": NaN}',
    ],
)
def test_a_broken_inheritance_is_noted_and_left(root, text):
    found = on(root, {RUN: "Batch", "SPECTRAKIT_PLATFORM": text})
    assert found.name == "kaggle" and found.session_start == NOW - 2 * HOUR and "SPECTRAKIT_PLATFORM" in found.notes[0]


# cores and memory

MIB = 1024**2
V1 = "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/docker/ab\n"


GROUP = "/sys/fs/cgroup"


def cpu_v1(folder: str, quota: int) -> dict[str, str]:
    return {f"{GROUP}/{folder}/cpu.cfs_quota_us": f"{quota}\n", f"{GROUP}/{folder}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    "files, cores, memory_gib",
    [
        pytest.param({}, 4, 31.25, id="no limit"),
        pytest.param({"/proc/self/status": "Cpus_allowed_list:\t0,2-3,8\n"}, 4, 31.25, id="affinity in pieces"),
        pytest.param({"/proc/self/status": "Cpus_allowed_list:\t5\n"}, 1, 31.25, id="one core"),
        pytest.param(
            {f"{GROUP}/cpu.max": "max 100000\n", f"{GROUP}/memory.max": "max\n"}, 4, 31.25, id="v2, no limits"
        ),
        pytest.param(
            {f"{GROUP}/cpu.max": "250000 100000\n", f"{GROUP}/memory.max": f"{2048 * MIB}\n"},
            2,
            2.0,
            id="v2 in a container",
        ),
        pytest.param({f"{GROUP}/cpu.max": "50000 100000\n"}, 1, 31.25, id="half a core"),
        pytest.param(
            {
                "/proc/self/cgroup": "0::/a.slice/b\n",
                f"{GROUP}/a.slice/cpu.max": "100000 100000",
                f"{GROUP}/a.slice/memory.max": f"{512 * MIB}",
                f"{GROUP}/a.slice/b/cpu.max": "300000 100000",
                f"{GROUP}/a.slice/b/memory.max": "max",
            },
            1,
            0.5,
            id="v2, the limit above ours",
        ),
        pytest.param(
            {"/proc/self/cgroup": "0::/../x\n", f"{GROUP}/memory.max": f"{1024 * MIB}", "/sys/fs/x/memory.max": "1"},
            4,
            1.0,
            id="v2, a path out of the container",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": V1,
                f"{GROUP}/memory/memory.limit_in_bytes": f"{4096 * MIB}",
                **cpu_v1("cpu", 200000),
            },
            2,
            4.0,
            id="v1 in a container",
        ),
        pytest.param(
            {
                "/proc/self/cgroup": V1,
                **cpu_v1("cpu,cpuacct", -1),
                **cpu_v1("cpu,cpuacct/docker/ab", 300000),
                f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
                f"{GROUP}/memory/docker/ab/memory.limit_in_bytes": f"{1024 * MIB}",
            },
            3,
            1.0,
            id="v1 on the host, joined controllers",
        ),
        pytest.param(
            {"/proc/self/cgroup": "nonsense\n\n", f"{GROUP}/cpu.max": "\n", f"{GROUP}/memory.max": "?"},
            4,
            31.25,
            id="nonsense",
        ),
    ],
)
def test_cores_and_memory(root, files, cores, memory_gib):
    found = on(put(root, files))
    assert (found.cores, found.memory_gib) == (cores, memory_gib)
    assert ("control group" in found.memory_source) == (memory_gib != 31.25)


def test_swap(root):
    assert on(root).swap_gib == 2048000 / MIB
    assert on(put(root, {"/sys/fs/cgroup/memory.swap.max": "0"})).swap_gib == 0


def test_a_machine_without_proc_asks_psutil(tmp_path):
    psutil = pytest.importorskip("psutil")
    found = on(tmp_path, now=time.time())
    assert found.memory_gib == psutil.virtual_memory().total / 1024**3 and found.cores >= 1
    assert found.session_start == pytest.approx(psutil.Process().create_time(), abs=2)


# GPUs


@pytest.fixture
def smi(tmp_path):
    "Writes a fake nvidia-smi and gives its folder, to be used as PATH."

    def make(script: str) -> str:
        command = tmp_path / "bin" / "nvidia-smi"
        command.parent.mkdir(exist_ok=True)
        command.write_text("#!/bin/sh\n" + script)
        command.chmod(0o755)
        return str(command.parent)

    return make


TWO = "printf 'Tesla T4, 15360, 7.5, GPU-aa11\\nNVIDIA A100-SXM4-40GB, 40960, 8.0, GPU-bb22\\n'"


@pytest.mark.parametrize(
    "choice, names",
    [
        (None, ["T4", "A100"]),
        ("", []),
        ("-1", []),
        ("1", ["A100"]),
        ("1,0", ["A100", "T4"]),
        (" 1 , 0 ", ["A100", "T4"]),
        ("GPU-bb", ["A100"]),
        ("0,5,1", ["T4"]),
        ("1,1", []),
        ("GPU-", []),
        ("NoDevFiles", []),
        ("0,GPU-aa11", []),
    ],
)
def test_visible_gpus(root, smi, choice, names):
    found = on(root, {"PATH": smi(TWO), **({} if choice is None else {"CUDA_VISIBLE_DEVICES": choice})})
    assert [gpu.short for gpu in found.gpus] == names and found.gpus_source.startswith("nvidia-smi") and not found.notes
    assert (choice is None) == ("CUDA_VISIBLE_DEVICES" not in found.gpus_source)


@pytest.mark.parametrize("choice, count", [("", 0), (",", 0), ("0,", 1), ("0", 1), ("1", 0)])
def test_one_gpu_and_an_empty_entry(root, smi, choice, count):
    found = on(root, {"PATH": smi("echo Tesla T4, 15360, 7.5, GPU-a"), "CUDA_VISIBLE_DEVICES": choice})
    assert len(found.gpus) == count


def test_what_nvidia_smi_is_asked(root, smi):
    asked = root / "asked"
    found = on(root, {"PATH": smi(f'echo "$@" > {asked}\n{TWO}')})
    assert found.gpus == (T4, A100)
    assert "--query-gpu=name,memory.total,compute_cap" in asked.read_text()
    assert "--format=csv,noheader,nounits" in asked.read_text()


def test_an_old_driver_that_knows_no_compute_capability(root, smi):
    refusal = 'case "$1" in *compute_cap*) echo Field compute_cap is not a valid field to query.; exit 2;; esac'
    found = on(root, {"PATH": smi(refusal + "\necho 'Tesla K80, 11441'")})
    assert found.gpus == (Gpu("Tesla K80", 11441 / 1024, None),) and not found.notes


def test_a_gpu_that_shares_the_cpus_memory(root, smi):
    assert on(root, {"PATH": smi("echo 'NVIDIA GB10, [N/A], 12.1, GPU-x'")}).gpus == (Gpu("NVIDIA GB10", 0.0, (12, 1)),)


@pytest.mark.parametrize(
    "script, words",
    [
        (
            "echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9",
            "could not communicate",
        ),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18", "version mismatch"),
        ("exit 3", "exit status 3"),
    ],
)
def test_a_broken_driver_is_a_note_and_no_gpu(root, smi, script, words):
    found = on(root, {"PATH": smi(script)})
    assert found.gpus == () and "does not answer" in found.gpus_source
    assert words in found.notes[0] and words in found.table()


def test_a_driver_that_hangs(smi):
    command = smi("exec sleep 30") + "/nvidia-smi"
    with pytest.raises(RuntimeError, match="no answer"):
        hardware._nvidia_smi(command, timeout_s=0.2)


def test_no_gpu_and_no_driver(root, smi):
    found = on(root)
    assert found.gpus == () and found.gpus_source == "no NVIDIA driver was found" and not found.notes
    assert on(root, {"PATH": smi("echo 'No devices were found'")}).gpus == ()


def test_nvml_comes_first_and_its_failure_is_told(monkeypatch):
    "NVML answers only for the real machine; here its answer is made up, as is its error."
    monkeypatch.setattr(hardware, "_nvml", lambda: [("GPU-aa", T4), ("GPU-bb", T4)])
    gpus, source, note = hardware.visible_gpus({"PATH": "", "CUDA_VISIBLE_DEVICES": "GPU-bb"}, "/")
    assert gpus == (T4,) and source.startswith("NVML, 2 found") and note is None

    def broken():
        raise RuntimeError("Driver/library version mismatch")

    monkeypatch.setattr(hardware, "_nvml", broken)
    gpus, source, note = hardware.visible_gpus({"PATH": ""}, "/")
    assert gpus == () and "version mismatch" in note


def test_nvml_reader_closes_the_library_it_opened(monkeypatch):
    calls = []

    class Library:
        nvmlInit = staticmethod(lambda: calls.append("init"))
        nvmlShutdown = staticmethod(lambda: calls.append("shutdown"))
        nvmlDeviceGetCount = staticmethod(lambda: 2)
        nvmlDeviceGetHandleByIndex = staticmethod(lambda i: i)
        nvmlDeviceGetName = staticmethod(lambda handle: b"Tesla T4" if handle else "Tesla T4")
        nvmlDeviceGetUUID = staticmethod(lambda handle: f"GPU-{handle}")
        nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: type("Memory", (), {"total": 15 * 1024**3}))
        nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: [7, 5])

    monkeypatch.setitem(sys.modules, "pynvml", Library)
    assert hardware._nvml() == [("GPU-0", T4), ("GPU-1", T4)] and calls == ["init", "shutdown"]


@pytest.mark.parametrize(
    "name, short",
    [
        ("Tesla T4", "T4"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA RTX PRO 6000 Max-Q", "RTX PRO 6000 Max-Q"),
    ],
)
def test_short_names(name, short):
    assert Gpu(name, 1.0, None).short == short


# precision

UNKNOWN, UNTOLD = Gpu("Strange", 8.0, None), "the driver does not tell the compute capability"


@pytest.mark.parametrize(
    "requested, gpus, used, reason",
    [
        ("no", [], "no", "fp32: as asked"),
        ("no", [A100], "no", "fp32: as asked"),
        ("fp16", [], "no", "fp32: precision 16 needs a GPU, and this machine has none"),
        ("bf16", [], "bf16", "bf16: as asked, on the CPU"),
        ("auto", [], "no", "fp32: this machine has no GPU"),
        ("fp16", [T4], "fp16", "fp16: as asked"),
        ("bf16", [T4], "fp16", "fp16: compute capability 7.5 has no bf16"),
        ("auto", [T4, T4], "fp16", "fp16: compute capability 7.5 has no bf16"),
        ("auto", [A100], "bf16", "bf16: compute capability 8.0 has it"),
        ("bf16", [A100], "bf16", "bf16: as asked"),
        ("fp16", [A100], "fp16", "fp16: as asked"),
        ("auto", [A100, T4], "fp16", "fp16: compute capability 7.5 has no bf16"),
        ("fp16", [P100], "fp16", "fp16: as asked, but slow: compute capability 6.0 has no tensor cores"),
        ("bf16", [P100], "fp16", "fp16: compute capability 6.0 has no bf16, nor tensor cores: slow"),
        ("auto", [P100], "no", "fp32: compute capability 6.0 has no tensor cores, so fp16 would not be faster"),
        ("bf16", [UNKNOWN], "bf16", f"bf16: as asked; {UNTOLD}"),
        ("auto", [A100, UNKNOWN], "fp16", f"fp16: {UNTOLD}, and fp16 runs on every GPU"),
    ],
)
def test_precision(requested, gpus, used, reason):
    assert choose_precision(requested, gpus) == (used, reason)


L4, H100, V100 = (Gpu(name, 22.0, at) for name, at in (("L4", (8, 9)), ("H100", (9, 0)), ("V100", (7, 0))))


@pytest.mark.parametrize(
    "requested, gpus, used, words",
    [
        ("fp16", [A100], "bf16", "bf16: compute capability 8.0 has it, which needs no loss scaling; "),
        ("fp16", [L4], "bf16", "trainer.precision=fp16 keeps the profile's fp16"),
        ("fp16", [H100, H100], "bf16", "compute capability 9.0 has it"),
        ("fp16", [H100, T4], "fp16", "fp16: as in the profile; compute capability 7.5 has no bf16"),
        ("fp16", [V100], "fp16", "fp16: as in the profile; compute capability 7.0 has no bf16"),
        ("fp16", [P100], "fp16", "compute capability 6.0 has no tensor cores, so it is not faster than fp32"),
        ("fp16", [A100, UNKNOWN], "fp16", f"fp16: as in the profile; {UNTOLD}"),
        ("fp16", [], "no", "fp32: precision 16 needs a GPU, and this machine has none"),
        ("bf16", [A100], "bf16", "bf16: as asked"),
        ("no", [A100], "no", "fp32"),
    ],
)
def test_the_fp16_of_a_profile_is_half_precision_as_the_gpu_has_it(requested, gpus, used, words):
    chosen, reason = choose_precision(requested, gpus, asked=False)
    assert chosen == used and words in reason


def test_a_wrong_precision_names_the_right_one():
    with pytest.raises(ValueError, match="Did you mean 'bf16'"):
        choose_precision("bfloat16", [])
    with pytest.raises(ValueError, match="auto, no, fp16, bf16"):
        choose_precision(16, [])


# what people and programs see


def test_it_reads_well(root, smi):
    found = on(root, {RUN: "Batch", "PATH": smi("for n in a b; do echo Tesla T4, 15360, 7.5, GPU-$n; done")})
    assert found.line(NOW + 1133).startswith("Platform(name='kaggle', mode='batch', gpus=[T4, T4], time_left=6:41:07, ")
    assert repr(on(root)).startswith("Platform(name='local', mode='script', gpus=[], time_left=no limit, ")
    table = found.table(NOW)
    assert "2027-01-15 06:00:00 UTC" in table and "PID 1" in table
    assert table.count("Tesla T4, 15.0 GiB") == 2 and "7.5" in table


def test_to_dict_is_plain_json(root, smi):
    found = on(root, {RUN: "Batch", "PATH": smi(TWO)})
    values = found.to_dict(NOW)
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert values["time_left_s"] == 7 * HOUR
    assert values["gpus"][1] == {"name": "NVIDIA A100-SXM4-40GB", "memory_gib": 40.0, "compute_capability": [8, 0]}
    assert on(root).to_dict()["time_left_s"] is None


def test_a_platform_cannot_be_changed(root):
    with pytest.raises(AttributeError):
        on(root).cores = 64


# the disk


def test_the_working_folder_ends_at_20_gb(root):
    put(root, {"/kaggle/working/model.bin": "x" * 5000, "/kaggle/working/runs/a/b": "x" * 500})
    free = shutil.disk_usage(root).free
    environ = {RUN: "Batch"}
    left = writable_bytes("/kaggle/working/runs/new", environ, root)
    assert abs(min(free, 20_000_000_000 - 5500) - left) < 500_000_000  # others write to this disk meanwhile
    assert left <= 20_000_000_000 - 5500
    assert writable_bytes("/tmp", environ, root) <= 60 * 1024**3
    at_home = writable_bytes("/kaggle/working", {}, root)
    assert at_home == pytest.approx(free, rel=0.05)  # a folder like any other


def test_a_full_working_folder(root, monkeypatch):
    put(root, {"/kaggle/working/model.bin": "x" * 5000})
    monkeypatch.setattr(hardware, "WORKING_BYTES", 6000)
    assert writable_bytes("/kaggle/working", {RUN: "Batch"}, root) == 1000
    monkeypatch.setattr(hardware, "WORKING_BYTES", 4000)
    assert writable_bytes("/kaggle/working", {RUN: "Batch"}, root) == 0
    assert writable_bytes("/tmp", {RUN: "Batch"}, root) > 6000  # only the working folder is full


def test_a_link_out_of_the_working_folder(root, monkeypatch):
    put(root, {"/kaggle/working/x": "", "/tmp/x": ""})
    (root / "kaggle/working/out").symlink_to(root / "tmp")
    monkeypatch.setattr(hardware, "WORKING_BYTES", 1000)
    assert writable_bytes("/kaggle/working/out", {RUN: "Batch"}, root) > 1000


def test_a_child_on_kaggle_knows_the_limit_too(root, monkeypatch):
    put(root, {"/kaggle/working/x": ""})
    monkeypatch.setattr(hardware, "WORKING_BYTES", 1000)
    assert writable_bytes("/kaggle/working", on(root, {RUN: "Batch"}).child_environ(), root) == 1000


def test_the_hosts_disk_is_not_ours(root, monkeypatch):
    "On Kaggle `disk_usage('/')` shows the host's eight terabytes."
    put(root, {"/kaggle/working/model.bin": "x" * 5000})
    host = namedtuple("usage", "total used free")(8 * 10**12, 10**12, 7 * 10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: host)
    found = on(root, {RUN: "Batch"})
    assert found.working_bytes == 20_000_000_000 - 5000 and found.scratch_bytes == 60 * 1024**3
    assert found.to_dict()["working_bytes"] == found.working_bytes
    assert "is kept; 18.6 GiB may be written" in found.table() and "may vanish; 60.0 GiB" in found.table()
    assert on(root).working_bytes == on(root, COLAB).scratch_bytes == 7 * 10**12
    # /kaggle/temp is not there until somebody makes it
    assert writable_bytes("/kaggle/temp/cache", {RUN: "Batch"}, root) == 60 * 1024**3


def test_the_working_folder_before_it_is_made(root):
    (root / "kaggle").mkdir()
    assert 0 < on(root, {RUN: "Batch"}).working_bytes <= 20_000_000_000


def test_a_mount_that_went_away(root, monkeypatch):
    def stale(folder):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(shutil, "disk_usage", stale)
    assert on(root).working_bytes == 0 == writable_bytes("/tmp", {}, root)


def test_a_folder_that_may_not_be_written(root, monkeypatch):
    monkeypatch.setattr(os, "access", lambda folder, mode: False)  # root may write everywhere, so the answer is made up
    assert writable_bytes("/tmp", {}, root) == 0


# where the data lie

K = "/kaggle/input"
NEWER = {
    f"{K}/datasets/ada/coffee-spectra/train.csv": "",
    f"{K}/datasets/bob/wheels/kit.whl": "",
    f"{K}/datasets/ada/nested/nested/deep/spectra.h5": "",
    f"{K}/competitions/soil/train.csv": "",
    f"{K}/competitions/soil/train/a.csv": "",
    f"{K}/notebooks/ada/features/features.npy": "",
    f"{K}/models/ada/resnet/pytorch/small/1/model.safetensors": "",
}
OLDER = {
    f"{K}/coffee-spectra/train.csv": "",
    f"{K}/soil/train.csv": "",
    f"{K}/features/features.npy": "",
    f"{K}/resnet/pytorch/small/1/model.safetensors": "",
}


@pytest.fixture
def away(tmp_path, monkeypatch) -> Path:
    "An empty folder to be in, so that ./data and ./input are nobody's."
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    return tmp_path / "away"


def found_at(root, slug, marker=None, **environ):
    return find_input(slug, marker, environ=environ, root=root).relative_to(root).as_posix()


@pytest.mark.parametrize(
    "slug, newer, older",
    [
        ("coffee-spectra", "datasets/ada/coffee-spectra", "coffee-spectra"),
        ("ada/coffee-spectra", "datasets/ada/coffee-spectra", "coffee-spectra"),
        ("datasets/ada/coffee-spectra", "datasets/ada/coffee-spectra", "coffee-spectra"),
        ("soil", "competitions/soil", "soil"),
        ("competitions/soil", "competitions/soil", "soil"),
        ("features", "notebooks/ada/features", "features"),
        ("ada/features", "notebooks/ada/features", "features"),
        ("resnet", "models/ada/resnet", "resnet"),
        ("ada/resnet/pytorch/small/1", "models/ada/resnet/pytorch/small/1", "resnet/pytorch/small/1"),
        ("models/ada/resnet/pytorch/small/1", "models/ada/resnet/pytorch/small/1", "resnet/pytorch/small/1"),
        ("resnet/pytorch/small/1", "models/ada/resnet/pytorch/small/1", "resnet/pytorch/small/1"),
    ],
)
def test_both_layouts_of_the_mounts(root, away, slug, newer, older):
    one, two = root / "one", root / "two"
    assert found_at(put(one, NEWER), slug) == f"kaggle/input/{newer}"
    assert found_at(put(two, OLDER), slug) == f"kaggle/input/{older}"
    # where both are mounted, the newer is meant
    assert found_at(put(one, OLDER), slug) == f"kaggle/input/{newer}"


def test_an_owner_or_a_subfolder_is_not_a_data_set(root, away):
    put(root, NEWER)
    for slug in ("ada", "train", "bob/coffee-spectra"):
        with pytest.raises(FileNotFoundError):
            find_input(slug, environ={}, root=root)


def test_at_home_the_same_notebook_works(root, away):
    put(away, {"input/coffee-spectra/x": "", "data/soil/x": ""})

    def find(slug, **environ):
        return find_input(slug, environ=environ, root=root)

    assert find("ada/coffee-spectra") == away / "input" / "coffee-spectra"
    put(away, {"data/coffee-spectra/x": ""})
    assert find("ada/coffee-spectra") == away / "data" / "coffee-spectra"
    put(away, {"data/datasets/ada/coffee-spectra/x": ""})  # a copy of Kaggle's tree
    assert find("coffee-spectra") == away / "data" / "datasets" / "ada" / "coffee-spectra"
    put(root, OLDER)
    assert find("ada/coffee-spectra") == root / "kaggle/input/coffee-spectra"
    put(root, {"/mine/coffee-spectra/x": "", "/other/soil/x": ""})
    mine = {"SPECTRAKIT_INPUT": f"/nowhere{os.pathsep}/mine{os.pathsep}/other/soil/"}
    assert find("coffee-spectra", **mine) == root / "mine/coffee-spectra"
    assert os.path.samefile(find("soil", **mine), root / "other/soil")  # the variable may name the data set itself
    put(away, {"here/wood/x": ""})
    assert find("wood", SPECTRAKIT_INPUT="here") == away / "here" / "wood"


def test_the_real_environment_is_the_default(away, monkeypatch):
    put(away, {"spectra/coffee/x": ""})
    monkeypatch.setenv("SPECTRAKIT_INPUT", str(away / "spectra"))
    assert find_input("coffee") == away / "spectra" / "coffee"


def test_a_deleted_current_folder_has_no_data(root, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert found_at(put(root, OLDER), "soil") == "kaggle/input/soil"


def test_a_marker_finds_the_folder_that_holds_it(root, away):
    put(root, NEWER)
    assert found_at(root, "ada/resnet", "*.safetensors") == "kaggle/input/models/ada/resnet/pytorch/small/1"
    assert found_at(root, "nested", "deep/*.h5") == "kaggle/input/datasets/ada/nested/nested"
    assert found_at(root, "soil", "*.csv") == "kaggle/input/competitions/soil"  # not soil/train below it
    with pytest.warns(UserWarning, match="No input is called 'renamed'.*kit.whl"):
        assert found_at(root, "renamed", "kit.whl") == "kaggle/input/datasets/bob/wheels"
    with pytest.warns(UserWarning):  # the name leads to a folder, but to the wrong one
        assert found_at(root, "soil", "spectra.h5") == "kaggle/input/datasets/ada/nested/nested/deep"
    with pytest.raises(FileNotFoundError, match=r"nor a folder with 'no.csv'"):
        found_at(root, "coffee", "no.csv")


def test_a_marker_in_two_places_decides_nothing(root, away):
    put(root, {f"{K}/datasets/ada/a/train.csv": "", f"{K}/datasets/ada/b/train.csv": ""})
    with pytest.raises(ValueError, match=r"ada/a, .*ada/b.*only one of them has"):
        find_input("c", "train.csv", environ={}, root=root)


def test_the_search_for_a_marker_ends(root, away, monkeypatch):
    put(root, {f"{K}/a/b/c/d/e/f/g/h/i/j/deep.csv": "", f"{K}/z/wide.csv": ""})
    (root / "kaggle/input/a/loop").symlink_to(root / "kaggle/input")
    with pytest.raises(FileNotFoundError):
        find_input("x", "deep.csv", environ={}, root=root)
    monkeypatch.setattr(inputs, "MAX_FOLDERS", 2)  # the top and its first folder
    with pytest.raises(FileNotFoundError):
        find_input("x", "wide.csv", environ={}, root=root)


@pytest.mark.parametrize("marker", ["", "/etc/passwd", "../x", "**/x.csv", "a//b", 3])
def test_a_wrong_marker_is_refused(root, away, marker):
    with pytest.raises(ValueError, match=r"marker.*'train.csv'"):
        find_input("coffee", marker, environ={}, root=root)


def test_two_owners_of_one_name(root, away):
    put(root, {**NEWER, f"{K}/datasets/eve/coffee-spectra/x": "", f"{K}/datasets/eve/soil/x": ""})
    with pytest.raises(ValueError, match=r"ada/coffee-spectra, .*eve/coffee-spectra.*Write more") as caught:
        find_input("coffee-spectra", environ={}, root=root)
    assert not isinstance(caught.value, OSError)
    assert found_at(root, "eve/coffee-spectra") == "kaggle/input/datasets/eve/coffee-spectra"
    with pytest.raises(ValueError, match="competitions/soil"):
        find_input("soil", environ={}, root=root)
    assert found_at(root, "competitions/soil") == "kaggle/input/competitions/soil"
    assert found_at(root, "coffee-spectra", "train.csv") == "kaggle/input/datasets/ada/coffee-spectra"


def test_one_folder_with_two_names_is_one(root, away):
    put(root, NEWER)
    (root / "kaggle/input/datasets/eve").mkdir()
    (root / "kaggle/input/datasets/eve/coffee-spectra").symlink_to(root / "kaggle/input/datasets/ada/coffee-spectra")
    assert found_at(root, "coffee-spectra") == "kaggle/input/datasets/ada/coffee-spectra"


@pytest.mark.parametrize(
    "slug, near",
    [
        ("cofee-spectra", "ada/coffee-spectra"),
        ("Coffee Spectra", "ada/coffee-spectra"),
        ("coffee_spectra", "ada/coffee-spectra"),
        ("eve/coffee-spectra", "ada/coffee-spectra"),
        ("Soil", "soil"),
        ("feature", "ada/features"),
        ("ResNet", "ada/resnet"),
    ],
)
def test_a_wrong_name_gets_the_right_one(root, away, slug, near):
    with pytest.raises(FileNotFoundError, match=f"Did you mean '{near}'") as caught:
        find_input(slug, environ={}, root=put(root, NEWER))
    assert found_at(root, near)  # and what it proposes works
    assert repr(slug) in str(caught.value)


def test_a_failure_says_what_was_looked_at(root, away):
    put(root, OLDER)
    put(away, {"data/wood/x": ""})
    with pytest.raises(FileNotFoundError) as caught:
        find_input("q", environ={"SPECTRAKIT_INPUT": "/mine"}, root=root)
    told = str(caught.value)
    assert "/mine (there is no such folder)" in told and "/kaggle/input (it holds coffee-spectra, features" in told
    assert f"{away / 'data'} (it holds wood)" in told and f"{away / 'input'} (there is no such folder)" in told
    assert "Did you mean" not in told
    for way_out in ("Add Input", "./data/q", "SPECTRAKIT_INPUT"):
        assert way_out in told


def test_a_long_list_is_cut(root, away):
    put(root, {f"{K}/number-{i:02d}/x": "" for i in range(40)})
    with pytest.raises(FileNotFoundError, match="number-11, and 28 more"):
        find_input("q", environ={}, root=root)


@pytest.mark.parametrize(
    "slug",
    [
        "",
        " ",
        "/kaggle/input/coffee",
        "../coffee",
        "ada/../coffee",
        "ada//coffee",
        "coffee/",
        "https://www.kaggle.com/datasets/ada/coffee",
        "C:/data",
        "a\0b",
        None,
        3,
    ],
)
def test_what_is_no_name_is_refused(root, away, slug):
    with pytest.raises(ValueError, match=r"is not the name of an input.*'ada/coffee-spectra'"):
        find_input(slug, environ={}, root=root)


# internet, only when asked


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_internet_is_there(server):
    assert has_internet(10, "127.0.0.1", server.getsockname()[1]) is True
    server.settimeout(10)
    connection, _ = server.accept()
    with connection:
        connection.settimeout(10)
        assert connection.recv(100) == b""  # nothing was sent


def test_nobody_answers(server):
    port = server.getsockname()[1]
    server.close()
    assert has_internet(10, "127.0.0.1", port) is False


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-3, "Temporary failure in name resolution"),
        OSError(101, "Network is unreachable"),
        TimeoutError(),
    ],
)
def test_offline_is_an_answer_and_no_error(monkeypatch, error):
    def offline(*args, **kwargs):
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    assert has_internet(10) is False


def test_a_name_lookup_that_hangs_does_not_hold_anybody(monkeypatch):
    released, answered = threading.Event(), threading.Event()

    def look_up(*args, **kwargs):
        released.wait(60)
        answered.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert has_internet(0.2) is False and not answered.is_set()
    released.set()


@pytest.mark.parametrize("host", ["", "no such host.invalid", "x" * 300, "..", "é" * 80])
def test_a_strange_host_is_not_there(host, monkeypatch):
    ask = socket.getaddrinfo

    def local_only(name, *rest, **more):
        if name and name != "localhost":
            str(name).encode("idna")  # as the real one does, and asks nobody
        if name:
            raise socket.gaierror(-2, "Name or service not known")
        return ask(name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", local_only)
    assert has_internet(5, host, 9) is False


@pytest.mark.parametrize("timeout_s", [0, -1, math.inf, math.nan, True, "2", None])
def test_a_time_out_that_is_none(timeout_s):
    with pytest.raises(ValueError, match="is not a valid time"):
        has_internet(timeout_s)


def test_detect_asks_nobody(root, monkeypatch, smi):
    def forbidden(*args, **kwargs):
        raise AssertionError("the network was touched")

    for name in ("getaddrinfo", "create_connection", "socket"):
        monkeypatch.setattr(socket, name, forbidden)
    assert on(root, {**KAGGLE, "PATH": smi(TWO)}).table() and on(root, COLAB).line()


# the house


def test_the_import_is_light_and_detect_starts_and_asks_nothing():
    code = """if True:
        import sys
        import spectrakit.system.hardware, spectrakit.system.inputs, spectrakit.system.platforms.detect as p
        heavy = {"torch", "accelerate", "psutil", "pynvml", "numpy", "yaml", "IPython"} & set(sys.modules)
        assert not heavy, heavy
        environ, spectrakit.system.hardware._nvml = {"PATH": ""}, lambda: []  # the driver takes its own time
        seen = []
        slow = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.system", "socket.connect", "socket.getaddrinfo")
        sys.addaudithook(lambda event, _: seen.append(event) if event in slow or event == "open" else None)
        p.detect(environ)
        assert "torch" not in sys.modules and "psutil" not in sys.modules
        assert "open" in seen  # the hook hears
        print(*(set(seen) & set(slow)))
    """
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
