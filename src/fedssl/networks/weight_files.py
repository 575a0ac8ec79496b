"""Weights of a backbone in a safetensors file: ours, torchvision's or timm's names, loaded key by key or refused."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedssl.core.checksums import ALTERED
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.weights import Weights
from fedssl.networks.backbones import ConvNet, ResNet
from fedssl.networks.libraries import converted

FILES = ("encoder.safetensors", "model.safetensors", "timm.safetensors", "torchvision.safetensors")
ABOUT = "fedssl"  # the key of the metadata under which fedssl says how to build the network
CHECKSUM = "fedssl_sha256"  # the key of the metadata for the checksum of the file's content
OLDER = {ABOUT, "format"}  # all that files have which were written before there was one
OURS, STANDARD = ".shortcut.", ".downsample."  # all that torchvision's and timm's ResNets call otherwise
HEADS = ("projector.", "head.", "heads.", "fc.", "classifier.")  # what stood on the backbone and is left out
COUNTER = "num_batches_tracked"  # older files lack it, and evaluation does not use it
FIRST = "bn1.weight"  # of our networks: as long as the network is wide
NAMED = 3  # differing keys that a message names
REMEDY = "put back a copy of it, or have it made again by the command that wrote it"
PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt", ".tar")
PROGRAMS = {".onnx": "an ONNX graph", ".pt2": "a torch.export program"}


@dataclass(frozen=True)
class WeightFile:
    """The tensors of a file, and what is written about them (nothing: fedssl did not write it)."""

    path: Path
    tensors: dict[str, Tensor]
    about: dict[str, Any]


def find_weight_file(place: str | Path) -> Path:
    """The file itself, or that of a run folder or an export; a file of another kind is refused with the remedy."""
    path = Path(place)
    if path.is_dir():
        matches = [path / name for name in FILES if (path / name).is_file()]
        if not matches:
            raise FedsslError(f"{path}: there is no encoder: none of {', '.join(FILES)}")
        return matches[0]
    if not path.exists():
        raise FedsslError(
            f"{path}: there is no encoder: give a .safetensors file, a run folder or an export (`fedssl models` lists "
            "those that come with fedssl)"
        )
    if path.suffix in PROGRAMS:
        raise FedsslError(
            f"{path}: {PROGRAMS[path.suffix]} is a program to run, its weights have no names to load them by: export "
            "the encoder with --to safetensors"
        )
    if path.suffix in PICKLES or _is_pickle(path):
        raise FedsslError(
            f"{path}: not an encoder but a pickle, which may run any code when it is opened: fedssl never does. If you "
            "trust it, convert it: from safetensors.torch import save_file; import torch; "
            f"save_file(torch.load({path.name!r}, weights_only=True), {_converted_name(path)!r}) (weights that are one "
            "entry of a checkpoint: torch.load(…)['state_dict'], ['model'] or ['teacher'])"
        )
    return path


def _converted_name(path: Path) -> str:
    """Never that of the file itself."""
    name = path.with_suffix(".safetensors").name
    return name if name != path.name else f"{path.stem}-converted.safetensors"


def _is_pickle(path: Path) -> bool:
    """By its first bytes: torch.save writes a zip, before 1.6 a bare pickle.

    The length with which safetensors begin may look like one (640 is 80 02), but a header in braces follows it.
    """
    with path.open("rb") as file:
        first = file.read(9)
    pickled = first.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))
    return pickled and first[4:] != b"\0\0\0\0{"


def read_weight_file(place: str | Path) -> WeightFile:
    """All of a safetensors file, read and closed."""
    path = find_weight_file(place)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
            about = json.loads(metadata.get(ABOUT, "{}"))
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise DamagedError(f"{path}: damaged, not readable as safetensors ({error}): {REMEDY}") from None
    ours = metadata.keys() & {ABOUT, CHECKSUM} and metadata.keys() - OLDER  # one of the two names may be damaged
    if ours and metadata.get(CHECKSUM) != _checksum(tensors, metadata):
        raise DamagedError(f"{path}: {ALTERED}: {REMEDY}")
    return WeightFile(path, tensors, about)


def weight_file(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """The content of a file that says how to build the network, and notices when it is no longer what was written."""
    metadata = {ABOUT: json.dumps(about), "format": "pt"}
    return _sorted(save(dict(tensors), {**metadata, CHECKSUM: _checksum(tensors, metadata)}))


def _sorted(content: bytes) -> bytes:
    """With the metadata in order: the library writes it in any, and the same weights must give the same file."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + content[end:]


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Over the tensors, their names and shapes, and all that is written about them but this."""
    others = json.dumps({key: metadata[key] for key in sorted(metadata) if key != CHECKSUM})
    return sha256(f"{Weights(dict(tensors)).digest()} {others}".encode()).hexdigest()


def standard_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names that torchvision's and timm's ResNets have."""
    return {name.replace(OURS, STANDARD): tensor for name, tensor in tensors.items()}


