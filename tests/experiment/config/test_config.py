import tomllib

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedssl.core.errors import FedsslError
from fedssl.core.settings import settings_of
from fedssl.experiment.build.networks import build_method
from fedssl.experiment.config.layers import (
    load_config,
    load_raw,
    parse_override,
    typed_config,
)
from fedssl.experiment.config.messages import describe_settings
from fedssl.experiment.config.preset_files import preset_description, preset_names
from fedssl.experiment.config.resolve import resolve
from fedssl.experiment.config.schema import Uploads
from fedssl.federation.model_aggregation.krum import Krum
from fedssl.federation.model_aggregation.trimmed_mean import TrimmedMean
from fedssl.federation.model_communication import FedEMA
from fedssl.methods import METHODS
from fedssl.networks.backbones import BACKBONES

SETTINGS = [*preset_names()]
ALGORITHMS = [*preset_names("algorithms")]


# --- everything shipped loads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["", *ALGORITHMS])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_preset_with_every_algorithm_resolves_and_its_resolved_form_is_itself(setting, algorithm, tmp_path):
    config = load_config(f"{setting}+{algorithm}" if algorithm else setting)
    path = tmp_path / "config.toml"
    path.write_text(config.as_toml())
    assert load_config(str(path)).as_raw() == config.as_raw()


@pytest.mark.parametrize(("name", "folder"), [(n, "") for n in SETTINGS] + [(n, "algorithms") for n in ALGORITHMS])
def test_every_preset_has_a_line_of_description(name, folder):
    assert 20 < len(preset_description(name, folder)) < 140


def test_the_papers_settings_exist_for_every_method_dataset_and_partition():
    for data, classes in (("cifar10", 2), ("cifar100", 20)):
        for partition, name in (("noniid", "classes"), ("iid", "iid")):
            for algorithm, method, rule in (
                ("fedsimclr", "simclr", "replace"),
                ("fedmocov1", "mocov1", "replace"),
                ("fedmocov2", "mocov2", "replace"),
                ("fedsimsiam", "simsiam", "replace"),
                ("fedbyol", "byol", "replace"),
                ("fedu", "byol", "fedu"),
                ("fedema", "byol", "fedema"),
                ("standalone", "byol", "none"),
            ):
                config = load_config(f"{data}-{partition}+{algorithm}")
                assert (config.data.name, config.partition.name) == (data, name)
                assert config.partition.settings.get("classes_per_client", classes) == classes
                assert config.partition.settings["num_clients"] == 5
                assert (config.method.name, config.update_rule.name) == (method, rule)
                assert (config.run.rounds, config.local_training.epochs, config.local_training.batch_size) == (
                    100,
                    5,
                    128,
                )
                assert (config.local_training.lr, config.network.name) == (0.032, "resnet18")
                assert (config.network.head_hidden, config.network.head_out) == (4096, 2048)
                assert config.network.model_extra == {
                    "width": 64,
                    "stem_stride": 1,
                    "init": "pytorch",
                    "stem": "learned",
                }
                assert config.method.settings.get("joint_batch", True)
                assert config.partition.settings.get("leftover", "dealt") == "dealt"
                moco_v1 = method == "mocov1"
                assert config.local_training.schedule == ("constant" if moco_v1 else "cosine")
                assert config.augmentation.name == ("weak-jitter" if moco_v1 else "simclr")


@pytest.mark.parametrize("setting", ["cifar10-cpu", "smoke", "folder", "sites"])
def test_presets_for_cpus_keep_the_initial_weights_and_partitions_that_they_had(setting):
    config = load_config(setting)
    assert "init" not in config.network.model_extra
    assert config.partition.settings.get("leftover", "unused") == "unused"
    assert load_config(setting, {"network.name": "resnet10"}).network.model_extra["init"] == "he"


