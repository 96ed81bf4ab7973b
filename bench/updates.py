"""How often a cell changes while it trains, and by how much: `python bench/updates.py [KIT ...] [--venvs FOLDER]`.

The notebooks of tools/gallery_peers.py, the same network on the same spectra, each in a kernel of its own. An update is
a message after which a page changes an output: display_data, update_display_data, clear_output, stream, and messages to
widgets. Bytes are those of their contents.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from jupyter_client.manager import KernelManager

root = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(root / "tools"), str(root / "bench")]
KINDS = ("display_data", "update_display_data", "clear_output", "stream", "comm_open", "comm_msg", "comm_close")


def measured(python: str, cells: tuple[str, ...]) -> tuple[int, int, float]:
    "Updates, bytes and seconds of the last of the cells, with this interpreter."
    sizes: list[int] = []

    def count(message: dict) -> None:
        if message["msg_type"] == "error":
            raise SystemExit("\n".join(message["content"]["traceback"]))
        if message["msg_type"] in KINDS:
            sizes.append(len(json.dumps(message["content"], ensure_ascii=False, default=str).encode()))

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "on").touch()  # no photographer
        manager = KernelManager()
        manager.kernel_spec.argv[0] = python
        manager.start_kernel(cwd=folder)
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=120)
            for cell in cells:
                sizes.clear()
                began = time.monotonic()
                client.execute_interactive(cell, output_hook=count, allow_stdin=False)
            return len(sizes), sum(sizes), time.monotonic() - began
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def main() -> None:
    from peers import environment

    from gallery_peers import CELLS, EPOCHS, KITS, OWN, SETUP

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["spectrakit", *CELLS]
    parser.add_argument("names", nargs="*", default=names, metavar="KIT", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--venvs", type=Path, default=Path.home() / ".cache/spectrakit-bench", help="for the other kits"
    )
    words = parser.parse_args()
    print(f"{'':13} {'updates':>8} {'an epoch':>9} {'KiB':>8} {'an epoch':>9} {'seconds':>8}")
    for name in words.names:
        kits = [kit for kit in KITS if kit.startswith(f"{name}==")]
        python = environment(f"kit-{name}", kits, words.venvs.resolve()) if kits else sys.executable
        if python is None:
            print(f"{name:13} pip could not install it")
            continue
        updates, size, seconds = measured(python, (SETUP, *CELLS[name]) if kits else OWN)
        kib = size / 1024
        print(
            f"{name:13} {updates:8} {updates / EPOCHS:9.1f} {kib:8.0f} {kib / EPOCHS:9.2f} {seconds:8.1f}", flush=True
        )


if __name__ == "__main__":
    main()
