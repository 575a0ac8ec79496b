"""`fedssl bench methods`: what is planned, what is called decided, and the page; runs are written by hand."""

import shlex
import statistics

import pytest
from typer.testing import CliRunner

from fedssl.cli.main import app
from fedssl.core.errors import FedsslError
from fedssl.paper.comparison import markdown
from fedssl.paper.forecast import Amounts
from fedssl.paper.measured import Measured
from fedssl.paper.method_comparison import ALGORITHMS, MethodComparison, check_methods, margin, write_method_page
from tests.helpers.html_page import HtmlPage
from tests.helpers.paper_runs import write
from tests.helpers.small import TINY
from tests.helpers.small_photos import write_photos

EPOCHS = {"linear": 200}
COST = {"bytes_up": 3_000_000, "bytes_down": 1_000_000, "core_seconds": {"training": 90.0, "evaluation": 5.0}}


def planned(out, algorithms, seeds=3, preset="smoke", **options):
    return MethodComparison.of_algorithms(preset, algorithms, out, seeds, overrides=TINY, **options)


def bench(out, accuracies, **options):
    """Algorithms with these accuracies, one for each seed."""
    seeds = max(map(len, accuracies.values()))
    plan = planned(out, list(accuracies), seeds, **options).plan
    for (_, algorithm, _, seed), key in plan.keys.items():
        if seed < len(accuracies[algorithm]):
            write(plan.runs[key], accuracies[algorithm][seed], EPOCHS, **COST)
    return planned(out, list(accuracies), seeds, **options)


CLEAR = {"fedbyol": (0.60, 0.61, 0.62), "fedsimclr": (0.70, 0.71, 0.72), "fedsimclr+feddecorr": (0.705, 0.72, 0.73)}


def test_the_same_preset_seeds_and_partition_for_all(tmp_path):
    made = planned(tmp_path, ["fedbyol", "fedsimclr+feddecorr", "fedx"])
    assert len(made.plan.runs) == 9
    configs = [run.config for run in made.plan.runs.values()]
    assert {config.method.name for config in configs} == {"byol", "simclr", "fedx"}
    assert len({str((config.data, config.partition, config.network)) for config in configs}) == 1
    assert {config.local_training.decorrelation for config in configs if config.method.name == "simclr"} == {0.1}
    assert {run.folder.parent for run in made.plan.runs.values()} == {tmp_path / "smoke"}
    assert {tuple(run.protocols) for run in made.plan.runs.values()} == {("linear",)}
    assert planned(tmp_path, ["fedbyol", "fedx"], metric="knn").plan.unfinished()[0].protocols == []


def test_the_list_that_is_taken_without_names_can_be_planned(tmp_path):
    made = planned(tmp_path, ALGORITHMS, seeds=1)
    check_methods(made)
    assert len(made.plan.runs) == len(ALGORITHMS)


def test_the_margin_by_hand():
    """sd 1 and 2 of three seeds each: t of 4 degrees of freedom times √(1/3 + 4/3)."""
    first, second = Measured((9.0, 10.0, 11.0), 3), Measured((8.0, 10.0, 12.0), 3)
    assert margin(first, second) == pytest.approx(2.78 * (5 / 3) ** 0.5)
    assert margin(first, Measured((10.0,), 3)) is None


def test_seeds_that_agree_by_luck_have_the_error_of_their_test_images():
    """50 % of 100 images: 5 points for one run, 5 / √2 for two."""
    lucky = Measured((50.0, 50.0), 2, images=100)
    assert margin(lucky, lucky) == pytest.approx(4.30 * (2 * 12.5) ** 0.5)


def test_the_best_first_with_what_is_decided_and_what_is_noise(tmp_path):
    made = bench(tmp_path, CLEAR)
    (table,) = made.tables()
    assert [row[0] for row in table.rows] == ["fedsimclr+feddecorr", "fedsimclr", "fedbyol"]
    best, second, worst = table.rows
    spread = statistics.stdev((70.5, 72.0, 73.0))
    assert best[1] == f"71.83 ± {spread:.2f} (n = 3)"
    assert (best[2], second[2], worst[2]) == ("fedsimclr", "fedsimclr+feddecorr", "–")
    assert (best[3], best[4]) == ("1 min 30 s", "4.0 MB")
    order = made.sentences()[-1]
    assert "fedsimclr+feddecorr has the highest mean, not distinguishable from fedsimclr. 2 of 3 pairs" in order
    assert made.notes() == {}


