"""spectrakit: the notebook kit that always finishes.

Importing it is light: names are looked up where they are used first, and torch is imported by what needs it.
"""
__version__ = "0.1.0"

_NAMES = {
    "Config": "config", "RequestError": "config", "compose": "config", "diff": "config", "override": "config", "profiles": "config",
    "ProfilePicker": "picker",
    "Platform": "platforms", "detect": "platforms", "find_input": "inputs", "has_internet": "inputs",
    "FoundLr": "lr_finder", "find_lr": "lr_finder",
    "check_kernel": "kernel_check", "init_kernel": "kernel_init", "push_kernel": "kernel_push",
    "seal_output": "outputs", "secret": "secrets",
    "Run": "run", "fit": "run", "list_runs": "run", "open_run": "run", "predict": "run", "resume": "run",
    "compare": "comparison", "report": "reports",
    "make_wheelhouse": "wheelhouse",
    "Task": "task", "Watchdog": "standalone", "watch": "live",
}
__all__ = ["__version__", *_NAMES]


def __getattr__(name: str):
    if name not in _NAMES: raise AttributeError(f"module 'spectrakit' has no attribute {name!r}")
    from importlib import import_module
    return getattr(import_module(f"spectrakit.{_NAMES[name]}"), name)


def __dir__() -> list[str]: return sorted({*globals(), *__all__})
