from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.data.dataset import Images
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.evaluation.context import Context, LabelledData
from fedssl.evaluation.feature_cache import FeatureCache
from fedssl.evaluation.features import compute_features, mode
from fedssl.evaluation.fine_tune import fine_tuned, new_head, train_supervised
from fedssl.evaluation.fitting import Fitting
from fedssl.evaluation.protocols import KNN, PROTOCOLS, Linear, SemiSupervised
from fedssl.networks.backbones import convnet
from fedssl.networks.heads import Encoder, HeadSizes, mlp

SHORT = Fitting(epochs=2, batch_size=16, lr=1e-3)


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return Encoder(convnet(3, width=4), mlp(32, HeadSizes(16, 8)))


@pytest.fixture(scope="module")
def data():
    train, test = (synthetic_images(n, 5, 16, 0, part) for n, part in ((60, "train"), (30, "test")))
    return LabelledData("synthetic", train, test, lambda fraction: np.arange(round(fraction * 60)))


def small(protocol):
    return protocol.adapted(epochs=2)


# --- the contract, for every protocol and variant --------------------------------------------------------------------


@pytest.mark.parametrize("batchnorm", ["running", "reestimated"])
@pytest.mark.parametrize("variant", ["paper", "authors"])
@pytest.mark.parametrize("name", ["knn", "linear", "semi-10"])
def test_every_protocol_names_a_class_for_each_test_image_and_changes_nothing(encoder, data, name, variant, batchnorm):
    encoder.projector.eval()  # parts may be in different modes: each must get its own back
    before = Weights.of(encoder).digest(), [part.training for part in encoder.modules()]
    protocol = small(PROTOCOLS[name][variant])
    first, again = (protocol.predict(Context(encoder, data, batchnorm=batchnorm), 3).classes for _ in "ab")
    assert first.shape == (30,)
    assert set(first.tolist()) <= set(range(5))
    assert torch.equal(first, again), "the same seed, the same predictions"
    assert (Weights.of(encoder).digest(), [part.training for part in encoder.modules()]) == before


def test_settings_as_the_paper_and_the_authors_have_them():
    assert PROTOCOLS["knn"]["paper"] == KNN(k=200, temperature=0.1, features="backbone")
    assert PROTOCOLS["knn"]["authors"].features == "projection"
    assert PROTOCOLS["linear"]["paper"] == Linear(epochs=200, batch_size=512, lr=3e-3, shuffle=True)
    assert PROTOCOLS["linear"]["authors"] == Linear(epochs=200, batch_size=2048, lr=3e-3, shuffle=False)
    for name, fraction in (("semi-1", 0.01), ("semi-10", 0.1)):
        paper, authors = PROTOCOLS[name]["paper"], PROTOCOLS[name]["authors"]
        assert paper == SemiSupervised(fraction=fraction, hidden=4096, epochs=100, batch_size=128, lr=1e-3)
        assert (paper.trained, authors.trained) == ("whole model", "head")


def test_another_seed_another_probe(encoder, data):
    protocol = Linear(epochs=1, batch_size=8)
    first, other = (protocol.predict(Context(encoder, data), seed).classes for seed in (0, 1))
    assert not torch.equal(first, other)


# --- semi-supervised -------------------------------------------------------------------------------------------------


def test_paper_trains_the_whole_model(encoder, data):
    before = Weights.of(encoder.backbone)
    model = fine_tuned(encoder.backbone, data.train.select(range(20)), new_head(32, 64, 5, 0), SHORT, 0)
    after = Weights.of(model[0])
    assert all(not torch.equal(before.parameters[n], after.parameters[n]) for n in before.parameters)
    assert Weights.of(encoder.backbone).digest() == before.digest(), "the run's encoder itself is untouched"
    assert [type(layer) for layer in model[1]] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


