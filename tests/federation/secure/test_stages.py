"""Messages as JSON: the same after a journey, and whatever else arrives is a FedsslError."""

import base64
import copy
import json
import random
from dataclasses import asdict, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedssl.core.errors import FedsslError
from fedssl.federation.secure.coordinator import Coordinator
from fedssl.federation.secure.member import RunRecord
from fedssl.federation.secure.stages import RoundCall, from_bytes, to_bytes
from tests.helpers.secure_parties import NAMES, Sum, call_to, make_members, random_vectors, restarted, roster_of


def one_of_each():
    """Every kind of message of a finished sum, and what a site remembers."""
    one = Sum(make_members(), random_vectors(NAMES)).share().upload(without=["turin"]).agree().unmask()
    member = one.members["berlin"]
    return one, [
        member.advertise(),
        one.call,
        one.shares["delft"],
        one.deliveries["berlin"],
        one.uploads["delft"],
        one.survivor_call,
        member.agree(one.survivor_call),
        one.unmask_call,
        one.unmaskings["delft"],
        member.record,
    ]


FINISHED, EACH = one_of_each()
KINDS = [type(message).__name__ for message in EACH]


@pytest.mark.parametrize("message", EACH, ids=KINDS)
def test_messages_and_records_survive_a_journey(message):
    assert from_bytes(type(message), to_bytes(message)) == message


def in_base64(content):
    return base64.urlsafe_b64encode(content).decode()


def from_tree(kind, tree):
    """A message from nested tables and lists with bytes in them, as its JSON brings it."""
    return from_bytes(kind, json.dumps(tree, default=in_base64).encode())


def tree_of(message):
    return _as_lists(asdict(message))


def _places(tree, path=()):
    """Every place in nested tables and lists."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in items:
        yield from _places(value, (*path, key))


def _as_lists(tree):
    if isinstance(tree, dict):
        return {key: _as_lists(value) for key, value in tree.items()}
    return [_as_lists(value) for value in tree] if isinstance(tree, list | tuple) else tree


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([*NAMES, "oslo", "../x", "\ud800", "a" * 65, "delft\n"]),
    st.binary(max_size=120),
    st.sampled_from([bytes(32), bytes(64), bytes(92), bytes(104)]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), st.binary(max_size=3), max_size=3),
)


def mutated(message, data):
    """The plain form with something else at one place, or without it, or with a bit flipped."""
    plain = tree_of(message)
    *above, last = data.draw(st.sampled_from([path for path in _places(plain) if path]))
    holder = plain
    for key in above:
        holder = holder[key]
    change = data.draw(st.sampled_from(["junk", "remove", "flip", "again"]))
    old = holder[last]
    if change == "remove":
        del holder[last]
    elif change == "again" and isinstance(holder, list):
        holder.append(copy.deepcopy(old))
    elif change == "flip" and isinstance(old, bytes) and old:
        at = data.draw(st.integers(0, len(old) - 1))
        holder[last] = old[:at] + bytes([old[at] ^ 1 << data.draw(st.integers(0, 7))]) + old[at + 1 :]
    else:
        holder[last] = data.draw(JUNK)
    return plain


def as_it_was_before(kind, record):
    """What a site remembered when such a message was due."""
    if kind == "KeyAdvert":
        return replace(record, adverts={}, secret=None)
    if kind == "RoundCall":
        return replace(record, secret=None, opened=())
    later = {"Delivery": {"delivery": None, "sent": b"", "survivors": ()}, "SurvivorCall": {"survivors": ()}}
    return replace(record, secret=replace(record.secret, **later.get(kind, {})))


def receivers(kind):
    """Who gets such a message in the middle of a sum, as it stands when this one is due."""
    one = FINISHED
    berlin = restarted(one.members["berlin"])
    berlin.record = as_it_was_before(kind, berlin.record)
    coordinator = Coordinator(roster_of(NAMES), one.call, 50)
    if kind in ("MaskedUpload", "Agreement", "Unmasking"):
        for share in one.shares.values():
            coordinator.take_shares(share)
        coordinator.deliveries()
    if kind in ("Agreement", "Unmasking"):
        for upload in one.uploads.values():
            coordinator.take_upload(upload)
        coordinator.survivor_call()
    vector = one.vectors["berlin"].copy()
    return {
        "KeyAdvert": lambda message: berlin.meet([message]),
        "RoundCall": berlin.share,
        "RoundShares": coordinator.take_shares,
        "Delivery": lambda message: berlin.mask(message, vector),
        "MaskedUpload": coordinator.take_upload,
        "SurvivorCall": berlin.agree,
        "Agreement": coordinator.take_agreement,
        "UnmaskCall": berlin.unmask,
        "Unmasking": coordinator.take_unmasking,
        "RunRecord": repr,
    }[kind]


@pytest.mark.parametrize("message", EACH, ids=KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_arrives_is_taken_or_a_fedssl_error(message, data):
    take = receivers(type(message).__name__)
    try:
        take(from_tree(type(message), mutated(message, data)))
    except FedsslError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("message", EACH, ids=KINDS)
def test_what_was_sent_is_taken(message):
    """So the fuzzing above is turned away by what it changed, and by nothing else."""
    receivers(type(message).__name__)(from_tree(type(message), tree_of(message)))


@pytest.mark.parametrize("message", EACH, ids=KINDS)
def test_bytes_with_errors_are_a_fedssl_error(message):
    draw, content = random.Random(0), to_bytes(message)
    for _ in range(100):
        broken = bytearray(content)
        broken[draw.randrange(len(broken))] = draw.randrange(256)
        cut = content[: draw.randrange(len(content))]
        for one in (bytes(broken), cut):
            try:
                from_bytes(type(message), one)
            except FedsslError as error:
                assert "\n" not in str(error)
        with pytest.raises(FedsslError, match="no readable"):
            from_bytes(type(message), cut)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"threshold": True}, "threshold"),
        ({"threshold": "3"}, "threshold"),
        ({"threshold": 2**60}, "threshold"),
        ({"names": []}, "names"),
        ({"names": ["a"] * 1001}, "names"),
        ({"names": ["../key"]}, "names"),
        ({"session": {"run": "", "round_number": 1, "attempt": 1}}, "session"),
        ({"session": {"run": "r", "round_number": 0, "attempt": 1}}, "session"),
        ({"more": 1}, ""),
    ],
)
def test_the_field_that_cannot_be_is_named(change, where):
    with pytest.raises(FedsslError, match=f"^secure aggregation: no readable RoundCall {where}".rstrip()):
        from_tree(RoundCall, tree_of(call_to()) | change)


def test_an_error_does_not_repeat_what_arrived():
    record = tree_of(FINISHED.members["berlin"].record)
    key = record["share_key"]
    with pytest.raises(FedsslError) as caught:
        from_tree(RunRecord, record | {"share_key": key + b"x"})
    assert repr(key)[2:-1] not in str(caught.value)
    assert in_base64(key) not in str(caught.value)


@pytest.mark.parametrize("rubbish", [None, 3, "text", b"bytes", [], {}, {"x": 1}])
@pytest.mark.parametrize("message", EACH, ids=KINDS)
def test_things_that_are_no_messages(message, rubbish):
    with pytest.raises(FedsslError, match=f"no readable {type(message).__name__}"):
        from_tree(type(message), rubbish)
