"""Ariel data challenge: raw frames, light curves, spectra with uncertainty, submission. Needs the extra `ariel`."""
