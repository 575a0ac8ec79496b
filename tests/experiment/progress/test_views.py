import io
import re
from functools import partial

import pytest
from rich.console import Console

from fedssl.core.names import client_title
from fedssl.experiment.progress import views
from fedssl.experiment.progress.health import RunWarnings
from fedssl.experiment.progress.views import LiveView, PlainView, make_view
from fedssl.experiment.records import environment
from fedssl.experiment.records.environment import describe_environment
from fedssl.federation.model_communication import UPDATE_RULES


def record(number, **clients):
    return {
        "round": number,
        "loss": 1.25,
        "mu": 0.5,
        "knn": 0.345,
        "images_per_second": 1234.5,
        "clients": [{"client": 0, "feature_std": 0.5, **clients}],
    }


# --- warnings --------------------------------------------------------------------------------------------------------


def test_warns_once_when_mu_has_been_one_for_five_rounds():
    warnings = RunWarnings(partial(client_title, names=[]))
    found = [warnings.check(record(number, mu=1.0)) for number in range(1, 9)]
    assert [len(texts) for texts in found] == [0, 0, 0, 0, 1, 0, 0, 0]
    assert "client 0: mu has been 1 for 5 rounds" in found[4][0]


@pytest.mark.parametrize(
    ("rule", "remedy"),
    [
        ("fedema", r" \(smaller update_rule\.tau or scale, or between = 'before-after'\)"),
        ("constant-mu", r" \(smaller update_rule\.mu_encoder\)"),
        ("replace", ""),
    ],
)
def test_what_helps_a_deaf_client_is_said_by_the_rule(rule, remedy):
    warnings = RunWarnings(str, mu_remedy=UPDATE_RULES[rule].mu_remedy)
    texts = [text for number in range(1, 6) for text in warnings.check(record(number, mu=1.0))]
    assert len(texts) == 1
    assert re.search(rf"it ignores the global model{remedy}$", texts[0])


def test_a_round_below_one_starts_the_count_again():
    warnings = RunWarnings(partial(client_title, names=[]))
    mus = [1.0] * 4 + [0.99] + [1.0] * 4
    assert [warnings.check(record(number, mu=mu)) for number, mu in enumerate(mus)] == [[]] * 9


def test_warns_of_collapse_with_round_and_client():
    warnings = RunWarnings(partial(client_title, names=[]))
    assert warnings.check(record(1)) == []
    (text,) = warnings.check(record(2, feature_std=0.01))
    assert "client 0" in text
    assert "round 2" in text
    assert warnings.check(record(3, feature_std=0.01)) == []


# --- progress --------------------------------------------------------------------------------------------------------


def test_plain_lines(capsys):
    with PlainView() as view:
        view.start("a run", 2, 10, 0)
        view.round_finished({"round": 0, "clients": [], "knn": 0.1})
        view.progress("training", 1, 5, client=0, images=8)
        view.round_finished(record(1))
        view.round_finished(record(2))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a run"
    assert lines[1] == "round 0/2  kNN 10.0 %"
    assert lines[2] == "round 1/2  loss 1.2500  mu 0.500  kNN 34.5 %  1,234 images/s  0:00 left"
    assert lines[3].startswith("round 2/2")


