"""The server's side of a deployment, and the commands: what is refused before anything starts."""

import contextlib
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app, main
from fedssl.core.errors import FedsslError, RoundError
from fedssl.core.weights import Weights
from fedssl.deployment import server as server_module
from fedssl.deployment import site as client_module
from fedssl.deployment.certificates import make_node_key, make_server_certificate
from fedssl.deployment.server import Deployment, _Server, serve
from fedssl.deployment.server_run import A_DAY, AtSites, key_bytes, run_at_server
from fedssl.deployment.site import Site, take_part
from fedssl.deployment.site_folder import Start
from fedssl.deployment.supervision import Patience
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import Experiment
from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.encoder_file import save_encoder
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.federation.engines.flower.directory import ByKey, ByName
from fedssl.reports.run_page import write_report
from tests.helpers.deployed import NAMES as HOSPITALS
from tests.helpers.deployed import SETTINGS, Federation, write_images
from tests.helpers.flower_grid import FakeGrid, grid_of_sites, node
from tests.helpers.small import TINY

NAMES = ["north", "south"]


def config(preset="sites", **changes):
    return load_config(preset, {"flower.clients": NAMES, "network.width": 4, "data.image_size": 16, **changes})


def silent(text, done, total):
    pass


def test_a_server_without_images_builds_its_side_and_says_what_it_cannot_do():
    parts = AtSites(FakeGrid([], None), "x", {}).build(config(), silent)
    assert parts.partition.names == ("north", "south")
    assert parts.partition.sizes() == [0, 0]
    assert parts.monitor.full(None).values == parts.monitor.quick(None).values == {}
    assert any("no accuracy can be given" in remark for remark in parts.remarks)
    with pytest.raises(FedsslError, match="shares nothing"):
        AtSites(FakeGrid([], None), "x", {}).build(config("sites+standalone"), silent)
    with pytest.raises(FedsslError, match=r"failures\.min_clients"):
        AtSites(FakeGrid([], None), "x", {}).build(config(**{"failures.min_clients": 3}), silent)


def test_a_shared_set_needs_as_many_names_as_clients():
    shared = load_config("smoke", TINY | {"flower.clients": NAMES})
    with pytest.raises(FedsslError, match=r"flower\.clients: 2 names for 4 clients"):
        AtSites(FakeGrid([], None), "x", {}).build(shared, silent)


@pytest.mark.parametrize(("settings", "limit"), [({}, A_DAY), ({"failures.client_timeout": 5.0}, 5.0)])
def test_no_client_is_awaited_for_ever(tmp_path, settings, limit):
    sites = AtSites(FakeGrid([], None), "x", {})
    run = SimpleNamespace(config=config(**settings), folder=RunFolder(tmp_path), view=QuietView())
    engine = sites.engine(run)
    assert engine.time_limit == limit


def test_clients_are_known_by_their_keys_where_there_are_some(tmp_path):
    _, public = make_node_key(tmp_path, "north")
    with_keys = AtSites(FakeGrid([], None), "x", {"north": public.read_text()})
    directory = with_keys._directory(NAMES, QuietView())
    assert isinstance(directory, ByKey)
    directory.grid.nodes = [node(5, key=key_bytes(public.read_bytes())), node(6, key=b"other")]
    directory.look()
    assert directory.seat_of(0).node == 5
    assert directory.seat_of(1) is None
    assert isinstance(AtSites(FakeGrid([], None), "x", {})._directory(NAMES, QuietView()), ByName)


def test_the_app_needs_a_folder_that_a_server_made(tmp_path):
    with pytest.raises(FedsslError, match="holds no deployment"):
        run_at_server(FakeGrid([], None), {"folder": str(tmp_path)})


def test_a_superlink_serves_the_run_that_it_was_started_for(tmp_path, monkeypatch):
    (tmp_path / "theirs/flower").mkdir(parents=True)
    (tmp_path / "theirs/flower/deployment.json").write_text("{}")
    monkeypatch.setenv("FEDSSL_STARTED", "x")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "ours/flower"))
    with pytest.raises(FedsslError, match=r"theirs: this SuperLink serves .*ours alone"):
        run_at_server(FakeGrid([], None), {"folder": str(tmp_path / "theirs")})


