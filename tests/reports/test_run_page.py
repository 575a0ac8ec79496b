"""Reports of real, tiny runs: what is in them is what the run recorded, and what cannot be shown is said."""

import base64
import io
import json
import re
import shutil
import tomllib

import numpy as np
import pytest
import tomli_w
from PIL import Image

from fedssl.core.errors import FedsslError
from fedssl.encoders.evaluate import Request, evaluate
from fedssl.evaluation.features import compute_features
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.experiment.records.run_record import read_environment
from fedssl.reports.run_page import write_report
from tests.helpers.html_page import HtmlPage
from tests.helpers.small import TINY
from tests.helpers.written_runs import as_older

SETTINGS = TINY | {"data.train_images": 120, "data.test_images": 60, "rounds": 3}
IMAGE_FIGURES = ("map-pca", "map-tsne", "confusion", "neighbours", "holdings", "views")
ROUND_FIGURES = ("accuracy", "loss", "divergence", "mu", "ema", "collapse", "seconds", "bytes")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three runs: FedEMA with a linear probe, standalone, and one stopped in its first round."""
    folder = tmp_path_factory.mktemp("runs")
    load("smoke", SETTINGS | {"evaluation.linear_probe": True, "evaluation.linear_epochs": 2}).run(folder / "fedema")
    load("smoke+standalone", SETTINGS | {"rounds": 2}).run(folder / "alone")

    class Impatient(QuietView):
        def progress(self, text, done, total, client=None, images=0):
            if client is not None:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("smoke", SETTINGS).run(folder / "stopped", Impatient())
    return folder


@pytest.fixture(scope="module")
def page(runs):
    out = runs / "fedema.html"
    assert write_report([runs / "fedema"], out) == []
    return HtmlPage(out.read_text())


class Watched(QuietView):
    def __init__(self):
        self.pieces, self.done, self.texts = 0, 0, set()

    def begin(self, text, pieces):
        self.pieces = pieces

    def progress(self, text, done, total):
        self.texts.add(text)

    def advance(self, by=1, text=""):
        self.done += by


def test_how_far_a_report_is_can_be_watched_figure_by_figure(runs, tmp_path):
    view = Watched()
    write_report([runs / "fedema"], tmp_path / "x.html", view=view)
    assert view.done == view.pieces > 10
    assert {"features of training images", "features of test images", "Nearest neighbours"} <= view.texts


def test_neighbours_are_counted_for_all_test_images_and_not_for_those_shown_alone(runs, page):
    run = FinishedRun.open(runs / "fedema")
    (train, test), encoder = run.dataset.labelled, run.global_encoder().backbone
    bank, queries = (compute_features(encoder, images.pixels).numpy() for images in (train, test))
    bank, queries = (table / np.linalg.norm(table, axis=1, keepdims=True) for table in (bank, queries))
    nearest = np.argsort(-(queries @ bank.T), axis=1)[:, :6]
    same = (train.labels.numpy()[nearest] == test.labels.numpy()[:, None]).mean()
    by_chance = np.mean([(train.labels == label).float().mean() for label in test.labels])
    said = f"{100 * same:.0f}\u00a0% are; by chance {100 * by_chance:.0f}\u00a0% would be."
    assert f"all 60 test images here, {said}" in page.text


def edited(run, target, **tables):
    """A copy of a run folder with tables of its config replaced."""
    shutil.copytree(run, target)
    config = tomllib.loads((target / "config.toml").read_text()) | tables
    RunFolder(target).write_config(tomli_w.dumps(config))
    return target


def report(runs, out, **options):
    left_out = write_report(runs, out, **options)
    page = HtmlPage(out.read_text())
    assert page.problems == []
    return page, left_out


# --- the whole of it --------------------------------------------------------------------------------------------------


def test_every_figure_is_there_and_the_page_is_sound(page):
    assert page.problems == []
    assert set(page.figures) == {f"run1-{name}" for name in ROUND_FIGURES + IMAGE_FIGURES}


def test_headline_numbers_are_those_of_the_summary(page, runs):
    summary = json.loads((runs / "fedema" / "summary.json").read_text())
    for measure, title in (("knn", "kNN accuracy"), ("linear", "Linear probe")):
        modes = [summary["final"][measure], summary["final"][f"{measure}_reestimated"]]
        assert page.tiles[title] == f"{100 * max(modes):.1f} %"
    assert next(iter(page.tiles)) == "Verdict"
    assert page.tiles["Verdict"] == summary["verdict"]
    assert page.tiles["Mean mu"] == f"{summary['mean_mu']:.3f}"
    assert page.tiles["Rounds"] == "3"
    best = max(summary["initial"]["knn"], summary["initial"]["knn_reestimated"])
    assert f"{100 * best:.1f}\u00a0% correctly by the random encoder in the BatchNorm mode that suits" in page.text
    assert "guessing would give 10.0\u00a0%" in page.text


def test_it_says_in_words_what_was_done(page):
    assert ("h1", "BYOL with FedEMA on synthetic images") in page.headings
    for words in (
        "Four clients held 120 images between them (synthetic images; 5 classes each), without labels.",
        "In 3 rounds, every client trained once through its own images (BYOL:",
        "The server averaged what they sent.",
        "keeps the more of its own the further the two have drifted apart (FedEMA)",
    ):
        assert words in page.text


def test_heat_map_shows_who_holds_what(page, runs):
    run = FinishedRun.open(runs / "fedema")
    counts = run.partition.class_counts(run.dataset.train.labels.numpy(), 10)
    shown = [text for text in page.figures["run1-holdings"]["texts"] if text.isdigit()]
    assert shown == [str(count) for count in counts.flatten() if count]
    assert "A client holds 5 classes." in page.figures["run1-holdings"]["caption"]


def test_confusion_matrix_agrees_with_the_recorded_accuracy(page, runs):
    knn = json.loads((runs / "fedema" / "summary.json").read_text())["final"]["knn"]
    assert f"{100 * knn:.1f}\u00a0% are classified correctly" in page.figures["run1-confusion"]["caption"]
    assert "60 test and 120 training images" in page.figures["run1-confusion"]["caption"]


def test_maps_show_the_random_and_the_trained_encoder(page):
    for name in ("map-pca", "map-tsne"):
        alts = page.figures[f"run1-{name}"]["alts"]
        assert [("random init" in alt, "trained" in alt) for alt in alts] == [(True, False), (False, True)]
        assert all("60 test images" in alt for alt in alts)


def test_a_dot_of_a_map_shows_its_image_when_pointed_at(page, runs):
    html = (runs / "fedema.html").read_text()
    (sheet,) = re.findall(r"--sheet: url\(data:image/jpeg;base64,([^)]+)\)", html)
    with Image.open(io.BytesIO(base64.b64decode(sheet))) as picture:
        assert picture.size == (20 * 32, 3 * 32)  # 60 images in rows of 20
    spots = re.findall(r'<i style="left:([\d.]+)%;top:([\d.]+)%;--x:(\d+);--y:(\d+)"', html)
    assert len(spots) == 4 * 60  # two maps of two encoders
    assert all(0 <= float(left) <= 100 and 0 <= float(top) <= 100 for left, top, _, _ in spots)
    assert {(int(x), int(y)) for _, _, x, y in spots} == {(x, y) for x in range(20) for y in range(3)}


def test_the_verdict_comes_before_the_story(page):
    assert page.text.index("Verdict") < page.text.index("every client trained")


def test_tables_hold_settings_rounds_and_environment(page, runs):
    assert ("tau", "0.7") in page.rows
    records = [json.loads(line) for line in (runs / "fedema" / "rounds.jsonl").read_text().splitlines()]
    (row,) = [row for row in page.rows if row[0] == "3" and len(row) > 10]
    assert f"{records[3]['loss']:.6g}" in row
    assert ("torch_threads", "1") in page.rows


def test_warnings_of_the_run_are_repeated(runs, tmp_path):
    run = as_older(shutil.copytree(runs / "fedema", tmp_path / "run"))
    records = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    records[2]["clients"][1]["feature_std"] = 0.01
    (run / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (run / "environment.json").unlink()
    page, _ = report([run], tmp_path / "r.html", images=0)
    assert "Client 1: its features collapsed in round 2" in page.text
    assert "environment.json is missing" in page.text


# --- missing pieces ---------------------------------------------------------------------------------------------------


def test_a_run_without_a_finished_round(runs, tmp_path):
    page, left_out = report([runs / "stopped"], tmp_path / "r.html")
    assert set(page.figures) == {"run1-accuracy", "run1-holdings", "run1-views"}
    assert "The run was interrupted" in page.text
    assert "No round was finished." in page.text
    assert page.tiles["Rounds"] == "0"
    assert len(left_out) == len(ROUND_FIGURES + IMAGE_FIGURES) - 3
    assert "Nearest neighbours (no round was finished: there is no trained encoder)" in left_out


def test_standalone_has_no_mu_no_linear_and_shows_a_clients_own_encoder(runs, tmp_path):
    page, left_out = report([runs / "alone"], tmp_path / "r.html")
    assert "mu of each client (the update rule 'none' recorded no mu)" in left_out
    assert "run1-mu" not in page.figures
    assert "mu of each client: the update rule 'none' recorded no mu" in page.text
    assert set(page.tiles) == {"Verdict", "kNN accuracy", "Rounds", "Time", "Sent"}
    best = json.loads((runs / "alone" / "summary.json").read_text())["gain"]["knn"]["trained"]
    assert page.tiles["kNN accuracy"] == f"{100 * best['accuracy']:.1f} ± {100 * best['sd']:.1f} %"
    assert "own encoder of client 0 (nothing is shared)" in page.figures["run1-confusion"]["caption"]
    assert "Nothing was averaged: every client kept to itself." in page.text


def test_dataset_that_is_not_here(runs, tmp_path):
    run = edited(runs / "fedema", tmp_path / "run", data={"name": "cifar10"})
    page, left_out = report([run], tmp_path / "r.html")
    assert set(page.figures) == {f"run1-{name}" for name in ROUND_FIGURES}
    assert len(left_out) == len(IMAGE_FIGURES)
    assert all("run `fedssl data fetch cifar10`" in line for line in left_out)
    assert page.text.count("run `fedssl data fetch cifar10`") == len(IMAGE_FIGURES)


def test_a_damaged_encoder_leaves_out_only_what_needs_it(runs, tmp_path):
    run = shutil.copytree(runs / "fedema", tmp_path / "run")
    (run / "encoder.safetensors").write_bytes(b"rubbish")
    page, left_out = report([run], tmp_path / "r.html")
    assert {"run1-holdings", "run1-views"} <= set(page.figures)
    assert len(left_out) == 4
    assert all("not readable as safetensors" in line for line in left_out)


def test_fewer_images_on_request(runs, tmp_path):
    page, _ = report([runs / "fedema"], tmp_path / "r.html", images=20)
    assert "20 test and 120 training images" in page.figures["run1-confusion"]["caption"]
    page, left_out = report([runs / "fedema"], tmp_path / "r.html", images=0)
    assert set(page.figures) == {f"run1-{name}" for name in ROUND_FIGURES}
    assert "Who holds what (asked for with --images 0)" in left_out


def test_local_batchnorm_is_looked_at_with_reestimated_statistics(tmp_path):
    load("smoke", SETTINGS | {"rounds": 1, "aggregation.batchnorm": "local-layers"}).run(tmp_path / "run")
    page, left_out = report([tmp_path / "run"], tmp_path / "r.html")
    knn = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]["knn_reestimated"]
    assert f"{100 * knn:.1f}\u00a0% are classified correctly" in page.figures["run1-confusion"]["caption"]
    assert [line.split(" (")[0] for line in left_out] == [
        "Divergence of each client",
        "mu of each client",
        "Share of EMA updates",
    ]


# --- what others wrote ------------------------------------------------------------------------------------------------


def test_strings_of_users_are_text_and_never_markup(runs, tmp_path):
    run = shutil.copytree(runs / "fedema", tmp_path / "<script>alert(1)<!-- &amp;")
    RunFolder(run).write_environment(read_environment(run) | {"command": ["<img src=x onerror=alert(1)>"]})
    page, _ = report([run, runs / "alone"], tmp_path / "r.html", images=0)  # `report` finds any <script>
    assert run.name in page.text
    assert "<img src=x onerror=alert(1)>" in page.text


def test_what_evaluate_found_is_shown(runs, tmp_path):
    run = shutil.copytree(runs / "fedema", tmp_path / "run")
    results = evaluate(run, Request(protocols=("knn",), batchnorm="running"))
    page, _ = report([run], tmp_path / "r.html", images=0)
    score = results[0].score
    low, high = score.interval
    label = "knn (paper) on synthetic, global, BatchNorm running"
    row = (label, f"{100 * score.accuracy:.1f} %", f"{100 * low:.1f}–{100 * high:.1f} %", str(score.n))
    assert row in page.rows


# --- several runs -----------------------------------------------------------------------------------------------------


def test_runs_side_by_side(runs, tmp_path):
    page, left_out = report([runs / "fedema", runs / "alone", runs / "stopped"], tmp_path / "r.html", images=0)
    assert ("h1", "3 runs compared") in page.headings
    judged = json.loads((runs / "fedema" / "summary.json").read_text())["verdict"]
    assert next(iter(page.tiles.items())) == ("fedema", judged)
    assert ("setting", "fedema", "alone", "stopped") in page.rows
    assert ("update_rule.name", "fedema", "none", "fedema") in page.rows
    assert ("rounds", "3", "2", "3") in page.rows, "asked for"
    assert ("rounds", "3", "2", "0") in page.rows, "done"
    assert ("status", "finished", "finished", "interrupted") in page.rows
    assert {f"compared-{name}" for name in ("knn", "loss", "mu", "divergence", "feature_std", "seconds")} <= set(
        page.figures
    )
    assert "Not recorded by alone, stopped." in page.figures["compared-mu"]["caption"]
    assert {"run1-loss", "run2-loss"} <= set(page.figures)
    assert any(line.startswith("alone: mu of each client") for line in left_out)


def test_divergences_of_different_rules_are_not_passed_off_as_one(runs, tmp_path):
    load("smoke", SETTINGS | {"update_rule.between": "before-after"}).run(tmp_path / "authors")
    page, _ = report([runs / "fedema", tmp_path / "authors"], tmp_path / "r.html", images=0)
    caption = page.figures["compared-divergence"]["caption"]
    assert "Not the same measure" in caption
    assert "fedema: how far its encoder is from the global one" in caption
    assert "authors: how far its own last training moved its encoder" in caption


def test_runs_with_the_same_settings(runs, tmp_path):
    again = shutil.copytree(runs / "fedema", tmp_path / "again")
    page, _ = report([runs / "fedema", again], tmp_path / "r.html", images=0)
    assert "The settings are the same in all runs." in page.text
    assert "The same measure in all runs." in page.figures["compared-divergence"]["caption"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_refused_before_any_work(runs, tmp_path):
    with pytest.raises(FedsslError, match=r"not a run folder \(config\.toml is missing\)"):
        write_report([tmp_path], tmp_path / "r.html")
    with pytest.raises(FedsslError, match=r"the folder .*missing does not exist: make it first"):
        write_report([runs / "fedema"], tmp_path / "missing" / "r.html")
    with pytest.raises(FedsslError, match="is a folder: name a file"):
        write_report([runs / "fedema"], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_partition_of_another_dataset_is_named(runs, tmp_path):
    run = as_older(shutil.copytree(runs / "fedema", tmp_path / "run"))
    partition = json.loads((run / "partition.json").read_text())
    partition["clients"][0][0] = 5000
    (run / "partition.json").write_text(json.dumps(partition))
    _, left_out = report([run], tmp_path / "r.html")
    reason = "partition.json names more images than the dataset has"
    assert left_out == [f"Who holds what ({reason})", f"What each client trains on ({reason})"]


def test_grey_images_are_shown():
    from fedssl.reports.image_figures import png_uri

    assert png_uri(np.zeros((1, 4, 4), np.uint8)).startswith("data:image/png;base64,iVBOR")


def test_the_structural_check_finds_what_it_is_for(runs, tmp_path):
    write_report([runs / "fedema"], tmp_path / "r.html", images=0)
    html = (tmp_path / "r.html").read_text()
    for old, new, problem in (
        ('id="run1-loss"', 'id="run1-accuracy"', "id run1-accuracy twice"),
        ('href="#run1-cost"', 'href="#nowhere"', "#nowhere leads nowhere"),
        ("</body>", '<img src="https://example.org/x.png" alt="x"></body>', "asks for https://example.org/x.png"),
        ("</head>", "<script>1</script></head>", "asks for <script>"),
        ("</figcaption>", "", "</figure> closes"),
        ('role="img"', 'role="none"', "has no drawing"),
        ("<h1>", "<h1>x</h1><h1>", "not one h1"),
    ):
        assert old in html
        assert any(problem in line for line in HtmlPage(html.replace(old, new)).problems), problem


def test_without_a_browser_the_browser_check_says_what_to_do(monkeypatch):
    from scripts.check_report import BrowserError, find_browser

    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROME", raising=False)
    with pytest.raises(
        BrowserError, match=r"no Chromium or Chrome on the PATH: install one .* pytest -m 'not browser'"
    ):
        find_browser()
