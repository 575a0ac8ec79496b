"""Federated self-supervised learning: many sites hold unlabelled images, together they train one image encoder."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from fedssl.core.old_names import OldNames
from fedssl.core.threads import wait_briefly

__version__ = "0.1.0"
__all__ = [
    "Experiment",
    "FedsslError",
    "Observer",
    "RunReport",
    "embed",
    "evaluate",
    "export",
    "finetune",
    "load",
    "load_classifier",
    "load_encoder",
    "make_view",
    "models",
    "report",
]

sys.meta_path.insert(0, OldNames())
wait_briefly()

if TYPE_CHECKING:  # type checkers must not see __getattr__, by which every misspelt name would be right
    from fedssl.core.errors import FedsslError
    from fedssl.encoders.api import embed, evaluate, finetune
    from fedssl.encoders.classifier import load_classifier
    from fedssl.encoders.export import export_encoder as export
    from fedssl.encoders.models import models
    from fedssl.encoders.trained import load_encoder
    from fedssl.experiment.experiment import Experiment, RunReport, load
    from fedssl.experiment.observers import Observer
    from fedssl.experiment.progress.views import make_view
    from fedssl.reports.run_page import write_report as report
else:
    _HOMES = {
        "Experiment": "fedssl.experiment.experiment:Experiment",
        "FedsslError": "fedssl.core.errors:FedsslError",
        "Observer": "fedssl.experiment.observers:Observer",
        "RunReport": "fedssl.experiment.experiment:RunReport",
        "embed": "fedssl.encoders.api:embed",
        "evaluate": "fedssl.encoders.api:evaluate",
        "export": "fedssl.encoders.export:export_encoder",
        "finetune": "fedssl.encoders.api:finetune",
        "load": "fedssl.experiment.experiment:load",
        "load_classifier": "fedssl.encoders.classifier:load_classifier",
        "load_encoder": "fedssl.encoders.trained:load_encoder",
        "make_view": "fedssl.experiment.progress.views:make_view",
        "models": "fedssl.encoders.models:models",
        "report": "fedssl.reports.run_page:write_report",
    }

    def __getattr__(name: str) -> Any:
        """Heavy imports (torch) happen when something is used, so that `fedssl --help` answers at once."""
        if name in _HOMES:
            module, _, attribute = _HOMES[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        raise AttributeError(f"module 'fedssl' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*__all__, "__version__"]
