"""A Python that has what Kaggle or Colab ships, as far as small wheels for the Python at hand go; made once, kept in
build/.

Two layers, which inside.py lays over each other: what both platforms have in the same version, and what differs. torch,
what torch alone needs, and antlr4 (which has no wheel) are seen through from the environment that asks, so that no
gigabytes are copied.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

root = Path(__file__).resolve().parents[2]
CACHE = root / "build" / "kaggle_sim"
DATED = "googlecolab/backend-info of 2026-06 under kaggle_requirements.txt of 2026-06-29 (v170)"
PLATFORM_PYTHON = {"kaggle": "3.12", "colab": "3.13"}
TORCH = {"kaggle": "2.10.0+cu128", "colab": "2.11.0+cu128"}

# Needed by the kit, a kernel, papermill and a table; everything else that the platforms ship stays away, and is
# counted.
COMMON = [
    "annotated-doc==0.0.4",
    "anyio==4.13.0",
    "attrs==26.1.0",
    "backcall==0.2.0",
    "certifi==2026.5.20",
    "charset-normalizer==3.4.7",
    "click==8.4.1",
    "cloudpickle==3.1.2",
    "comm==0.2.3",
    "contourpy==1.3.3",
    "cycler==0.12.1",
    "decorator==4.4.2",
    "entrypoints==0.4",
    "fastjsonschema==2.21.2",
    "filelock==3.29.0",
    "fonttools==4.63.0",
    "fsspec==2025.3.0",
    "h11==0.16.0",
    "httpcore==1.0.9",
    "httpx==0.28.1",
    "idna==3.18",
    "ipykernel==6.17.1",
    "ipython==7.34.0",
    "jedi==0.19.2",
    "Jinja2==3.1.6",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "jupyter_client==7.4.9",
    "jupyter_core==5.9.1",
    "kiwisolver==1.5.0",
    "MarkupSafe==3.0.3",
    "matplotlib==3.10.0",
    "matplotlib-inline==0.2.2",
    "nbclient==0.10.4",
    "nbformat==5.10.4",
    "nest-asyncio==1.6.0",
    "packaging==26.2",
    "parso==0.8.7",
    "pexpect==4.9.0",
    "pickleshare==0.7.5",
    "pillow==11.3.0",
    "pip==24.1.2",
    "platformdirs==4.10.0",
    "prompt_toolkit==3.0.52",
    "psutil==5.9.5",
    "ptyprocess==0.7.0",
    "Pygments==2.20.0",
    "pyparsing==3.3.2",
    "python-dateutil==2.9.0.post0",
    "pytz==2025.2",
    "PyYAML==6.0.3",
    "pyzmq==26.2.1",
    "referencing==0.37.0",
    "requests==2.32.4",
    "rpds-py==2026.5.1",
    "scipy==1.16.3",
    "shellingham==1.5.4",
    "six==1.17.0",
    "tornado==6.5.1",
    "tqdm==4.67.3",
    "traitlets==5.7.1",
    "typing_extensions==4.15.0",
    "tzdata==2026.2",
    "urllib3==2.5.0",
    "wcwidth==0.7.0",
]
ONLY = {
    "kaggle": [
        "accelerate==1.13.0",
        "ansicolors==1.1.8",
        "huggingface_hub==1.4.1",
        "ipywidgets==8.1.5",
        "jupyterlab_widgets==3.0.16",
        "numpy==2.0.2",
        "nvidia-ml-py==13.595.45",
        "omegaconf==2.3.0",
        "pandas==2.2.2",
        "papermill==2.6.0",
        "pyarrow==18.1.0",
        "safetensors==0.7.0",
        "setuptools==81.0.0",
        "regex==2025.11.3",
        "tenacity==9.1.4",
        "tokenizers==0.22.2",
        "transformers==5.0.0",
        "typer-slim==0.24.0",
        "widgetsnbextension==4.0.15",
    ],
    "colab": [
        "accelerate==1.14.0",
        "huggingface_hub==1.17.0",
        "ipython-genutils==0.2.0",
        "ipywidgets==7.7.1",
        "jupyterlab_widgets==3.0.16",
        "numpy==2.1.3",
        "nvidia-ml-py==13.610.43",
        "omegaconf==2.3.1",
        "pandas==2.2.3",
        "safetensors==0.8.0",
        "setuptools==75.2.0",
        "widgetsnbextension==3.6.10",
    ],
}
FORBIDDEN = ("spectrakit", "hydra-core", "nbdev")  # what a session must bring itself, or must not have

# Run by the Python that is asked: itself, and where the files of torch, of what only torch needs, and of antlr4 lie.
PROBE = """
import json, re, sys
from importlib.metadata import PackageNotFoundError, distribution
listed, found, todo = set(sys.argv[1:]), {}, ["torch", "antlr4-python3-runtime"]
while todo:
    name = re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", todo.pop())[0]).lower()
    if name in found or name in listed: continue
    try: dist = distribution(name)
    except PackageNotFoundError:
        if name in ("torch", "antlr4-python3-runtime"): found[name] = None
        continue
    tops = sorted({file.parts[0] for file in dist.files or ()} - {"..", "__pycache__", "bin"})
    found[name] = [dist.version, [str(dist.locate_file(top)) for top in tops]]
    todo += [need for need in dist.requires or () if "extra ==" not in need]
