"""Build a release: `python tools/release.py [--out DIR] [--tag v1.2.3] [--check]`, or `make release`.

From a clean copy of the last commit: the source archive, the wheel that is built from that archive, the wheelhouse for
Kaggle's kernels without internet, and SHA256SUMS. Everything is built twice and has to be the same bytes both times.
Nothing is built where the tree has changes that are not committed, or where the version, CHANGELOG.md and the tag do
not agree; DIR is only touched at the very end.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parent.parent
NAME = "spectrakit"  # of the package
FILES = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"].replace("-", "_")


def git(top: Path, *words: str) -> str:
    "What git says of the checkout `top`; exits with its own words where it fails."
    done = subprocess.run(["git", "-C", str(top), *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


# --- what has to agree ------------------------------------------------------------------------------------------------


def version_of(top: Path) -> str:
    "The version in settings.ini."
    settings = ConfigParser(interpolation=None)
    settings.read(top / "settings.ini", encoding="utf-8")
    return settings["DEFAULT"]["version"]


def newest_entry(top: Path) -> tuple[str, str]:
    "Version and date, or 'unreleased', of the newest section of CHANGELOG.md; two empty texts where there is none."
    found = re.search(r"^## \[?([^\]\s]+)\]? - (\S+)\s*$", (top / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    return (found[1], found[2]) if found else ("", "")


def disagreements(top: Path, tag: str | None) -> list[str]:
    "What keeps the tree `top` from being released, as `tag` where that is given; one sentence each."
    version, (entry, date) = version_of(top), newest_entry(top)
    written = re.search(r'^__version__ = "(.+)"$', (top / NAME / "__init__.py").read_text(encoding="utf-8"), re.M)
    told = []
    if written is None or written[1] != version:
        told.append(
            f"settings.ini has version {version}, and {NAME}/__init__.py {written and written[1]}. Run `nbdev_export`."
        )
    if entry != version:
        told.append(
            f"The newest section of CHANGELOG.md is of {entry or 'no version'}, and settings.ini has {version}. "
            f"Write `## [{version}] - DATE` above it."
        )
    if tag is not None and tag != f"v{version}":
        told.append(f"The tag is {tag}, and the version {version}. The tag of this version is v{version}.")
    if tag is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        told.append(
            f"CHANGELOG.md says {date or 'nothing'} where the day of the release belongs. Write it as 2026-11-30."
        )
    return told + [
        f"README.md links to {target}, which is not in the tree."
        for target in relative_links((top / "README.md").read_text(encoding="utf-8"))
        if not (top / target).exists()
    ]


def not_committed(top: Path) -> list[str]:
    "Files of the checkout that differ from its last commit, or are in none."
    return git(top, "status", "--porcelain").splitlines()


def tag_here(top: Path) -> str | None:
    "The tag that GitHub runs for, or else the version tag of the last commit; None where it has none."
    if os.environ.get("GITHUB_REF_TYPE") == "tag":
        return os.environ["GITHUB_REF_NAME"]
    return next(iter(git(top, "tag", "--points-at", "HEAD", "--list", "v[0-9]*").splitlines()), None)


# --- a readme that also works on PyPI ---------------------------------------------------------------------------------

LINK = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#|/)([^)\s]+)(\))")


def relative_links(text: str) -> list[str]:
    "The files that a Markdown text links to, without what follows a `#`; fenced code is not looked at."
    return [
        target.partition("#")[0] for part in re.split(r"(?ms)^```.*?^```$", text) for _, target, _ in LINK.findall(part)
    ]


def with_absolute_links(text: str, url: str, tag: str) -> str:
    """`text` with its links to files led to the repository at `url`, as of `tag`: elsewhere there is nothing beside the
    text. Where there is no address, only what a link says is left of it.
    """

    def absolute(found: re.Match) -> str:
        if not url:
            return found[1].removesuffix("](").partition("[")[2]
        kind = "raw" if found[1].startswith("!") else "blob"
        return f"{found[1]}{url}/{kind}/{tag}/{found[2]}{found[3]}"

    parts = re.split(r"(?ms)(^```.*?^```$)", text)
    return "".join(part if number % 2 else LINK.sub(absolute, part) for number, part in enumerate(parts))


# --- building ---------------------------------------------------------------------------------------------------------


def committed(top: Path, target: Path) -> Path:
    """The tree of the last commit in the folder `target`, with the same modes on every machine; its README leads to the
    repository.
    """
    archive = subprocess.run(
        ["git", "-C", str(top), "archive", "--format=tar", "HEAD"], check=True, capture_output=True
    ).stdout
    unpack(io.BytesIO(archive), target)
    settings = ConfigParser(interpolation=None)
    settings.read(target / "settings.ini", encoding="utf-8")
    readme = target / "README.md"
    readme.write_text(
        with_absolute_links(
            readme.read_text(encoding="utf-8"), settings["DEFAULT"]["git_url"], f"v{version_of(target)}"
        ),
        encoding="utf-8",
    )
    return target


def unpack(archive: io.BufferedIOBase, target: Path) -> None:
    "Unpack a tar file into `target`, with plain modes."
    with tarfile.open(fileobj=archive) as files:
        files.extractall(target, filter="data")
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def normalised(sdist: Path, epoch: int) -> None:
    "Rewrite a source archive: sorted, one date, one owner, plain modes."
    plain = io.BytesIO()
    with tarfile.open(sdist) as before, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as after:
        for member in sorted(before.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname, member.pax_headers = (
                epoch,
                0,
                0,
                "",
                "",
                {},
            )
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isreg() else None)
    with open(sdist, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed:
        packed.write(plain.getvalue())


def run(words: list, where: Path, epoch: int) -> None:
    "Run a command in `where` with the release's date; exits with what it said where it fails."
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0", "PYTHONPATH": str(where)}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=where,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{done.stdout.strip()[-3000:]}\n`{' '.join(map(str, words[:2]))}` failed; nothing was released.")


def build(top: Path, out: Path, epoch: int, wheels: bool) -> None:
    "Build the release of the checkout `top` into the empty folder `out`; `wheels`: with the wheelhouse."
    with tempfile.TemporaryDirectory() as folder:
        tree = committed(top, Path(folder) / "tree")
        run(["build", "--sdist", "--no-isolation", "--outdir", out, tree], tree, epoch)
        (sdist,) = out.glob("*.tar.gz")
        normalised(sdist, epoch)
        with open(sdist, "rb") as archive:
            unpack(archive, Path(folder) / "sdist")
        (source,) = (Path(folder) / "sdist").iterdir()
        run(["build", "--wheel", "--no-isolation", "--outdir", out, source], source, epoch)
        if wheels:
            wheelhouse(tree, out, epoch)
    run(["twine", "check", "--strict", *sorted(out.glob(f"{FILES}-*"))], top, epoch)
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(out).as_posix()}\n"
        for path in sorted(out.rglob("*"))
        if path.is_file()
    ]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def wheelhouse(tree: Path, out: Path, epoch: int) -> None:
    "What an offline kernel needs, by the command of the very tree; its own wheel has to be the one that is released."
    run([NAME, "wheelhouse", out / "wheelhouse"], tree, epoch)
    (wheel,) = out.glob("*.whl")
    if (out / "wheelhouse" / wheel.name).read_bytes() != wheel.read_bytes():
        sys.exit(f"The wheelhouse has another {wheel.name} than the release; nothing was released.")


def built_twice(top: Path, folder: Path, epoch: int, wheels: bool) -> Path:
    "Build two times in different places; exits with the names of files that differ."
    outs = [folder / "first", folder / "second"]
    for out in outs:
        out.mkdir()
        build(top, out, epoch, wheels)
    sums = [(out / "SHA256SUMS").read_text(encoding="utf-8").splitlines() for out in outs]
    if differ := sorted({line.split("  ", 1)[1] for line in set(sums[0]) ^ set(sums[1])}):
        sys.exit(f"Built twice, these are not the same bytes: {', '.join(differ)}. Nothing was released.")
    return outs[0]


def ours(out: Path) -> bool:
    """Whether the folder `out` may be replaced: it is not there, empty, an earlier release, or holds nothing but built
    packages.
    """
    if not out.exists():
        return True
    names = [path.name for path in out.iterdir()] if out.is_dir() else ["a file"]
    return "SHA256SUMS" in names or all(name.startswith(f"{FILES}-") for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out",
        type=Path,
        default=root / "dist",
        help="where the release goes; %(default)s unless given, which it replaces",
    )
    parser.add_argument("--tag", help="the tag that is released; the one of the last commit unless given")
    parser.add_argument("--check", action="store_true", help="only say whether it could be released")
    parser.add_argument("--no-wheelhouse", action="store_true", help="leave out what needs the network")
    parser.add_argument("--tree", type=Path, default=root, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    top, tag = arguments.tree.resolve(), arguments.tag or tag_here(arguments.tree)
    if changed := not_committed(top):
        sys.exit(
            "A release is built from a commit, and these files are in none:\n"
            + "\n".join(changed[:20])
            + "\nCommit them, or put them away."
        )
    if told := disagreements(top, tag):
        sys.exit("\n".join(told))
    version, epoch = version_of(top), int(git(top, "log", "-1", "--format=%ct"))
    if arguments.check:
        return print(f"{NAME} {version} can be released" + (f" as {tag}" if tag else "; the commit has no tag yet"))
    if not ours(arguments.out):
        sys.exit(f"{arguments.out} holds something else than a release. Name another folder.")
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as folder:
        made = built_twice(top, Path(folder), epoch, not arguments.no_wheelhouse)
        if arguments.out.exists():
            shutil.rmtree(arguments.out)
        shutil.copytree(made, arguments.out)
    print((arguments.out / "SHA256SUMS").read_text(encoding="utf-8"), end="")
    print(
        f"{NAME} {version} in {arguments.out}, the same bytes twice"
        + (f", as {tag}" if tag else f". Not tagged: `git tag v{version}` when CHANGELOG.md has its day")
    )


if __name__ == "__main__":
    main()
