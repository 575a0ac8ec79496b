"""The encoders that come with fedssl: listed without torch, whole, small, with a card, and usable by name."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import fedssl
from fedssl.core.errors import DamagedError, FedsslError

MODELS = fedssl.models()
each_model = pytest.mark.parametrize("name", MODELS)


@each_model
def test_it_loads_by_its_name_and_is_what_the_list_says(name):
    encoder, model = fedssl.load_encoder(name), MODELS[name]
    assert " x ".join(map(str, encoder.shape)) == model.images
    with torch.no_grad():
        assert encoder(torch.rand(2, *encoder.shape)).shape == (2, model.features)
    assert model.file.stat().st_size < 1_000_000


@each_model
def test_its_card_has_results_licence_and_checksum(name):
    card, model = (MODELS[name].folder / "README.md").read_text(encoding="utf-8"), MODELS[name]
    assert 'license: "apache-2.0"' in card
    assert "## Data and licence" in card
    assert model.sha256 in card
    for accuracy in re.findall(r"[\d.]+ %", model.accuracy):
        assert accuracy in card


def test_they_are_listed_without_torch():
    probe = "import sys; from fedssl.cli.main import app; app(['models'], standalone_mode=False)"
    shown = subprocess.check_output([sys.executable, "-c", f"{probe}; assert 'torch' not in sys.modules"], text=True)
    assert [line for line in shown.splitlines() if not line.startswith(" ")] == [*MODELS]


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = next(iter(MODELS))
    (tmp_path / name).mkdir()
    with pytest.raises(FedsslError, match="there is no encoder"):
        fedssl.load_encoder(name)


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    model = replace(next(iter(MODELS.values())), sha256="0" * 64)
    with pytest.raises(DamagedError, match="install fedssl again"):
        _ = model.file


def test_an_unknown_name_says_where_to_look():
    with pytest.raises(FedsslError, match="`fedssl models`"):
        fedssl.load_encoder("cifar10-nobody")
