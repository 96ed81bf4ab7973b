"""Kernels for Kaggle: metadata, the check that runs before a push, the skeleton that runs, and Kaggle's client, played
by a script.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import spectrakit
from helpers import clean_environ, tree_hashes
from spectrakit.cli.main import main
from spectrakit.kaggle.check import check_kernel
from spectrakit.kaggle.init import KernelSources, init_kernel
from spectrakit.kaggle.metadata import (
    DATASET_FILE,
    KERNEL,
    KERNEL_FILE,
    PLACEHOLDER,
    Finding,
    dataset_findings,
    kernel_findings,
    slug_of,
)
from spectrakit.kaggle.offline.install_cell import INSTALL_CELL, list_sha256, naming
from spectrakit.kaggle.offline.wheels import write_wheel
from spectrakit.kaggle.requirements import wheels_beside
from spectrakit.kaggle.static_analysis import facts_of, parse, read_code

slow = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
GOOD = {key: entry.default for key, entry in KERNEL.items()} | {
    "id": "ada/my-kernel",
    "dataset_sources": ["ada/spectrakit-wheels"],
}
TOKEN = "hf_" + "Ab1" * 12  # no token: put together, so that nobody takes this file for a leak


@pytest.fixture
def call(here, capsys, monkeypatch):
    "A function that runs a command in this process: (exit status, stdout, stderr). Nobody is logged in to Kaggle."
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def run(*words) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main(["kaggle", *map(str, words)])
        except SystemExit as error:
            status = error.code
        return (status, *capsys.readouterr())

    return run


def kernel(folder: Path, *cells, metadata: dict | None = None, **values) -> Path:
    "A kernel in `folder` with these code cells; a cell may be (source, outputs)."
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [cell if isinstance(cell, tuple) else (cell, []) for cell in cells or ("print(1)",)]
    made = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "execution_count": None,
            "source": source,
            "outputs": outputs,
        }
        for i, (source, outputs) in enumerate(pairs)
    ]
    (folder / "kernel.ipynb").write_text(
        json.dumps({"cells": made, "metadata": metadata or {}, "nbformat": 4, "nbformat_minor": 5})
    )
    (folder / KERNEL_FILE).write_text(json.dumps(GOOD | values))
    return folder


@pytest.fixture
def client(here, monkeypatch):
    """Kaggle's client, played by a script that notes what it is called with: `.calls()`; it says `.says` and ends with
    `.status`.
    """
    folder = here / "bin"
    folder.mkdir()
    (folder / "kaggle").write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"with open({str(folder / 'calls')!r}, 'a') as file: file.write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "print(os.environ['FAKE_SAYS'])\nsys.exit(int(os.environ['FAKE_STATUS']))\n"
    )
    (folder / "kaggle").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    class Client:
        def answers(self, says: str, status: int = 0) -> None:
            monkeypatch.setenv("FAKE_SAYS", says)
            monkeypatch.setenv("FAKE_STATUS", str(status))

        def calls(self) -> list[list[str]]:
            return (
                [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
                if (folder / "calls").exists()
                else []
            )

    one = Client()
    one.answers(
        "Kernel version 7 successfully pushed.  Please check progress at https://www.kaggle.com/code/ada/my-kernel"
    )
    return one


# metadata


def words_of(findings: list[Finding]) -> str:
    return "\n".join(f"{f.level}: {f.text}" for f in findings)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"title": "abc"}, ("'abc' has 3 characters", "5 to 50")),
        ({"title": "x" * 51}, ("51 characters",)),
        ({"title": 7}, ("it is 7", "quotes")),
        ({"title": "INSERT_TITLE_HERE"}, ("Write your own",)),
        ({"title": "Another"}, ("'another'", "'my-kernel'")),
        ({"id": "my-kernel"}, ("owner/slug",)),
        ({"id": "ada/my-kernel/3"}, ("version",)),
        ({"id": "ada/abc", "title": "abc  "}, ("3 characters", "5 to 50")),
        ({"id": "ada/My-Kernel"}, ("'my-kernel'",)),
        ({"id": f"{PLACEHOLDER}/my-kernel"}, ("placeholder", "--owner")),
        ({"id": ""}, ("id",)),
        ({"language": "Python"}, ("'python'",)),
        ({"kernel_type": "notebok"}, ("'notebook'",)),
        ({"code_file": "run.py"}, (".ipynb",)),
        ({"code_file": ""}, ("code_file",)),
        ({"enable_gpu": 1}, ("true or false",)),
        ({"enable_internet": "no"}, ("true or false",)),
        ({"enable_tpu": True}, ("Keep one",)),
        ({"machine_shape": "NvidiaTeslaP100"}, ("retired", "two T4s")),
        ({"machine_shape": "TpuV38"}, ("retired", "two T4s")),  # no TPU is a mend
        ({"machine_shape": "NvidiaTeslaT4Highmem"}, ("NvidiaTeslaT4,",)),
        ({"machine_shape": "NvidiaTeslaT5"}, ("'NvidiaTeslaT4'",)),
        ({"machine_shape": ["x"]}, ("name",)),
        ({"dataset_sources": ["coffee"]}, ("owner/slug",)),
        ({"dataset_sources": "ada/coffee"}, ("list",)),
        ({"dataset_sources": ["ada/a", "ada/a"]}, ("twice",)),
        ({"dataset_sources": ["datasets/ada/coffee"]}, ("'ada/coffee'",)),
        ({"dataset_sources": [None]}, ("None",)),
        ({"dataset_sources": ["ada/my data"]}, ("'my-data'",)),
        ({"competition_sources": ["ada/soil"]}, ("slug",)),
        ({"competition_sources": ["https://www.kaggle.com/competitions/soil"]}, ("'soil'",)),
        ({"kernel_sources": ["code/ada/train-it"]}, ("'ada/train-it'",)),
        ({"model_sources": ["ada/resnet/pytorch/small"]}, ("version",)),
        ({"model_sources": ["ada/resnet/pytorch/small/new"]}, ("number",)),
        ({"docker_image_pinning_type": "newest"}, ("original, latest",)),
        ({"datset_sources": []}, ("'dataset_sources'",)),
        ({"dataset_data_sources": []}, ("'dataset_sources'",)),
        ({"id_no": "12"}, ("whole number",)),
    ],
)
def test_a_fault_of_the_metadata_is_an_error_that_says_how_to_mend_it(change, says):
    found = [f for f in kernel_findings(GOOD | change) if f.level == "error"]
    assert found and all(word in words_of(found) for word in says), words_of(found)


def test_all_faults_are_told_at_once_and_a_good_file_has_none():
    assert (
        kernel_findings(GOOD)
        == []
        == kernel_findings(GOOD | {"enable_gpu": "true", "id_no": 7, "title": "Renamed on the site"})
    )
    assert (
        kernel_findings(
            GOOD
            | {
                "dataset_sources": ["ada/a.b_c", "Bob-2/CORD-19/12"],
                "model_sources": ["ada/m/pyTorch/v_1/3"],
                "kernel_sources": ["ada/train-it"],
            }
        )
        == []
    )
    found = kernel_findings({"title": "abc", "language": "pyton", "machine_shape": "T4", "quux": 1})
    assert {"error", "warning"} == {f.level for f in found} and len(found) >= 7, words_of(found)
    missing = words_of(kernel_findings({}))
    assert all(
        f"{key} is missing" in missing
        for key in ("id", "title", "code_file", "language", "kernel_type", "enable_internet")
    )


@pytest.mark.parametrize(
    "change, says",
    [
        ({"title": "Kits"}, "6 to 50"),
        ({"id": "ada/kits"}, "6 to 50"),
        ({"licenses": []}, "exactly one"),
        ({"licenses": [{"name": "Apache 2"}]}, "'apache-2.0'"),
        ({"licenses": [{"name": "other"}] * 2}, "exactly one"),
        ({"subtitle": "short"}, "20 to 80"),
        ({"resources": [{"path": "gone.csv"}]}, "'gone.csv'"),
        ({"lisences": []}, "'licenses'"),
        ({"expectedUpdateFrequency": "yearly"}, "annually"),
        ({"image": "a.gif"}, ".png"),
        ({"id": f"{PLACEHOLDER}/my-wheels"}, "placeholder"),
    ],
)
def test_a_fault_of_a_data_sets_metadata(tmp_path, change, says):
    good = {"title": "My wheels", "id": "ada/my-wheels", "licenses": [{"name": "apache-2.0"}]}
    assert dataset_findings(good, tmp_path) == []
    assert says in words_of(dataset_findings(good | change, tmp_path))


@pytest.mark.parametrize(
    "text, says",
    [("", "valid JSON"), ("{", "line 1"), ('{"id": "a/b",\n}', "line 2"), ("[]", "no entries"), ("\udcff", "UTF-8")],
)
def test_metadata_that_is_no_json_is_one_line(call, here, text, says):
    folder = kernel(here / "k")
    (folder / KERNEL_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    status, out, err = call("check", folder)
    assert (status, out) == (2, "") and err.count("\n") == 1 and says in err


# init


def wheels_in(folder: Path) -> None:
    "Wheels of this version that lie beside a kernel in `folder`."
    (folder / "wheels").mkdir()
    (folder / "wheels" / "wheelhouse.json").write_text(json.dumps({"kit": spectrakit.__version__}))
    for name in ("spectrakit", "hydra"):
        write_wheel(folder / "wheels" / f"{name}-1-py3-none-any.whl", {f"{name}/__init__.py": b""}, "x.dist-info")


def test_what_init_writes_has_every_entry_and_passes_the_check(call, here):
    wheels_in(here)
    for kind, name in (("notebook", "first-try.ipynb"), ("script", "first-try.py"), ("utility", "first_try.py")):
        status, out, err = call(
            "init",
            here / kind,
            "--title",
            "First try",
            "--owner",
            "ada",
            "--kind",
            kind,
            "--competition",
            "soil",
            "--dataset",
            "bob/spectra/2",
            "--kernel",
            "train-it",
        )
        assert (status, err) == (0, "") and "kaggle up" in out and "--owner" not in out
        values = json.loads((here / kind / KERNEL_FILE).read_text())
        assert list(values) == list(KERNEL) and values["enable_internet"] is False and values["code_file"] == name
        assert values["dataset_sources"] == ["ada/spectrakit-wheels", "bob/spectra/2"] and values["kernel_sources"] == [
            "ada/train-it"
        ]
        assert (values["machine_shape"], values["keywords"]) == (
            ("", ["util-script"]) if kind == "utility" else ("NvidiaTeslaT4", [])
        )
        assert sorted(p.name for p in (here / kind).iterdir()) == sorted([name, KERNEL_FILE])
        status, out, err = call("check", here / kind)
        assert (status, err) == (0, "") and "0 errors, 0 warnings" in out, out


def test_the_owner_is_given_known_or_a_placeholder_and_the_key_is_nobodys_business(call, here, monkeypatch):
    def owner(name: str, *words) -> str:
        status, out, err = call("init", here / name, "--title", "First try", "--task", "digits", *words)
        assert (status, err) == (0, "") and "0123" not in out and ("--owner NAME" in out) == (name == "a")
        assert not any(b"0123" in path.read_bytes() for path in (here / name).iterdir())
        return json.loads((here / name / KERNEL_FILE).read_text())["id"].partition("/")[0]

    wheels_in(here)
    assert owner("a") == PLACEHOLDER
    assert (
        "placeholder" in call("check", here / "a")[1]
        and call("check", here / "a")[0] == 1
        and call("check", here / "a", "--owner", "ada")[0] == 0
    )
    (here / "home/.kaggle").mkdir(parents=True)
    (here / "home/.kaggle/credentials.json").write_text('{"refresh_token": "0123456789", "username": "from-login"}')
    assert owner("login") == "from-login"  # as `kaggle auth login` leaves it
    (here / "home/.config/kaggle").mkdir(parents=True)
    (here / "home/.config/kaggle/kaggle.json").write_text('{"username": "from-config", "key": "0123456789"}')
    assert owner("b") == "from-config"
    (here / "home/.kaggle/kaggle.json").write_text("torn {")
    assert owner("c") == "from-config"
    monkeypatch.setenv("KAGGLE_USERNAME", "from-env")
    assert owner("d") == "from-env" and owner("e", "--owner", "ada") == "ada"


@pytest.mark.parametrize(
    "words, says",
    [
        (("soil", "--title", "abc"), ("'abc' has 3 characters", "5 to 50")),
        (("abc",), ("'Abc'", "--title")),
        (("soil-first", "--kind", "nb"), ("notebook, script, utility",)),
        (("soil-first", "--task", "cofee"), ("'coffee'",)),
        (("soil-first", "--task", "gone.py:Mine"), ("'gone.py'",)),
        (("soil-first", "--task", "mine.py:Other"), ("'Other'", "mine.py")),
        (("soil-first", "--dataset", "a/b/c/d"), ("dataset",)),
        (("soil-first", "--competition", "Soil 1"), ("competition",)),
        (("soil-first", "--owner", "a b"), ("--owner",)),
        (("mine.py",), ("is a file",)),
        (("there",), (KERNEL_FILE, "--force")),
        (("soil-first", "--compettion", "x"), ("--compettion",)),
        ((), ("DIR",)),
        (("soil-first", "--interactive"), ("terminal",)),
    ],
)
def test_a_wrong_init_is_one_line_and_writes_nothing(call, here, words, says):
    (here / "mine.py").write_text("class Mine: ...\n")
    kernel(here / "there")
    before = tree_hashes(here)
    status, out, err = call("init", *words)
    assert (status, out) == (2, "") and err.count("\n") == 1 and all(word in err for word in says), err
    assert tree_hashes(here) == before and not (here / "soil-first").exists() and not (here / "soil").exists()


def test_force_writes_anew_and_leaves_other_files_alone(call, here):
    folder = kernel(here / "there", title="Kernel", id="ada/kernel")
    (folder / "notes.txt").write_text("mine")
    assert call("init", folder, "--title", "Kernel", "--owner", "ada")[0] == 2
    assert call("init", folder, "--title", "Kernel", "--owner", "ada", "--force")[0] == 0
    assert (folder / "notes.txt").read_text() == "mine" and "INSERT" not in (folder / "kernel.ipynb").read_text()
    assert len(json.loads((folder / "kernel.ipynb").read_text())["cells"]) > 3


def test_init_asks_at_a_terminal(call, here, monkeypatch):
    answers = iter(["Soil first", "ada", "soil-2026", "bob/spectra  carl/more"])
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    assert call("init", "x", "--interactive")[0] == 0
    values = json.loads((here / "x" / KERNEL_FILE).read_text())
    assert (
        values["id"] == "ada/soil-first"
        and values["competition_sources"] == ["soil-2026"]
        and values["dataset_sources"][1:] == ["bob/spectra", "carl/more"]
    )


def test_a_title_with_quotes_is_only_text(call, here):
    assert call("init", "x", "--owner", "ada", "--kind", "script", "--title", 'My """ kernel\\')[0] == 0
    compile((here / "x" / "my-kernel.py").read_text(), "script", "exec")


