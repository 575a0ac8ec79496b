"""Tasks and replies as Flower messages: numbers as JSON, tensors as one safetensors buffer; nothing is ever pickled.

A buffer keeps names, shapes and every dtype (NumPy has no bfloat16), and Flower cuts it into objects of 5 MiB, so no
limit on the size of a message is met. Tasks of one round share a buffer: Flower stores objects by their content.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from safetensors import SafetensorError
from safetensors.torch import load, save, save_file
from torch import Tensor

from fedssl.engines.flower_api import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from fedssl.errors import FedsslError
from fedssl.federation.messages import (
    Failure,
    FailureCode,
    GlobalWeights,
    Payload,
    Scalars,
    TrainResult,
    TrainTask,
)
from fedssl.files import storing
from fedssl.sealed import KNOWN_DTYPES, named_tensors, read_weights
from fedssl.stopwatch import PARTS
from fedssl.weights import Weights

FORMAT = "safetensors"
FACTS, TENSORS = "facts", "tensors"
TRAIN, WHO = "train", "query"
NEEDED = {"loss", "images", "seconds"}  # numbers that the record of a round is made of
RESERVED = {"client", "n", "bytes_up", "bytes_down"}  # what the server says itself
Facts = dict[str, Any]


@dataclass(frozen=True)
class Order:
    """A task as a client gets it, with what its app needs to know beside it: settings, the run's id, its own name."""

    task: TrainTask
    about: Facts


@dataclass(frozen=True)
class FileUpload:
    """An upload that came over the network and waits on the server's disk until it is averaged."""

    path: Path
    size: int

    def read(self) -> GlobalWeights:
        return GlobalWeights(read_weights(self.path, "encoder"), read_weights(self.path, "predictor"))

    def num_bytes(self) -> int:
        return self.size


def record(facts: Mapping[str, Any], tensors: ArrayRecord | None = None) -> RecordDict:
    content = RecordDict({FACTS: ConfigRecord({"json": json.dumps(facts)})})
    if tensors is not None:
        content[TENSORS] = tensors
    return content


def facts_of(message: Message) -> Facts:
    """The numbers and names of a message; FedsslError when it is none of ours."""
    try:
        facts = json.loads(str(message.content[FACTS]["json"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FedsslError(f"a message without readable facts ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise FedsslError("a message whose facts are no table")
    return facts


def pack_tensors(weights: GlobalWeights, payload: Payload) -> ArrayRecord:
    """One buffer of all tensors that travel: encoder, predictor, a method's own payload."""
    tensors = named_tensors("encoder", weights.encoder) | named_tensors("predictor", weights.predictor)
    tensors |= {f"payload/{name}": tensor for name, tensor in payload.items()}
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    return ArrayRecord({FORMAT: Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)})


def buffer_of(message: Message) -> bytes:
    try:
        return bytes(message.content[TENSORS][FORMAT].data)  # type: ignore[union-attr]
    except (KeyError, TypeError, AttributeError) as error:
        raise FedsslError(f"a message without tensors ({type(error).__name__})") from None


def unpack_tensors(buffer: bytes) -> tuple[GlobalWeights, Payload]:
    try:
        tensors = load(buffer)
    except (SafetensorError, KeyError) as error:
        raise FedsslError(f"tensors that cannot be read: {error}") from None
    strange = [name for name, tensor in tensors.items() if tensor.dtype not in KNOWN_DTYPES]
    if strange:
        raise FedsslError(f"{strange[0]}: tensors of type {tensors[strange[0]].dtype} are not part of any model here")
    payload = _under(tensors, "payload/")
    return GlobalWeights(_weights(tensors, "encoder"), _weights(tensors, "predictor")), payload


def _weights(tensors: dict[str, Tensor], part: str) -> Weights:
    return Weights(_under(tensors, f"{part}/parameters/"), _under(tensors, f"{part}/buffers/"))


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


# --- tasks, down


def pack_task(task: TrainTask, tensors: ArrayRecord, about: Facts) -> RecordDict:
    """`tensors` is `pack_tensors` of this task, made once for all tasks that carry the same weights."""
    facts = {
        "client": task.client_id,
        "round": task.round_number,
        "accepted": task.accepted_round,
        "note": task.note,
        "about": about,
    }
    return record(facts, tensors)


def unpack_task(message: Message) -> Order:
    facts = facts_of(message)
    weights, payload = unpack_tensors(buffer_of(message))
    try:
        task = TrainTask(facts["client"], facts["round"], facts["accepted"], weights, facts["note"], payload)
        return Order(task, dict(facts["about"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FedsslError(f"a task without {error}") from None


# --- replies, up


def pack_reply(reply: TrainResult | Failure) -> RecordDict:
    """Of a failure only the code travels: texts and paths stay in the client's log."""
    facts: Facts = {"client": reply.client_id, "round": reply.round_number}
    if isinstance(reply, Failure):
        return record(facts | {"code": reply.code})
    facts |= {"num_examples": reply.num_examples, "scalars": reply.scalars, "profile": reply.profile}
    return record(facts, pack_tensors(reply.weights, reply.payload))


def unpack_reply(message: Message, keep: Path) -> TrainResult | Failure:
    """What a client answered; its weights go to the file `keep`, so that the server holds one upload at a time.

    A reply that is none of ours is a FedsslError; what its numbers and tensors are worth is for the gate to say.
    """
    facts = facts_of(message)
    client_id, round_number = facts.get("client"), facts.get("round")
    if not isinstance(client_id, int) or not isinstance(round_number, int):
        raise FedsslError("a reply without client and round")
    if "code" in facts:
        code: FailureCode = facts["code"] if facts["code"] in get_args(FailureCode) else "exception"
        return Failure(client_id, round_number, code)
    scalars = facts.get("scalars")
    if not isinstance(scalars, dict) or not scalars.keys() >= NEEDED or RESERVED & scalars.keys():
        raise FedsslError("a reply without the numbers of a round")
    weights, payload = unpack_tensors(buffer_of(message))
    tensors = named_tensors("encoder", weights.encoder) | named_tensors("predictor", weights.predictor)
    with storing(keep, weights.num_bytes()):
        save_file(tensors, keep)  # written anew: nothing of what a client laid out in its buffer is mapped here
    upload = FileUpload(keep, weights.num_bytes())
    examples, profile = facts.get("num_examples"), _profile(facts.get("profile"))
    return TrainResult(client_id, round_number, upload, examples, scalars, payload, profile)  # type: ignore[arg-type]


def _profile(told: object) -> Scalars:
    """Seconds by part, as far as they are some."""
    known = {name: told[name] for name in PARTS if name in told} if isinstance(told, dict) else {}
    return {name: float(seconds) for name, seconds in known.items() if isinstance(seconds, int | float)}
