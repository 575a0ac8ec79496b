"""Server and hospitals as separate processes with TLS and keys: kills, strangers, and the same bits in the end."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedssl.deployment import APP
from fedssl.deployment.consent import spelled
from fedssl.deployment.supervision import environment
from tests.helpers.audited import verified
from tests.helpers.deployed import (
    LIMIT,
    NAMES,
    SETTINGS,
    Federation,
    child_of,
    free_port,
    kill,
    power_cut,
    write_images,
)

pytestmark = pytest.mark.flower
THREE = [*NAMES, "hospital-c"]
SECURE = {"aggregation.secure": True, "aggregation.secure_max_examples": 1000, "update_rule.lambda_at": "client"}
EXAMPLE = Path(__file__).parents[2] / "examples/deployment/run_on_loopback.sh"


def run_example(folder, names, rounds, **given):
    for number, name in enumerate(names):
        write_images(folder / "sites" / name, number)
        shutil.copytree(folder / "sites" / name, folder / name / "images")
    words = " ".join(f"--set {key}={value}" for key, value in SETTINGS.items())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "SETTINGS": words} | given
    command = [str(EXAMPLE), str(folder), str(rounds), str(free_port())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    federation = Federation(folder, rounds, names)
    assert done.returncode == 0, done.stdout + done.stderr + federation.story()
    return federation


def test_the_secure_variant_of_the_guide_ends_with_the_bits_of_one_process(tmp_path):
    """TLS, three hospitals that compare a roster, one round: the server has a sum and nothing else."""
    federation = run_example(tmp_path, THREE, 1, SECURE="1")
    assert federation.everything() == federation.in_one_process(**SECURE)
    record = json.loads((federation.run / "rounds.jsonl").read_text().splitlines()[-1])
    assert [sorted(client) for client in record["clients"]] == [["bytes_down", "bytes_up", "client"]] * 3
    assert record["n"] == 120
    said = {(tmp_path / name / "client.log").read_text().partition("fingerprint ")[2].split("\n")[0] for name in THREE}
    assert len(said) == 1
    assert "failures" not in record


def test_the_guide_on_loopback_ends_with_the_bits_of_one_process(tmp_path):
    federation = run_example(tmp_path, NAMES, 3)
    assert federation.everything() == federation.in_one_process()
    sent = [
        client
        for line in (federation.run / "rounds.jsonl").read_text().splitlines()
        for client in json.loads(line)["clients"]
    ]
    assert len(sent) == 6
    assert all(client["bytes_up"] == sent[0]["bytes_up"] > 0 for client in sent)


def test_kills_of_every_part_change_no_bit_and_a_stranger_is_refused(tmp_path):
    long = {"local_training.epochs": 25}  # a task takes long enough to be seen and killed
    with Federation(tmp_path, rounds=4) as federation:
        server = federation.server(**long)
        clients = {name: federation.client(name) for name in NAMES}
        federation.wait("round 1", lambda: federation.done() >= 1)

        stranger = _stranger(federation)
        federation.wait("a task for hospital-a", lambda: federation.at_work("hospital-a"))
        done = federation.done()
        kill(child_of(clients["hospital-a"], "fedssl.deployment.supernode"))
        federation.wait("the round of the killed node", lambda: federation.done() > done)
        assert "connected" in federation.output("hospital-a").partition("connected")[2], "it came back by itself"

        federation.wait("a task for hospital-b", lambda: federation.at_work("hospital-b"))
        done = federation.done()
        kill(int((federation.run / "flower/app.pid").read_text()))
        federation.wait("the round of the killed server app", lambda: federation.done() > done)

        federation.wait("a task for hospital-b", lambda: federation.at_work("hospital-b"))
        done = federation.done()
        kill(child_of(server, "fedssl.deployment.superlink"))
        federation.wait("the round of the killed SuperLink", lambda: federation.done() > done)

        assert server.wait(300) == 0, federation.story()
        assert stranger.wait(120) == 4, federation.output("stranger")
        assert "does not know this key" in federation.output("stranger")
        assert federation.done() == 4
        assert federation.everything() == federation.in_one_process(**long)
        said = federation.output("server")
        assert "the server's app ended: started again" in said
        assert "the SuperLink ended with code -9" in said


def test_with_secure_sums_kills_of_a_site_and_of_the_server_change_no_bit(tmp_path):
    """Three sites with a roster; a power cut at one and the death of the server's app, each in mid-round."""
    changes = SECURE | {"local_training.epochs": 25}
    with Federation(tmp_path, rounds=3, names=THREE) as federation:
        server = federation.server(**changes)
        clients = {name: federation.client(name, "--require-secure-aggregation") for name in THREE}
        federation.wait("a task for hospital-a", lambda: federation.at_work("hospital-a"))
        done = federation.done()
        power_cut(clients["hospital-a"])
        federation.client("hospital-a", "--require-secure-aggregation")
        federation.wait("the round of the killed site", lambda: federation.done() > max(done, 0))

        federation.wait("a task for hospital-b", lambda: federation.at_work("hospital-b"))
        done = federation.done()
        kill(int((federation.run / "flower/app.pid").read_text()))
        federation.wait("the round of the killed server app", lambda: federation.done() > done)

        assert server.wait(LIMIT) == 0, federation.story()
        assert "the server's app ended: started again" in federation.output("server")
        assert federation.everything() == federation.in_one_process(**changes)
        rounds = [json.loads(line) for line in (federation.run / "rounds.jsonl").read_text().splitlines()]
        assert [len(one["clients"]) for one in rounds] == [0, 3, 3, 3]
        for name in THREE:
            lines, _ = verified(tmp_path / name / "state/audit.jsonl")
            sent = [part["name"] for line in lines for part in line.get("left", ()) if part["name"].startswith("enc")]
            assert set(sent) == {"encoder (masked)"}, "nothing left that the server could read"