def test_time_left_counts_only_the_rounds_of_this_process(capsys, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fedssl.experiment.progress.views.time.monotonic", lambda: now[0])
    view = PlainView()
    view.start("a run", 10, 10, 6)
    now[0] += 30
    view.round_finished(record(7))
    assert "1:30 left" in capsys.readouterr().out


def test_live_view_shows_round_client_speed_and_time_left():
    screen = io.StringIO()
    with LiveView(Console(file=screen, force_terminal=True, width=160)) as view:
        view.start("a run", 2, 4, 0)
        view.progress("training", 1, 2, client=3, images=8)
        view.progress("training", 2, 2, client=3, images=16)
        view.bars.refresh()
        view.progress("features", 5, 9)
        view.bars.refresh()
        view.round_finished(record(1))
        view.say("warning: something")
    shown = screen.getvalue()
    for text in (
        "a run",
        "features",
        "5/9",
        "client 3",
        "step 2/2",
        "images/s",
        "kNN 34.5 %",
        "50 %",
        "round 2/2",
        "warning: something",
    ):
        assert text in shown


@pytest.fixture
def now(monkeypatch):
    """The time of a plain view, to be set."""
    seconds = [0.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize(("in_bytes", "line"), [(False, "11,000 of 22,000"), (True, "11.0 kB of 22.0 kB")])
def test_plain_view_says_now_and_then_how_far_the_images_are(capsys, now, in_bytes, line):
    view = PlainView(in_bytes=in_bytes)
    for second in range(22):
        now[0] = float(second)
        view.progress("decoding images", 1000 * second, 22_000)
    view.progress("quick work", 1, None)
    assert capsys.readouterr().out == f"decoding images: {line}, 0:11 left\n"


def test_work_of_the_same_name_begins_again_when_less_of_it_is_done(capsys, now):
    """Training images first, then test images: the time left is that of the second."""
    view = PlainView()
    for second, done in ((0, 0), (9, 100), (10, 0), (25, 50)):
        now[0] = float(second)
        view.progress("decoding images", done, 100)
    assert capsys.readouterr().out == "decoding images: 50 of 100, 0:15 left\n"


def test_a_size_that_nobody_knows_has_no_time_left(capsys, now):
    view = PlainView()
    for second in (0, 11):
        now[0] = float(second)
        view.progress("npm pack", second, None)
    assert capsys.readouterr().out == "npm pack: 11\n"


def test_pieces_have_a_line_when_much_time_is_left(capsys, now):
    view = PlainView()
    view.begin("evaluation", 4)
    for seconds in (20, 30, 30):
        now[0] = float(seconds)
        view.advance()
    assert capsys.readouterr().out.splitlines() == [
        "1 of 4 done, about 1:00 left",
        "2 of 4 done, about 0:30 left",
    ]


def test_a_text_is_said_once_however_often_a_queue_looks(capsys, now):
    view = PlainView()
    view.begin("runs", 8.0)
    for text in ("1 of 3 runs, 1 at work", "1 of 3 runs, 1 at work", "2 of 3 runs, 1 at work"):
        now[0] += 60
        view.advance(1.0, text)
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3 runs, 1 at work, about 7:00 left",
        "2 of 3 runs, 1 at work, about 5:00 left",
    ]


def test_live_view_has_a_bar_for_the_images():
    screen = io.StringIO()
    with LiveView(Console(file=screen, force_terminal=True, width=120)) as view:
        for text in ("decoding images", "decoding images"):  # training, then test images
            for done in (0, 5, 10):
                view.progress(text, done, 10)
        [task] = view.bars.tasks
        assert (task.completed, task.finished) == (10, True)
        view.bars.refresh()
        view.start("a run", 1, 1, 0)
    assert "decoding images" in screen.getvalue()
    assert "10/10" in screen.getvalue()


def test_live_view_has_a_bar_over_all_pieces_and_says_what_was_found():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveView(console) as view:
        view.begin("evaluation", 2)
        view.bars.refresh()
        view.progress("global: linear-probe, seed 0", 2, 200)
        view.say("80.00 % of 10 test images")
        view.advance()
        view.bars.refresh()
        assert [task.percentage for task in view.bars.tasks] == [50, 1]
    text = console.file.getvalue()
    for words in ("evaluation", "1 of 2 done", "global: linear-probe, seed 0", "2/200", "80.00 % of 10 test images"):
        assert words in text


def test_live_view_shows_bytes_in_a_unit_that_reads_well():
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with LiveView(console, in_bytes=True) as view:
        view.progress("downloading x", 3_000_000, 170_000_000)
        view.progress("npm pack x", 0, None)
        assert view.bars.tasks[-1].fields["amount"] == "0 B/?"
        view.progress("downloading x", 3_000_000, 170_000_000)
        view.bars.refresh()
    assert "3.0 MB/170.0 MB" in console.file.getvalue()


def test_live_view_shows_who_is_awaited_and_then_goes_on():
    with LiveView(Console(file=io.StringIO(), force_terminal=True, width=120)) as view:
        view.start("a run", 2, 4, 0)
        for text in ("waiting for [b]: 1 s", "waiting for [b]: 2 s"):
            view.waiting(text)
            assert view.bars.tasks[-1].description == text
        view.progress("training", 1, 2, client=0, images=8)
        assert [task.description for task in view.bars.tasks] == ["round 1/2", "client 0"]


def test_views_show_the_spread_where_there_is_no_accuracy(capsys):
    view = PlainView()
    view.start("a run", 2, 10, 0)
    view.round_finished({"round": 0, "clients": [], "backbone_std": 0.1234})
    assert capsys.readouterr().out.splitlines()[1] == "round 0/2  spread of features 0.123"


def test_view_is_plain_when_not_a_terminal(capsys):
    assert isinstance(make_view(), PlainView)


# --- environment -----------------------------------------------------------------------------------------------------


def test_environment_without_git_or_cpuinfo(monkeypatch):
    import torch

    monkeypatch.setattr(environment.subprocess, "run", lambda *a, **k: (_ for _ in ()).throw(OSError("no git")))
    monkeypatch.setattr(environment.platform, "processor", lambda: "a chip")
    monkeypatch.setattr(environment, "PACKAGES", ("fedssl", "no-such-package"))
    for name in ("_git_commit", "_cpu_name"):  # without what an earlier test was told
        monkeypatch.setattr(environment, name, getattr(environment, name).__wrapped__)
    found = describe_environment(torch.device("cpu"))
    assert found["git_commit"] is None
    assert found["packages"]["no-such-package"] is None
    assert found["cpu"]


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65, "1:05"), (3665, "1:01:05")])
def test_durations(seconds, text):
    from fedssl.experiment.progress.views import _duration

    assert _duration(seconds) == text


def test_a_text_of_somebody_elses_is_shown_as_it_is_and_does_not_end_the_view():
    screen = io.StringIO()
    with LiveView(Console(file=screen, width=120)) as view:
        view.say("warning: client 1: rejected (payload [/b][red]: nothing is shared)")
    assert "[red]" in screen.getvalue()
