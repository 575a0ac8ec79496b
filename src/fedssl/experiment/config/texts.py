"""Settings as flat texts, for tables; without the checks of a config, whose libraries a list of runs does not need."""

from typing import Any

NOT_SET = "–"


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"update_rule": {"tau": 0.7}} -> {"update_rule.tau": 0.7}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def setting_text(value: Any) -> str:
    """A setting as it would be written in a config."""
    if value is None:
        return NOT_SET
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
