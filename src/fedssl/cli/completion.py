"""What the shell offers after a tab: presets and run folders, found on disk without torch, which takes seconds."""

from glob import escape, glob
from pathlib import Path

PRESETS = Path(__file__).parents[1] / "experiment" / "config" / "presets"


def complete_preset(begun: str) -> list[str]:
    """Presets, after a plus sign algorithms; none of them: the shell itself offers files."""
    before, plus, _ = begun.rpartition("+")
    paths = sorted((PRESETS / "algorithms" if plus else PRESETS).glob("*.toml"))
    return [name for path in paths if (name := f"{before}{plus}{path.stem}").startswith(begun)]


def complete_run(begun: str) -> list[str]:
    """Run folders whose path begins so, or in a folder whose path does."""
    patterns = (f"{escape(begun)}*{below}/config.toml" for below in ("", "/*"))
    return sorted(str(Path(path).parent) for pattern in patterns for path in glob(pattern))  # noqa: PTH207 - may be absolute
