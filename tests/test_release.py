"A release: what has to agree before one is built, that it is the same bytes twice, and what GitHub does with it."

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
import yaml

import release
import sync
from helpers import clean_environ

root = Path(__file__).resolve().parent.parent
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((root / ".github" / "workflows").glob("*.yml"))
}
IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def git(top: Path, *words: str, when: str = "2026-11-30T12:00:00Z") -> None:
    subprocess.run(
        ["git", "-C", str(top), *words],
        check=True,
        capture_output=True,
        env={**os.environ, **IDENTITY, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when},
    )


def commit(top: Path) -> Path:
    "A checkout of the tree `top`, all in one commit."
    git(top, "init", "-q", "-b", "main"), git(top, "add", "-A"), git(top, "commit", "-q", "-m", "all")
    return top


@pytest.fixture
def small(tmp_path) -> Path:
    "The files that have to agree, as a checkout."
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    top = tmp_path / "small"
    (top / "spectrakit").mkdir(parents=True)
    for name in ("settings.ini", "CHANGELOG.md", "spectrakit/__init__.py"):
        shutil.copyfile(root / name, top / name)
    (top / "README.md").write_text("# kit\n")
    return commit(top)


def tell(top: Path, *words: str) -> subprocess.CompletedProcess:
    environ = {key: value for key, value in clean_environ().items() if not key.startswith("GITHUB_")}
    return subprocess.run(
        [sys.executable, root / "tools" / "release.py", "--tree", top, *words],
        capture_output=True,
        text=True,
        timeout=500,
        env=environ,
    )


# --- what has to agree ------------------------------------------------------------------------------------------------


def test_this_tree_agrees_with_itself():
    assert release.disagreements(root, None) == []


def test_documents_name_no_other_version():
    version, told = release.version_of(root), []
    for name in sync.tree_files():
        if name.suffix not in (".md", ".ipynb") or name.name == "CHANGELOG.md":
            continue
        text = (root / name).read_text(encoding="utf-8")
        told += [
            f"{name}: {found[0]}"
            for found in re.finditer(r"\bspectrakit(?:-train|_train)?(?:==|-)(\d+\.\d+\.\d+)", text)
            if found[1] != version
        ]
    assert not told


