"""`fedssl finetune`: a classifier from an encoder and a few labelled images."""

import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.core.weights import Weights
from fedssl.encoders.classifier import load_classifier
from fedssl.encoders.finetune import Request, confusion_matrix, fine_tune
from fedssl.encoders.trained import open_encoder
from fedssl.evaluation.score import wilson_interval
from fedssl.networks.weight_files import read_weight_file, weight_file
from tests.helpers.small_photos import COLOURS, photos_and_run, train, write_photos

QUICK = {"epochs": 40, "batch_size": 8, "hidden": 16, "lr": 0.01}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return photos_and_run(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def made(place):
    request = Request(data=str(place / "photos"), test_fraction=0.25, formats=("safetensors", "onnx"), **QUICK)
    return fine_tune(place / "run", request, place / "classifier")


def images_of(place, count=4):
    """uint8 of the run's size, and their classes."""
    rows, names = [], []
    for name in COLOURS:
        for number in range(count):
            image = Image.open(place / "photos" / name / f"{number:03}.png")
            box = (2, 0, 22, 20)
            rows.append(np.asarray(image.resize((16, 16), Image.Resampling.BILINEAR, box)).transpose(2, 0, 1))
            names.append(name)
    return torch.from_numpy(np.stack(rows)), names


def test_colours_are_learnt_and_the_result_is_written_with_its_interval(made, place):
    result = json.loads((made.folder / "result.json").read_text())
    assert (result["learnt_from"], result["n"]) == (18, 6)
    assert result["classes"] == ["blue", "green", "red"]
    assert result["accuracy"] == made.score.accuracy == result["correct"] / 6
    assert result["accuracy"] >= 5 / 6
    assert result["interval_95"] == list(wilson_interval(result["correct"], 6))
    confusion = json.loads((made.folder / "confusion.json").read_text())
    assert np.trace(confusion["true_by_named"]) == result["correct"]
    assert np.sum(confusion["true_by_named"], axis=1).tolist() == [2, 2, 2]
    assert Image.open(made.folder / "confusion.png").size[0] > 300
    assert len((made.folder / "skipped.jsonl").read_text().splitlines()) == 3
    assert str(place) not in (made.folder / "result.json").read_text()


def test_the_classifier_comes_back_and_names_classes(made, place):
    images, names = images_of(place)
    classifier = fedssl.load_classifier(made.folder)
    assert not classifier.training
    assert classifier.class_names == ["blue", "green", "red"]
    named = classifier.predict(images)
    assert np.mean([a == b for a, b in zip(named, names, strict=True)]) > 0.9
    probabilities = classifier(images)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(12))
    torch.testing.assert_close(classifier(images.float() / 255), probabilities)
    assert classifier.decoding.image_size == 16


def test_onnx_gives_the_same_probabilities_for_any_number_of_images(made, place):
    images, _ = images_of(place)
    session = onnxruntime.InferenceSession(made.folder / "classifier.onnx")
    (found,) = session.run(["probabilities"], {"images": (images.float() / 255).numpy()})
    np.testing.assert_allclose(found, load_classifier(made.folder)(images).detach().numpy(), rtol=0, atol=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedssl"])
    assert about["classes"] == ["blue", "green", "red"]


def test_head_only_leaves_the_encoder_as_it_was(made, place, tmp_path):
    request = Request(data=str(place / "photos"), head_only=True, **QUICK)
    head = fine_tune(place / "run", request, tmp_path / "head")
    backbone = Weights.of(open_encoder(place / "run").model.backbone).digest()
    assert Weights.of(head.classifier.backbone).digest() == backbone
    assert Weights.of(made.classifier.backbone).digest() != backbone
    assert head.score.accuracy > 0.5


def test_the_same_seed_gives_the_same_classifier(place, tmp_path):
    short = {**QUICK, "epochs": 2}
    first, again, other = (
        fine_tune(place / "run", Request(data=str(place / "photos"), seed=seed, **short), tmp_path / name).classifier
        for seed, name in ((1, "a"), (1, "b"), (2, "c"))
    )
    assert Weights.of(first).digest() == Weights.of(again).digest() != Weights.of(other).digest()


def test_other_images_to_test_with_or_none(place, tmp_path):
    write_photos(tmp_path / "test", each=3, seed=1)
    request = Request(data=str(place / "photos"), test=str(tmp_path / "test"), **QUICK | {"epochs": 2})
    tested = fine_tune(place / "run", request, tmp_path / "tested")
    assert (tested.learnt_from, tested.score.n) == (24, 9)
    request = Request(data=str(place / "photos"), test_fraction=0, **QUICK | {"epochs": 2})
    untested = fine_tune(place / "run", request, tmp_path / "untested")
    assert (untested.learnt_from, untested.score) == (24, None)
    assert sorted(path.name for path in untested.folder.iterdir()) == [
        "README.md",
        "classifier.safetensors",
        "result.json",
        "skipped.jsonl",
    ]
    assert "not tested" in (untested.folder / "README.md").read_text()


def test_labels_of_a_table(place, tmp_path):
    lines = [f"{name}/{number:03}.png,{name[0]}" for name in ("red", "green") for number in range(6)]
    (place / "photos" / "few.csv").write_text("path,shows\n" + "\n".join(lines) + "\n")
    settings = {"label_column": "shows"}
    request = Request(data=str(place / "photos" / "few.csv"), data_settings=settings, **QUICK | {"epochs": 1})
    assert fine_tune(place / "run", request, tmp_path / "out").classifier.class_names == ["g", "r"]


def test_a_confusion_matrix_by_hand():
    true, named = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 0, 2, 2])
    assert confusion_matrix(true, named, 3).tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "--epochs: 0 is not 1 or more"),
        ({"batch_size": 0}, "--batch-size: 0"),
        ({"lr": 0}, "--lr: 0 is not above 0"),
        ({"test_fraction": 1.0}, "--test-fraction: 1 is not"),
        ({"formats": ("timm",)}, "a classifier is written as safetensors or onnx, not as timm"),
        ({"formats": ("onx",)}, r"--to: there is no 'onx' \(did you mean 'onnx'\?\)"),
    ],
)
def test_bad_numbers_are_refused(settings, message):
    with pytest.raises(FedsslError, match=message):
        Request(data="x", **settings)


