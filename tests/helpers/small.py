"""Small networks, images and federations that tests share."""

from contextlib import nullcontext

import torch

from fedssl.core.seeding import global_stream
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.federation.client import Client
from fedssl.federation.client_store import ClientStore
from fedssl.federation.engines.in_process import InProcessEngine
from fedssl.federation.local_training import LocalTraining
from fedssl.federation.messages import ClientState, ClientWeights, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.model_communication import UPDATE_RULES
from fedssl.federation.rounds import Server, ServerState, run_rounds
from fedssl.federation.wire import Wire
from fedssl.methods import METHODS
from fedssl.networks.backbones import convnet, feature_size
from fedssl.networks.heads import HeadSizes
from fedssl.networks.vit import vit_tiny

# A whole experiment in about a second: overrides for the preset `smoke`.
TINY = {
    "data.train_images": 80,
    "data.test_images": 40,
    "data.image_size": 16,
    "network.width": 4,
    "network.head_hidden": 16,
    "network.head_out": 8,
    "local_training.batch_size": 8,
    "rounds": 2,
    "threads": 1,
}
HEADS = HeadSizes(hidden=16, out=8)
TRAINING = LocalTraining(epochs=1, batch_size=8, lr=0.05)


def make_method(name="byol", width=4, seed=0, heads=HEADS, **settings):
    if name.startswith("moco"):
        settings = {"queue_size": 24, "out_dim": 8, **settings}
    if name == "dino":
        settings = {"prototypes": 12, "local_views": 1, **settings}
    if name == "mae":
        settings = {"decoder_width": 8, "decoder_depth": 1, **settings}
    with global_stream(seed, "initial-weights"):
        backbone = vit_tiny(3, width=4 * width, depth=1, patch_size=4) if name == "mae" else convnet(3, width=width)
        return METHODS[name](backbone, feature_size(backbone, 3, (16, 16)), heads, **settings)


def make_images(count=80, size=16):
    return synthetic_images(count, 10, size, 0, "train")


def held_by(parts, client):
    """All images that a client of a built run trains on."""
    images = parts.client.images_of(client)
    return images.index_select(0, torch.arange(len(images)))


def make_client(method, rule, *, clients=4, images=None, training=TRAINING, rounds=2, seed=0, **options):
    pixels = make_images().pixels if images is None else images
    parts = torch.arange(len(pixels)).chunk(clients)
    return Client(
        method=method,
        rule=rule,
        recipe=Recipe(),
        training=training,
        images_of=lambda k: pixels[parts[k]],
        rounds=rounds,
        seed=seed,
        num_clients=clients,
        **options,
    )


def make_server(clients, rule, aggregate=None, pool=lambda payloads: {}, *, per_round=None, seed=0, **options):
    aggregate = aggregate or WeightedAverage()
    loop = {"num_clients": clients, "clients_per_round": per_round, "seed": seed}
    return Server(**loop, rule=rule, aggregate=aggregate, pool=pool, **options)


def run(
    folder,
    rule="fedema",
    method="byol",
    *,
    rounds=2,
    clients=4,
    per_round=None,
    seed=0,
    client=None,
    aggregate=None,
    engine=InProcessEngine,
    wire="fp32",
    **settings,
):
    """A whole federated run; returns every round's outcome and the store of client states."""
    rule = UPDATE_RULES[rule](**settings) if isinstance(rule, str) else rule
    if client is None:
        method = make_method(method, seed=seed)
        client = make_client(method, rule, clients=clients, rounds=rounds, seed=seed, wire=Wire(wire))
    about = {"per_round": per_round, "seed": seed, "wire": client.wire}
    server = make_server(clients, rule, aggregate, client.method.pool, **about)
    folder.mkdir(exist_ok=True)
    store = ClientStore(folder)
    state = ServerState(0, client.initial_global_weights())
    made = engine(client, store)
    with made if hasattr(made, "__exit__") else nullcontext():
        return list(run_rounds(server, made, state, rounds)), store


def of(*values):
    """Weights with one convolution, so that both norms apply, and one BatchNorm buffer."""
    return Weights(
        {"conv1.weight": torch.tensor(values, dtype=torch.float32).reshape(len(values), 1, 1, 1)},
        {"bn.running_mean": torch.tensor([100.0 * values[0]])},
    )


def state(online, predictor, target, last_round=1, **scalars):
    return ClientState(ClientWeights(of(*online), of(*predictor), of(*target)), last_round, scalars=scalars)


def task(encoder, predictor, round_number=2, accepted_round=1, **note):
    return TrainTask(
        0,
        round_number,
        accepted_round=accepted_round,
        global_weights=GlobalWeights(of(*encoder), of(*predictor)),
        note=note,
    )


def result(client_id, encoder, predictor, num_examples=10, **scalars):
    return TrainResult(
        client_id, 1, GlobalWeights(of(*encoder), of(*predictor)), num_examples=num_examples, scalars=scalars
    )


def values(weights):
    return weights.parameters["conv1.weight"].flatten().tolist()


def digests(outcome):
    weights = outcome.state.global_weights
    return weights.encoder.digest(), weights.predictor.digest()


def state_digests(store, outcome):
    """Every client's online, predictor and target, as the server accepted them."""
    found = {}
    for client, accepted in outcome.state.accepted_round.items():
        weights = store.load(client, accepted).weights
        found[client] = (weights.online.digest(), weights.predictor.digest(), weights.target.digest())
    return found