def trained_networks(monkeypatch, protocol, encoder, data):
    """The weights of every network that the protocol hands to the optimizer."""
    from fedssl.evaluation import fitting as training

    seen, adam = [], torch.optim.Adam

    def record(parameters, **options):
        parameters = list(parameters)
        seen.extend(tuple(p.shape) for p in parameters)
        return adam(parameters, **options)

    monkeypatch.setattr(training, "eager", {adam: record}.get)
    protocol.predict(Context(encoder, data), 0)
    return seen


def test_authors_train_the_head_alone(monkeypatch, encoder, data):
    convolutions = {tuple(p.shape) for p in encoder.backbone.parameters() if p.ndim == 4}
    paper, authors = (replace(PROTOCOLS["semi-10"][v], epochs=1, hidden=64) for v in ("paper", "authors"))
    assert convolutions <= set(trained_networks(monkeypatch, paper, encoder, data))
    assert set(trained_networks(monkeypatch, authors, encoder, data)) == {(64, 32), (64,), (5, 64), (5,)}


def test_authors_report_the_best_test_epoch_and_paper_the_last(encoder, data):
    authors = replace(PROTOCOLS["semi-10"]["authors"], hidden=64, lr=0.05)
    found = [replace(authors, epochs=epochs).predict(Context(encoder, data), 0) for epochs in range(1, 9)]
    right = [int((f.classes == data.test_labels).sum()) for f in found]
    assert right == sorted(right), "more epochs can only find a better one"
    last = found[-1].facts["epoch"]
    assert right[last - 1] == right[-1]
    assert last == 1 or right[last - 2] < right[-1], "the first epoch that is as good"
    assert replace(PROTOCOLS["semi-10"]["paper"], epochs=3).predict(Context(encoder, data), 0).facts["epoch"] == 3


def test_semi_learns_from_the_labelled_images_and_no_others(encoder, data):
    protocol = SemiSupervised(fraction=0.5, epochs=2, hidden=64)
    outcome = protocol.predict(Context(encoder, data), 0)
    assert outcome.facts["labelled_images"] == 30
    pixels = data.train.pixels.clone()
    pixels[30:] = 0  # only the first 30 are labelled: the others must not matter
    blinded = LabelledData("blinded", Images(pixels, data.train.labels), data.test, data.labelled)
    assert torch.equal(protocol.predict(Context(encoder, blinded), 0).classes, outcome.classes)


def test_too_few_labelled_images(encoder, data):
    with pytest.raises(FedsslError, match=r"synthetic: 1 % of its training images are 1: too few"):
        PROTOCOLS["semi-1"]["paper"].predict(Context(encoder, data), 0)
    with pytest.raises(FedsslError, match="no labelled images are known"):
        PROTOCOLS["semi-1"]["paper"].predict(Context(encoder, LabelledData("x", data.train, data.test)), 0)


def test_a_rest_of_one_image_is_left_out_for_batchnorm(encoder, data):
    """17 images in batches of 16 would leave one, which BatchNorm refuses."""
    fine_tuned(encoder.backbone, data.train.select(range(17)), new_head(32, 64, 5, 0), SHORT, 0)


def test_supervised_baseline_learns_its_labels(data):
    torch.manual_seed(0)
    encoder = Encoder(convnet(3, width=8), nn.Identity())
    untrained = deepcopy(encoder)
    train_supervised(encoder, data.train, Fitting(epochs=30, batch_size=20, lr=3e-3), seed=0)
    on_itself = LabelledData("train", data.train, data.train)
    right = [
        int((Linear(epochs=60, batch_size=20).predict(Context(e, on_itself), 0).classes == data.train.labels).sum())
        for e in (untrained, encoder)
    ]
    assert right[1] > right[0] + 10


def test_modes_come_back_after_an_error(encoder):
    encoder.projector.eval()

    def fail():
        with mode(encoder, training=True):
            assert encoder.projector.training
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert (encoder.training, encoder.projector.training, encoder.backbone.bn1.training) == (True, False, True)


# --- labels ----------------------------------------------------------------------------------------------------------