def test_the_choice_of_initial_weights_is_one_of_resnets():
    """The convnet has always begun with PyTorch's, and a user's own network begins as it likes."""
    with pytest.raises(FedsslError, match=r"network\.init: unknown key"):
        load_config("smoke", {"network.init": "pytorch"})
    with pytest.raises(FedsslError, match=r"network\.init: 'xavier' is not one of he, pytorch"):
        load_config("cifar10-noniid", {"network.init": "xavier"})
    own = load_config("cifar10-noniid", {"network.name": "own_networks:Small"})
    assert own.network.model_extra == {}
    given = typed_config("smoke", {"network.name": "own_networks:Small", "network.init": "zeros"})
    with pytest.raises(FedsslError, match=r"'own_networks:Small' does not accept these settings: .*'init'"):
        build_method(given, 3, (16, 16))


def test_a_config_of_before_a_setting_existed_means_what_it_did():
    raw = load_config("cifar10-noniid+fedsimclr").as_raw()
    del raw["network"]["init"], raw["method"]["joint_batch"], raw["partition"]["leftover"]
    meant = {"network.init": "he", "method.joint_batch": False, "partition.leftover": "unused"}
    assert resolve(raw).as_raw() == load_config("cifar10-noniid+fedsimclr", meant).as_raw()


def test_centralised_is_one_client_with_everything():
    config = load_config("cifar10-noniid+centralised")
    assert (config.partition.name, config.partition.settings["num_clients"]) == ("iid", 1)


# --- layers ----------------------------------------------------------------------------------------------------------


def test_overrides_win_and_a_new_name_drops_settings_it_does_not_know():
    config = load_config("cifar10-noniid", {"update_rule.name": "constant-mu", "seed": 3})
    assert config.update_rule.settings == {"mu_encoder": 0.5, "mu_predictor": 0.5, "stale": "selective"}
    assert config.run.seed == 3
    config = load_config("cifar10-noniid", {"partition.name": "iid", "network.name": "convnet"})
    assert config.partition.settings == {"num_clients": 5, "data_amount": 1.0}
    assert config.network.model_extra == {"width": 64, "stem_stride": 1, "stem": "learned"}


def test_an_override_that_the_new_name_does_not_know_is_an_error():
    with pytest.raises(FedsslError, match=r"update_rule\.tau: unknown key"):
        load_config("cifar10-noniid", {"update_rule.name": "replace", "update_rule.tau": 0.5})


PLAIN = {name: setting.default for name, setting in settings_of(Uploads).items() if name.startswith("secure")}


def test_aggregation_is_the_papers_unless_it_is_named_and_clients_send_what_they_did():
    config = load_config("smoke")
    sent = {"upload": "online", "batchnorm": "average", "wire_dtype": "fp32", **PLAIN}
    assert config.aggregation.as_raw() == {"name": "weighted-average", **sent}
    raw = {"name": "krum", "selected": 2, "byzantine": 2, "upload": "target"}
    config = load_config("smoke", {"partition.num_clients": 7} | {f"aggregation.{key}": raw[key] for key in raw})
    assert config.aggregation.as_raw() == sent | raw
    assert (config.uploads.upload, config.uploads.batchnorm) == ("target", "average")
    assert config.aggregation.build() == Krum(byzantine=2, selected=2)
    assert load_config("smoke", {"aggregation.name": "trimmed-mean"}).aggregation.build() == TrimmedMean()


