"""A sealed Kaggle and a sealed Colab: what a session sees and what is left of it, the pushed kernels in it, and what
goes wrong on purpose.

Needs namespaces (root, or a user's own) and an index for the platform's packages; skipped with a reason where these are
not to be had.
`make kaggle-sim` plays more.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from helpers import tree_hashes
from kaggle_sim import accidents, environment, kernels, sealed, story
from kaggle_sim.colab import run_colab
from kaggle_sim.kernels import run_kernel

pytestmark = pytest.mark.slow
root = Path(__file__).resolve().parents[2]
LIMIT_S = 300  # far more than a session takes, on a busy machine too
IN_TESTS = (
    "wheels-missing",
    "another-python",
    "damaged-wheel",
    "old-accelerate",
    "full-at-start",
    "p100",
    "one-gpu",
    "cut-short",
)
# the first of three sessions below is cut short, too; tests/launch plans for fewer GPUs than were asked for
ALIKE = ("one-gpu", "cut-short")


def made(platform: str) -> environment.Environment:
    "The platform's Python, or a skipped test."
    if reason := sealed.why_not():
        pytest.skip(reason)
    try:
        return environment.environment(platform)
    except environment.CannotMake as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def kaggles() -> environment.Environment:
    return made("kaggle")


@pytest.fixture(scope="module")
def colabs() -> environment.Environment:
    return made("colab")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory) -> Path:
    "A folder with the data sets and the kernels of the story. Not to be changed."
    folder = tmp_path_factory.mktemp("pushed")
    story.build(folder, "--no-check")
    for name in story.KERNELS:
        story.staged(name, folder)
    return folder


def changed(kernel_folder: Path, place: Path, more: str) -> Path:
    "A copy of a kernel of the story, with `more` settings written into its line MORE, as its user would."
    shutil.copytree(kernel_folder, place)
    (code,) = place.glob("*.ipynb")
    text = code.read_text(encoding="utf-8")
    assert text.count('MORE = \\"') == 1
    code.write_text(re.sub(r'(MORE = \\"[^"\\]*)', rf"\1 {more}", text), encoding="utf-8")
    return place


def kernel(folder: Path, code: str, kind: str = "script", **metadata) -> Path:
    "A kernel folder with this code; a notebook's cells are parted by empty lines."
    folder.mkdir()
    name = {"script": "code.py", "notebook": "code.ipynb"}[kind]
    text = code if kind == "script" else json.dumps(notebook(*code.strip().split("\n\n")))
    (folder / name).write_text(text, encoding="utf-8")
    told = {
        "id": "INSERT-YOUR-NAME/a-kernel",
        "title": "a kernel",
        "code_file": name,
        "kernel_type": kind,
        "enable_internet": False,
        **metadata,
    }
    (folder / "kernel-metadata.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


def notebook(*sources: str) -> dict:
    cells = [
        {
            "cell_type": "code",
            "id": f"c{n}",
            "metadata": {},
            "execution_count": 1,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}],
            "source": source,
        }
        for n, source in enumerate(sources)
    ]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}


# --- the tree ---------------------------------------------------------------------------------------------------------

FACTS = """
import importlib.util, json, os, shutil, socket, subprocess, sys
def refused(act):
    try: act()
    except OSError as error: return error.strerror
    return "it went well"
