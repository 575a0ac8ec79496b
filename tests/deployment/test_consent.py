"""People at the sites: a run waits for them, they leave and come back, and the bits are those of one process."""

import json
import threading

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.deployment import consent, server_run, site_run
from fedssl.deployment.agreement import in_words
from fedssl.deployment.apps import AtSite
from fedssl.deployment.audit import Audit
from fedssl.deployment.consent import (
    Consent,
    approve,
    check_consent,
    join,
    leave,
    read_consent,
    runs_at,
    settings_digest,
    spelled,
)
from fedssl.deployment.policy import Policy
from fedssl.deployment.server_run import AtSites
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import Experiment, load
from fedssl.experiment.progress.views import QuietView
from fedssl.federation.checkpoint import CheckpointStore
from fedssl.federation.client import Client
from fedssl.federation.engines.flower import engine as engine_module
from fedssl.federation.engines.flower.api import Message
from fedssl.federation.engines.flower.client_app import make_client_app
from fedssl.federation.engines.flower.messages import facts_of, pack_task, pack_tensors, unpack_reply
from fedssl.federation.messages import ClientError, Failure, GlobalWeights, TrainTask
from fedssl.federation.privacy.budget import epsilon_after
from tests.helpers.audited import verified
from tests.helpers.deployed import SETTINGS, write_images
from tests.helpers.flower_grid import context, grid_of_sites

NAMES = ["north", "south"]
ASK = Policy(approval="ask")
RUN = SETTINGS | {"flower.clients": NAMES, "rounds": 3, "failures.min_clients": 1, "failures.retries": 0}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(server_run, "PAUSE", 0.01)
    monkeypatch.setattr(engine_module, "ASK_AGAIN", 0.0)


def fedssl(*words):
    done = CliRunner().invoke(app, ["client", *map(str, words)])
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    return done.output


class Watching(QuietView):
    """Calls `do` with what the run says while it waits."""

    def __init__(self, do):
        super().__init__()
        self.do, self.said = do, []

    def say(self, text):
        self.said.append(text)

    def waiting(self, text):
        self.do(text)


def deployed(folder, grid, do=lambda text: None, **changes):
    view = Watching(do)
    Experiment(load_config("sites", RUN | changes), AtSites(grid, "a1b2c3", {})).run(folder / "run", view)
    return view.said


def weights_of(run):
    store = CheckpointStore(run / "checkpoints")
    return store.load(store.rounds()[-1]).state.global_weights.digest


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_waits_for_approval_and_ends_with_the_bits_of_one_process(tmp_path):
    for number, name in enumerate(NAMES):
        write_images(tmp_path / "sites" / name, number, count=16)
    strict = {"approval": "ask", "share-reasons": "True", "methods": "simclr", "max-rounds": "3", "max-hours": "1"}
    shown = []

    def person(text):
        if "for north, south to approve the run" in text and not shown:
            shown.extend(fedssl("approve", "a1", "--yes", "--state", tmp_path / name / "state") for name in NAMES)

    said = deployed(tmp_path, grid_of_sites(tmp_path, NAMES, **strict), person)
    silos = {"data.path": str(tmp_path / "sites"), "data.layout": "silos", "data.labels": False}
    own = {key: value for key, value in RUN.items() if not key.startswith("flower")}
    load("folder", own | silos | {"engine": "in-process"}).run(tmp_path / "alone")
    assert weights_of(tmp_path / "run") == weights_of(tmp_path / "alone")
    assert not (tmp_path / "run/failures.jsonl").exists(), "to wait for a person is no failure"
    (digest,) = {text.strip() for text in said if text.startswith("  ")}
    assert all(digest in text for text in shown), "the server prints what the site shows"
    events = [line["event"] for line in verified(tmp_path / "north/state/audit.jsonl")[0]]
    assert events == ["task", "asked", "reply", "approved", *["task", "reply"] * 3]


