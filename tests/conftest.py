"""Fixtures that several test modules share."""

import functools
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

import fork_server
import helpers
from helpers import SETTINGS, mount, mounted
from notebook_kernels import COLAB, CannotInstall, Notebook, python_with
from spectrakit.system import secret_masking

# Threads that wait for the others of their pool sleep: where tests share the cores, turning takes three times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A task file that a test writes twice within a second would be read from the bytecode of the first.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

# `nohup make test` has SIGHUP ignored, and so would have all that tests start; an interpreter begins without a handler.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


COLLECTED: set[str] = set()  # this project's own modules that were imported in order to find the tests


def pytest_collection_finish():
    """The tests themselves are compiled by now; what they write and import from here on is not to be kept.

    And no collection of garbage looks through thousands of tests, here or in a fork.
    """
    sys.dont_write_bytecode = True
    own = tuple(str(Path(__file__).resolve().parent.parent / folder) + os.sep for folder in ("tests", "tools", "bench"))
    for name, module in sys.modules.copy().items():
        if isinstance(module, types.ModuleType) and str(vars(module).get("__file__")).startswith(own):
            COLLECTED.add(name)
    gc.collect()
    gc.freeze()


# Whoever begins with a long one of these ends before the others do.
LONGEST = (
    "end_to_end/test_kaggle_sim.py",
    "end_to_end/test_browser.py",
    "launch/test_supervisor.py",
    "train/test_rounds.py",
    "tuning/test_search.py",
    "tuning/test_cross_validation.py",
    "lm/test_language_model.py",
    "lm/test_exporting.py",
    "end_to_end/test_kaggle_notebooks.py",
    "end_to_end/test_notebook.py",
    "end_to_end/test_kaggle_chain.py",
    "end_to_end/test_nodes.py",
    "end_to_end/test_faults.py",
    "train/test_replaced_buffers.py",
    "train/test_task_modules.py",
    "view/test_live.py",
    "distributed/test_context.py",
    "runs/test_resume_plan.py",
    "kaggle/test_wheelhouse.py",
    "launch/test_lost_folders.py",
    "serving/test_inference_server.py",
    "cloud/test_cloud.py",
    "kaggle/test_up.py",
)


