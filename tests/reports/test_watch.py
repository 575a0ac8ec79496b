"""The page to watch, without a browser: what it reads while a run is written, what it refuses, and whom it lets in."""

import http.client
import json
import os
import re
import socket
import time

import psutil
import pytest

from fedssl.core.errors import FedsslError
from fedssl.experiment.progress.live import LIVE, NotedView
from fedssl.experiment.progress.views import QuietView
from fedssl.reports.watch import WatchServer
from fedssl.reports.watched import Lines, Watched
from tests.helpers.faults import everything, experiment

NAME = "BYOL + FedEMA"
QUICK = {"rounds": 2, "evaluation.every": 1, "data.test_images": 10, "engine": "in-process"}
EVIL = "<img src=x onerror=alert(1)>'\""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch") / "run"
    experiment(NAME, **QUICK).run(folder)
    return folder


def record(number, **more):
    clients = [{"client": k, "n": 8, "loss": 1.0, "bytes_up": 5, "bytes_down": 7} for k in range(2)] if number else []
    return {"round": number, "clients": clients, "loss": 1.0 / (number + 1), "ema_share": 0.0} | more


@pytest.fixture
def going(tmp_path):
    """A run that goes on, written by hand: what its process would have noted."""
    (tmp_path / "config.toml").write_text(
        'rounds = 9\n[method]\nname = "byol"\n[update_rule]\nname = "fedema"\n[data]\nname = "sites"\n'
        f"[partition]\nname = 'iid'\n[flower]\nclients = ['north', {json.dumps(EVIL)}]\n"
    )
    (tmp_path / "rounds.jsonl").write_text(json.dumps(record(0)) + "\n" + json.dumps(record(1)) + "\n")
    view = NotedView(QuietView(), tmp_path)
    view.start("a run", 9, 100, 0)
    view.round_finished(record(0))
    view.round_finished(record(1))
    return tmp_path, view


def tile(now, label):
    return next(one for one in now.tiles if one.label == label)


def test_who_is_away_and_for_how_long_stands_first(going):
    folder, view = going
    view.presence({0: "working", 1: "away"})
    view.clients[1]["since"] -= 125
    view.written = 0.0
    view.waiting("waiting for somebody to come")
    now = Watched(folder, "run1").look()
    assert (now.state, now.done, now.rounds) == ("running", 1, 9)
    assert now.text.startswith("waiting for somebody to come")
    assert [(one.state, one.text, one.delivered) for one in now.clients] == [
        ("away", "away for 2 min 05 s", "round 1"),
        ("working", "at work for 0 s", "round 1"),
    ]
    assert now.clients[0].title == f"client 1 ({EVIL})"
    assert tile(now, "Loss").value == "0.500"
    assert tile(now, "Sent").value == "24 B"


def test_time_left_follows_from_the_rounds_of_this_process(going):
    folder, view = going
    view.facts |= {"began": time.time() - 60, "round_began": time.time() - 10, "done": 5, "began_with": 0}
    view._write()
    assert tile(Watched(folder, "run1").look(), "Time left").value == "30 s"  # 10 s a round, 4 left, 10 s of them over
    view.facts |= {"began": time.time() - 65, "round_began": time.time() - 15}
    view._write()
    assert tile(Watched(folder, "run1").look(), "Time left").value == "30 s", "a late round makes the others no shorter"
    view.facts |= {"began": time.time() - 150, "round_began": time.time() - 100}
    view._write()
    assert tile(Watched(folder, "run1").look(), "Time left").value == "–", "somebody is awaited: nobody knows how long"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"process_began": 1.0}, "stopped"),  # another process has its number now
        ({"pid": 2**22 + 1}, "stopped"),
        ({"host": "elsewhere"}, "running"),
        ({"host": "elsewhere", "time": 1.0}, "stopped"),
        ({"time": 1.0}, "running"),  # long at something that says nothing
        ({"ended": True}, "interrupted"),
    ],
)
def test_a_run_that_was_killed_is_not_said_to_go_on(going, change, state):
    folder, view = going
    view._write()
    (folder / LIVE).write_text(json.dumps(json.loads((folder / LIVE).read_text()) | change))
    now = Watched(folder, "run1").look()
    assert now.state == state
    assert all(bool(one.state) == (state == "running") for one in now.clients)
    assert psutil.Process().create_time() != 1.0


def test_lines_are_read_once_and_never_half(tmp_path):
    path = tmp_path / "x.jsonl"
    lines = Lines(path)
    assert lines.look() == []
    path.write_bytes(b'{"a": 1}\n{"a": 2')
    assert lines.look() == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b'2}\nrubbish \xff\n[1]\n{"a": 3}\n')
    assert lines.look() == [{"a": 1}, {"a": 22}, {"a": 3}]
    os.utime(path)
    path.with_name("new").write_bytes(b'{"a": 9}\n')
    path.with_name("new").replace(path)  # cut back, as a resumed run does
    assert lines.look() == [{"a": 9}]
    path.unlink()
    assert lines.look() == []


