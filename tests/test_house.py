"""The rules that hold the project together: one version of every fact, floors, light imports, notebooks that teach."""

import ast
import functools
import graphlib
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import check
import outputs
import prose
import sync

root = Path(__file__).resolve().parent.parent
PAGES = [f"docs/{path.name}" for path in (root / "docs").glob("*.md")]
HEAVY = {"torch", "accelerate", "transformers"}
LIGHT = {"system", "config", "view", "picker", "kaggle", "cloud", "cli"}  # of the others some modules are

settings = ConfigParser(interpolation=None)
settings.read(root / "settings.ini", encoding="utf-8")
settings = settings["DEFAULT"]
pyproject = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@functools.cache
def read_notebook(path: Path) -> list[dict]:
    "The cells of a notebook, `source` as one string."
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def exported_modules() -> dict[str, tuple[int, ...]]:
    "Module name, such as `spectrakit.runs.events` → the numbers of its folders and of its notebook, lowest first."
    found = {}
    for path in sorted((root / "nbs").rglob("[0-9]*.ipynb")):
        code = "\n".join(cell["source"] for cell in read_notebook(path) if cell["cell_type"] == "code")
        if name := re.search(r"^#\|\s*default_exp\s+(\S+)", code, re.M):
            found[f"spectrakit.{name[1]}"] = tuple(
                int(part.partition("_")[0]) for part in path.relative_to(root / "nbs").parts
            )
    return found


