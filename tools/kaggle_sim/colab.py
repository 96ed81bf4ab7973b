"""A notebook as a session of Colab: its shell, its older widgets, no /kaggle, a fresh /content, and Drive as a folder
of this machine.
"""

import json
from pathlib import Path

from kaggle_sim.environment import Environment, environment
from kaggle_sim.kernels import HOME, smi, stripped
from kaggle_sim.sealed import MIB, Session, Tree, run

STAND_IN = Path(__file__).with_name("stand_in")
ENVIRON = {
    "COLAB_RELEASE_TAG": "release-colab_20260819-060047_RC00",
    "COLAB_GPU": "",
    "COLAB_JUPYTER_IP": "172.28.0.12",
    "COLAB_JUPYTER_TRANSPORT": "ipc",
    "COLAB_KERNEL_MANAGER_PROXY_HOST": "172.28.0.12",
    "COLAB_KERNEL_MANAGER_PROXY_PORT": "6000",
    "COLAB_WARMUP_DEFAULTS": "1",
    "TBE_RUNTIME_ADDR": "172.28.0.1:8011",
    "TBE_EPHEM_CREDS_ADDR": "172.28.0.1:8009",
    "CLOUDSDK_CONFIG": "/content/.config",
    "PYTHONPATH": "/env/python",
    "PYTHONWARNINGS": "ignore:::pip._internal.cli.base_command",
    "HOME": HOME,
    "ENV": f"{HOME}/.bashrc",
    "PWD": "/",
    "HOSTNAME": "colab",
    "LANG": "en_US.UTF-8",
    "SHELL": "/bin/bash",
    "TERM": "xterm-color",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "CLICOLOR": "1",
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}


def run_colab(  # noqa: PLR0913 - what a session differs in, by keyword
    notebook: Path,
    drive: Path,
    out: Path,
    *,
    limit_s: float = 120,
    tell_limit: bool = True,
    content_mib: int = 512,
    gpus: list[str] | None = None,
    secrets: dict[str, str | None] | None = None,
    kill_after: tuple[str, float] | None = None,
    environ: dict[str, str] | None = None,
    mounted: bool = False,
    chosen: Path | None = None,
    full_after: str = "",
    quiet: bool = False,
    python: Environment | None = None,
) -> Session:
    """Run a notebook on a fresh machine of Colab. `drive`: the folder that is Drive, kept from session to session, as
    nothing else is.

    `out` then holds the page: notebook.ipynb with its outputs, and the journal of what was asked of Drive and of the
    page.
    `kill_after`: a pattern below Drive; so many seconds after the first such file the machine is taken away. `mounted`:
    Drive is there before the first cell, as by the button in the panel of files. `chosen`: the folder whose files a
    person chooses where a dialog asks for some. `full_after`: a pattern below /content; once a file matches it, memory
    is full, and Colab starts the kernel again.
    """
    python = python or environment("colab")
    path = f"{python.python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    tree = Tree(
        "/content", {**ENVIRON, "PATH": path + (":/opt/bin" if gpus else ""), **(environ or {})}, hostname="colab"
    )
    if tell_limit:
        tree.environ["SPECTRAKIT_TIME_LIMIT"] = f"{limit_s:g}s"
    drive.mkdir(parents=True, exist_ok=True)
    site = str(
        python.python.parent.parent
        / next((python.layers[-1] / "lib").glob("python*")).relative_to(python.layers[-1])
        / "site-packages"
    )
    tree.binds = [
        (str(drive.resolve()), "/opt/drive", True),
        (str(STAND_IN / "google"), f"{site}/google", False),
        (str(STAND_IN / "page.py"), "/opt/page.py", False),
        (str(STAND_IN / "colab_kernel_launcher.py"), f"{site}/colab_kernel_launcher.py", False),
    ]
    if chosen:
        tree.binds.append((str(chosen.resolve()), "/opt/chosen", False))
    if full_after:
        tree.environ["SIM_FULL_AFTER"] = full_after
    if mounted:
        tree.binds.append((str(drive.resolve()), "/content/drive/MyDrive", True))
    tree.disks = [("/content", content_mib * MIB), ("/opt/page", 64 * MIB)]
    kernel = {
        "argv": [str(python.python), "-m", "colab_kernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
    }
    tree.files = {
        "/var/colab/hostname": ("colab\n", 0o644),
        "/content/sample_data/README.md": ("", 0o644),
        "/opt/page/notebook.ipynb": (stripped(notebook), 0o644),
        "/opt/account/secrets.json": (json.dumps(secrets or {}), 0o600),
        f"{HOME}/.local/share/jupyter/kernels/colab/kernel.json": (json.dumps(kernel), 0o644),
    }
    if gpus:
        tree.files["/opt/bin/nvidia-smi"] = (smi(gpus), 0o755)
    out.parent.mkdir(parents=True, exist_ok=True)
    return run(
        [str(python.python), "/opt/page.py"],
        tree,
        python,
        "/opt/page",
        out,
        out.parent / f"{notebook.stem}.log",
        limit_s,
        quiet,
        kill_after,
        "/opt/drive",
    )
