"""The stopwatch adds up parts, and switched off it does nothing."""

import time

import pytest

from fedssl.core.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by one second whenever it is read."""
    ticks = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    return Stopwatch(on=True)


def test_parts_are_added_up(clock):
    for name in ("steps", "augment", "steps"):
        with clock.part(name):
            pass
    assert clock.seconds == {"steps": 2.0, "augment": 1.0}


def test_taken_starts_anew(clock):
    with clock.part("steps"):
        pass
    assert clock.taken() == {"steps": 1.0}
    assert clock.taken() == {}


def test_switched_off_it_never_looks_at_the_clock(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("read the clock"))
    clock = Stopwatch(on=False)
    with clock.part("steps"):
        pass
    assert clock.taken() == {}


def test_waits_for_a_gpu_at_both_ends_of_a_part(monkeypatch):
    import torch

    waits = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    device = torch.device("cuda", 1)
    with Stopwatch(on=True, device=device).part("steps"):
        assert waits == [device]
    assert waits == [device, device]
