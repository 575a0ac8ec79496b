"""The folder that `flwr run` takes (see deployment/flower_app/pyproject.toml), and by what its bundle is known."""

import hashlib
from pathlib import Path

APP = Path(__file__).parent.parent / "deployment" / "flower_app"


def fingerprint_of(app: Path) -> str:
    """SHA-256 of the bundle that `flwr run` makes of an app's folder."""
    from flwr.cli.build import build_fab_from_disk

    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()
