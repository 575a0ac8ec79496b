"""A server or a peer that lies: every honest site refuses, says so, and names whom it is about."""

from dataclasses import replace

import numpy as np
import pytest

from fedssl.core.errors import FedsslError
from fedssl.federation.messages import ClientError
from fedssl.federation.secure.coordinator import Coordinator
from fedssl.federation.secure.keys import Identity, public_key
from fedssl.federation.secure.member import Member, new_record
from fedssl.federation.secure.stages import (
    Delivered,
    Delivery,
    KeyAdvert,
    RoundKey,
    Session,
    SurvivorCall,
    UnmaskCall,
    round_statement,
    usual_threshold,
)
from tests.helpers.secure_parties import (
    NAMES,
    Sum,
    call_to,
    identity,
    make_members,
    random_vectors,
    restarted,
    roster_of,
    tolerated,
)


def refuses(do, *arguments, about):
    with pytest.raises(ClientError, match=about) as caught:
        do(*arguments)
    assert caught.value.code in ("refused", "untrusted")


def begun(**settings):
    return Sum(make_members(), random_vectors(NAMES), **settings)


# --- keys of a run


def newcomer(name="berlin"):
    return Member(identity(name), roster_of(NAMES), new_record("run-1"))


def test_a_key_that_the_server_made_is_refused():
    """The server stands between two sites: it can sign, but not as delft."""
    forged = Member(Identity.new("delft"), {}, new_record("run-1")).advertise()
    refuses(newcomer().meet, [forged], about="site delft: its signature does not verify")
    swapped = replace(newcomer("delft").advertise(), share_key=public_key(b"s" * 32))
    refuses(newcomer().meet, [swapped], about="site delft: its signature does not verify")
    renamed = replace(newcomer("delft").advertise(), name="lyon")
    refuses(newcomer().meet, [renamed], about="site lyon: its signature does not verify")


def test_a_key_swapped_since_the_first_round_is_refused_even_if_that_site_signed_it():
    member = make_members()["berlin"]
    again = newcomer("delft").advertise()
    refuses(member.meet, [again], about="site delft: its key is not the one it had before")
    refuses(restarted(member).meet, [again], about="site delft: its key is not the one it had before")
    mine = newcomer("berlin").advertise()
    refuses(member.meet, [mine], about="site berlin: its key is not the one it had before")


def test_two_sites_of_one_name_a_stranger_and_another_run_are_refused():
    advert = newcomer("delft").advertise()
    refuses(newcomer().meet, [advert, advert], about="site delft: is named twice")
    stranger = Member(identity("oslo"), {}, new_record("run-1")).advertise()
    refuses(newcomer().meet, [stranger], about="site oslo: its public key is not here")
    old = Member(identity("delft"), {}, new_record("run-0")).advertise()
    refuses(newcomer().meet, [old], about="site delft: its key is for another run")
    relabelled = replace(old, run="run-1")
    refuses(newcomer().meet, [relabelled], about="site delft: its signature does not verify")


def test_nothing_is_kept_of_refused_keys():
    member, good = newcomer(), newcomer("lyon").advertise()
    refuses(member.meet, [good, replace(good, name="delft")], about="site delft")
    assert member.record.adverts == {}


def test_sites_may_join_later():
    member = newcomer()
    member.meet([newcomer("delft").advertise()])
    member.meet([newcomer("lyon").advertise()])
    assert member.share(call_to(("berlin", "delft", "lyon"), 2)).boxes.keys() == {"delft", "lyon"}


# --- the set of a round


@pytest.mark.parametrize(
    ("names", "threshold", "about"),
    [
        (("berlin", "delft", "delft"), 2, "site delft: is named twice"),
        (("berlin", "berlin"), 2, "site berlin: is named twice"),
        (("delft", "lyon"), 2, "site berlin is not among those asked"),
        (("berlin", "delft", "oslo"), 2, "site oslo: it has no key in this run"),
        (NAMES, 2, "5 sites with a threshold of 2: site berlin takes part in sums of 3 sites or more"),
        (NAMES, 6, "5 sites with a threshold of 6"),
        (("berlin", "delft"), 3, "2 sites with a threshold of 3"),
        (("berlin",), 1, "1 sites with a threshold of 1"),
    ],
)
def test_sets_in_which_nobody_can_hide(names, threshold, about):
    refuses(make_members()["berlin"].share, call_to(names, threshold), about=about)


