"""The README as PyPI shows it, where links into the repository need its address.

`[project.urls]` of pyproject.toml is the one place that has it, under `Repository`. While it has none, links become
names of files and pictures are left out. pyproject.toml names this file as a hook of hatchling.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\[\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


def as_shown(text: str, repository: str) -> str:
    """The text with links that lead somewhere from anywhere."""

    def link(match: re.Match[str]) -> str:
        picture, words, path = match.groups()
        if repository:
            return f"{picture}[{words}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/HEAD/{path})"
        return "" if picture else words if path in words else f"{words} (`{path}`)"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(link, text))


class PyPIReadme(MetadataHookInterface):
    """Hatchling asks it for the readme of the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = as_shown(text, metadata["urls"].get("Repository", ""))
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}
