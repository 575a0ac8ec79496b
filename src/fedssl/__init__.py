"""Federated self-supervised learning: many sites hold unlabelled images, together they train one image encoder."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["FedsslError", "load", "load_classifier", "load_encoder"]

if TYPE_CHECKING:
    from fedssl.classifiers import load_classifier
    from fedssl.encoders import load_encoder
    from fedssl.errors import FedsslError
    from fedssl.experiment import load


def __getattr__(name: str) -> Any:
    """Heavy imports (torch) happen when something is used, so that `fedssl --help` answers at once."""
    if name == "load":
        from fedssl.experiment import load

        return load
    if name == "load_classifier":
        from fedssl.classifiers import load_classifier

        return load_classifier
    if name == "load_encoder":
        from fedssl.encoders import load_encoder

        return load_encoder
    if name == "FedsslError":
        from fedssl.errors import FedsslError

        return FedsslError
    raise AttributeError(f"module 'fedssl' has no attribute {name!r}")
