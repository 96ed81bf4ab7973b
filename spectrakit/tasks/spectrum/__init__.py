"""Regression of numbers or spectra on spectra: views, kernels, a network with calibrated uncertainty."""
