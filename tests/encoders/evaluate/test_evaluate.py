"""Evaluation of whole run folders: what is computed for which encoder, what is written, and what is refused."""

import json
import shutil
import statistics

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedssl.core.checksums import measure
from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.lines import read_lines
from fedssl.core.weights import Weights
from fedssl.data import DATASETS
from fedssl.data.dataset import Dataset, Images
from fedssl.data.standard.cached import synthetic
from fedssl.encoders.evaluate import Request, evaluate
from fedssl.encoders.evaluate.request import parse_epochs, parse_names, parse_settings
from fedssl.evaluation import context as bench
from fedssl.evaluation.results import headline
from fedssl.evaluation.score import wilson_interval
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.records.run_record import read_summary
from tests.helpers.small import TINY
from tests.helpers.written_runs import as_older

SMALL = TINY | {"data.train_images": 120, "evaluation.linear_probe": True, "evaluation.linear_epochs": 3}
QUICK = {"linear": 3, "semi": 2, "supervised": 2}


def make_run(folder, preset="smoke", **settings):
    return load(preset, SMALL | settings).run(folder).folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Made once; tests get a copy, for evaluation writes into the folder."""
    return make_run(tmp_path_factory.mktemp("runs") / "run", **{"data.labelled_fraction": 0.1})


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def by(results, **wanted):
    found = [r for r in results if all(getattr(r, name) == value for name, value in wanted.items())]
    assert found, wanted
    return found


# --- what is computed ------------------------------------------------------------------------------------------------


def test_command_and_monitor_agree_to_the_last_image(run):
    results = evaluate(run, Request(epochs=QUICK))
    final = json.loads((run / "summary.json").read_text())["final"]
    for protocol in ("knn", "linear"):
        for batchnorm, suffix in (("running", ""), ("reestimated", "_reestimated")):
            (result,) = by(results, protocol=protocol, batchnorm=batchnorm)
            assert result.score.accuracy == final[f"{protocol}{suffix}"]
            assert result.encoder == "global"
            assert result.score.n == 40


def test_all_protocols_with_seeds(run):
    request = Request(protocols=("knn", "linear", "semi-1", "semi-10"), seeds=2, epochs=QUICK)
    results = evaluate(run, request)
    assert [r.seed for r in by(results, protocol="linear", batchnorm="running")] == [0, 1]
    assert [r.seed for r in by(results, protocol="knn", batchnorm="running")] == [None], "kNN draws nothing"
    assert {r.batchnorm for r in by(results, protocol="semi-10")} == {"running"}
    assert by(results, protocol="semi-1")[0].details["labelled_images"] == 10, "one of each class of 12 images"
    assert by(results, protocol="semi-10")[0].details["labelled_images"] == 10
    entries = {(e["protocol"], e["batchnorm"]): e for e in headline(results)}
    assert entries["linear", "running"]["seeds"] == 2
    accuracies = [r.score.accuracy for r in by(results, protocol="linear", batchnorm="running")]
    assert entries["linear", "running"]["sd"] == pytest.approx(statistics.stdev(accuracies))


@pytest.mark.parametrize(("batchnorm", "modes"), [("running", 1), ("reestimated", 1), ("both", 2)])
def test_batchnorm_modes(run, batchnorm, modes):
    results = evaluate(run, Request(protocols=("knn", "semi-10"), batchnorm=batchnorm, epochs=QUICK))
    assert len(results) == 2 * modes
    assert {r.batchnorm for r in results} == ({"running", "reestimated"} if modes == 2 else {batchnorm})


def test_variants_are_recorded_and_differ(run):
    paper, authors = (
        evaluate(run, Request(protocols=("knn", "linear", "semi-10"), variant=variant, epochs=QUICK))
        for variant in ("paper", "authors")
    )
    assert by(authors, protocol="knn")[0].settings["features"] == "projection"
    assert by(paper, protocol="knn")[0].settings["features"] == "backbone"
    assert by(authors, protocol="linear")[0].settings["batch_size"] == 2048
    assert by(authors, protocol="semi-10")[0].settings["trained"] == "head"
    assert {r.variant for r in authors} == {"authors"}
    kept = json.loads((run / "summary.json").read_text())["evaluation"]
    assert {e["variant"] for e in kept} == {"paper", "authors"}


def test_transfer_to_another_dataset(run, monkeypatch):
    monkeypatch.setitem(DATASETS, "shapes", synthetic)
    settings = {"image_size": 16, "classes": 4, "train_images": 80, "test_images": 24, "seed": 5}
    request = Request(protocols=("knn", "semi-10"), data="shapes", data_settings=settings, epochs=QUICK)
    results = evaluate(run, request)
    knn = by(results, protocol="knn", batchnorm="running")[0]
    assert (knn.score.n, knn.details["data_settings"]["classes"]) == (24, 4)
    assert by(results, protocol="semi-10")[0].details["labelled_images"] == 8, "2 of 20 in each of 4 classes"
    with pytest.raises(FedsslError, match=r"--data synthetic: the run was pre-trained on synthetic too.*leave --data"):
        evaluate(run, Request(protocols=("semi-10",), data="synthetic", data_settings=settings))


def test_baselines(run):
    before = FinishedRun.open(run)
    results = evaluate(run, Request(protocols=("knn",), baselines=("random", "supervised"), epochs=QUICK))
    digests = {r.encoder: r.details["weights_sha256"] for r in results}
    assert set(digests) == {"global", "random", "supervised"}
    assert digests["random"] == Weights.of(before.random_encoder()).digest()
    assert digests["global"] == before.summary["weights_sha256"]
    assert len(set(digests.values())) == 3
    assert by(results, encoder="supervised")[0].details["supervised"]["epochs"] == 2
    initial = before.summary["initial"]
    assert by(results, encoder="random", batchnorm="running")[0].score.accuracy == initial["knn"]


def test_supervised_baseline_sees_only_what_clients_hold(run, monkeypatch):
    from fedssl.encoders.evaluate import run as course

    seen = []
    monkeypatch.setattr(course, "train_supervised", lambda encoder, images, *rest: seen.append((images, rest[-1])))
    evaluate(run, Request(protocols=("knn",), baselines=("supervised",)))
    opened = FinishedRun.open(run)
    held = np.sort(np.concatenate(opened.partition.clients))
    images, numbers = seen[0]
    assert torch.equal(images.pixels, opened.dataset.train.pixels)
    assert numbers.tolist() == held.tolist()
    assert len(numbers) == 120 - opened.partition.unused - len(opened.partition.labelled)


def test_standalone_every_client_is_evaluated(tmp_path):
    run = make_run(tmp_path / "run", "smoke+standalone")
    results = evaluate(run, Request(epochs=QUICK))
    final = json.loads((run / "summary.json").read_text())["final"]
    knn = by(results, protocol="knn", batchnorm="running")
    assert [r.encoder for r in knn] == [f"client {k}" for k in range(4)]
    entry = next(e for e in headline(results) if (e["protocol"], e["batchnorm"]) == ("knn", "running"))
    assert (entry["encoder"], entry["clients"]) == ("clients", 4)
    assert entry["accuracy"] == pytest.approx(statistics.fmean(r.score.accuracy for r in knn))
    assert entry["sd"] == pytest.approx(statistics.stdev(r.score.accuracy for r in knn))
    assert (entry["accuracy"], entry["sd"]) == pytest.approx((final["knn"], final["knn_sd"]))


def test_standalone_without_a_finished_round_is_refused(tmp_path):
    run = as_older(make_run(tmp_path / "run", "smoke+standalone", rounds=1))
    (run / "rounds.jsonl").write_text((run / "rounds.jsonl").read_text().splitlines()[0] + "\n")
    with pytest.raises(FedsslError, match="finished no round, its clients have no encoders"):
        evaluate(run, Request(protocols=("knn",)))


def test_centralised_is_the_same_path(tmp_path):
    run = make_run(tmp_path / "run", "smoke+centralised")
    results = evaluate(run, Request(protocols=("linear",), clients=True, batchnorm="running", epochs=QUICK))
    scores = {(r.encoder, r.test_images): r.score for r in results}
    assert scores["global", "all"] == scores["client 0", "all"] == scores["client 0", "classes of client 0"]


def test_clients_beside_the_global_encoder(run):
    results = evaluate(run, Request(protocols=("linear",), clients=True, batchnorm="running", epochs=QUICK))
    opened = FinishedRun.open(run)
    labels, test = opened.dataset.train.labels.numpy(), opened.dataset.test.labels.numpy()
    for k in range(4):
        held = set(labels[opened.partition.clients[k]])
        assert len(held) == 5
        images = sum(label in held for label in test)
        for encoder in ("global", f"client {k}"):
            (own,) = by(results, encoder=encoder, test_images=f"classes of client {k}")
            assert own.score.n == images == 20
        (own,) = by(results, encoder=f"client {k}", test_images="all")
        assert own.details["weights_sha256"] == Weights.of(opened.client_encoder(k)).digest()
    assert len(results) == 1 + 4 + 4 * 2
    entries = {(e["encoder"], e["test_images"]): e for e in headline(results)}
    assert set(entries) == {(e, t) for e in ("global", "clients") for t in ("all", "own classes")}
    own = [r.score.accuracy for r in results if r.encoder != "global" and r.test_images != "all"]
    assert entries["clients", "own classes"]["accuracy"] == pytest.approx(statistics.fmean(own))


def test_local_batchnorm_is_evaluated_reestimated(tmp_path):
    run = make_run(tmp_path / "run", **{"aggregation.batchnorm": "local-statistics"})
    assert {r.batchnorm for r in evaluate(run, Request(protocols=("knn",)))} == {"reestimated"}


# --- what is written -------------------------------------------------------------------------------------------------


def test_lines_and_headline(run):
    assert not (run / "evaluation.jsonl").exists()
    before = read_summary(run)
    evaluate(run, Request(protocols=("knn",), batchnorm="running"))
    evaluate(run, Request(protocols=("knn", "linear"), batchnorm="running", epochs=QUICK))
    lines = read_lines(run / "evaluation.jsonl")
    assert [line["protocol"] for line in lines] == ["knn", "knn", "linear"]
    line = lines[2]
    assert (line["n"], line["seed"], line["variant"], line["fedssl"]) == (40, 0, "paper", "0.1.0")
    assert line["interval_95"] == list(wilson_interval(line["correct"], 40))
    assert line["accuracy"] == line["correct"] / 40
    assert line["settings"] == {"epochs": 3, "batch_size": 512, "lr": 0.003, "shuffle": True}
    assert line["weights_sha256"] == before["weights_sha256"]
    assert lines[0] == lines[1], "nothing in a line depends on the time"
    summary = read_summary(run)
    assert [entry["protocol"] for entry in summary.pop("evaluation")] == ["knn", "linear"]
    assert summary["files"].pop("evaluation.jsonl") == measure(run / "evaluation.jsonl")
    assert summary == before, "the rest of the summary is as it was"


def test_results_before_an_interruption_are_kept(run):
    from fedssl.experiment.progress.views import QuietView

    class Impatient(QuietView):
        def advance(self, by=1, text=""):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(run, Request(batchnorm="running", epochs=QUICK), Impatient())
    assert len((run / "evaluation.jsonl").read_text().splitlines()) == 1
    assert len(json.loads((run / "summary.json").read_text())["evaluation"]) == 1


def test_second_call_computes_no_features_and_gives_the_same(run, monkeypatch):
    request = Request(protocols=("knn", "linear"), epochs=QUICK, baselines=("random",))
    first = evaluate(run, request)
    files = {path.name for path in (run / "features").iterdir()}
    assert len(files) == 4, "two encoders in two modes"
    monkeypatch.setattr(bench, "compute_features", lambda *a, **k: pytest.fail("features were computed again"))
    monkeypatch.setattr(bench, "with_reestimated_batchnorm", lambda *a, **k: pytest.fail("so was BatchNorm"))
    assert evaluate(run, request) == first
    monkeypatch.undo()
    damaged = next((run / "features").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:100])
    assert evaluate(run, request) == first
    assert {path.name for path in (run / "features").iterdir()} == files


def test_no_cache_leaves_no_features(run):
    evaluate(run, Request(protocols=("knn",), cache=False))
    assert not (run / "features").exists()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "held"), [(0, 0), (0.05, 20)])
def test_semi_on_a_run_that_saw_the_images_is_refused(tmp_path, fraction, held):
    settings = {"data.labelled_fraction": float(fraction), "data.train_images": 400, "rounds": 1}
    run = make_run(tmp_path / "run", **settings)
    message = (
        rf"semi-10 needs 40 training images that pre-training never saw, but the run held out {held} "
        rf"\(data\.labelled_fraction = {fraction}\): pre-train again with --set data\.labelled_fraction=0\.1"
    )
    with pytest.raises(FedsslError, match=message) as caught:
        evaluate(run, Request(protocols=("knn", "semi-10")))
    assert "\n" not in str(caught.value)
    assert not (run / "evaluation.jsonl").exists(), "refused before anything is computed"


def test_first_images_as_labelled_ones_are_those_that_semi_uses(tmp_path):
    settings = {"data.labelled_fraction": 0.1, "data.labelled_choice": "first", "rounds": 1}
    run = make_run(tmp_path / "run", **settings)
    assert FinishedRun.open(run).partition.labelled.tolist() == list(range(12))
    (result,) = evaluate(run, Request(protocols=("semi-10",), variant="authors", epochs=QUICK))
    assert result.details["labelled_images"] == 12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"protocols": ("knn", "linearr")},
            r"--protocol: there is no 'linearr' \(did you mean 'linear'\?\); known: knn",
        ),
        ({"protocols": ()}, r"--protocol: name at least one of knn, linear, semi-1, semi-10"),
        ({"seeds": 0}, r"--seeds: 0 is not a whole number 1 or more"),
        ({"variant": "author"}, r"--variant: there is no 'author' \(did you mean 'authors'\?\)"),
        ({"batchnorm": "off"}, r"--batchnorm: there is no 'off'"),
        ({"baselines": ("randm",)}, r"--baseline: there is no 'randm' \(did you mean 'random'\?\)"),
        ({"epochs": {"linear": 0}}, r"--epochs: 0 for linear is not a whole number 1 or more"),
        ({"epochs": {"liner": 2}}, r"--epochs: there is no 'liner' \(did you mean 'linear'\?\)"),
        ({"data_settings": {"classes": 3}}, r"--set .* add --data"),
    ],
)
def test_bad_requests(settings, message):
    with pytest.raises(FedsslError, match=message) as caught:
        Request(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data": "synthetic"},
            r"--data synthetic: its images are 3 x 32 x 32, the encoder was trained on 3 x 16 x 16",
        ),
        ({"data": "synthetik"}, r"data\.name: there is no 'synthetik' \(did you mean 'synthetic'"),
        ({"data": "synthetic", "data_settings": {"sizee": 3}}, r"data\.sizee: unknown key"),
        ({"data": "cifar100"}, r"cifar100 is not in .*: run `fedssl data fetch cifar100`"),
        ({"device": "tpu9"}, r"device: 'tpu9' cannot be used here"),
    ],
)
def test_bad_data_and_devices(run, settings, message):
    with pytest.raises(FedsslError, match=message):
        evaluate(run, Request(**settings))


@pytest.mark.parametrize(
    ("channels", "labels", "message"),
    [
        (1, range(8), r"--data other: its images are 1 x 16 x 16, the encoder was trained on 3 x 16 x 16"),
        (3, None, r"--data other: no accuracy can be given without labelled test images"),
        (3, range(1, 9), r"other: the labels of its training images are not 0 … C − 1"),
    ],
)
def test_datasets_that_cannot_be_used(run, monkeypatch, channels, labels, message):
    pixels = torch.zeros(8, channels, 16, 16, dtype=torch.uint8)
    images = Images(pixels, None if labels is None else torch.tensor(list(labels)))
    monkeypatch.setitem(DATASETS, "other", lambda _: Dataset(name="other", train=images, test=images, source="a test"))
    with pytest.raises(FedsslError, match=message):
        evaluate(run, Request(protocols=("knn",), data="other"))


def test_other_images_under_the_same_name_are_noticed(run):
    text = (as_older(run) / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("train_images = 120", "train_images = 110"))
    with pytest.raises(FedsslError, match="images of synthetic on this machine are not those of the run"):
        evaluate(run, Request(protocols=("knn",)))


def test_run_folders_that_cannot_be_used(run, tmp_path):
    request = Request(protocols=("knn",))
    with pytest.raises(FedsslError, match="not a run folder"):
        evaluate(tmp_path / "nowhere", request)
    tensors = load_file(run / "encoder.safetensors")
    wider = {name: torch.zeros(2 * len(t), *t.shape[1:]) if t.ndim == 4 else t for name, t in tensors.items()}
    save_file(wider, run / "encoder.safetensors")
    with pytest.raises(DamagedError, match=r"encoder\.safetensors: damaged, not the weights that summary\.json names"):
        evaluate(run, request)
    (run / "encoder.safetensors").write_bytes(b"rubbish")
    with pytest.raises(FedsslError, match=r"encoder\.safetensors: damaged"):
        evaluate(run, request)
    (run / "encoder.safetensors").unlink()
    with pytest.raises(FedsslError, match="the run has no encoder"):
        evaluate(run, request)


def test_a_damaged_client_is_named(run):
    (run / "clients" / "client-00002" / "round-000002" / "tensors.safetensors").write_bytes(b"rubbish")
    with pytest.raises(FedsslError, match=r"client 2: .*round-000002/tensors\.safetensors: damaged, 7 bytes instead"):
        evaluate(run, Request(protocols=("knn",), clients=True))
    with pytest.raises(FedsslError, match="client 9 never trained"):
        FinishedRun.open(run).client_encoder(9)


def test_parsing_of_options():
    assert parse_names(" knn, linear,") == ("knn", "linear")
    assert parse_epochs("") == {}
    assert parse_epochs("7") == {"linear": 7, "semi": 7, "supervised": 7}
    assert parse_epochs("linear=3, supervised=4") == {"linear": 3, "supervised": 4}
    with pytest.raises(FedsslError, match="--epochs many: write a whole number"):
        parse_epochs("many")
    assert parse_settings(["image_size=16", "data.classes=5"]) == {"image_size": 16, "classes": 5}