def test_a_site_may_insist_on_a_larger_crowd():
    refuses(make_members(least=4)["berlin"].share, call_to(NAMES, 3), about="takes part in sums of 4 sites or more")
    refuses(make_members(least=4)["berlin"].share, call_to(NAMES[:3], 3), about="sums of 4 sites or more")
    assert make_members(least=4)["berlin"].share(call_to(NAMES, 4))


def test_stages_of_the_past_are_refused():
    one = begun().share().upload().agree().unmask()
    member = one.members["berlin"]
    refuses(member.share, call_to(NAMES, 4), about="round 1, attempt 1: came after attempt 1")
    later = Sum(one.members, one.vectors, round_number=2, attempt=2).share()
    refuses(member.share, one.call, about="round 1, attempt 1: came after attempt 2")
    refuses(member.share, call_to(round_number=3, attempt=2), about="round 3, attempt 2: came after attempt 2")
    zeros = np.zeros(50, np.uint32)
    for ask, what in (
        (lambda message: member.mask(message, zeros), one.deliveries["berlin"]),
        (member.agree, one.survivor_call),
        (member.unmask, one.unmask_call),
    ):
        refuses(ask, what, about=r"round 1, attempt 1: is not the one under way at site berlin \(round 2, attempt 2 is")
    relabelled = replace(one.deliveries["berlin"], session=later.call.session)
    refuses(member.mask, relabelled, zeros, about="site delft: its signature does not verify")
    refuses(member.share, call_to(run="run-2", attempt=9), about="is of another run")
    refuses(newcomer().agree, one.survivor_call, about="site berlin .none is")


def test_stages_out_of_order_are_refused():
    one = begun().share()
    survivors = SurvivorCall(one.call.session, NAMES)
    refuses(one.members["berlin"].agree, survivors, about="site berlin has sent nothing yet")
    one.upload()
    other = begun().share().upload().agree()
    refuses(
        one.members["berlin"].unmask, other.unmask_call, about="other secrets than those that site berlin agreed to"
    )


# --- shares and masks


def changed_share(one, receiver, sender, **changes):
    """A delivery in which one sender's share is another."""
    shares = one.deliveries[receiver].shares
    return Delivery(one.call.session, tuple(replace(s, **changes) if s.key.name == sender else s for s in shares))


def test_a_mask_key_that_the_server_swapped_is_refused():
    one = begun().share()
    key = one.shares["delft"].key
    for changes in (
        {"mask_key": public_key(b"s" * 32)},
        {"commitment": bytes(32)},
        {"signature": one.shares["lyon"].key.signature},
    ):
        delivery = changed_share(one, "berlin", "delft", key=replace(key, **changes))
        refuses(one.members["berlin"].mask, delivery, one.vectors["berlin"], about="site delft: its signature does not")


@pytest.mark.parametrize(("names", "threshold"), [(NAMES[:4], 3), (NAMES, 4)])
def test_sites_that_were_told_of_different_sets_or_thresholds_do_not_go_on(names, threshold):
    members = make_members()
    members["berlin"].share(call_to())
    others = [members[name].share(call_to(names, threshold)) for name in NAMES[1:4]]
    delivery = Delivery(call_to().session, tuple(Delivered(one.key, one.boxes["berlin"]) for one in others))
    refuses(
        members["berlin"].mask, delivery, np.zeros(50, np.uint32), about="site delft: its signature does not verify"
    )


def test_sites_that_were_told_of_different_training_do_not_go_on():
    members = make_members()
    members["berlin"].share(call_to())
    others = [members[name].share(call_to(common="1" * 64)) for name in NAMES[1:]]
    delivery = Delivery(call_to().session, tuple(Delivered(one.key, one.boxes["berlin"]) for one in others))
    refuses(
        members["berlin"].mask, delivery, np.zeros(50, np.uint32), about="site delft: its signature does not verify"
    )


def test_a_share_for_another_or_of_another_attempt_or_altered_is_refused():
    before = begun().share()
    one = Sum(before.members, before.vectors, attempt=2).share()
    good = one.shares["delft"].boxes["berlin"]
    for box in (
        one.shares["delft"].boxes["lyon"],
        one.shares["lyon"].boxes["berlin"],
        before.shares["delft"].boxes["berlin"],
        good[:-1] + bytes([good[-1] ^ 1]),
    ):
        delivery = changed_share(one, "berlin", "delft", box=box)
        refuses(one.members["berlin"].mask, delivery, one.vectors["berlin"], about="site delft: a share that does not")


