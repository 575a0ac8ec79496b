"""The folder on this machine in which datasets and decoded images are kept."""

import os
from pathlib import Path

import platformdirs

from fedssl.core.errors import FedsslError


def data_folder() -> Path:
    """The folder named by FEDSSL_DATA, else `data` in the user's cache folder."""
    named = os.environ.get("FEDSSL_DATA")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("fedssl")) / "data"


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedsslError(f"{folder} cannot be made ({error}): name another folder in FEDSSL_DATA") from None