def test_a_registered_client_that_lies_and_a_foreign_app_end_nothing(tmp_path):
    """Twenty bad replies in one round, then a good one: the round is as if they had not been (FAULTS 42, 51)."""
    with Federation(tmp_path, rounds=1) as federation:
        count = tmp_path / "lies"
        count.write_text("0")
        path = os.pathsep.join([str(Path(__file__).parent / "liar"), *filter(None, [os.environ.get("PYTHONPATH")])])
        server = federation.server(**{"failures.min_clients": 2, "failures.retries": 30})
        federation.client("hospital-a")
        federation.client("hospital-b", environment={"PYTHONPATH": path, "FEDSSL_LIES": str(count)})
        federation.wait("a first lie", lambda: count.read_text() not in ("", "0"))
        _submit_a_foreign_app(federation)
        assert server.wait(3 * LIMIT) == 0, federation.story()
        assert int(count.read_text()) >= 21, federation.story()
        failures = [json.loads(line) for line in (federation.run / "failures.jsonl").read_text().splitlines()]
        assert len(failures) == 20
        assert {(failure["client_id"], failure["round_number"]) for failure in failures} == {(1, 1)}
        assert all(failure["detail"].startswith("hospital-b: ") for failure in failures)
        assert [failure["code"] for failure in failures].count("rejected") == 19, "one sent a code of nobody's"
        assert "\x1b" not in (federation.run / "flower/progress.log").read_text()
        assert federation.everything() == federation.in_one_process()


def test_a_run_waits_until_a_person_at_a_site_approves_it(tmp_path):
    with Federation(tmp_path, rounds=1) as federation:
        policy = tmp_path / "hospital-a/policy.toml"
        policy.write_text('approval = "ask"\nmethods = ["simclr"]\nhours = "00:00-00:00"\nmax_rounds = 1\n')
        server = federation.server()
        federation.client("hospital-a", policy=policy)
        federation.client("hospital-b")
        federation.wait("a question", lambda: [*(tmp_path / "hospital-a/state").glob("consent/*.json")])
        (asked,) = (tmp_path / "hospital-a/state").glob("consent/*.json")
        assert federation.done() == 0
        approved = federation.fedssl("hospital-a", "client", "approve", asked.stem[:6], "--state", "state", "--yes")
        assert approved.wait(LIMIT) == 0, federation.story()
        assert server.wait(LIMIT) == 0, federation.story()
        assert federation.everything() == federation.in_one_process()
        lines, remarks = verified(tmp_path / "hospital-a/state/audit.jsonl")
        assert [line["event"] for line in lines] == ["task", "asked", "reply", "approved", "task", "reply"]
        assert remarks == []
        assert spelled(lines[-1]["settings"]) in federation.output("server"), "to be compared on the phone"


def _submit_a_foreign_app(federation):
    """Somebody on the server's machine who has ca.pem submits an app of their own."""
    app = federation.folder / "foreign"
    (app / "foreign").mkdir(parents=True)
    code = f"server_app = client_app = None\nopen({str(app / 'was here')!r}, 'w')\n"
    (app / "foreign/app.py").write_text(code)
    ours = (APP / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(ours.replace("fedssl.deployment.apps", "foreign.app"))
    command = [str(Path(sys.executable).with_name("flwr")), "run", str(app), "fedssl"]
    done = subprocess.run(command, env=environment(federation.run / "flower"), capture_output=True, timeout=LIMIT)
    assert done.returncode != 0
    assert "runs no app but that of its own fedssl" in (federation.run / "flower/superlink.log").read_text()
    assert not (app / "was here").exists()


def _stranger(federation):
    """A node with a key that nobody registered, under the name of one that was."""
    federation.fedssl("stranger", "certificates", "node", "hospital-a").wait(60)
    return federation.client("hospital-a", "--wait", "90", machine="stranger", key="keys/hospital-a.key")
