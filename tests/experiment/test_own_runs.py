"""Whole runs on a user's own images: every layout, with labels and without, and files that nobody can use."""

import json
import os

import numpy as np
import pytest

from fedssl.core.errors import FedsslError
from fedssl.data.own import cache as image_cache
from fedssl.encoders.evaluate import Request, evaluate
from fedssl.experiment.experiment import load
from fedssl.experiment.finished_run import FinishedRun
from fedssl.experiment.progress.views import QuietView
from fedssl.experiment.records.run_folder import RunFolder
from fedssl.reports.listing import list_runs
from fedssl.reports.run_page import write_report
from tests.helpers.pictures import encoded, noise, tree, write, write_folder

TINY = {
    "data.image_size": 16,
    "augmentation.output_size": 0,
    "network.width": 4,
    "network.head_hidden": 16,
    "network.head_out": 8,
    "local_training.batch_size": 4,
    "evaluation.every": 1,
    "evaluation.linear_epochs": 2,
    "rounds": 2,
    "threads": 1,
}


def run(folder, path, view=None, **overrides):
    return load("folder", TINY | {"data.path": str(path)} | overrides).run(folder, view)


class Recorder(QuietView):
    def __init__(self):
        self.lines, self.prepared = [], []

    def progress(self, text, done, total, client=None, images=0):
        if text in ("decoding images", "reading them back"):
            self.prepared.append((text, done, total))

    def say(self, text):
        self.lines.append(text)


# --- layouts ----------------------------------------------------------------------------------------------------------


def test_an_array_and_a_folder_of_the_same_pixels_train_to_the_same_bits(tmp_path):
    pixels = write_folder(tmp_path / "photos", classes=("cat", "dog"), each=10, size=16)
    labels = np.repeat([0, 1], 10)
    np.savez_compressed(tmp_path / "x.npz", images=pixels, labels=labels)
    np.save(tmp_path / "x.npy", pixels.transpose(0, 3, 1, 2))
    by_class = {"partition.name": "classes", "partition.num_clients": 2, "partition.classes_per_client": 1}
    first = run(tmp_path / "a", tmp_path / "photos", **by_class)
    second = run(tmp_path / "c", tmp_path / "x.npz", **by_class)
    assert first.summary["weights_sha256"] == second.summary["weights_sha256"]
    assert first.summary["data"]["train_fingerprint"] == second.summary["data"]["train_fingerprint"]
    equal = {"partition.num_clients": 2}
    third = run(tmp_path / "d", tmp_path / "x.npy", **equal)
    fourth = run(tmp_path / "e", tmp_path / "photos", **equal)
    assert third.summary["weights_sha256"] == fourth.summary["weights_sha256"] != first.summary["weights_sha256"]


def test_silos_train_as_clients_of_their_own_size(tmp_path):
    write_folder(tmp_path / "s", clients=("north",), each=5)
    write_folder(tmp_path / "s", clients=("south",), each=9)
    report = run(tmp_path / "run", tmp_path / "s", **{"data.layout": "silos"})
    assert report.summary["data"]["clients"] == [5, 9]
    assert report.summary["data"]["client_names"] == ["north", "south"]
    assert FinishedRun.open(tmp_path / "run").partition.names == ("north", "south")
    clients = RunFolder(tmp_path / "run").read_rounds()[1]["clients"]
    assert [(client["client"], client["n"]) for client in clients] == [(0, 5), (1, 9)]