@slow
def test_the_notebook_runs_as_kaggle_runs_it(call, here):
    "With a task that comes from a file; the one that stands in the code itself runs in nbs/88_kaggle/08_init.ipynb."
    wheels_in(here)
    assert call("init", "made", "--title", "First kernel", "--kind", "script")[0] == 0
    text = (here / "made" / "first-kernel.py").read_text()
    (here / "mine.py").write_text(
        "import spectrakit as sk\n" + text[text.index("import torch") : text.index("if __name__")]
    )
    assert (
        call("init", "first-kernel", "--owner", "ada", "--task", "mine.py:Mine")[0] == 0
        and "It trains on random numbers" in call("check", "first-kernel")[1]
    )
    working = here / "working"
    working.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "papermill",
            "--no-progress-bar",
            "--start-timeout",
            "240",
            "--cwd",
            working,
            here / "first-kernel" / "first-kernel.ipynb",
            here / "out.ipynb",
        ],
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    lines = (working / "submission.csv").read_text().splitlines()
    assert (
        lines[0] == "id,target" and len(lines) == 101 and {line.partition(",")[2] for line in lines[1:]} == {"0", "1"}
    )
    assert (working / "mine.py").is_file()


# reading code


def test_every_notebook_that_people_run_can_be_read():
    for path in sorted((ROOT / "nbs" / "tutorials").glob("*.ipynb")) + sorted((ROOT / "kaggle").rglob("*.ipynb")):
        broken = facts_of(read_code(path)[0]).broken
        assert not [use for use in broken if use.how == "always"], (path.name, broken)


