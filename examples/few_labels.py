"""A classifier from a few labelled photos, a subfolder per class: python few_labels.py PHOTOS OUT [MODEL [EPOCHS]]."""

import sys

import fedssl


def main(photos: str, out: str, model: str = "cifar10-fedema-small", epochs: str = "20") -> None:
    made = fedssl.finetune(model, photos, out, test_fraction=0.5, epochs=int(epochs), view=fedssl.make_view())
    print(f"learnt {', '.join(made.classifier.class_names)} from {made.learnt_from} images")
    if made.score:
        low, high = made.score.interval
        print(f"right: {made.score.correct} of {made.score.n} others ({low:.1%} to {high:.1%})")
    print(f"use it: fedssl classify {made.folder} {photos}")


if __name__ == "__main__":
    main(*sys.argv[1:])