def test_a_manifest_and_a_hugging_face_dataset_train(tmp_path):
    from datasets import Dataset, Features, Image, Value

    write_folder(tmp_path / "m", each=8, size=16)
    rows = "".join(f"{k:03}.png,{'xy'[k % 2]}\n" for k in range(8))
    (tmp_path / "m" / "images.csv").write_text("path,client\n" + rows)
    first = run(tmp_path / "run1", tmp_path / "m" / "images.csv")
    table = {
        "image": [{"bytes": (tmp_path / "m" / f"{k:03}.png").read_bytes(), "path": None} for k in range(8)],
        "site": [k % 2 for k in range(8)],
    }
    features = Features({"image": Image(), "site": Value("int64")})
    Dataset.from_dict(table, features).save_to_disk(str(tmp_path / "hf"))
    second = run(tmp_path / "run2", tmp_path / "hf", **{"data.client_column": "site"})
    assert first.summary["data"]["clients"] == second.summary["data"]["clients"] == [4, 4]
    assert first.summary["weights_sha256"] == second.summary["weights_sha256"]


def test_one_blank_label_costs_one_image_and_not_the_evaluation(tmp_path):
    write_folder(tmp_path / "m", each=13, size=16)
    rows = [f"{k:03}.png,{'test' if k > 7 else 'train'},{'cat' if k % 2 else 'dog'}" for k in range(12)]
    (tmp_path / "m" / "images.csv").write_text("\n".join(["path,split,label", *rows, "012.png,test,NaN", ""]))
    view = Recorder()
    report = run(tmp_path / "run", tmp_path / "m" / "images.csv", view, **{"partition.num_clients": 2})
    assert (report.summary["data"]["test"], report.summary["data"]["refused"]) == (4, 1)
    assert "knn" in report.summary["final"]
    (refused,) = [json.loads(line) for line in (tmp_path / "run" / "refused.jsonl").read_text().splitlines()]
    assert refused["file"] == "012.png"
    assert refused["reason"].startswith("line 14 has no label")
    assert any("012.png: line 14 has no label" in line for line in view.lines)


@pytest.mark.parametrize("method", ["byol", "simclr", "mocov2"])
def test_grey_images_of_one_channel(tmp_path, method):
    write_folder(tmp_path / "p", each=8)
    settings = {"data.channels": 1, "partition.num_clients": 2, "method.name": method}
    settings |= {"method.queue_size": 8} if method == "mocov2" else {}
    run(tmp_path / "run", tmp_path / "p", **settings)
    assert len(FinishedRun.open(tmp_path / "run").global_encoder().backbone.stem.mean) == 1


# --- the cache --------------------------------------------------------------------------------------------------------


def test_decoding_is_shown_once_and_never_done_again(tmp_path):
    write_folder(tmp_path / "p", each=8)
    first, second = Recorder(), Recorder()
    one = run(tmp_path / "run1", tmp_path / "p", first, **{"partition.num_clients": 2})
    assert first.prepared[0] == ("decoding images", 0, 8)
    assert first.prepared[-2:] == [("decoding images", 8, 8), ("reading them back", 8, 8)]
    assert any("the decoded images are 0.0 MB in" in line for line in first.lines)
    two = run(tmp_path / "run2", tmp_path / "p", second, **{"partition.num_clients": 2})
    assert second.prepared == []
    assert one.summary["weights_sha256"] == two.summary["weights_sha256"]


def test_a_file_that_changes_between_rounds_does_not_matter(tmp_path):
    write_folder(tmp_path / "p", each=8)
    settings = {"partition.num_clients": 2, "rounds": 3}
    expected = run(tmp_path / "run1", tmp_path / "p", **settings).summary["weights_sha256"]

    class Meddler(QuietView):
        def round_finished(self, record):
            if record["round"] == 1:
                (root / "000.png").write_bytes(b"changed")
                (root / "001.png").unlink()

    root = tmp_path / "p"
    assert run(tmp_path / "run2", root, Meddler(), **settings).summary["weights_sha256"] == expected


def test_training_copies_no_more_than_a_batch_of_a_map(tmp_path, monkeypatch):
    """Every piece of the pixels that training, evaluation and summary ask for is small."""
    from torch import Tensor

    write_folder(tmp_path / "p", each=200, size=16)
    largest, real = [0], Tensor.index_select

    def watched(self, dim, index):
        if self.ndim == 4 and self.dtype.itemsize == 1:
            largest.append(len(index))
        return real(self, dim, index)

    monkeypatch.setattr(Tensor, "index_select", watched)
    settings = {"partition.num_clients": 2, "data.image_size": 64, "rounds": 1, "evaluation.every": 0}
    run(tmp_path / "run", tmp_path / "p", **settings)
    small = [0, 4, 12, 200]  # batches, three of them to choose the engine with, images that the spread is measured with
    assert sorted(set(largest)) == small


