"""Networks as programs, ONNX or torch.export, for any number of images; compared with PyTorch when written."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.core.errors import FedsslError, first_line
from fedssl.encoders.trained import example_input
from fedssl.evaluation.features import mode

ONNX_TOLERANCE = 1e-4  # ONNX Runtime sums in another order
EXPORT_TOLERANCE = 1e-5
CHECKED = 3  # images that a program is compared with, another number than it was traced with


@torch.no_grad()
def write_onnx(model: nn.Module, about: dict[str, Any], output: str, path: Path) -> float:
    """images -> `output`; returns the largest difference that ONNX Runtime's results have from PyTorch's."""
    import onnx
    import onnxruntime

    with mode(model, training=False), _hushed(), _named(about):
        program: Any = torch.onnx.export(
            model,
            (example_input(about),),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=[output],
            dynamic_shapes=({0: "batch"},),
        )
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"fedssl": json.dumps(about)})
    onnx.checker.check_model(proto)
    path.write_bytes(proto.SerializeToString())
    images = example_input(about, CHECKED)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    outputs = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    return _compared(model, images, outputs, ONNX_TOLERANCE, path)


@torch.no_grad()
def write_torch_export(model: nn.Module, about: dict[str, Any], path: Path) -> float:
    """A .pt2 archive; returns the largest difference of its results, read back, from the model's."""
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    with mode(model, training=False), _hushed(), _named(about):
        program = torch.export.export(model, (example_input(about),), dynamic_shapes=shapes)
        torch.export.save(program, path, extra_files={"fedssl.json": json.dumps(about)})
        images = example_input(about, CHECKED)
        outputs = torch.export.load(path).module()(images)
    return _compared(model, images, outputs, EXPORT_TOLERANCE, path)


def _compared(model: nn.Module, images: Tensor, outputs: Tensor, tolerance: float, path: Path) -> float:
    with mode(model, training=False):
        wanted = model(images)
    difference = float((outputs - wanted).abs().max())
    if not difference <= tolerance * max(1.0, float(wanted.abs().max())):
        raise FedsslError(f"{path.name}: its results differ from PyTorch's by {difference:.2g}: it was not written")
    return difference


@contextmanager
def _hushed() -> Iterator[None]:
    """Exporters speak of torchvision, which nobody asked for, and of their own future."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _named(about: dict[str, Any]) -> Iterator[None]:
    """A user's network may do what no exporter understands."""
    try:
        yield
    except FedsslError:
        raise
    except Exception as error:  # exporters raise what they like
        name = about["network"]["name"]
        raise FedsslError(f"{name}: the network cannot be exported as a program: {first_line(error)}") from error