def test_what_ends_a_run_reaches_the_supervisor_with_its_exit_code(tmp_path):
    folder = RunFolder.create(tmp_path / "run")
    settings = config(**{"flower.patience": 0.2, "failures.retries": 0, "rounds": 2, "threads": 1})
    deployment = Deployment(config=settings, folder=folder.path, host="127.0.0.1", port=9, certificate=None, keys={})
    deployment.home.mkdir()
    server_module._write_down(deployment)
    run = json.loads((deployment.home / "deployment.json").read_text())["run"]
    server_module._write_down(deployment)
    assert json.loads((deployment.home / "deployment.json").read_text())["run"] == run, "the id stays for ever"
    with pytest.raises(RoundError):
        run_at_server(FakeGrid([], None), {"folder": str(folder.path)})
    said = []
    supervisor = server_module._Server(deployment, said.append)
    with pytest.raises(RoundError, match=r"round 1: 0 clients delivered.*north: away"):
        supervisor._show()
    assert (deployment.home / "progress.log").read_text().startswith("simclr with fedema on sites")
    assert int((deployment.home / "app.pid").read_text()) > 0


def test_restarts_without_a_round_between_them_come_to_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module.time, "sleep", lambda seconds: None)
    deployment = Deployment(config=config(), folder=tmp_path, host="127.0.0.1", port=9, certificate=None, keys={})
    deployment.home.mkdir()
    said = []
    supervisor = server_module._Server(deployment, said.append)
    for _ in range(server_module.RESTARTS):
        supervisor._count_restart("the app ended")
    with pytest.raises(RoundError, match="5 times in a row"):
        supervisor._count_restart("the app ended")
    (tmp_path / "rounds.jsonl").write_text('{"round": 1}\n')
    supervisor._count_restart("the app ended")
    assert said[-1] == "warning: the app ended: started again (1 of 5)"


def test_only_whole_lines_of_progress_are_shown(tmp_path):
    deployment = Deployment(config=config(), folder=tmp_path, host="127.0.0.1", port=9, certificate=None, keys={})
    deployment.home.mkdir()
    progress = deployment.home / "progress.log"
    progress.write_text("of an earlier process\n")
    said = []
    supervisor = server_module._Server(deployment, said.append)
    progress.write_text("of an earlier process\nround 1\nrou")
    supervisor._show()
    assert said == ["round 1"]
    progress.write_text("of an earlier process\nround 1\nround 2\n")
    supervisor._show()
    assert said == ["round 1", "round 2"]


def test_a_finished_deployment_has_nothing_left_to_do(tmp_path):
    (tmp_path / "config.toml").write_text("")
    save_encoder(tmp_path / "encoder.safetensors", Weights(), {})
    (tmp_path / "summary.json").write_text(json.dumps({"status": "finished", "rounds": config().run.rounds}))
    said = []
    summary = serve(
        Deployment(config=config(), folder=tmp_path, host="127.0.0.1", port=9, certificate=None, keys={}), said.append
    )
    assert summary["rounds"] == config().run.rounds
    assert "nothing is left to do" in said[0]


def test_a_port_that_is_taken_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Deployment, "link", lambda self: [sys.executable, "-c", "raise SystemExit('address in use')"])
    deployment = Deployment(
        config=config(), folder=tmp_path / "run", host="127.0.0.1", port=9, certificate=None, keys={}
    )
    with pytest.raises(FedsslError, match=r"cannot start on 127\.0\.0\.1:9: address in use"):
        serve(deployment, print)


