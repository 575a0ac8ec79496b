"""The formats by name: the file of each, what it can hold, how it is written, and how it is used without fedssl."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from fedssl.core.extras import need
from fedssl.core.registry import Registry
from fedssl.core.weights import Weights
from fedssl.encoders.classifier import Classifier, save_classifier
from fedssl.encoders.export.libraries import check_timm, check_torchvision, library_facts, library_tensors
from fedssl.encoders.export.programs import write_onnx, write_torch_export
from fedssl.encoders.markdown import markdown
from fedssl.encoders.trained import TrainedEncoder, permission
from fedssl.networks.weight_files import weight_file

About = dict[str, Any]
Write = Callable[[TrainedEncoder, Path], float | None]
"""Returns the largest difference between the features of the file and of the encoder, where that was measured."""


@dataclass(frozen=True)
class Format:
    file: str
    write: Write
    usage: Callable[[About], str]
    check: Callable[[About], None] = lambda _: None  # refuses a network that it cannot hold
    _: KW_ONLY
    extra: str = ""  # what has to be installed for it
    write_classifier: Callable[[Classifier, Path], object] | None = None  # into a folder; None: it holds encoders only


def _write_ours(encoder: TrainedEncoder, path: Path) -> None:
    path.write_bytes(weight_file(Weights.of(encoder.model.backbone).tensors(), encoder.about))


def _write_standard(encoder: TrainedEncoder, path: Path) -> None:
    path.write_bytes(weight_file(library_tensors(encoder), encoder.about))


def _write_onnx(encoder: TrainedEncoder, path: Path) -> float:
    return write_onnx(encoder.model.backbone, encoder.about, "features", path)


def _write_onnx_classifier(classifier: Classifier, folder: Path) -> None:
    write_onnx(classifier, classifier.about, "probabilities", folder / "classifier.onnx")


def _write_torch_export(encoder: TrainedEncoder, path: Path) -> float:
    return write_torch_export(encoder.model.backbone, encoder.about, path)


def _usage(template: str, file: str) -> Callable[[About], str]:
    """How the file is used, by the template of this name."""

    def usage(about: About) -> str:
        shape = " x ".join(map(str, (about["channels"], *about["image_size"])))
        facts = {"file": file, "shape": shape, "permission": permission(about), **library_facts(about)}
        return markdown(template, about=about, **facts)

    return usage


FORMATS: Registry[Format] = Registry(
    "export_formats",
    "--to",
    {
        "safetensors": Format(
            "encoder.safetensors",
            _write_ours,
            _usage("ours", "encoder.safetensors"),
            write_classifier=save_classifier,
        ),
        "torchvision": Format(
            "torchvision.safetensors",
            _write_standard,
            _usage("torchvision", "torchvision.safetensors"),
            check_torchvision,
        ),
        "timm": Format("timm.safetensors", _write_standard, _usage("timm", "timm.safetensors"), check_timm),
        "onnx": Format(
            "encoder.onnx",
            _write_onnx,
            _usage("onnx", "encoder.onnx"),
            extra="onnx",
            write_classifier=_write_onnx_classifier,
        ),
        "torch-export": Format("encoder.pt2", _write_torch_export, _usage("torch-export", "encoder.pt2")),
        "hub": Format("model.safetensors", _write_ours, _usage("hub", "model.safetensors")),
    },
    base=Format,
)


def find_format(name: str) -> Format:
    """The format of this name, before any work: what it needs is installed."""
    form = FORMATS.typed(name)
    if form.extra:
        need(form.extra, f"--to {name}")
    return form