def test_a_peer_whose_key_leads_to_no_secret_is_refused():
    """A point of low order, signed by the peer itself: the pair's masks would be known to all."""
    one = begun().share()
    commitment = one.shares["delft"].key.commitment
    signature = identity("delft").sign(round_statement(one.call, "delft", bytes(32), commitment))
    delivery = changed_share(one, "berlin", "delft", key=RoundKey("delft", bytes(32), commitment, signature))
    refuses(one.members["berlin"].mask, delivery, one.vectors["berlin"], about="site delft: a public key that leads to")
    advert = KeyAdvert("run-1", "delft", bytes(32), b"x" * 8)
    member = newcomer()
    member.meet([replace(advert, signature=identity("delft").sign(advert.statement()))])
    refuses(member.share, call_to(("berlin", "delft"), 2), about="site delft: a public key that leads to no secret")


def test_members_that_are_too_few_named_twice_or_were_not_asked_are_refused():
    one = begun().share()
    member, shares = one.members["berlin"], one.deliveries["berlin"].shares
    cut = Delivery(one.call.session, shares[:1])
    refuses(member.mask, cut, one.vectors["berlin"], about="shares of 2 sites only, the threshold is 3")
    twice = Delivery(one.call.session, (*shares[:2], shares[0]))
    refuses(member.mask, twice, one.vectors["berlin"], about="site delft: is named twice")
    echoed = Delivery(one.call.session, one.deliveries["delft"].shares)
    refuses(member.mask, echoed, one.vectors["berlin"], about="site berlin: is named twice")
    others = Sum({n: one.members[n] for n in NAMES[:4]}, one.vectors, attempt=2).share()
    wider = Delivery(others.call.session, (*others.deliveries["berlin"].shares, shares[-1]))
    refuses(
        member.mask, wider, one.vectors["berlin"], about="site turin: is not among those asked in round 1, attempt 2"
    )


def test_a_second_vector_or_a_second_set_under_one_attempt_is_refused():
    one = begun().share().upload()
    for member in (one.members["berlin"], restarted(one.members["berlin"])):
        vector = one.vectors["berlin"].copy()
        vector[7] += 1
        unchanged = vector.copy()
        refuses(member.mask, one.deliveries["berlin"], vector, about="another vector than the one that was masked")
        assert (vector == unchanged).all()
        fewer = Delivery(one.call.session, one.deliveries["berlin"].shares[1:])
        refuses(member.mask, fewer, one.vectors["berlin"].copy(), about="other shares than before")


# --- survivors


def test_survivors_that_cannot_be_are_refused():
    one = begun().share(without=["turin"]).upload()
    member = one.members["berlin"]
    for survivors, about in (
        (("berlin",), "1 of 4 sites are said to be left, the threshold is 3"),
        (("berlin", "delft"), "2 of 4 sites are said to be left"),
        (("berlin", "delft", "delft"), "site delft: is named twice"),
        (("delft", "lyon", "porto"), "site berlin is said to have dropped out, and is asked to help"),
        (("berlin", "delft", "turin"), "site turin: is said to have delivered .*, but never shared"),
        (("berlin", "delft", "oslo"), "site oslo: is said to have delivered .*, but never shared"),
    ):
        refuses(member.agree, SurvivorCall(one.call.session, survivors), about=about)


def test_a_site_agrees_to_one_set_of_survivors_only():
    one = begun().share().upload().agree()
    for member in (one.members["berlin"], restarted(one.members["berlin"])):
        fewer = SurvivorCall(one.call.session, NAMES[:4])
        refuses(member.agree, fewer, about="site turin: delivered and dropped out in round 1, attempt 1")


def test_a_request_for_both_secrets_of_one_site_is_refused():
    one = begun().share().upload(without=["turin"]).agree()
    for name, member in one.members.items():
        if name != "turin":
            both = replace(one.unmask_call, dropped=("turin", "delft"))
            refuses(member.unmask, both, about="site delft: the server asks for both of its secrets")


def test_requests_for_others_than_agreed_are_refused():
    one = begun().share().upload(without=["turin"]).agree()
    call, member = one.unmask_call, one.members["berlin"]
    for changes in (
        {"survivors": NAMES, "dropped": ()},
        {"survivors": NAMES[:3], "dropped": ("porto", "turin")},
        {"dropped": ()},
        {"dropped": ("turin", "turin")},
        {"dropped": ("oslo",)},
    ):
        refuses(member.unmask, replace(call, **changes), about="other secrets than those that site berlin agreed to")


