"""An encoder as a transformer of scikit-learn: images in, features out, usable in a Pipeline."""

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image

from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError
from fedssl.core.extras import need
from fedssl.core.registry import AllowCode
from fedssl.data.own.decoding import Decoding, RefusedError, decode_array, decode_image
from fedssl.encoders.embed import ImageReader, embed, in_short
from fedssl.encoders.trained import Network, open_encoder
from fedssl.evaluation.features import compute_features
from fedssl.experiment.records.encoder_file import check_range

need("sklearn", "fedssl.encoders.sklearn")
from sklearn.base import BaseEstimator, TransformerMixin  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Features of images: arrays or tensors N x H x W x C, N x C x H x W or N x H x W, or a list of such images.

    Pixels are uint8, uint16, or floats from 0 to 1, which are rounded to 8 bits. A list may hold arrays and tensors of
    any size and PIL images, or be one of files. Images of another size than the encoder's are brought to it as files
    are. `run` is a run folder, or what `fedssl export --to safetensors` wrote. Nothing is learnt from images: `fit`
    loads the encoder. `allow_code` names the packages that the run's own network may be imported from.

    >>> Encoder(run="runs/x").fit().transform(["photos/cat/000.png", "photos/dog/000.png"]).shape
    (2, 64)
    """

    def __init__(
        self,
        run: str | Path = "",
        *,
        client: int | str | None = None,
        network: Network | None = None,
        batch_size: int | None = None,
        device: str = "auto",
        allow_code: AllowCode = (),
    ) -> None:
        self.run = run
        self.client = client
        self.network = network
        self.batch_size = batch_size
        self.device = device
        self.allow_code = allow_code

    def fit(self, X: Any = None, y: Any = None) -> Self:  # noqa: ARG002, N803 - scikit-learn's names
        """Loads the encoder; X and y are not looked at."""
        encoder = open_encoder(self.run, self.client, self.network, self.allow_code)
        self.decoding_, self.backbone_ = encoder.decoding, encoder.model.backbone
        self.n_features_out_ = encoder.model.feature_size
        return self

    def transform(self, X: Any) -> Array:  # noqa: N803
        """float32, one row per image; a file that cannot be used is an error, as it would have no row."""
        check_is_fitted(self, "backbone_")
        model = self.backbone_.to(choose_device(self.device))
        if isinstance(X, torch.Tensor):
            X = X.numpy(force=True)
        if not isinstance(X, np.ndarray) or X.dtype.kind in "OU":
            X = list(X)
            if all(isinstance(one, str | os.PathLike) for one in X):
                return self._of_files([str(one) for one in X])
        pixels = torch.from_numpy(_pixels(X, self.decoding_))
        return compute_features(model, pixels, self.batch_size).numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array, tags.input_tags.string = False, True, True
        return tags

    def _of_files(self, paths: list[str]) -> Array:
        missing = [path for path in paths if not Path(path).is_file()]
        if missing:
            raise FedsslError(f"{missing[0]}: there is no such file")
        reader = ImageReader(paths, self.decoding_)
        rows = [batch.outputs for batch in embed(self.backbone_, reader, self.batch_size)]
        if reader.refused:
            raise FedsslError(f"not every image can be used{in_short(reader.refused)}: leave such files out")
        return torch.cat(rows).numpy()

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: ARG002
        check_is_fitted(self, "backbone_")
        return np.array([f"feature{number}" for number in range(self.n_features_out_)], dtype=object)


def _pixels(images: Array | list[Any], decoding: Decoding) -> Array:
    """uint8, N x C x H x W as the encoder takes them; images that have its shape keep their pixels."""
    if isinstance(images, list):
        return np.stack([_pixels_of_one(number, image, decoding) for number, image in enumerate(images)])
    rows = _channels_last(images, decoding.channels)
    size = decoding.image_size
    if rows.dtype == np.uint8 and rows.shape[1:] == (size, size, decoding.channels):
        return np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
    try:
        return np.stack([decode_array(row, decoding).pixels for row in rows])
    except RefusedError as error:
        raise FedsslError(f"X: {error}") from None


def _pixels_of_one(number: int, image: Any, decoding: Decoding) -> Array:
    if isinstance(image, Image.Image):
        try:
            return decode_image(image, decoding)
        except (RefusedError, OSError) as error:
            raise FedsslError(f"X: image {number}: {error}") from None
    pixels = image.numpy(force=True) if isinstance(image, torch.Tensor) else image
    if not isinstance(pixels, np.ndarray) or pixels.ndim not in (2, 3):
        what = f"of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else f"a {type(image).__name__}"
        raise FedsslError(f"X: image {number} is {what}: a list holds files, or arrays, tensors and PIL images")
    one: Array = _pixels(pixels[None], decoding)[0]
    return one


def _channels_last(images: Array, channels: int) -> Array:
    """N x H x W x C, from either order; where both could be meant, the encoder's own number of channels decides."""
    known = images.dtype in (np.uint8, np.uint16) or images.dtype.kind == "f"
    if not known or images.ndim not in (3, 4) or not images.size:
        raise FedsslError(
            "X must be uint8 images N x H x W x C, N x C x H x W or N x H x W, or a list of files, "
            f"not {images.dtype} of shape {images.shape}"
        )
    if images.dtype.kind == "f":
        check_range("X", float(images.min()), float(images.max()))
        images = np.rint(images.clip(0, 1) * 255).astype(np.uint8)
    if images.ndim == 3:
        return images[..., None]
    for likely in ((channels,), (1, 3, 4)):
        if images.shape[3] in likely:
            return images
        if images.shape[1] in likely:
            return images.transpose(0, 2, 3, 1)
    raise FedsslError(f"X: of shape {images.shape}, neither the second nor the last axis is one of 1, 3 or 4 channels")
