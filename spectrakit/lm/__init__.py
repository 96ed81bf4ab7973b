"""Language models: texts, token sequences, pretrained models, the task `lm`, `TrainerConfig`, export.

`sk.lm.TrainerConfig`, `sk.lm.LanguageModel` and `sk.lm.export` are imported on first use.
"""

from typing import Any as _Any

_NAMES = {"TrainerConfig": "trainer_config", "LanguageModel": "language_model", "export": "exporting"}


def __getattr__(name: str) -> _Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'spectrakit.lm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"spectrakit.lm.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_NAMES)