def test_a_site_leaves_a_run_and_comes_back_and_both_sides_record_it(tmp_path):
    for number, name in enumerate(NAMES):
        write_images(tmp_path / "sites" / name, number, count=16)
    grid, state = grid_of_sites(tmp_path, NAMES), tmp_path / "north/state"
    answer, sent = grid.answer, []

    def people(message, node_id):
        facts = facts_of(message)
        if node_id == 0 and "round" in facts:
            sent.append((facts["round"], message.metadata.message_type))
            if sent[-1] == (2, "train"):
                fedssl("leave", "a1b2c3", "--state", state)
            if sent[-1] == (3, "query"):
                fedssl("join", "a1", "--state", state)
        return answer(message, node_id)

    grid.answer = people
    deployed(tmp_path, grid)
    assert sent == [(1, "train"), (2, "train"), (3, "query"), (3, "train")], "no weights for who has left"
    (failure,) = lines_of(tmp_path / "run/failures.jsonl")
    assert (failure["round_number"], failure["code"]) == (2, "left")
    assert failure["detail"] == "north: its own log says more"
    took_part = [[client["client"] for client in line["clients"]] for line in lines_of(tmp_path / "run/rounds.jsonl")]
    assert took_part == [[], [0, 1], [1], [0, 1]]
    events = [line["event"] for line in verified(state / "audit.jsonl")[0]]
    assert events == ["task", "reply", "left", "task", "reply", "joined", "task", "reply"]


def test_a_site_that_never_approves_is_named_and_asked_before_weights_are_sent_again(tmp_path):
    for number, name in enumerate(NAMES):
        write_images(tmp_path / "sites" / name, number, count=16)
    grid, ask = grid_of_sites(tmp_path, NAMES), grid_of_sites(tmp_path, NAMES, approval="ask")
    plain = grid.answer
    grid.answer = lambda message, node_id: (plain if node_id else ask.answer)(message, node_id)
    deployed(tmp_path, grid, **{"flower.approval_patience": 0.001, "rounds": 2})
    codes = [(line["round_number"], line["code"]) for line in lines_of(tmp_path / "run/failures.jsonl")]
    assert codes == [(1, "approval"), (2, "approval")]
    kinds = [message.metadata.message_type for message in grid.pushed if message.metadata.dst_node_id == 0]
    assert kinds.count("train") == 1
    assert runs_at(tmp_path / "north/state") == {"a1b2c3": "not approved by a person"}


# --- one site


def about(**changes):
    settings = load_config("sites", RUN | changes).as_raw()
    return {"run": "a1b2", "name": "north", "settings": settings}


def node(folder, **changes):
    return {"name": "north", "state": str(folder / "state"), "data": str(folder / "images")} | changes


def sent_to(side, told, round_number=1, accepted=None):
    """What the app of a site answers to a task."""
    weights = AtSite().open(side, told).client.initial_global_weights()
    content = pack_task(
        TrainTask(0, round_number, accepted_round=accepted, global_weights=weights), pack_tensors(weights, {}), told
    )
    reply = make_client_app(AtSite())(Message(content, dst_node_id=1, message_type="train"), context(side))
    return facts_of(reply)


def test_a_reason_leaves_only_where_the_policy_shares_it(tmp_path):
    task = TrainTask(0, 1, accepted_round=None, global_weights=GlobalWeights.EMPTY)
    reason = "rounds: the server asks for 3, this site allows 2 at most"
    for policy, shared in [({}, {}), ({"share-reasons": "True"}, {"reason": reason})]:
        content = pack_task(task, pack_tensors(GlobalWeights.EMPTY, {}), about())
        message = Message(content, dst_node_id=1, message_type="train")
        side = node(tmp_path, **{"max-rounds": "2"}, **policy)
        reply = make_client_app(AtSite())(message, context(side))
        assert facts_of(reply) == {"client": 0, "round": 1, "code": "refused", **shared}
        got = unpack_reply(reply, tmp_path / "upload", 0)
        assert got == Failure(0, 1, "refused", detail=shared.get("reason", ""))
    log = lines_of(tmp_path / "state/failures.jsonl")
    assert all(reason in line["detail"] for line in log), "the site knows it in any case"
    left = [[part["name"] for part in line["left"]] for line in verified(tmp_path / "state/audit.jsonl")[0][1::2]]
    assert left == [["code: refused"], ["code: refused", "reason"]]