print(json.dumps({"version": sys.version.split()[0], "base": sys.base_prefix, "found": found}))
"""
WARM = (
    "import accelerate, json, matplotlib.pyplot, omegaconf, pandas, torch.utils.data, "
    "torch.distributed.run, ipykernel.kernelapp, nbclient, pip._internal.cli.main"
)


class CannotMake(RuntimeError):
    "The environment cannot be had here."


@dataclass(frozen=True)
class Environment:
    "A platform's Python, as inside.py lays it together."

    python: Path  # as a session calls it
    layers: tuple[Path, ...]  # the first stands before the second
    shared: tuple[tuple[str, str], ...]  # (where it lies, where a session sees it)
    base: str  # the Python that the environment was made from
    differences: tuple[str, ...]  # from the platform's own list, in words


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def listed(platform: str) -> tuple[dict[str, str], str]:
    """Package → version of the platform's dated list in spectrakit/shipped, and the list's name; nothing where there is
    none.
    """
    path = root / "spectrakit" / "shipped" / f"{platform}.txt"
    if not path.is_file():
        return {}, DATED
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), re.M)
    return {plain(name): version for name, version in pins}, path.name


def wanted(platform: str) -> tuple[list[str], list[str]]:
    "Requirements of the layer of both platforms, and of this one's own, in the versions of its dated list."
    pins = {name: listed(name)[0] for name in ONLY}
    names = {re.split("==", text)[0]: text for text in COMMON}
    own = {re.split("==", text)[0]: text for text in ONLY[platform]}
    for name, text in list(names.items()):  # a list that was refreshed may part what was in step
        if len({pins[which].get(plain(name), text.partition("==")[2]) for which in ONLY}) > 1:
            own[name] = names.pop(name)

    def pinned(text: str) -> str:
        name, _, version = text.partition("==")
        return f"{name}=={pins[platform].get(plain(name), version)}"

    return sorted(map(pinned, names.values())), sorted(map(pinned, own.values()))


def ask(python: str, common: list[str], own: list[str]) -> dict:
    "What PROBE finds out. CannotMake where that Python has no torch."
    names = [plain(text.split("==")[0]) for text in (*common, *own)]
    done = subprocess.run([python, "-c", PROBE, *names], capture_output=True, text=True, cwd="/", env=clean_environ())
    if done.returncode:
        raise CannotMake(f"{python} does not run: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    told = json.loads(done.stdout)
    if missing := [name for name, found in told["found"].items() if found is None]:
        raise CannotMake(
            f"{python} lacks {' and '.join(missing)}, which a session takes from it. Install it there, "
            "or name another Python with --python."
        )
    return told


def clean_environ() -> dict[str, str]:
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "KAGGLE_", "COLAB_", "SPECTRAKIT_")) and key != "VIRTUAL_ENV"
    }


def pip(python: Path, *words: str) -> None:
    "pip for the environment's Python. CannotMake with its last words where it fails."
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--only-binary",
        ":all:",
        "--no-warn-script-location",
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_environ(), stdin=subprocess.DEVNULL)
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.strip().splitlines()
    if done.returncode:
        raise CannotMake(f"pip cannot install the platform's packages: {errors[-1] if errors else 'it said nothing'}")


def install(python: Path, requirements: list[str], defaults: list[str], *words: str) -> None:
    "The requirements, and where one has no wheel for this Python, the version that is known to have one."
    try:
        return pip(python, *words, *requirements)
    except CannotMake:
        if set(requirements) == set(defaults):
            raise
    known = {plain(text.split("==")[0]): text for text in defaults}
    for text in requirements:
        try:
            pip(python, *words, text)
        except CannotMake:
            pip(python, *words, known[plain(text.split("==")[0])])


def make_common(folder: Path, python: str, common: list[str]) -> None:
    "The layer of both platforms: a virtual environment."
    if (folder / "ready").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    print(
        f"making a Python with {len(common)} packages that Kaggle and Colab ship: once, in {folder.parent}",
        file=sys.stderr,
        flush=True,
    )
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, env=clean_environ())
    install(folder / "bin" / "python", common, COMMON)
    (folder / "ready").touch()


def make_own(layer: Path, common: Path, platform: str, own: list[str], shared: list[str]) -> None:
    "The layer of one platform, without a Python of its own."
    if (layer / "ready").exists():
        return
    shutil.rmtree(layer, ignore_errors=True)
    install(common / "bin" / "python", own, [*ONLY[platform], *COMMON], "--ignore-installed", "--prefix", str(layer))
    # What is imported everywhere is compiled now and not in every session; torch is seen at the end of the path.
    before, behind = str(site(layer)), sorted({str(Path(path).parent) for path in shared})
    code = f"import sys; sys.path.insert(1, {before!r}); sys.path += {behind}; {WARM}"
    subprocess.run([common / "bin" / "python", "-c", code], capture_output=True, env=clean_environ(), cwd="/")
    (layer / "ready").touch()


def site(layer: Path) -> Path:
    return next(layer.glob("lib/python*/site-packages"))


def differences(platform: str, told: dict, layers: tuple[Path, ...]) -> tuple[str, ...]:
    "What is not as on the platform, one line each."
    pins, source = listed(platform)
    ours, theirs = told["version"], PLATFORM_PYTHON[platform]
    lines = (
        [] if ours.startswith(theirs + ".") else [f"Python {ours} instead of {theirs}: its torch is the one at hand"]
    )
    lines.append(f"torch {told['found']['torch'][0]} instead of {pins.get('torch', TORCH[platform])}")
    here = installed(layers)
    default = dict(map(str.lower, text.split("==")) for text in [*COMMON, *ONLY[platform]])
    expected = {
        **{plain(name): version for name, version in default.items()},
        **{name: version for name, version in pins.items() if name in here},
    }
    lines += [
        f"{name} {here.get(name, 'missing')} instead of {version}"
        for name, version in sorted(expected.items())
        if here.get(name) != version
    ]
    away = sorted(set(pins) - set(here) - set(told["found"]))
    if away:
        lines.append(f"{len(away)} of the {len(pins)} packages of {source} are not here: {', '.join(away[:4])} …")
    return tuple(lines)


def installed(layers: tuple[Path, ...]) -> dict[str, str]:
    "Package → version of what lies in the layers."
    found = {}
    for layer in layers:
        for path in layer.glob("lib/python*/site-packages/*.dist-info"):
            name, _, version = path.name.removesuffix(".dist-info").partition("-")
            found[plain(name)] = version
    return found


def environment(platform: str, python: str | None = None, cache: Path = CACHE) -> Environment:
    """The environment of 'kaggle' or 'colab', made where it is missing; other processes wait for that.

    CannotMake where it cannot be had.
    """
    python = python or at_hand(platform)
    common, own = wanted(platform)
    told = ask(python, common, own)
    shared = [path for _, paths in told["found"].values() for path in paths]
    key = hashlib.sha256(json.dumps([told["version"], told["base"], common]).encode()).hexdigest()[:10]
    folder = cache / f"python{told['version']}-{key}"
    place, layer = folder / "common", folder / f"{platform}-{hashlib.sha256(json.dumps(own).encode()).hexdigest()[:6]}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_common(place, python, common)
        make_own(layer, place, platform, own, shared)
    base = "" if told["base"].startswith("/usr") else told["base"]
    return Environment(
        place / "bin" / "python",
        (layer, place),
        tuple((path, str(site(place) / Path(path).name)) for path in shared),
        base,
        differences(platform, told, (layer, place)),
    )


def at_hand(platform: str) -> str:
    "The platform's own Python where it is on the path with a torch, else the one that runs."
    here = shutil.which(f"python{PLATFORM_PYTHON[platform]}")
    code = "from importlib.util import find_spec as find; import sys; sys.exit(not (find('torch') and find('antlr4')))"
    if here and not subprocess.run([here, "-c", code], env=clean_environ(), cwd="/", capture_output=True).returncode:
        return here
    return sys.executable