def test_nothing_is_written_to_the_images(tmp_path):
    write_folder(tmp_path / "p", clients=("a", "b"), classes=("x", "y"), each=3)
    (tmp_path / "p" / "a" / "x" / "bad.png").write_bytes(b"rubbish")
    before = tree(tmp_path / "p")
    run(tmp_path / "run", tmp_path / "p", **{"data.layout": "silos", "data.test_fraction": 0.4})
    write_report([tmp_path / "run"], tmp_path / "r.html")
    assert tree(tmp_path / "p") == before


# --- without labels ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unlabelled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSSL_DATA", str(folder / "cache"))
        write_folder(folder / "photos", clients=("a", "b"), each=8)
        view = Recorder()
        run(folder / "run", folder / "photos", view, **{"data.layout": "silos", "evaluation.linear_probe": True})
        yield folder, view


def test_a_run_without_labels_watches_loss_and_spread_and_says_so(unlabelled):
    folder, view = unlabelled
    assert any("no accuracy can be given without labelled test images" in line for line in view.lines)
    records = RunFolder(folder / "run").read_rounds()
    assert all("knn" not in record and record["backbone_std"] > 0 for record in records)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert set(summary["initial"]) == set(summary["final"]) == {"backbone_std", "backbone_std_reestimated"}


