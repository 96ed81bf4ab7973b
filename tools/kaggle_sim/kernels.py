"""A kernel folder, as it is pushed, run as a session of Kaggle: its sources mounted, its notebook by papermill, its
script by Python.

A source SLUG is the folder DATASETS/SLUG: files for a data set, competition, model or notebook's output; a folder with
a kernel-metadata.json of its own for a utility script. One that is not there is left out, as Kaggle leaves it out, and
told.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from kaggle_sim.environment import Environment, environment
from kaggle_sim.sealed import MIB, Session, Tree, run

LAYOUTS = ("new", "legacy")
OWNER = "ada"
PLACEHOLDER = "INSERT-YOUR-NAME"
HOME = "/root"
ENVIRON = {
    "KAGGLE_KERNEL_RUN_TYPE": "Batch",
    "KAGGLE_URL_BASE": "https://www.kaggle.com",
    "KAGGLE_DATA_PROXY_URL": "https://dp.kaggle.net",
    "KAGGLE_DATA_PROXY_PROJECT": "kaggle-161607",
    "KAGGLE_DATA_PROXY_TOKEN": "sealed",
    "KAGGLE_USER_SECRETS_TOKEN": "sealed",
    "KAGGLE_KERNEL_INTEGRATIONS": "",
    "KAGGLE_CONTAINER_NAME": "kaggle-sealed-00000000",
    "COLAB_RELEASE_TAG": "release-colab-external-images_20260514-060047",
    "PYTHONPATH": "/kaggle/lib/kagglegym:/kaggle/lib",
    "PYTHONUSERBASE": f"{HOME}/.local",
    "HOME": HOME,
    "PWD": "/kaggle/working",
    "HOSTNAME": "kaggle",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "xterm-color",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "CLICOLOR": "1",
    "MPLBACKEND": "agg",
    "GIT_COMMIT": "fc61d5c",
    "BUILD_DATE": "20260629-000000",
}
# One line of nvidia-smi's answer for each GPU: name, MiB, compute capability, UUID. There is no driver behind it.
GPUS = {"T4": "Tesla T4, 15360, 7.5, GPU-{}", "P100": "Tesla P100-PCIE-16GB, 16384, 6.0, GPU-{}"}
MOST_FILES = 500


@dataclass
class Kernel:
    "A kernel folder, checked as far as a session needs it."

    folder: Path
    owner: str
    slug: str
    code: Path
    kind: str  # notebook, script
    sources: list[tuple[str, str]] = field(default_factory=list)  # (dataset, competition, notebook or model, its name)
    notes: list[str] = field(default_factory=list)


class BadKernel(ValueError):
    "The folder cannot be pushed."


def read_kernel(folder: Path, owner: str = OWNER) -> Kernel:
    "The kernel in `folder`, the placeholder of its owner filled in. BadKernel says what is wrong with it."
    file = folder / "kernel-metadata.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8").replace(PLACEHOLDER, owner))
    except FileNotFoundError:
        raise BadKernel(
            f"{folder} has no kernel-metadata.json, so it is no kernel. `spectrakit kaggle init` writes one."
        ) from None
    except ValueError as error:
        raise BadKernel(
            f"{file} is no JSON ({error}). Fix it, or write it again with `spectrakit kaggle init`."
        ) from None
    who, _, slug = str(told.get("id", "")).partition("/")
    code = folder / str(told.get("code_file") or "")
    if not slug:
        raise BadKernel(f"{file}: id={told.get('id')!r} is not OWNER/SLUG.")
    if not code.is_file():
        raise BadKernel(f"{file}: code_file={told.get('code_file')!r} is not in the folder.")
    if told.get("kernel_type") not in ("notebook", "script"):
        raise BadKernel(f"{file}: kernel_type={told.get('kernel_type')!r} is neither notebook nor script.")
    kinds = {"dataset": "dataset", "competition": "competition", "kernel": "notebook", "model": "model"}
    sources = [(kind, str(name)) for key, kind in kinds.items() for name in told.get(f"{key}_sources") or ()]
    # Kaggle's code takes a missing enable_internet for true
    notes = (
        ["enable_internet is not false in the metadata; there is none here"]
        if str(told.get("enable_internet", True)).lower() != "false"
        else []
    )
    return Kernel(folder, who, slug, code, told["kernel_type"], sources, notes)


def place_of(kind: str, name: str, layout: str) -> str:
    "Where Kaggle mounts a source: 'datasets/ada/soil' in the newer layout, 'soil' in the older."
    parts = name.split("/")
    if kind == "competition":
        return f"/kaggle/input/competitions/{parts[-1]}" if layout == "new" else f"/kaggle/input/{parts[-1]}"
    if layout == "new":
        return f"/kaggle/input/{kind}s/{name}"
    return "/kaggle/input/" + "/".join(parts[1:] if len(parts) > 1 else parts)


def place_of_utility(owner: str, slug: str, layout: str) -> str:
    "Where Kaggle mounts a utility script: both spellings of the slug are met there, so each layout has one of them."
    return (
        f"/kaggle/usr/lib/notebooks/{owner}/{slug.replace('-', '_')}" if layout == "new" else f"/kaggle/usr/lib/{slug}"
    )


def mounts(kernel: Kernel, datasets: Path, layout: str) -> tuple[list[tuple[str, str, bool]], list[str]]:
    """The kernel's sources as binds, utility scripts among them, and the paths that a notebook finds on sys.path; notes
    go to the kernel.
    """
    binds, utilities = [], []
    for kind, name in kernel.sources:
        owner, slug = name.split("/")[0], name.split("/")[1 if "/" in name else 0]
        source = datasets / slug
        if not source.is_dir():
            kernel.notes.append(f"the {kind} {name} is not there, and the session starts without it")
        elif kind == "notebook" and (source / "kernel-metadata.json").is_file():
            utility = read_kernel(source)
            place = place_of_utility(owner, slug, layout)
            binds.append((str(utility.code.resolve()), f"{place}/{slug.replace('-', '_')}.py", False))
            utilities.append(place)
        else:
            binds.append((str(source.resolve()), place_of(kind, name, layout), False))
    return binds, utilities


def stripped(notebook: Path) -> str:
    "The notebook as a push leaves it: without outputs, and for the kernel that is there."
    told = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in told["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    told["metadata"] = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return json.dumps(told)


def smi(names: list[str]) -> str:
    "An nvidia-smi that answers for these GPUs."
    lines = "\n".join(GPUS[name].format(number) for number, name in enumerate(names))
    return f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n"


def run_kernel(  # noqa: PLR0913 - what a session differs in, by keyword
    folder: Path,
    datasets: Path,
    out: Path,
    *,
    layout: str = "new",
    limit_s: float = 120,
    tell_limit: bool = True,
    working_mib: int = 512,
    rerun: bool = False,
    run_type: str = "Batch",
    gpus: list[str] | None = None,
    real_gpus: bool = False,
    instead: list[str] | None = None,
    kill_after: tuple[str, float] | None = None,
    environ: dict[str, str] | None = None,
    owner: str = OWNER,
    quiet: bool = False,
    python: Environment | None = None,
) -> Session:
    """Run a kernel folder as Kaggle would; what it left in /kaggle/working is then in `out`, and `out`/../SLUG.log is
    its log.

    `tell_limit`: the kit knows that the session lasts `limit_s` and not nine hours, which nothing on Kaggle tells;
    without it the session is cut short. `gpus`: names that a fake nvidia-smi tells. `instead`: wheels that stand for
    another version of the image.
    """
    kernel, python = read_kernel(folder, owner), python or environment("kaggle")
    if layout not in LAYOUTS:
        raise BadKernel(f"There is no layout {layout!r}. Write one of {', '.join(LAYOUTS)}.")
    binds, utilities = mounts(kernel, datasets, layout)
    environ = {
        **ENVIRON,
        **(environ or {}),
        "KAGGLE_KERNEL_RUN_TYPE": run_type,
        "PATH": f"{python.python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    if rerun:
        environ["KAGGLE_IS_COMPETITION_RERUN"] = "1"
    if tell_limit:
        environ["SPECTRAKIT_TIME_LIMIT"] = f"{limit_s:g}s"
    tree = Tree(
        "/kaggle/working",
        environ,
        binds=binds,
        gpus=real_gpus,
        sealed=["/kaggle/input"],
        disks=[("/kaggle/input", MIB), ("/kaggle/working", working_mib * MIB)],
    )
    tree.files = {
        "/etc/git_commit": (ENVIRON["GIT_COMMIT"], 0o644),
        "/etc/build_date": (ENVIRON["BUILD_DATE"], 0o644),
        "/kaggle/lib/kagglegym/README": ("", 0o644),
    }
    if gpus:
        tree.files["/opt/bin/nvidia-smi"] = (smi(gpus), 0o755)
    if gpus:
        environ["PATH"] += ":/opt/bin"
    tree.before = [
        [
            str(python.python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--root-user-action",
            "ignore",
            f"/tmp/{Path(wheel).name}",
        ]
        for wheel in instead or ()
    ]
    tree.binds += [(str(Path(wheel).resolve()), f"/tmp/{Path(wheel).name}", False) for wheel in instead or ()]
    command = _command(kernel, tree, utilities, str(python.python))
    for note in kernel.notes:
        print(f"note: {kernel.slug}: {note}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    return run(
        command, tree, python, "/kaggle/working", out, out.parent / f"{kernel.slug}.log", limit_s, quiet, kill_after
    )


def _command(kernel: Kernel, tree: Tree, utilities: list[str], python: str) -> list[str]:
    "The command of the session; its code is put into the tree."
    if kernel.kind == "script":
        tree.files["/kaggle/src/script.py"] = (kernel.code.read_text(encoding="utf-8"), 0o644)
        return [python, "/kaggle/src/script.py"]
    tree.files["/kaggle/working/__notebook__.ipynb"] = (stripped(kernel.code), 0o644)
    # notebooks find utility scripts on sys.path, scripts do not
    tree.files[f"{HOME}/.ipython/profile_default/startup/00-utilities.py"] = (
        f"import sys\nsys.path += {utilities!r}\ndel sys\n",
        0o644,
    )
    return [
        python,
        "-m",
        "papermill",
        "__notebook__.ipynb",
        "__notebook__.ipynb",
        "--kernel",
        "python3",
        "--no-progress-bar",
        "--start-timeout",
        "300",
        "--stdout-file",
        "/dev/stdout",
        "--stderr-file",
        "/dev/stderr",
    ]