ODD = [
    "!ls",
    "x = !ls -l\nprint(x)",
    "%time y = 3",
    "a = (1\n  % 2)\n!ls",
    's = """\n!no\n%no\n"""',
    "if True:\n    !ls\nelse:\n    %pwd",
    "!echo a \\\n  b\nx = 1",
    "f?\nx = 1",
    "?f",
    "x = 10 \\\n  % 3",
    "def f():\n    !ls\n    return 1",
    "await f()",
    "%matplotlib inline\nimport os\n# !no\n",
    "a = [\n1,\n% 3\n]" if False else "a = 1 % 2",
    "for i in range(2):\n    %timeit -n1 i\n    !echo {i}",
    "!!ls",
    "x, y = !ls",
    "d = {'a': 1,\n     'b': '%d' % 3}",
    "%cd /tmp\n%env A=1\n%pip list",
    "    x = 1\n    if x:\n        !ls",
]


@pytest.mark.parametrize("source", ODD)
def test_ipythons_lines_are_those_that_ipython_takes(source):
    "As many as IPython makes calls of, and what is left is Python for both."
    import ast

    from IPython.core.inputtransformer2 import TransformerManager

    theirs = compile(
        TransformerManager().transform_cell(source), "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    calls = sum(
        isinstance(node, ast.Call) and getattr(node.func, "id", "") == "get_ipython" for node in ast.walk(theirs)
    )
    ours = parse(source)
    lines = sum(isinstance(node, ast.Name) and node.id.startswith("_ipython_line_") for node in ast.walk(ours.tree))
    assert ours.error is None and lines == calls


