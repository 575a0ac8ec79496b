"""DICOM: as viewers show it; all files of pydicom-data; and nothing of a file but its pixels goes anywhere."""

import logging
import re
import sys
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels.processing import apply_windowing
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from fedssl.data.own.cache import pictures
from fedssl.data.own.decoding import Decoding, RefusedError, decode_file
from fedssl.data.own.dicom import window
from fedssl.data.own.folder import Files, find_in_folder

SECRET = "Doe^Jane"
REASONS = (
    r"damaged DICOM \(\w+\)|DICOM without pixels|DICOM of (an unknown transfer syntax|a photometric .*)|"
    r"not an image .*|"
    r"DICOM, compressed as [\w ()\[\]/,.-]+: install a decoder \(pylibjpeg and its plugins\), or it is damaged"
)


def dicom(values, **tags):
    """The bytes of a file with a person's data in it."""
    ds = Dataset()
    ds.file_meta = FileMetaDataset()
    ds.file_meta.TransferSyntaxUID = tags.pop("syntax", ExplicitVRLittleEndian)
    ds.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    ds.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    ds.PatientName, ds.PatientID, ds.PatientBirthDate = SECRET, SECRET, "19700101"
    ds.Rows, ds.Columns = values.shape[:2]
    ds.SamplesPerPixel = 1 if values.ndim == 2 else 3
    ds.PhotometricInterpretation = "MONOCHROME2" if values.ndim == 2 else "RGB"
    ds.BitsAllocated = ds.BitsStored = 8 * values.itemsize
    ds.HighBit, ds.PixelRepresentation = ds.BitsStored - 1, int(values.dtype.kind == "i")
    if values.ndim == 3:
        ds.PlanarConfiguration = 0
    ds.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(ds, name, value)
    file = BytesIO()
    ds.save_as(file, enforce_file_format=True)
    return file.getvalue()


def decoded(values, **tags):
    picture = decode_file(BytesIO(dicom(values, **tags)), Decoding(values.shape[0], channels=1))
    return picture.pixels[0]


RAMP = np.arange(-1024, 1024, 128, dtype=np.int16).reshape(4, 4)


def test_a_window_by_hand():
    """Width 401 round 100.5: -100 is black, 300 is white, 100 in the middle; beyond, nothing is to be seen."""
    values = np.array([-5000, -100, 0, 100, 200, 300, 5000])
    assert window(values, 100.5, 401).tolist() == pytest.approx([0, 0, 0.25, 0.5, 0.75, 1, 1])
    assert window(values, 100, 400, "LINEAR_EXACT").tolist() == pytest.approx([0, 0, 0.25, 0.5, 0.75, 1, 1])
    assert window(np.array([100]), 100, 400, "SIGMOID").tolist() == [0.5]
    assert window(np.array([99, 100]), 100.5, 1).tolist() == [0, 0]
    assert window(np.array([100, 101]), 101, 1).tolist() == [0, 1], "width 1 is a threshold"


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_are_those_of_pydicom(function):
    ds = pydicom.dcmread(BytesIO(dicom(RAMP, WindowCenter=40, WindowWidth=400, VOILUTFunction=function)))
    theirs = apply_windowing(RAMP, ds)  # over the range of 16 bits with sign
    np.testing.assert_allclose(window(RAMP, 40, 400, function), (theirs + 32768) / 65535, atol=1e-4)


def test_rescale_window_and_the_meaning_of_black():
    stored = (RAMP + 1024).astype(np.uint16)
    about = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": [40, 600], "WindowWidth": [400, 2000]}
    shown = decoded(stored, **about)
    assert np.array_equal(shown, np.rint(255 * window(RAMP, 40, 400)).astype(np.uint8)), "the first of two windows"
    assert np.array_equal(decoded(stored, PhotometricInterpretation="MONOCHROME1", **about), 255 - shown)
    signed = decoded(RAMP, WindowCenter=40, WindowWidth=400)
    assert np.array_equal(signed, shown)


def test_without_a_window_from_the_smallest_to_the_largest_value():
    assert decoded(np.array([[100, 200], [150, 300]], np.uint16)).tolist() == [[0, 128], [64, 255]]
    assert decoded(np.full((2, 2), 7, np.uint16)).tolist() == [[0, 0], [0, 0]]


