"""What a message of the paper's network (154 MB) costs at each step of its way through Flower, in CPU seconds.

python -m benchmarks.message
"""

import hashlib
import tempfile
from pathlib import Path

from flwr.app import Message
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, validate_object_content
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.measuring import take_turns
from fedssl.core.sealed import write_tensors
from fedssl.federation.client import weights_of
from fedssl.federation.engines.flower.messages import buffer_of, pack_tensors, record, unpack_tensors
from fedssl.federation.messages import GlobalWeights
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import HeadSizes


def steps() -> dict[str, float]:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    made = weights_of(BYOL(resnet18(3), 512, HeadSizes()))
    weights = GlobalWeights(made.online, made.predictor)
    message = Message(record({}, pack_tensors(weights, {})), dst_node_id=2, message_type="train")
    name, parts = message.object_id, get_all_nested_objects(message)
    contents = {one: part.deflate() for one, part in parts.items()}
    buffer = buffer_of(message)
    with tempfile.TemporaryDirectory(prefix="fedssl-bench-") as folder:
        makers = {
            "tensors to one buffer": lambda: pack_tensors(weights, {}),
            "names of the objects (SHA-256)": lambda: hashlib.sha256(buffer).hexdigest(),
            "objects cut out of the buffer": lambda: [part.deflate() for part in parts.values()],
            "protobuf, one hop": lambda: [_hop(one, content) for one, content in contents.items()],
            "objects checked at the SuperLink": lambda: [_check(content) for content in contents.values()],
            "objects put together": lambda: inflate_object_from_contents(name, dict(contents)),
            "buffer to tensors": lambda: unpack_tensors(buffer),
            "upload to the server's disk": lambda: write_tensors(Path(folder, "upload"), weights.named()),
        }
        return take_turns(makers, 3)[0]


def _hop(name: str, content: bytes) -> None:
    sent = PushObjectRequest(object_id=name, object_content=content).SerializeToString(deterministic=True)
    PushObjectRequest.FromString(sent)


def _check(content: bytes) -> str:
    validate_object_content(content)
    return get_object_id(content)


if __name__ == "__main__":
    for step, seconds in steps().items():
        print(f"| {step} | {seconds:.2f} |")