def test_another_aggregator_drops_settings_it_does_not_know_and_keeps_what_clients_send(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "smoke"\n[aggregation]\nname = "trimmed-mean"\ntrim = 1\nbatchnorm = "local-layers"\n')
    config = load_config(str(path), {"aggregation.name": "clipped-average", "aggregation.max_norm": 2.5})
    sent = {"upload": "online", "batchnorm": "local-layers", "wire_dtype": "fp32", **PLAIN}
    assert config.aggregation.settings == {"max_norm": 2.5, **sent}
    path.write_text(config.as_toml())
    assert load_config(str(path)).as_raw() == config.as_raw()


def test_clients_that_share_nothing_are_never_too_few_for_an_aggregator():
    assert load_config("smoke+standalone", {"aggregation.name": "krum"}).aggregation.name == "krum"


def test_file_may_extend_a_preset(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "smoke+fedu"\nrounds = 7\n[update_rule]\nthreshold = 0.9\n')
    config = load_config(str(path))
    assert (config.run.rounds, config.data.name) == (7, "synthetic")
    assert (config.update_rule.name, config.update_rule.settings["threshold"]) == ("fedu", 0.9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("update_rule.tau=0.5", ("update_rule.tau", 0.5)),
        ("rounds=3", ("rounds", 3)),
        ("method.predictor=false", ("method.predictor", False)),
        ("update_rule.name=fedu", ("update_rule.name", "fedu")),
        ('update_rule.name="fedu"', ("update_rule.name", "fedu")),
        ("network.name=a.b:c", ("network.name", "a.b:c")),
    ],
)
def test_parse_override(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["rounds", "=3", ""])
def test_parse_override_refuses(text):
    with pytest.raises(FedsslError, match="--set"):
        parse_override(text)


# --- bad input: the path of the key, the value, and a remedy ----------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"update_rule.tauu": 0.5}, r"update_rule\.tauu: unknown key \(did you mean 'tau'\?\)"),
        ({"roundz": 3}, r"roundz: unknown key \(did you mean 'rounds'\?\)"),
        ({"updaterule.tau": 3}, r"updaterule\.tau: unknown key \(did you mean 'update_rule\.tau'\?\)"),
        ({"evaluation.evry": 3}, r"evaluation\.evry: unknown key \(did you mean 'every'\?\)"),
        ({"local_training.learning_rate": 3}, r"local_training\.learning_rate: unknown key"),
        ({"network.widht": 3}, r"network\.widht: unknown key \(did you mean 'width'\?\)"),
        ({"update_rule.tau": 1.5}, r"update_rule\.tau: 1\.5 is not a number from 0 to 1"),
        ({"update_rule.tau": -0.1}, r"update_rule\.tau: -0\.1 is not a number from 0 to 1"),
        ({"update_rule.tau": "high"}, r"update_rule\.tau: 'high' is not a number from 0 to 1"),
        ({"update_rule.tau": float("nan")}, r"update_rule\.tau: nan is not a number"),
        ({"update_rule.scale": -1}, r"update_rule\.scale: -1 is not a number 0 or more"),
        ({"update_rule.between": "both"}, r"update_rule\.between: 'both' is not one of global-local, before-after"),
        ({"local_training.epochs": 0}, r"local_training\.epochs: 0 is not a whole number 1 or more"),
        ({"local_training.epochs": 1.5}, r"local_training\.epochs: 1\.5 is not a whole number"),
        ({"local_training.lr": float("inf")}, r"local_training\.lr: inf is not a number"),
        ({"rounds": True}, r"rounds: True is not a whole number"),
        ({"rounds": -1}, r"rounds: -1 is not a whole number 1 or more"),
        ({"method.name": "byoll"}, r"method\.name: there is no 'byoll' \(did you mean 'byol'\?\); known: simclr"),
        ({"update_rule.name": "fedemo"}, r"update_rule\.name: there is no 'fedemo' \(did you mean 'fedema'\?\)"),
        ({"data.name": "cifar11"}, r"data\.name: there is no 'cifar11' \(did you mean"),
        ({"partition.name": 3}, r"partition\.name: there is no 3"),
        ({"network.name": "resnet"}, r"network\.name: there is no 'resnet'"),
        ({"aggregation.name": "medain"}, r"aggregation\.name: there is no 'medain' \(did you mean 'median'\?\)"),
        ({"aggregation.trim": 1}, r"aggregation\.trim: unknown key; known here: upload, batchnorm"),
        ({"aggregation.batchnorm": "local"}, r"aggregation\.batchnorm: 'local' is not one of average, local-stat"),
        ({"aggregation.upload": "both"}, r"aggregation\.upload: 'both' is not one of online, target"),
        (
            {"aggregation.name": "trimmed-mean", "aggregation.trim": 0},
            r"aggregation\.trim: 0 is not a whole number 1 or more",
        ),
        (
            {"aggregation.name": "clipped-average", "aggregation.max_norm": 0},
            r"aggregation\.max_norm: 0 is not a number above 0",
        ),
        ({"aggregation.name": "krum", "aggregation.byzantin": 1}, r"aggregation\.byzantin: unknown key \(did you mean"),
        (
            {"aggregation.name": "krum"},
            r"aggregation\.byzantine = 1 needs 5 or more clients in a round, there are 4: take more clients",
        ),
        (
            {"aggregation.name": "trimmed-mean", "client_sampling.clients_per_round": 2},
            r"aggregation\.trim = 1 needs 3 or more clients in a round, there are 2: ",
        ),
        ({"method": 3}, r"method: expected a table of settings, got 3"),
        ({"client_sampling.clients_per_round": 9}, r"clients_per_round: 9 is more than partition\.num_clients \(4\)"),
        ({"engine": "ray"}, r"engine: there is no 'ray'; known: in-process, processes"),
        ({"augmentation.flip": 2}, r"augmentation\.flip: 2 is not a number from 0 to 1"),
        (
            {"method.momentum": 2, "method.predictor": 1},
            r"method\.momentum: 2 .*; method\.predictor: 1 is not true or false",
        ),
    ],
)
def test_bad_values_are_named(override, message):
    with pytest.raises(FedsslError, match=message) as caught:
        load_config("smoke", override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smok", "no preset or .toml file 'smok' .did you mean 'smoke'.*fedssl presets"),
        ("smoke+fedemo", "no algorithm 'fedemo' .did you mean 'fedema'"),
        ("missing.toml", "missing.toml: there is no such file"),
    ],
)
def test_unknown_presets_and_files(name, message):
    with pytest.raises(FedsslError, match=message):
        load_config(name)