CUP = {"competition_sources": ["soil"]}
HOME = "home"
OFF = {"enable_gpu": False, "machine_shape": ""}
CLASS = "from transformers import AutoModel\nclass CFG:\n    model = {!r}\n    ready = True\n"
# what is in the cells and metadata: (about, level, a word of the text), and a neighbour that has nothing wrong
TRAPS: list[tuple[str, dict, tuple[str, str, str], str, dict]] = [
    (
        CLASS.format("bert-base") + "AutoModel.from_pretrained(CFG.model)",
        {},
        ("offline", "error", "'bert-base'"),
        CLASS.format("/kaggle/working/bert") + "AutoModel.from_pretrained(CFG.model)",
        {},
    ),
    (
        CLASS.format("bert-base") + "cfg = CFG()\nAutoModel.from_pretrained(cfg.model)",
        {},
        ("offline", "error", "'bert-base'"),
        CLASS.format("bert-base") + "cfg = CFG()\nprint(cfg.model)",
        {},
    ),
    (
        CLASS.format("x") + "import timm\ntimm.create_model('vit', pretrained=CFG.ready)",
        {},
        ("offline", "error", "pretrained=True"),
        CLASS.format("x") + "import timm\nCFG.ready = False\ntimm.create_model('vit', pretrained=False)",
        {},
    ),
    (
        "from transformers import AutoModel\ndef build(name='bert-base'):\n    return AutoModel.from_pretrained(name)",
        {},
        ("offline", "warning", "'bert-base'"),  # a call may give another one
        "from transformers import AutoModel\ndef build(name):\n    return AutoModel.from_pretrained(name)",
        {},
    ),
    (
        "import wandb\nwandb.login()",
        {},
        ("offline", "error", "WANDB_MODE"),
        "try:\n    import wandb\n    wandb.login()\nexcept Exception:\n    pass",
        {},
    ),
    (
        "import wandb\nwandb.init(project='x')",
        {},
        ("offline", "error", "mode='offline'"),
        "import wandb\nwandb.init(mode='disabled')",
        {},
    ),
    (
        "import wandb\nwandb.init(project='x')",
        {},
        ("offline", "error", "mode='offline'"),
        "import os, wandb\nos.environ['WANDB_MODE'] = 'offline'\nwandb.init(project='x')",
        {},
    ),
    (
        "import torchvision\ntorchvision.models.resnet18(weights='DEFAULT')",
        {},
        ("offline", "error", "weights='DEFAULT'"),
        "import torchvision\ntorchvision.models.resnet18(weights=None)",
        {},
    ),
    (
        "from torchvision.models import resnet18, ResNet18_Weights\nresnet18(weights=ResNet18_Weights.DEFAULT)",
        {},
        ("offline", "error", "weights='DEFAULT'"),
        "from torchvision.models import resnet18, ResNet18_Weights\nResNet18_Weights.DEFAULT.transforms()",
        {},
    ),
    (
        "import kagglehub\nkagglehub.model_download('a/b')",
        {},
        ("offline", "warning", "hangs if it does"),
        "import kagglehub\nprint(kagglehub.__version__)",
        {},
    ),
    (
        "import torch\nmodel = torch.nn.Linear(1, 1)\nmodel.cuda()",
        OFF,
        ("machine", "warning", "enable_gpu"),
        "import torch\nmodel = torch.nn.Linear(1, 1)\nmodel.cuda()",
        {},
    ),
    (
        "import torch\ntorch.zeros(1, device='cuda')",
        OFF,
        ("machine", "warning", "enable_gpu"),
        "import torch\ntorch.zeros(1, device='cuda' if torch.cuda.is_available() else 'cpu')",
        OFF,
    ),
    (
        "!spectrakit train digits trainer=kaggle_2xt4",
        OFF,
        ("machine", "warning", "two T4s"),
        "!spectrakit train digits trainer=kaggle_safe",
        OFF,
    ),
    (
        "import pandas as pd\npd.read_csv('/content/drive/MyDrive/x.csv')",
        {},
        ("paths", "error", "another machine"),
        "import pandas as pd\npd.read_csv('content/x.csv')",
        {},
    ),
    (
        f"open('/{HOME}/ada/x.csv')",
        {},
        ("paths", "error", "another machine"),
        f"import os\nos.path.exists('/{HOME}/ada/x.csv')",
        {},
    ),
    (
        "open('D:/data/x.csv')",
        {},
        ("paths", "error", "another machine"),
        "open('D.csv')",
        {},
    ),
    (
        "import pandas as pd\npd.DataFrame().to_csv('/kaggle/input/soil/y.csv')",
        CUP | {"is_private": True},
        ("paths", "error", "read-only"),
        "import pandas as pd\npd.DataFrame().to_csv('/kaggle/working/submission.csv')\nprint('soil')",
        CUP,
    ),
    (
        "!mkdir -p /kaggle/input/mine",
        {"dataset_sources": ["ada/mine"]},
        ("paths", "warning", "read-only"),
        "!mkdir -p /kaggle/working/mine",
        {},
    ),
    (
        "import pandas as pd\npd.DataFrame().to_csv('submission.csv', index=False)",
        CUP,
        ("submission", "warning", "never read"),
        "import pandas as pd\npd.read_csv('/kaggle/input/soil/train.csv').to_csv('submission.csv', index=False)",
        CUP,
    ),
    (
        "import pandas as pd\nprint(pd.read_csv('/kaggle/input/soil/sample_submission.csv'))",
        CUP,
        ("submission", "warning", "No submission"),
        "open('/kaggle/input/soil/train.csv')\n---\n%%writefile submission.csv\nid,y\n1,1",
        CUP,
    ),
    ("model.fit(1)", {}, ("names", "error", "model is not defined"), "model = print\nmodel(1)", {}),
    (
        "print(rows)\n---\nrows = 1",
        {},
        ("names", "error", "in cell 2"),
        "def show():\n    print(rows)\n---\nrows = 1",
        {},
    ),
    ("def f():\n    return gone", {}, ("names", "warning", "gone is not"), "from os import *\nprint(gone)", {}),
    ("x = 1", {"is_private": False}, ("metadata", "warning", "everyone can read"), "x = 1", {"is_private": "true"}),
    (
        "x = 1",
        OFF | {"enable_tpu": True},
        ("machine", "warning", "without a TPU"),
        "x = 1",
        OFF | {"enable_tpu": False},
    ),
    ("  x = = 1", {}, ("code", "error", "not valid Python"), "    x = 1\n    print(x)", {}),
    ("x = 1\nfor y in", {}, ("code", "error", "not valid Python"), "cd ..\nls -l\ncd /kaggle/working", {}),
    ("pip install x", {}, ("offline", "error", "pip needs the network"), "pip install --no-index x", {}),
    (
        "import brand_new",
        {},
        ("imports", "error", "brand_new is not on kaggle"),
        "import brand_new",
        {"kernel_sources": ["packagemanager/pm-1-at-05-13"]},
    ),
    (
        "import brand_new",
        {},
        ("imports", "error", "brand_new is not on kaggle"),
        "!pip install --no-index {found}\nimport brand_new",
        {},
    ),
    (
        "import brand_new",
        {"kernel_sources": ["ada/train-it"]},
        ("imports", "error", "brand_new is not on kaggle"),
        "import brand_new",  # one of somebody else's may be a utility script with packages
        {"kernel_sources": ["bob/nvidia-utility-script"]},
    ),
    (
        "import brand_new",
        {},
        ("imports", "error", "brand_new is not on kaggle"),
        "import site\nsite.addsitedir('/kaggle/usr/lib/notebooks/bob/tools/pkg')\nimport brand_new",
        {},
    ),
    (
        "!pip install brand-new > log",
        {},
        ("offline", "error", "for brand-new. Attach"),
        "!pip install --no-deps ../input/wheels/x.whl > /dev/null 2>&1\n!pip install -q --no-deps ./a &>/dev/null",
        {},
    ),
    (
        "AutoModel = print\nAutoModel.from_pretrained('bert-base-cased')",
        {},
        ("offline", "error", "asks Hugging Face"),
        "AutoModel = model = print\n!python train.py --output_dir=first\nmodel.save_pretrained('mine')\n"
        "AutoModel.from_pretrained('mine')\nAutoModel.from_pretrained('first/')",
        {},
    ),
    (
        "import subprocess\nsubprocess.run(['kaggle', 'datasets', 'version', '-p', 'x'], check=True)",
        {},
        ("offline", "error", "Fetch the output"),
        "x = 1",
        {},
    ),
    (
        "import subprocess\nprint(subprocess.run(['kaggle', 'datasets', 'version', '-p', 'x']).returncode)",
        {},
        ("offline", "warning", "Fetch the output"),
        "!kaggle --version",
        {},
    ),
    (
        "print(axis0)",
        {},
        ("names", "error", "axis0 is not defined"),
        "for i in range(3):\n    locals()['axis' + str(i)] = i\nprint(axis0)",
        {},
    ),
    (
        "x = 1",
        {"competition_sources": ["competition/soil"]},
        ("metadata", "error", "'soil'"),
        "x = 1",  # as fastkaggle writes it
        {"competition_sources": ["competitions/soil"]},
    ),
]


