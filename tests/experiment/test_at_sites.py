"""Whole runs whose clients look at the global encoder with labels of their own."""

import json

import numpy as np
import pytest
from PIL import Image

from fedssl.core.errors import FedsslError
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.experiment.build.parts import build
from fedssl.experiment.build.site_labels import labels_of_clients, labels_of_site
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.records.run_record import RunRecord
from fedssl.experiment.records.site_accuracy import at_sites
from fedssl.federation.messages import ClientError
from fedssl.reports.compare import results
from fedssl.reports.run_page import write_report
from fedssl.reports.tables import print_summary
from tests.faults.test_damage import Stops
from tests.federation.engines.test_flower import OverMessages
from tests.helpers.faults import everything, experiment
from tests.helpers.small import TINY

NAME = "BYOL + FedEMA"
QUICK = {
    "rounds": 2,
    "evaluation.linear_epochs": 2,
    "evaluation.every": 1,
    "data.test_images": 20,
    "partition.num_clients": 4,
}
ASKED = QUICK | {"engine": "in-process", "evaluation.at_sites": True}
SECURE = {"aggregation.secure": True, "update_rule.lambda_at": "client"}
WEIGHTS = ("global", "server", "payload", "memory", "clients")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites") / "run"
    experiment(NAME, **ASKED).run(folder)
    return folder


def counts(folder):
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [one["at_sites"]["counts"] for one in rounds]


def test_every_client_counts_before_round_1_and_every_so_often(finished):
    found = counts(finished)
    assert len(found) == 3
    for one in found:
        assert [sorted(entry) for entry in one] == [["client", "knn", "linear", "n"]] * 4
        assert all(0 <= entry[name] <= entry["n"] <= 20 for entry in one for name in ("knn", "linear"))
    summary = RunRecord.read(finished).summary
    assert summary["at_sites"] == {"initial": found[0], "final": found[2]}


def test_bits_of_the_run_do_not_depend_on_it(finished, tmp_path):
    experiment(NAME, **ASKED | {"evaluation.at_sites": False}).run(tmp_path / "run")
    ours, plain = everything(finished), everything(tmp_path / "run")
    assert [ours[part] for part in WEIGHTS] == [plain[part] for part in WEIGHTS]


def test_every_engine_and_a_stopped_run_count_the_same(finished, tmp_path):
    over = experiment(NAME, **ASKED)
    over.backend = OverMessages()
    over.run(tmp_path / "flower")
    experiment(NAME, **ASKED | {"engine": "processes", "workers": 2}).run(tmp_path / "processes")
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **ASKED).run(tmp_path / "stopped", Stops(1))
    experiment(NAME, **ASKED).run(tmp_path / "stopped")
    for name in ("flower", "processes", "stopped"):
        assert everything(tmp_path / name) == everything(finished), name


def test_of_secure_sums_the_sum_is_all_that_is_known(finished, tmp_path):
    """The first encoder is the same: its counts add up to those that the clients of an open run sent."""
    over = experiment(NAME, **ASKED, **SECURE)
    over.backend = OverMessages()
    over.run(tmp_path / "run")
    (summed,) = counts(tmp_path / "run")[0]
    single = counts(finished)[0]
    assert summed == {"clients": 4} | {name: sum(one[name] for one in single) for name in ("n", "knn", "linear")}
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **ASKED, **SECURE).run(tmp_path / "stopped", Stops(1))
    experiment(NAME, **ASKED, **SECURE).run(tmp_path / "stopped")
    assert everything(tmp_path / "stopped") == everything(tmp_path / "run")
    (line,) = at_sites(RunRecord.read(tmp_path / "run"))
    assert line["knn"].title == "all 4 sites together"
    assert "client 3" not in "".join(row.label for row in results([RunRecord.read(tmp_path / "run")]))


