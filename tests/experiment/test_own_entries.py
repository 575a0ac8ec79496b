"""What nobody of fedssl wrote, of every kind that examples/plugin has not: typed as package.module:Name, it works."""

import pytest

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.data import DATASETS
from fedssl.experiment.config.schema import CHOICES, ENGINES
from tests.helpers.pictures import write_folder
from tests.helpers.small import TINY

OWN = {
    "data.name": "own_entries:shapes",
    "data.images": 60,
    "partition.name": "own_entries:halves",
    "partition.first": 0.4,
    "augmentation.name": "own_entries:mirrored",
    "augmentation.often": 1.0,
    "aggregation.batchnorm": "local-layers",
    "update_rule.name": "replace",
}
SMALL = {key: value for key, value in TINY.items() if not key.startswith("data.")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    experiment = fedssl.load("smoke", SMALL | OWN | {"engine": "own_entries:Backwards"})
    assert "on own_entries:shapes, clients: by the data" in repr(experiment)
    return experiment.run(tmp_path_factory.mktemp("runs") / "own")


def test_a_run_of_them_alone(run):
    assert run.summary["data"]["clients"] == [24, 36]
    assert (run.summary["status"], run.summary["rounds"]) == ("finished", 2)
    again = fedssl.load("smoke", SMALL | OWN | {"engine": "processes", "workers": 2})
    with_workers = again.run(run.folder.with_name("workers"))
    assert with_workers.summary["weights_sha256"] == run.summary["weights_sha256"], "and so with worker processes"


def test_a_kind_of_privacy(run):
    private = {"privacy.name": "own_entries:always_noisy", "privacy.noise": 0.2}
    report = fedssl.load("smoke", SMALL | OWN | private).run(run.folder.with_name("private"))
    assert report.summary["privacy"]["noise_multiplier"] == 0.2


def test_a_layout(tmp_path):
    write_folder(tmp_path / "photos", classes=("cat", "dog"), each=8)
    settings = {"data.path": str(tmp_path / "photos"), "data.layout": "own_entries:flat", "data.image_size": 16}
    report = fedssl.load("folder", SMALL | settings | {"partition.num_clients": 2}).run(tmp_path / "run")
    assert report.summary["status"] == "finished"


def test_a_protocol_and_a_format(run, tmp_path):
    (result,) = fedssl.evaluate(
        run, ["own_entries:nearest"], epochs={"linear": 3}, batchnorm="running", allow_code="own_entries"
    )
    assert (result.protocol, result.score.n) == ("own_entries:nearest", 40)
    made = fedssl.export(run, tmp_path / "out", ["own_entries:names"], allow_code="own_entries")
    assert made.files == ["README.md", "config.json", "names.txt"]


def test_a_folder_that_names_them_allows_none(run):
    with pytest.raises(FedsslError, match=r"it names code of package 'own_entries'.*--allow-code own_entries"):
        fedssl.evaluate(run, ["knn"])
    assert not any(name.startswith("own_entries") for one in (DATASETS, ENGINES, *CHOICES.values()) for name in one)