def test_colours_and_the_first_of_many_frames():
    colours = np.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    picture = decode_file(BytesIO(dicom(colours)), Decoding(4))
    assert np.array_equal(picture.pixels, colours.transpose(2, 0, 1))
    assert (picture.kind, picture.width) == ("DICOM RGB", 4)
    frames = np.stack([np.eye(4), np.ones((4, 4))]).astype(np.uint8)
    made = dicom(frames[0], NumberOfFrames=2, PixelData=frames.tobytes())
    assert np.array_equal(decode_file(BytesIO(made), Decoding(4, channels=1)).pixels[0], 255 * np.eye(4))


def test_every_file_of_pydicom_data_is_decoded_or_refused_with_a_reason():
    import data_store

    paths = sorted(str(path) for path in (Path(data_store.__file__).parent / "data").rglob("*.dcm"))
    results = list(pictures(Files(paths), range(len(paths)), Decoding(16)))
    refused = [result for result in results if isinstance(result, str)]
    assert len(paths) > 60
    assert len(results) - len(refused) > 0.75 * len(paths)
    assert all(re.fullmatch(REASONS, reason) for reason in refused), set(refused)
    assert all(result.pixels.shape == (3, 16, 16) for result in results if not isinstance(result, str))


# --- nothing about a person leaves the reader -------------------------------------------------------------------------


def hostile():
    """Files with a name where something else should be, so that readers complain about it."""
    good = dicom(RAMP)
    yield good[:-10]
    yield dicom(RAMP, PhotometricInterpretation="DOE")
    yield dicom(RAMP, Rows=60000)
    yield good.replace(b"MONOCHROME2 ", b"Doe^Jane    ")
    yield dicom(RAMP, WindowCenter=1, WindowWidth=7).replace(b"DS\x02\x007 ", b"DS\x02\x00^D")
    yield dicom(RAMP, NumberOfFrames="1").replace(b"IS\x02\x001 ", b"IS\x08\x00Doe^Jane")
    yield dicom(RAMP, SpecificCharacterSet="ISO_IR 100").replace(b"ISO_IR 100", b"Doe^Jane  ")
    yield good.replace(b"1.2.840.10008.1.2.1\0", b"1Doe^Jane0008.1.2.1\0")  # the transfer syntax
    for seed in range(30):  # damage anywhere
        rng, damaged = np.random.default_rng(seed), bytearray(good)
        for place in rng.integers(132, len(good), 8):
            damaged[place] = rng.integers(0, 256)
        yield bytes(damaged)


@pytest.mark.parametrize("number", range(38))
def test_no_name_reaches_a_log_a_warning_or_an_error(number, caplog, capfd):
    content = list(hostile())[number]
    caplog.set_level(logging.DEBUG)
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            said = repr(decode_file(BytesIO(content), Decoding(4)).kind)
        except RefusedError as error:
            said = str(error)
            assert error.__cause__ is None
            assert "\n" not in said
    told = [said, caplog.text, *capfd.readouterr(), *(str(one.message) for one in caught)]
    assert not any(part in text for text in told for part in ("Doe", "DOE", "Jane", "1970"))


def test_the_tags_that_are_read_describe_pixels_and_nobody(monkeypatch):
    seen = []
    real = pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *args, **kw: seen.append(real(*args, **kw)) or seen[-1])
    decode_file(BytesIO(dicom(RAMP)), Decoding(4))
    assert "PixelData" in seen[0]
    assert not [element.keyword for element in seen[0] if "Patient" in element.keyword]


def test_a_bomb_is_refused_before_it_is_unpacked():
    with pytest.raises(RefusedError, match="decompression bomb"):
        decode_file(BytesIO(dicom(RAMP, Rows=60000, Columns=60000)), Decoding(4))


def test_without_pydicom_the_reason_is_the_command(monkeypatch, tmp_path):
    (tmp_path / "a.dcm").write_bytes(dicom(RAMP))
    assert len(find_in_folder(tmp_path).samples) == 1
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RefusedError, match=r'DICOM needs pydicom: pip install "fedssl\[dicom\]"'):
        decode_file(BytesIO(dicom(RAMP)), Decoding(4))
