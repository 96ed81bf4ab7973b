"""Drive, which is the folder /opt/drive here.

What is written is kept at once. The real one promises that only after flush_and_unmount, which the journal therefore notes.
"""
import os
import subprocess

from google.colab._journal import note

_mounted: list[str] = []


def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120000, readonly: bool = False) -> None:
    if " " in mountpoint: raise ValueError("Mountpoint must not contain a space.")
    if _mounted and not force_remount:
        print(f'Drive already mounted at {_mounted[0]}; to attempt to forcibly remount, call drive.mount("{_mounted[0]}", force_remount=True).')
        return
    if _mounted: _unmount()
    if os.path.exists(mountpoint) and not os.path.isdir(mountpoint): raise ValueError("Mountpoint must either be a directory or not exist")
    if os.path.isdir(mountpoint) and os.listdir(mountpoint): raise ValueError("Mountpoint must not already contain files")
    place = os.path.join(mountpoint, "MyDrive")
    os.makedirs(place)
    subprocess.run(["mount", "--bind", "/opt/drive", place], check=True)
    if readonly: subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
    _mounted.append(mountpoint)
    note(f"drive: mounted at {mountpoint}")
    print(f"Mounted at {mountpoint}")


def flush_and_unmount(timeout_ms: int = 24 * 60 * 60 * 1000) -> None:
    if not _mounted: print("Drive not mounted, so nothing to flush and unmount.")
    else: _unmount()


def _unmount() -> None:
    mountpoint = _mounted.pop()
    subprocess.run(["umount", "--lazy", os.path.join(mountpoint, "MyDrive")], check=True)
    os.rmdir(os.path.join(mountpoint, "MyDrive"))
    os.rmdir(mountpoint)
    note("drive: flushed and unmounted")