@pytest.mark.parametrize("bad, values, expected, good, good_values", TRAPS)
def test_a_trap_is_told_once_and_its_neighbour_is_not(here, bad, values, expected, good, good_values):
    "Of the neighbour nothing of the kind is told, except that a module may come from elsewhere."
    about, level, word = expected
    (told,) = troubles(kernel(here / "bad", *bad.split("\n---\n"), **values), about)
    assert told.level == level and word in told.text, told
    rest = troubles(kernel(here / "good", *good.split("\n---\n"), **good_values), about)
    assert not [one for one in rest if about != "imports" or one.level == "error"], rest


def troubles(folder: Path, about: str) -> list[Finding]:
    return [one for one in check_kernel(folder).findings if one.about == about and one.level != "ok"]


def test_the_paths_that_are_written_out_are_one_line(here):
    cells = [f"open('/kaggle/input/table-{i % 9}/{i}.csv')" for i in range(67)]
    found = troubles(kernel(here / "k", *cells, dataset_sources=[f"ada/table-{i}" for i in range(9)]), "sources")
    assert len(found) == 1 and "and of 8 more" in found[0].text


def test_paths_of_which_one_may_be_there_are_no_error(here):
    first = "for place in ('/kaggle/input/mine', '/kaggle/input/elsewhere'):\n    print(place)"
    found = troubles(kernel(here / "k", first, dataset_sources=["ada/mine"]), "sources")
    assert {one.level for one in found} == {"warning"} and any("elsewhere" in one.text for one in found)


def test_a_picture_among_the_outputs_is_not_searched_for_keys(here, monkeypatch):
    "Of a picture of 4 MB in base64 no letter is looked at; a text beside it is."
    from spectrakit.kaggle import secret_scan

    looked_at = []
    search = secret_scan.leaks_in
    monkeypatch.setattr(secret_scan, "leaks_in", lambda text, *rest: looked_at.append(len(text)) or search(text, *rest))
    picture = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "iVBORw0K" * 500_000}}
    said = {"output_type": "stream", "name": "stdout", "text": [f"using {TOKEN}\n"]}
    found = check_kernel(kernel(here / "k", ("x = 1", [picture, said])))
    assert len(found.secrets) == 1 and sum(looked_at) < 100_000


def test_reading_runs_nothing(here):
    folder = kernel(
        here / "k",
        "open('proof', 'w')\n!touch proof\n%run touch.py",
        "%%bash\ntouch proof",
        "__import__('os').system('touch proof')",
    )
    check_kernel(folder)
    assert not (here / "proof").exists() and not (folder / "proof").exists()


# check


def levels(folder: Path, about: str, **options) -> list[tuple[str, str]]:
    return [(f.level, f.where) for f in check_kernel(folder, **options).findings if f.about == about]


def test_what_would_fail_offline_is_told_with_its_cell(call, here):
    folder = kernel(
        here / "k",
        "import torch, bitsandbytes",
        "import spectrakit as sk\nfolder = sk.find_input('cofee-table')",
        "!pip install -q timm==1.0",
        title="abc",
        dataset_sources=["ada/coffee-table"],
    )
    status, out, err = call("check", folder)
    assert (status, err) == (1, "")
    for line in (
        r"error\s+imports\s+cell 1, line 1\s+bitsandbytes .*--with bitsandbytes",
        r"error\s+sources\s+cell 2, line 2\s+.*'cofee-table' is not attached.*Did you mean 'coffee-table'",
        r"error\s+offline\s+cell 3, line 1\s+pip needs the network",
        r"error\s+imports\s+cell 2, line 1\s+spectrakit .*'ada/spectrakit-wheels' to dataset_sources",
        r"error\s+metadata\s+kernel-metadata.json\s+title: 'abc' has 3 characters",
    ):
        assert re.search(line, out), (line, out)
    assert re.match(r"\d errors, 0 warnings: fix", out.splitlines()[-1])


@pytest.mark.parametrize(
    "cell, expected",
    [
        ("import numpy, sklearn, cv2, PIL, yaml, google.colab, kaggle_secrets, catboost, IPython", []),
        ("import nowhere_to_be_found", [("error", "cell 1, line 1")]),
        ("try:\n    import nowhere\nexcept ImportError: nowhere = None", []),
        ("if x:\n    import nowhere", [("warning", "cell 1, line 2")]),
        ("def f():\n    import nowhere", [("error", "cell 1, line 2")]),
        ("from contextlib import suppress\nwith suppress(ImportError): import nowhere", []),
        ("import importlib\nimportlib.import_module('nowhere.deep')", [("error", "cell 1, line 2")]),
        ("import sys\nsys.path.insert(0, '/kaggle/input/ada-code')\nimport nowhere", [("warning", "cell 1, line 3")]),
        ("from . import x", [("error", "cell 1, line 1")]),
        ("import my_tools", []),
        ("import spectrakit, hydra", []),
        ("import helper", [("error", "cell 1, line 1")]),
        ("%load_ext nowhere", [("error", "cell 1, line 1")]),
        ("import spectrakit as sk\nsk.fit('coffee')", [("error", "cell 1, line 2")]),
        ("import spectrakit as sk\nsk.fit('digits')", []),
    ],
)
def test_imports(here, cell, expected):
    folder = kernel(here / "k", cell, kernel_sources=["ada/my-tools"])
    (folder / "helper.py").touch()
    found = levels(folder, "imports")
    assert [f for f in found if f[0] != "ok"] == expected
    if "helper" in cell:
        assert "%%writefile helper.py" in str(check_kernel(folder))


def test_a_missing_module_is_asked_for_by_the_name_of_its_package(here):
    found = check_kernel(kernel(here / "k", "from iterstrat.ml_stratifiers import X", "import rank_bm25")).findings
    told = [finding.text for finding in found if finding.about == "imports"]
    assert "--with iterative-stratification" in told[0] and "--with rank-bm25" in told[1], told


def wheel(folder: Path, name: str, *files: str) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for file in (*files, f"{name}-1.0.dist-info/RECORD"):
            archive.writestr(file, "")


@pytest.mark.parametrize("named", ["hash", "data set", "nothing"])
def test_of_several_wheelhouses_the_kernels_own_is_taken(here, named):
    for number, name in enumerate(("another", "mine", "newest")):
        house = here / name
        wheel(house, "spectrakit", "spectrakit/__init__.py")
        (house / "wheelhouse.json").write_text(json.dumps({"kit": name, "wheels": []}))
        (house / DATASET_FILE).write_text(json.dumps({"id": f"ada/{name}-wheels"}))
        os.utime(house / "wheelhouse.json", (number, number))
    sha256 = list_sha256(here / "mine") if named == "hash" else "0" * 64
    slug = "mine-wheels" if named == "data set" else "others"
    folder = kernel(here / "k", naming(INSTALL_CELL, sha256, slug))
    assert wheels_beside(folder).name == ("newest" if named == "nothing" else "mine")