@pytest.mark.parametrize("name", ["config.toml", "rounds.jsonl", LIVE, "summary.json", "failures.jsonl"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b'{"round": 1}\n', b"[]", b'{"clients": 7, "pid": "x"}'])
def test_a_damaged_file_is_said_and_never_the_end_of_the_page(going, name, content):
    (going[0] / name).write_bytes(content)
    with WatchServer([going[0]]) as server:
        status, _, body = get(server, "/")
        assert status == 200
        assert "<h2" in body


def test_a_finished_run_has_its_curves_and_an_empty_folder_says_so(finished, tmp_path):
    run = Watched(finished, "run1")
    now = run.look()
    assert (now.state, now.done, now.rounds) == ("finished", 2, 2)
    summary = json.loads((finished / "summary.json").read_text())
    assert (now.tiles[0].label, now.tiles[0].value) == ("Verdict", summary["verdict"])
    assert [figure.id for figure in run.figures()] == ["run1-accuracy-accuracy", "run1-loss-loss", "run1-mu-mu"]
    assert run.figures() is run.figures(), "drawn once a round"
    assert Watched(tmp_path, "run2").look().what == "not begun yet"


def test_bits_do_not_depend_on_a_file_that_cannot_be_written(finished, tmp_path):
    (tmp_path / "run").mkdir()
    view = Refuses(tmp_path / "run")
    experiment(NAME, **QUICK).run(tmp_path / "run", view)
    assert view.refused
    assert everything(tmp_path / "run") == everything(finished)
    assert json.loads((finished / LIVE).read_text())["ended"]


class Refuses(QuietView):
    """Puts a folder where the file would be, as soon as there is a run folder."""

    def __init__(self, folder):
        self.folder, self.refused = folder, False

    def start(self, *about):
        (self.folder / LIVE).unlink(missing_ok=True)
        (self.folder / LIVE).mkdir()
        self.refused = True


# --- who gets in


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    return reply.status, dict(reply.headers), reply.read().decode()


def test_no_text_of_a_client_is_code(going):
    folder, view = going
    (folder / "failures.jsonl").write_text(
        json.dumps({"client_id": 1, "round_number": 1, "code": EVIL, "detail": EVIL, "time": EVIL}) + "\n"
    )
    view.presence({1: EVIL})
    view.say(EVIL)
    view._write()
    with WatchServer([folder]) as server:
        _, headers, page = get(server, "/")
        _, _, changes = get(server, "/now.json?have=")
    for text in (page, *(part["html"] for part in json.loads(changes)["parts"].values())):
        assert "<img" not in text
        assert not re.search(r"<[^>]*\son\w+=", text)
    assert "&lt;img src=x" in page
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"


def test_only_what_changed_is_sent_again(going):
    folder, _ = going
    with WatchServer([folder]) as server:
        parts = json.loads(get(server, "/now.json")[2])["parts"]
        assert set(parts) == {"run1-now", "run1-figures"}
        server.board._seen = float("-inf")
        (folder / "rounds.jsonl").open("a").write(json.dumps(record(2)) + "\n")
        have = ",".join(part["digest"] for part in parts.values())
        new = json.loads(get(server, f"/now.json?have={have}")[2])
        assert "2 of 9" in new["parts"]["run1-now"]["html"]
        assert "2/9" in new["title"]


@pytest.mark.parametrize("path", ["/config.toml", "/../config.toml", "/static/x", "//etc/passwd", "/now.json/x"])
def test_there_are_three_addresses_and_no_files(going, path):
    with WatchServer([going[0]]) as server:
        assert get(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(going, method):
    with WatchServer([going[0]]) as server:
        assert get(server, "/", method)[0] == 501


def test_another_name_for_this_machine_is_refused(going):
    """A page elsewhere whose name was made to point here must not read it."""
    with WatchServer([going[0]]) as server:
        assert get(server, "/now.json", Host="evil.example:80")[0] == 403
        assert get(server, "/now.json", Host="localhost:80")[0] == 200


def test_others_need_a_token(going):
    token = "a" * 15 + "7"
    for wrong in ({}, {"token": "short"}, {"token": "with spaces and more"}):
        with pytest.raises(FedsslError, match="--token"):
            WatchServer([going[0]], host="0.0.0.0", **wrong)
    with WatchServer([going[0]], host="0.0.0.0", token=token) as server:
        assert get(server, "/")[0] == get(server, "/now.json")[0] == get(server, f"/now.json?token={token}")[0] == 401
        assert get(server, "/?token=b")[0] == 401
        assert get(server, "/", Cookie="fedssl-watch=x")[0] == 401
        status, headers, _ = get(server, f"/?token={token}")
        assert (status, headers["Location"]) == (303, "./")
        assert "HttpOnly" in headers["Set-Cookie"]
        assert token not in headers["Set-Cookie"]
        cookie = headers["Set-Cookie"].split(";")[0]
        assert get(server, "/now.json", Cookie=cookie, Host="anything")[0] == 200


def test_what_cannot_be_served_is_said_in_a_line(going, tmp_path):
    with pytest.raises(FedsslError, match="there is no such folder"):
        WatchServer([tmp_path / "nothing"])
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(FedsslError, match=r"--port: .* name another"):
        WatchServer([going[0]], port=taken.getsockname()[1])