def test_commands_that_cannot_work_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def refused(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedssl", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code

    assert refused("server", "sites", "--insecure") == 2
    assert refused("server", "sites", "--clients", "a,a", "--insecure") == 2
    assert refused("server", "sites", "--clients", "../a", "--insecure") == 2
    assert refused("server", "sites", "--clients", "a,b", "--insecure", "--host", "0.0.0.0") == 2
    assert refused("server", "sites", "--clients", "a,b") == 2
    assert refused("client", "--name", "a/b", "--server", "h:1", "--insecure") == 2
    assert refused("client", "--name", "a", "--server", "10.0.0.1:9", "--insecure") == 2
    assert refused("client", "--name", "a", "--server", "127.0.0.1", "--insecure") == 2
    assert refused("client", "--name", "a", "--server", "127.0.0.1:9", "--insecure", "--data", "gone") == 2
    assert refused("client", "--name", "a", "--server", "127.0.0.1:9") == 2


def test_certificates_are_made_by_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    assert "put away: certificates/ca.key" in runner.invoke(app, ["certificates", "make", "--host", "h"]).output
    assert (
        "for the server, and for the roster of all sites: keys/north.pub"
        in runner.invoke(app, ["certificates", "node", "north"]).output
    )
    assert (tmp_path / "certificates/server.pem").exists()


# --- the client's supervisor


def site(tmp_path, **changes):
    return Site(**{"name": "north", "server": "127.0.0.1:9", "state": tmp_path / "state"} | changes)


def test_a_node_is_told_what_its_operator_allows(tmp_path):
    allowed = site(tmp_path, allow_code=("mynets", "others:small")).command()[-1]
    assert Start.from_text(allowed).node["allow-code"] == "mynets,others:small"
    assert "allow-code" not in site(tmp_path).command()[-1]


def test_the_old_option_for_a_network_still_works_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "client --name a --server 127.0.0.1:9 --insecure --wait 1 --data gone --allow-network mynets:small"
    assert "say --allow-code PACKAGE" in CliRunner().invoke(app, line.split()).output


def test_a_client_gives_up_after_its_wait_and_says_why(tmp_path):
    said = []
    with pytest.raises(RoundError, match=r"waiting for the server .*: Connection refused: given up after"):
        take_part(site(tmp_path), said.append, wait=0.5)
    assert said[0].startswith("north: waiting for the server 127.0.0.1:9: Connection refused (0 of 0.5 s)")


def test_a_private_key_that_others_can_read_is_said_at_every_start(tmp_path, monkeypatch):
    made, (private, public) = make_server_certificate(tmp_path, []), make_node_key(tmp_path, "north")
    monkeypatch.setattr("fedssl.deployment.site.time.sleep", lambda seconds, sleep=time.sleep: sleep(seconds / 50))
    said = []
    for mode in (0o600, 0o640):
        private.chmod(mode)
        made.key.chmod(mode)
        with pytest.raises(RoundError):
            take_part(site(tmp_path, ca=made.ca, key=private), said.append, wait=0.01)
        deployment = Deployment(
            config=load_config("sites"),
            folder=tmp_path,
            host="127.0.0.1",
            port=9,
            certificate=made,
            keys={"north": public},
        )
        monkeypatch.setattr(_Server, "_await_link", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        monkeypatch.setattr(server_module, "running", lambda *_: contextlib.nullcontext())
        with pytest.raises(KeyboardInterrupt):
            _Server(deployment, said.append).run()
    assert [text for text in said if "chmod" in text] == [
        f"warning: {key}: others on this machine can read it: chmod 600 {key}" for key in (private, made.key)
    ]


@pytest.fixture
def unhurried(monkeypatch):
    """A site that pauses for a fiftieth of the time, and gives up on a node with the first that ended."""
    wait = Patience.wait

    def short(patience, what, pause=1.0):
        if "waiting to be accepted" in what:
            patience.limit = -1.0
        wait(patience, what, pause / 50)

    monkeypatch.setattr(Patience, "wait", short)
    monkeypatch.setattr(client_module, "reachable", lambda *values, **options: "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("[code: 2004] Failed to activate SuperNode.", "does not know this key .* or still believes"),
        ("Traceback: out of memory", r"ended with code 1 \(Traceback: out of memory\)"),
    ],
)
@pytest.mark.usefixtures("unhurried")
def test_why_a_node_was_not_accepted_is_said(tmp_path, monkeypatch, words, reason):
    monkeypatch.setattr(Site, "command", lambda self: [sys.executable, "-c", f"raise SystemExit({words!r})"])
    with pytest.raises(RoundError, match=reason):
        take_part(site(tmp_path), print, wait=600.0)


def test_a_node_that_was_accepted_may_come_back_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "reachable", lambda *values, **options: "")
    monkeypatch.setattr("fedssl.deployment.site.time.sleep", lambda seconds, sleep=time.sleep: sleep(seconds / 50))
    script, seen = tmp_path / "node.py", tmp_path / "seen"
    script.write_text(
        "import pathlib, time\n"
        "print('SuperNode ID: 7', flush=True)\n"
        f"seen = pathlib.Path({str(seen)!r})\n"
        "while not seen.exists():\n    time.sleep(0.02)\n"
        "seen.unlink()\n"
    )
    monkeypatch.setattr(Site, "command", lambda self: [sys.executable, str(script)])
    connected = []

    def say(text):
        if "connected" in text:
            connected.append(text)
            seen.touch()
        if len(connected) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_part(site(tmp_path), say, wait=600.0)


