import csv
import json
import shutil
import tomllib
from importlib import metadata

import pytest
import torch

import fedssl
from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError
from fedssl.evaluation.score import paired_interval
from fedssl.experiment.build.networks import build_method
from fedssl.experiment.build.parts import build
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import RunRecord, read_summary
from fedssl.experiment.records.verdict import verdict
from fedssl.federation.checkpoint import CheckpointStore
from fedssl.federation.model_aggregation import AGGREGATORS
from tests.helpers.small import TINY, held_by


def run(folder, preset="smoke", view=None, **overrides):
    return load(preset, TINY | overrides).run(folder, view)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return run(folder, **{"evaluation.linear_probe": True, "evaluation.linear_epochs": 2})


# --- the run folder --------------------------------------------------------------------------------------------------


def test_run_folder_has_everything(finished):
    assert sorted(path.name for path in finished.folder.iterdir()) == [
        ".lock",
        ".owner.json",
        "checkpoints",
        "clients",
        "config.toml",
        "encoder.safetensors",
        "environment.json",
        "live.json",
        "metrics.csv",
        "partition.json",
        "rounds.jsonl",
        "summary.json",
    ]


def test_rounds_are_recorded_for_every_client(finished):
    first, *rounds = RunFolder(finished.folder).read_rounds()
    assert (first["round"], first["clients"]) == (0, [])
    assert 0 <= first["knn"] <= 1
    assert [record["round"] for record in rounds] == [1, 2]
    for record in rounds:
        assert [client["client"] for client in record["clients"]] == [0, 1, 2, 3]
        for client in record["clients"]:
            assert {"loss", "scale", "seconds", "bytes_up", "bytes_down", "feature_std", "n", "ema"} <= set(client)
    assert all("mu" not in client for client in rounds[0]["clients"])
    assert [client["mu"] for client in rounds[1]["clients"]] == pytest.approx([0.7] * 4)
    assert all(client["divergence"] > 0 for client in rounds[1]["clients"])
    assert (rounds[0]["ema_share"], rounds[1]["ema_share"]) == (0.0, 1.0)


def test_metrics_csv_agrees_with_the_rounds(finished):
    rows = list(csv.DictReader((finished.folder / "metrics.csv").open()))
    records = RunFolder(finished.folder).read_rounds()
    assert [row["round"] for row in rows] == ["0", "1", "2"]
    for name in ("loss", "mu", "ema_share", "knn", "linear"):
        values = [record.get(name) for record in records]
        assert [row[name] for row in rows] == ["" if value is None else str(value) for value in values]
    assert sum(int(row["bytes_up"]) for row in rows) == finished.summary["bytes_up"]


def test_summary(finished):
    summary = read_summary(finished.folder)
    assert summary == finished.summary
    assert (summary["status"], summary["rounds"]) == ("finished", 2)
    assert summary["mean_mu"] == pytest.approx(0.7)
    assert summary["ema_share"] == 0.5
    for name in ("knn", "knn_reestimated", "linear", "linear_reestimated"):
        assert 0 <= summary["initial"][name] <= 1
        assert 0 <= summary["final"][name] <= 1
    assert summary["bytes_up"] == summary["bytes_down"] > 0
    assert summary["data"]["clients"] == [20, 20, 20, 20]


def test_core_seconds_are_those_of_all_clients_and_evaluations(finished):
    records, spent = RunFolder(finished.folder).read_rounds(), finished.summary["core_seconds"]
    clients = [client for record in records for client in record["clients"]]
    assert spent["training"] == pytest.approx(sum(client["core_seconds"] for client in clients))
    assert spent["evaluation"] == pytest.approx(sum(record["core_seconds"]["evaluation"] for record in records))
    assert min(spent.values()) > 0


def test_environment(finished):
    environment = json.loads((finished.folder / "environment.json").read_text())
    assert environment["packages"]["torch"] == metadata.version("torch")
    assert environment["torch_threads"] == 1
    assert environment["cores"] >= 1


