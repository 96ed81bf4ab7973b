"Rented machines and clusters: by which sign each is recognised, what it says about its time, and what outlives it."

import json

import pytest

from spectrakit.config.auto_settings import env_name, recommended_profile, resolve_env
from spectrakit.config.compose import compose
from spectrakit.config.profile_files import profiles
from spectrakit.system.platforms.detect import detect
from spectrakit.system.platforms.known_platforms import KINDS, find_kind, kind_of

NOW = 1_800_000_000.0
KERNEL = "ipykernel.zmqshell.ZMQInteractiveShell"
JOB = {"SLURM_JOB_ID": "4711"}
TIMED = {**JOB, "SLURM_JOB_START_TIME": str(int(NOW) - 600), "SLURM_JOB_END_TIME": str(int(NOW) + 6600)}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tmp").mkdir()
    return tmp_path


def on(root, environ, shell="", now=NOW):
    return detect({"PATH": "", **environ}, root, shell=shell, now=now)


@pytest.mark.parametrize(
    "environ, flavour, env",
    [
        (JOB, "slurm", "cloud"),
        ({"SAGEMAKER_APP_TYPE": "JupyterLab"}, "sagemaker_studio", "cloud"),
        ({"SAGEMAKER_SPACE_NAME": "mine"}, "sagemaker_studio", "cloud"),
        ({"PAPERSPACE_NOTEBOOK_REPO_ID": "r1"}, "paperspace", "cloud"),
        ({"PAPERSPACE_METRIC_WORKLOAD_ID": "w1"}, "paperspace", "cloud"),
        ({"PAPERSPACE_CLUSTER_ID": "c1"}, "paperspace", "cloud"),
        ({"LIGHTNING_CLOUD_SPACE_ID": "s1"}, "lightning_studio", "cloud"),
        ({"RUNPOD_POD_ID": "p1"}, "runpod", "cloud"),
        ({"CODESPACES": "true"}, "codespaces", "local"),
        ({"CODESPACE_NAME": "octocat-1"}, "codespaces", "local"),
    ],
)
def test_each_is_recognised_and_has_its_profile(root, environ, flavour, env):
    for shell, mode in (("", "script"), (KERNEL, "interactive")):
        found = on(root, environ, shell)
        assert (found.name, found.flavour, found.mode) == ("local", flavour, mode)
        assert found.flavour_source == f"{next(iter(environ))} is set"
    assert env_name(found) == env and resolve_env(compose(), found)[0].run.dir == "runs"
    assert recommended_profile(found)[0] == "defaults"
    assert found.limit_s is None and found.time_left_text(NOW) == "unknown"  # it has a limit that no process can read
    assert "SPECTRAKIT_TIME_LIMIT" in found.limit_source
    assert on(root, {**environ, "SPECTRAKIT_TIME_LIMIT": "2h"}).limit_s == 7200
    child = on(root, found.child_environ())
    assert (child.flavour, child.session_start) == (flavour, found.session_start)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name}-{kind.flavour}")
def test_the_profiles_that_a_kind_names_are_there(kind):
    advised = {found[0] for gpus in (0, 1, 2, 8) if (found := kind.profile(gpus)) is not None}
    assert kind.env in profiles()["env"] and advised <= {*profiles()["trainer"]}


@pytest.mark.parametrize(
    "environ",
    [
        {"RUNPOD_API_KEY": "k"},
        {"PAPERSPACE_API_KEY": "k"},
        {"LIGHTNING_API_KEY": "k", "LIGHTNING_USER_ID": "u"},
        {"SLURM_CONF": "/etc/slurm/slurm.conf"},
        {"RUNPOD_POD_ID": "", "CODESPACES": "", "SLURM_JOB_ID": "", "SAGEMAKER_APP_TYPE": ""},
    ],
)
def test_a_users_key_or_an_empty_variable_is_no_sign(root, environ):
    assert on(root, environ).flavour == "plain"