def test_its_report_shows_what_can_be_shown(unlabelled, tmp_path):
    folder, _ = unlabelled
    left_out = write_report([folder / "run"], tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "No accuracy can be given: there were no labelled test images" in text
    for figure in ("run1-holdings", "run1-views", "run1-neighbours", "run1-loss", "run1-collapse"):
        assert f'id="{figure}"' in text
    assert "client 1 (b)" in text
    assert "Which classes are confused (there are no labelled test images (data.eval_test))" in left_out
    assert [line.split(" (")[0] for line in left_out] == [
        "Accuracy over rounds",
        "Test images in feature space, PCA",
        "Test images in feature space, t-SNE",
        "Which classes are confused",
    ]


def test_lists_and_comparisons_cope(unlabelled):
    from fedssl.experiment.records.run_record import RunRecord
    from fedssl.reports.compare import results

    folder, _ = unlabelled
    (listed,) = list_runs(folder / "run")
    assert (listed.knn, listed.what) == ("–", "simclr + fedema, folder, 2 clients (natural)")
    rows = {row.label: row.values for row in results([RunRecord.read(folder / "run")] * 2)}
    assert "kNN, trained" not in rows
    assert "last loss" in rows


def test_evaluate_says_what_is_missing_and_works_when_it_is_given(unlabelled):
    folder, _ = unlabelled
    with pytest.raises(
        FedsslError, match="no accuracy can be given without labelled test images: name some with --data"
    ):
        evaluate(folder / "run", Request(protocols=("knn",)))
    for name in ("known", "test"):
        write_folder(folder / name, classes=("x", "y"), each=4)
    settings = {"path": str(folder / "known"), "eval_test": str(folder / "test"), "image_size": 16}
    request = Request(protocols=("knn",), data="folder", data_settings=settings, baselines=("random",))
    assert {result.score.n for result in evaluate(folder / "run", request)} == {8}
    with pytest.raises(FedsslError, match="its images have no labels: leave out --baseline supervised"):
        evaluate(folder / "run", Request(data="folder", data_settings=settings, baselines=("supervised",)))


def test_evaluation_apart_is_used_by_the_run_and_by_evaluate(tmp_path):
    write_folder(tmp_path / "p", clients=("a", "b"), each=8)
    write_folder(tmp_path / "known", classes=("x", "y"), each=20)
    write_folder(tmp_path / "test", classes=("x", "y"), each=3)
    apart = {"data.eval_train": str(tmp_path / "known"), "data.eval_test": str(tmp_path / "test")}
    report = run(tmp_path / "run", tmp_path / "p", **apart, **{"data.layout": "silos"})
    assert {"knn", "linear"} <= set(report.summary["final"])
    results = evaluate(tmp_path / "run", Request(protocols=("knn", "semi-10"), clients=True, epochs={"semi": 1}))
    assert {result.score.n for result in results} == {6}
    assert {result.test_images for result in results} == {"all"}, "nobody knows which classes a client holds"
    knn = [r for r in results if (r.encoder, r.protocol, r.batchnorm) == ("global", "knn", "running")]
    assert knn[0].score.accuracy == report.summary["final"]["knn"]
    assert write_report([tmp_path / "run"], tmp_path / "r.html") == []


def test_labelled_silos_are_evaluated_client_by_client(tmp_path):
    write_folder(tmp_path / "p", clients=("a",), classes=("x",), each=6)
    write_folder(tmp_path / "p", clients=("b",), classes=("x", "y"), each=6)
    write_folder(tmp_path / "test", classes=("x", "y"), each=3)
    run(tmp_path / "run", tmp_path / "p", **{"data.layout": "silos", "data.eval_test": str(tmp_path / "test")})
    results = evaluate(tmp_path / "run", Request(protocols=("knn",), clients=True, batchnorm="running"))
    counts = {(r.encoder, r.test_images): r.score.n for r in results}
    assert counts["client 0", "classes of client 0"] == 3
    assert counts["client 1", "classes of client 1"] == 6


# --- bad input --------------------------------------------------------------------------------------------------------


def test_refused_files_are_named_in_the_run_folder(tmp_path):
    write_folder(tmp_path / "p", clients=("a", "b"), each=4)
    broken = encoded(noise(64), "JPEG")[:1000]
    for name in ("a/one.jpg", "b/two.jpg"):
        (tmp_path / "p" / name).write_bytes(broken)
    os.mkfifo(tmp_path / "p" / "a" / "pipe.png")
    view = Recorder()
    report = run(tmp_path / "run", tmp_path / "p", view, **{"data.layout": "silos"})
    lines = [json.loads(line) for line in (tmp_path / "run" / "refused.jsonl").read_text().splitlines()]
    assert [(line["file"], line["client"]) for line in lines] == [
        ("a/pipe.png", "a"),
        ("a/one.jpg", "a"),
        ("b/two.jpg", "b"),
    ]
    assert report.summary["data"]["refused"] == 3
    assert any("left out (3 refused: a/pipe.png" in line for line in view.lines)
    assert "3 files could not be used" in _report_text(tmp_path)


def _report_text(tmp_path):
    write_report([tmp_path / "run"], tmp_path / "r.html", images=0)
    return (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("images", "bad", "message"),
    [
        (0, 0, r"client 1 \(poor\) has 0 images: at least 2 are needed \(partition, data\)$"),
        (0, 2, r"client 1 \(poor\) has 0 images: .*; 2 of its files were refused, first poor/0\.jpg: not an image"),
    ],
)
def test_a_client_that_ends_up_empty_is_an_error_before_anything_is_written(tmp_path, images, bad, message):
    write_folder(tmp_path / "p", clients=("able",), each=4)
    (tmp_path / "p" / "poor").mkdir()
    for number in range(images):
        write(tmp_path / "p" / "poor" / f"{number}.png", noise())
    for number in range(bad):
        (tmp_path / "p" / "poor" / f"{number}.jpg").write_text("no image")
    with pytest.raises(FedsslError, match=message):
        run(tmp_path / "run", tmp_path / "p", **{"data.layout": "silos"})
    assert not (tmp_path / "run").exists()


class Ends(Recorder):
    """Ends the run after a round, as Ctrl-C does."""

    def round_finished(self, record):
        if record["round"] == 1:
            raise KeyboardInterrupt


def test_a_silo_with_one_image_is_left_out_and_named_and_the_rest_goes_on_also_after_a_stop(tmp_path):
    write_folder(tmp_path / "p", clients=("able", "rich"), each=4)
    write(tmp_path / "p" / "poor" / "0.png", noise())
    (tmp_path / "p" / "poor" / "1.jpg").write_text("no image")
    view, silos = Recorder(), {"data.layout": "silos"}
    whole = run(tmp_path / "whole", tmp_path / "p", view, **silos)
    told = "note: poor is left out: it has 1 image, and at least 2 are needed; 1 of its files were refused, first poor/"
    assert [line for line in view.lines if line.startswith(told)]
    assert not [line for line in view.lines if "belong to no client" in line]
    assert whole.summary["data"]["client_names"] == ["able", "rich"]
    assert (whole.summary["data"]["clients"], whole.summary["data"]["unused"]) == ([4, 4], 1)
    assert json.loads((tmp_path / "whole" / "partition.json").read_text())["names"] == ["able", "rich"]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "again", tmp_path / "p", Ends(), **silos)
    again = run(tmp_path / "again", tmp_path / "p", **silos)
    assert again.summary["weights_sha256"] == whole.summary["weights_sha256"]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_few_images_of_a_silo_follow_the_stated_rule(tmp_path, count):
    """Fewer than a batch train at once; the rest of an uneven number is left out; never an error in a round."""
    write_folder(tmp_path / "p", clients=("a",), each=6)
    write_folder(tmp_path / "p", clients=("b",), each=count)
    view = Recorder()
    run(tmp_path / "run", tmp_path / "p", view, **{"data.layout": "silos"})
    said = any(f"client 1 (b) has {count} images, fewer than a batch of 4" in line for line in view.lines)
    assert said == (count < 4)