def test_the_wheels_beside_say_what_they_bring(here):
    import spectrakit

    folder = kernel(here / "k", "import spectrakit, chemotools", "import accelerate_new")
    assert [level for level, _ in levels(folder, "imports")] == ["error", "error"]
    house = here / "wheels"
    for name in ("spectrakit", "chemotools", "accelerate_new"):
        wheel(house, name, f"{name}/__init__.py")
    listed = [
        {"file": f"{name}-1.0-py3-none-any.whl", "where": "launch" if name == "accelerate_new" else "session"}
        for name in ("spectrakit", "chemotools", "accelerate_new")
    ]
    (house / "wheelhouse.json").write_text(json.dumps({"kit": spectrakit.__version__, "wheels": listed}))
    assert levels(folder, "imports") == [("error", "cell 2, line 1")] == levels(
        folder, "imports", wheels=house
    ) and levels(folder, "pinned") == [("ok", "")]
    (house / "wheelhouse.json").write_text(json.dumps({"kit": "0.0.1", "wheels": listed}))
    (house / DATASET_FILE).write_text('{"id": "ada/other-wheels"}')  # then they have to be attached by that name
    assert ("warning", "") in levels(folder, "pinned") and levels(folder, "imports")[0] == ("error", "cell 1, line 1")


@pytest.mark.parametrize(
    "cell, level",
    [
        ("open('/kaggle/input/coffee-table/train.csv')", "warning"),
        ("open('/kaggle/input/datasets/ada/coffee-table/train.csv')", "warning"),
        ("open('/kaggle/input/datasets/bob/coffee-table/x')", "error"),
        ("open('../input/soil/train.csv')", "warning"),
        ("open('../input/nowhere/train.csv')", "error"),
        ("open('../input/../input/soil/train.csv')", "warning"),
        ("open('/kaggle/input/../input/nowhere/train.csv')", "error"),
        ("p = '/kaggle/input/nowhere'\nopen(p + '/x')", "error"),
        ("import sk\nsk.find_input('ada/coffee-table')", "ok"),
        ("import sk\nsk.find_input('datasets/ada/coffee-table')", "ok"),
        ("import sk\nsk.find_input('competitions/soil')", "ok"),
        ("import sk\nsk.find_input('models/ada/resnet')", "ok"),
        ("import sk\nsk.find_input('competitions/coffee-table')", "error"),
        ("import glob\nglob.glob('/kaggle/input/*/x.csv')", "ok"),
        ("slug = f()\nopen(f'/kaggle/input/{slug}/x')", "ok"),
        ("# /kaggle/input/nowhere", "ok"),
        ("'''/kaggle/input/nowhere/x'''", "ok"),
        ("!cp /kaggle/input/nowhere/x .", "error"),
        ("import os\nopen(os.path.join('/kaggle/input', 'nowhere', name))", "error"),
        ("!ls /kaggle/input", "ok"),
        (
            "from pathlib import Path\nROOT = Path('/kaggle/input')\n"
            "open(ROOT / 'competitions' / 'soil' / 'train.csv')",
            "warning",
        ),
        ("open('/kaggle/input/notebooks/ada/features/f.npy')", "error"),
        ("open('/kaggle/input/models/ada/resnet/pytorch/small/1/m')", "warning"),
        ("open('/kaggle/working/x')", "ok"),
        ("if x:\n    open('/kaggle/input/nowhere/x')", "warning"),
    ],
)
def test_inputs_belong_to_sources(here, cell, level):
    folder = kernel(
        here / "k",
        cell,
        dataset_sources=["ada/coffee-table"],
        competition_sources=["soil"],
        model_sources=["ada/resnet/pytorch/small/1"],
    )
    assert levels(folder, "sources")[0][0] == level, check_kernel(folder)


def test_internet_changes_what_is_asked(here):
    folder = kernel(here / "k", "!pip install timm==9 nowhere", "import nowhere, elsewhere", enable_internet=True)
    assert levels(folder, "offline") == [("warning", KERNEL_FILE)] and levels(folder, "imports") == [
        ("warning", "cell 2, line 1")
    ]


