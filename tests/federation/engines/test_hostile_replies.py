"""Replies that a registered client may make up, through the whole of the server's path: FAULTS 42 and 53."""

import copy
import functools
import json
import random

import torch

from fedssl.core.weights import Weights, non_finite
from fedssl.experiment.backends import OneMachine
from fedssl.experiment.experiment import load
from fedssl.experiment.progress.views import PlainView
from fedssl.experiment.records.run_record import RunRecord
from fedssl.federation.checkpoint import CheckpointStore
from fedssl.federation.engines.flower.api import Message
from fedssl.federation.engines.flower.directory import ByKey
from fedssl.federation.engines.flower.engine import FlowerEngine
from fedssl.federation.engines.flower.messages import buffer_of, facts_of, pack_reply, pack_tensors, record
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.reports.prose import story, tiles, warnings
from tests.federation.engines.test_flower import as_array, nested
from tests.helpers.faults import SETTINGS
from tests.helpers.flower_grid import FakeGrid, node

HONEST, CLIENTS = (0, 1), 42  # the others lie
DEEP = functools.reduce(lambda inner, _: [inner], range(300), 0)
NEVER = [None, "text", "\x1b[2J\ud800[/red]", "x" * 10**5, [], [1], {"a": 1}, DEEP, 10**400, True]
NO_NUMBER = [*NEVER, float("nan"), float("inf"), 1e300]
TEXT = "\x1b]0;title\x07[/b]<script>\u202e"


def places(facts):
    """(where, what) pairs: any of these makes a reply one that no client of this run may send."""
    yield from ((("client",), value) for value in [*NEVER, -1, 0, 41.0])
    yield from ((("round",), value) for value in [*NEVER, 0, 10**9])
    yield from ((("num_examples",), value) for value in [*NO_NUMBER, 0, -1, 10**10, 2.0])
    yield from (
        (("scalars",), value) for value in [*NEVER, {}, {"loss": 1.0}, dict.fromkeys(map("n{}".format, range(65)), 0)]
    )
    yield from ((("profile",), value) for value in [*NEVER, {"secret": 1.0}, {TEXT: 1.0}])
    for name in facts["scalars"]:
        yield from ((("scalars", name), value) for value in NO_NUMBER)
    for name in ("images", "seconds"):
        yield from ((("scalars", name), value) for value in (-1, 1e50))
    yield from ((("profile", "steps"), value) for value in [*NO_NUMBER, -1.0])
    yield from ((("scalars", name), 1.0) for name in ("client", "n", "bytes_up", TEXT, "x" * 65, ""))


def bad_facts(facts, stream):
    """The facts of a good reply with one thing in them that cannot be."""
    facts = copy.deepcopy(facts)
    (*path, last), value = stream.choice(list(places(facts)))
    functools.reduce(dict.__getitem__, path, facts)[last] = value
    return facts


def bad_tensors(weights, stream):
    """A buffer that no client of this run may send: something in the header, or a value that cannot be averaged."""
    name = stream.choice(sorted(weights.encoder.parameters))
    value = stream.choice([float("nan"), float("inf"), 3e38, -3e38])
    poisoned = weights.encoder.map(lambda one, tensor: tensor.clone().fill_(value) if one == name else tensor)
    shapes = [[0, 2**40, 2**40], [2**63], [-1], [True], "x", None, [[1]], [2**32, 2**32], {}, [10**400]]
    about = {"dtype": stream.choice(["F32", "F8_E4M3", "X", None, 7]), "shape": stream.choice(shapes)}
    name = stream.choice(["encoder/parameters/x", TEXT, "x" * 10**5])
    header = json.dumps({name: about | {"data_offsets": stream.choice([[0, 0], [0, 2**60], [-1, 0], None])}}).encode()
    claimed = stream.choice([len(header), 0, 2**63, len(header) + 1])
    extra = GlobalWeights(Weights({**weights.encoder.parameters, TEXT: torch.zeros(1)}), weights.predictor)
    return stream.choice(
        [
            pack_tensors(GlobalWeights(poisoned, weights.predictor), {}),
            as_array(claimed.to_bytes(8, "little") + header),
            pack_tensors(extra, {}),
            pack_tensors(weights, {TEXT: torch.ones(1)}),
            pack_tensors(GlobalWeights(Weights(), weights.predictor), {}),
            as_array(b""),
        ]
    )


def flipped(data, stream):
    """One to eight bits or bytes changed, or cut off: what is left may still be a good reply."""
    data = bytearray(data)
    for _ in range(stream.randint(1, 8)):
        data[stream.randrange(stream.choice([8, 512, len(data)]))] = stream.randrange(256)
    return bytes(data[: stream.choice([len(data), len(data), stream.randrange(len(data))])])


CERTAIN, UNCERTAIN = ("facts", "tensors", "both", "deep", "none"), ("text", "bits")


