"""The gate before aggregation: what a client of this run may send; anything else never reaches the global model."""

import reprlib
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from fedssl.core.errors import FedsslError, StorageError, reason, safe_text
from fedssl.core.weights import Weights, non_finite
from fedssl.federation.messages import Failure, GlobalWeights, Payload, Scalars, TrainResult, TrainTask
from fedssl.federation.wire import LEVELS, SCALE

MOST_VALUE = 1e30  # of a weight: sums and differences of such values are finite in float32
MOST_SCALE = MOST_VALUE / LEVELS
MOST_COUNT = 2**53  # of a counter: whole numbers up to here are exact in an average; also of images and seconds
MOST_EXAMPLES = 10**9  # an n_k beyond this is a mistake or an attempt to outweigh everybody
MOST_NUMBER = 1e100  # of a loss, a divergence or its inverse: sums and squares of such numbers are finite
MOST_NUMBERS = MOST_NAME = 64  # numbers in a table, letters in a name
COUNTED = ("images", "seconds")


def anything(payload: Payload) -> str:  # noqa: ARG001
    """Takes any payload of finite numbers."""
    return ""


def nothing(payload: Payload) -> str:
    """What is wrong with a payload where clients share nothing: that there is one."""
    return f"{min(payload)}: nothing is shared in this run" if payload else ""


def inspect(
    reply: TrainResult | Failure,
    tasks: dict[int, TrainTask],
    like: GlobalWeights,
    payload_problem: Callable[[Payload], str] = anything,
    needed: Collection[str] = (),
    counts: Collection[str] = (),
) -> TrainResult | Failure:
    """The reply itself if all is well with it, otherwise a failure that says what is not.

    `needed`: the numbers that it must tell; `counts`: instead it tells these, of num_examples images, and nothing else.
    """
    client_id, round_number = reply.client_id, reply.round_number
    if client_id not in tasks:
        return Failure(client_id, round_number, "not-asked", detail=f"round {round_number}")
    expected = tasks[client_id].round_number
    if round_number != expected:
        return Failure(
            client_id, expected, "wrong-round", detail=f"a reply to round {round_number} came in round {expected}"
        )
    if isinstance(reply, Failure):
        return reply
    try:
        problem = _problem(reply, like, payload_problem, needed) or (_counts(reply, counts) if counts else "")
    except StorageError:
        raise
    except Exception as error:  # whatever one client sent, the others' round continues
        problem = reason(error)
    return Failure(client_id, round_number, "rejected", detail=safe_text(problem)) if problem else reply


def numbers(reported: object) -> Scalars:
    """A table of numbers by name as another machine told it; FedsslError when it is anything else."""
    if not isinstance(reported, dict) or len(reported) > MOST_NUMBERS:
        raise FedsslError(f"{reprlib.repr(reported)} is no table of up to {MOST_NUMBERS} numbers")
    for name, value in reported.items():
        if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= MOST_NAME):
            raise FedsslError(f"{reprlib.repr(name)} is no name of a number")
        if not (_whole(value) or isinstance(value, float)) or not abs(value) <= MOST_NUMBER:
            raise FedsslError(f"{name} is {reprlib.repr(value)}, not a number up to {MOST_NUMBER:g}")
    return reported


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _problem(
    reply: TrainResult, like: GlobalWeights, payload_problem: Callable[[Payload], str], needed: Collection[str]
) -> str:
    problem = _examples(reply.num_examples) or _scalars(reply, needed) or _weights(reply.weights, like)
    if not problem and (broken := [*non_finite(Weights(reply.payload))]):
        return f"payload {broken[0]}: NaN or infinite"
    if not problem and (wrong := payload_problem(reply.payload)):
        return f"payload {wrong}"
    return problem


def _examples(count: object) -> str:
    good = _whole(count) and 0 < count <= MOST_EXAMPLES  # type: ignore[operator]
    return "" if good else f"num_examples is {reprlib.repr(count)}, not a whole number from 1 to {MOST_EXAMPLES}"


def _scalars(result: TrainResult, needed: Collection[str]) -> str:
    reported, profile = numbers(result.scalars), numbers(result.profile)
    for name in needed:
        if name not in reported:
            return f"{name} is missing"
    counted = {name: reported[name] for name in COUNTED if name in reported} | profile
    wrong = [name for name, value in counted.items() if not 0 <= value <= MOST_COUNT]
    return f"{wrong[0]} is {reprlib.repr(counted[wrong[0]])}, not from 0 to {MOST_COUNT}" if wrong else ""


def _counts(result: TrainResult, names: Collection[str]) -> str:
    numbers = result.scalars
    for name in sorted(numbers.keys() ^ set(names)):
        return f"{name} is missing" if name in names else f"{name} is not asked for"
    if result.profile or result.payload:
        return "more than counts"
    wrong = [name for name, count in numbers.items() if not (_whole(count) and 0 <= count <= result.num_examples)]
    return f"{wrong[0]} is {reprlib.repr(numbers[wrong[0]])} of {result.num_examples} images" if wrong else ""


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
    if broken := [*non_finite(sent)]:
        return f"{part} {broken[0]}: NaN or infinite"
    scales = {name: tensor for name, tensor in sent.parameters.items() if name.endswith(SCALE)}
    if wrong := [name for name, tensor in scales.items() if bool(((tensor < 0) | (tensor > MOST_SCALE)).any())]:
        return f"{part} {wrong[0]}: a scale that is not from 0 to {MOST_SCALE:.3g}"
    if huge := [name for name, tensor in sent.tensors().items() if tensor.numel() and _huge(tensor)]:
        return f"{part} {huge[0]}: a value that is too large"
    variances = {name: tensor for name, tensor in sent.buffers.items() if name.endswith("running_var")}
    negative = [name for name, tensor in variances.items() if bool((tensor < 0).any())]
    return f"{part} {negative[0]}: a variance below 0" if negative else ""


def _huge(tensor: Tensor) -> bool:
    low, high = tensor.aminmax()
    most = MOST_VALUE if tensor.is_floating_point() else MOST_COUNT
    return not (-most <= float(low) and float(high) <= most)
