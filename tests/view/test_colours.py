"""The colours of plots, of the live view and of pages, as people without one kind of cones see them.

The matrices are those of severity 1.0 of G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, A Physiologically-based
Model for Simulation of Color Vision Deficiency, IEEE TVCG 15(6), 2009, for linear RGB. Differences are CIE 1976 delta
E in L*a*b* (D65): 2.3 can just be seen side by side, 20 is another colour. Contrasts are those of WCAG 2.1, which asks
for 3:1 for what is drawn.
"""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from spectrakit.pages.run_curves import COLORS, run_style
from spectrakit.view.panels import DASH, GHOST, four_panels, ghost_line
from spectrakit.view.plots import RATE, SPEED, TRAIN, VALID
from spectrakit.view.run_state import RunState, apply_event
from spectrakit.view.svg import inked

VISIONS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
# linear sRGB to XYZ
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
APART, FAR, CONTRAST = 20, 40, 3


def rgb(text):
    return np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def linear(color):
    return np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)


def lab(color, vision):
    "L*a*b* of an sRGB colour as this vision has it."
    seen = np.clip(VISIONS[vision] @ linear(color), 0, 1)
    t = XYZ @ seen / XYZ.sum(axis=1)
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one, other):
    "The smallest delta E over all visions."
    return min(np.linalg.norm(lab(one, vision) - lab(other, vision)) for vision in VISIONS)


def contrast(color, ground):
    low, high = sorted(float(XYZ[1] @ linear(each)) for each in (color, ground))
    return (high + 0.05) / (low + 0.05)


def mixed(color, ink):
    "What a browser paints for `inked`."
    share = int(re.fullmatch(r"color-mix\(in srgb,.* (\d+)%,currentColor\)", inked(color))[1]) / 100
    return share * rgb(color) + (1 - share) * rgb(ink)


def of_page(dark):
    "Paper and ink of a page, from its style sheet."
    light, night = re.findall(r":root\{([^}]*)\}", (files("spectrakit") / "templates" / "page.html").read_text())[:2]
    found = dict(re.findall(r"--(\w+):(#\w{6})", night if dark else light))
    return found["paper"], found["ink"]


NAMES = {"train": TRAIN, "valid": VALID, "rate": RATE, "speed": SPEED}
GROUNDS = {  # JupyterLab's themes, VS Code's dark one, and their ink
    "cell, light": ("#ffffff", "#212121"),
    "cell, dark": ("#111111", "#ffffff"),
    "VS Code, dark": ("#1e1e1e", "#cccccc"),
    "page, light": of_page(False),
    "page, dark": of_page(True),
}
PALETTES = {
    "plots": (rgb("#ffffff"), {name: rgb(color) for name, color in NAMES.items()}),
    **{
        where: (rgb(ground), {name: mixed(color, ink) for name, color in NAMES.items()})
        for where, (ground, ink) in GROUNDS.items()
    },
}


def test_the_arithmetic_knows_what_is_known():
    black, white, red, green = map(rgb, ("#000000", "#ffffff", "#ff0000", "#008000"))
    assert contrast(black, white) == pytest.approx(21) and contrast(rgb("#777777"), white) == pytest.approx(
        4.48, abs=0.01
    )
    assert np.allclose(lab(red, "all cones"), [53.24, 80.09, 67.2], atol=0.1)
    assert np.linalg.norm(lab(black, "protanopia") - lab(white, "protanopia")) == pytest.approx(100, abs=0.1)
    for vision in VISIONS:  # greys stay greys
        assert np.allclose(lab(rgb("#808080"), vision)[1:], 0, atol=0.5)
    apart = {v: np.linalg.norm(lab(red, v) - lab(green, v)) for v in VISIONS}
    assert apart["deuteranopia"] < apart["all cones"] / 2 and apart["protanopia"] < apart["all cones"] / 2


@pytest.mark.parametrize("where", PALETTES)
def test_training_and_validation_are_told_apart_and_every_line_from_its_ground(where):
    ground, colors = PALETTES[where]
    assert difference(colors["train"], colors["valid"]) >= FAR
    for name in NAMES:
        assert contrast(colors[name], ground) >= CONTRAST, name


@pytest.mark.parametrize("where", ["file", *GROUNDS])
def test_four_runs_are_told_apart_by_colour_and_sixteen_by_their_lines(where):
    ground, ink = GROUNDS.get(where, ("#ffffff", ""))
    colors = [mixed(color, ink) if ink else rgb(color) for color in COLORS]
    assert min(contrast(color, rgb(ground)) for color in colors) >= CONTRAST
    assert min(difference(one, other) for one, other in combinations(colors, 2)) >= APART
    styles = [run_style(number, 16, "loss") for number in range(16)]
    assert len({(style.color, style.dash) for style in styles}) == 16


def test_where_two_colours_come_near_each_other_a_second_sign_tells_them_apart():
    state = RunState("seen")
    for step in range(1, 60):
        apply_event(state, {"t": step, "type": "step", "step": step, "loss": 1 / step, "lr": 0.1, "epoch": step / 10})
        if step % 10 == 0:
            apply_event(
                state, {"t": step, "type": "eval", "step": step, "epoch": 1.0, "metrics": {"val_loss": 2 / step}}
            )
    lines = {line.label: line for line in four_panels(state)[0].lines if line.kind != "raw"}
    assert lines["valid"].dash and lines["valid"].dots and not lines["train"].dash  # dashes and dots beside the colour
    assert {line.dash for line in ghost_line(state, "")} == {GHOST} != {DASH}
    assert difference(rgb(RATE), rgb(VALID)) >= 15  # a study's best trial, and the newest, which has dots as well