def with_labels(train, test):
    def images(labels):
        return Images(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), torch.tensor(labels, dtype=torch.int64))

    return LabelledData("letters", images(train), images(test))


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([1, 2, 3], [1], r"letters: .* not 0 … C − 1 \(there is no image of class 0, and one of class 3\)"),
        ([0, 1, 3], [0], r"letters: .*there is no image of class 2, and one of class 3"),
        ([0, 1], [0, 2], r"letters: its test images have the class 2, its training images only 0 … 1"),
        ([0, 1], [], "letters: the dataset has no images"),
    ],
)
def test_labels_that_cannot_be_used(train, test, message):
    with pytest.raises(FedsslError, match=message) as caught:
        with_labels(train, test).check()
    assert "\n" not in str(caught.value)


def test_a_dataset_without_labels(data):
    with pytest.raises(FedsslError, match=r"plain: the dataset has no labels: evaluation needs labelled images"):
        LabelledData("plain", data.train.unlabelled(), data.test).check()
    with_labels([0, 1, 1], [0]).check()  # a class without test images is no fault


# --- the feature cache -----------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """How often features were computed."""
    from fedssl.evaluation import context as bench

    calls = []

    def count(*arguments, **options):
        calls.append(1)
        return compute_features(*arguments, **options)

    monkeypatch.setattr(bench, "compute_features", count)
    return calls


def test_features_are_computed_once_and_read_back_equal(encoder, data, tmp_path, counted):
    cache = FeatureCache(tmp_path / "features")
    first = Context(encoder, data, batchnorm="reestimated", cache=cache)
    one, two = first.features("backbone"), first.features("backbone")
    assert one is two
    assert len(counted) == 2, "training and test images"
    again = Context(encoder, data, batchnorm="reestimated", cache=cache).features("backbone")
    assert len(counted) == 2
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert len(list((tmp_path / "features").iterdir())) == 1, "and no unfinished file"


def test_another_encoder_dataset_mode_or_kind_has_other_features(encoder, data, tmp_path, counted):
    cache = FeatureCache(tmp_path)
    fewer = LabelledData("synthetic", data.train, data.test.select(range(20)))
    other = deepcopy(encoder)
    nn.init.zeros_(other.backbone.conv1.weight)
    for arguments, kind in [
        ((encoder, data), "backbone"),
        ((encoder, data), "projection"),
        ((encoder, data, "reestimated"), "backbone"),
        ((encoder, fewer), "backbone"),
        ((other, data), "backbone"),
    ]:
        options = dict(zip(("encoder", "data", "batchnorm"), arguments, strict=False))
        Context(**options, cache=cache).features(kind)
    assert len(counted) == 10
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_cache_file_is_computed_again(encoder, data, tmp_path, counted, damage):
    cache = FeatureCache(tmp_path)
    before = Context(encoder, data, cache=cache).features("backbone")
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    after = Context(encoder, data, cache=cache).features("backbone")
    assert len(counted) == 4
    assert torch.equal(before[0], after[0])
    Context(encoder, data, cache=cache).features("backbone")
    assert len(counted) == 4, "and mended"


# --- what an evaluation asks of a protocol, whichever it is ----------------------------------------------------------


def test_a_protocol_takes_the_settings_that_it_has_and_leaves_the_others():
    asked = {"k": 5, "temperature": 0.5, "epochs": 7}
    assert KNN().adapted(**asked) == KNN(k=5, temperature=0.5)
    assert Linear().adapted(**asked) == Linear(epochs=7)
    assert Linear(epochs=3).adapted(k=5, epochs=None) == Linear(epochs=3)


def test_only_a_protocol_that_needs_unseen_images_refuses_data_without_them(data):
    without = LabelledData("x", data.train, data.test)
    for name in ("knn", "linear"):
        PROTOCOLS[name]["paper"].check(without)
    with pytest.raises(FedsslError, match="no labelled images are known"):
        PROTOCOLS["semi-10"]["paper"].check(without)
