"""A dataset as a run takes it: images to train on, labelled ones to look at encoders with, and who holds what."""

from dataclasses import dataclass

from fedssl.data.images import Images
from fedssl.data.partition import Owners


@dataclass(frozen=True)
class Refusal:
    """A file that is not used, and why."""

    file: str
    reason: str
    client: str = ""


@dataclass(frozen=True)
class Original:
    """What an image was before it was decoded."""

    name: str
    sha256: str  # of its file
    width: int
    height: int
    kind: str


@dataclass(frozen=True)
class Dataset:
    """Training and test images, in words where they came from, and what the data say about their holders."""

    name: str
    train: Images
    test: Images | None
    source: str
    eval_train: Images | None = None  # labelled images that evaluation learns from; None: the training images
    owners: Owners | None = None  # of the training images
    originals: tuple[Original, ...] = ()  # of the training images, where these were files
    test_originals: tuple[Original, ...] = ()
    refused: tuple[Refusal, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def labelled(self) -> tuple[Images, Images] | None:
        """(training, test) images of evaluation; None where labels are missing, and with them any accuracy."""
        train = self.train if self.eval_train is None else self.eval_train
        if self.test is None or self.test.labels is None or train.labels is None:
            return None
        return train, self.test