def pytest_collection_modifyitems(items):
    "The files that take longest come first, then the others; the notebooks, one at a time, fill what is left."
    tests = Path(__file__).resolve().parent
    rank = {tests / name: number for number, name in enumerate(LONGEST)} | {tests / "test_cells.py": 1000}
    items.sort(key=lambda item: rank.get(item.path, len(LONGEST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    "A file's tests stay together, which may share what they have made; the notebooks of test_cells.py need not."
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith("tests/test_cells.py::") else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def own_ipython(tmp_path_factory):
    "A profile of IPython for this worker: kernels of several would wait for each other at one history."
    os.environ["IPYTHONDIR"] = str(tmp_path_factory.mktemp("ipython"))


@pytest.fixture(autouse=True)
def own_secrets():
    "Secrets that a test hands over are masked in that test alone."
    before = dict(secret_masking._handed)
    yield
    secret_masking._handed.clear()
    secret_masking._handed.update(before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    "Training processes are forked from one that has imported everything, and draw nothing, but for the mark `fresh`."
    fresh = item.get_closest_marker("fresh") is not None
    fork_server.forks_training(not fresh)
    fork_server.draw_curves(fresh)
    fork_server.kind_of_test = "models" if item.path.parent.name == "lm" else "plain"
    leave_other_tests_out(item.module.__name__)


def leave_other_tests_out(of_test: str) -> None:
    "Jobs carry the state of the user's own modules: of those that this test uses, not of all that pytest has imported."
    if state := sys.modules.get("spectrakit.launch.pickling.module_state"):
        found = getattr(state.own_modules, "of_all", state.own_modules)
        left_out = COLLECTED - used_by(of_test)

        def own_modules():
            return {name: module for name, module in found().items() if name not in left_out}

        own_modules.of_all = found
        state.own_modules = own_modules


@functools.cache
def used_by(test: str) -> set[str]:
    "A test's module, and the modules of this folder that its classes and functions come from, and theirs."
    used, todo = set(), [test]
    while todo:
        if (name := todo.pop()) not in used:
            used.add(name)
            for value in list(vars(sys.modules[name]).values()):
                if isinstance(value, types.ModuleType):
                    todo += {value.__name__} & COLLECTED
                elif isinstance(value, (type, types.FunctionType)):
                    todo += {value.__module__} & COLLECTED
    return used


@pytest.fixture
def clean_env() -> dict[str, str]:
    "This process's environment without what would tell spectrakit about the machine it is on."
    return helpers.clean_environ()


@pytest.fixture
def run_cli(tmp_path):
    """A function that runs `python -m spectrakit WORD…` in the test's own folder and returns the CompletedProcess.

    `env` adds variables, `cwd` chooses another folder, `timeout_s` ends a command that hangs.
    """

    def run(*words, cwd=tmp_path, **keywords) -> subprocess.CompletedProcess:
        return helpers.run_cli(cwd, *words, **keywords)

    return run


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    "An empty folder to work in, with nothing in the environment that says where this is."
    for name in filter(helpers.foreign, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> subprocess.CompletedProcess:
    """`spectrakit train …/tasks.py:Submitting …`, in a fresh child, which draws; `.folder` is where, `.run` its run.

    Not to be changed.
    """
    folder = tmp_path_factory.mktemp("trained")
    done = helpers.run_cli(folder, "train", helpers.task("Submitting"), *SETTINGS, "--predict", "table.csv", fresh=True)
    assert done.returncode == 0, done.stderr
    done.folder, done.run = folder, helpers.only_run(folder)
    return done


@pytest.fixture
def trained_copy(trained, tmp_path) -> Path:
    "A copy of that run, to be spoiled."
    return Path(shutil.copytree(trained.run, tmp_path / "copies" / trained.run.name))


@pytest.fixture
def train(tmp_path):
    "A function that trains a task in this process, as `in_process.trainer_in` makes it."
    from in_process import trainer_in  # it imports torch

    return trainer_in(tmp_path)


@pytest.fixture
def start_cli(tmp_path):
    "A function that starts a command and returns its Popen; what is still alive at the end of the test is killed."
    started = []

    def start(*words, cwd=tmp_path, **keywords) -> subprocess.Popen:
        started.append(helpers.start_cli(cwd, *words, **keywords))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def small_disk(tmp_path):
    "A folder on a disk of 24 MiB of its own."
    yield from mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=24m", "tmpfs")


@pytest.fixture
def read_only(tmp_path):
    "A function that makes a folder read-only, for root as well."
    folders = []

    def make(folder: Path) -> Path:
        if os.geteuid():
            folders.append(folder)
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o555 if path.is_dir() else 0o444)
        else:
            mount("--bind", folder, folder)
            folders.append(folder)
            mount("-o", "remount,bind,ro", folder)
        return folder

    yield make
    for folder in folders:
        if os.geteuid():
            for path in [folder, *folder.rglob("*")]:
                path.chmod(0o755)
        else:
            subprocess.run(["umount", folder], check=True)


@pytest.fixture
def todays_kernel(tmp_path):
    "The kernel of the environment that runs the tests."
    with Notebook(sys.executable, tmp_path) as notebook:
        yield notebook


@pytest.fixture
def colabs_kernel(request, tmp_path, tmp_path_factory):
    "ipykernel 6.17 with IPython 7.34, in front of everything else that the tests have; made once."
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("colab-kernel") if cache else tmp_path_factory.getbasetemp() / "colab-kernel"
    try:
        python = python_with(COLAB, folder)
    except CannotInstall as error:
        pytest.skip(f"pip cannot get Colab's kernel: {error}")
    with Notebook(python, tmp_path) as notebook:
        yield notebook


def pytest_terminal_summary(terminalreporter):
    "Beside the skipped tests: how many cells of the notebooks need what `make test` does not count on."
    cells = [
        cell
        for path in (Path(__file__).resolve().parent.parent / "nbs").rglob("*.ipynb")
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    marked = re.compile(r"^#\|\s*(cuda|kaggle)\s*$", re.M)
    needs = Counter(need for cell in cells for need in marked.findall("".join(cell["source"])))
    for need, count in sorted(needs.items()):
        terminalreporter.line(f"NOT RUN [{count}] notebook cells marked {need}: `nbdev_test --flags {need}` runs them")


@pytest.fixture(scope="module")
def browser():
    "Headless Chromium for the tests of a file."
    from playwright.sync_api import sync_playwright

    from lab import chromium

    with sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=chromium(),
            timeout=240_000,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield opened
        opened.close()
