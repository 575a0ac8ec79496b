"""A classifier made from an encoder: backbone and head in one safetensors file that names its classes."""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.core.errors import FedsslError
from fedssl.core.registry import AllowCode
from fedssl.core.weights import Weights
from fedssl.data.own.decoding import Decoding
from fedssl.evaluation.fine_tune import new_head
from fedssl.experiment.records.encoder_facts import DecodingFacts, EncoderFacts
from fedssl.experiment.records.encoder_file import as_pixels
from fedssl.networks.weight_files import read_weight_file, weight_file

FILE = "classifier.safetensors"


class ClassifierFacts(EncoderFacts):
    """What the file of a classifier must say beside what that of its encoder does."""

    classes: Annotated[list[str], Field(max_length=2**16)]
    hidden: Annotated[int, Field(ge=1, le=2**16)]
    decoding: DecodingFacts


class Classifier(nn.Module):
    """A batch of images (N x C x H x W; uint8, or floats from 0 to 1) to a probability for each class (N x classes)."""

    def __init__(self, backbone: nn.Module, head: nn.Module, about: dict[str, Any]) -> None:
        super().__init__()
        self.backbone, self.head, self.about = backbone, head, about

    @property
    def class_names(self) -> list[str]:
        return list(self.about["classes"])

    @property
    def decoding(self) -> Decoding:
        """How image files are made ready for it."""
        return Decoding(**self.about["decoding"])

    def forward(self, images: Tensor) -> Tensor:
        pixels = as_pixels(images, (self.about["channels"], *self.about["image_size"]))
        probabilities: Tensor = self.head(self.backbone(pixels)).softmax(dim=1)
        return probabilities

    @torch.no_grad()
    def predict(self, images: Tensor) -> list[str]:
        """The name of the most probable class of each image."""
        return [self.class_names[number] for number in self(images).argmax(dim=1).tolist()]


def save_classifier(classifier: Classifier, folder: Path) -> None:
    (folder / FILE).write_bytes(weight_file(Weights.of(classifier).tensors(), classifier.about))


def load_classifier(place: str | Path, allow_code: AllowCode = ()) -> Classifier:
    """The classifier of a folder that `fedssl finetune` wrote, or of its file, in evaluation mode.

    >>> classifier = fedssl.load_classifier("classifier")
    >>> set(classifier.predict(torch.rand(8, 3, 32, 32))) <= {"cat", "dog"}
    True
    """
    path = Path(place) / FILE if Path(place).is_dir() else Path(place)
    file = read_weight_file(path)
    about = file.about
    if "classes" not in about:
        raise FedsslError(f"{path}: not a classifier written by `fedssl finetune`: it names no classes")
    facts = ClassifierFacts.of(file)
    backbone = facts.build(file, allow_code)
    head = new_head(facts.feature_size, facts.hidden, len(facts.classes), 0)
    classifier = Classifier(backbone, head, about)
    try:
        classifier.load_state_dict(file.tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip()
        raise FedsslError(f"{path}: its weights are not those of the network that it names: {first}") from None
    return classifier.eval()
