"""What went wrong, in one line that names the file, field or client and the remedy."""

MOST_SHOWN = 200  # characters of a text that is somebody else's


def safe_text(text: str) -> str:
    """A text that came from another machine, fit for a terminal, a log and a page: signs only, in one line, cut."""
    signs = (sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text[:MOST_SHOWN])
    return "".join(signs) + ("…" if len(text) > MOST_SHOWN else "")


def first_line(error: Exception) -> str:
    """What an error of another library says, in one line; its kind, if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def reason(error: Exception) -> str:
    """What an error says of somebody else's input, as a text to show."""
    return safe_text(str(error) if isinstance(error, FedsslError) else f"{type(error).__name__}: {error}")


class FedsslError(Exception):
    """Bad input or an unusable environment: the command prints the text and exits with `exit_code`, no traceback.

    >>> try:
    ...     fedssl.load("smoke", {"rounds": 0})
    ... except fedssl.FedsslError as error:
    ...     print(error)
    rounds: 0 is not a whole number 1 or more
    """

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
