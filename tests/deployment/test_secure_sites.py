"""Secure aggregation between sites: the app of every site as it is deployed, with keys and rosters from their files."""

import json

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import FedsslError, RoundError
from fedssl.deployment import server_run
from fedssl.deployment import site as site_module
from fedssl.deployment.certificates import make_node_key, make_roster
from fedssl.deployment.limits import check_settings
from fedssl.deployment.policy import Policy
from fedssl.deployment.server import Deployment
from fedssl.deployment.server_run import AtSites, key_bytes
from fedssl.deployment.site import Site, take_part
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import Experiment, load
from fedssl.federation.checkpoint import CheckpointStore
from tests.helpers.deployed import SETTINGS, write_images
from tests.helpers.flower_grid import grid_of_sites

NAMES = ["north", "south", "west"]
SECURE = SETTINGS | {
    "aggregation.secure": True,
    "aggregation.secure_max_examples": 50,
    "update_rule.lambda_at": "client",
    "rounds": 2,
    "flower.patience": 2.0,
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(server_run, "PAUSE", 0.01)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Three sites with images, keys and a roster."""
    folder = tmp_path_factory.mktemp("sites")
    publics = [make_node_key(folder / "keys", name)[1] for name in NAMES]
    make_roster(folder / "keys/roster", publics)
    for number, name in enumerate(NAMES):
        write_images(folder / "sites" / name, number, count=12 + 2 * number)
    return folder


def deployed(place, folder, grid, **changes):
    keys = {name: (place / "keys" / f"{name}.pub").read_text() for name in NAMES}
    config = load_config("sites", SECURE | {"flower.clients": NAMES} | changes)
    backend = AtSites(grid, "run1", keys)
    return Experiment(config, backend).run(folder / "run")


def sites(place, folder, **more):
    """The grid of sites that share their images and keys with others and have states of their own."""
    for name in ("sites",):
        if not (folder / name).exists():
            (folder / name).symlink_to(place / name)
    return grid_of_sites(folder, NAMES, place / "keys", **more)


def weights_of(run):
    store = CheckpointStore(run / "checkpoints")
    return store.load(store.rounds()[-1]).state.global_weights.digest


def test_sites_end_with_the_bits_of_one_process_and_no_number_of_a_site_is_recorded(place, tmp_path):
    report = deployed(place, tmp_path, sites(place, tmp_path))
    silos = {"data.path": str(place / "sites"), "data.layout": "silos", "data.labels": False, "engine": "in-process"}
    settings = {key: value for key, value in SECURE.items() if not key.startswith("flower")}
    load("folder", settings | silos).run(tmp_path / "alone")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "alone")
    for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()[1:]:
        record = json.loads(line)
        assert [sorted(client) for client in record["clients"]] == [["bytes_down", "bytes_up", "client"]] * 3
        assert record["n"] == 42
        assert record["loss"] > 0
    assert report.summary["status"] == "finished"
    assert not list((tmp_path / "run").rglob("*.key")) + list((tmp_path / "run").rglob("*.secret"))


@pytest.mark.parametrize("stage", ["RoundCall", "Delivery", "SurvivorCall", "UnmaskCall"])
def test_a_site_that_falls_silent_in_a_stage_is_waited_for_and_then_left_out(place, tmp_path, stage):
    grid = sites(place, tmp_path)
    answer = grid.answer

    def without(message, node_id):
        facts = message.content["facts"]["json"]
        if f'"stage": "{stage} ' in facts and node_id == 1:
            grid.nodes = [one for one in grid.nodes if one.node_id != 1]
            return None
        return answer(message, node_id)

    grid.answer = without
    changes = {"flower.patience": 0.2, "rounds": 1, "aggregation.secure_threshold": 2, "failures.retries": 0}
    deployed(place, tmp_path, grid, **changes)
    record = json.loads((tmp_path / "run/rounds.jsonl").read_text().splitlines()[-1])
    left = [0, 1, 2] if stage in ("SurvivorCall", "UnmaskCall") else [0, 2]
    assert [client["client"] for client in record["clients"]] == left
    assert record["failures"][0]["detail"].startswith("south: away")


def test_a_forged_key_stops_every_site_with_the_name(place, tmp_path):
    """The server's operator put a key of their own in the place of south's: the roster of the sites says otherwise."""
    _, forged = make_node_key(tmp_path / "forged", "south")
    private = tmp_path / "forged/south.key"
    grid = sites(place, tmp_path)
    answer = grid.answer
    impostor = grid_of_sites(tmp_path, NAMES, place / "keys", key=str(private), roster=str(tmp_path / "forged/roster"))
    publics = [place / "keys/north.pub", forged, place / "keys/west.pub"]
    make_roster(tmp_path / "forged/roster", publics)
    grid.answer = lambda message, node_id: (impostor.answer if node_id == 1 else answer)(message, node_id)
    keys = {name: (place / "keys" / f"{name}.pub").read_text() for name in NAMES} | {"south": forged.read_text()}
    grid.nodes[1].public_key = key_bytes(forged.read_bytes())
    config = load_config("sites", SECURE | {"flower.clients": NAMES})
    with pytest.raises(RoundError, match=r"1 clients exchanged keys, 3 are needed.*client 0: untrusted"):
        Experiment(config, AtSites(grid, "run1", keys)).run(tmp_path / "run")
    log = [json.loads(line) for line in (tmp_path / "north/state/failures.jsonl").read_text().splitlines()]
    assert {line["code"] for line in log} == {"untrusted"}
    assert "site south: its signature does not verify" in log[0]["detail"]


def test_what_a_site_needs_for_secure_aggregation_is_said_before_it_trains(place, tmp_path):
    cases = {
        "no roster": ({"roster": ""}, "--roster: this run sums securely"),
        "a peer is missing": ({"roster": str(tmp_path / "two")}, "two: site west is not in the roster"),
        "another key": ({"key": str(tmp_path / "other/north.key")}, "site north: another key than this site's own"),
    }
    make_roster(tmp_path / "two", [place / "keys/north.pub", place / "keys/south.pub"])
    make_node_key(tmp_path / "other", "north")
    for number, (more, told) in enumerate(cases.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(RoundError):
            deployed(place, folder, sites(place, folder, **more), **{"failures.retries": 0})
        assert told in (folder / "north/state/failures.jsonl").read_text()
        assert not list((folder / "north/state/runs").rglob("round-*")), "nothing was trained"


def test_a_site_may_insist_on_secure_sums_of_many(place, tmp_path):
    plain = load_config("sites", SETTINGS | {"flower.clients": NAMES})
    with pytest.raises(FedsslError, match=r"aggregation\.secure: the server would see this site's weights"):
        check_settings(plain, Policy(require_secure_aggregation=True))
    secure = load_config("sites", SECURE | {"flower.clients": NAMES})
    check_settings(secure, Policy.of_node(Policy(require_secure_aggregation=True, min_sites=4).as_node()))
    with pytest.raises(RoundError):
        deployed(place, tmp_path, sites(place, tmp_path, **{"min-sites": "4"}), **{"failures.retries": 0})
    assert "takes part in sums of 4 sites or more" in (tmp_path / "north/state/failures.jsonl").read_text()


def test_a_server_without_keys_cannot_sum_securely(tmp_path):
    config = load_config("sites", SECURE | {"flower.clients": NAMES})
    with pytest.raises(FedsslError, match=r"--insecure: with aggregation\.secure sites sign with their keys"):
        Deployment(config=config, folder=tmp_path, host="127.0.0.1", port=9, certificate=None, keys={}).check()
    without = {key: value for key, value in SECURE.items() if key != "aggregation.secure_max_examples"}
    backend = AtSites(None, "x", {})
    with pytest.raises(FedsslError, match=r"aggregation\.secure_max_examples: must be given"):
        backend.build(load_config("sites", without | {"flower.clients": NAMES}), lambda *_: None)


def test_the_roster_command_and_the_fingerprint_that_a_site_says(place, tmp_path, monkeypatch):
    publics = [str(place / "keys" / f"{name}.pub") for name in NAMES]
    made = CliRunner().invoke(app, ["certificates", "roster", *publics, "--out", str(tmp_path / "keys/roster")])
    assert made.exit_code == 0, made.output
    fingerprint = made.output.strip().rpartition(": ")[2]
    assert (tmp_path / "keys/roster").read_bytes() == (place / "keys/roster").read_bytes()
    again = CliRunner().invoke(app, ["certificates", "roster", *publics, "--out", str(tmp_path / "keys/roster")])
    assert again.exit_code == 0, "the same once more"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FedsslError, match="is there already with other keys"):
        make_roster(tmp_path / "keys/roster", [place / "keys/north.pub"])
    said = []
    site = Site(name="north", server="127.0.0.1:1", state=tmp_path / "state", roster=tmp_path / "keys/roster")
    monkeypatch.setattr(site_module, "reachable", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        take_part(site, said.append, 1.0)
    assert said == [f"north: 3 sites in the roster, fingerprint {fingerprint}"]
    other = Site(name="oslo", server="127.0.0.1:1", state=tmp_path / "oslo", roster=tmp_path / "keys/roster")
    with pytest.raises(FedsslError, match="site oslo is not in the roster"):
        take_part(other, said.append, 1.0)


class FailingNode:
    """Every look at whether it has ended brings another text to its site's log; after the last one it has."""

    def __init__(self, log, *texts):
        self.log, self.texts = log, list(texts)

    @property
    def ended(self):
        if not self.texts:
            return True
        with self.log.open("a") as file:
            file.write(self.texts.pop(0) + "\n")
        return False

    def output(self):
        return "SuperNode ID:"


def failure(code, detail):
    return json.dumps({"client_id": 0, "round_number": 3, "code": code, "detail": detail})


def test_what_goes_wrong_at_a_site_is_said_there_and_a_forged_key_stops_it(tmp_path):
    said, log = [], tmp_path / "failures.jsonl"
    site = Site(name="north", server="127.0.0.1:1", state=tmp_path)
    log.write_text("of an earlier day\n")
    node = FailingNode(log, failure("refused", "why"), failure("untrusted", "why"))
    patience = site_module.Patience(10.0, said.append)
    with pytest.raises(FedsslError, match=r"^north: round 3: untrusted: why; the site stops"):
        site_module._follow(node, site, said.append, patience, "")
    assert said == ["warning: north: round 3: refused: why", "north: connected to 127.0.0.1:1"]


def test_a_text_of_the_server_does_not_steer_the_terminal_and_half_a_line_ends_nothing(tmp_path):
    said, whole = [], failure("refused", "a\x1b[2J: unknown key")
    node = FailingNode(tmp_path / "failures.jsonl", '{"round_num' + whole, "[]", whole)
    site = Site(name="north", server="127.0.0.1:1", state=tmp_path)
    site_module._follow(node, site, said.append, site_module.Patience(10.0, said.append), "")
    assert said[1:] == [r"warning: north: round 3: refused: a\x1b[2J: unknown key"]
