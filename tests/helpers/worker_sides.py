"""Clients' sides that worker processes make for themselves, whole ones and ones that misbehave."""

import os
import time

import torch

from fedssl.core.errors import StorageError
from fedssl.federation.client_store import ClientStore
from fedssl.federation.model_communication import UPDATE_RULES, FedEMA
from tests.helpers.small import make_client, make_images, make_method


def whole(folder, number):
    torch.set_num_threads(1)
    return make_client(make_method(), FedEMA()), ClientStore(folder)


def of_method(folder, method, rule, settings, clients, each, number):
    torch.set_num_threads(1)
    images = make_images(clients * each).pixels
    client = make_client(make_method(method), UPDATE_RULES[rule](**settings), clients=clients, images=images)
    return client, ClientStore(folder)


def dies(folder, number):
    """The process of client 1 ends without a word, once."""
    return _disturbed(folder, number, lambda: os._exit(9))


def hangs(folder, number):
    return _disturbed(folder, number, lambda: time.sleep(600))


def has_no_disk(folder, number):
    def refuse():
        raise StorageError("round-000001: cannot be written: No space left on device")

    return _disturbed(folder, number, refuse, again=True)


def _disturbed(folder, number, disturb, again=False):
    client, store = whole(folder, number)
    images_of = client.images_of

    def disturbed(client_id):
        mark = folder.parent / "disturbed"
        if client_id == 1 and (again or not mark.exists()):
            mark.touch()
            disturb()
        return images_of(client_id)

    client.images_of = disturbed
    return client, store


def shares_more(folder, number):
    """A method that sends a payload up and gets one down."""
    client, store = whole(folder, number)
    got = {}
    client.method.receive = got.update
    client.method.payload = lambda: {"seen": torch.cat([torch.ones(1), *got.values()])}
    return client, store