def test_images_without_classes_are_refused(place, tmp_path):
    unlabelled = str(place / "photos" / "green")
    with pytest.raises(FedsslError, match="no labels to test with"):
        fine_tune(place / "run", Request(data=unlabelled), tmp_path / "out")
    with pytest.raises(FedsslError, match="two or more classes are needed"):
        fine_tune(place / "run", Request(data=unlabelled, test_fraction=0), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_classifier_is_said(made, place, tmp_path):
    with pytest.raises(FedsslError, match="it names no classes"):
        load_classifier(place / "run" / "encoder.safetensors")
    with pytest.raises(FedsslError, match="there is no encoder"):
        load_classifier(tmp_path)
    file = read_weight_file(made.folder / "classifier.safetensors")
    del file.tensors["head.0.weight"]
    (tmp_path / "broken.safetensors").write_bytes(weight_file(file.tensors, file.about))
    with pytest.raises(FedsslError, match=r"not those of the network that it names: .*head\.0\.weight"):
        load_classifier(tmp_path / "broken.safetensors")


def test_training_can_go_on_from_a_classifiers_backbone(made, place, tmp_path):
    from fedssl.experiment.build.parts import build
    from fedssl.experiment.config.layers import load_config

    config = load_config(
        str(place / "run" / "config.toml"), {"init.encoder": str(made.folder / "classifier.safetensors")}
    )
    backbone = build(config).client.method.online_encoder.backbone
    assert Weights.of(backbone).digest() == Weights.of(made.classifier.backbone).digest()


@pytest.mark.parametrize("silos", [True, False])
def test_silos_for_classes_are_warned_of_before_the_training(place, tmp_path, silos):
    """The run's own clients, whatever they are called, or folders that look like sites; the rest goes on."""
    run, data = place / "run", tmp_path / "sites"
    if silos:
        write_photos(data)
        run = train(data, tmp_path / "run", **{"data.layout": "silos", "partition.num_clients": 3})
        shutil.copytree(data / "red", data / "late")  # as a silo that the run has left out
        expected = f"warning: --data {data}: the classes blue, green, red are clients of the run, sites and not classes"
    else:
        write_photos(data / "site1")
        write_photos(data / "site2", seed=1)
        expected = f"warning: --data {data}: the folders site1, site2 look like sites, not classes"
    said = []
    request = Request(data=str(data), **QUICK | {"epochs": 1})
    made = fine_tune(run, request, tmp_path / "out", lambda text, *counts: said.append(text), said.append)
    [warned] = [place for place, text in enumerate(said) if text.startswith(expected)]
    assert warned < said.index("fine-tuning")
    assert len(made.classifier.class_names) == (4 if silos else 2)


def test_classes_are_no_sites(made, place, tmp_path):
    said = []
    request = Request(data=str(place / "photos"), head_only=True, **QUICK | {"epochs": 1})
    fine_tune(place / "run", request, tmp_path / "out", say=said.append)
    assert said == []


def test_a_classifier_refuses_images_of_another_size_or_range(made):
    with pytest.raises(FedsslError, match="of shape 2 x 3 x 8 x 8, this encoder takes N x 3 x 16 x 16"):
        made.classifier(torch.zeros(2, 3, 8, 8))
    with pytest.raises(FedsslError, match="floats from 0 to 255: give floats from 0 to 1"):
        made.classifier.predict(torch.tensor([0.0, 255.0]).repeat(384).reshape(1, 3, 16, 16))