def test_epsilon_is_spent_by_what_left(tmp_path):
    write_images(tmp_path / "images", 0, 16)
    private = {
        "privacy.name": "client-dp",
        "privacy.clip_norm": 1.0,
        "privacy.noise_multiplier": 2.0,
        "privacy.placement": "local",
        "aggregation.batchnorm": "local-statistics",
        "update_rule.lambda_at": "client",
    }
    told = about(**private)
    for round_number, accepted in [(1, None), (1, None), (2, 1)]:
        assert "code" not in sent_to(node(tmp_path), told, round_number, accepted)
    replies = [line for line in verified(tmp_path / "state/audit.jsonl")[0] if line["event"] == "reply"]
    privacy = load_config("sites", RUN | private).privacy.build()
    assert [line["epsilon"] for line in replies] == [epsilon_after(privacy, n) for n in (1, 1, 2)]
    assert replies[0]["left"] == replies[1]["left"], "it answered from its disk"
    assert Audit(tmp_path / "state").spent("a1b2").uploads == 2


def test_withdrawn_images_are_accepted_when_somebody_says_so_and_recorded(tmp_path):
    write_images(tmp_path / "images", 0, 16)
    told, accepting = about(), node(tmp_path, **{"accept-changed-data": "yes"})

    def withdraw(number):
        (tmp_path / f"images/image-{number:03d}.png").unlink()
        site_run._made.cache_clear()  # every task is a process of its own

    assert sent_to(node(tmp_path), told)["num_examples"] == 16
    withdraw(3)
    assert "code" in sent_to(node(tmp_path), told, 2, 1), "nobody accepted it"
    assert sent_to(accepting, told, 2, 1)["num_examples"] == 15
    assert sent_to(node(tmp_path), told, 3, 2)["num_examples"] == 15, "what was accepted stays so"
    withdraw(4)
    assert sent_to(accepting, told, 3, 2)["num_examples"] == 14, "what was trained with the image is not sent again"
    changed = [line for line in verified(tmp_path / "state/audit.jsonl")[0] if line["event"] == "data-changed"]
    assert [line["round"] for line in changed] == [2, 3]
    assert changed[0]["data"] == changed[1]["data_before"]


def test_a_result_does_not_leave_when_the_site_left_meanwhile_or_it_cannot_be_recorded(tmp_path, monkeypatch):
    write_images(tmp_path / "images", 0, 16)
    train = Client.train

    def and_leave(self, *values):
        done = train(self, *values)
        leave(tmp_path / "state", "a1b2")
        return done

    monkeypatch.setattr(Client, "train", and_leave)
    assert sent_to(node(tmp_path), about())["code"] == "left"
    join(tmp_path / "state", "a1b2")
    monkeypatch.setattr(Client, "train", train)
    add = Audit.add

    def full(self, event, **facts):
        if event == "reply" and "encoder" in facts["left"][0]["name"]:
            raise FedsslError("full")
        add(self, event, **facts)

    monkeypatch.setattr(Audit, "add", full)
    assert sent_to(node(tmp_path), about())["code"] == "refused"


def test_a_site_that_leaves_while_a_task_is_looked_at_has_left(tmp_path, monkeypatch):
    """The task wants to write down what is asked, the person that the site has left: both words stay."""
    read, leaving = consent.read_consent, threading.Thread(target=leave, args=(tmp_path, "a1b2"))

    def and_leave(*values):
        known = read(*values)
        if threading.current_thread() is not leaving:
            leaving.start()
            leaving.join(1.0)  # for as long as the word is being read and written, it waits
        return known

    monkeypatch.setattr(consent, "read_consent", and_leave)
    with pytest.raises(ClientError):
        check_consent(tmp_path, "a1b2", about()["settings"], ASK)
    leaving.join(60)
    assert (read(tmp_path, "a1b2").left, read(tmp_path, "a1b2").settings) == (True, about()["settings"])