def module_path(name: str) -> Path:
    "The file of a module of this package."
    base = root / Path(*name.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


MODULES = exported_modules()
EXPORTED = [name for name in MODULES if module_path(name).exists()]
NOTEBOOKS = sorted((root / "nbs").rglob("*.ipynb"))


@functools.cache
def imports_of(name: str) -> set[str]:
    "Every module that the source of module `name` imports, at its top or inside a function, as absolute dotted names."
    here, found = name.split("."), set()
    for node in ast.walk(ast.parse(module_path(name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            found |= {full} | {f"{full}.{alias.name}" for alias in node.names}
    return found


def as_set(requirements: list[str]) -> set[str]:
    "Requirements in one spelling, without their order."
    return {str(Requirement(text)) for text in requirements}


def loaded_by(statement: str) -> set[str]:
    "The top-level packages that a fresh interpreter has loaded once `statement` has run."
    code = f"{statement}\nimport sys\nprint('\\n'.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=root)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


# --- settings.ini serves nbdev, pyproject.toml serves pip -------------------------------------------------------------


def test_the_two_settings_files_state_the_same_project():
    project = pyproject["project"]
    assert settings["lib_name"] == settings["lib_path"] == "spectrakit"
    assert project["requires-python"] == f">={settings['min_python']}"
    assert project["description"] == settings["description"]
    assert as_set(settings["requirements"].split()) == as_set(project["dependencies"])
    assert settings["console_scripts"].split() == [f"{name}={target}" for name, target in project["scripts"].items()]
    table = pyproject["tool"]["nbdev"]
    assert {key: settings[key] for key in ("tst_flags", "nbs_path", "lib_path")} == table


def test_there_is_one_version():
    from importlib.metadata import version

    import spectrakit
    from spectrakit.kaggle.offline.installer import DISTRIBUTION

    assert pyproject["project"]["dynamic"] == ["version"]
    assert spectrakit.__version__ == settings["version"] == version(DISTRIBUTION)
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert cited and cited[1] == settings["version"]
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest[1] == settings["version"], "the newest section of CHANGELOG.md names another version"


def test_the_distributions_name_is_said_in_one_place_of_the_package():
    from spectrakit.kaggle.offline.install_cell import INSTALL_CELL
    from spectrakit.kaggle.offline.installer import DISTRIBUTION

    name = pyproject["project"]["name"]
    assert name == DISTRIBUTION and f"{name}[demo]" in INSTALL_CELL
    code = [p for p in (root / "spectrakit").rglob("*.py") if f'"{name}' in p.read_text(encoding="utf-8")]
    assert sorted(path.stem for path in code) == ["errors", "install_cell", "installer"]


def test_nothing_leads_to_an_address_that_the_settings_do_not_name():
    "A name that nobody owns can be taken by anybody: `pip install git+…`, a badge or a link would then run their code."
    address = settings["git_url"]
    found = {
        f"{name}: {hit}"
        for name in sync.tree_files()
        if name.suffix in (".py", ".ipynb", ".md", ".toml", ".ini", ".yaml", ".yml", ".json", ".txt", ".in")
        for hit in re.findall(r"git(?:hub|lab)(?:\.com)?/spectrakit[\w./-]*", _text(name))
        if not address or not hit.startswith(address.removeprefix("https://"))
    }
    assert not found


def _text(name: Path) -> str:
    "The text of a file of the tree, without what this test itself says."
    return "" if name.name == Path(__file__).name else (root / name).read_text(encoding="utf-8")


NOT_LOCKED = {"trackio", "aim"}  # a web server and 360 MB: tests have stand-ins, and take the real ones where they are


def test_the_lock_satisfies_what_the_package_asks_for():
    pins = {}
    for line in (root / "requirements-dev.lock").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            pins[pin.name.lower().replace("_", "-")] = str(pin.specifier).removeprefix("==")
    named = pyproject["project"]["optional-dependencies"]
    extras = [packages for extra, packages in named.items() if extra not in NOT_LOCKED]
    asked = [
        *pyproject["project"]["dependencies"],
        *(text for extra in extras for text in extra if not text.startswith(f"{pyproject['project']['name']}[")),
    ]
    asked += re.findall(r"^\w.*", (root / "requirements-dev.in").read_text(encoding="utf-8"), re.M)
    for requirement in map(Requirement, asked):
        assert requirement.name.lower() in pins, f"{requirement.name} is not in the lock: run `make lock`"
        pin = pins[requirement.name.lower()]
        assert pin in requirement.specifier, f"the lock has {pin} and breaks {requirement}: run `make lock`"


def test_a_tracker_that_needs_a_package_is_an_extra_of_its_name():
    from spectrakit.runs.trackers.registry import TRACKERS

    needed = {name for name, kind in TRACKERS.items() if kind.packages}
    assert needed and needed <= pyproject["project"]["optional-dependencies"].keys(), (
        "the kit tells people to install it"
    )


# --- floors -----------------------------------------------------------------------------------------------------------


def test_every_numbered_notebook_has_its_module():
    numbered = [path for path in NOTEBOOKS if re.match(r"\d", path.name)]
    assert len(MODULES) == len(numbered) and set(MODULES) == set(EXPORTED), "run `nbdev_export`"


@pytest.mark.parametrize(
    "path", [p for p in NOTEBOOKS if re.match(r"\d", p.name)], ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_a_notebook_lies_where_its_module_does(path):
    code = "\n".join(cell["source"] for cell in read_notebook(path) if cell["cell_type"] == "code")
    folders = path.relative_to(root / "nbs").with_suffix("").parts
    module = r"\.".join(re.fullmatch(r"\d\d_(\w+)", name)[1] for name in folders)
    assert re.search(rf"^#\|\s*default_exp\s+{module}$", code, re.M)


def test_no_two_notebooks_have_the_same_number():
    assert len(set(MODULES.values())) == len(MODULES)
    packages = {(name.rpartition(".")[0], numbers[:-1]) for name, numbers in MODULES.items()}
    assert len({numbers for _, numbers in packages}) == len(packages)


@pytest.mark.parametrize("name", EXPORTED)
def test_a_package_imports_only_lower_packages_and_a_notebook_only_lower_notebooks(name):
    packages = {module.rpartition(".")[0]: numbers[:-1] for module, numbers in MODULES.items()}
    here = MODULES[name]
    above = [other for other in imports_of(name) if MODULES.get(other, ()) >= here]
    above += [other for other in imports_of(name) if other in packages and packages[other] > here]
    assert not above, f"{name} imports {above}, which have higher numbers"


@pytest.mark.parametrize("package", sorted({name.split(".")[1] for name in EXPORTED}))
def test_a_package_says_what_it_is_for(package):
    face = ast.parse((root / "spectrakit" / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(face), "one sentence, and the names that others use"


@pytest.mark.parametrize("name", EXPORTED)
def test_a_module_uses_no_private_name_of_another(name):
    tree = ast.parse(module_path(name).read_text(encoding="utf-8"))
    ours = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("spectrakit"))
    ]
    assert not [
        f"{node.module}.{alias.name}" for node in ours for alias in node.names if re.match(r"_[^_]", alias.name)
    ]


@pytest.mark.parametrize("name", EXPORTED)
def test_a_module_keeps_the_rules_of_the_house(name):
    path = module_path(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [node.lineno for node in imports if node.names[0].name == "*"], "`import *`"
    assert not {other.partition(".")[0] for other in imports_of(name)} & {"nbdev", "fastcore", "execnb"}
    named = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    typed = ["typing.overload"]  # a signature for type checkers, without a body
    public = [n for n in named if not n.name.startswith("_") and [*map(ast.unparse, n.decorator_list)] != typed]
    assert not [node.name for node in public if not ast.get_docstring(node)], "public, and without a docstring"


def unexplained_parameters(node: ast.AST, owner: ast.ClassDef | None = None) -> list[str]:
    "`function: parameter` where a public function of more than three does not name one in its docstring."
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        return [line for inner in node.body for line in unexplained_parameters(inner, node)]
    if not isinstance(node, ast.FunctionDef) or (node.name.startswith("_") and node.name != "__init__"):
        return []
    a = node.args
    names = [one.arg for one in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg] if one is not None]
    names = [name for name in names if name not in ("self", "cls")]
    text = ast.get_docstring(node) or ""
    if owner is not None and node.name == "__init__":
        text += ast.get_docstring(owner) or ""
    told = {
        name for name in names if f"`{name}`" in text or re.search(rf"^ +\**{name}(, \w+)*( \(.*?\))?: ", text, re.M)
    }
    return [f"{node.name}: {name}" for name in names if len(names) > 3 and name not in told]


@pytest.mark.parametrize("name", EXPORTED)
def test_a_public_function_of_more_than_three_parameters_explains_each(name):
    tree = ast.parse(module_path(name).read_text(encoding="utf-8"))
    assert not [line for node in tree.body for line in unexplained_parameters(node)]


def test_a_parameter_without_a_word_is_noticed():
    tree = ast.parse('def f(a, b, *, c, **d):\n    "`a`, `b` and `d`."\ndef _g(a, b, c, d): ...')
    assert [line for node in tree.body for line in unexplained_parameters(node)] == ["f: c"]
    google = ast.parse(
        'def f(a, b, *c, **d):\n    """Add.\n\n    Args:\n        a: One.\n        *c: Two.\n        **d: 3.\n    """'
    )
    assert [line for node in google.body for line in unexplained_parameters(node)] == ["f: b"]


def test_a_light_module_loads_nothing_heavy():
    light = [name for name in EXPORTED if name.split(".")[1] in LIGHT]
    if loaded_by(f"import {', '.join(light)}") & HEAVY:
        assert not {name: heavy for name in light if (heavy := loaded_by(f"import {name}") & HEAVY)}


def sources_outside() -> list[tuple[Path, str]]:
    "The Python that is no part of the package and uses it: (file, code)."
    files = [path for folder in ("kaggle", "bench", "tools") for path in sorted((root / folder).rglob("*.py"))]
    found = [(path, path.read_text(encoding="utf-8")) for path in files]
    for path in [*sorted((root / "kaggle").rglob("*.ipynb")), *NOTEBOOKS]:
        cells = [cell["source"] for cell in read_notebook(path) if cell["cell_type"] == "code"]
        found += [(path, code) for code in cells if "spectrakit" in code and not re.search(r"^\s*[%!]", code, re.M)]
    return found


def test_what_is_taken_from_the_package_elsewhere_is_there():
    "No other test imports a kernel of kaggle/ or a benchmark."
    wanted = {
        (path.name, node.module, alias.name)
        for path, code in sources_outside()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "spectrakit" and not node.level
        for alias in node.names
    }
    missing = [
        one
        for one in sorted(wanted)
        if not hasattr(importlib.import_module(one[1]), one[2]) and f"{one[1]}.{one[2]}" not in MODULES
    ]
    assert len(wanted) > 100 and missing == []


def test_no_public_name_is_that_of_a_module():
    import spectrakit

    modules = {
        path.stem for path in (root / "spectrakit").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert not modules & set(spectrakit.__all__)  # importing the module would put it in the place of the function


def test_importing_the_package_loads_next_to_nothing():
    assert not loaded_by("import spectrakit") & (HEAVY | {"hydra", "omegaconf", "numpy", "matplotlib", "yaml"})


@pytest.mark.parametrize("words", [["--help"], ["info"]])
def test_help_and_info_open_without_torch(words):
    assert (
        not loaded_by(
            f"import sys; sys.argv = ['spectrakit', *{words}]\n"
            "from spectrakit.cli.main import main\n"
            "try: main()\n"
            "except SystemExit as end: assert not end.code"
        )
        & HEAVY
    )


# --- notebooks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if re.match(r"\d", p.name)], ids=lambda p: p.stem)
def test_a_notebook_teaches(path):
    cells = read_notebook(path)
    name = path.stem.partition("_")[2] if path.parent.name[0].isdigit() else r"\S.*"
    assert re.match(rf"# {name}\n\n> \S", cells[0]["source"]), "it begins with `# module`, an empty line, `> caption`"
    headings = [cell["source"] for cell in cells if cell["cell_type"] == "markdown"]
    assert any(re.search(r"^## Pitfalls", text, re.M) for text in headings)
    assert not [cell for cell in cells if "nbdev_export()" in cell["source"]], "a stray cell that exports"


def prints(source: str) -> bool:
    "Whether the cell prints, at its top or in a block of it."
    if re.match(r"#\|\s*(export|hide|default_exp|eval: false|slow|cuda|kaggle)\b", source):
        return False
    code = re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.M)
    todo = list(ast.parse(code).body)
    for node in todo:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            todo += [inner for name in ("body", "orelse", "finalbody", "handlers") for inner in getattr(node, name, [])]
    return any(re.match(r"print\(", ast.unparse(node)) for node in todo if isinstance(node, ast.Expr))


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if re.match(r"\d", p.name)], ids=lambda p: p.stem)
def test_what_a_notebook_prints_is_kept(path):
    cells = [cell for cell in read_notebook(path) if cell["cell_type"] == "code"]
    empty = [cell["source"] for cell in cells if prints(cell["source"]) and not cell["outputs"]]
    assert not empty, "run `python tools/notebooks.py run` on it"


PATH_IN_OUTPUT = re.compile(r"/(?:home|root|work|tmp|Users|var/folders)/[\w.-]+")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_hold_no_error_and_no_path_of_a_machine(path):
    for cell in read_notebook(path):
        for output in cell.get("outputs", []):
            assert output["output_type"] != "error", cell["source"]
            shown = {key: value for key, value in output.get("data", {}).items() if not key.startswith("image/png")}
            text = json.dumps([output.get("text"), shown])
            assert not (found := PATH_IN_OUTPUT.search(text)), f"{found[0]} in the output of:\n{cell['source']}"


def test_no_committed_file_names_a_folder_of_somebodys_machine():
    private = re.compile(r"(?<![\w.~}/-])/(?:home|root|work|Users)/(?!sagemaker-user\b)[\w.-]+")  # that one is Amazon's
    told = []
    for name in sync.tree_files():
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        told += [f"{name}: {found[0]}" for found in private.finditer(text)]
    assert not told


def test_no_suppression_without_its_reason():
    bare = re.compile(r"#\s*(?:noqa|type:\s*ignore)(?!:? ?\[?[A-Z0-9a-z, -]+\]?\s+(?:[#-]+ *)?\w)")
    sources = [name for name in sync.tree_files() if str(name).endswith((".py", ".ipynb"))]
    lines = [(name, line) for name in sources for line in (root / name).read_text(encoding="utf-8").splitlines()]
    assert not [f"{name}: {line.strip()}" for name, line in lines if bare.search(line)]
    silent = re.compile(r"""(?:simplefilter|filterwarnings)\(\W*ignore(?!.*\s#\s\w)|#\s*fmt:\s*\w+""")
    assert not [
        f"{name}: {line.strip()}" for name, line in lines if name.name != Path(__file__).name and silent.search(line)
    ]


ONE_FILE_A_THING = {"09_trackers", "03_commands", "11_parts"}  # a tracker, a command group, a concern


def test_no_folder_of_the_package_holds_more_than_about_eight_notebooks():
    folders = {path.parent for path in NOTEBOOKS if path.parent.name[0].isdigit()}
    counts = {folder.name: len(list(folder.glob("*.ipynb"))) for folder in folders}
    assert not {name: count for name, count in counts.items() if count > 12 and name not in ONE_FILE_A_THING}


def test_ruff_leaves_out_only_what_is_exported():
    listed = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", "."],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
    )
    checked = {Path(line).relative_to(root).as_posix() for line in listed.stdout.splitlines()}
    ours = {str(name) for name in sync.tree_files() if str(name).endswith((".py", ".ipynb"))}
    exported = {module_path(name).relative_to(root).as_posix() for name in EXPORTED}
    assert ours - checked == exported | {"spectrakit/_modidx.py"}, "what is written by hand is checked"


def test_outputs_are_small_enough_for_git():
    assert not [line for path in NOTEBOOKS for line in outputs.large_outputs(path)]


# --- the checks of tools/ notice what they are there for --------------------------------------------------------------


def test_a_tree_without_git_has_the_same_files(tmp_path):
    assert sync.tree_files(sync.copy_tree(tmp_path / "tree")) == sync.tree_files()


@pytest.mark.slow
def test_a_module_edited_by_hand_is_noticed_and_left_alone(tmp_path):
    top = sync.copy_tree(tmp_path / "tree")
    module = top / "spectrakit" / "runs" / "events.py"
    module.write_text(module.read_text(encoding="utf-8") + "\nEDITED = True\n", encoding="utf-8")
    before = sync.fingerprint(top)
    told = "\n".join(sync.check(top))
    assert "nbdev_export changes the tree" in told and "spectrakit/runs/events.py: differs" in told and "EDITED" in told
    assert sync.fingerprint(top) == before, "the check altered the tree it looked at"


@pytest.mark.slow
def test_a_notebook_that_was_not_cleaned_is_noticed(tmp_path):
    top = sync.copy_tree(tmp_path / "tree")
    path = top / "nbs" / "30_runs" / "00_events.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")["execution_count"] = 7
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    told = "\n".join(sync.check(top))
    assert "nbdev_clean changes the tree" in told and "nbs/30_runs/00_events.ipynb: differs" in told


@pytest.mark.slow
def test_a_readme_edited_by_hand_is_noticed(tmp_path):
    top = sync.copy_tree(tmp_path / "tree")
    (top / "README.md").write_text("# another\n", encoding="utf-8")
    told = "\n".join(sync.check(top))
    assert "README.md" in told and "make readme" in told


def test_a_module_without_a_notebook_is_noticed(tmp_path):
    top = sync.copy_tree(tmp_path / "tree")
    (top / "spectrakit" / "stray.py").write_text("x = 1\n", encoding="utf-8")
    assert "spectrakit/stray.py: was not exported from a notebook" in sync.orphans(top)


def test_a_cell_with_a_large_output_is_named(tmp_path):
    path = tmp_path / "plots.ipynb"
    sizes = (outputs.MAX_BYTES // 2, 2 * outputs.MAX_BYTES)
    cells = [{"cell_type": "code", "outputs": [{"text": "x" * size}]} for size in sizes]
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (line,) = outputs.large_outputs(path)
    assert "cell 1" in line


def test_the_hooks_before_a_commit_run_what_make_test_runs():
    hooks = yaml.safe_load((root / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} >= {
        "ruff-format",
        "ruff-check",
        "nbdev-clean",
        "nbdev-export",
        "large-outputs",
    }
    checked = [" ".join(command) for _, command in check.TOGETHER]
    assert any("ruff format --check" in words for words in checked) and any("ruff check" in words for words in checked)


# --- cells that can be read -----------------------------------------------------------------------------------------

LONGEST_CELL = 40  # lines

# (notebook, first name in the cell) → why it is longer: it would be worse cut up
LONG_CELLS = {
    ("50_train/08_start/00_sanity_check", "SanityCheck"): "a table of fields, and methods of a line",
    ("00_system/00_secret_masking", "_FIRST"): "a table: a line for each service whose keys are known",
    ("00_system/00_secret_masking", "_BETWEEN"): "a table: what a secret without a beginning of its own looks like",
    ("05_config/02_aliases", "_DDP"): "a table: other words for settings",
    ("05_config/02_aliases", "_SUGGESTED"): "two tables: words that are often meant, and words that mean nothing here",
    ("05_config/05_auto_settings", "_RULES"): "a table: a row for each setting that may have no effect",
    (
        "88_kaggle/00_offline/05_install_cell",
        "INSTALL_CELL",
    ): "the text of one cell, which stands alone in other notebooks",
    ("45_prediction/05_ensemble", "Mixture"): "one class: sums, votes and what they mean belong together",
    ("35_task/09_checks/02_error_diagnosis", "_LEARNING"): "a table: a row for each error that is explained",
    ("75_picker/03_drawing", "_FIELDS"): "a style sheet",
    ("88_kaggle/08_init", "TASK_CELL"): "the text of three cells, as they are written into a kernel",
    ("00_system/04_platforms/02_known_platforms", "KINDS"): "a table: a row for each platform",
    (
        "00_system/04_platforms/03_platform",
        "Platform",
    ): "what is known of a machine: a table of fields, and methods of a line or two that say it",
    ("05_config/01_schema", "Config"): "a table of settings",
    (
        "50_train/12_cuda_graphs/00_cuda_graphs",
        "CapturedStep",
    ): "a state machine with two entries; each of its steps is short",
    ("50_train/01_part", "Part"): "a table: a line for each moment of a run",
    ("05_config/01_schema", "DistributedConfig"): "a table of settings",
    (
        "40_forecast/05_run_forecast",
        "Forecast",
    ): "a table of fields, and methods of a line that say what follows from them",
    ("84_serving/01_answering", "Worker"): "a process, and the two threads that belong to it: each method is short",
    ("84_serving/01_answering", "Answers"): "a state machine with one entry, each of whose steps is a short method",
    ("84_serving/02_inference_server", "serve"): "what a server is begun with: six arguments, each explained",
    (
        "80_tuning/06_search/04_search_loop",
        "Search",
    ): "the state of what is under way: a table of fields, and short methods",
    (
        "80_tuning/02_cross_validation",
        "CrossValidation",
    ): "a table of fields, and methods of a line that say what follows from them",
    ("86_tasks/04_spectrum/02_regression", "SpectrumData"): "a task: arrays, divisions, learned facts",
    ("86_tasks/04_spectrum/02_regression", "SpectrumRegression"): "a task: a short method each",
    ("86_tasks/05_table/10_table", "Table"): "a task: a short method for each question that training asks",
    ("86_tasks/05_table/10_table", "TableNet"): "a network: a short method for each question that training asks",
    ("86_tasks/05_table/10_table", "TableRows"): "what has been read, and by which recipe",
    ("86_tasks/05_table/03_columns", "Columns"): "an encoding: its fields, and the inputs that follow from them",
    (
        "25_checkpoint/05_async_writer",
        "CheckpointWriter",
    ): "the one face of saving: each method hands on to a part above",
    (
        "15_distributed/05_context",
        "RunContext",
    ): "what a rank knows: a table of fields, and methods that hand on to the functions above",
    (
        "20_watchdog/00_time_budget",
        "Budget",
    ): "the clock that everybody asks: fields with their meaning, and methods of a line",
    (
        "20_watchdog/01_watchdog",
        "Watchdog",
    ): "what a user holds: a method for each question, and how the block begins and ends",
    ("30_runs/03_history", "History"): "the one reader of a run: a property for each question, most of them one line",
    (
        "35_task/01_task",
        "Task",
    ): "the protocol: a method for each thing that a task may have, with what it gets and returns",
    ("35_task/02_shared_forward", "StandIn"): "one object that behaves as another: a method for each way to ask it",
    ("50_train/06_epochs", "Epochs"): "a part: its moments, and what they keep",
    ("50_train/02_state", "TrainState"): "all that the loop works with, by groups, and what of it is saved",
    (
        "50_train/11_parts/02_out_of_memory",
        "OutOfMemory",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/11_parts/03_loss_scaling",
        "LossScaling",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/11_parts/05_ema",
        "Ema",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/11_parts/06_nan_guard",
        "NanGuard",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/11_parts/07_weight_average",
        "WeightAverage",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/12_cuda_graphs/01_step_capture",
        "CudaGraphs",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/03_diloco/04_diloco",
        "Diloco",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/11_parts/10_logging",
        "Logging",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    (
        "50_train/11_parts/11_validation",
        "Evaluation",
    ): "a part: its state, and a short method for each moment at which it joins the loop",
    ("50_train/08_start/01_setup", "prepare"): "what is decided before the first step, in the order in which it is",
    ("50_train/14_loop", "train_steps"): "a whole step read from top to bottom",
    ("65_view/01_run_state", "Curve"): "one curve: how a point is taken in, and its slices merged",
    ("65_view/01_run_state", "RunState"): "all that a view knows of a run, by groups",
    ("65_view/08_terminal", "BarView"): "one view: when a bar is opened, drawn and ended",
    ("65_view/08_terminal", "TextView"): "one view: what it reads, and how a line is drawn over or written",
    ("65_view/09_cell/03_buttons", "Buttons"): "two widgets, from their making to their removal",
    ("65_view/09_cell/04_live", "LiveView"): "one view: what is due; drawing is done by the functions below it",
    ("10_data/03_samples", "SeededSamples"): "one state: what a sample may draw from, found, told and taken over",
    ("10_data/06_loaders", "LoadedBatches"): "one reading: how it begins, goes on after a loss, and begins anew",
    ("10_data/06_loaders", "_Loader"): "one state: workers that begin, are replaced, kept and ended",
    ("10_data/08_streams", "StreamSamples"): "a data set: all that its readers ask of it",
    ("10_data/06_loaders", "Workers"): "one choice and its state: how it is made, taken and taken back",
    ("55_jobs/07_serving", "Together"): "several models as one: a method for each step of an answer",
    ("70_api/00_run", "Run"): "what a user holds: a property for each question, most of them one line",
    ("75_picker/04_picker", "Form"): "the widgets of one form and how they follow the selection",
    ("75_picker/04_picker", "ProfilePicker"): "what a user holds: a method for each thing to do with the selection",
    ("80_tuning/06_search/02_study", "Study"): "what a user holds: a property for each question, most of them one line",
    ("92_lm/03_reading", "_Cursor"): "a place in a corpus, and the one loop that moves it",
    ("92_lm/03_reading", "DocumentReading"): "a buffer, a generator and a place, which are one state",
    ("92_lm/04_sequences", "SequenceReading"): "documents, texts under way, rows and a rest, which are one state",
    ("92_lm/06_language_model", "LanguageModel"): "a task: a short method for each question that training asks",
    ("86_tasks/02_fermentation", "Fermentation"): "a task as a user writes it: one class",
}

# (notebook, first name in the cell) → why no cell shows it
NOT_SHOWN: dict[tuple[str, str], str] = {}


@functools.cache
def parsed(source: str) -> ast.Module:
    "The tree of an export cell."
    return ast.parse(source)


def definitions_in(source: str) -> list[str]:
    "The functions and classes that an export cell defines at its top; empty for any other cell."
    if not re.match(r"#\|\s*export\b", source):
        return []
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in parsed(source).body if isinstance(node, named)]


def named_in(source: str) -> list[str]:
    "The names that an export cell makes at its top: of functions, classes and constants; empty for any other cell."
    if not re.match(r"#\|\s*export\b", source):
        return []
    found = definitions_in(source)
    for node in parsed(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found += [target.id for target in targets if isinstance(target, ast.Name)]
    return found


def export_cells(
    names_in: Callable[[str], list[str]] = definitions_in,
) -> list[tuple[tuple[str, str], list[str], int, bool]]:
    """Each export cell with names: (notebook, first name), its names, its lines of code, whether it is shown next.

    `names_in`: the names that it makes, as far as they count.
    """
    found = []
    for path in (path for path in NOTEBOOKS if re.match(r"\d", path.name)):
        code = [cell["source"] for cell in read_notebook(path) if cell["cell_type"] == "code"]
        place = path.relative_to(root / "nbs").with_suffix("").as_posix()
        for source, following in zip(code, [*code[1:], "#| export"], strict=True):
            if names := names_in(source):
                texts = (node for node in ast.walk(parsed(source)) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
                told = sum((ast.get_docstring(node) or "").count("\n") for node in texts)  # arguments, a line each
                shown = not re.match(r"#\|\s*(export|hide)\b", following)
                found.append(((place, names[0]), names, len(source.splitlines()) - told, shown))
    return found


def test_an_export_cell_fits_on_a_screen():
    long = {cell: lines for cell, _, lines, _ in export_cells(named_in) if lines > LONGEST_CELL}
    assert not {cell: lines for cell, lines in long.items() if cell not in LONG_CELLS}, "cut it at its ideas"
    assert not LONG_CELLS.keys() - long, "these rows of LONG_CELLS are no longer needed: remove them"


def test_each_public_export_cell_is_followed_by_one_that_shows_or_asserts():
    public = [(cell, shown) for cell, names, _, shown in export_cells() if any(not n.startswith("_") for n in names)]
    alone = {cell for cell, shown in public if not shown}
    assert not alone - NOT_SHOWN.keys(), "add a cell that shows what it does"
    assert not NOT_SHOWN.keys() - alone, "these rows of NOT_SHOWN are no longer needed: remove them"


# --- one place for what differs between jobs --------------------------------------------------------------------------


def compares_a_job_kind(node: ast.AST) -> bool:
    "Whether `node` compares the kind of a job, or the name of one, with anything."
    if not isinstance(node, ast.Compare):
        return False
    sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
    return any(re.search(r"\bjob\.kind(\.name)?$", side) for side in sides) or (
        any(re.search(r"\bkind(\.name)?$", side) for side in sides)
        and any(
            re.search(r"\b(TRAIN|RESUME|PREDICT|FIND_LR|CHECK)\b|'(train|resume|find_lr)'|^'(predict|check)'$", side)
            for side in sides
        )
    )


@pytest.mark.slow
def test_only_a_kind_itself_knows_in_what_it_differs():
    assert compares_a_job_kind(ast.parse("job.kind == 'predict'", mode="eval").body)
    assert compares_a_job_kind(ast.parse("kind in ('train', 'find_lr')", mode="eval").body)
    found = [
        f"{name}:{node.lineno}: {ast.unparse(node)}"
        for name in EXPORTED
        for node in ast.walk(ast.parse(module_path(name).read_text(encoding="utf-8")))
        if compares_a_job_kind(node)
    ]
    assert not found, "ask JobKind for what differs"


def test_contributing_names_files_that_are_there():
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    notebooks = re.findall(r"`(nbs/\d\w+/[\w/]+\.ipynb)`", text)
    linked = re.findall(r"\[`([\w/]+)`\]\((nbs/[\w/]+\.ipynb)\)", text)
    assert notebooks and len(linked) > 15
    assert not [name for name in [*notebooks, *(file for _, file in linked)] if not (root / name).exists()]
    assert not [name for name, _ in linked if not (root / "spectrakit" / f"{name}.py").exists()]
    assert not [name for name, file in linked if re.sub(r"\d+_", "", file) != f"nbs/{name}.ipynb"]


def test_the_road_of_a_request_goes_one_way():
    "Each arrow of the picture in CONTRIBUTING is a call that the code makes, and no box is met again behind it."
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = re.search(r"```mermaid\nflowchart LR\n(.*?)```", text, re.S)[1]
    boxes = {box: re.findall(r"\w+", label.split("<br>")[0]) for box, label in re.findall(r'(\w+)\["(.*?)"\]', picture)}
    arrows = re.findall(r"(\w+)(?:\[.*?\])? --> (\w+)", picture)
    assert len(arrows) > 8 and {box for arrow in arrows for box in arrow} == boxes.keys()
    called = {
        (name.split(".")[1], other.split(".")[1]) for name in EXPORTED for other in imports_of(name) if other in MODULES
    }
    packages = {box: {name for name in names if (root / "spectrakit" / name).is_dir()} for box, names in boxes.items()}
    missing = [
        (a, b) for a, b in arrows if not any((x, y) in called or x == y for x in packages[a] for y in packages[b])
    ]
    assert not missing, "nothing behind the arrow"
    graphlib.TopologicalSorter(
        {a: {b for x, b in arrows if x == a} for a in boxes}
    ).prepare()  # CycleError for a circle


def test_contributing_has_the_packages_in_their_order():
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("What a package may import") : text.index("Beside that road")]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    folders = {path.parent.name for path in (root / "nbs").glob("[0-9]*/*.ipynb")}
    assert named == [re.sub(r"^\d+_", "", name) for name in sorted(folders, reverse=True)]


@pytest.mark.parametrize("name", ["README.md", "nbs/index.ipynb", "CHANGELOG.md", *sorted(PAGES)])
def test_a_page_names_files_that_are_there(name):
    text = (root / name).read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:nbs|spectrakit|tests|tools|bench|kaggle|docs)/[\w/.-]+\.(?:ipynb|py|toml|md|yaml|txt))`", text
    )
    assert not [path for path in named if "NAME" not in path and not (root / path).exists()]


def test_sentences_name_their_subject():
    "At most 0.5 nominal words (what, whose, where, …) in 100 words, of each kind of text."
    found = list(prose.texts(root / "spectrakit", root / "nbs", root / "docs"))
    rates = prose.rates(found)
    assert rates.keys() == {"docstrings", "messages", "comments", "notebook prose", "pages"}
    assert not {kind: rate for kind, (_, rate) in rates.items() if rate > prose.LIMIT}
    assert prose.rates([("messages", "what nobody says, where it counts", "")])["messages"][1] == 50
