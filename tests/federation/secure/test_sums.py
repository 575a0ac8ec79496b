"""The unmasked sum is the sum of the vectors, bit for bit, whoever drops out at whatever stage."""

import itertools
import os
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedssl.core.errors import FedsslError, RoundError
from fedssl.core.weights import Weights
from fedssl.federation.secure.fixed_point import decode, encode, layout_of
from fedssl.federation.secure.stages import usual_threshold
from tests.helpers.secure_parties import (
    NAMES,
    Sum,
    make_members,
    random_vectors,
    restarted,
    site_names,
    summed,
    tolerated,
)

STAGES = ("share", "upload", "agree", "unmask")
CASES = int(os.environ.get("SECURE_SUMS", "40"))  # `make soak` draws 1,000, of up to twenty sites
attempts = itertools.count(1)
met = {}


def new_round():
    number = next(attempts)
    return {"round_number": number, "attempt": number}


def members_of(count):
    """Sites meet once; every sum among them is another round."""
    if count not in met:
        met[count] = make_members(site_names(count))
    return met[count]


@settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_dropouts_at_any_stage(data):
    """As long as t are left at every stage."""
    count = data.draw(st.integers(2, 9 if CASES <= 40 else 20))
    names, threshold = site_names(count), data.draw(st.integers(count // 2 + 1, count))
    gone_at = {name: data.draw(st.sampled_from([*STAGES, ""])) for name in names}
    losable = [name for name in names if gone_at[name]][: count - threshold]
    one = Sum(members_of(count), random_vectors(names, seed=count), threshold, **new_round())
    left = set(names)
    for stage in STAGES:
        left -= {name for name in losable if gone_at[name] == stage}
        getattr(one, stage)(without=set(names) - left)
    assert (one.total() == one.expected()).all()
    assert set(one.uploads) == {name for name in names if name not in losable or gone_at[name] not in STAGES[:2]}


@pytest.mark.parametrize(("asked", "gone"), [(2, 0), (20, 0), (20, 6)])
def test_the_smallest_and_a_large_set(asked, gone):
    names = site_names(asked)
    one = Sum(members_of(asked), random_vectors(names), usual_threshold(asked), **new_round())
    one.share().upload(without=names[:gone]).agree().unmask()
    assert one.coordinator.dropped == names[:gone]
    assert (one.total() == one.expected()).all()


@pytest.mark.parametrize("stage", STAGES)
def test_fewer_than_the_threshold_end_the_round_and_nothing_is_learnt(stage):
    with pytest.raises(RoundError, match=r"2 of 5 sites .*, 3 are needed: nothing was learnt"):
        summed(**{stage: ("berlin", "lyon", "turin")}).total()


def test_the_average_of_weights_comes_out():
    """The whole way of a round: encode, mask, lose a client, unmask, decode."""
    origin = Weights({"w": torch.zeros(5)}, {"counter": torch.tensor(3)})
    layout = layout_of(origin, 5, 50, limit=4.0, statistics_limit=4.0, sums={"loss": 1000.0})
    trained = {name: origin.map(lambda _, t, k=k: t + k) for k, name in enumerate(NAMES)}
    vectors = {n: encode(layout, trained[n], origin, 10 * (k + 1), {"loss": 2.0}) for k, n in enumerate(NAMES)}
    one = Sum(make_members(), vectors).share().upload(without=["delft"]).agree().unmask()
    total = decode(layout, one.total(), origin)
    assert total.num_examples == 130
    assert total.sums == {"loss": pytest.approx(8.0, abs=1e-5)}
    expected = (0 * 10 + 2 * 30 + 3 * 40 + 4 * 50) / 130
    torch.testing.assert_close(total.weights.parameters["w"], torch.full((5,), expected), atol=1e-6, rtol=0)
    assert total.weights.buffers["counter"] == 3


def test_sites_that_are_stopped_between_any_two_stages_go_on_from_their_records():
    """And a question that is asked again gets the same answer."""
    members, vectors = make_members(), random_vectors(NAMES)
    one = Sum(members, vectors)
    for stage in STAGES:
        getattr(one, stage)(without=["porto"] if stage == "upload" else ())
        members.update({name: restarted(member) for name, member in members.items()})
    assert (one.total() == one.expected()).all()
    for name in one.survivor_call.survivors:
        assert members[name].share(one.call) == one.shares[name]
        assert members[name].mask(one.deliveries[name], vectors[name].copy()) == one.uploads[name]
        members[name].agree(one.survivor_call)
        assert members[name].unmask(one.unmask_call) == one.unmaskings[name]


def test_a_round_begun_anew_takes_a_new_attempt_and_may_have_another_vector():
    members = make_members()
    Sum(members, random_vectors(NAMES, seed=1)).share().upload()
    again = Sum(members, random_vectors(NAMES, seed=2), attempt=2).share().upload().agree().unmask()
    assert (again.total() == again.expected()).all()


def test_what_the_coordinator_does_not_take():
    one = Sum(make_members(), random_vectors(NAMES)).share().upload(without=["porto"])
    other = Sum(make_members(), random_vectors(NAMES), attempt=2).share().upload()
    late = one.members["porto"].mask(one.deliveries["porto"], one.vectors["porto"].copy())
    for take, message, why in (
        (one.coordinator.take_upload, late, "site porto: .* late or twice"),
        (one.coordinator.take_upload, one.uploads["lyon"], "site lyon: .* late or twice"),
        (one.coordinator.take_shares, one.shares["lyon"], "site lyon: .* late or twice"),
        (one.coordinator.take_upload, other.uploads["lyon"], "site lyon: a message of round 1, attempt 2 came in"),
        (one.coordinator.take_agreement, other.members["lyon"].agree(other.survivor_call), "attempt 2 came in"),
    ):
        with pytest.raises(FedsslError, match=why):
            take(message)
    short = Sum(make_members(), random_vectors(NAMES)).share()
    upload = short.members["lyon"].mask(short.deliveries["lyon"], np.zeros(49, np.uint32))
    with pytest.raises(FedsslError, match="site lyon: 196 bytes, expected 200"):
        short.coordinator.take_upload(upload)


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_shares_that_do_not_fit_are_noticed(kind):
    """Shamir's sharing has no checksum: without the commitment the sum would be noise."""
    one = Sum(make_members(), random_vectors(NAMES)).share().upload(without=["delft"]).agree().unmask()
    wrong = one.unmaskings["berlin"]
    victim = next(iter(getattr(wrong, kind)))
    getattr(wrong, kind)[victim] = bytes(32)
    with pytest.raises(RoundError, match=f"of site {victim} do not fit together"):
        one.total()


def test_thresholds():
    assert [usual_threshold(n) for n in (2, 3, 5, 10, 20)] == [2, 3, 4, 7, 14]
    for asked in range(2, 200):
        threshold = usual_threshold(asked)
        assert asked // 2 < threshold <= asked
        assert tolerated(asked, threshold) >= -(-asked // 3) - 1, "fewer than a third of the sites"


@pytest.mark.parametrize("who", ["site", "server"])
def test_memory_does_not_grow_with_the_number_of_sites(who):
    """Masks are made piece by piece: what is held at the most is the same for 3 and for 9 sites."""
    peaks = {}
    for count in (3, 9):
        one = Sum(members_of(count), random_vectors(site_names(count), length=2**20), count, **new_round()).share()
        name = site_names(count)[0]
        if who == "server":
            one.upload().agree().unmask()
        vector = one.vectors[name].copy()
        tracemalloc.start()
        if who == "site":
            one.members[name].mask(one.deliveries[name], vector)
        else:
            one.total()
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[9] < peaks[3] + 2**20, "a quarter of a vector"
