"""Tasks and replies as Flower messages: numbers as JSON, tensors as one safetensors buffer; nothing is ever pickled.

A buffer keeps names, shapes and every dtype (NumPy has no bfloat16), and Flower cuts it into objects of 5 MiB, so no
limit on the size of a message is met. Tasks of one round share a buffer: Flower stores objects by their content.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.files import size_text, storing
from fedssl.core.sealed import check_layout, read_tensors, under, write_tensors
from fedssl.core.stopwatch import PARTS
from fedssl.federation.engines.flower.api import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from fedssl.federation.messages import Failure, FailureCode, GlobalWeights, Payload, TrainResult, TrainTask
from fedssl.federation.validation import numbers

FORMAT = "safetensors"
FACTS, TENSORS = "facts", "tensors"
TRAIN, WHO = "train", "query"
MOST_FACTS = 2**20  # characters: a thousand names of clients in a task's settings
MOST_ROUNDS = 2**31  # also of clients
RESERVED = {"client", "n", "bytes_up", "bytes_down"}  # what the server says itself
CLIENT_CODES = (
    "exception",
    "non-finite",
    "timeout",
    "state-damaged",
    "disk",
    "refused",
    "approval",
    "closed",
    "left",
    "untrusted",
)  # codes; the rest is ours
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
        return GlobalWeights.from_named(read_tensors(self.path))

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
        text = message.content[FACTS]["json"]
        facts = json.loads(text) if isinstance(text, str) and len(text) <= MOST_FACTS else None
    except Exception as error:  # also of a nesting that is too deep
        raise FedsslError(f"a message without readable facts ({type(error).__name__})") from None
    if not isinstance(facts, dict):
        raise FedsslError(f"a message whose facts are no table of up to {MOST_FACTS} characters")
    return facts


def pack_tensors(weights: GlobalWeights, payload: Payload) -> ArrayRecord:
    """One buffer of all tensors that travel: encoder, predictor, a method's own payload."""
    tensors = weights.named() | {f"payload/{name}": tensor for name, tensor in payload.items()}
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    return ArrayRecord({FORMAT: Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)})


def buffer_of(message: Message) -> bytes:
    try:
        return bytes(message.content[TENSORS][FORMAT].data)  # type: ignore[union-attr]
    except (KeyError, TypeError, AttributeError) as error:
        raise FedsslError(f"a message without tensors ({type(error).__name__})") from None


def unpack_tensors(buffer: bytes) -> tuple[GlobalWeights, Payload]:
    try:
        check_layout(buffer)
        tensors = load(buffer)
    except FedsslError:
        raise
    except Exception as error:  # a header may hold anything
        raise FedsslError(f"tensors that cannot be read: {type(error).__name__}: {error}") from None
    return GlobalWeights.from_named(tensors), under("payload/", tensors)


# --- tasks, down


def pack_task(task: TrainTask, tensors: ArrayRecord, about: Facts) -> RecordDict:
    """`tensors` is `pack_tensors` of this task, made once for all tasks that carry the same weights."""
    facts = {
        "client": task.client_id,
        "round": task.round_number,
        "accepted": task.accepted_round,
        "note": task.note,
        "about": about,
        **({"stage": task.stage.decode()} if task.stage else {}),
    }
    return record(facts, tensors)


def unpack_task(message: Message) -> Order:
    facts = facts_of(message)
    weights, payload = unpack_tensors(buffer_of(message))
    try:
        note = numbers(facts["note"])
        about, stage = dict(facts["about"]), str(facts.get("stage", "")).encode()
        known = {"accepted_round": facts["accepted"], "note": note, "payload": payload, "stage": stage}
        return Order(TrainTask(facts["client"], facts["round"], global_weights=weights, **known), about)
    except (KeyError, TypeError, ValueError) as error:
        raise FedsslError(f"a task without {error}") from None


def pack_question(task: TrainTask, about: Facts) -> RecordDict:
    """Whether a client would take this task now: the task without its weights."""
    return record({"client": task.client_id, "round": task.of_round, "about": about})


# --- replies, up


def pack_reply(reply: TrainResult | Failure) -> RecordDict:
    """Of a failure only the code travels, and what its site shares: texts and paths stay in the client's log."""
    facts: Facts = {"client": reply.client_id, "round": reply.round_number}
    if isinstance(reply, Failure):
        return record(facts | {"code": reply.code} | ({"reason": reply.shared} if reply.shared else {}))
    facts |= {"num_examples": reply.num_examples, "scalars": reply.scalars, "profile": reply.profile}
    facts |= {"stage": reply.stage.decode()} if reply.stage else {}
    return record(facts, pack_tensors(reply.weights, reply.payload))


def code_in(facts: Facts) -> FailureCode:
    """A client's own code; for what is none of these, "exception"."""
    return facts["code"] if facts["code"] in CLIENT_CODES else "exception"


def unpack_reply(message: Message, keep: Path, room: int) -> TrainResult | Failure:
    """What a client answered; its weights go to the file `keep`, so that the server holds one upload at a time.

    A reply that is none of ours, or whose weights take more than `room` bytes, is a FedsslError; which numbers it
    needs and what its tensors are worth is for the gate to say.
    """
    facts = facts_of(message)
    client_id: Any = facts.get("client")
    round_number: Any = facts.get("round")
    if not all(type(number) is int and abs(number) < MOST_ROUNDS for number in (client_id, round_number)):
        raise FedsslError("a reply without client and round")
    if "code" in facts:
        return Failure(client_id, round_number, code_in(facts), detail=safe_text(str(facts.get("reason", ""))))
    scalars, profile = numbers(facts.get("scalars")), numbers(facts.get("profile", {}))
    if reserved := RESERVED & scalars.keys() | profile.keys() - PARTS.keys():
        raise FedsslError(f"{min(reserved)} is not for a client to say")
    weights, payload = unpack_tensors(buffer_of(message))
    if weights.num_bytes() > room:
        raise FedsslError(f"{size_text(weights.num_bytes())} of weights instead of {size_text(room)}")
    with storing(keep, weights.num_bytes()):
        # Written anew: nothing of what a client laid out in its buffer is mapped here.
        write_tensors(keep, weights.named())
    examples: Any = facts.get("num_examples")
    return TrainResult(
        client_id=client_id,
        round_number=round_number,
        upload=FileUpload(keep, weights.num_bytes()),
        num_examples=examples,
        scalars=scalars,
        payload=payload,
        profile=profile,
        stage=str(facts.get("stage", "")).encode(),
    )
