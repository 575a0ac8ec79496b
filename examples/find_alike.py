"""Which photos look alike, by an encoder that comes with fedssl: python find_alike.py PHOTOS [MODEL]."""

import sys

import torch

import fedssl


def main(photos: str, model: str = "cifar10-fedema-small") -> None:
    print(fedssl.models()[model].description)
    made = fedssl.embed(model, photos)  # any run folder or export will do as well
    features = torch.nn.functional.normalize(made.features)
    likeness = features @ features.T  # N x N cosines
    likeness.fill_diagonal_(-1)
    for name, other, cosine in zip(made.names, likeness.argmax(dim=1).tolist(), likeness.amax(dim=1), strict=True):
        print(f"{name} is most like {made.names[other]} ({cosine:.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
