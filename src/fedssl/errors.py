"""What went wrong, in one line that names the file, field or client and the remedy."""


class FedsslError(Exception):
    """Bad input or an unusable environment: the command prints the text and exits with `exit_code`, no traceback."""

    exit_code = 2
