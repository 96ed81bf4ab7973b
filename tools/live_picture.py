"""Take the pictures of README.md and docs/watch.md anew: `python tools/live_picture.py`, or `make picture`.

JupyterLab in headless Chromium trains a built-in task on real spectra with two processes; in the middle of the run
its cell is photographed, as a reader of the notebook sees it. Look at docs/images/live*.png before they are committed.
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
NARROW, GAP = 420, 12  # pixels: a telephone's window, and between two pictures
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


def take(folder: Path, step: int, width: int) -> dict[str, Path]:
    "Photograph the cell of a run that has come to `step`, wide and narrow, light and dark; the pictures by name."
    from playwright.sync_api import sync_playwright

    from lab import Page, Server, chromium, write_notebook

    taken = {}
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    write_notebook(notebooks / "live.ipynb", *CELLS)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        with Server(notebooks) as server, Page(browser, server) as page:
            page.page.set_viewport_size({"width": width, "height": 1800})
            page.open("live.ipynb")
            page.run_all()
            page.until(
                "Number(document.querySelectorAll('.jp-Notebook .jp-Cell')[1]"
                f""".querySelector("{DRAWN}")?.getAttribute('aria-label').match(/step (\\d+)/)?.[1] ?? 0) >= {step}""",
                f"step {step}",
                480,
            )
            for wide in (width, NARROW):
                page.page.set_viewport_size({"width": wide, "height": 2600})
                for theme in ("light", "dark"):
                    page.dress(theme == "dark")
                    page.page.wait_for_timeout(1500)  # the theme's style sheet arrives
                    path = taken[f"{wide}-{theme}"] = folder / f"{wide}-{theme}.png"
                    page.page.locator(".jp-Notebook .jp-Cell").nth(1).screenshot(path=path)
            page.press_stop()
            page.until_idle()
        browser.close()
    return taken


def beside(left: Path, right: Path, target: Path) -> Path:
    "Two pictures in one."
    from PIL import Image

    pair = [Image.open(path).convert("RGB") for path in (left, right)]
    both = Image.new("RGB", (sum(picture.width for picture in pair) + GAP, max(p.height for p in pair)), "#808080")
    both.paste(pair[0], (0, 0))
    both.paste(pair[1], (pair[0].width + GAP, 0))
    both.save(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=root / "docs" / "images", help="the folder for the pictures")
    parser.add_argument("--step", type=int, default=1500, help="the step from which on they are taken")
    parser.add_argument("--width", type=int, default=1180, help="the browser's width in pixels")
    parser.add_argument("--height", type=int, default=800, help="pixels of the cell that are kept, from its top")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        taken = take(Path(folder), words.step, words.width)
        for name, theme in (("live", "light"), ("live-dark", "dark")):
            taken[f"{words.width}-{theme}"].replace(words.out / f"{name}.png")
            shrunk(words.out / f"{name}.png", 128, words.height)
        beside(taken[f"{NARROW}-light"], taken[f"{NARROW}-dark"], words.out / "live-narrow.png")
    shrunk(words.out / "live-narrow.png", 96, 1000)
    for name in ("live", "live-dark", "live-narrow"):
        print(f"{name}.png, {(words.out / f'{name}.png').stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