def test_the_classifiers_name_the_pythons_that_are_tested():
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert (
        named == WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"]
        and project["requires-python"] == f">={named[0]}"
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


VERSION = release.version_of(root)
DATED = re.search(r"^## .*$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)[0]


@pytest.mark.parametrize(
    "file, old, new, words, said",
    [
        ("settings.ini", f"version = {VERSION}", "version = 9.9.9", (), "Run `nbdev_export`"),
        ("CHANGELOG.md", DATED, "## [9.9.9] - 2026-11-30", (), "newest section of CHANGELOG.md is of 9.9.9"),
        ("CHANGELOG.md", DATED, "", (), "newest section of CHANGELOG.md is of"),
        (
            "CHANGELOG.md",
            DATED,
            f"## [{VERSION}] - 2026-11-30",
            ("--tag", "v9.9.9"),
            f"The tag of this version is v{VERSION}",
        ),
        (
            "CHANGELOG.md",
            DATED,
            f"## [{VERSION}] - unreleased",
            ("--tag", f"v{VERSION}"),
            "says unreleased where the day",
        ),
        ("README.md", "# kit", "# kit\n[more](docs/none.md)", (), "README.md links to docs/none.md"),
    ],
)
def test_what_does_not_agree_is_not_released(small, file, old, new, words, said):
    edit(small / file, old, new)
    git(small, "commit", "-qam", "changed", "--allow-empty")
    done = tell(small, "--check", *words)
    assert done.returncode == 1 and said in done.stderr, done


def test_the_tag_of_the_commit_and_that_of_github_count(small, monkeypatch):
    edit(small / "CHANGELOG.md", DATED, f"## [{VERSION}] - 2026-11-30")
    git(small, "commit", "-qam", "dated")
    assert "the commit has no tag yet" in tell(small, "--check").stdout
    git(small, "tag", "v8.8.8")
    assert "The tag is v8.8.8" in tell(small, "--check").stderr
    git(small, "tag", "-d", "v8.8.8"), git(small, "tag", f"v{VERSION}")
    assert f"can be released as v{VERSION}" in tell(small, "--check").stdout
    monkeypatch.setenv("GITHUB_REF_TYPE", "tag"), monkeypatch.setenv("GITHUB_REF_NAME", "v7.7.7")
    assert release.tag_here(small) == "v7.7.7"


def test_a_tree_with_changes_is_not_released(small):
    (small / "stray.txt").touch()
    done = tell(small, "--out", str(small / "dist"))
    assert done.returncode == 1 and "stray.txt" in done.stderr and not (small / "dist").exists()


def test_a_folder_of_somebodys_is_not_replaced(small, tmp_path):
    edit(small / "CHANGELOG.md", DATED, f"## [{VERSION}] - 2026-11-30"), git(small, "commit", "-qam", "dated")
    (tmp_path / "mine").mkdir(), (tmp_path / "mine" / "thesis.tex").touch()
    done = tell(small, "--out", str(tmp_path / "mine"))
    assert done.returncode == 1 and "Name another folder" in done.stderr and (tmp_path / "mine" / "thesis.tex").exists()


# --- README ----------------------------------------------------------------------------------------------------------


def test_links_to_files_lead_to_the_repository_and_code_is_left_alone():
    text = (
        "[a](x/y.md) ![p](p.png) [b](https://h/x) [c](#part) [d](z.md#part) "
        "[e](mailto:a@b)\n```python\nprint('[f](g.md)')\n```\n[h](i.md)\n"
    )
    assert release.relative_links(text) == ["x/y.md", "p.png", "z.md", "i.md"]
    assert release.with_absolute_links(text, "https://hub/k", "v1") == (
        "[a](https://hub/k/blob/v1/x/y.md) ![p](https://hub/k/raw/v1/p.png) [b](https://h/x) [c](#part) "
        "[d](https://hub/k/blob/v1/z.md#part) [e](mailto:a@b)\n"
        "```python\nprint('[f](g.md)')\n```\n[h](https://hub/k/blob/v1/i.md)\n"
    )
    assert release.with_absolute_links("see [a](x/y.md), ![p](p.png) and [b](https://h/x)", "", "v1") == (
        "see a, p and [b](https://h/x)"
    ), "without an address nothing leads to one"


# --- the bytes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    "A release of this very tree without the wheelhouse, which the tool itself has built twice; `tree` is its checkout."
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    folder = tmp_path_factory.mktemp("release")
    top = sync.copy_tree(folder / "tree")
    (top / "tools" / "release.py").chmod(0o700)  # odd modes and dates are nobody's business
    os.utime(top / "README.md", (1e9, 1e9))
    done = tell(commit(top), "--out", str(folder / "dist"), "--no-wheelhouse")
    assert done.returncode == 0 and "the same bytes twice" in done.stdout, done.stdout + done.stderr
    return folder / "dist"


@pytest.mark.slow
def test_the_sums_are_those_of_the_files(released):
    lines = dict(reversed(line.split("  ")) for line in (released / "SHA256SUMS").read_text().splitlines())
    assert lines == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in released.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert sorted(lines) == [f"{release.FILES}-{VERSION}-py3-none-any.whl", f"{release.FILES}-{VERSION}.tar.gz"]


@pytest.mark.slow
def test_the_source_archive_is_the_tree_with_plain_owners_and_one_date(released):
    with tarfile.open(released / f"{release.FILES}-{VERSION}.tar.gz") as archive:
        members = archive.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, "", "")} and len(
        {m.mtime for m in members}
    ) == 1
    assert {m.mode for m in members if m.isreg()} <= {0o644, 0o755} and [m.name for m in members] == sorted(
        m.name for m in members
    )
    inside = {m.name.partition("/")[2] for m in members if m.isreg()}
    left_out = {name.as_posix() for name in sync.tree_files()} - inside
    assert {name.split("/")[0] for name in left_out} <= {".ci", ".github"}, left_out
    packed = (released / f"{release.FILES}-{VERSION}.tar.gz").read_bytes()
    assert not packed[3] & 8, "the archive's own header holds a file name"