(here := socket.socket()).bind(("127.0.0.1", 0))
here.listen()
loop = refused(lambda: socket.create_connection(here.getsockname(), timeout=5))
inputs = sorted(os.path.join(top, name) for top, _, names in os.walk("/kaggle/input") for name in names)
subprocess.Popen(["sleep", os.environ["SLEEP"]])  # somebody who does not go home
print("on its way", file=sys.stderr)
json.dump({
    "file": __file__, "cwd": os.getcwd(), "argv": sys.argv[1:], "inputs": inputs,
    "home": [name for name in os.listdir("/root") if name != ".pyenv"],
    "write input": refused(lambda: open(inputs[0], "a")), "new input": refused(lambda: open("/kaggle/input/mine", "w")),
    "network": refused(lambda: socket.create_connection(("192.0.2.1", 80), timeout=5)), "loop": loop,
    "working": shutil.disk_usage("/kaggle/working").total,
    "found": [n for n in ("spectrakit", "hydra", "nbdev", "torch", "omegaconf") if importlib.util.find_spec(n)],
    "environ": {name: value for name, value in os.environ.items()
                if name.startswith(("KAGGLE_KERNEL", "KAGGLE_IS", "COLAB_", "PYTHON", "SPECTRAKIT"))},
    "others": [os.path.basename(os.readlink(f"/proc/{n}/exe")) for n in os.listdir("/proc")
               if n.isdigit() and int(n) != os.getpid()],
    "seen": [path for path in os.environ["UNSEEN"].split(":") if os.path.exists(path)],
}, open("facts.json", "w"))
"""


@pytest.fixture
def soil(tmp_path) -> Path:
    "A folder of sources with one data set and one competition."
    for slug in ("soil", "soil-cup"):
        (tmp_path / "sources" / slug).mkdir(parents=True)
        (tmp_path / "sources" / slug / "train.csv").write_text("a,b\n1,2\n")
    return tmp_path / "sources"


@pytest.mark.parametrize(
    "layout, inputs",
    [
        ("new", ["/kaggle/input/competitions/soil-cup/train.csv", "/kaggle/input/datasets/ada/soil/train.csv"]),
        ("legacy", ["/kaggle/input/soil-cup/train.csv", "/kaggle/input/soil/train.csv"]),
    ],
)
def test_what_a_session_sees_and_what_is_left_of_it(kaggles, tmp_path, soil, layout, inputs):
    folder = kernel(
        tmp_path / "kernel", FACTS, dataset_sources=["INSERT-YOUR-NAME/soil"], competition_sources=["soil-cup"]
    )
    mark = str(100000 + uuid.uuid4().int % 900000)
    unseen = ":".join(map(str, (root / "tools", tmp_path, Path(sys.prefix) / "bin")))
    done = run_kernel(
        folder,
        soil,
        tmp_path / "out" / "working",
        layout=layout,
        working_mib=20,
        limit_s=LIMIT_S,
        python=kaggles,
        quiet=True,
        rerun=layout == "legacy",
        environ={"SLEEP": mark, "UNSEEN": unseen},
    )
    assert (done.how, done.status, done.verdict) == ("ended", 0, "COMPLETE"), done.text
    facts = json.loads((done.out / "facts.json").read_text())
    assert (
        facts["file"] == "/kaggle/src/script.py"
        and facts["cwd"] == "/kaggle/working"
        and facts["argv"] == []
        and facts["home"] == []
    )
    assert facts["inputs"] == inputs
    assert (
        facts["write input"] == facts["new input"] == "Read-only file system"
        and facts["network"] == "Network is unreachable"
        and facts["loop"] == "it went well"
    )
    assert (
        facts["working"] == 20 << 20
        and facts["found"] == ["torch", "omegaconf"]
        and not {"jupyter", "pytest"} & set(facts["others"])
        and len(facts["others"]) == 2
    )
    assert facts["seen"] == []
    assert facts["environ"] == {
        "KAGGLE_KERNEL_RUN_TYPE": "Batch",
        "KAGGLE_KERNEL_INTEGRATIONS": "",
        "COLAB_RELEASE_TAG": kernels.ENVIRON["COLAB_RELEASE_TAG"],
        "PYTHONPATH": "/kaggle/lib/kagglegym:/kaggle/lib",
        "PYTHONUSERBASE": kernels.ENVIRON["PYTHONUSERBASE"],
        "SPECTRAKIT_TIME_LIMIT": f"{LIMIT_S}s",
        **({"KAGGLE_IS_COMPETITION_RERUN": "1"} if layout == "legacy" else {}),
    }
    assert not [p for p in psutil.process_iter() if _sleeps(p, mark)], "somebody lives on"
    assert [(entry["stream_name"], entry["data"]) for entry in done.log] == [("stderr", "on its way\n")] and done.log[
        0
    ]["time"] > 0
    lines = (tmp_path / "out" / "a-kernel.log").read_text().splitlines()
    assert lines[0].startswith('[{"stream_name": "stderr", "time": ') and lines[-1] == "]"


def _sleeps(process: psutil.Process, mark: str) -> bool:
    try:
        return process.cmdline() == ["sleep", mark]
    except psutil.Error:
        return False


def test_a_users_own_namespaces_do_as_well(kaggles, tmp_path, soil, monkeypatch):
    words = (*sealed.UNSHARE, "--map-root-user")
    if subprocess.run([*words, sys.executable, "-I", "-c", sealed.TRY], capture_output=True).returncode:
        pytest.skip("a user's own namespaces are not allowed here")
    monkeypatch.setattr(sealed, "_namespaces", lambda: words)
    code = (
        "import os\nprint(os.listdir('/kaggle/input/soil'), os.getuid())\nopen('/kaggle/working/x', "
        "'w').write('kept')\nopen('/kaggle/input/soil/y', 'w')"
    )
    done = run_kernel(
        kernel(tmp_path / "kernel", code, dataset_sources=["ada/soil"]),
        soil,
        tmp_path / "out" / "working",
        layout="legacy",
        limit_s=LIMIT_S,
        python=kaggles,
        quiet=True,
    )
    assert (
        done.status == 1
        and "['train.csv'] 0" in done.text
        and "Read-only file system" in done.text
        and (done.out / "x").read_text() == "kept"
    )


def test_a_notebook_that_fails_leaves_its_outputs_and_its_log(kaggles, tmp_path, soil):
    (soil / "my-tool").mkdir()
    kernel(soil / "my-tool" / "x", "answer = 42")
    for file in (soil / "my-tool" / "x").iterdir():
        shutil.move(file, soil / "my-tool")
    code = "import my_tool\nprint(my_tool.answer)\nopen('kept.txt', 'w').write('x')\n\n1/0\n\nprint('never')"
    folder = kernel(tmp_path / "kernel", code, "notebook", kernel_sources=["ada/my-tool", "ada/not-there"])
    done = run_kernel(folder, soil, tmp_path / "out" / "working", limit_s=LIMIT_S, python=kaggles, quiet=True)
    assert (done.how, done.status, done.verdict) == ("ended", 1, "ERROR")
    assert (
        "42\n" in [entry["data"] for entry in done.log if entry["stream_name"] == "stdout"]
        and "ZeroDivisionError" in done.text
        and "never" not in done.text
    )
    assert done.files() == ["__notebook__.ipynb", "kept.txt"]
    shown = json.loads((done.out / "__notebook__.ipynb").read_text())["cells"]
    assert "old" not in json.dumps(shown) and "42" in json.dumps([cell.get("outputs") for cell in shown])


def test_a_session_is_killed_at_its_limit_and_keeps_what_it_wrote(kaggles, tmp_path, soil):
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('here', flush=True)\n"
        "open('kept.txt', 'w').write('x')\ntime.sleep(1000)"
    )
    done = run_kernel(
        kernel(tmp_path / "kernel", code),
        soil,
        tmp_path / "out" / "working",
        limit_s=LIMIT_S,
        kill_after=("kept.txt", 0.5),
        python=kaggles,
        quiet=True,
    )
    assert (
        (done.how, done.status, done.verdict) == ("limit", None, "CANCEL_ACKNOWLEDGED")
        and done.files() == ["kept.txt"]
        and done.text == "here\n"
    )
    done = run_kernel(
        tmp_path / "kernel", soil, tmp_path / "again" / "working", limit_s=0.5, python=kaggles, quiet=True
    )
    assert (done.how, done.verdict) == ("limit", "CANCEL_ACKNOWLEDGED")


def test_a_session_ends_with_whoever_started_it(kaggles, tmp_path, soil):
    mark = str(100000 + uuid.uuid4().int % 900000)
    folder = kernel(
        tmp_path / "kernel",
        "import subprocess\nopen('kept.txt', 'w').write('x')\nprint('here', "
        f"flush=True)\nsubprocess.run(['sleep', '{mark}'])",
    )
    words = [
        sys.executable,
        root / "tools" / "kaggle_sim",
        "run",
        folder,
        "--datasets",
        soil,
        "--out",
        tmp_path / "out" / "working",
        "--limit",
        LIMIT_S,
    ]
    process = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    try:
        while "here" not in process.stdout.readline():
            assert process.poll() is None
        process.kill()
        process.wait()
        left = [p for p in psutil.process_iter() if _sleeps(p, mark)]
        assert psutil.wait_procs(left, timeout=60)[1] == []
    finally:
        process.kill()
        process.communicate()


# --- the pushed kernels -----------------------------------------------------------------------------------------------


@pytest.mark.long  # make kaggle-sim
def test_cut_short_gone_on_with_and_predicted_for_a_hidden_test(kaggles, pushed, tmp_path):
    """Three sessions, each with the output of the one before, in both layouts; the last is a competition's rerun with
    more to predict.
    """
    sources = tmp_path / "sources"
    shutil.copytree(pushed / "datasets", sources)
    # 15 epochs of 40, for the tests' time; the first session is killed after the first of them
    begun, gone_on = (
        changed(pushed / "pushed" / name, tmp_path / name, "trainer.max_epochs=15") for name in ("train", "train-on")
    )
    options = {"limit_s": LIMIT_S, "python": kaggles, "quiet": True}
    first = run_kernel(
        begun,
        sources,
        tmp_path / "1" / "working",
        tell_limit=False,
        kill_after=(story.CHECKPOINT, 0),
        **options,
    )
    assert first.verdict == "CANCEL_ACKNOWLEDGED" and re.search("spectrakit: installed .*hydra-core", first.text), (
        first.text
    )
    stored = tree_hashes(shutil.copytree(first.out, sources / "spectrakit-train"))
    second = run_kernel(gone_on, sources, tmp_path / "2" / "working", layout="legacy", **options)
    assert second.verdict == "COMPLETE" and "continues from step" in second.text and "completed: all" in second.text, (
        second.text
    )
    assert tree_hashes(sources / "spectrakit-train") == stored and len(second.files()) < kernels.MOST_FILES
    shutil.copytree(second.out, sources / "spectrakit-train-on")
    rows = hidden_test(sources / "coffee-table")
    third = run_kernel(pushed / "pushed" / "infer", sources, tmp_path / "3" / "working", rerun=True, **options)
    assert third.verdict == "COMPLETE" and "kaggle, competition_rerun" in third.text, third.text
    found = story.checked(third.out / "submission.csv", sources / "coffee-table" / "sample_submission.csv")
    assert len(found) == rows + 1 and all(sum(map(float, row[1:])) == pytest.approx(1, abs=1e-3) for row in found[1:])


def hidden_test(table: Path) -> int:
    "Twice as many rows to predict, as a rerun has them; how many."
    for name in ("test.csv", "sample_submission.csv"):
        header, *rows = csv.reader((table / name).read_text().splitlines())
        more = [[str(1000 + int(row[0])), *row[1:]] for row in rows]
        with open(table / name, "w", newline="") as file:
            csv.writer(file).writerows([header, *rows, *more])
    return 2 * len(rows)


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in ALIKE)) for name in IN_TESTS])
def test_an_accident_is_told_and_costs_only_what_it_must(kaggles, pushed, tmp_path, name):
    accident = next(accident for accident in accidents.ACCIDENTS if accident.name == name)
    done = accidents.play(
        accident, pushed / "datasets", tmp_path / name, layout="legacy" if len(name) % 2 else "new", python=kaggles
    )
    assert accidents.complaints(accident, done) == [], done.text


@pytest.mark.parametrize("name", [pytest.param("images", marks=pytest.mark.long), "folds"])
def test_one_kernel_trains_and_hands_in(kaggles, pushed, tmp_path, name):
    "A folder of images, and a table with five folds and two models: from the attached data to submission.csv."
    words = {"images": "trainer.max_epochs=1", "folds": "trainer.max_epochs=2 launch.mode=inline"}[name]
    done = run_kernel(
        changed(pushed / "pushed" / name, tmp_path / name, words),
        pushed / "datasets",
        tmp_path / "out" / "working",
        limit_s=LIMIT_S,
        python=kaggles,
        quiet=True,
    )
    assert done.verdict == "COMPLETE", done.text
    data = {"images": "digit-images", "folds": "cell-table"}[name]
    rows, wanted = (
        list(csv.reader(file.read_text().splitlines()))
        for file in (done.out / "submission.csv", pushed / "datasets" / data / "sample_submission.csv")
    )
    assert rows[0] == wanted[0] and [row[0] for row in rows] == [row[0] for row in wanted]
    assert len({row[1] for row in rows[1:]}) > 5, "something was learned"
    assert len(done.files()) < kernels.MOST_FILES and "output-manifest.json" in done.files()


@pytest.mark.long  # in two sessions, without a sealed Kaggle: test_kaggle_notebooks.py
def test_a_language_model_is_fine_tuned_in_a_session(kaggles, pushed, tmp_path):
    "From the attached model and texts to a folder that `from_pretrained` loads, and texts that it has written."
    pytest.importorskip("transformers", reason="the model of the story needs the extra lm")
    done = run_kernel(
        changed(pushed / "pushed" / "lm", tmp_path / "lm", "trainer.max_steps=6 launch.mode=inline"),
        pushed / "datasets",
        tmp_path / "out" / "working",
        limit_s=LIMIT_S,
        python=kaggles,
        quiet=True,
    )
    assert done.verdict == "COMPLETE", done.text
    assert {"samples.csv", "output-manifest.json", "my-model/config.json"} <= set(done.files()), done.files()


def ariel_inputs(pushed: Path, folder: Path) -> Path:
    "The wheels, and simulated frames under the name of the competition, with a planet that cannot be read."
    from spectrakit.tasks.ariel.simulate import Instrument, simulate

    shutil.copytree(pushed / "datasets" / "spectrakit-wheels", folder / "spectrakit-wheels")
    data = simulate(folder / "ariel-data-challenge-2025", (5, 2), Instrument(pairs=(24, 288))).folder
    signal = data / "test" / "1042" / "AIRS-CH0_signal_0.parquet"
    signal.write_bytes(signal.read_bytes()[:999])
    return folder


@pytest.mark.long  # its cells, without a sealed Kaggle: test_kaggle_notebooks.py
@pytest.mark.parametrize("names", [("ariel",), ("ariel-train", "ariel-infer")], ids=" ".join)
def test_ariel_from_raw_frames_to_a_submission(kaggles, pushed, tmp_path, names):
    "One kernel, or two of which the second gets the output of the first."
    pytest.importorskip("pyarrow", reason="the extra `ariel` is not installed")
    sources = ariel_inputs(pushed, tmp_path / "sources")
    for name in names:
        done = run_kernel(
            pushed / "pushed" / name,
            sources,
            tmp_path / name / "working",
            layout="legacy" if len(names) == 1 else "new",
            limit_s=LIMIT_S,
            python=kaggles,
            quiet=True,
        )
        assert done.verdict == "COMPLETE", done.text
        assert len(done.files()) < kernels.MOST_FILES and "output-manifest.json" in done.files()
        shutil.copytree(done.out, sources / f"spectrakit-{name}")
    assert "Planet 1042 of test" in done.text and ("planets of train are measured" in done.text) == (len(names) == 1)
    sample = sources / "ariel-data-challenge-2025" / "sample_submission.csv"
    rows = story.checked(done.out / "submission.csv", sample)
    assert [len(row) for row in rows] == [567] * 3 and all(float(text) > 0 for row in rows[1:] for text in row[1:])


# --- Colab ------------------------------------------------------------------------------------------------------------

PAGE = """
import os
print(type(get_ipython()).__module__, os.getcwd(), os.path.exists("/kaggle"), sorted(os.listdir()))

