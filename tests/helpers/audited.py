"""A site's audit.jsonl, read as `fedssl client audit` reads it."""

from fedssl.core.errors import DamagedError
from fedssl.deployment.audit import check_audit


def verified(path):
    """All lines, and what a reader must know of those that a kill cut off; DamagedError where the chain is broken."""
    checked = check_audit(path)
    if checked.broken:
        raise DamagedError(checked.broken)
    return checked.lines, checked.remarks
