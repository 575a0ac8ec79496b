import math
import os
import signal

import pytest

from fedssl.experiment.progress.stopping import StoppableView, StopRequest
from fedssl.experiment.progress.views import QuietView


class Recorder(QuietView):
    def __init__(self):
        self.seen = []

    def progress(self, text, done, total, client=None, images=0):
        self.seen.append(f"{text} {done}/{total}" if client is None else (text, done, total, client, images))

    def waiting(self, text):
        self.seen.append(text)

    def begin(self, text, pieces):
        self.seen.append(f"{pieces} pieces of {text}")

    def advance(self, by=1, text=""):
        self.seen.append(f"{by} more")

    def start(self, title, rounds, steps, done):
        self.seen.append(title)

    def round_finished(self, record):
        self.seen.append(record)

    def say(self, text):
        self.seen.append(text)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_waits_for_a_safe_point_and_the_second_does_not(sent, code):
    before = signal.getsignal(sent)
    with StopRequest() as request:
        os.kill(os.getpid(), sent)
        assert request.exit_code == code
        with pytest.raises(KeyboardInterrupt):
            request.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), sent)
    assert signal.getsignal(sent) is before


def test_view_passes_everything_on_and_stops_between_batches_and_rounds():
    inner, request = Recorder(), StopRequest()
    with StoppableView(inner, request) as view:
        view.progress("images", 1, 2)
        view.waiting("for one")
        view.begin("report", 3)
        view.advance()
        view.start("a", 1, 2, 0)
        view.progress("training", 1, 2, client=0, images=8)
        view.round_finished({"round": 1})
        view.say("b")
        request.signal = signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            view.progress("images", 2, 2)
        with pytest.raises(KeyboardInterrupt):
            view.progress("training", 2, 2, client=0, images=16)
        with pytest.raises(KeyboardInterrupt):
            view.waiting("for two")
        with pytest.raises(KeyboardInterrupt):
            view.advance(2)
        with pytest.raises(KeyboardInterrupt):
            view.round_finished({"round": 2})
    assert inner.seen == [
        *("images 1/2", "for one", "3 pieces of report", "1 more", "a", ("training", 1, 2, 0, 8), {"round": 1}, "b"),
        *("images 2/2", ("training", 2, 2, 0, 16), "for two", "2 more", {"round": 2}),
    ]


def test_the_first_signal_stops_at_once_where_none_is_held_back():
    with StopRequest(held_back=0) as request, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert request.exit_code == 143


def test_no_signal_stops_anything_where_all_are_held_back():
    with StopRequest(held_back=math.inf) as request:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            os.kill(os.getpid(), number)
    assert request.signal == signal.SIGTERM, "the first one asked"
