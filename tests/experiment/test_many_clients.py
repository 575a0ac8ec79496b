"""The simulation of a round's length with many clients: cases that can be computed by hand."""

import pytest

from benchmarks.scale import MODEL, Clients, Server, Way, most_clients, round_seconds, seconds_of, shared_link


def test_two_transfers_share_a_link_and_none_is_faster_than_its_own():
    # 10 bytes each over 2 a second: the first alone for 2 s (4 bytes), both share 1 a second each; the first has 6 left
    # and ends at 8; the second then has 4 left, alone at 2 a second: 10.
    assert shared_link([0.0, 2.0], 10.0, 2.0, 100.0) == pytest.approx([8.0, 10.0])
    assert shared_link([0.0, 2.0], 10.0, 100.0, 2.0) == pytest.approx([5.0, 7.0])
    assert shared_link([], 10.0, 2.0, 2.0) == []


def test_a_round_is_down_training_up_and_averaging():
    server, alike = (
        Server(throughput=10e6, averaging=1.0, fixed=3.0),
        Clients(link=10e6, train_median=60.0, train_sigma=0.0),
    )
    # One client: 15.4 s down, 60 s training, 15.4 s up, 1 s averaging, 3 s fixed.
    assert round_seconds(1, MODEL, server, alike) == pytest.approx(15.4 + 60 + 15.4 + 1 + 3)
    # Two that are done at the same time share the link: twice as long each way, and two averages.
    assert round_seconds(2, MODEL, server, alike) == pytest.approx(2 * 15.4 + 60 + 2 * 15.4 + 2 + 3)
    # A quarter of the bytes is a quarter of the transfers and of the averaging.
    assert round_seconds(1, MODEL / 4, server, alike) == pytest.approx((15.4 + 15.4 + 1) / 4 + 60 + 3)


def test_sampling_caps_a_round_and_two_levels_divide_it():
    server, sites = Server(), Clients()
    sampled = Way("ten", lambda clients: min(clients, 10))
    everybody = Way("all", lambda clients: clients)
    assert seconds_of(sampled, 1000, server, sites) == seconds_of(sampled, 10, server, sites)
    divided = Way("two levels", lambda clients: clients, two_level=True)
    assert seconds_of(divided, 10_000, server, sites) < seconds_of(everybody, 10_000, server, sites) / 10
    assert most_clients(sampled, server, sites, 3600.0) == 1_000_000
    most = most_clients(everybody, server, sites, 3600.0)
    assert seconds_of(everybody, most, server, sites) <= 3600.0 < seconds_of(everybody, 2 * most, server, sites)