from google.colab import drive, output, userdata
drive.mount("/content/drive")
drive.mount("/content/drive")
with open("/content/drive/MyDrive/sessions.txt", "a") as file: file.write("x")
print(open("/content/drive/MyDrive/sessions.txt").read())
print(userdata.get("KEY"))
output.enable_custom_widget_manager()

import runpy
runpy.run_path("/content/drive/MyDrive/spectrakit-wheels/install.py")["install"]()
import IPython, ipykernel, ipywidgets
import spectrakit as sk
print(sk.detect().line(), IPython.__version__, ipykernel.__version__, ipywidgets.__version__)

drive.flush_and_unmount()
print(os.path.exists("/content/drive"))
"""


def test_colab_keeps_nothing_but_drive(colabs, pushed, tmp_path):
    page, drive = tmp_path / "page.ipynb", tmp_path / "drive"
    page.write_text(json.dumps(notebook(*PAGE.strip().split("\n\n"))), encoding="utf-8")
    shutil.copytree(pushed / "datasets" / "spectrakit-wheels", drive / "spectrakit-wheels")
    first, second = [
        run_colab(
            page,
            drive,
            tmp_path / str(n) / "page",
            limit_s=LIMIT_S,
            secrets={"KEY": "value"},
            python=colabs,
            quiet=True,
        )
        for n in (1, 2)
    ]
    for number, done in ((1, first), (2, second)):
        assert done.verdict == "COMPLETE", done.text
        assert (
            "google.colab._shell /content False ['sample_data']" in done.text
            and "Drive already mounted at /content/drive" in done.text
        )
        assert (
            f"\n{'x' * number}\nvalue\n" in done.text
            and "name='colab', mode='interactive'" in done.text
            and "7.34.0 6.17.1 7.7.1" in done.text
        )
        assert (done.out / "journal").read_text().splitlines() == [
            "drive: mounted at /content/drive",
            "output: custom widgets enabled",
            "drive: flushed and unmounted",
        ]
    assert (drive / "sessions.txt").read_text() == "xx"


@pytest.mark.long  # test_colab_keeps_nothing_but_drive
def test_colab_from_a_notebook_that_names_no_wheels_over_its_traps(colabs, pushed, tmp_path):
    """Drive is mounted first, the wheels are chosen in a dialog, no GPU is granted, the machine is taken away, another
    GPU comes, memory is full in the middle; each time *Run all* goes on.
    """
    story.tell_colab(tmp_path / "colab", LIMIT_S, True, colabs, pushed / "datasets")


# --- without a session ------------------------------------------------------------------------------------------------


def test_the_platforms_python_has_what_is_listed_and_not_what_a_session_brings(kaggles):
    here = environment.installed(kaggles.layers)
    assert not set(here) & set(environment.FORBIDDEN) and {
        "accelerate",
        "ipywidgets",
        "papermill",
        "omegaconf",
        "psutil",
        "cloudpickle",
        "safetensors",
    } <= set(here)
    assert (here["ipython"], here["ipykernel"], here["papermill"]) == ("7.34.0", "6.17.1", "2.6.0")
    assert any(line.startswith("torch ") for line in kaggles.differences)
    assert environment.environment("kaggle") == kaggles  # made once


@pytest.mark.parametrize(
    "metadata, told",
    [
        ({"id": "nothing"}, "is not OWNER/SLUG"),
        ({"code_file": "other.py"}, "is not in the folder"),
        ({"kernel_type": "R"}, "neither notebook nor script"),
    ],
)
def test_a_folder_that_is_no_kernel_is_a_sentence(tmp_path, metadata, told):
    with pytest.raises(kernels.BadKernel, match=told):
        kernels.read_kernel(kernel(tmp_path / "kernel", "", **metadata))


def test_a_source_that_is_not_there_is_told_and_left_out(tmp_path, soil):
    found = kernels.read_kernel(
        kernel(
            tmp_path / "kernel",
            "",
            dataset_sources=["ada/soil", "ada/rain"],
            kernel_sources=["bob/notes"],
            enable_internet=True,
        )
    )
    binds, utilities = kernels.mounts(found, soil, "new")
    assert [place for _, place, _ in binds] == ["/kaggle/input/datasets/ada/soil"] and utilities == []
    assert [note.split(" is ")[0] for note in found.notes] == [
        "enable_internet",
        "the dataset ada/rain",
        "the notebook bob/notes",
    ]


def test_where_sources_are_mounted():
    assert (
        kernels.place_of("model", "ada/lines/pytorch/small/2", "new")
        == "/kaggle/input/models/ada/lines/pytorch/small/2"
    )
    assert kernels.place_of("notebook", "ada/train", "legacy") == "/kaggle/input/train"
    assert kernels.place_of_utility("ada", "my-tool", "new") == "/kaggle/usr/lib/notebooks/ada/my_tool"


def test_where_there_are_no_namespaces_a_sentence_says_so(monkeypatch):
    sealed._namespaces.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sealed.why_not().startswith("macOS has no namespaces") and "WSL2" in sealed.why_not()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sealed, "UNSHARE", ("false",))
    assert "This user may not make the namespaces" in sealed.why_not()
    sealed._namespaces.cache_clear()


def test_the_command_says_what_is_wrong_with_what_it_was_given(tmp_path):
    command = [sys.executable, str(root / "tools" / "kaggle_sim")]
    done = subprocess.run([*command, "accidents", "p1000"], capture_output=True, text=True)
    assert (done.returncode == 1 and "there is no accident 'p1000'" in done.stderr) or sealed.why_not()
    done = subprocess.run(
        [*command, "run", str(tmp_path), "--datasets", str(tmp_path), "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 1 and ("is no kernel" in done.stderr or sealed.why_not()) and "Traceback" not in done.stderr
    )


def test_a_submission_that_is_not_as_the_sample_is_refused(tmp_path):
    (tmp_path / "sample.csv").write_text("id,a\n1,0.5\n2,0.5\n")
    for text, told in (("id,b\n1,0\n2,0\n", "columns"), ("id,a\n1,0\n", "ids"), ("id,a\n1,0\n2,7\n", "the row")):
        (tmp_path / "mine.csv").write_text(text)
        with pytest.raises(story.Failed, match=told):
            story.checked(tmp_path / "mine.csv", tmp_path / "sample.csv")
