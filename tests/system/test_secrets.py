"Secrets: read from the environment or from stores like Kaggle's and Colab's, and found in nothing that is written."

import json
import os
import pickle
import subprocess
import sys
import time
from types import ModuleType

import pytest

from helpers import TESTS, clean_environ, only_run
from spectrakit.system import secret_masking as masking
from spectrakit.system import secrets
from spectrakit.system.secret_masking import masked
from spectrakit.system.secrets import SecretError, secret

VALUE = "0a1B-the-value-nobody-sees-9z"


@pytest.fixture(autouse=True)
def on_nobodys_machine(here, monkeypatch):
    "No variable of whoever runs the tests, and nothing that was handed out by another test."
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setattr(masking, "_handed", {})


class CredentialError(Exception):
    pass


class BackendError(Exception):
    pass


class SecretNotFoundError(Exception):
    pass


class NotebookAccessError(Exception):
    pass


def store(monkeypatch, platform: str, get) -> None:
    "This process is on Kaggle or Colab, and `get(name)` is what its store does."
    if platform == "kaggle":
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
        module = ModuleType("kaggle_secrets")
        module.UserSecretsClient = type("UserSecretsClient", (), {"get_secret": lambda self, label: get(label)})
        monkeypatch.setitem(sys.modules, "kaggle_secrets", module)
    else:
        monkeypatch.setenv("TBE_RUNTIME_ADDR", "172.28.0.1:8011")
        colab = ModuleType("google.colab")
        colab.userdata = ModuleType("google.colab.userdata")
        colab.userdata.get = get
        monkeypatch.setitem(sys.modules, "google.colab", colab)


# --- where it comes from ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", ["kaggle", "colab"])
def test_the_environment_comes_before_the_store(monkeypatch, platform):
    asked = []
    store(monkeypatch, platform, lambda name: asked.append(name) or "of-the-store")
    assert secret("LAB_KEY").reveal() == "of-the-store" and asked == ["LAB_KEY"]
    monkeypatch.setenv("LAB_KEY", VALUE)
    assert secret(" LAB_KEY ").reveal() == VALUE and asked == ["LAB_KEY"]
    monkeypatch.setenv("LAB_KEY", "")  # set to nothing is not set
    assert secret("LAB_KEY").reveal() == "of-the-store"


def test_at_home_no_store_is_asked(monkeypatch):
    store(monkeypatch, "kaggle", lambda name: "of-the-store")
    monkeypatch.delenv("KAGGLE_KERNEL_RUN_TYPE")
    with pytest.raises(SecretError, match=r"no environment variable LAB_KEY.*export LAB_KEY="):
        secret("LAB_KEY")


def fails(error):
    def get(name):
        raise error

    return get


@pytest.mark.parametrize(
    "platform, get, said",
    [
        ("kaggle", fails(ConnectionError(VALUE)), "was not reached.*Add-ons > Secrets.*label LAB_KEY.*Internet on"),
        ("kaggle", fails(CredentialError(VALUE)), "no token"),
        ("kaggle", fails(BackendError(VALUE)), "no secret of this label"),
        ("kaggle", fails(SystemExit(VALUE)), "failed with SystemExit"),
        ("kaggle", lambda name: None, "an empty value"),
        (
            "colab",
            fails(SecretNotFoundError(VALUE)),
            "no secret of this name.*the key at the left margin.*name LAB_KEY",
        ),
        ("colab", fails(NotebookAccessError(VALUE)), "Notebook access is off"),
        ("colab", fails(AttributeError(VALUE)), "failed with AttributeError"),
    ],
)
def test_a_store_without_it_says_how_to_add_it_and_nothing_else(monkeypatch, platform, get, said):
    store(monkeypatch, platform, get)
    with pytest.raises(SecretError, match=said) as told:
        secret("LAB_KEY")
    assert VALUE not in str(told.value) and told.value.__cause__ is None
    assert secret("LAB_KEY", "").reveal() == "" and secret("LAB_KEY", "other").reveal() == "other"


@pytest.mark.parametrize("platform", ["kaggle", "colab"])
def test_a_platform_without_its_module_is_told(monkeypatch, platform):
    store(monkeypatch, platform, None)
    monkeypatch.setitem(sys.modules, {"kaggle": "kaggle_secrets", "colab": "google.colab"}[platform], None)
    with pytest.raises(SecretError, match="is not installed"):
        secret("LAB_KEY")


def test_a_store_that_hangs_is_left_behind(monkeypatch):
    read, _, mend = secrets._STORES["kaggle"]
    monkeypatch.setitem(secrets._STORES, "kaggle", (read, 0.2, mend))
    store(monkeypatch, "kaggle", lambda name: time.sleep(30))
    with pytest.raises(SecretError, match=r"did not answer within 0\.2 s"):
        secret("LAB_KEY")
    assert 0 < max(limit for _, limit, _ in secrets._STORES.values()) <= 60 and secrets._STORES["kaggle"][1] == 0.2