def test_one_seed_decides_nothing_and_what_is_missing_has_its_command(tmp_path):
    typed = [f"{key}={value}" for key, value in TINY.items()]
    made = bench(tmp_path / "my runs", {"fedbyol": (0.6,), "fedsimclr": (), "fedx": (0.9,)}, typed=typed)
    assert "nothing is decided by one seed; take three or more" in made.sentences()[-1]
    assert made.tables()[0].rows[0][2] == "fedbyol"
    assert made.missing == ["fedsimclr, smoke: no run"]
    assert [row[1] for row in made.tables()[0].rows] == ["90.00 (n = 1)", "60.00 (n = 1)", "missing"]
    command = shlex.split(made.command)
    result = CliRunner().invoke(app, [*command[1:], "--show", "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output
    assert "2 of 3 methods are complete" in result.output
    assert HtmlPage((tmp_path / "page.html").read_text()).problems == []


def test_the_page_has_order_table_curves_and_settings(tmp_path):
    many = {name: (0.5 + number / 100, 0.51 + number / 100) for number, name in enumerate([*ALGORITHMS, "fedsc"])}
    made = bench(tmp_path, many)
    write_method_page(made, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert HtmlPage(text).problems == []
    for shown in (
        "Methods on smoke",
        "kNN accuracy over rounds",
        "What differs between the methods",
        "The same for all",
    ):
        assert shown in text
    assert "Settings of this scale" not in text
    titles = [figure.title for figure in made.figures()]  # fifteen methods, eight colours
    assert titles == ["kNN accuracy over rounds: places 1 to 8", "kNN accuracy over rounds: places 9 to 15"]
    own = dict(made.settings()[0].rows)
    assert own["fedbarlow"] == "method.name barlow, local_training.lr 0.002, method.redundancy 0.0051"
    assert "update_rule.name fedema" in own["fedema"]
    assert "update_rule" not in own["fedbyol"], "most have that rule"
    (leaves,) = made.notes()["More than weights leaves the clients"]
    assert leaves.startswith("fedsc: the correlation matrix")
    assert "| fedsc |" in markdown(made)


def test_a_method_with_a_partition_of_its_own_is_named(tmp_path):
    made = planned(tmp_path, ["fedbyol", "centralised"], seeds=1)
    assert made.notes()["Not the same data, partition or network"] == ["centralised: partition not as fedbyol"]


def test_own_images_are_counted_and_need_labels_to_test_with(tmp_path):
    small = {"data.image_size": 16, "network.width": 4, "network.head_hidden": 16, "network.head_out": 8}
    own = small | {"data.path": str(write_photos(tmp_path / "photos"))}
    made = MethodComparison.of_algorithms("folder", ["fedsimclr", "fedbyol"], tmp_path, 1, overrides=own)
    with pytest.raises(FedsslError, match=r"^data\.eval_test: methods are compared by their accuracy"):
        check_methods(made)
    own |= {"data.eval_test": str(write_photos(tmp_path / "test", each=2, seed=1))}
    made = MethodComparison.of_algorithms("folder", ["fedsimclr", "fedbyol"], tmp_path, 1, overrides=own)
    check_methods(made)
    configs = [run.config for run in made.plan.runs.values()]
    assert {(config.run.rounds, config.local_training.batch_size) for config in configs} == {(200, 16)}, "chosen once"
    amounts = Amounts.of(configs[0])
    assert (amounts.train_images, amounts.test_images, amounts.clients) == (24, 6, 5)


def test_what_cannot_be_compared_is_refused(tmp_path):
    for arguments, message in (
        (["smoke", "fedbyol"], "ALGORITHM…: one is no comparison"),
        (["smoke", "fedbyol", "nonsense"], "there is no algorithm 'nonsense'"),
    ):
        result = CliRunner().invoke(app, ["bench", "methods", *arguments, "--out", str(tmp_path), "--dry-run"])
        assert isinstance(result.exception, FedsslError)
        assert message in str(result.exception)


def test_a_dry_run_starts_nothing(tmp_path):
    given = [text for key, value in TINY.items() for text in ("--set", f"{key}={value}")]
    given += ["--out", str(tmp_path), "--seeds", "2", "--dry-run"]
    result = CliRunner().invoke(app, ["bench", "methods", "smoke", "fedbyol", "fedsimclr", *given])
    assert result.exit_code == 0, result.output
    assert "4 of 4 runs to do" in result.output
    assert list(tmp_path.iterdir()) == []
