"""One upload alone says nothing, and the server with t − 1 sites cannot open an honest one: attacks that try.

Masks are random: a right one is beyond a bound here once in 10^12 times.
"""

from itertools import combinations, product

import numpy as np
import pytest

from fedssl.federation.secure.keys import public_key
from fedssl.federation.secure.masks import add_stream, own_key, pair_key
from fedssl.federation.secure.member import commitment_to
from fedssl.federation.secure.shares import join, open_box, split
from fedssl.federation.secure.stages import to_bytes
from tests.helpers.secure_parties import NAMES, Sum, make_members, random_vectors, restarted

MANY = 2**17
CHI_SQUARE = (124.0, 452.0)  # of 255 degrees of freedom, 10^-12 on either side
LARGEST_CORRELATION = 7.2 / MANY**0.5
HONEST, BAD = ("berlin", "delft", "lyon"), ("porto", "turin")  # t − 1 of them are bad


def chi_square(numbers):
    counts = np.bincount(numbers.view(np.uint8), minlength=256)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


def looks_uniform(numbers):
    return CHI_SQUARE[0] < chi_square(numbers) < CHI_SQUARE[1]


def numbers_of(upload):
    return np.frombuffer(upload.vector, "<u4")


def real_looking(names=NAMES):
    """Small updates, as trained ones are: most of their bytes are 0 or 255."""
    draw = np.random.default_rng(0)
    return {name: draw.normal(0, 1000, MANY).astype(np.int32).view(np.uint32) for name in names}


def correlation(one, other):
    return abs(float(np.corrcoef(one.astype(np.float64), other.astype(np.float64))[0, 1]))


def test_bytes_of_an_upload_are_uniform_and_those_of_a_vector_are_not():
    one = Sum(make_members(), real_looking()).share().upload()
    assert not looks_uniform(one.vectors["berlin"])
    for upload in one.uploads.values():
        assert looks_uniform(numbers_of(upload))


def test_the_same_vector_in_another_round_or_attempt_is_unrelated():
    """The difference of two uploads of one vector would be 0 under one mask."""
    members, vectors = make_members(), real_looking()
    sums = [Sum(members, vectors, round_number=r, attempt=a).share().upload() for r, a in ((1, 1), (1, 2), (2, 3))]
    for one, other in combinations([numbers_of(each.uploads["berlin"]) for each in sums], 2):
        assert looks_uniform(one - other)
        assert correlation(one, other) < LARGEST_CORRELATION
        assert correlation(one, vectors["berlin"].view(np.int32)) < LARGEST_CORRELATION


def test_uploads_of_two_sites_are_unrelated():
    one = Sum(make_members(), dict.fromkeys(NAMES, real_looking()["berlin"])).share().upload()
    for first, second in combinations(one.uploads.values(), 2):
        assert looks_uniform(numbers_of(first) - numbers_of(second))


def shares_of(one, victim, sites):
    """What these sites hold of the victim's two secrets, by place."""
    places, opened = one.call.places(), {}
    for name in sites:
        member = one.members[name]
        box, about = one.shares[victim].boxes[name], one.call.box(victim, name)
        opened[places[name]] = open_box(member._box_key(victim), box, about)
    return opened


def opens(one, victim, candidate):
    """Whether this is one of the victim's secrets: the server can tell."""
    key = one.shares[victim].key
    return public_key(candidate) == key.mask_key or commitment_to(candidate) == key.commitment


def known_masks_removed(one, victim, seed=None, private=None):
    """The victim's upload without all masks that the bad sites and these secrets open."""
    found, about = numbers_of(one.uploads[victim]).copy(), one.call.masks(list(one.shares))
    if seed:
        add_stream(found, own_key(seed, about, victim), subtract=True)
    for peer in one.shares:
        if peer != victim and (private or peer in BAD):
            ours = private or one.members[peer].record.secret.mask_key
            theirs = one.shares[peer if private else victim].key.mask_key
            add_stream(found, pair_key(ours, theirs, about, victim, peer), subtract=victim < peer)
    return found