def test_saved_config_gives_the_same_run_bit_for_bit(finished, tmp_path):
    again = fedssl.load(str(finished.folder / "config.toml")).run(tmp_path / "again")
    assert again.summary["weights_sha256"] == finished.summary["weights_sha256"]
    keys = ("loss", "mu", "knn", "lr", "ema_share")
    first, second = (RunFolder(r.folder).read_rounds() for r in (finished, again))
    assert [[record.get(key) for key in keys] for record in first] == [
        [record.get(key) for key in keys] for record in second
    ]


def test_another_seed_gives_another_run(finished, tmp_path):
    assert run(tmp_path / "other", seed=1).summary["weights_sha256"] != finished.summary["weights_sha256"]


def test_partition_is_saved_as_indices(finished):
    saved = json.loads((finished.folder / "partition.json").read_text())
    assert saved["partition"] == "classes"
    assert sorted(index for client in saved["clients"] for index in client) == list(range(80))


def test_load_encoder_gives_the_features_that_were_evaluated(finished):
    encoder = fedssl.load_encoder(finished.folder)
    parts = build(load("smoke", TINY).config)
    pixels = parts.dataset.test.pixels
    with torch.no_grad():
        features = encoder(pixels)
        torch.testing.assert_close(features, encoder(pixels.float() / 255))
    assert features.shape == (40, encoder.feature_size)
    from fedssl.evaluation.knn import knn_predictions

    with torch.no_grad():
        train = encoder(parts.dataset.train.pixels)
    options = {"k": 20, "temperature": 0.1, "num_classes": 10}
    classes = knn_predictions(train, parts.dataset.train.labels, features, **options)
    accuracy = (classes == parts.dataset.test.labels).double().mean().item()
    assert accuracy == pytest.approx(finished.summary["final"]["knn"])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 3, 32, 32), "of shape 2 x 3 x 32 x 32, this encoder takes N x 3 x 16 x 16: bring them to that"),
        (torch.zeros(2, 1, 16, 16), "of shape 2 x 1 x 16 x 16, this encoder takes N x 3 x 16 x 16"),
        (torch.zeros(3, 16, 16), "of shape 3 x 16 x 16, this encoder takes N x 3 x 16 x 16"),
        (torch.full((2, 3, 16, 16), 200.0), "floats from 200 to 200: give floats from 0 to 1"),
        (torch.linspace(-2, 2, 768).reshape(1, 3, 16, 16), "floats from -2 to 2: .*no mean, no standard deviation"),
        (torch.full((1, 3, 16, 16), torch.nan), "floats from nan to nan"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.int64), "torch.int64: give uint8, or floats from 0 to 1"),
    ],
)
def test_a_loaded_encoder_refuses_images_of_another_size_or_range(finished, images, message):
    encoder = fedssl.load_encoder(finished.folder)
    with pytest.raises(FedsslError, match=f"images: {message}"):
        encoder(images)


