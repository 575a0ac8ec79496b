"""A site's policy: read or refused in one line, overridden by options, and held against what a server asks for."""

import tomllib
from datetime import datetime

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app, main
from fedssl.core.errors import FedsslError
from fedssl.deployment.audit import Spent
from fedssl.deployment.limits import check_settings, check_spent, check_upload
from fedssl.deployment.policy import SAFE, Policy, load_policy, policy_text
from fedssl.experiment.config.layers import load_config
from fedssl.federation.messages import ClientError
from tests.helpers.deployed import SETTINGS


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_epoch = 3", r"max_epoch: unknown key \(did you mean 'max_epochs'\?\)"),
        ("max_rounds = 0", "max_rounds: 0 is not a whole number 1 or more"),
        ('max_rounds = "many"', "max_rounds: 'many' is not a whole number 1 or more"),
        ("min_noise = nan", "min_noise: nan is not a number 0 or more"),
        ('hours = "25:00-03:00"', "hours: '25:00-03:00' is not hours of the day such as 18:00-06:00"),
        ('methods = ["simclrr"]', r"methods: there is no 'simclrr' \(did you mean 'simclr'\?\)"),
        ('methods = "simclr"', "methods: 'simclr' is not a list"),
        ('networks = ["resnet"]', "networks: there is no 'resnet'"),
        ('approval = "maybe"', "approval: 'maybe' is not one of automatic, ask"),
        ("allow_features = 1", "allow_features: 1 is not true or false"),
        ("max_rounds = = 3", "not readable as TOML"),
        ("[policy]\nmax_rounds = 3", "policy.max_rounds: unknown key"),
    ],
)
def test_a_policy_that_cannot_be_read_stops_the_client_with_the_field(tmp_path, text, told, monkeypatch, capsys):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(FedsslError, match=rf"policy\.toml: {told}"):
        load_policy(path, {})
    words = ["fedssl", "client", "--name", "a", "--server", "127.0.0.1:1", "--insecure", "--policy", str(path)]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "state").exists()


def test_a_policy_that_is_not_there_is_named_with_the_remedy(tmp_path):
    with pytest.raises(FedsslError, match=r"none\.toml: cannot be read .* `fedssl client policy init`"):
        load_policy(tmp_path / "none.toml", {})


def test_options_replace_what_the_policy_says(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('approval = "ask"\nmax_disk = 1.0\nmethods = ["simclr"]')
    policy = load_policy(path, {"max_disk": 2.0, "allow_features": True})
    assert (policy.approval, policy.max_disk, policy.allow_features, policy.methods) == ("ask", 2.0, True, ["simclr"])
    assert load_policy(None, {}) == Policy()
    with pytest.raises(FedsslError, match=r"^--require-privacy: 'some' is not one of any, central, distributed, local"):
        load_policy(path, {"require_privacy": "some"})
    with pytest.raises(FedsslError, match=r"^--min-sites: 1 is not a whole number 2 or more"):
        load_policy(None, {"min_sites": 1})


def test_a_policy_travels_to_the_app_as_it_was_read():
    given = {"methods": ["simclr", "byol"], "max_hours": 3.5, "hours": "18:00-06:00", "allow_features": True}
    policy = load_policy(None, given | {"min_sites": 4, "max_clip": 2.0, "approval": "ask"})
    assert Policy.of_node({"name": "north", **policy.as_node()}) == policy
    assert Policy.of_node({"name": "north"}) == Policy()
    assert all(isinstance(value, str) for value in policy.as_node().values())


def test_init_writes_every_field_with_safe_values_and_overwrites_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["client", "policy", "init"]).exit_code == 0
    policy = load_policy(tmp_path / "policy.toml", {})
    assert policy == Policy(**SAFE)
    assert (policy.approval, policy.require_secure_aggregation, policy.allow_features) == ("ask", True, False)
    assert set(tomllib.loads(policy_text().replace("# max_clip", "max_clip"))) == set(Policy.model_fields)
    again = CliRunner().invoke(app, ["client", "policy", "init"])
    assert "is there already" in str(again.exception)


def settings(**changes):
    return load_config("sites", SETTINGS | {"flower.clients": ["north"], "rounds": 10} | changes)


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"methods": ["byol", "mocov2"]}, "method.name: 'simclr', this site allows byol, mocov2"),
        ({"networks": ["resnet50"]}, "network.name: 'convnet', this site allows resnet50"),
        ({"update_rules": ["fedavg"]}, "update_rule.name: 'fedema', this site allows fedavg"),
        ({"max_rounds": 9}, "rounds: the server asks for 10, this site allows 9 at most"),
        ({"max_epochs": 1}, "local_training.epochs: the server asks for 2, this site allows 1 at most"),
    ],
)
def test_what_a_policy_does_not_allow_is_refused(policy, told):
    config = settings(**{"local_training.epochs": 2, "method.name": "simclr", "network.name": "convnet"})
    check_settings(config, Policy())
    with pytest.raises(FedsslError, match=told):
        check_settings(config, Policy(**policy))


def test_rounds_hours_and_uploads_are_counted_at_the_site():
    config, policy = settings(), Policy(max_rounds=3, max_hours=2.0, max_upload=1.5)
    check_spent(Spent(2, 1.0, 2, "x"), 3, config, policy)
    check_spent(Spent(3, 1.0, 3, "x"), 3, config, policy)  # its reply was lost
    for spent, number, told in [
        (Spent(3, 1.0, 3, "x"), 4, "max_rounds: 3 uploads left this site, which allows 3 per run"),
        (Spent(4, 1.0, 3, "x"), 3, "max_rounds: 4 uploads"),  # the same round with other weights, again and again
        (Spent(1, 2.0, 1, "x"), 2, r"max_hours: this site worked 2\.0 hours for the run and allows 2"),
        (Spent(), 11, "round 11: the run has 10"),
    ]:
        with pytest.raises(FedsslError, match=told):
            check_spent(spent, number, config, policy)
    check_upload(1_500_000, policy)
    with pytest.raises(FedsslError, match=r"max_upload: 1\.6 MB would leave, this site allows 1\.5 MB"):
        check_upload(1_600_000, policy)


@pytest.mark.parametrize(
    ("hours", "open_at", "closed_at"),
    [
        ("18:00-06:00", ["18:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "17:59"]),
        ("09:30-17:00", ["09:30", "16:59"], ["09:29", "17:00", "00:00"]),
        ("", ["00:00", "12:00"], []),
    ],
)
def test_tasks_are_begun_in_the_hours_of_the_day_that_the_site_gives(hours, open_at, closed_at):
    policy = Policy(hours=hours)
    for clock in open_at:
        policy.check_hours(datetime.fromisoformat(f"2026-03-04T{clock}"))
    for clock in closed_at:
        with pytest.raises(ClientError, match="hours: this site takes tasks from") as caught:
            policy.check_hours(datetime.fromisoformat(f"2026-03-04T{clock}"))
        assert caught.value.code == "closed"