def test_nobody_answers_before_t_sites_agreed():
    one = begun().share().upload(without=["turin"]).agree()
    call, member = one.unmask_call, one.members["berlin"]
    few = replace(call, agreements={name: call.agreements[name] for name in NAMES[:2]})
    refuses(member.unmask, few, about="2 sites agree about who is left, the threshold is 3")
    forged = replace(call, agreements=call.agreements | {"delft": call.agreements["lyon"]})
    refuses(member.unmask, forged, about="site delft: its signature does not verify")
    dead = replace(call, agreements=call.agreements | {"turin": call.agreements["lyon"]})
    refuses(member.unmask, dead, about="site turin: agrees to survivors it is not one of")


def test_a_server_that_tells_sites_of_different_survivors_gets_no_share():
    """Each site is told of two dropouts, none of too many; put together they would leave a sum of two."""
    one = begun().share().upload()
    told = {
        "berlin": ("berlin", "delft", "lyon"),
        "delft": ("berlin", "delft", "lyon"),
        "lyon": ("lyon", "porto", "turin"),
        "porto": ("berlin", "delft", "porto"),
        "turin": ("berlin", "delft", "turin"),
    }
    words = {n: one.members[n].agree(SurvivorCall(one.call.session, told[n])).signature for n in NAMES}
    for name in NAMES:
        dropped = tuple(sorted(set(NAMES) - set(told[name])))
        claims = {other: words[other] for other in told[name]}
        call = UnmaskCall(one.call.session, told[name], dropped, claims)
        refuses(one.members[name].unmask, call, about=r"site \w+: its signature does not verify")
        own_view = {other: words[other] for other in claims if told[other] == told[name]}
        refuses(one.members[name].unmask, replace(call, agreements=own_view), about="the threshold is 3")


# --- the server has an eye on sites, too


def test_what_a_bad_site_sends_is_refused_by_the_server_with_its_name():
    members = make_members()
    good = {name: member.share(call_to()) for name, member in members.items()}
    coordinator = Coordinator(roster_of(NAMES), call_to(), 50)
    delft = good["delft"]
    for message, about in (
        (replace(delft, key=replace(delft.key, mask_key=bytes(32))), "site delft: its signature does not verify"),
        (replace(delft, boxes={"berlin": delft.boxes["berlin"]}), "site delft: shares for others than those asked"),
        (replace(delft, session=Session("run-1", 1, 9)), "site delft: a message of round 1, attempt 9"),
        (replace(delft, key=replace(delft.key, name="oslo")), "site oslo: .* in which it has no part"),
    ):
        with pytest.raises(FedsslError, match=about):
            coordinator.take_shares(message)
    one = begun().share().upload(without=["turin"]).agree()
    answer = one.members["delft"].unmask(one.unmask_call)
    for changes in ({"seeds": {}}, {"keys": {}}, {"keys": answer.keys | {"lyon": bytes(32)}}):
        with pytest.raises(FedsslError, match="site delft: other shares than those asked"):
            one.coordinator.take_unmasking(replace(answer, **changes))
    with pytest.raises(FedsslError, match=r"site turin: .* in which it has no part"):
        one.coordinator.take_unmasking(replace(answer, name="turin"))


def test_with_the_usual_threshold_a_lying_server_and_its_helper_cannot_have_both_secrets():
    """Turin helps and signs whatever it is asked to: the seed of berlin can be had, but then not its key as well."""
    threshold = usual_threshold(len(NAMES))
    assert (threshold, tolerated(len(NAMES), threshold)) == (4, 2)
    one = begun(threshold=threshold).share().upload()
    session, without_berlin = one.call.session, NAMES[1:]
    words = {n: one.members[n].agree(SurvivorCall(session, NAMES)).signature for n in NAMES[:3]}
    words["turin"] = identity("turin").sign(one.call.survivors(list(NAMES), list(NAMES)))
    for name in NAMES[:3]:
        assert "berlin" in one.members[name].unmask(UnmaskCall(session, NAMES, (), words)).seeds
        refuses(one.members[name].agree, SurvivorCall(session, without_berlin), about="site berlin")
    others = {"porto": one.members["porto"].agree(SurvivorCall(session, without_berlin)).signature}
    others["turin"] = identity("turin").sign(one.call.survivors(list(NAMES), list(without_berlin)))
    call = UnmaskCall(session, without_berlin, ("berlin",), others)
    refuses(one.members["porto"].unmask, call, about="2 sites agree about who is left, the threshold is 4")
