"""Drive, which is the folder /opt/drive here.

What is written is kept at once. The real one promises that only after flush_and_unmount, which the journal
therefore notes.
"""

import os
import subprocess

from google.colab._journal import note


def _mounted() -> list[str]:
    "Where Drive is mounted, by this notebook or by the button beside it."
    with open("/proc/mounts", encoding="utf-8") as file:
        places = [line.split()[1] for line in file]
    return [os.path.dirname(place) for place in places if place.endswith("/MyDrive")]


def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120000, readonly: bool = False) -> None:
    if " " in mountpoint:
        raise ValueError("Mountpoint must not contain a space.")
    if (here := _mounted()) and not force_remount:
        print(
            f"Drive already mounted at {here[0]}; to attempt to forcibly remount, "
            f'call drive.mount("{here[0]}", force_remount=True).'
        )
        return
    if here:
        _unmount(here[0])
    if os.path.exists(mountpoint) and not os.path.isdir(mountpoint):
        raise ValueError("Mountpoint must either be a directory or not exist")
    if os.path.isdir(mountpoint) and os.listdir(mountpoint):
        raise ValueError("Mountpoint must not already contain files")
    place = os.path.join(mountpoint, "MyDrive")
    os.makedirs(place)
    subprocess.run(["mount", "--bind", "/opt/drive", place], check=True)
    if readonly:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    note(f"drive: mounted at {mountpoint}")
    print(f"Mounted at {mountpoint}")


def flush_and_unmount(timeout_ms: int = 24 * 60 * 60 * 1000) -> None:
    if not (here := _mounted()):
        print("Drive not mounted, so nothing to flush and unmount.")
    else:
        _unmount(here[0])


def _unmount(mountpoint: str) -> None:
    subprocess.run(["umount", "--lazy", os.path.join(mountpoint, "MyDrive")], check=True)
    os.rmdir(os.path.join(mountpoint, "MyDrive"))
    os.rmdir(mountpoint)
    note("drive: flushed and unmounted")