def load_backbone(backbone: nn.Module, file: WeightFile, skip: Sequence[str] = (), field: str = "") -> None:
    """Copies the file's values into the module; every key must be there with its shape, but for modules to skip."""
    own = backbone.state_dict()
    unknown = [one for one in skip if not any(_below(name, [one]) for name in own)]
    if unknown:
        raise FedsslError(f"{field}: the network has no module {unknown[0]!r}, only {_modules(backbone)}")
    wanted = {name: tensor for name, tensor in own.items() if not _below(name, skip)}
    named = _named(file.tensors, own)
    if (
        any(name in wanted and tensor.shape != wanted[name].shape for name, tensor in named.items())
        or wanted.keys() - named
    ):
        named = _named(converted(backbone, file.tensors), own)
    given = {name: tensor for name, tensor in named.items() if not _below(name, skip)}
    missing = [name for name in wanted if name not in given and not name.endswith(COUNTER)]
    surplus = [name for name in given if name not in wanted and not name.startswith(HEADS)]
    shapes = [name for name in wanted if name in given and given[name].shape != wanted[name].shape]
    if missing or surplus or shapes:
        differences = [
            _listed("missing", missing),
            _listed("not of this network", surplus),
            _listed("of another shape", [f"{n} {_shape(given[n])} instead of {_shape(wanted[n])}" for n in shapes]),
        ]
        text, names = "; ".join(filter(None, differences)), [*missing, *surplus, *shapes]
        suggestion = field and (_other_width(backbone, given, names) or _other_channels(given, wanted, names))
        remedy = suggestion or _remedy(names, field)
        raise FedsslError(f"{file.path}: belongs to another network: {text}{remedy}")
    backbone.load_state_dict({**own, **{name: tensor for name, tensor in given.items() if name in wanted}})


def _named(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {_our_name(name, own): tensor for name, tensor in tensors.items()}


def _our_name(name: str, own: Mapping[str, Tensor]) -> str:
    """The network's own name for what an encoder, a backbone, or torchvision's or timm's ResNet calls otherwise."""
    bare = name.removeprefix("backbone.")
    return next((one for one in (name, bare, bare.replace(STANDARD, OURS)) if one in own), bare)


def _other_width(backbone: nn.Module, given: Mapping[str, Tensor], differing: Sequence[str]) -> str:
    """The remedy where a network of ours has the same layers of another width (see the first BatchNorm); else ""."""
    if not isinstance(backbone, ResNet | ConvNet) or FIRST not in differing or not given.keys() >= set(differing):
        return ""
    ours, theirs = len(backbone.state_dict()[FIRST]), len(given[FIRST])
    return f": set network.width = {theirs}, the width of these weights, instead of {ours}"


def _other_channels(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], differing: Sequence[str]) -> str:
    """The remedy where only the first convolution differs, in the channels of the images; else ""."""
    if len(differing) != 1 or differing[0] not in given or differing[0] not in wanted:
        return ""
    (theirs, *kernel), (ours, *here) = (tensors[differing[0]].shape[1:] for tensors in (given, wanted))
    return f": they are for images of {theirs} channels, not {ours}: set data.channels = {theirs}" * (kernel == here)


def _remedy(differing: Iterable[str], field: str) -> str:
    modules = {name.rpartition(".")[0] for name in differing}
    if field and modules == {"conv1"}:
        return (
            f'. Only the stem differs (ImageNet networks have 7x7, ours 3x3): {field} = ["conv1"] loads all but the '
            "stem, which starts at random"
        )
    skipping = f", or leave modules out with {field}" if field else ""
    return f": give network.name and its settings as they were when these weights were trained{skipping}"


def _below(name: str, modules: Sequence[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _modules(backbone: nn.Module) -> str:
    return ", ".join(name for name, _ in backbone.named_children())


def _listed(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{what}: {', '.join(names[:NAMED])}{more}" if names else ""


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
