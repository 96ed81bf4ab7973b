"""spectrakit: the notebook kit that always finishes.

Importing it is light: names are looked up where they are used first, and torch is imported by what needs it.
"""

import os as _os
import sys as _sys

if _sys.argv[:1] == ["-m"] and _sys.path[:1] == [_os.getcwd()]:
    # `python -m spectrakit` puts the working folder first: a random.py in it would be taken for Python's. The command
    # `spectrakit` does not, and finds what lies there all the same.
    _sys.path.append(_sys.path.pop(0))

from typing import Any as _Any

__version__ = "0.1.0"

_NAMES = {
    "Config": "config.schema",
    "RequestError": "system.errors",
    "about": "cli.commands.doctor",
    "compose": "config.compose",
    "diff": "config.compose",
    "explain": "config.explain",
    "override": "config.compose",
    "profiles": "api.profiles",
    "ProfilePicker": "picker.picker",
    "Platform": "system.platforms.platform",
    "detect": "system.platforms.detect",
    "find_input": "system.inputs",
    "has_internet": "system.inputs",
    "FoundLr": "tuning.lr_finder",
    "find_lr": "tuning.lr_finder",
    "search": "tuning.search.search",
    "Study": "tuning.search.study",
    "open_study": "tuning.search.study",
    "plot_study": "tuning.search.study_page",
    "plot_folds": "pages.folds_page",
    "check_kernel": "kaggle.check",
    "init_kernel": "kaggle.init",
    "push_kernel": "kaggle.client",
    "seal_output": "runs.session_outputs",
    "secret": "system.secrets",
    "Run": "api.run",
    "attached_runs": "serving.attached",
    "check": "api.check",
    "fit": "api.actions",
    "preflight": "api.preflight",
    "list_runs": "api.run",
    "open_run": "api.run",
    "predict": "api.actions",
    "resume": "api.actions",
    "serve": "serving.inference_server",
    "trust": "launch.consent",
    "CrossValidation": "tuning.cross_validation",
    "open_cross_validation": "tuning.cross_validation",
    "cross_validate": "tuning.cross_validation",
    "TrialResult": "tuning.trial",
    "run_single_trial": "tuning.trial",
    "Blend": "tuning.blend",
    "blend": "tuning.blend",
    "compare": "pages.comparison",
    "report": "pages.run_report",
    "make_wheelhouse": "kaggle.offline.wheelhouse",
    "ArrayDataset": "data.array_rows",
    "extra_columns": "prediction.extra_columns",
    "Loss": "task.loss",
    "Moment": "task.task",
    "weighted_mean": "task.loss",
    "Task": "task.task",
    "Scaler": "data.standardize",
    "random_crop": "data.augmentation",
    "Watchdog": "watchdog.watchdog",
    "watch": "view.cell.live",
}
_PACKAGES = ("lm", "tasks")
__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> _Any:
    if name not in _NAMES and name not in _PACKAGES:
        raise AttributeError(f"module 'spectrakit' has no attribute {name!r}")
    from importlib import import_module

    try:
        if name in _PACKAGES:
            return import_module(f"spectrakit.{name}")
        return getattr(import_module(f"spectrakit.{_NAMES[name]}"), name)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted while spectrakit was being imported. Run the cell again.") from None
    except (ImportError, AttributeError) as error:
        hiding = _hiding()
        if not hiding:
            raise
        raise ImportError(
            f"{hiding} hides Python's own module of that name, so spectrakit cannot be imported ({error}). "
            "Give the file another name."
        ) from None


def _hiding() -> str:
    "The file in the folder of the script, or in the working folder, that was imported in place of one of Python's."
    folders = {_os.path.realpath(folder) for folder in (_sys.path[:1] or [""])} | {_os.path.realpath("")}
    for name in sorted(_sys.stdlib_module_names):
        file = _os.path.realpath(getattr(_sys.modules.get(name), "__file__", None) or "/")
        folder = _os.path.dirname(file)
        if folder in folders or (_os.path.basename(folder) == name and _os.path.dirname(folder) in folders):
            return file
    return ""


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, *(name for name in globals() if name.startswith("__"))})
