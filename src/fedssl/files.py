"""Files that are whole or not there: written under another name, then renamed."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
