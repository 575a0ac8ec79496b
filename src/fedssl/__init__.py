"""Federated self-supervised learning: many sites hold unlabelled images, together they train one image encoder."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fedssl.core.old_names import OldNames

__version__ = "0.1.0"
__all__ = ["FedsslError", "load", "load_classifier", "load_encoder"]

sys.meta_path.insert(0, OldNames())

if TYPE_CHECKING:  # type checkers must not see __getattr__, by which every misspelt name would be right
    from fedssl.core.errors import FedsslError
    from fedssl.encoders.classifier import load_classifier
    from fedssl.encoders.trained import load_encoder
    from fedssl.experiment.experiment import load
else:
    _HOMES = {
        "FedsslError": "fedssl.core.errors",
        "load": "fedssl.experiment.experiment",
        "load_classifier": "fedssl.encoders.classifier",
        "load_encoder": "fedssl.encoders.trained",
    }

    def __getattr__(name: str) -> Any:
        """Heavy imports (torch) happen when something is used, so that `fedssl --help` answers at once."""
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'fedssl' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