def test_numbers_of_clients_that_do_not_fit(tmp_path):
    write_folder(tmp_path / "p", clients=("a", "b"), each=4)
    silos = {"data.layout": "silos"}
    with pytest.raises(FedsslError, match=r"partition\.num_clients is 3 but the data name 2 clients"):
        run(tmp_path / "run", tmp_path / "p", **silos, **{"partition.num_clients": 3})
    with pytest.raises(FedsslError, match=r"clients_per_round: 3 is more than the 2 clients there are"):
        run(tmp_path / "run", tmp_path / "p", **silos, **{"client_sampling.clients_per_round": 3})
    report = run(tmp_path / "run", tmp_path / "p", **silos, **{"partition.name": "iid", "partition.num_clients": 4})
    assert report.summary["data"]["clients"] == [2, 2, 2, 2]
    assert report.summary["data"]["client_names"] == []


def test_a_decoder_that_fails_in_an_unforeseen_way_is_no_silence(tmp_path, monkeypatch):
    write_folder(tmp_path / "p", each=8)

    def broken(*details):
        raise ZeroDivisionError("in a thread")

    monkeypatch.setattr(image_cache, "decode_file", broken)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "run", tmp_path / "p")


# --- other channels than colours --------------------------------------------------------------------------------------


def test_a_run_on_images_of_five_channels_says_that_there_is_no_colour_jitter(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 5, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=pixels, labels=np.repeat([0, 1], 12))
    view = Recorder()
    report = run(
        tmp_path / "run",
        tmp_path / "x.npz",
        view,
        **{"data.channels": 5, "network.stem": "learned", "partition.num_clients": 2, "rounds": 1},
    )
    write_report([report.folder], tmp_path / "page.html", images=4)
    assert "data:image/png" in (tmp_path / "page.html").read_text()
    dataset = FinishedRun.open(report.folder).dataset
    assert dataset.train.pixels.shape == (24, 5, 16, 16)
    assert any("images of 5 channels are no colours: views have no colour jitter" in text for text in dataset.remarks)
