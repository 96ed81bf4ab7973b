"""Answer the Ariel Data Challenge on simulated planets: calibrate, fit transits, predict spectra with their errors."""

import sys

import pandas as pd

from spectrakit.tasks.ariel.layout import find_data
from spectrakit.tasks.ariel.metric import ariel_score
from spectrakit.tasks.ariel.pipeline import predict_spectra
from spectrakit.tasks.ariel.simulate import Instrument, simulate

planets = (int(sys.argv[1]), 2) if len(sys.argv) > 1 else (5, 3)
folder = simulate("ariel", planets, Instrument(pairs=(40, 480))).folder  # a few minutes of each visit
notes = predict_spectra(find_data(folder), "submission.csv", "light-curves", workers=1)
truth, answer = pd.read_csv(folder / "truth.csv"), pd.read_csv("submission.csv")
print(f"completed: score {ariel_score(truth, answer).raw:.3f} for {len(answer)} planets", notes)