def test_what_a_node_is_started_with(tmp_path):
    made = make_server_certificate(tmp_path / "c", [])
    private, _ = make_node_key(tmp_path / "k", "north")
    (tmp_path / "images").mkdir()
    one = site(tmp_path, data=str(tmp_path / "images"), ca=made.ca, key=private, device="cpu")
    one.check()
    start = Start.from_text(one.command()[-1])
    assert (start.ca, start.key) == (str(made.ca), str(private))
    assert (start.node["data"], start.node["name"]) == (f"{tmp_path}/images", "north")
    assert Start.from_text(site(tmp_path).command()[-1]).ca == ""
    with pytest.raises(FedsslError, match="--key"):
        site(tmp_path, ca=made.ca).check()
    with pytest.raises(FedsslError, match=r"gone\.pem: there is no such file"):
        site(tmp_path, ca=tmp_path / "gone.pem", key=private).check()
    (tmp_path / 'a"b').mkdir()
    quoted = site(tmp_path, data=str(tmp_path / 'a"b')).command()[-1]
    assert Start.from_text(quoted).node["data"] == str(tmp_path / 'a"b')


def test_a_whole_deployment_without_its_processes_ends_as_silos_on_one_machine(tmp_path):
    federation = Federation(tmp_path, rounds=2)
    for number, name in enumerate(HOSPITALS):
        write_images(tmp_path / "sites" / name, number)
    grid = grid_of_sites(tmp_path, HOSPITALS)
    settings = load_config("sites", SETTINGS | {"rounds": 2, "flower.clients": HOSPITALS})
    report = Experiment(settings, AtSites(grid, "a1", {})).run(federation.run)
    assert report.summary["status"] == "finished"
    assert federation.everything() == federation.in_one_process()
    assert not (federation.run / "uploads").exists()
    left_out = write_report([federation.run], tmp_path / "report.html")
    assert any("the images stayed at their own sites" in line for line in left_out)


@pytest.mark.parametrize(
    ("raised", "kind", "told"),
    [
        (
            subprocess.TimeoutExpired("flwr", 120),
            RoundError,
            r"`flwr run` did not end within 120 s: see .*superlink\.log",
        ),
        (
            FileNotFoundError(2, "No such file"),
            FedsslError,
            r"flwr: cannot be started \(No such file\); install fedssl\[",
        ),
    ],
)
def test_flowers_command_that_hangs_or_is_missing_is_named(tmp_path, monkeypatch, raised, kind, told):
    def run(*arguments, **options):
        raise raised

    monkeypatch.setattr(server_module.subprocess, "run", run)
    supervisor = server_module._Server(
        Deployment(config=config(), folder=tmp_path, host="127.0.0.1", port=9, certificate=None, keys={}), print
    )
    with pytest.raises(kind, match=told):
        supervisor._flwr("run", "x")
