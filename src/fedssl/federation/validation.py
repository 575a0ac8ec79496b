"""The gate before aggregation: what a client of this run may send; anything else never reaches the global model."""

import math
from collections.abc import Callable

import torch

from fedssl.federation.messages import Failure, GlobalWeights, Payload, TrainResult, TrainTask
from fedssl.federation.wire import SCALE
from fedssl.weights import Weights, non_finite

MOST_SCALE = torch.finfo(torch.float32).max / 128  # beyond it a decoded value would be infinite
MOST_EXAMPLES = 10**9  # an n_k beyond this is a mistake or an attempt to outweigh everybody


def anything(payload: Payload) -> str:  # noqa: ARG001
    """Takes any payload of finite numbers."""
    return ""


def nothing(payload: Payload) -> str:
    """Of clients that share nothing."""
    return f"{min(payload)}: nothing is shared in this run" if payload else ""


def inspect(
    reply: TrainResult | Failure,
    tasks: dict[int, TrainTask],
    like: GlobalWeights,
    payload_problem: Callable[[Payload], str] = anything,
) -> TrainResult | Failure:
    """The reply itself if all is well with it, otherwise a failure that says what is not."""
    client_id, round_number = reply.client_id, reply.round_number
    if client_id not in tasks:
        return Failure(client_id, round_number, "not-asked", f"round {round_number}")
    asked = tasks[client_id].round_number
    if round_number != asked:
        return Failure(client_id, asked, "wrong-round", f"a reply to round {round_number} came in round {asked}")
    if isinstance(reply, Failure):
        return reply
    problem = _examples(reply.num_examples) or _scalars(reply) or _weights(reply.weights, like)
    if not problem and (found := payload_problem(reply.payload)):
        problem = f"payload {found}"
    return Failure(client_id, round_number, "rejected", problem) if problem else reply


def _examples(count: object) -> str:
    whole = isinstance(count, int) and not isinstance(count, bool)
    good = whole and 0 < count <= MOST_EXAMPLES  # type: ignore[operator]
    return "" if good else f"num_examples is {count!r}, not a whole number from 1 to {MOST_EXAMPLES}"


def _scalars(result: TrainResult) -> str:
    for name, value in {**result.profile, **result.scalars}.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            return f"{name} is {value!r}, not a finite number"
    broken = [*non_finite(Weights(result.payload))]
    return f"payload {broken[0]}: NaN or infinite" if broken else ""


def _weights(sent: GlobalWeights, like: GlobalWeights) -> str:
    return _part("encoder", sent.encoder, like.encoder) or _part("predictor", sent.predictor, like.predictor)


def _part(part: str, sent: Weights, like: Weights) -> str:
    for kind in ("parameters", "buffers"):
        got, expected = getattr(sent, kind), getattr(like, kind)
        for name in sorted(got.keys() ^ expected.keys()):
            return f"{part} {name}: " + ("is missing" if name in expected else "is not part of the model")
        for name, tensor in expected.items():
            if got[name].dtype != tensor.dtype:
                return f"{part} {name}: got {got[name].dtype}, expected {tensor.dtype}"
            if got[name].shape != tensor.shape:
                return f"{part} {name}: got shape {tuple(got[name].shape)}, expected {tuple(tensor.shape)}"
    broken = [*non_finite(sent)]
    if broken:
        return f"{part} {broken[0]}: NaN or infinite"
    scales = {name: tensor for name, tensor in sent.parameters.items() if name.endswith(SCALE)}
    if wrong := [name for name, tensor in scales.items() if bool(((tensor < 0) | (tensor > MOST_SCALE)).any())]:
        return f"{part} {wrong[0]}: a scale that is not from 0 to {MOST_SCALE:.3g}"
    variances = {name: tensor for name, tensor in sent.buffers.items() if name.endswith("running_var")}
    negative = [name for name, tensor in variances.items() if bool((tensor < 0).any())]
    return f"{part} {negative[0]}: a variance below 0" if negative else ""