def mutated(good, weights, kind, stream):
    """The content of a good reply that was tampered with."""
    facts, buffer = facts_of(good), buffer_of(good)
    if kind == "deep":
        return nested(stream.choice([500, 20_000]))
    if kind == "none":
        return record(facts)
    told = bad_facts(facts, stream) if kind in ("facts", "both") else facts
    if kind in ("tensors", "both"):
        return record(told, bad_tensors(weights, stream))
    content = record(told, as_array(flipped(buffer, stream) if kind == "bits" else buffer))
    if kind == "text":
        content["facts"]["json"] = flipped(json.dumps(facts).encode(), stream).decode(errors="replace")
    return content


class Liars(OneMachine):
    """A run whose clients behind a grid answer at once: two as they should, the others with something made up."""

    def __init__(self, seed, kinds=CERTAIN + UNCERTAIN):
        self.stream, self.kinds, self.certain, self.made = random.Random(seed), kinds, {}, 0

    def engine(self, run):
        self.weights = run.parts.client.initial_global_weights()
        names = [f"site-{number}" for number in range(CLIENTS)]
        nodes = [node(number, key=name.encode()) for number, name in enumerate(names)]
        grid = FakeGrid(nodes, self.answer)
        directory = ByKey(grid=grid, names=names, keys={name.encode(): name for name in names}, say=lambda text: None)
        places = {"grid": grid, "directory": directory, "folder": run.folder.path}
        return FlowerEngine(**places, about=lambda _: {}, waiting=run.view.waiting, patience=60.0, pause=0.0)

    def trained(self, number, round_number):
        """What a client would have sent."""
        shift = 0.001 * (number + round_number)
        encoder = self.weights.encoder.map(lambda _, tensor: tensor + shift if tensor.is_floating_point() else tensor)
        numbers = {"loss": 1.0, "images": 8, "seconds": 0.0, "feature_std": 0.5, "training_divergence": 0.25}
        weights = GlobalWeights(encoder, self.weights.predictor)
        return TrainResult(
            number, round_number, weights, num_examples=5 + number, scalars=numbers, profile={"steps": 0.25}
        )

    def answer(self, message, number):
        round_number = facts_of(message)["round"]
        good = Message(pack_reply(self.trained(number, round_number)), reply_to=message)
        if number in HONEST:
            return good
        self.made += 1
        kind = self.stream.choice(self.kinds)
        if kind in CERTAIN:
            self.certain.setdefault(round_number, set()).add(number)
        return Message(mutated(good, self.weights, kind, self.stream), reply_to=message)


class Said(PlainView):
    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def run_against(liars, folder, rounds, view=None):
    settings = {"partition.num_clients": CLIENTS, "client_sampling.clients_per_round": CLIENTS, "rounds": rounds}
    settings |= {"data.test_images": 10, "evaluation.every": 0, "failures.min_clients": 2, "failures.retries": 0}
    settings |= {"engine": "in-process", "profile": True, "update_rule.between": "before-after"}
    experiment = load("smoke", SETTINGS | settings)
    experiment.backend = liars
    experiment.run(folder, view)
    return CheckpointStore(folder / "checkpoints").load(rounds).state


def lie_to_a_server(folder, count, seed=0):
    """Runs a server against `count` made-up replies and asserts all that is promised; returns what was counted."""
    liars, view, named = Liars(seed), Said(), {}
    state = run_against(liars, folder, -(-count // (CLIENTS - len(HONEST))), view)
    assert not [*non_finite(state.global_weights.encoder), *non_finite(state.global_weights.predictor)]
    for line in (folder / "failures.jsonl").read_text().splitlines():
        failure = json.loads(line)
        assert failure["code"] in ("rejected", "wrong-round", "exception"), failure
        assert failure["detail"].isprintable()
        assert len(failure["detail"]) < 300
        named.setdefault(failure["round_number"], set()).add(failure["client_id"])
    record = RunRecord.read(folder)
    for one in record.trained:
        accepted, rejected = {client["client"] for client in one["clients"]}, named[one["round"]]
        assert accepted >= set(HONEST)
        assert rejected >= liars.certain[one["round"]]
        assert sorted([*accepted, *rejected]) == list(range(CLIENTS)), "everybody once"
    shown = [*view.lines, *story(record, 10), *warnings(record), *(tile.value for tile in tiles(record))]
    assert [text for text in shown if not text.replace("\xa0", " ").isprintable()] == []
    certain, rejected = (sum(map(len, found.values())) for found in (liars.certain, named))
    return {"replies": liars.made, "certainly bad": certain, "rejected": rejected}


def test_no_reply_ends_a_server_and_who_sent_a_bad_one_is_named(tmp_path):
    found = lie_to_a_server(tmp_path / "run", 2_000)
    assert found["replies"] >= 2_000
    assert found["certainly bad"] > 1_000


def test_the_honest_are_averaged_as_if_nobody_else_was_there(tmp_path):
    liars = Liars(1, CERTAIN)
    state = run_against(liars, tmp_path / "run", 1)
    honest = [liars.trained(number, 1) for number in HONEST]
    assert state.global_weights.digest == WeightedAverage()(honest, liars.weights).digest
