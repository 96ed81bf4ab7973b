"""Write docs/examples.md: `python tools/examples.py`; with --run train the examples and draw their pictures."""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import spectrakit as sk
from gallery import small

ROOT = Path(__file__).resolve().parent.parent
FOLDER, PAGE = ROOT / "docs" / "examples", ROOT / "docs" / "examples.md"
ORDER = ("image", "spectra", "table", "text", "series", "segmentation", "multi_task", "distillation")
ORDER += ("language_model", "diloco", "kaggle_kernel", "ariel")
HEAD = """# Examples

Twelve scripts to copy. Words after the file are settings:
`python docs/examples/image.py trainer=kaggle_safe trainer.max_epochs=30`.
Their data are generated, or part of scikit-learn and of the extra `demo`.
Tests run each of them; `python tools/examples.py --run` trains them as they are and draws the pictures.
"""


def picture(name: str) -> Path:
    "Return the file of an example's picture."
    return ROOT / "docs" / "images" / f"example-{name}.png"


def render() -> str:
    "Return the text of the page, from the scripts."
    sections = []
    for name in ORDER:
        purpose = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))
        image = f"![Curves of the example {name}](images/{picture(name).name})\n\n" * picture(name).is_file()
        source = f"[docs/examples/{name}.py](examples/{name}.py)\n\n```{{literalinclude}} examples/{name}.py\n```"
        sections.append(f"## {name.replace('_', ' ').capitalize()}\n\n{purpose}\n\n{image}{source}\n")
    return HEAD + "\n" + "\n".join(sections)


def draw_ariel(folder: Path, target: Path) -> None:
    "Draw the predicted spectra of the simulated planets beside the true ones."
    import matplotlib.pyplot as plt
    import pandas as pd

    from spectrakit.tasks.ariel.layout import SIGMA, WL, wavelengths

    truth, answer = pd.read_csv(folder / "ariel" / "truth.csv"), pd.read_csv(folder / "submission.csv")
    figure, axes = plt.subplots(1, len(truth), figsize=(9, 2.9), layout="constrained")
    for axis, (_, true), (_, given) in zip(axes, truth.iterrows(), answer.iterrows(), strict=True):
        um, mu, sigma = wavelengths()[1:], 100 * given[WL[1:]].to_numpy(float), 100 * given[SIGMA[1:]].to_numpy(float)
        axis.fill_between(um, mu - sigma, mu + sigma, color="#0072B2", alpha=0.3, lw=0)
        axis.plot(um, mu, color="#0072B2", label="predicted, ± sigma")
        axis.plot(um, 100 * true[WL[1:]].to_numpy(float), color="#E69F00", lw=2, label="true")
        axis.set(title=f"planet {int(true['planet_id'])}", xlabel="wavelength in µm")
    axes[0].set_ylabel("transit depth in %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(target, dpi=70)


def run(name: str) -> None:
    "Train an example in a new folder and draw the curves of its last run."
    with tempfile.TemporaryDirectory() as folder:
        words = () if name in ("diloco", "ariel") else ("launch.mode=inline",)
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, FOLDER / f"{name}.py", *words], cwd=folder, check=True, env=env)
        if name == "ariel":
            draw_ariel(Path(folder), picture(name))
        else:
            newest = max(Path(folder).glob("runs/*/events.jsonl"), key=os.path.getmtime).parent
            sk.open_run(newest).plot().save(picture(name))
    small(picture(name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples to run; all by default")
    parser.add_argument("--run", action="store_true", help="train them and draw their pictures")
    words = parser.parse_args()
    for each in (words.names or ORDER) if words.run else ():
        run(each)
    PAGE.write_text(render(), encoding="utf-8")
