"""Packages that only some users need: each is asked for before any work is done, or refused with the command."""

import importlib
from collections.abc import Sequence

from fedssl.core.errors import FedsslError, first_line

EXTRAS: dict[str, tuple[str, ...]] = {  # as in pyproject.toml, with the modules that are imported of each
    "tensorboard": ("torch.utils.tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "hf": ("datasets",),
    "parquet": ("pyarrow",),
    "privacy": ("dp_accounting",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "sklearn": ("sklearn",),
    "flower": ("flwr", "cryptography"),
    "timm": ("timm",),
    "torchvision": ("torchvision",),
    "dicom": ("pydicom",),
    "secure": ("cryptography", "Crypto"),
}


def need(extra: str, needed_by: str, also: Sequence[str] = ()) -> None:
    """Refuses what was asked for, an option, a field or a file, where a module of the extra cannot be imported."""
    for name in (*EXTRAS[extra], *also):
        try:
            module = importlib.import_module(name)
            missing = name if getattr(module, "__file__", "") is None else ""  # None: any folder of that name
        except ImportError as error:
            missing = error.name or name
        except Exception as error:  # a library for another version of what it needs raises what it likes
            raise FedsslError(
                f"{needed_by}: {name} is installed but cannot be imported: {first_line(error)}: install it anew for "
                f'the packages here: pip install --force-reinstall "fedssl[{extra}]"'
            ) from error
        if missing:
            raise FedsslError(f'{needed_by}: {missing} is not installed: pip install "fedssl[{extra}]"')
