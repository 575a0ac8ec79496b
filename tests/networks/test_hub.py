"""Without a way to the hub: one request, no line printed, and the library is told not to try."""

import logging
import sys
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants

from fedssl.networks import libraries
from fedssl.networks.hub import one_request_to_the_hub


class Session:
    def __init__(self, error=None):
        self.asked, self.error = [], error

    def head(self, url, timeout):
        self.asked.append((url, timeout))
        if self.error:
            raise self.error


@pytest.mark.parametrize("error", [None, OSError("no route to host")])
def test_the_hub_is_asked_once(monkeypatch, error):
    session = Session(error)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    with one_request_to_the_hub() as why:
        assert constants.HF_HUB_OFFLINE is bool(error)
        assert not logging.getLogger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING), "its retries"
    assert why == (f"{constants.ENDPOINT} cannot be reached: no route to host" if error else "")
    assert session.asked == [(constants.ENDPOINT, 10)]
    assert (constants.HF_HUB_OFFLINE, logger.level) == (False, level)


def test_the_reason_is_the_hubs_not_that_of_the_cache(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: Session(OSError("no route to host")))

    def create_model(*args, **kwargs):
        raise OSError("not in the cache")

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    with pytest.raises(ConnectionError, match=r"cannot be reached: no route to host$"):
        libraries.PUBLISHED["timm"]("resnet18")
