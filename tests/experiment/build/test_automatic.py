"""Settings that follow from the number of images."""

import pytest

from fedssl.core.errors import FedsslError
from fedssl.experiment.build.automatic import chosen_values
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.experiment import load
from tests.helpers.small import TINY

ALL = {"rounds": "auto", "local_training.batch_size": "auto", "local_training.lr": "auto"}


@pytest.mark.parametrize(
    ("sizes", "rounds", "batch"),
    [
        ([500] * 4, 125, 32),  # 250,000 / 2,000 rounds; 500 / 32 = 15 steps, 500 / 64 only 7
        ([2000] * 5, 25, 64),
        ([30] * 3, 200, 16),  # no more than 200 rounds, no smaller batch than 16
        ([100_000] * 5, 20, 64),
    ],
)
def test_few_images_get_more_rounds_and_smaller_batches(sizes, rounds, batch):
    values = chosen_values(sizes, load_config("smoke", {**ALL, "local_training.epochs": 1}))
    assert values == {
        "rounds": rounds,
        "local_training.batch_size": batch,
        "local_training.lr": pytest.approx(0.1 * batch / 64),
    }


def test_what_is_given_stays_and_the_rest_follows_it():
    config = load_config("smoke", {**ALL, "local_training.batch_size": 128, "rounds": 7})
    assert config.automatic == ("local_training.lr",)
    assert chosen_values([500] * 4, config) == {"local_training.lr": pytest.approx(0.2)}
    assert (config.run.rounds, config.local_training.batch_size) == (7, 128)


def test_other_settings_cannot_be_automatic():
    with pytest.raises(FedsslError, match=r"local_training\.weight_decay: 'auto' is not a number"):
        load_config("smoke", {"local_training.weight_decay": "auto"})


def test_a_run_says_what_was_chosen_writes_it_down_and_is_resumed_with_it(tmp_path, monkeypatch):
    settings = {**TINY, "local_training.batch_size": "auto", "local_training.lr": "auto"}
    report = load("smoke", settings).run(tmp_path / "run")
    written = load_config(str(tmp_path / "run" / "config.toml"))
    assert (written.automatic, written.local_training.batch_size, written.local_training.lr) == ((), 16, 0.025)
    # Another rule, or other images, would choose otherwise: the run that was begun keeps its numbers.
    monkeypatch.setattr("fedssl.experiment.build.automatic.BATCHES", (8,))
    again = load("smoke", settings).run(tmp_path / "run")
    assert again.summary["weights_sha256"] == report.summary["weights_sha256"]
