from collections import Counter

import pytest

from fedssl.federation.client_sampling import sample_clients


@pytest.mark.parametrize("per_round", [None, 5, 7])
def test_all_clients(per_round):
    assert sample_clients(5, per_round, seed=0, round_number=3) == [0, 1, 2, 3, 4]


def test_m_of_k_without_replacement_by_seed_and_round_alone():
    first = sample_clients(20, 5, seed=0, round_number=7)
    sample_clients(20, 5, seed=0, round_number=8)
    assert first == sample_clients(20, 5, seed=0, round_number=7)
    assert len(set(first)) == 5
    assert first == sorted(first)
    assert first != sample_clients(20, 5, seed=1, round_number=7)


def test_every_client_is_drawn_equally_often():
    counts = Counter(k for r in range(4000) for k in sample_clients(20, 5, seed=0, round_number=r))
    assert len(counts) == 20
    assert all(900 < count < 1100 for count in counts.values())  # 1,000 expected, sd 27