@pytest.mark.slow
def test_the_wheel_says_what_pypi_shows(released):
    with zipfile.ZipFile(released / f"{release.FILES}-{VERSION}-py3-none-any.whl") as archive:
        assert {entry.external_attr >> 16 & 0o777 for entry in archive.infolist()} <= {0o644, 0o664} and len(
            {entry.date_time for entry in archive.infolist()}
        ) == 1
        told = BytesParser().parsebytes(archive.read(f"{release.FILES}-{VERSION}.dist-info/METADATA"))
    assert told["Version"] == VERSION and told["Name"] == "spectrakit-train"
    assert not release.relative_links(told.get_payload()) and told.get_all("Project-URL") is None


# --- GitHub -----------------------------------------------------------------------------------------------------------


def jobs() -> list[tuple[str, dict]]:
    return [(f"{name}.{job}", content) for name, flow in WORKFLOWS.items() for job, content in flow["jobs"].items()]


def steps() -> list[dict]:
    return [step for _, job in jobs() for step in job.get("steps", [])]


def test_every_supported_python_is_tested_on_every_change():
    on = WORKFLOWS["test"][True]  # YAML reads the word `on` as a yes
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"] and {
        "push",
        "pull_request",
        "workflow_call",
    } == set(on)
    assert WORKFLOWS["test"]["jobs"]["test"]["env"] == {"PIP_EXTRA_INDEX_URL": "${{ vars.TORCH_INDEX_URL }}"}
    assert WORKFLOWS["release"][True] == {"push": {"tags": ["v[0-9]*"]}}


def test_only_the_job_that_publishes_may_prove_who_it_is_and_it_runs_nothing_of_ours():
    assert set(WORKFLOWS) == {"test", "release", "docs"}
    asked = {name: job.get("permissions") for name, job in jobs()}
    assert asked == {
        "test.test": None,
        "test.versions": None,
        "test.light": None,
        "release.test": {"contents": "read"},
        "release.build": {"contents": "read"},
        "release.publish": {"id-token": "write"},
        "docs.build": None,
        "docs.publish": {"pages": "write", "id-token": "write"},
    }
    assert [step["uses"].split("@")[0] for step in WORKFLOWS["docs"]["jobs"]["publish"]["steps"]] == [
        "actions/deploy-pages"
    ]
    assert WORKFLOWS["test"]["permissions"] == WORKFLOWS["docs"]["permissions"] == {"contents": "read"}
    assert WORKFLOWS["release"]["permissions"] == {}
    publish = WORKFLOWS["release"]["jobs"]["publish"]
    assert (
        publish["environment"]["name"] == "pypi"
        and publish["needs"] == "build"
        and WORKFLOWS["release"]["jobs"]["build"]["needs"] == "test"
    )
    assert [step["uses"].split("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert not [step for step in publish["steps"] if "password" in step.get("with", {})] and "secrets." not in str(
        WORKFLOWS
    )


def test_what_others_wrote_is_pinned_and_leaves_no_key_behind():
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name) for name in used)
    assert len({name.split("@")[0] for name in used}) == len(set(used)), "one action in two versions"
    for path in (root / ".github" / "workflows").glob("*.yml"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search(r"@[0-9a-f]{40}", line):
                assert re.search(r"  # v\d+\.\d+\.\d+$", line), "the version belongs beside the hash"
    assert all(
        step["with"]["persist-credentials"] is False
        for step in steps()
        if step.get("uses", "").startswith("actions/checkout@")
    )


def test_workflows_run_targets_that_exist_and_paste_nothing_into_a_shell():
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.M))
    commands = [step["run"] for step in steps() if "run" in step]
    assert (
        {word for command in commands for word in re.findall(r"\bmake ([a-z-]+)", command)}
        == {"test", "release", "docs"}
        <= targets
    )
    assert {word for command in commands for word in re.findall(r"\$\{\{(.*?)\}\}", command)} <= {" matrix.python "}
    assert (
        all(flow["concurrency"]["group"] for flow in WORKFLOWS.values())
        and WORKFLOWS["release"]["concurrency"]["cancel-in-progress"] is False
    )
    assert all("timeout-minutes" in job or "uses" in job for _, job in jobs())


def test_make_lists_every_target_that_is_meant_for_people():
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.M)
    documented = re.findall(r"^([a-z-]+):.*## \S", makefile, re.M)
    assert sorted(phony.split()) == sorted(documented) and "release" in documented
