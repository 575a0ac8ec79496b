"""The formats by name: the file of each, what it can hold, how it is written, and how it is used without fedssl."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.core.extras import need
from fedssl.core.registry import Registry
from fedssl.core.weights import Weights
from fedssl.encoders.export.libraries import (
    check_timm,
    check_torchvision,
    in_timm,
    library_tensors,
    timm_usage,
    torchvision_usage,
)
from fedssl.encoders.export.programs import write_onnx, write_torch_export
from fedssl.encoders.trained import TrainedEncoder, permission
from fedssl.networks.weight_files import weight_file

About = dict[str, Any]
Write = Callable[[TrainedEncoder, Path], float | None]
"""Returns the largest difference between the features of the file and of the encoder, where that was measured."""


def _anything(about: About) -> None:
    """Every network can be written."""


def _need_onnx(about: About) -> None:  # noqa: ARG001
    need("onnx", "--to onnx")


@dataclass(frozen=True)
class Format:
    file: str
    write: Write
    usage: Callable[[About], str]
    check: Callable[[About], None] = _anything


def _write_ours(encoder: TrainedEncoder, path: Path) -> None:
    path.write_bytes(weight_file(Weights.of(encoder.model.backbone).tensors(), encoder.about))


def _write_standard(encoder: TrainedEncoder, path: Path) -> None:
    path.write_bytes(weight_file(library_tensors(encoder), encoder.about))


def _write_onnx(encoder: TrainedEncoder, path: Path) -> float:
    return write_onnx(encoder.model.backbone, encoder.about, "features", path)


def _write_torch_export(encoder: TrainedEncoder, path: Path) -> float:
    return write_torch_export(encoder.model.backbone, encoder.about, path)


def _ours_usage(file: str) -> Callable[[About], str]:
    return lambda about: (
        f"""Weights under the names of fedssl's own network ({about["network"]["name"]}).

```python
import fedssl

encoder = fedssl.load_encoder("{file}"{permission(about)})  # or the folder; a torch.nn.Module in evaluation mode
features = encoder(images)  # uint8, or floats from 0 to 1; N x {about["feature_size"]}
```

To train on from here: `fedssl run PRESET --set init.encoder={file}`. Without fedssl, take ONNX or torch.export."""
    )


def _hub_usage(about: About) -> str:
    model, text = in_timm(about), _ours_usage("model.safetensors")(about)
    if not model or not model.opens:
        return text
    return f"""{text}

timm opens this folder, or the repository that it was pushed to (`hf-hub:OWNER/NAME`). Its transforms normalise:

```python
import timm

model = timm.create_model("local-dir:.", pretrained=True)
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
```"""


def _onnx_usage(about: About) -> str:
    return f"""A graph from `images` (N x {_shape(about)}) to `features` (N x {about["feature_size"]}), any N.

```python
import onnxruntime

session = onnxruntime.InferenceSession("encoder.onnx")
(features,) = session.run(None, {{"images": images}})  # float32 array, 0 to 1
```"""


def _torch_export_usage(about: About) -> str:
    return f"""A PyTorch program for any N that needs no Python class. Open only files that you trust.

```python
import torch

encoder = torch.export.load("encoder.pt2").module()
features = encoder(images)  # float32, 0 to 1, N x {_shape(about)}
```"""


def _shape(about: About) -> str:
    return " x ".join(map(str, (about["channels"], *about["image_size"])))


FORMATS: Registry[Format] = Registry(
    "export_formats",
    "--to",
    {
        "safetensors": Format("encoder.safetensors", _write_ours, _ours_usage("encoder.safetensors")),
        "torchvision": Format("torchvision.safetensors", _write_standard, torchvision_usage, check_torchvision),
        "timm": Format("timm.safetensors", _write_standard, timm_usage, check_timm),
        "onnx": Format("encoder.onnx", _write_onnx, _onnx_usage, _need_onnx),
        "torch-export": Format("encoder.pt2", _write_torch_export, _torch_export_usage),
        "hub": Format("model.safetensors", _write_ours, _hub_usage),
    },
    Format,
)
