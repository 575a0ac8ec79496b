"""Every cell becomes a valid config at every scale, and what a scale changes is named."""

from functools import cache

import pytest

from fedssl.core.errors import FedsslError
from fedssl.data import DATASETS
from fedssl.experiment.build.data import build_partition
from fedssl.experiment.config.layers import load_config
from fedssl.experiment.config.schema import Config
from fedssl.experiment.config.texts import flatten
from fedssl.paper.catalogue import load_studies
from fedssl.paper.scales import Change, LeftOut, Varied, find_scale, load_scales

STUDIES, SCALES = load_studies(), load_scales()
CELLS = {name: list(study.cells()) for name, study in STUDIES.items()}
EVERY = [cell for cells in CELLS.values() for cell in cells]
PARTICULAR = {name for scale in SCALES.values() for rule in scale.varied for name in rule.experiments}


@cache
def configs(name):
    """What every distinct cell becomes at a scale, made once for all tests."""
    distinct = {(cell.preset, str(cell.settings), cell.study.name in PARTICULAR): cell for cell in EVERY}
    return [(cell, SCALES[name].configure(cell)) for cell in distinct.values()]


def test_factors_and_tables_carry_values_over():
    assert Varied(key="rounds", times=0.4).carried_over(100) == 40
    assert Varied(key="rounds", times=0.001).carried_over(100) == 1, "never none at all"
    assert Varied(key="x", times=0.5).carried_over(0.25) == 0.125
    assert Varied(key="x", values={"5": 2}).carried_over(5) == 2
    assert Varied(key="x", values={"5": 2}).carried_over(7) == 7


def test_a_change_applies_where_the_papers_settings_say():
    change = Change(key="method.queue_size", value=1, reason="r", when={"method": {"name": ["mocov1", "mocov2"]}})
    assert change.applies({"method.name": "mocov2"})
    assert not change.applies({"method.name": "byol"})


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_every_cell_is_a_valid_config_or_left_out_with_a_reason(scale):
    for _, made in configs(scale.name):
        if isinstance(made, LeftOut):
            assert len(made.reason) > 20
            assert scale.name in ("cpu", "night", "night-long"), "the others have everything"
        else:
            assert isinstance(made, Config)


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_what_experiments_vary_is_carried_over_by_a_rule(scale):
    """A setting that both an experiment and the scale set needs a rule, or the experiment's value would stand alone."""
    changed = {change.key for change in scale.changes}
    for cells in CELLS.values():
        for cell in cells:
            for key in cell.settings:
                if key in changed and not (scale.name == "paper" and key == "evaluation.every"):
                    assert scale._rule(key, cell), f"{cell.title}: {key} at scale {scale.name}"


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_every_change_and_rule_is_of_use_and_has_a_reason(scale):
    own = {key for cells in CELLS.values() for cell in cells for key in cell.settings} | {"target"}
    assert all(change.reason for change in scale.changes)
    for rule in scale.varied:
        assert rule.key in own
        assert rule.reason or rule.left_out
        assert set(rule.experiments) <= set(STUDIES)


def test_the_papers_scale_is_the_presets():
    """But for what is looked at when, nothing differs from PRESET+ALGORITHM."""
    [cell] = [c for c in CELLS["linear-evaluation"] if c.row.algorithm == "fedema" and c.preset.startswith("cifar10-n")]
    made, preset = SCALES["paper"].configure(cell), load_config("cifar10-noniid+fedema")
    assert isinstance(made, Config)
    before, now = flatten(preset.as_raw()), flatten(made.as_raw())
    assert {key for key in before if before[key] != now[key]} == {"evaluation.linear_probe", "evaluation.every"}
    assert (made.run.rounds, made.local_training.epochs, made.network.name) == (100, 5, "resnet18")


def test_rows_are_as_the_authors_ran_them():
    paper = SCALES["paper"]
    rules = {cell.row.label: paper.configure(cell).update_rule.settings for cell in CELLS["divergence"]}
    authors = rules["FedEMA, the authors' divergence"]
    assert (authors["between"], authors["norm"], authors["scale"]) == ("before-after", "mean-conv", None)
    amounts = [paper.configure(cell).update_rule for cell in CELLS["data-amount"] if "FedEMA" in cell.row.label]
    assert {(rule.settings["scale"], rule.settings["norm"]) for rule in amounts} == {(1.0, "mean-conv")}
    contrastive = [config for _, config in configs("paper") if config.method.name == "simclr"]
    assert contrastive
    assert all(config.method.settings["joint_batch"] for config in contrastive)
    assert {config.network.model_extra["init"] for _, config in configs("paper")} == {"pytorch"}


def test_the_recorded_runs_of_the_cpu_scale_are_still_its_runs():
    """Their configs have none of these settings: network.init, method.joint_batch, partition.leftover."""
    made = [config for _, config in configs("cpu") if isinstance(config, Config)]
    assert {frozenset(config.network.model_extra) for config in made} == {frozenset({"width", "stem_stride", "stem"})}
    assert {config.network.model_extra["stem"] for config in made} == {"learned"}
    assert {config.method.settings.get("joint_batch", False) for config in made} == {False}
    assert {config.partition.settings.get("leftover", "unused") for config in made} == {"unused"}


def test_a_value_that_has_no_meaning_at_a_scale_is_left_out():
    cpu = SCALES["cpu"]
    large = [cell for cell in CELLS["linear-evaluation-full"] if cell.row.group == "ResNet-50"]
    assert all(isinstance(cpu.configure(cell), LeftOut) for cell in large)
    many = {cell.column.label: cpu.configure(cell) for cell in CELLS["client-sampling"]}
    assert {label.partition(",")[0] for label, made in many.items() if isinstance(made, LeftOut)} == {"8/80"}


def test_varied_values_are_carried_over_and_said():
    cpu = SCALES["cpu"]
    cells = CELLS["rounds"][:4]
    assert [cpu.configure(cell).run.rounds for cell in cells] == [20, 40, 60, 80]
    assert cpu.carried_over(cells[1]) == ["rounds 200 → 40 (20 rounds stand for 100)"]
    targets = [cell for cell in CELLS["communication"] if cell.row.target == 80]
    assert cpu.target(targets[0]) == 38
    assert "target 80 % → 38 %" in cpu.carried_over(targets[0])
    assert SCALES["paper"].target(targets[0]) == 80
    assert SCALES["paper"].carried_over(targets[0]) == []


def test_a_scale_that_extends_another_changes_the_same_but_for_what_is_as_printed():
    night, long = SCALES["night"], SCALES["night-long"]
    printed = {"rounds", "local_training.epochs"}
    assert {change.key for change in night.changes} - {change.key for change in long.changes} == printed
    assert {rule.key for rule in night.varied} - {rule.key for rule in long.varied} == printed
    assert [long.configure(cell).run.rounds for cell in CELLS["rounds"][:4]] == [100, 200, 300, 400]
    assert long.evaluation_epochs == night.evaluation_epochs


def test_partitions_of_the_small_scales_can_be_made():
    """Every distinct partition of smoke, for its images are the fewest."""
    seen, made = set(), cache(DATASETS["synthetic"])
    for cell, config in configs("smoke"):
        if (key := str([config.data, config.partition])) not in seen:
            seen.add(key)
            dataset = made(**config.data.settings_for(DATASETS["synthetic"]))
            assert min(build_partition(config, dataset).sizes()) >= 2, cell.title
    assert len(seen) > 15


def test_an_unknown_scale_is_refused():
    with pytest.raises(FedsslError, match=r"--scale: there is no 'cpus' \(did you mean 'cpu'\?\)"):
        find_scale("cpus")
