"""What went wrong, in one line that names the file, field or client and the remedy."""


class FedsslError(Exception):
    """Bad input or an unusable environment: the command prints the text and exits with `exit_code`, no traceback."""

    exit_code = 2


class DamagedError(FedsslError):
    """A saved state that is not what was written: truncated, altered, or gone."""

    exit_code = 3


class RoundError(FedsslError):
    """A round that cannot be completed, e.g. too few clients delivered: the global weights are as before it."""

    exit_code = 4


class StorageError(FedsslError):
    """The disk refused: full, read-only, over quota, gone. What was saved before is intact."""

    exit_code = 5