def test_the_server_and_t_minus_1_sites_cannot_open_an_honest_upload():
    """They know the sum, all seeds, all that travelled in two rounds, and everything the bad sites ever had."""
    members = make_members()
    before = Sum(members, real_looking()).share().upload().agree().unmask()
    one = Sum(members, real_looking(), round_number=2, attempt=2).share().upload().agree().unmask()
    assert (one.total() == one.expected()).all()
    seed = one.coordinator._seed("berlin")  # of a survivor the seed becomes known
    held = shares_of(one, "berlin", BAD)
    pieces = [[share[:32] for share in held.values()], [share[32:] for share in held.values()]]
    elsewhere = [share for name in NAMES for share in one.unmaskings[name].seeds.values()]
    elsewhere += [share for name in NAMES for share in before.unmaskings[name].seeds.values()]
    elsewhere += [share[32:] for victim in HONEST for share in shares_of(one, victim, BAD).values()]
    free = [place for place in one.call.places().values() if place not in held]
    for known in pieces:
        for used in range(1, len(known) + 1):  # with fewer than t, taken for a lower threshold
            for chosen in combinations(zip(held, known, strict=True), used):
                assert not opens(one, "berlin", join(dict(chosen), used))
    keys = dict(zip(held, pieces[1], strict=True))
    for place, guess in product(free[:1], elsewhere):  # with a share of something else as the one that is missing
        assert public_key(join(keys | {place: guess}, 3)) != one.shares["berlin"].key.mask_key
    rest = known_masks_removed(one, "berlin", seed=seed)
    assert looks_uniform(rest)
    assert looks_uniform(rest - one.vectors["berlin"])
    # One honest share more, and all is open: what is tried above is the right thing to try.
    more = {place: share[32:] for place, share in shares_of(one, "berlin", (*BAD, "lyon")).items()}
    private = join(more, 3)
    assert opens(one, "berlin", private)
    assert (known_masks_removed(one, "berlin", seed, private) == one.vectors["berlin"]).all()


def test_an_upload_that_comes_after_its_site_was_given_up_stays_closed():
    """Its pair masks are known by then; its own mask is not."""
    one = Sum(make_members(), real_looking()).share().upload(without=["berlin"]).agree().unmask()
    private = one.coordinator._mask_key("berlin")
    one.uploads["berlin"] = one.members["berlin"].mask(one.deliveries["berlin"], one.vectors["berlin"].copy())
    rest = known_masks_removed(one, "berlin", private=private)
    assert looks_uniform(rest)
    for threshold in (1, 2):
        held = {place: share[:32] for place, share in shares_of(one, "berlin", BAD).items()}
        assert not opens(one, "berlin", join(held, threshold))
    seed = one.members["berlin"].record.secret.seed
    assert (known_masks_removed(one, "berlin", seed, private) == one.vectors["berlin"]).all()


def test_a_recovered_key_opens_no_other_round():
    members, vectors = make_members(), real_looking()
    one = Sum(members, vectors).share().upload(without=["berlin"]).agree().unmask()
    private = one.coordinator._mask_key("berlin")
    later = Sum(members, vectors, round_number=2, attempt=2).share().upload().agree().unmask()
    seed = later.coordinator._seed("berlin")
    assert looks_uniform(known_masks_removed(later, "berlin", seed, private))


def test_fewer_shares_than_the_threshold_fit_every_secret():
    """For whatever 16 bytes one guesses there is a share that the missing site could hold."""
    shares = split(bytes(range(32)), 3, 5)
    known = {0: shares[0], 1: shares[1]}
    found = {join(known | {2: bytes([guess]) * 32}, 3) for guess in range(200)}
    assert len(found) == 200
    assert join({0: shares[0], 3: shares[3], 4: shares[4]}, 3) == bytes(range(32))


def test_no_secret_is_in_what_is_printed_or_travels():
    one = Sum(make_members(), random_vectors(NAMES)).share().upload()
    member = one.members["berlin"]
    secret = member.record.secret
    hidden = [secret.seed, secret.mask_key, secret.own_share, secret.sent, member.record.share_key]
    shown = repr(member.record) + repr(member.identity) + repr(one.uploads["berlin"])
    travelled = to_bytes(one.shares["berlin"]) + to_bytes(one.deliveries["delft"]) + to_bytes(member.advertise())
    for value in hidden:
        assert repr(value) not in shown
        assert value.hex() not in shown
        assert value not in travelled
    unmasking = one.agree().unmask().unmaskings["berlin"]
    assert repr(unmasking.seeds["delft"]) not in repr(unmasking)


def test_secrets_are_new_at_every_attempt_and_site():
    members, seen = make_members(), set()
    for attempt in (1, 2, 3):
        one = Sum(members, random_vectors(NAMES), attempt=attempt).share()
        for member in one.members.values():
            secret = restarted(member).record.secret
            seen |= {secret.seed, secret.mask_key}
    assert len(seen) == 3 * 2 * len(NAMES)


@pytest.mark.parametrize("length", [1, 3, 2**16 - 1, 2**16, 2**16 + 1])
def test_a_stream_is_that_of_its_key_whatever_the_length(length):
    whole, part = np.zeros(2**17, np.uint32), np.zeros(length, np.uint32)
    add_stream(whole, b"k" * 32)
    add_stream(part, b"k" * 32)
    assert (part == whole[:length]).all()
    add_stream(part, b"k" * 32, subtract=True)
    assert not part.any()