def test_a_notebook_that_nobody_could_run(here):
    for source, level in (
        ("x = = 1", "error"),
        ("if x:\nprint(1)", "error"),
        ("print 'x'", "error"),
        ("x = 1\0", "error"),
        ("%%html\n<b> x = = 1", "ok"),
        ("!echo 'unbalanced", "ok"),
    ):
        assert levels(kernel(here / "k", source), "code")[0][0] == level, source
    for source in (
        "x = " + "-" * 5000 + "1",
        "x = " + " + ".join(["'a'"] * 3000),
        "!\n%\n!!\n%pip\n!sudo\n!python -m",
        "\r\nimport os\r\n!ls\r\n",
        "%%writefile",
        "",
    ):
        assert levels(kernel(here / "k", source), "code")[0][0] in ("ok", "warning"), source[:40]
    newer = levels(kernel(here / "k", 'print(f"{d["a"]}")'), "code")[0][0]
    assert newer == ("ok" if sys.version_info >= (3, 12) else "warning")


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("[]", "cells"),
        ('{"worksheets": []}', "format 4"),
        ('{"cells": 3}', "format 4"),
        ('{"cells": [3]}', "format 4"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_code_file_that_is_no_notebook_is_one_line(call, here, text, says):
    folder = kernel(here / "k")
    (folder / "kernel.ipynb").write_bytes(text.encode("utf-8", "surrogateescape"))
    status, out, err = call("check", folder)
    assert (status, out) == (2, "") and err.count("\n") == 1 and says in err


@pytest.mark.parametrize(
    "words, says",
    [
        (("check", "nowhere"), "init nowhere"),
        (("check", "empty"), KERNEL_FILE),
        (("check",), "DIR"),
        (("chck", "k"), "'check'"),
        ((), "COMMAND"),
        (("check", "k", "--data", "nowhere"), "--data"),
        (("check", "k", "--wheels", "empty"), "wheelhouse"),
        (("check", "k", "--timeout", "9"), "8h30m"),
        (("push", "k", "--timeout", "5s"), "9h"),
        (("check", "k", "--owner", "a b"), "--owner"),
        (("status", "nowhere"), "owner/slug"),
        (("status", "empty"), KERNEL_FILE),
        (("pull", "ada/my-kernel", "k"), "--force"),
        (("pull", "ada/my-kernel"), "DIR"),
        (("output", "k", "o", "--files", "("), "pattern"),
        (("output", "k", "k/kernel.ipynb"), "is a file"),
    ],
)
def test_a_wrong_request_is_one_line_and_asks_nobody(call, here, client, words, says):
    kernel(here / "k")
    (here / "empty").mkdir()
    before = tree_hashes(here)
    status, out, err = call(*words)
    assert (status, out) == (2, "") and err.count("\n") == 1 and says in err, (status, out, err)
    assert tree_hashes(here) == before and client.calls() == []


@pytest.mark.parametrize("place", ["source", "output", "notebook", "metadata", "variable", "shell", "keyword", "data"])
def test_a_key_is_found_everywhere_and_shown_nowhere(call, here, client, place):
    secret = "0f1e" * 10 if place in ("variable", "shell", "keyword") else TOKEN
    cell = {
        "source": f"login('{secret}')",
        "variable": f"import os\nos.environ['WANDB_API_KEY'] = '{secret}'",
        "shell": f"%env MY_TOKEN={secret}\n!export MY_TOKEN={secret}",
        "keyword": f"import wandb\nwandb.login(key='{secret}')",
    }
    outputs = [{"output_type": "stream", "name": "stdout", "text": [f"using {secret}\n"]}] if place == "output" else []
    folder = kernel(
        here / "k",
        (cell.get(place, "x = 1"), outputs),
        metadata={"kaggle": {"token": secret}} if place == "notebook" else {},
        **({"keywords": [secret]} if place == "metadata" else {}),
    )
    words = [folder]
    if place == "data":
        (here / "data").mkdir()
        (here / "data" / "settings.json").write_text(json.dumps({"token": secret}))
        (here / "data" / DATASET_FILE).write_text(
            '{"id": "ada/settings", "title": "Settings", "licenses": [{"name": "other"}]}'
        )
        words += ["--data", here / "data"]
    status, out, err = call("check", *words)
    assert status == 1 and re.search(r"error\s+secret", out) and secret not in out + err
    status, out, err = call("push", *words, "--anyway")
    assert status == 1 and "no option overrides" in err and secret not in out + err and client.calls() == []


def test_what_only_looks_like_a_key_is_left_alone(here):
    folder = kernel(
        here / "k",
        "commit = '"
        + "0f1e" * 10
        + "'\nsort_key = 'feature_12'\npad_token = '[PAD]'\nAPI_KEY = os.environ['KEY']\ntoken = "
        "'YOUR_TOKEN_HERE_123'\nsecret = get('x')",
    )
    assert levels(folder, "secret") == [("ok", "")]


@pytest.mark.parametrize(
    "cell, level",
    [
        ("sk.compose('trainer=kaggle_safe')", "ok"),
        ("sk.compose('watchdog.limit=13h')", "error"),
        ("sk.compose('watchdog.limit=11h')", "warning"),
        ("sk.compose('watchdog.limit=none')", "warning"),
        ("sk.Watchdog('13h')", "error"),
        ("sk.compose(*words)", "ok"),
        ("!spectrakit train digits watchdog.limit=13h", "error"),
    ],
)
def test_the_clock_of_the_run_is_shorter_than_the_session(here, cell, level):
    assert levels(kernel(here / "k", f"import spectrakit as sk\n{cell}"), "time")[0][0] == level


def test_a_tpu_session_is_shorter(here):
    assert (
        levels(
            kernel(
                here / "k",
                "import spectrakit as sk\nsk.compose('watchdog.limit=10h')",
                enable_tpu=True,
                enable_gpu=False,
                machine_shape="TpuV5E8",
            ),
            "time",
        )[0][0]
        == "error"
    )


def test_a_folder_that_is_to_be_a_data_set(here):
    data = here / "data"
    (data / "deep").mkdir(parents=True)
    for i in range(51):
        (data / f"{i}.csv").touch()
    (data / "x.tar.gz").touch()
    folder = kernel(here / "k")
    assert levels(folder, "data", data=data) == [("error", "data")]
    (data / DATASET_FILE).write_text('{"id": "ada/my-data", "title": "My data", "licenses": [{"name": "other"}]}')
    text = str(check_kernel(folder, data=data))
    (data / DATASET_FILE).write_text(
        json.dumps({"id": f"{PLACEHOLDER}/my-data", "title": "My data", "licenses": [{"name": "other"}]})
    )
    assert "placeholder" in str(check_kernel(folder, data=data)) and "placeholder" not in str(
        check_kernel(folder, data=data, owner="ada")
    )
    assert "53 files" in text and "skips folders: deep" in text and "unpacks x.tar.gz" in text


# push and its like, by a client that is a script


def test_a_push_shows_its_command_and_reads_the_answer(call, here, client):
    kernel(here / "k", id=f"{PLACEHOLDER}/my-kernel", dataset_sources=[f"{PLACEHOLDER}/spectrakit-wheels"])
    before = tree_hashes(here / "k")
    status, out, err = call("push", "k", "--owner", "ada", "--dry-run", "--timeout", "9h")
    assert (
        (status, err) == (0, "")
        and "$ kaggle kernels push -p k -t 32400\n" in out
        and client.calls() == []
        and tree_hashes(here / "k") == before
    )
    status, out, err = call("push", "k")
    assert (
        status == 1
        and "--owner" in out
        and "Not pushed: 1 error" in err
        and client.calls() == []
        and tree_hashes(here / "k") == before
    )
    status, out, err = call("push", "k", "--owner", "ada", "--timeout", "9h")
    assert (status, err) == (0, "") and client.calls() == [["kernels", "push", "-p", "k", "-t", "32400"]]
    assert out.index("$ kaggle kernels push") < out.index("version 7") < out.index("spectrakit kaggle status k")
    values = json.loads((here / "k" / KERNEL_FILE).read_text())
    assert values["id"] == "ada/my-kernel" and values["dataset_sources"] == ["ada/spectrakit-wheels"]


@pytest.mark.parametrize(
    "says, ended, told",
    [
        ("Kernel push error: Maximum batch GPU session count of 2 reached.", 0, "Maximum batch GPU session"),
        ("what?", 0, "does not say"),
        (
            "The following are not valid dataset sources and could not be added to the kernel: "
            "['ada/gone']\nKernel version 8 successfully pushed.  Please check progress at https://x",
            0,
            "['ada/gone']",
        ),
        ("Authentication required to call the Kaggle API.", 1, "auth login"),
        ("HTTPSConnectionPool: Max retries exceeded", 1, "cannot be reached"),
        ("ModuleNotFoundError: No module named 'six'", 1, "spectrakit-train[kaggle]"),
        ("403 - Forbidden", 1, "403 - Forbidden"),
        ("", 2, "status 2"),
    ],
)
def test_a_push_that_failed_says_so_also_where_the_client_ends_with_0(call, here, client, says, ended, told):
    kernel(here / "k")
    client.answers(says, ended)
    status, out, err = call("push", "k")
    assert status == 1 and told in err and err.count("\n") == 1 and says in out and len(client.calls()) == 1


def test_errors_stop_a_push_and_anyway_does_not_care(call, here, client):
    kernel(here / "k", "import nowhere")
    assert call("push", "k")[0] == 1 and client.calls() == []
    assert call("push", "k", "--anyway")[0] == 0 and len(client.calls()) == 1


def test_without_a_client_the_extra_is_named_and_nothing_is_changed(call, here, monkeypatch):
    kernel(here / "k", id=f"{PLACEHOLDER}/my-kernel")
    monkeypatch.setenv("PATH", str(here))
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    before = tree_hashes(here)
    status, _out, err = call("push", "k", "--owner", "ada")
    assert status == 2 and "spectrakit-train[kaggle]" in err and tree_hashes(here) == before
    assert call("push", "k", "--owner", "ada", "--dry-run")[0] == 0


@pytest.mark.parametrize(
    "state, expected", [("RUNNING", 0), ("QUEUED", 0), ("COMPLETE", 0), ("ERROR", 1), ("CANCEL_ACKNOWLEDGED", 1)]
)
def test_the_exit_status_of_status_is_the_runs(call, here, client, state, expected):
    kernel(here / "k")
    client.answers(f'ada/my-kernel has status "KernelWorkerStatus.{state}"\nFailure message: "…"')
    for word in ("k", "ada/my-kernel"):
        assert call("status", word)[0] == expected
    client.answers(f'ada/my-kernel has status "{state.lower()}"')  # as clients before 2 said it
    assert call("status", "k")[0] == expected and client.calls() == [["kernels", "status", "ada/my-kernel"]] * 3


def test_what_is_fetched_goes_where_it_was_asked_to(call, here, client):
    kernel(here / "k")
    assert (
        call("pull", "k", "fresh")[0]
        == call("logs", "k", "--follow")[0]
        == call("output", "k", "out", "--files", "sub.*csv", "--force")[0]
        == call("pull", "k", "k", "--force")[0]
        == 0
    )
    assert client.calls() == [
        ["kernels", "pull", "ada/my-kernel", "-p", "fresh", "-m"],
        ["kernels", "logs", "ada/my-kernel", "--follow"],
        ["kernels", "output", "ada/my-kernel", "-p", "out", "--file-pattern", "sub.*csv", "-o"],
        ["kernels", "pull", "ada/my-kernel", "-p", "k", "-m"],
    ]


# the real client, which checks metadata before it goes to the network


@pytest.fixture
def real_client(here, monkeypatch):
    """A function that lets the real client push a folder: what it says.

    There is no way from here to Kaggle, and nobody's name or key.
    """
    program = Path(sys.executable).with_name("kaggle")
    if not program.is_file():
        pytest.skip("Kaggle's client is not installed: pip install 'spectrakit-train[kaggle]'")

    def push(folder: Path) -> str:
        nowhere = {f"{scheme}_proxy".upper(): "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
        env = (
            {key: value for key, value in clean_environ().items() if not key.lower().endswith("_proxy")}
            | nowhere
            | {"HOME": str(here), "KAGGLE_USERNAME": "ada", "KAGGLE_KEY": "0" * 32}
        )
        done = subprocess.run(
            [program, "kernels", "push", "-p", folder], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode != 0
        return done.stdout + done.stderr

    return push


@slow
def test_the_real_client_takes_what_init_writes_and_refuses_what_the_check_refuses(real_client, here):
    init_kernel(
        here / "mine",
        title="A notebook of mine",
        owner="ada",
        sources=KernelSources(datasets=["bob/spectra/2"], models=["ada/resnet/pytorch/small/1"]),
    )
    said = real_client(here / "mine")
    assert re.search("proxy|Max retries|Connection", said) and "does not resolve" not in said, (
        said
    )  # it came as far as the network
    for change in (
        {"title": "abc"},
        {"language": "Python"},
        {"id": "ada/my-kernel/3"},
        {"dataset_sources": ["coffee"]},
        {"model_sources": ["ada/resnet"]},
    ):
        folder = kernel(here / "k", **change)
        said = real_client(folder)
        assert not re.search("proxy|Max retries", said), (change, said)
        assert [f for f in kernel_findings(GOOD | change, folder) if f.level == "error"], change


def test_an_address_is_made_as_the_client_makes_it():
    slugify = pytest.importorskip("slugify", reason="Kaggle's client is not installed").slugify
    for title in ("My First Kernel", "Coffée & tea: 1,000 spectra!", "a_b  c--d", "don't", "2×T4 (9h)", "Ünïcode"):
        assert slug_of(title) in (slugify(title), slugify(title).replace("x", "")), title


@pytest.mark.parametrize(
    "line, told",
    [
        ("get_ipython().run_line_magic('pip', 'install -q timm-extra')", "--with timm-extra"),
        ("!pip install spectrakit", r"spectrakit wheelhouse OUT$"),
        ("!pip install -U 'torch>=2.11'", r"Remove the line: torch stays"),
        ("%pip install -U ipywidgets", r"Remove the line: ipywidgets stays"),
    ],
)
def test_an_installation_is_answered_by_what_a_wheelhouse_does(line, told, here):
    (finding,) = [f for f in check_kernel(kernel(here / "k", line)).findings if f.about == "offline"]
    assert finding.level == "error" and re.search(told, finding.text), finding


@pytest.mark.parametrize(
    "words, told", [(["init", "my run/with space", "--owner", "ada"], "kaggle up 'my run/with space'")]
)
def test_a_folder_with_a_space_is_told_as_one_types_it(words, told, call, here):
    assert told in call(*words)[1]


# what people are told to type


def test_the_commands_that_people_are_told_lead_to_the_submission(call, here):
    from kaggle_sim.story import REAL

    page = (ROOT / "kaggle" / "README.md").read_text(encoding="utf-8").replace("$kernel", "infer")
    for name in ("train", "train-on", "infer"):
        folder = here / "kaggle" / name
        folder.mkdir(parents=True)
        text = (ROOT / "kaggle" / name / KERNEL_FILE).read_text(encoding="utf-8")
        (folder / KERNEL_FILE).write_text(text.replace(PLACEHOLDER, "ada"), encoding="utf-8")
    for told in (REAL, page):
        lines = re.findall(r"spectrakit (kaggle (?:output|pull|status|logs) kaggle/\S+(?: [\w.-]+)*)", told)
        assert lines and "submission.csv" in lines[-1]
        for line in lines:
            assert call(*line.split()[1:], "--dry-run")[0] == 0, line
        assert (
            "kernels output ada/spectrakit-infer -p out --file-pattern submission.csv"
            in call(*lines[-1].split()[1:], "--dry-run")[1]
        )
    assert "&& spectrakit kaggle status kaggle/infer || break" in page  # `logs` says nothing of how a run ended
