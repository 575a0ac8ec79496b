"""`fedssl data inspect`: what is said of a user's images, and the two pictures."""

import shutil

import numpy as np
import pytest
from PIL import Image

from fedssl.core.errors import FedsslError
from fedssl.reports.data_inspection import describe, duplicates, inspect_data, write_pictures
from tests.helpers.pictures import encoded, noise, tree, write, write_folder


@pytest.fixture
def silos(tmp_path):
    """Three sites with two classes, a double, a leak into the test images, and a broken file."""
    write_folder(tmp_path / "sites", clients=("east", "north", "south"), classes=("cat", "dog"), each=4)
    write_folder(tmp_path / "test", classes=("cat", "dog"), each=2)
    for source, target in (("east/cat/000.png", "south/dog/copy.png"), ("east/dog/001.png", "../test/dog/leak.png")):
        shutil.copy(tmp_path / "sites" / source, tmp_path / "sites" / target)
    (tmp_path / "sites" / "north" / "dog" / "bad.jpg").write_bytes(encoded(noise(64), "JPEG")[:-400])
    write(tmp_path / "sites" / "north" / "dog" / "large.jpg", noise(100))
    return tmp_path / "sites"


def inspect(path, **settings):
    given = {f"data.{key}": value for key, value in settings.items()}
    return inspect_data(str(path), {"data.image_size": 24, **given})


def test_what_is_said(silos, tmp_path):
    text = "\n".join(describe(inspect(silos, layout="silos", eval_test=str(tmp_path / "test"))))
    for line in (
        f"26 images of {silos}, brought to 3 x 24 x 24",
        "sizes: 24 x 24 to 100 x 100; 25 of 26 are 24 x 24",
        "kinds: 25 PNG RGB, 1 JPEG RGB",
        "3 clients, 8 to 9 images each; 2 classes: cat, dog",
        "  client 0 (east): 8 images",
        "evaluation: learns from 26 labelled images, tests with 5",
        "refused: 1 files",
        "  north/dog/bad.jpg: damaged: image file is truncated",
        "duplicates: 1 images are at two clients or more",
        "  east/cat/000.png at client 0 (east) = south/dog/copy.png at client 2 (south)",
        "duplicates: 5 test images are trained on too",
        "dog/leak.png of the test images",
    ):
        assert line in text


def test_doubles_within_one_client_are_its_own_affair(tmp_path):
    write_folder(tmp_path / "p", clients=("a", "b"), each=4)
    shutil.copy(tmp_path / "p" / "a" / "000.png", tmp_path / "p" / "a" / "again.png")
    assert duplicates(inspect(tmp_path / "p", layout="silos")) == ([], [])


def test_pictures_are_readable_images_and_nothing_else_is_written(silos, tmp_path):
    before = tree(silos)
    for name, settings in (("classes", {"layout": "silos"}), ("plain", {"labels": False}), ("grey", {"channels": 1})):
        written = write_pictures(inspect(silos, **settings), tmp_path / name)
        assert [path.name for path in written] == ["holdings.png", "views.png"]
        for path in written:
            pixels = np.asarray(Image.open(path).convert("L"))
            assert min(pixels.shape) > 200
            assert len(np.unique(pixels)) > 20, "there is something to be seen"
    assert tree(silos) == before


def test_names_that_drawing_could_trip_over(tmp_path):
    for client in ("$a$b", "x_^{", "名前", "n" * 200):
        write_folder(tmp_path / "p", clients=(client,), classes=("$\\frac$", "c" * 150), each=2)
    found = inspect(tmp_path / "p", layout="silos")
    assert all(path.exists() for path in write_pictures(found, tmp_path / "out"))


def test_many_clients_are_shortened(tmp_path):
    write_folder(tmp_path / "p", clients=[f"site {k}" for k in range(30)], each=2)
    found = inspect(tmp_path / "p", layout="silos")
    lines = list(describe(found))
    assert "  client 9 (site 9): 2 images" in lines
    assert "  … and 20 more" in lines
    write_pictures(found, tmp_path / "out")


def test_what_a_run_would_refuse_is_shown_all_the_same(tmp_path):
    write_folder(tmp_path / "p", clients=("able",), each=4)
    (tmp_path / "p" / "poor").mkdir()
    (tmp_path / "p" / "poor" / "x.png").write_text("no image")
    found = inspect(tmp_path / "p", layout="silos", strict=True)
    assert "client 1 (poor) has 0 images" in found.problem
    text = "\n".join(describe(found))
    assert "client 1 (poor): 0 images" in text
    assert "poor/x.png: not an image" in text
    assert len(write_pictures(found, tmp_path / "out")) == 2


def test_16_bit_images_that_come_out_black_are_remarked(tmp_path):
    for number in range(6):
        write(tmp_path / "p" / f"{number}.png", noise(24, number, 1).astype(np.uint16) * 16)
    assert any("data.white=4095" in line for line in describe(inspect(tmp_path / "p")))
    assert not any("data.white" in line for line in describe(inspect(tmp_path / "p", white=4095)))


def test_no_images_at_all(tmp_path):
    (tmp_path / "p").mkdir()
    with pytest.raises(FedsslError, match="no image there can be used"):
        inspect(tmp_path / "p")


def test_a_client_that_a_run_would_leave_out_is_named(tmp_path):
    write_folder(tmp_path / "p", clients=("able",), each=4)
    write(tmp_path / "p" / "poor" / "x.png", noise(24))
    found = inspect(tmp_path / "p", layout="silos")
    assert found.problem == ""
    assert "left out: poor, which has 1 image" in list(describe(found))