def test_approval_of_a_run_that_was_left_meanwhile_does_not_join_it(tmp_path):
    with pytest.raises(ClientError):
        check_consent(tmp_path, "a1b2", about()["settings"], ASK)
    shown = read_consent(tmp_path, "a1b2")
    leave(tmp_path, "a1b2")
    approve(tmp_path, shown)
    with pytest.raises(ClientError, match="this site has left it"):
        check_consent(tmp_path, "a1b2", about()["settings"], ASK)


def test_approval_is_for_the_settings_that_were_shown(tmp_path):
    settings = about()["settings"]
    with pytest.raises(ClientError, match="waits until a person here says `fedssl client approve a1b2`") as caught:
        check_consent(tmp_path, "a1b2", settings, ASK)
    assert caught.value.code == "approval"
    approve(tmp_path, read_consent(tmp_path, "a1b2"))
    check_consent(tmp_path, "a1b2", settings, ASK)
    check_consent(tmp_path, "a1b2", settings | {"threads": 2, "failures": {"retries": 5}}, ASK)
    for change in ({"rounds": 4}, {"seed": 1}, {"evaluation": {"every": 7}}):
        with pytest.raises(ClientError):
            check_consent(tmp_path, "a1b2", settings | change, ASK)
    check_consent(tmp_path, "a1b2", settings | {"seed": 2}, Policy())


def test_runs_that_ask_without_end_are_bounded(tmp_path):
    few = Policy(approval="ask", max_runs=2)
    for run in ("a", "b"):
        with pytest.raises(ClientError):
            check_consent(tmp_path, run, {}, few)
    with pytest.raises(FedsslError, match="max_runs: 2 runs were asked for here"):
        check_consent(tmp_path, "c", {}, few)


def test_a_consent_that_was_damaged_is_not_believed(tmp_path):
    with pytest.raises(ClientError):
        check_consent(tmp_path, "a1b2", {"rounds": 3}, ASK)
    path = tmp_path / "consent/a1b2.json"
    path.write_text(path.read_text().replace('"approved": ""', f'"approved": "{settings_digest({"rounds": 3})}"'))
    with pytest.raises(DamagedError, match=r"a1b2\.json: damaged"):
        check_consent(tmp_path, "a1b2", {"rounds": 3}, ASK)


def test_the_commands_of_a_person_at_the_site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "state/north"
    state.mkdir(parents=True)
    (state / "client.json").write_text('{"client": "north"}')
    with pytest.raises(ClientError):
        check_consent(state, "a1b2", about()["settings"], ASK)
    assert "a1b2  not approved by a person" in fedssl("approve")
    no = CliRunner().invoke(app, ["client", "approve", "a1b2"], input="n\n")
    assert no.exit_code == 1
    assert read_consent(state, "a1b2").status == "not approved by a person"
    assert "approved" in fedssl("approve", "a1", "--yes")
    fedssl("leave", "a1", "--name", "north")
    assert "a1b2  left" in fedssl("approve")
    fedssl("join", "a1", "--state", state)
    assert "a1b2  approved" in fedssl("approve")
    wrong = CliRunner().invoke(app, ["client", "leave", "zz"])
    assert str(wrong.exception).startswith("RUN: 0 runs begin with 'zz'; known at state/north: a1b2 (approved)")
    assert "has not left it" in str(CliRunner().invoke(app, ["client", "join", "a1"]).exception)
    nowhere = CliRunner().invoke(app, ["client", "leave", "a1", "--name", "south"])
    assert "--state: say which client's state folder is meant" in str(nowhere.exception)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            ["weights of the online encoder and the predictor\n", "number of images, loss", "no differential privacy"],
        ),
        (
            {"aggregation.secure": True, "update_rule.lambda_at": "client"},
            ["masked: only the sum", "as part of that sum"],
        ),
        ({"method.name": "fedca", "method.public_data": "synthetic"}, ["FEATURES: "]),
    ],
)
def test_a_run_in_words_says_what_will_leave(changes, expected):
    config = load_config("sites", RUN | changes)
    consent = Consent("a1b2", config.as_raw())
    text = in_words(consent, config)
    assert all(one in text for one in [*expected, "2: north, south", "3 rounds", spelled(consent.digest)]), text
