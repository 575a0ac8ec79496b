"""The hub that timm fetches weights from: asked once whether it can be reached, instead of retries for a minute."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 10


@contextmanager
def one_request_to_the_hub() -> Iterator[str]:
    """Gives why the hub cannot be reached, or ""; where it cannot, only files that were fetched before are used."""
    from huggingface_hub import constants

    logger = logging.getLogger("huggingface_hub")
    before, offline = logger.level, constants.HF_HUB_OFFLINE
    logger.setLevel(logging.CRITICAL)  # it would print every attempt
    try:
        why = "" if offline else _unreachable(constants.ENDPOINT)
        constants.HF_HUB_OFFLINE = offline or bool(why)
        yield why
    finally:
        constants.HF_HUB_OFFLINE = offline
        logger.setLevel(before)


def _unreachable(endpoint: str) -> str:
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=SECONDS)  # any answer will do
    except Exception as error:  # of whichever library the hub uses for requests
        return f"{endpoint} cannot be reached: {str(error) or type(error).__name__}"
    return ""