def test_unreadable_toml(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("rounds = = 3")
    with pytest.raises(FedsslError, match=r"broken\.toml: not valid TOML: .*line 1"):
        load_config(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FedsslError, match=r"broken\.toml: not valid TOML"):
        load_config(str(path))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(FedsslError, match=r"cannot be read"):
        load_config(str(tmp_path / "folder.toml"))


VALUES = st.one_of(
    st.integers(-3, 3), st.floats(), st.booleans(), st.text(max_size=5), st.lists(st.integers(), max_size=2), st.none()
)
PATHS = [
    f"{table}.{key}" if table else key
    for table, content in [("", {}), *load_config("smoke").as_raw().items()]
    if isinstance(content, dict)
    for key in (content or ["seed", "rounds", "engine", "device", "threads"])
]


@hypothesis_settings(deadline=None)  # a busy machine is no fault of a value
@given(path=st.sampled_from(PATHS), value=VALUES)
def test_any_value_for_any_field_is_accepted_or_refused_by_name(path, value):
    raw = load_raw("smoke", {path: value})
    try:
        resolve(raw)
    except FedsslError as error:
        assert path.split(".")[0] in str(error)
        assert "\n" not in str(error)


# --- listings --------------------------------------------------------------------------------------------------------


def test_describe_settings_of_fedema():
    described = describe_settings(FedEMA)
    assert described["tau"] == ("a number from 0 to 1", "0.7")
    assert described["scale"] == ("a number 0 or more", "not set")
    assert described["norm"][0] == "one of l2, mean-conv, mean-matrix"


def test_describe_settings_shows_what_a_registry_line_fixed():
    assert describe_settings(METHODS["mocov1"])["head"][1] == '"linear"'
    assert describe_settings(METHODS["mocov2"])["head"][1] == '"mlp"'
    assert describe_settings(BACKBONES["resnet18"])["stem_stride"] == ("one of 1, 2", "1")


def test_as_toml_is_toml():
    raw = load_config("cifar10-cpu").as_raw()
    assert tomllib.loads(load_config("cifar10-cpu").as_toml()) == raw
    assert "clients_per_round" not in raw["client_sampling"]
