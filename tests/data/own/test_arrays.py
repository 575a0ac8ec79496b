import zipfile

import numpy as np
import pytest

from fedssl.core.errors import FedsslError
from fedssl.data.own.arrays import find_in_array
from fedssl.data.own.decoding import Decoding, decode_array
from tests.helpers.pictures import noise

COLUMNS = {"image": "", "label": "", "client": ""}
IMAGES = np.stack([noise(8, seed) for seed in range(5)])


def decoded(found):
    with found.source.opened() as read:
        return np.stack([decode_array(read(number), Decoding(8)).pixels for number in range(len(found.samples))])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (IMAGES, IMAGES.transpose(0, 3, 1, 2)),
        (IMAGES.transpose(0, 3, 1, 2), IMAGES.transpose(0, 3, 1, 2)),
        (IMAGES[..., 0], np.stack([IMAGES[..., 0]] * 3, axis=1)),
        (IMAGES[..., :1], np.stack([IMAGES[..., 0]] * 3, axis=1)),
        (IMAGES[..., 0].astype(np.uint16) * 257, np.stack([IMAGES[..., 0]] * 3, axis=1)),
    ],
)
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
def test_every_order_of_axes_and_kind_of_file(tmp_path, array, expected, kind):
    path = tmp_path / ("x.npy" if kind == "npy" else "x.npz")
    if kind == "npy":
        np.save(path, array)
    else:
        (np.savez if kind == "npz" else np.savez_compressed)(path, whatever=array)
    found = find_in_array(path, COLUMNS)
    assert np.array_equal(decoded(found), expected)
    assert [sample.name for sample in found.samples][:2] == ["image 0", "image 1"]


def test_nothing_is_left_of_an_unpacked_array(tmp_path):
    from fedssl.data.folders import data_folder

    np.savez(tmp_path / "x.npz", x=IMAGES)
    decoded(find_in_array(tmp_path / "x.npz", COLUMNS))
    assert list(data_folder().iterdir()) == []


def test_labels_and_clients_beside_the_images(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=IMAGES, y=np.array([1, 0, 1, 10, 2]), clients=np.array(["b", "a", "b", "a", "a"]))
    found = find_in_array(path, COLUMNS)
    assert [sample.label for sample in found.samples] == ["1", "0", "1", "10", "2"]
    assert [sample.client for sample in found.samples] == ["b", "a", "b", "a", "a"]
    assert found.clients == ("a", "b")
    assert {sample.label for sample in find_in_array(path, COLUMNS, labels=False).samples} == {None}


def test_arrays_by_name(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, first=IMAGES, second=IMAGES[::-1], kind=np.array([b"x", b"y"] * 2 + [b"\xff"]))
    with pytest.raises(
        FedsslError, match=r"2 arrays may be images among first, second, kind: name it with data\.image"
    ):
        find_in_array(path, COLUMNS)
    found = find_in_array(path, {"image": "second", "label": "kind", "client": ""})
    assert np.array_equal(decoded(found)[0], IMAGES[4].transpose(2, 0, 1))
    assert [sample.label for sample in found.samples] == ["x", "y", "x", "y", r"\xff"]
    for column in ("image", "label", "client"):
        with pytest.raises(FedsslError, match=rf"there is no array 'third'.*data\.{column}_column"):
            find_in_array(path, {"image": "first", "label": "", "client": ""} | {column: "third"})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": IMAGES, "y": np.arange(4)}, r"'y' is int64 of shape \(4,\): labels are whole numbers or texts"),
        ({"x": IMAGES, "y": np.linspace(0, 1, 5)}, "'y' is float64"),
        ({"y": np.arange(5)}, "0 arrays may be images"),
        (
            {"x": IMAGES / 255},
            r"type float64: .*astype\('uint8'\) \(first times 255, if they go from 0 to 1\)$",
        ),
        ({"x": IMAGES.astype(np.int64)}, r"images of type int64: .*: save images.round\(\).astype\('uint8'\)$"),
        ({"x": IMAGES[:, :0]}, r"images of shape \(5, 0, 8, 3\): they have no pixels"),
        ({"x": np.zeros((2, 40, 8, 40), np.uint8)}, r"images of shape \(2, 40, 8, 40\): .* with up to 32 channels"),
    ],
)
def test_arrays_that_cannot_be_meant(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(FedsslError, match=message):
        find_in_array(tmp_path / "x.npz", COLUMNS)


def test_numbers_that_are_no_pixels(tmp_path):
    np.save(tmp_path / "x.npy", IMAGES.astype(np.float32))
    with pytest.raises(FedsslError, match="images of type float32: only uint8"):
        find_in_array(tmp_path / "x.npy", COLUMNS)


class Harmful:
    def __reduce__(self):
        return open, ("touched", "w")


def test_pickled_objects_are_never_unpacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = np.array([Harmful()] * 5, dtype=object)
    np.save("x.npy", objects, allow_pickle=True)
    np.savez("x.npz", x=IMAGES, y=objects, allow_pickle=True)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(FedsslError):
            find_in_array(tmp_path / name, COLUMNS)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("cut", [0, 5, 100, 300])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_files_that_are_cut_off(tmp_path, ending, cut):
    path = tmp_path / f"x.{ending}"
    np.save(path, IMAGES) if ending == "npy" else np.savez(path, x=IMAGES)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(FedsslError, match=r"x\.np.: not readable as a NumPy file"):
        find_in_array(path, COLUMNS)


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (10**10, 8, 8, 3)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(1000))
    with pytest.raises(FedsslError, match=r"not readable as a NumPy file .* is cut off"):
        find_in_array(path, COLUMNS)


def test_a_damaged_archive_is_found_when_it_is_unpacked(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.concatenate([IMAGES] * 1000))
    content = bytearray(path.read_bytes())
    content[500_000] ^= 1
    path.write_bytes(content)
    found = find_in_array(path, COLUMNS)  # reads no more than the header
    with pytest.raises(FedsslError, match=r"x\.npz: damaged"), found.source.opened():
        pass


def test_a_zip_that_is_no_npz(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FedsslError, match="not readable as a NumPy file"):
        find_in_array(tmp_path / "x.npz", COLUMNS)
