"""Built-in tasks. `table` learns any table of a competition; `SpectrumRegression` numbers or spectra from spectra."""

from typing import Any as _Any


def __getattr__(name: str) -> _Any:
    if name != "SpectrumRegression":
        raise AttributeError(f"module 'spectrakit.tasks' has no attribute {name!r}")
    from spectrakit.tasks.spectrum.regression import SpectrumRegression

    return SpectrumRegression


def __dir__() -> list[str]:
    return ["SpectrumRegression"]
