"""One run for each distinct config, found again by what its config means."""

import json
from dataclasses import replace

import pytest

from fedssl.core.errors import FedsslError
from fedssl.paper.catalogue import load_studies
from fedssl.paper.plan import check_choice, choose, make_plan, run_key
from tests.helpers.paper_runs import SMOKE, plan_of, write

STUDIES = load_studies()


def test_what_cannot_change_results_is_not_in_the_key(tmp_path):
    [run] = plan_of("predictor", tmp_path, rows=["FedBYOL"]).runs.values()

    def key(**changes):
        return run_key(replace(run.config, run=run.config.run.model_copy(update=changes)))

    assert key(device="cuda", engine="processes", workers=3, keep_checkpoints=5) == run.key
    assert key(seed=1) != run.key
    assert key(rounds=3) != run.key


def test_cells_and_experiments_share_runs(tmp_path):
    """FedBYOL on non-IID CIFAR-10 stands in five tables and is one run."""
    names = ["ssl-methods", "linear-evaluation", "stop-gradient", "no-ema", "predictor"]
    plan = make_plan(
        [STUDIES[name] for name in names], SMOKE, tmp_path, 1, ["FedBYOL", "FedBYOL w/ stop-grad", "original"]
    )
    [shared] = [run for run in plan.runs.values() if len(run.cells) == 5]
    assert shared.name.startswith("byol-replace-synthetic-seed0-")
    assert shared.protocols == ["linear"], "what any of the cells needs, once"


def test_seeds_are_runs_of_their_own(tmp_path):
    plan = plan_of("predictor", tmp_path, seeds=3, rows=["FedBYOL"])
    assert sorted(run.config.run.seed for run in plan.runs.values()) == [0, 1, 2]
    [cell] = [cell for cell in STUDIES["predictor"].cells() if cell.row.title == "FedBYOL"]
    assert plan.run_of(cell, 2).config.run.seed == 2
    assert plan.run_of(cell, 3) is None


def test_finished_runs_are_found_under_any_name(tmp_path):
    """Also when the config was written before a setting existed that has its default now."""
    [run] = plan_of("ssl-methods", tmp_path, rows=["FedBYOL"], columns=["CIFAR-10"]).runs.values()
    write(run, 0.5)
    old = tmp_path / "smoke" / "some-old-name"
    run.folder.rename(old)
    text = (old / "config.toml").read_text()
    assert "labelled_fraction" in text
    (old / "config.toml").write_text("\n".join(line for line in text.splitlines() if "labelled_" not in line))
    again = plan_of("ssl-methods", tmp_path, rows=["FedBYOL"], columns=["CIFAR-10"])
    assert [found.folder for found in again.runs.values()] == [old]
    assert again.unfinished() == []
    (old / "config.toml").write_text("nonsense = true")
    assert len(plan_of("ssl-methods", tmp_path, rows=["FedBYOL"], columns=["CIFAR-10"]).unfinished()) == 1


def test_a_run_is_finished_when_its_evaluation_is(tmp_path):
    plan = plan_of("semi-supervised", tmp_path, rows=["FedBYOL"], columns=["CIFAR-10, 10 %"])
    [run] = plan.runs.values()
    assert run.config.data.settings["labelled_fraction"] == 0.1
    assert not run.trained()
    write(run, 0.5, evaluation=[])
    assert run.trained()
    assert run.missing_protocols(SMOKE.evaluation_epochs) == ["semi-10"]
    write(run, 0.5, epochs={"semi": 1})
    assert run.missing_protocols(SMOKE.evaluation_epochs) == ["semi-10"], "with other epochs it is another number"
    write(run, 0.5)
    assert run.finished(SMOKE.evaluation_epochs)
    summary = json.loads((run.folder / "summary.json").read_text())
    (run.folder / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    assert not run.trained()


def test_rows_and_columns_are_chosen_by_label():
    study = STUDIES["linear-evaluation-full"]
    assert [row.title for row in choose(study.rows, ["fedbyol, resnet-18"])] == ["FedBYOL, ResNet-18"]
    assert len(choose(study.rows, ["resnet-50"])) == 13
    assert len(choose(study.columns, ["cifar-10,"])) == 2
    exact = STUDIES["stop-gradient"].model_copy(update={"rows": STUDIES["predictor"].rows})
    assert [row.title for row in choose(exact.rows, ["FedBYOL"])] == ["FedBYOL"], "a whole label is itself alone"


def test_a_text_that_chooses_nothing_is_refused():
    two = [STUDIES["ssl-methods"], STUDIES["no-ema"]]
    check_choice(two, ["original", "FedSimCLR"], ["CIFAR-10"])
    with pytest.raises(FedsslError, match=r"--rows: there is no 'FedFoo'.*; known: FedSimCLR"):
        check_choice(two, ["FedFoo"], ())
    with pytest.raises(FedsslError, match=r"--columns: there is no 'MNIST'.*; known: CIFAR-10, CIFAR-100"):
        check_choice(two, (), ["MNIST"])


def test_what_is_left_out_has_no_run(tmp_path):
    from fedssl.paper.scales import load_scales

    plan = plan_of("client-sampling", tmp_path, rows=["FedBYOL"], columns=["8/80"], scale=load_scales()["cpu"])
    assert not plan.runs
    assert len(plan.left_out) == 4