def test_the_report_and_the_comparison_have_the_worst_site_first_and_the_gain(finished, tmp_path, capsys):
    record = RunRecord.read(finished)
    found = at_sites(record)
    assert [one["linear"].trained for one in found] == sorted(one["linear"].trained for one in found)
    worst = found[0]["linear"]
    first, last = (record.summary["at_sites"][when][int(worst.title[-1])] for when in ("initial", "final"))
    assert worst.gain.difference == pytest.approx(last["linear"] / last["n"] - first["linear"] / first["n"])
    rows = [row.label for row in results([record]) if row.label.startswith("linear probe at")]
    assert rows[:2] == ["linear probe at the sites, mean", f"linear probe at {worst.title}"]
    write_report([finished], tmp_path / "report.html", images=0)
    text = (tmp_path / "report.html").read_text()
    assert "Accuracy at the sites" in text
    assert 'id="run1-sites-figure"' in text
    print_summary(record)
    said = capsys.readouterr().out
    assert said.index(worst.title) < said.index("mean over sites")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"update_rule.name": "none"}, "there is no global encoder: use evaluation.clients"),
        (
            {
                "privacy.name": "client-dp",
                "privacy.clip_norm": 1.0,
                "privacy.noise_multiplier": 1.0,
                "privacy.placement": "local",
                "aggregation.batchnorm": "local-statistics",
                "update_rule.lambda_at": "client",
            },
            "counts would leave without noise",
        ),
    ],
)
def test_what_cannot_be_promised_is_refused(change, why):
    with pytest.raises(FedsslError, match=why):
        load_config("smoke", {"evaluation.at_sites": True} | change)


# --- whose labels


def test_a_client_is_tested_on_its_own_classes_and_learns_from_its_own_images():
    config = load_config("smoke", TINY | {"partition.num_clients": 4, "partition.classes_per_client": 3})
    parts = build(config)
    labels_of = labels_of_clients(parts.dataset, parts.partition)
    for client, held in enumerate(parts.partition.clients):
        data = labels_of(client)
        assert np.array_equal(data.train_labels, parts.dataset.train.labels[held])
        assert set(data.test_labels.tolist()) <= set(data.train_labels.tolist())
    assert parts.client.images_of(0).pixels.dtype == parts.dataset.train.pixels.dtype
    assert not hasattr(parts.client.images_of(0), "labels"), "training has pixels only"


def write(folder, classes, seed=0, count=6):
    for name in classes:
        (folder / name).mkdir(parents=True)
        pixels = synthetic_images(count, 2, 16, seed, "train").pixels.permute(0, 2, 3, 1).numpy()
        for number, one in enumerate(pixels):
            Image.fromarray(one).save(folder / name / f"{number}.png")


def test_silos_are_tested_on_test_images_of_their_own(tmp_path):
    for silo in ("north", "south"):
        write(tmp_path / "silos" / silo, ("ill", "well"), seed=len(silo))
    place = {"data.path": str(tmp_path / "silos"), "data.layout": "silos"}
    config = load_config("folder", place | {"data.image_size": 16, "data.test_fraction": 0.4})
    dataset = config.data.build()
    parts = build(config)
    north = labels_of_clients(dataset, parts.partition)(0)
    assert len(north.train) + len(north.test) == 12
    names = [one.name for one in dataset.test_originals]
    own = [number for number, name in enumerate(names) if name.startswith("north")]
    assert np.array_equal(north.test.pixels, dataset.test.pixels[own])


DECODING = {"image_size": 16, "channels": 3, "fit": "crop", "white": 255}


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({"data": "plain", "eval_train": "learn", "eval_test": "test"}, (12, 8)),
        ({"data": "learn", "eval_test": "test"}, (12, 8)),
        ({"data": "plain", "eval_train": "learn"}, (10, 2)),
        ({"data": "learn"}, (10, 2)),
    ],
)
def test_a_site_looks_with_the_places_that_it_names(tmp_path, given, sizes):
    write(tmp_path, ["plain"])
    write(tmp_path / "learn", ("ill", "well"))
    write(tmp_path / "test", ("ill", "well"), count=4)
    data = labels_of_site(DECODING, **{key: str(tmp_path / name) for key, name in given.items()})(0)
    assert (len(data.train), len(data.test)) == sizes


def test_a_site_without_labels_says_so_in_its_own_log(tmp_path):
    write(tmp_path, ["plain"])
    with pytest.raises(ClientError, match="no labels to test with") as refused:
        labels_of_site(DECODING, str(tmp_path / "plain"))(0)
    assert refused.value.code == "refused"
