"""Tasks over a Flower grid: the same bits as in one process, and nodes that die, hang, lie or are strangers."""

import json

import pytest
import torch

from fedssl.core.errors import FedsslError, StorageError
from fedssl.core.weights import Weights
from fedssl.experiment.backends import OneMachine
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.flower import client_app as flower_client
from fedssl.federation.engines.flower.api import Array, ArrayRecord, ErrorCode, Message
from fedssl.federation.engines.flower.client_app import Side, make_client_app
from fedssl.federation.engines.flower.directory import ByKey, ByName, Numbered
from fedssl.federation.engines.flower.engine import FlowerEngine
from fedssl.federation.engines.flower.messages import (
    pack_reply,
    pack_task,
    pack_tensors,
    record,
    unpack_reply,
    unpack_task,
    unpack_tensors,
)
from fedssl.federation.messages import Failure, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.model_communication import FedEMA
from fedssl.federation.rounds import ServerState, TooFewClientsError, run_round
from tests.helpers.faults import PRESETS, everything, experiment
from tests.helpers.flower_grid import FakeGrid, Place, answering, context, node, unavailable
from tests.helpers.small import make_client, make_method, make_server, task

NUMBERS = {"loss": 1.0, "images": 8, "seconds": 0.5}


class OverMessages(OneMachine):
    """All of a run's own parts, but every task and reply goes through Flower messages."""

    def engine(self, run):
        answer = answering(Side(run.parts.client, run.store, run.folder.path / "log.jsonl"))
        grid = FakeGrid([node(number) for number in range(6)], answer)
        places = {"grid": grid, "directory": Numbered(grid, 6), "folder": run.folder.path}
        return FlowerEngine(**places, about=lambda _: {}, waiting=run.view.waiting, patience=1.0, pause=0.0)


@pytest.mark.parametrize("name", PRESETS)
def test_the_same_bits_as_in_one_process(tmp_path, name):
    quick = {"rounds": 3, "evaluation.every": 0, "data.test_images": 10, "engine": "in-process"}
    experiment(name, **quick).run(tmp_path / "one")
    over = experiment(name, **quick)
    over.backend = OverMessages()
    over.run(tmp_path / "two")
    assert everything(tmp_path / "two") == everything(tmp_path / "one")
    assert not (tmp_path / "two/uploads").exists()


# --- messages


def of_types():
    return Weights(
        {"a": torch.randn(3, 2), "half": torch.randn(4).bfloat16(), "empty": torch.empty(0, 5)},
        {"count": torch.tensor(7), "bytes": torch.arange(-3, 3, dtype=torch.int8)},
    )


def same(ours, theirs):
    return ours.digest() == theirs.digest() and ours.parameters.keys() == theirs.parameters.keys()


def test_a_task_arrives_as_it_was_sent_whatever_its_types():
    weights, payload = GlobalWeights(of_types(), of_types()), {"queue": torch.randn(2, 3)}
    sent = TrainTask(3, 5, accepted_round=4, global_weights=weights, note={"lambda": 0.1 + 0.2}, payload=payload)
    content = pack_task(sent, pack_tensors(weights, payload), {"run": "x"})
    order = unpack_task(Message(content, dst_node_id=1, message_type="train"))
    assert order.about == {"run": "x"}
    assert order.task.digest() == sent.digest()
    assert same(order.task.global_weights.encoder, weights.encoder)
    assert torch.equal(order.task.payload["queue"], payload["queue"])


def test_a_result_arrives_as_it_was_sent_and_waits_on_disk(tmp_path):
    weights = GlobalWeights(of_types(), of_types())
    sent = TrainResult(
        2, 4, weights, num_examples=17, scalars={**NUMBERS, "mu": 0.1 + 0.2}, payload={"seen": torch.ones(2)}
    )
    got = unpack_reply(Message(pack_reply(sent), dst_node_id=1, message_type="train"), tmp_path / "upload", 10**6)
    assert (got.client_id, got.round_number, got.num_examples, got.scalars) == (2, 4, 17, sent.scalars)
    assert same(got.weights.encoder, weights.encoder)
    assert got.num_bytes() == sent.num_bytes()
    assert (tmp_path / "upload").exists()
    assert torch.equal(got.payload["seen"], torch.ones(2))


def test_of_a_failure_only_the_code_travels(tmp_path):
    failure = Failure(2, 4, "exception", detail="FileNotFoundError: /home/patients/smith.png", trace="Traceback …")
    content = pack_reply(failure)
    assert "smith" not in str(dict(content))
    got = unpack_reply(Message(content, dst_node_id=1, message_type="train"), tmp_path / "upload", 10**6)
    assert got == Failure(2, 4, "exception")
    assert not (tmp_path / "upload").exists()


