"""One encoder out of a run, ready to be used without it: the global one or a client's own, online or target."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fedssl.core.errors import FedsslError
from fedssl.core.files import Place
from fedssl.core.registry import AllowCode, package_of, unknown
from fedssl.data.own.decoding import LARGEST_GREY, Decoding
from fedssl.encoders.models import models
from fedssl.evaluation.features import batchnorm_layers, with_reestimated_batchnorm
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.encoder_file import FeatureExtractor, load_encoder_file
from fedssl.networks.backbones import BACKBONES
from fedssl.networks.weight_files import WeightFile, load_backbone

Network = Literal["online", "target"]
NETWORKS: tuple[Network, ...] = ("online", "target")
Client = int | str | None  # by number or by name; None: the global encoder
SEEN = 10_000  # images from which BatchNorm statistics are estimated, at most


@dataclass(frozen=True)
class TrainedEncoder:
    """An encoder in evaluation mode on the CPU, whose it is, and how images are made ready for it."""

    model: FeatureExtractor
    about: dict[str, Any]
    decoding: Decoding

    @property
    def owner(self) -> str:
        return str(self.about["encoder"])


def load_encoder(
    run: Place, client: Client = None, network: Network | None = None, allow_code: AllowCode = ()
) -> FeatureExtractor:
    """The encoder of a run folder, of an export, or one that comes with fedssl (`fedssl models`), in evaluation mode.

    A network that is not fedssl's own is imported only from packages that `allow_code` names, such as ["mynets"].

    >>> encoder = fedssl.load_encoder("runs/x")
    >>> features = encoder(torch.rand(8, 3, 32, 32))  # or uint8 from 0 to 255
    >>> features.shape == (8, encoder.feature_size)
    True
    """
    return open_encoder(run, client, network, allow_code).model


def open_encoder(
    run: Place, client: Client = None, network: Network | None = None, allow_code: AllowCode = ()
) -> TrainedEncoder:
    """As `load_encoder`, with what is known about the encoder."""
    path = Path(run)
    if not path.exists() and (known := models().get(str(run))):
        path = known.file
    if (path / "config.toml").exists():
        return trained_encoder(FinishedRun.open(path, allow_code), client, network)
    if client is not None or network is not None:
        raise FedsslError(f"{path}: not a run folder: only a run has encoders of clients to choose from")
    model, about = load_encoder_file(path, allow_code)
    plain = {"image_size": about["image_size"][0], "channels": about["channels"]}
    return TrainedEncoder(model, {"encoder": "exported", **about}, Decoding(**(about.get("decoding") or plain)))


def trained_encoder(run: FinishedRun, client: Client = None, network: Network | None = None) -> TrainedEncoder:
    """W_g, or the client's own W_k or W_k^t as it was after its last accepted round."""
    model, about = load_encoder_file(run.folder.encoder, run.allow_code)
    if client is None:
        about |= {"encoder": "global", "weights": _check_global(run, network)}
        if not run.config.uploads.shares_statistics and batchnorm_layers(model.backbone):
            seen = run.dataset.train.pixels[:SEEN]
            model.backbone = with_reestimated_batchnorm(model.backbone, seen)
            about["batchnorm"] = f"statistics estimated from {len(seen)} training images"
    else:
        number = client_number(run, client)
        path, weights = run.client_weights(number)
        chosen = weights.target if network == "target" else weights.online
        if not chosen.parameters:
            method = run.config.method.name
            raise FedsslError(f"{run.folder.path}: {method} has no target encoder: leave out --network target")
        load_backbone(model.backbone, WeightFile(path, chosen.tensors(), {}))
        about |= {"encoder": f"client {number}", "weights": network or "online"}
        about["round"] = run.client_rounds()[number]
    decoding = decoding_of(run, about)
    about |= {"input": input_facts(about, decoding), "decoding": asdict(decoding)}
    return TrainedEncoder(model.eval(), about, decoding)


def _check_global(run: FinishedRun, network: Network | None) -> Network:
    """Which network the global encoder is an average of; refuses what the server never had."""
    path, sent = run.folder.path, run.config.uploads.upload
    if not run.config.update_rule.factory.shares:
        raise FedsslError(f"{path}: its clients share nothing, so there is no global encoder: name one with --client 0")
    if not run.summary.get("rounds"):
        raise FedsslError(f"{path}: the run finished no round: there is no trained encoder")
    if network in (None, sent):
        return sent
    if network == "target":
        raise FedsslError(
            f"{path}: target encoders never leave their clients, so there is no global one: name a client with "
            "--client 0, or train with --set aggregation.upload=target"
        )
    raise FedsslError(
        f"{path}: its clients sent their target encoders (aggregation.upload), the global encoder is an average of "
        "those: leave out --network, or name a client with --client 0"
    )


def client_number(run: FinishedRun, client: int | str) -> int:
    """A client by its number or by the name that the data gave it."""
    names = run.summary.get("data", {}).get("client_names", [])
    if client in names:
        return int(names.index(client))
    if isinstance(client, str) and not client.isdecimal():
        known = names or [f"0 to {len(run.partition.clients) - 1}"]
        raise unknown(f"{run.folder.path}: there is no client", client, known)
    return int(client)


def decoding_of(run: FinishedRun, about: dict[str, Any]) -> Decoding:
    """How image files become pixels: as in the run; runs on other data than files take the middle square."""
    settings, (height, width) = run.config.data.settings, about["image_size"]
    if height != width:
        raise FedsslError(f"{run.folder.path}: its images are {height} x {width}: files are brought to squares only")
    fit, white = settings.get("fit", "crop"), settings.get("white", LARGEST_GREY)
    return Decoding(height, about["channels"], fit, white, resampling=about.get("resampling", "bilinear"))


def input_facts(about: dict[str, Any], decoding: Decoding) -> dict[str, Any]:
    """What goes into the encoder, for people and programs that do not know fedssl."""
    height, width = about["image_size"]
    return {
        "layout": "NCHW",
        "dtype": "float32",
        "range": [0.0, 1.0],
        "scale": "uint8 / 255, no mean, no standard deviation",
        "channels": about["channels"],
        "height": height,
        "width": width,
        "fit": {"crop": "middle square", "stretch": "whole image, out of proportion"}[decoding.fit],
        "resampling": f"{decoding.resampling}, antialiased",
        "orientation": "EXIF obeyed",
        "transparency": "white",
        "white_16_bit": decoding.white,
        **{f"{name}_inside": value for name, value in normalisation(about).items()},
    }


def normalisation(about: dict[str, Any]) -> dict[str, list[float]]:
    """Mean and deviation by which a network of a library normalises its input; none of fedssl's own does."""
    return {name: about["network"][name] for name in ("mean", "std")} if "library" in about else {}


def permission(about: dict[str, Any]) -> str:
    """What Python code that loads it must add to its arguments: nothing where the network is fedssl's own."""
    package = package_of(BACKBONES.path(about["network"]["name"]))
    return f', allow_code=["{package}"]' if package else ""


def example_input(about: dict[str, Any], count: int = 2) -> torch.Tensor:
    """Images of noise of the right shape, always the same."""
    stream = torch.Generator().manual_seed(0)
    return torch.rand(count, about["channels"], *about["image_size"], generator=stream)