def test_kaggle_and_colab_come_first_and_slurm_before_whoever_rents_the_machines(root):
    rented = {"RUNPOD_POD_ID": "p1", "CODESPACES": "true", **JOB}
    assert on(root, {"KAGGLE_KERNEL_RUN_TYPE": "Batch", **rented}).name == "kaggle"
    assert on(root, {"TBE_RUNTIME_ADDR": "x", **rented}).name == "colab"
    assert on(root, rented).flavour == "slurm"
    studio = {"SAGEMAKER_APP_TYPE": "JupyterLab"}
    (root / "opt/ml/metadata").mkdir(parents=True)
    (root / "opt/ml/metadata/resource-metadata.json").write_text("{}")
    assert on(root, studio).flavour == "sagemaker_studio" and on(root, {}).flavour == "sagemaker"
    kernel = root / "proc/sys/kernel/osrelease"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("5.15.167.4-microsoft-standard-WSL2\n")
    assert on(root, {"CODESPACES": "true"}).flavour == "codespaces"


# SLURM says when the job ends


def test_a_job_of_slurm_ends_when_slurm_says(root):
    found = on(root, TIMED)
    assert (found.session_start, found.session_start_source) == (NOW - 600, "the platform")
    assert (found.limit_s, found.limit_source) == (7200, "SLURM_JOB_END_TIME")
    assert found.time_left_s(NOW) == 6600 and found.time_left_text(NOW + 6000) == "0:10:00"
    child = on(root, {**TIMED, **found.child_environ()}, now=NOW + 60)  # another step of the job
    assert child.time_left_s(NOW + 60) == 6540 and child.session_start == found.session_start


@pytest.mark.parametrize("end", ["", "soon", "-5", "1.5", "²", str(int(NOW) - 601)])
def test_an_end_that_cannot_be_is_no_end(root, end):
    found = on(root, {**TIMED, "SLURM_JOB_END_TIME": end})
    assert found.limit_s is None and found.time_left_text(NOW) == "unknown"


def test_the_end_counts_without_a_start_and_with_the_users_start(root):
    found = on(root, {**JOB, "SLURM_JOB_END_TIME": str(int(NOW) + 6600)})
    assert found.session_start <= NOW and found.time_left_s(NOW) == 6600
    found = on(root, {**TIMED, "SPECTRAKIT_SESSION_START": str(NOW - 60)})
    assert found.session_start_source == "SPECTRAKIT_SESSION_START" and found.time_left_s(NOW) == 6600


def test_the_users_limit_counts_before_slurms(root):
    found = on(root, {**TIMED, "SPECTRAKIT_TIME_LIMIT": "1h"})
    assert found.time_left_s(NOW) == 3000 and found.limit_source == "SPECTRAKIT_TIME_LIMIT=1h"


# what outlives the machine


@pytest.mark.parametrize(
    "environ, kept",
    [
        ({"RUNPOD_POD_ID": "p1"}, "/workspace"),
        ({"SAGEMAKER_APP_TYPE": "JupyterLab"}, "/home/sagemaker-user"),
        ({"PAPERSPACE_CLUSTER_ID": "c1"}, "/storage"),
        ({"LIGHTNING_CLOUD_SPACE_ID": "s1"}, "/teamspace"),
        ({"CODESPACES": "true"}, "/workspaces"),
    ],
)
def test_the_folder_that_is_kept_is_named_where_the_current_one_vanishes(root, environ, kept, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert not on(root, environ).notes  # nothing is mounted there
    (root / kept.lstrip("/")).mkdir(parents=True)
    (note,) = on(root, environ).notes
    assert f"{kept} outlives it" in note and str(tmp_path) in note
    monkeypatch.setattr("os.getcwd", lambda: f"{kept}/project")
    assert not on(root, environ).notes
    assert not on(root, {}).notes


# the registration


@pytest.mark.slow
def test_every_platform_is_registered_once_and_is_found_by_its_name():
    assert len({(kind.name, kind.flavour) for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert find_kind(kind.name, kind.flavour) is kind is kind_of(kind.name, kind.flavour)
        assert compose(f"env={kind.env}")
    assert find_kind("kaggle", "modal") is None and kind_of("kaggle", "modal").name == "kaggle"


def test_a_child_ignores_a_platform_that_does_not_exist(root):
    word = {"name": "mars", "mode": "script", "flavour": "plain", "session_start": NOW}
    found = on(root, {"SPECTRAKIT_PLATFORM": json.dumps(word)})
    assert found.name == "local" and "SPECTRAKIT_PLATFORM was not understood" in found.notes[0]