def nested(depth):
    content = record({})
    content["facts"]["json"] = "[" * depth + "]" * depth
    return content


def layout(about):
    header = json.dumps({"a": {"dtype": "F32", "data_offsets": [0, 0], **about}}).encode()
    return as_array(len(header).to_bytes(8, "little") + header)


def as_array(data):
    return ArrayRecord({"safetensors": Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)})


def bad_replies():
    good = {"client": 0, "round": 1, "num_examples": 3, "scalars": NUMBERS}
    large = GlobalWeights(Weights({"a": torch.zeros(10**6)}), Weights())
    fp8 = pack_tensors(GlobalWeights(Weights({"a": torch.zeros(2).to(torch.float8_e4m3fn)}), Weights()), {})
    tensors = pack_tensors(GlobalWeights(of_types(), of_types()), {})
    torn = as_array(b"\xff" * 9)
    return {
        "no facts": (record({}), "without client and round"),
        "facts that are a list": (record([1]), "no table"),
        "a megabyte of facts": (record(good | {"text": "x" * 2**20}, tensors), "no table of up to 1048576 characters"),
        "facts of great depth": (nested(20_000), r"without readable facts \(RecursionError\)"),
        "a client that is true": (record(good | {"client": True}, tensors), "without client and round"),
        "no numbers": (record(good | {"scalars": None}, tensors), "None is no table"),
        "null": (record(good | {"scalars": NUMBERS | {"seconds": None}}, tensors), "seconds is None, not a number"),
        "beyond floats": (record(good | {"scalars": NUMBERS | {"loss": 10**400}}, tensors), r"loss is 1000+\.\.\.0"),
        "many numbers": (record(good | {"scalars": {f"n{k}": 0 for k in range(65)}}, tensors), "no table of up to 64"),
        "names with signs": (record(good | {"scalars": {"\x1b[31m": 1}}, tensors), "is no name of a number"),
        "numbers of others": (record(good | {"scalars": {**NUMBERS, "client": 3}}, tensors), "client is not for a"),
        "a profile of others": (record(good | {"profile": {"secret": 3}}, tensors), "secret is not for a client"),
        "more than a model": (record(good, pack_tensors(large, {})), "4.0 MB of weights instead of 1.0 MB"),
        "a shape of great numbers": (record(good, layout({"shape": [0, 2**40, 2**40]})), "shape that does not fit"),
        "a shape of texts": (record(good, layout({"shape": ["x"]})), "shape that does not fit"),
        "a header without shapes": (record(good, layout({})), "cannot be read: KeyError"),
        "no tensors": (record(good), "without tensors"),
        "torn tensors": (record(good, torn), "cannot be read"),
        "strange types": (record(good, fp8), "not part of any model"),
    }


@pytest.mark.parametrize("kind", bad_replies())
def test_a_reply_that_is_none_of_ours_is_refused(tmp_path, kind):
    content, text = bad_replies()[kind]
    with pytest.raises(FedsslError, match=text):
        unpack_reply(Message(content, dst_node_id=1, message_type="train"), tmp_path / "upload", 10**6)


# --- nodes that come, go and misbehave


class Federation:
    """Two tiny clients behind a fake grid whose nodes a test moves about."""

    def __init__(self, folder, directory=None, patience=0.5, time_limit=None, **options):
        self.folder = folder
        (folder / "clients").mkdir(parents=True)
        self.client = make_client(make_method(), FedEMA(), clients=2)
        self.side = Side(self.client, ClientStore(folder / "clients"), folder / "log.jsonl")
        self.good = answering(self.side)
        self.grid = FakeGrid([node(10), node(11)], self.good)
        self.said, self.waits = [], []
        directory = directory(self) if directory else Numbered(self.grid, 2)
        self.engine = FlowerEngine(
            grid=self.grid,
            directory=directory,
            folder=folder,
            about=lambda _: {},
            waiting=self.waits.append,
            patience=patience,
            time_limit=time_limit,
            pause=0.01,
        )
        self.server = make_server(2, FedEMA(), pool=self.client.method.pool, **options)
        self.state = ServerState(0, self.client.initial_global_weights())

    def round(self):
        outcome = run_round(self.server, self.engine, self.state)
        self.state = outcome.state
        return outcome


