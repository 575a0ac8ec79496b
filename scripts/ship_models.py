"""The encoders of src/fedssl/encoders/models, from finished runs: weights, card and index, with checksums.

python -m scripts.ship_models runs/    # with runs/cifar10-cpu and runs/groceries
"""

import argparse
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import tomli_w

from fedssl.encoders.export import export_encoder
from fedssl.encoders.models import HERE
from fedssl.encoders.trained import open_encoder
from fedssl.experiment.records.run_record import RunRecord

CIFAR10 = """
CIFAR-10 (A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009): 20,000 of its training images.
Its authors state no licence; it is used widely for research. No image of it is in this folder."""
GROCERIES = """
Grocery Store Dataset (M. Klasson, C. Zhang, H. Kjellström, *A Hierarchical Grocery Store Image Dataset with Visual and
Semantic Labels*, WACV 2019), Copyright (c) 2019 Marcus Klasson, MIT License: its 2,640 training photos; tested with its
2,485 test photos and their 43 coarse classes. Coarse class c is at client c mod 5. No photo of it is in this folder."""


@dataclass(frozen=True)
class Shipped:
    """Which run becomes which model."""

    run: str
    command: str
    description: str
    data: str
    credit: str


MODELS = {
    "cifar10-fedema-small": Shipped(
        "cifar10-cpu",
        "fedssl run cifar10-cpu",
        "SimCLR with FedEMA's update rule, CIFAR-10, 5 clients with 2 classes each",
        "CIFAR-10, no licence stated",
        CIFAR10,
    ),
    "groceries-fedema-small": Shipped(
        "groceries",
        "fedssl run folder --set data.path=dataset/all.csv --set rounds=40 --set local_training.batch_size=32"
        " --set local_training.lr=0.05 --set evaluation.every=0",
        "SimCLR with FedEMA's update rule, 2,640 photos of groceries, 5 clients with 8 or 9 kinds each",
        "Grocery Store Dataset, MIT",
        GROCERIES,
    ),
}
SECTION = """
## Data and licence
{credit}

The weights are published under Apache-2.0, as fedssl. Trained on one CPU core by
`{command} --set engine=in-process --set threads=1`. SHA-256 of `encoder.safetensors`: `{digest}`.
"""


def ship(name: str, shipped: Shipped, runs: Path) -> dict[str, str | int]:
    """Writes the folder of one model; returns its entry of the index."""
    folder, run = HERE / name, runs / shipped.run
    shutil.rmtree(folder, ignore_errors=True)
    export_encoder(run, folder, ["safetensors"], license="apache-2.0")
    digest = sha256((folder / "encoder.safetensors").read_bytes()).hexdigest()
    with (folder / "README.md").open("a", encoding="utf-8") as card:
        card.write(SECTION.format(credit=shipped.credit, command=shipped.command, digest=digest))
    record, model = RunRecord.read(run), open_encoder(folder).model
    measured = [
        f"{label} {100 * gain.trained.accuracy:.1f} % (random {100 * gain.baseline.accuracy:.1f} %)"
        for label, measure in (("kNN", "knn"), ("linear probe", "linear"))
        if (gain := record.gain(measure))
    ]
    return {
        "description": shipped.description,
        "images": " x ".join(map(str, model.shape)),
        "features": model.feature_size,
        "accuracy": ", ".join(measured),
        "data": shipped.data,
        "sha256": digest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    index = {name: ship(name, one, runs) for name, one in MODELS.items()}
    (HERE / "models.toml").write_text(tomli_w.dumps(index), encoding="utf-8")


if __name__ == "__main__":
    main()
