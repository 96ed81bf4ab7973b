"""Take the picture of README.md anew: `python tools/live_picture.py`, or `make picture`.

JupyterLab in headless Chromium trains a built-in task on real spectra with two processes; in the middle of the run
its cell is photographed, as a reader of the notebook sees it. Look at docs/images/live.png before it is committed.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

root = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(root / "tests"))

CELLS = (
    "import spectrakit as sk",
    'run = sk.fit("coffee", "trainer=kaggle_safe", "trainer.max_epochs=400", "trainer.devices=2")',
)
DRAWN = "[role=group][aria-label^='curves']"


def in_few_colors(picture: Any, colors: int) -> Any:
    "A picture with a palette that reaches the colours of thin lines; one by how often a colour occurs dulls them."
    from PIL import Image

    return picture.convert("RGB").quantize(colors, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)


def shrunk(path: Path, colors: int, height: int) -> None:
    "Keep the top of a PNG, `height` pixels, with so many colours: text and lines need no more, in a third of the size."
    from PIL import Image

    with Image.open(path) as picture:
        small = in_few_colors(picture.crop((0, 0, picture.width, min(height, picture.height))), colors)
    small.save(path, optimize=True)


def take(target: Path, step: int, width: int, dark: bool = False) -> Path:
    "Photograph the cell of a run that has come to `step`, `width` pixels wide; returns `target`."
    from playwright.sync_api import sync_playwright

    from lab import Page, Server, chromium, write_notebook

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        notebooks = Path(folder) / "notebooks"
        notebooks.mkdir()
        write_notebook(notebooks / "live.ipynb", *CELLS)
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        with Server(notebooks) as server, Page(browser, server, dark) as page:
            page.page.set_viewport_size({"width": width, "height": 1800})
            page.open("live.ipynb")
            page.run_all()
            page.until(
                "Number(document.querySelectorAll('.jp-Notebook .jp-Cell')[1]"
                f""".querySelector("{DRAWN}")?.getAttribute('aria-label').match(/step (\\d+)/)?.[1] ?? 0) >= {step}""",
                f"step {step}",
                240,
            )
            target.parent.mkdir(parents=True, exist_ok=True)
            page.page.locator(".jp-Notebook .jp-Cell").nth(1).screenshot(path=target)
            page.press_stop()
            page.until_idle()
        browser.close()
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=root / "docs" / "images" / "live.png", help="the PNG")
    parser.add_argument("--step", type=int, default=1500, help="the step from which on it is taken")
    parser.add_argument("--width", type=int, default=1180, help="the browser's width in pixels")
    parser.add_argument("--height", type=int, default=786, help="pixels of the cell that are kept, from its top")
    parser.add_argument("--dark", action="store_true", help="JupyterLab's dark theme")
    words = parser.parse_args()
    shrunk(take(words.out, words.step, words.width, words.dark), 128, words.height)
    print(f"{words.out}, {words.out.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