def test_a_node_that_was_killed_and_came_back_gets_its_task_again(tmp_path):
    undisturbed = Federation(tmp_path / "a")
    undisturbed.round()
    federation = Federation(tmp_path / "b", directory=by_key)
    lost = []

    def answer(message, node_id):
        if node_id == 10 and (not lost or message is lost[0]):
            lost.append(message)
            federation.grid.nodes[0] = node(10, "again", b"A")  # the same id: its key is the same
            return None
        return federation.good(message, node_id)

    federation.grid.nodes, federation.grid.answer = [node(10, key=b"A"), node(11, key=b"B")], answer
    outcome = federation.round()
    assert [message.metadata.dst_node_id for message in federation.grid.pushed].count(10) == 2
    assert outcome.failures == []
    assert federation.state.global_weights.digest == undisturbed.state.global_weights.digest
    assert federation.said.count("north is here") == 2


def by_key(federation):
    return ByKey(
        grid=federation.grid, names=["north", "south"], keys={b"A": "north", b"B": "south"}, say=federation.said.append
    )


def by_name(federation):
    return ByName(grid=federation.grid, names=["north", "south"], say=federation.said.append)


def test_tasks_of_a_round_leave_together_so_that_their_weights_are_stored_once(tmp_path, monkeypatch):
    federation = Federation(tmp_path / "a")
    federation.round()
    assert (federation.grid.pushes, len(federation.grid.pushed)) == (1, 2)
    monkeypatch.setattr("fedssl.federation.engines.flower.engine.TOGETHER", 1)
    one_by_one = Federation(tmp_path / "b")
    one_by_one.round()
    assert (one_by_one.grid.pushes, len(one_by_one.grid.pushed)) == (2, 2)
    assert one_by_one.state.global_weights.digest == federation.state.global_weights.digest


def test_a_task_is_sent_again_when_flower_lost_its_node_and_training_is_not_repeated(tmp_path, monkeypatch):
    federation = Federation(tmp_path / "x")
    trained = []
    train = federation.client.train
    monkeypatch.setattr(
        federation.client, "train", lambda *values: trained.append(values[1].client_id) or train(*values)
    )
    lost = []

    def answer(message, node_id):
        reply = federation.good(message, node_id)
        if node_id == 11 and not lost:
            lost.append(reply)
            return unavailable(message)
        return reply

    federation.grid.answer = answer
    assert federation.round().failures == []
    assert sorted(trained) == [0, 1]


def test_a_client_that_stays_away_is_named_after_a_bounded_wait(tmp_path):
    federation = Federation(tmp_path / "x", directory=by_key, retries=0)
    federation.grid.nodes = [node(10, key=b"A"), node(12, key=b"stranger")]
    outcome = federation.round()
    assert [(failure.client_id, failure.code) for failure in outcome.failures] == [(1, "no-reply")]
    assert "south: away for" in outcome.failures[0].detail
    assert any("for south to come (up to 0.5 s)" in text for text in federation.waits)
    assert 12 not in [message.metadata.dst_node_id for message in federation.grid.pushed], "a stranger gets no task"


def test_nobody_there_ends_the_round_with_all_their_names(tmp_path):
    federation = Federation(tmp_path / "x", directory=by_key, retries=0)
    federation.grid.nodes = []
    with pytest.raises(TooFewClientsError, match=r"client 0: no-reply \(north: away.*client 1: no-reply \(south"):
        federation.round()


def test_a_node_that_never_answers_is_left_out_after_the_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("fedssl.federation.engines.flower.engine.GRACE", 0.1)
    federation = Federation(tmp_path / "x", time_limit=0.3)
    federation.grid.answer = lambda message, node_id: federation.good(message, node_id) if node_id == 10 else None
    outcome = federation.round()
    assert [(failure.client_id, failure.code) for failure in outcome.failures] == [(1, "timeout")]
    assert any("client 1 to train" in text for text in federation.waits)


def test_an_app_that_flower_cannot_run_is_not_asked_for_ever(tmp_path):
    federation = Federation(tmp_path / "x")
    code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION

    def answer(message, node_id):
        return federation.good(message, node_id) if node_id == 10 else unavailable(message, code)

    federation.grid.answer = answer
    outcome = federation.round()
    assert [(failure.client_id, failure.code) for failure in outcome.failures] == [(1, "refused")]
    assert f"Flower's error {code}, 3 times" in outcome.failures[0].detail


