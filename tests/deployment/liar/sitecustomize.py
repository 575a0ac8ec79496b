"""On the path of one hospital's processes: its app answers with what nobody may answer, one kind after another."""

import json
import os
import sys
from pathlib import Path

DEEP = "[" * 5_000 + "]" * 5_000
FACTS = [
    {"client": None},
    {"client": 0},
    {"client": True},
    {"round": 10**400},
    {"num_examples": 0},
    {"num_examples": "many"},
    {"scalars": None},
    {"scalars": {"seconds": None}},
    {"scalars": {"\x1b[2J": 1.0}},
    {"scalars": {"loss": 10**400}},
    {"scalars": {"loss": float("nan"), "images": 1, "seconds": 1.0}},
    {"scalars": {"loss": 1.0, "images": 1, "seconds": -1.0}},
    {"profile": {"x" * 10**5: "\x1b[31m"}},
    {"code": "\x1b[2J" * 10**5},
    {"note": "x" * 2**21},
]
SHAPES = [[0, 2**40, 2**40], [2**62], [-1], "x"]


def bad(content, number):
    """The content of a reply with the `number`-th thing wrong in it; as it is when there are no more."""
    if number < len(FACTS):
        content["facts"]["json"] = json.dumps(json.loads(content["facts"]["json"]) | FACTS[number])
    elif number < len(FACTS) + len(SHAPES):
        header = json.dumps({"a": {"dtype": "F32", "shape": SHAPES[number - len(FACTS)], "data_offsets": [0, 0]}})
        array = content["tensors"]["safetensors"]
        array.data = len(header).to_bytes(8, "little") + header.encode()
        array.shape = (len(array.data),)
    elif number == len(FACTS) + len(SHAPES):
        content["facts"]["json"] = DEEP
    return content


def lie():
    from fedssl.federation.engines.flower import client_app as flower_client

    honest, count = flower_client.pack_reply, Path(os.environ["FEDSSL_LIES"])

    def lying(reply):
        number = int(count.read_text())
        count.write_text(str(number + 1))
        return bad(honest(reply), number)

    flower_client.pack_reply = lying


if any("deployment.supernode" in word for word in sys.orig_argv):
    lie()
