"""fedssl.encoders.sklearn.Encoder beside scikit-learn's own conventions."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fedssl
from fedssl.core.errors import FedsslError
from fedssl.encoders.sklearn import Encoder
from tests.helpers.small_photos import COLOURS, spoil, train, write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    write_photos(folder / "photos", size=16)
    train(folder / "photos", folder / "run", **{"data.fit": "stretch"})
    spoil(folder / "photos")
    return folder


@pytest.fixture(scope="module")
def images():
    stream = np.random.default_rng(0)
    return stream.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)


def test_features_in_either_order_of_axes(place, images):
    encoder = Encoder(run=place / "run").fit()
    wanted = fedssl.load_encoder(place / "run")(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).detach().numpy()
    assert encoder.transform(images).dtype == np.float32
    np.testing.assert_allclose(encoder.transform(images), wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(encoder.transform(images.transpose(0, 3, 1, 2)), wanted, rtol=0, atol=1e-5)
    assert encoder.get_feature_names_out()[-1] == f"feature{wanted.shape[1] - 1}"


def test_files_and_arrays_give_the_same(place):
    paths = [place / "photos" / name / "000.png" for name in COLOURS]
    encoder = Encoder(run=place / "run", batch_size=2).fit()
    arrays = np.stack([np.asarray(Image.open(path)) for path in paths])  # 16 x 20: brought to size as files are
    np.testing.assert_allclose(encoder.transform(paths), encoder.transform(arrays), rtol=0, atol=1e-5)
    assert encoder.transform([str(path) for path in paths]).shape == (3, encoder.n_features_out_)


def test_grey_and_16_bit_images_become_what_the_encoder_takes(place):
    encoder = Encoder(run=place / "run").fit()
    grey = np.arange(2 * 256, dtype=np.uint16).reshape(2, 16, 16)
    as_colour = np.repeat((grey // 2).astype(np.uint8)[..., None], 3, axis=3)
    assert encoder.transform(grey).shape == (2, encoder.n_features_out_)
    same = encoder.transform((grey // 2).astype(np.uint8))
    np.testing.assert_allclose(same, encoder.transform(as_colour), rtol=0, atol=1e-5)


def test_clone_and_parameters(place):
    encoder = Encoder(run="somewhere", client=1, batch_size=7)
    copy = clone(encoder)
    assert copy is not encoder
    assert (
        copy.get_params()
        == encoder.get_params()
        == {
            "run": "somewhere",
            "client": 1,
            "network": None,
            "batch_size": 7,
            "device": "auto",
            "allow_code": (),
        }
    )
    copy.set_params(run=place / "run", client=None)
    assert copy.fit().transform(np.zeros((1, 16, 16, 3), np.uint8)).shape[0] == 1
    with pytest.raises(NotFittedError):
        encoder.transform(np.zeros((1, 16, 16, 3), np.uint8))


def test_in_a_pipeline(place):
    paths = [place / "photos" / name / f"{number:03}.png" for name in COLOURS for number in range(8)]
    labels = [name for name in COLOURS for _ in range(8)]
    pipeline = make_pipeline(Encoder(run=place / "run"), StandardScaler(), LogisticRegression())
    assert clone(pipeline).fit(paths[::2], labels[::2]).score(paths[1::2], labels[1::2]) > 0.9


def test_a_clients_own_encoder(place, images):
    own, shared = (Encoder(run=place / "run", client=client).fit().transform(images) for client in (1, None))
    assert not np.allclose(own, shared)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.full((2, 16, 16, 3), 7.0, np.float32), "X: floats from 7 to 7: give floats from 0 to 1"),
        (np.zeros((2, 16, 16, 3), np.int64), "X must be uint8 images"),
        ([np.zeros((16, 16, 3), np.uint8), "x.png"], "X: image 1 is a str: a list holds files, or arrays, tensors"),
        ([np.zeros((1, 16, 16, 3), np.uint8)], r"X: image 0 is of shape \(1, 16, 16, 3\)"),
        (np.zeros((16, 16), np.uint8), "X must be uint8 images"),
        (np.zeros((2, 16, 16, 5), np.uint8), "neither the second nor the last axis"),
        (["nowhere.png"], r"nowhere\.png: there is no such file"),
    ],
)
def test_what_is_no_image_is_refused(place, given, message):
    with pytest.raises(FedsslError, match=message):
        Encoder(run=place / "run").fit().transform(given)


def test_lists_of_arrays_tensors_and_pil_images_give_the_same(place, images):
    encoder = Encoder(run=place / "run").fit()
    wanted = encoder.transform(images)
    tensors = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
    pictures = [Image.fromarray(image) for image in images]
    for given in (tensors, tensors / 255, list(images), list(tensors), list(tensors / 255), pictures, images / 255):
        np.testing.assert_allclose(encoder.transform(given), wanted, rtol=0, atol=1e-5)
    mixed = [pictures[0], tensors[1], images[2], np.zeros((5, 9), np.uint8), pictures[4].convert("P")]
    assert encoder.transform(mixed).shape == (5, encoder.n_features_out_)
    np.testing.assert_allclose(encoder.transform(mixed)[:3], wanted[:3], rtol=0, atol=1e-5)
    with pytest.raises(FedsslError, match="X: image 1: floating-point pixels"):
        encoder.transform([pictures[0], Image.new("F", (16, 16))])


TABLE = "the check feeds a table of numbers, and an image is none"
UNSEEN = "fit loads the encoder and does not look at X: nothing is learnt from it"
EXPECTED = {
    **dict.fromkeys(
        (
            *("check_fit_score_takes_y", "check_estimators_dtypes", "check_dtype_object", "check_pipeline_consistency"),
            *("check_estimators_pickle", "check_f_contiguous_array_estimator", "check_transformer_data_not_an_array"),
            *("check_transformer_general", "check_transformer_preserve_dtypes", "check_methods_subset_invariance"),
            *("check_methods_sample_order_invariance", "check_dict_unchanged", "check_fit_idempotent"),
            "check_fit2d_predict1d",
        ),
        TABLE,
    ),
    **dict.fromkeys(
        (
            *("check_n_features_in_after_fitting", "check_complex_data", "check_estimators_empty_data_messages"),
            *("check_estimators_nan_inf", "check_estimator_sparse_tag", "check_n_features_in", "check_fit1d"),
        ),
        UNSEEN,
    ),
}


class AsIfForTables(Encoder):
    """scikit-learn checks nothing of an estimator that does not take tables: so this one says that it does."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass_but_for_those_with_a_reason(place):
    assert {one["status"] for one in check_estimator(Encoder(run=place / "run"))} == {"passed"}
    results = check_estimator(AsIfForTables(run=place / "run"), expected_failed_checks=EXPECTED, on_fail="raise")
    outcome = {one["check_name"]: one["status"] for one in results}
    assert {name for name, status in outcome.items() if status == "xfail"} == set(EXPECTED), "no reason too many"
    assert sum(status == "passed" for status in outcome.values()) > 15


def test_what_those_checks_ask_holds_for_images(place, images):
    encoder = Encoder(run=place / "run").fit(images)
    wanted = encoder.transform(images)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(encoder)).transform(images), wanted)
    np.testing.assert_allclose(encoder.fit(images).transform(images[::-1]), wanted[::-1], rtol=0, atol=1e-5)
    np.testing.assert_allclose(encoder.transform(images[2:3]), wanted[2:3], rtol=0, atol=1e-5)


def test_a_file_that_cannot_be_used_is_an_error_since_it_would_have_no_row(place):
    paths = [place / "photos" / "red" / "000.png", place / "photos" / "red" / "cut.png"]
    with pytest.raises(FedsslError, match=r"not every image can be used \(1 refused, first .*cut\.png"):
        Encoder(run=place / "run").fit().transform(paths)


def test_only_this_module_needs_scikit_learn():
    probe = (
        "import sys; sys.modules['sklearn'] = None\n"
        "import fedssl.cli.main, fedssl.encoders.finetune, fedssl.encoders.neighbours\n"
        "try:\n    import fedssl.encoders.sklearn\nexcept Exception as error:\n    print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == 'fedssl.encoders.sklearn: sklearn is not installed: pip install "fedssl[sklearn]"'