def test_only_the_node_that_was_asked_can_answer(tmp_path):
    federation = Federation(tmp_path / "x")

    def answer(message, node_id):
        reply = federation.good(message, node_id)
        if node_id == 11:
            reply.metadata.__dict__["_src_node_id"] = 10
        return reply

    federation.grid.answer = answer
    (failure,) = federation.round().failures
    assert (failure.client_id, failure.code, failure.detail) == (1, "rejected", "another node answered")


def test_what_flower_cannot_unpack_is_its_senders_failure_and_a_lost_superlink_nobodys(tmp_path):
    federation = Federation(tmp_path / "x", directory=by_key)
    federation.grid.nodes = [node(10, key=b"A"), node(11, key=b"B")]

    def answer(message, node_id):
        if node_id == 11:
            raise ValueError("no such object")
        return federation.good(message, node_id)

    federation.grid.answer = answer
    (failure,) = federation.round().failures
    assert (failure.client_id, failure.code) == (1, "rejected")
    assert failure.detail == "south: a message that Flower cannot unpack (ValueError), 3 times"

    def gone():
        raise ConnectionError("refused")

    federation.engine.directory.look = lambda: None
    federation.grid.get_nodes = gone
    with pytest.raises(ConnectionError):
        federation.round()


def test_a_disk_of_the_server_that_refuses_is_no_clients_failure(tmp_path, monkeypatch):
    federation = Federation(tmp_path / "x")
    good = federation.good

    def full(*values):
        raise OSError(28, "No space left on device")

    def answer(message, node_id):
        reply = good(message, node_id)
        monkeypatch.setattr("fedssl.federation.engines.flower.messages.write_tensors", full)
        return reply

    federation.grid.answer = answer
    with pytest.raises(StorageError, match="No space left on device"):
        federation.round()


def test_codes_of_the_server_are_not_for_a_client_to_say(tmp_path):
    for code in ("no-reply", "rejected", "duplicate", {"a": 1}, "x" * 10**5):
        content = record({"client": 2, "round": 4, "code": code})
        got = unpack_reply(Message(content, dst_node_id=1, message_type="train"), tmp_path / "upload", 10**6)
        assert got == Failure(2, 4, "exception")


def test_a_node_cannot_answer_for_another_client(tmp_path):
    federation = Federation(tmp_path / "x")

    def answer(message, node_id):
        reply = federation.good(message, node_id)
        if node_id == 11:
            facts = json.loads(reply.content["facts"]["json"]) | {"client": 0}
            reply = Message(record(facts, reply.content["tensors"]), reply_to=message)
        return reply

    federation.grid.answer = answer
    outcome = federation.round()
    assert [(failure.client_id, failure.code) for failure in outcome.failures] == [(1, "rejected")]
    assert [result.client_id for result in outcome.results] == [0]


def test_what_goes_wrong_at_a_client_is_in_its_own_log_only(tmp_path):
    federation = Federation(tmp_path / "x")

    def broken(client_id):
        raise FileNotFoundError("/home/patients/smith.png")

    federation.client.images_of = broken
    with pytest.raises(TooFewClientsError) as error:
        federation.round()
    assert "smith" not in str(error.value)
    assert {failure.code for failure in error.value.failures} == {"exception"}
    lines = [json.loads(line) for line in federation.side.log.read_text().splitlines()]
    assert "smith" in lines[0]["detail"]
    assert "Traceback" in lines[0]["trace"]


@pytest.mark.parametrize(
    ("raised", "code"),
    [(StorageError("full"), "disk"), (FedsslError("no images"), "refused"), (KeyError("x"), "exception")],
)
def test_a_side_that_cannot_be_opened_is_a_code_too(tmp_path, raised, code):
    app = make_client_app(Place(tmp_path / "log.jsonl", refusal=raised))
    sent = task([1.0], [2.0])
    content = pack_task(sent, pack_tensors(sent.global_weights, {}), {})
    reply = app(Message(content, dst_node_id=1, message_type="train"), context({}))
    assert unpack_reply(reply, tmp_path / "upload", 10**6) == Failure(0, 2, code)
    assert json.loads((tmp_path / "log.jsonl").read_text())["detail"] == f"{type(raised).__name__}: {raised}"


def test_a_task_that_says_nonsense_is_a_code_and_tells_the_server_nothing(tmp_path):
    app = make_client_app(Place(tmp_path / "log.jsonl"))
    content = record({"client": None, "round": ["x"], "about": {}})
    reply = app(Message(content, dst_node_id=1, message_type="train"), context({}))
    assert unpack_reply(reply, tmp_path / "upload", 10**6) == Failure(-1, -1, "refused")
    assert "without tensors" in json.loads((tmp_path / "log.jsonl").read_text())["detail"]


