"""Where the folder is that `flwr run` takes; see deployment/flower_app/pyproject.toml."""

from pathlib import Path

APP = Path(__file__).parent.parent / "deployment" / "flower_app"
