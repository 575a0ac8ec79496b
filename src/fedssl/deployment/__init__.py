"""A server and its sites on their own machines, carried by Flower; `APP` is the folder that `flwr run` takes."""

import hashlib
from pathlib import Path

APP = Path(__file__).parent / "flower_app"


def fingerprint_of(app: Path) -> str:
    """SHA-256 of the bundle that `flwr run` makes of an app's folder."""
    from flwr.cli.build import build_fab_from_disk

    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