def test_a_log_that_cannot_be_written_does_not_hide_the_failure(tmp_path, capsys):
    flower_client._write_down(tmp_path / "gone" / "log.jsonl", Failure(1, 2, "disk", detail="full"))
    assert "full" in capsys.readouterr().out


def test_uploads_stay_until_their_round_is_averaged_and_no_longer(tmp_path):
    federation = Federation(tmp_path / "x", min_clients=2)
    fails = [True]

    def answer(message, node_id):
        if node_id == 11 and fails:
            fails.clear()
            return Message(pack_reply(Failure(1, 1, "exception")), reply_to=message)
        return federation.good(message, node_id)

    federation.grid.answer = answer
    with federation.engine:
        outcome = federation.round()
        assert [failure.code for failure in outcome.failures] == ["exception"]
        assert len([*(tmp_path / "x/uploads").iterdir()]) == 2, "the first upload outlived the second asking"
        assert (tmp_path / "x/uploads").stat().st_mode & 0o077 == 0, "what one client sent is for the server alone"
        federation.round()
        assert len([*(tmp_path / "x/uploads").iterdir()]) == 2
    assert not (tmp_path / "x/uploads").exists()


def test_without_keys_nodes_are_asked_for_their_names_once(tmp_path):
    federation = Federation(tmp_path / "x", directory=by_name)
    names = {10: "south", 11: "north", 12: "eve", 13: "\x1b[2J\ud800" + "x" * 10**5}
    asked, tasks = [], {}

    def answer(message, node_id):
        if message.metadata.message_type == "query":
            asked.append(node_id)
            return Message(record({"name": names[node_id]}), reply_to=message)
        tasks[json.loads(message.content["facts"]["json"])["client"]] = node_id
        return federation.good(message, node_id)

    federation.grid.nodes, federation.grid.answer = [node(10), node(11), node(12), node(13)], answer
    federation.round()
    federation.round()
    assert sorted(set(asked)) == [10, 11, 12, 13]
    assert asked.count(10) == 1
    assert tasks == {0: 11, 1: 10}
    assert "warning: a node calls itself 'eve', which is not in flower.clients: it gets no tasks" in federation.said
    (odd,) = [text for text in federation.said if "x1b[2J" in text]
    assert odd.isprintable()
    assert len(odd) < 200


def test_an_app_says_its_name():
    app = make_client_app(Place(None))
    reply = app(Message(record({}), dst_node_id=1, message_type="query"), context({"name": "north"}))
    assert json.loads(reply.content["facts"]["json"]) == {"name": "north"}


def test_who_left_is_said(tmp_path):
    federation = Federation(tmp_path / "x", directory=by_key)
    federation.grid.nodes = [node(10, key=b"A")]
    federation.engine.directory.look()
    federation.grid.nodes = []
    federation.engine.directory.look()
    assert federation.said == ["north is here", "warning: north is away"]


def test_a_large_model_is_cut_into_small_objects_and_put_together_again():
    weights = GlobalWeights(Weights({"large": torch.randn(3_300_000)}), Weights())  # 13.2 MB
    packed = pack_tensors(weights, {})["safetensors"]
    pieces = packed.children
    assert len(pieces) == 3
    assert max(len(piece.data) for piece in pieces.values()) <= 5 * 2**20
    again = Array.inflate(packed.deflate(), pieces)
    assert same(unpack_tensors(again.data)[0].encoder, weights.encoder)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_weights_travel_in_fewer_bits_and_end_in_the_same_ones(tmp_path, wire):
    quick = {"rounds": 2, "evaluation.every": 0, "data.test_images": 10, "aggregation.wire_dtype": wire}
    experiment("BYOL + FedEMA", engine="in-process", **quick).run(tmp_path / "one")
    over = experiment("BYOL + FedEMA", engine="in-process", **quick)
    over.backend = OverMessages()
    over.run(tmp_path / "two")
    assert everything(tmp_path / "two") == everything(tmp_path / "one")


def test_where_the_time_went_is_known_over_messages_too(tmp_path):
    over = experiment("FedU", engine="in-process", rounds=1, profile=True)
    over.backend = OverMessages()
    over.run(tmp_path / "run")
    (_, line) = (json.loads(text) for text in (tmp_path / "run/profile.jsonl").read_text().splitlines())
    assert line["parts"]["steps"] > 0
    assert abs(line["parts"]["other"]) < line["wall"]
