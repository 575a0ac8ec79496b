"""Processes that are watched, addresses that are checked, waits that end."""

import socket
import sys
import time
from contextlib import contextmanager

import pytest

from fedssl.core.errors import FedsslError, RoundError
from fedssl.deployment.supervision import (
    Patience,
    environment,
    is_loopback,
    marked,
    reachable,
    refuse_insecure,
    running,
    split_address,
)
from tests.helpers.ports import free_port


@contextmanager
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server
        server.close()


def test_an_address_is_a_host_and_a_port():
    assert split_address("fl.example.org:9092") == ("fl.example.org", 9092)
    assert split_address("[::1]:80") == ("::1", 80)
    for wrong in ("fl.example.org", ":9092", "host:", "host:0", "host:65536", "host:port"):
        with pytest.raises(FedsslError, match="expected an address"):
            split_address(wrong)


def test_insecure_stays_on_this_machine_unless_somebody_insists():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "127.8.8.8")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "example.org", "::")] == [False] * 4
    refuse_insecure("127.0.0.1", forced=False)
    refuse_insecure("10.0.0.1", forced=True)
    with pytest.raises(FedsslError, match=r"--insecure: 10\.0\.0\.1 is not this machine"):
        refuse_insecure("10.0.0.1", forced=False)


def test_who_does_not_answer_is_tried_again_and_who_speaks_no_tls_is_an_error(tmp_path):
    assert reachable("127.0.0.1", free_port(), None) == "Connection refused"
    with listening() as server:
        assert reachable("127.0.0.1", server.getsockname()[1], None) == ""


def test_a_wait_is_bounded_and_says_for_whom(monkeypatch):
    said = []
    patience = Patience(0.05, said.append)
    patience.wait("waiting for north", pause=0.06)
    with pytest.raises(RoundError, match="waiting for north: given up after 0 s"):
        patience.wait("waiting for north", pause=0.06)
    assert said == ["waiting for north (0 of 0.05 s)"]
    patience.renew()
    patience.wait("waiting for south", pause=0.0)
    assert said[-1] == "waiting for south (0 of 0.05 s)"


def test_a_process_is_ended_with_its_block_and_its_words_are_kept(tmp_path):
    program = "import sys, time; print('first'); print('last', flush=True); time.sleep(600)"
    (tmp_path / "log").write_text("of an earlier one\n")
    with running([sys.executable, "-c", program], tmp_path / "log", tmp_path) as child:
        deadline = time.monotonic() + 300
        while "last" not in child.output():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert not child.ended
    assert child.ended
    assert child.last_lines() == "first / last"
    assert (tmp_path / "log").read_text().startswith("of an earlier one")


def test_the_last_words_of_a_process_do_not_steer_the_terminal(tmp_path):
    program = r"print('\x1b[32mgreen\x1b[0m'); print('\x1b]0;title\x07 and \x1b[2J')"
    with running([sys.executable, "-c", program], tmp_path / "log", tmp_path) as child:
        child.process.wait()
    assert child.last_lines() == r"green / \x1b]0;title\x07 and \x1b[2J"


def test_a_process_that_will_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("fedssl.deployment.supervision.END_LIMIT", 0.2)
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    with running([sys.executable, "-c", program], tmp_path / "log", tmp_path) as child:
        while "deaf" not in child.output():
            time.sleep(0.05)
    assert child.process.returncode == -9


def test_what_a_killed_process_left_behind_is_ended_too(tmp_path):
    orphan = "import os, time; os.setsid(); print('orphan', os.getpid(), flush=True); time.sleep(600)"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {orphan!r}]); time.sleep(600)"
    with running([sys.executable, "-c", program], tmp_path / "log", tmp_path) as child:
        while "orphan" not in child.output():
            time.sleep(0.05)
        pid = int(child.output().split()[1])
        child.process.kill()
        child.process.wait()
        assert [one.pid for one in marked(child.mark)] == [pid]
    deadline = time.monotonic() + 300
    while marked(child.mark):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_flower_is_quiet_and_keeps_its_files_with_ours(tmp_path):
    found = environment(tmp_path)
    assert (found["FLWR_TELEMETRY_ENABLED"], found["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert found["FLWR_HOME"] == str(tmp_path)