@pytest.mark.parametrize("name", ["", "  ", None, 7, "A=B", "two\nlines", b"LAB_KEY"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match="by its name"):
        secret(name)


@pytest.mark.parametrize(
    "pasted", ["hf_" + "a1" * 17, "sk-" + "Ab3" * 12, "ghp_" + "0a" * 18, "0123456789abcdef" * 2, "aB3/" * 10]
)
def test_a_pasted_secret_is_not_repeated(pasted):
    with pytest.raises(ValueError, match="looks like a secret itself") as told:
        secret(pasted)
    assert pasted not in str(told.value)


def test_names_as_people_write_them_are_names():
    for name in (
        "WANDB_API_KEY",
        "HF_TOKEN",
        "my db password",
        "AWS_SECRET_ACCESS_KEY_OF_THE_LAB_IN_BERLIN",
        "kaggle-key",
    ):
        with pytest.raises(SecretError):
            secret(name)


def test_another_default_than_text_is_refused():
    with pytest.raises(ValueError, match="default of a secret is text"):
        secret("LAB_KEY", 7)


# --- that it shows itself nowhere -------------------------------------------------------------------------------------


def test_nothing_shows_or_keeps_it(monkeypatch):
    import cloudpickle

    monkeypatch.setenv("LAB_KEY", VALUE)
    key = secret("LAB_KEY")
    shown = [repr(key), str(key), f"{key}", f"{key!r:>50}", format(key), f"{key}", repr([key]), repr({"a": key})]
    assert not any(VALUE in text for text in shown) and "***" in repr(key) and not hasattr(key, "__dict__")
    for write in (pickle.dumps, cloudpickle.dumps, json.dumps):
        with pytest.raises(TypeError):
            write({"key": key})
    with pytest.raises(AttributeError):
        key.name = "other"
    with pytest.raises(TypeError):
        "Bearer " + key  # it fails loudly where text is wanted


def test_messages_of_errors_lose_it(monkeypatch):
    (
        monkeypatch.setenv("SHORT", "no"),
        monkeypatch.setenv("LAB_WORD", VALUE),
        monkeypatch.setenv("LONGER", VALUE + "-and-more"),
    )
    for name in ("SHORT", "LAB_WORD", "LONGER"):
        secret(name)
    monkeypatch.delenv("LAB_WORD"), monkeypatch.delenv("LONGER")
    text = f"401: {VALUE}-and-more and {VALUE} are no keys"
    assert masked(text) == "401: <LONGER> and <LAB_WORD> are no keys"


FAKE_WANDB = """
import os
__version__ = "0.26.1"
run = None
class Settings:
    model_fields = {}
    def __init__(self, **_): pass
def init(**_): raise RuntimeError("401: the key " + os.environ["WANDB_API_KEY"] + " is refused")
"""
FAKE_STORE = """
from pathlib import Path
class UserSecretsClient:
    def get_secret(self, label):
        Path(__file__).with_name("asked").open("a").write(label + "\\n")
        return (Path(__file__).with_name("value")).read_text()
"""
TASK = """
import os
import spectrakit as sk
from {tasks} import Line
class Telling(Line):
    def during(self, number):
        if number == 1: print("in the environment:", bool(os.environ.get("WANDB_API_KEY")), flush=True)
        if number == 4:
            key = sk.secret("LAB_KEY").reveal()
            print("read:", len(key), flush=True)
            raise RuntimeError("the server refuses " + key)
"""


@pytest.mark.slow
def test_a_run_that_uses_secrets_leaves_them_in_none_of_its_files(here):
    """On a Kaggle whose store has both: W&B's key reaches the process that trains, W&B's own error repeats it,
    the task reads another one and dies with it in its message."""
    packages, jobs = here / "packages", here / "jobs"
    for name, text in {
        "wandb/__init__.py": FAKE_WANDB,
        "wandb-0.26.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: wandb\nVersion: 0.26.1\n",
        "kaggle_secrets.py": FAKE_STORE,
        "value": VALUE,
        "telling.py": TASK.format(tasks="tasks"),
    }.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    jobs.mkdir()
    paths = os.pathsep.join(map(str, (packages, TESTS, TESTS.parent)))
    environ = {
        **{k: v for k, v in clean_environ().items() if not k.startswith("WANDB_")},
        "PYTHONPATH": paths,
        "KAGGLE_KERNEL_RUN_TYPE": "Batch",
        "SPECTRAKIT_SESSION_START": str(time.time()),  # and not when this machine was turned on
        "TMPDIR": str(jobs),
    }
    words = [
        "train",
        "telling:Telling",
        "report_to=wandb",
        "tracking.mode=online",
        "trainer.max_epochs=3",
        "data.batch_size=8",
        "run.dir=runs",
        "env=local",
        "watchdog.since=run",
        "watchdog.limit=1h",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "spectrakit", *words], cwd=here, env=environ, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 1, done.stderr
    run = only_run(here)
    log = (run / "logs" / "rank-0.log").read_text()
    assert done.returncode == 1 and "in the environment: True" in log and f"read: {len(VALUE)}" in log, (
        done.stderr + log
    )
    assert (packages / "asked").read_text().split() == ["WANDB_API_KEY", "LAB_KEY"]
    told = (run / "events.jsonl").read_text()
    assert "wandb is not written" in told and "is refused" in told and "the server refuses <LAB_KEY>" in told
    files = [path for folder in (run, jobs) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 8 and not [path for path in files if VALUE.encode() in path.read_bytes()]
    assert VALUE not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_task_that_holds_a_secret_is_not_written_to_a_job(here, monkeypatch, tmp_path):
    "Where only a file could carry it along, it is refused, with the way to mend it."
    from spectrakit.api.actions import fit
    from spectrakit.config.compose import compose
    from spectrakit.system.errors import RequestError
    from tasks import Line

    monkeypatch.setenv("LAB_KEY", VALUE)
    holding = Line()
    holding.key = secret("LAB_KEY")
    with pytest.raises(
        RequestError,
        match=r"Line.key is an object of the type spectrakit.system.secrets.Secret. Make it inside the methods",
    ):
        fit(
            holding,
            compose("trainer.accelerator=cpu", "trainer.max_epochs=1", "data.batch_size=8", "launch.mode=torchrun"),
            show=False,
        )
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
