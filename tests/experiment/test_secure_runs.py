"""Whole runs with secure aggregation: engines, stops, the record, distributed noise, and what is refused."""

import json

import pytest

from fedssl.core.errors import FedsslError
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.progress.health import RunWarnings
from fedssl.experiment.records.run_record import RunRecord
from fedssl.federation.privacy.accounting import epsilon
from fedssl.methods import METHODS
from fedssl.reports.prose import tiles, warnings
from fedssl.reports.run_page import write_report
from tests.faults.test_damage import Stops
from tests.helpers.faults import everything, experiment

NAME = "BYOL + FedEMA"
SECURE = {
    "aggregation.secure": True,
    "update_rule.lambda_at": "client",
    "rounds": 2,
    "evaluation.every": 0,
    "data.test_images": 10,
}
NOISE = {
    "privacy.name": "client-dp",
    "privacy.clip_norm": 0.5,
    "privacy.noise_multiplier": 4.0,
    "privacy.placement": "distributed",
    "aggregation.batchnorm": "local-statistics",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A secure run in one process that nobody disturbed."""
    folder = tmp_path_factory.mktemp("secure") / "run"
    view = Stops(99)
    experiment(NAME, engine="in-process", **SECURE).run(folder, view)
    return folder, view.lines


def test_a_stopped_run_ends_with_the_same_bits(finished, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, engine="in-process", **SECURE).run(tmp_path / "run", Stops(1))
    experiment(NAME, engine="in-process", **SECURE).run(tmp_path / "run")
    assert everything(tmp_path / "run") == everything(finished[0])
    before, after = (json.loads((folder / "secure.json").read_text()) for folder in (finished[0], tmp_path / "run"))
    assert before["attempt"] == after["attempt"] == 2


def test_the_record_holds_sums_and_the_report_is_made_of_them(finished, tmp_path):
    folder, lines = finished
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for one in rounds[1:]:
        assert {key for client in one["clients"] for key in client} == {"client", "bytes_up", "bytes_down"}
        assert one["n"] == 3 * 16, "those of the clients that were asked"
        assert one["loss"] > 0
        assert 0 < one["feature_std"] < 2
    assert rounds[2]["mu"] == pytest.approx(0.7, abs=1e-6), "the first mu is tau"
    assert rounds[2]["core_seconds"]["training"] > 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["mean_mu"] == pytest.approx(0.7, abs=1e-6)
    left_out = write_report([folder], tmp_path / "report.html", images=0)
    text = (tmp_path / "report.html").read_text()
    assert text.count("the mean over clients is all that is known") == 4
    assert not [line for line in left_out if "mu of each client" in line or "Collapse" in line]
    assert any("sums of 3 or more of the 3 clients" in line for line in lines)


def test_a_collapse_is_said_without_a_name():
    record = {"round": 3, "clients": [{"client": 0}], "feature_std": 0.001, "n": 40}
    (said,) = RunWarnings(str).check(record)
    assert "the clients' features collapsed in round 3 (feature_std 0.001 on average" in said


def test_epsilon_of_distributed_noise_names_the_honest_clients_it_counts_on(tmp_path):
    """By hand: with 2 of 3 honest the sum has sqrt(2/3) of the noise; the sum may hold no fewer."""
    settings = {"engine": "in-process", **SECURE, **NOISE, "aggregation.secure_threshold": 2}
    view = Stops(1)
    with pytest.raises(KeyboardInterrupt):
        experiment(NAME, **settings).run(tmp_path / "run", view)
    said = [line for line in view.lines if "differential privacy after" in line]
    assert "assumes that 2 of the 3 clients of every sum add their noise" in said[0]
    report = experiment(NAME, **settings).run(tmp_path / "run")
    found = report.summary["privacy"]
    assert (found["honest"], found["clients"]) == (2, 3)
    assert found["epsilon"] == pytest.approx(epsilon(4.0 * (2 / 3) ** 0.5, found["releases"], 1e-5))
    record = RunRecord.read(tmp_path / "run")
    assert any("assumes that 2 of the 3" in text for text in warnings(record))
    assert [tile.label for tile in tiles(record) if tile.label == "Epsilon"] == ["Epsilon"]
    rounds = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert rounds[1]["loss"] is None
    assert rounds[1]["n"] == 3, "every client counts as one"
    one = experiment(NAME, **settings, **{"privacy.honest": 1}).run(tmp_path / "one").summary["privacy"]
    assert one["epsilon"] == pytest.approx(epsilon(4.0 * (1 / 3) ** 0.5, one["releases"], 1e-5))
    assert not (tmp_path / "run/noise.key").exists(), "the server adds no noise"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *(
            ({"aggregation.name": name}, f"aggregation.name = '{name}' looks at single ones: use 'weighted-average'")
            for name in ("median", "trimmed-mean", "krum", "clipped-average", "l-dawa", "fedu2")
        ),
        ({"update_rule.lambda_at": "server"}, "set update_rule.lambda_at to 'client', or a fixed update_rule.scale"),
        ({"method.name": "fedca", "update_rule.name": "replace"}, "fedca also sends normalised projections"),
        ({"update_rule.name": "none"}, "with update_rule.name = 'none' nothing is shared"),
        ({"aggregation.wire_dtype": "bf16"}, "aggregation.wire_dtype: 'bf16' cannot be summed under masks"),
        ({"aggregation.wire_dtype": "int8"}, "aggregation.wire_dtype: 'int8' cannot be summed under masks"),
        ({"aggregation.secure_threshold": 2}, "aggregation.secure_threshold: 2 of 4 clients per round: give 3 to 4"),
        ({"aggregation.secure_threshold": 5}, "aggregation.secure_threshold: 5 of 4 clients per round"),
        ({"client_sampling.clients_per_round": 1}, "1 client per round: its sum is that client's own"),
        (NOISE | {"privacy.placement": "central"}, "privacy.placement: 'central' with aggregation.secure"),
        (NOISE | {"privacy.placement": "local"}, "privacy.placement: 'local' with aggregation.secure"),
        (NOISE | {"aggregation.secure": False}, "privacy.placement: 'distributed' hides nothing in a single upload"),
        (NOISE | {"privacy.honest": 4}, "privacy.honest: 4 clients, but a sum may have no more than 3"),
        (NOISE | {"failures.damaged_state": "start-over"}, "a client that adds noise of its own"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_round_1_with_the_reason(change, why):
    without = {
        key: value for key, value in SECURE.items() if key != "update_rule.lambda_at" or "rule" not in str(change)
    }
    with pytest.raises(FedsslError) as refused:
        load_config("smoke", without | change)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.leaves])
def test_methods_that_send_more_than_weights_are_refused(name):
    with pytest.raises(FedsslError, match=rf"{name} also sends .*: use another method\.name"):
        load_config("smoke", {"aggregation.secure": True, "update_rule.name": "replace", "method.name": name})


@pytest.mark.parametrize("name", ["fedavgm", "fedadam"])
def test_optimizers_of_the_server_work_on_the_sum(finished, tmp_path, name):
    """A momentum of 0 is the average itself; FedAdam moves the weights by its own step."""
    settings = {"aggregation.name": name} | ({"aggregation.momentum": 0.0} if name == "fedavgm" else {})
    experiment(NAME, engine="in-process", **SECURE, **settings, **{"aggregation.secure_limit": 8.0}).run(
        tmp_path / "run"
    )
    ours, plain = (
        [json.loads(line) for line in (one / "rounds.jsonl").read_text().splitlines()]
        for one in (tmp_path / "run", finished[0])
    )
    assert ours[1]["loss"] == plain[1]["loss"]
    near = ours[2]["loss"] == pytest.approx(plain[2]["loss"], abs=1e-4)
    assert near == (name == "fedavgm")


@pytest.mark.parametrize("rule", ["replace", "update-both", "fedu", "constant-mu"])
def test_other_rules_need_no_change(rule):
    assert load_config("smoke", {"aggregation.secure": True, "update_rule.name": rule}).uploads.secure


def test_a_rule_or_an_aggregator_from_elsewhere_is_taken_to_need_single_uploads():
    """Unless it says otherwise: nobody's weights are summed for a rule that would never see them."""
    from fedssl.federation.model_aggregation.base import Aggregator
    from fedssl.federation.model_communication import Replace

    class Noting(Replace):
        def note(self, noted, result, aggregated):
            return {"seen": 1.0}

    assert "note something of each client" in Noting().needs_single_results()
    assert Aggregator.needs_single_uploads