def test_a_loaded_encoder_takes_half_floats_rounding_and_no_images_and_can_be_exported(finished):
    encoder = fedssl.load_encoder(finished.folder)
    assert encoder(torch.full((2, 3, 16, 16), 1.00001)).shape == (2, encoder.feature_size)
    assert encoder(torch.zeros(0, 3, 16, 16)).shape == (0, encoder.feature_size)
    assert encoder.bfloat16()(torch.ones(2, 3, 16, 16, dtype=torch.bfloat16)).shape == (2, encoder.feature_size)
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        program = torch.export.export(encoder.float(), (images[:2],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.testing.assert_close(program.module()(images), encoder(images))


def test_load_encoder_refuses_what_is_not_one(tmp_path):
    with pytest.raises(FedsslError, match="there is no encoder"):
        fedssl.load_encoder(tmp_path)
    path = tmp_path / "encoder.safetensors"
    path.write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(FedsslError, match="not an encoder but a pickle"):
        fedssl.load_encoder(path)


def test_users_backbone_by_import_path_trains_and_loads(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "def tiny(channels, size=6):\n"
        "    return nn.Sequential(nn.Conv2d(channels, size, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "own.toml"
    path.write_text('extends = "smoke"\n[network]\nname = "own_nets:tiny"\nsize = 5\n')
    overrides = {key: value for key, value in TINY.items() if key != "network.width"}
    report = load(str(path), overrides).run(tmp_path / "run")
    encoder = fedssl.load_encoder(report.folder, allow_code=["own_nets"])
    assert encoder(torch.zeros(2, 3, 16, 16)).shape == (2, 5)


def test_the_gain_is_counted_image_by_image_and_the_verdict_written(finished):
    """The same from both encoders again: who classifies which test image correctly, each in its better mode."""
    ended, gain = FinishedRun.open(finished.folder), finished.summary["gain"]
    monitor = build(ended.config).monitor
    first, last = (monitor.full(encoder).correct for encoder in (ended.random_encoder(), ended.global_encoder()))
    for measure in ("knn", "linear"):
        before, after = (
            max((found[measure], found[f"{measure}_reestimated"]), key=lambda correct: correct.sum())
            for found in (first, last)
        )
        won, lost = int(((after == 1) & (before == 0)).sum()), int(((after == 0) & (before == 1)).sum())
        assert gain[measure]["interval"] == pytest.approx(paired_interval(won - lost, won + lost, 40))
        assert gain[measure]["trained"]["accuracy"] - gain[measure]["baseline"]["accuracy"] == pytest.approx(
            (won - lost) / 40
        )
    assert finished.summary["data"]["test"] == 40
    assert finished.summary["verdict"] == verdict(RunRecord.read(finished.folder)).word


def test_a_run_that_an_older_version_began_ends_with_an_unpaired_interval(tmp_path):
    class Stops(QuietView):
        def round_finished(self, record):
            if record["round"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", view=Stops())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["verdict"] is not None, "the newest accuracy of an interrupted run is judged"
    store = CheckpointStore(tmp_path / "run" / "checkpoints")
    for number in store.rounds():
        checkpoint = store.load(number)
        del checkpoint.run["correct"]
        shutil.rmtree(store.path(number))
        store.save(checkpoint)
    assert run(tmp_path / "run").summary["gain"] == {}
    gain = RunRecord.read(tmp_path / "run").gain("knn")
    assert gain.interval[0] < gain.difference < gain.interval[1]


# --- variants through the whole path ---------------------------------------------------------------------------------


def test_standalone_reports_mean_and_spread_over_clients(tmp_path):
    report = run(tmp_path / "run", "smoke+standalone")
    assert report.summary["final"]["knn_sd"] >= 0
    low, high = report.summary["gain"]["knn"]["interval"]
    assert low < RunRecord.read(tmp_path / "run").gain("knn").difference < high
    assert report.summary["bytes_up"] == 0
    assert report.summary["mean_mu"] is None


def test_centralised_is_one_client(tmp_path):
    report = load("smoke+centralised", TINY).run(tmp_path / "run")
    assert report.summary["data"]["clients"] == [80]


@pytest.mark.parametrize("batchnorm", ["local-statistics", "local-layers"])
def test_local_batchnorm_runs_and_is_evaluated_with_reestimated_statistics(tmp_path, batchnorm):
    report = run(tmp_path / "run", **{"aggregation.batchnorm": batchnorm, "evaluation.every": 1})
    records = RunFolder(report.folder).read_rounds()
    assert 0 <= records[1]["knn"] <= 1
    assert "knn_reestimated" in report.summary["final"]


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_runs_from_the_config(tmp_path, name):
    settings = {"partition.num_clients": 5, "partition.classes_per_client": 4, "aggregation.name": name}
    report = run(tmp_path / "run", **settings)
    assert report.summary["status"] == "finished"
    assert tomllib.loads((report.folder / "config.toml").read_text())["aggregation"]["name"] == name
    usual = run(tmp_path / "usual", **settings | {"aggregation.name": "weighted-average"})
    same = report.summary["weights_sha256"] == usual.summary["weights_sha256"]
    assert same == (name == "weighted-average")


def test_sampling_records_only_the_clients_of_the_round(tmp_path):
    report = run(tmp_path / "run", **{"client_sampling.clients_per_round": 2, "rounds": 3})
    assert [len(record["clients"]) for record in RunFolder(report.folder).read_rounds()] == [0, 2, 2, 2]


def test_initial_weights_follow_from_the_seed_alone():
    config = load("smoke", TINY).config
    torch.manual_seed(123)
    first = build_method(config, 3, (16, 16)).state_dict()
    torch.manual_seed(456)
    second = build_method(config, 3, (16, 16)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_pretraining_images_carry_no_labels():
    parts = build(load("smoke", TINY).config)
    for client, indices in enumerate(parts.partition.clients):
        assert torch.equal(held_by(parts, client), parts.dataset.train.pixels[torch.from_numpy(indices)])


# --- what is refused, and what is said --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"partition.name": "iid", "partition.num_clients": 81}, r"num_clients"),
        ({"partition.name": "iid", "partition.num_clients": 50}, r"client \d+ has 1 images: at least 2 are needed"),
        ({"partition.num_clients": 2, "partition.classes_per_client": 3}, r"classes_per_client"),
        ({"partition.classes_per_client": 11}, r"classes_per_client"),
        ({"device": "tpu"}, r"device: 'tpu' cannot be used here"),
        ({"data.name": "cifar10"}, r"cifar10 is not in .*fedssl data fetch cifar10"),
        ({"augmentation.crop_scale_min": 0.9, "augmentation.crop_scale_max": 0.5}, r"crop_scale_min"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(tmp_path, overrides, message):
    settings = dict(TINY)
    if "data.name" in overrides:
        settings.pop("data.image_size")
    with pytest.raises(FedsslError, match=message):
        load("smoke", settings | overrides).run(tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Recorder(QuietView):
    def __init__(self):
        self.lines, self.steps, self.total = [], 0, 0

    def start(self, title, rounds, steps, done):
        self.total = steps
        self.lines.append(title)

    def progress(self, text, done, total, client=None, images=0):
        self.steps += client is not None

    def say(self, text):
        self.lines.append(text)


def test_small_clients_and_unused_images_are_remarked_and_steps_add_up(tmp_path):
    view = Recorder()
    run(tmp_path / "run", view=view, **{"local_training.batch_size": 64, "partition.data_amount": 0.5})
    assert any("client 0 has 10 images, fewer than a batch of 64" in line for line in view.lines)
    assert any("40 images belong to no client" in line for line in view.lines)
    assert view.steps == view.total == 2 * 4


def test_a_folder_in_use_is_not_touched(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(FedsslError, match="not empty"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FedsslError, match="cannot make or write"):
        run(tmp_path / "file" / "run")


def test_ctrl_c_keeps_the_finished_rounds(tmp_path):
    class Impatient(QuietView):
        def round_finished(self, record):
            if record["round"] == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", view=Impatient(), rounds=5)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert len(RunFolder(tmp_path / "run").read_rounds()) == 2
    assert fedssl.load_encoder(tmp_path / "run").feature_size == 32


class Noting:
    def __init__(self):
        self.seen = []

    def start(self, folder, config, done):
        self.seen.append((folder.name, config["rounds"], done))

    def log_round(self, record):
        self.seen.append(record)

    def finish(self, summary):
        self.seen.append(summary)


def test_loggers_get_every_round_and_the_summary(tmp_path):
    logger = Noting()
    report = load("smoke", TINY).run(tmp_path / "run", loggers=[logger])
    start, *records, summary = logger.seen
    assert start == ("run", 2, None)
    assert records == RunFolder(report.folder).read_rounds()
    assert summary == report.summary


def test_a_logger_that_fails_does_not_stop_the_run_and_is_reported_once(tmp_path):
    class Down(Noting):
        def log_round(self, record):
            raise TimeoutError("no answer")

    view, logger = Recorder(), Down()
    report = load("smoke", TINY).run(tmp_path / "run", view, [logger])
    assert report.summary["status"] == "finished"
    said = [line for line in view.lines if "failed" in line]
    assert said == ["warning: Down failed (TimeoutError: no answer); the run continues"]
    assert logger.seen[-1]["status"] == "finished"


def test_device_auto_is_usable():
    device = choose_device("auto")
    assert torch.zeros(1, device=device).item() == 0


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedssl.nothing
    assert fedssl.FedsslError is FedsslError


def test_config_toml_is_complete(finished):
    saved = tomllib.loads((finished.folder / "config.toml").read_text())
    assert saved["update_rule"]["tau"] == 0.7
    assert saved["local_training"]["schedule"] == "cosine"
    assert saved["augmentation"]["crop_scale_min"] == 0.08
