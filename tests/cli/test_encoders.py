"""What the commands print where the tutorial does not lead."""

import pytest

from fedssl.cli.main import app
from fedssl.core.errors import FedsslError
from tests.helpers.small_photos import spoil, train, write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    write_photos(folder / "photos")
    train(folder / "photos", folder / "run")
    spoil(folder / "photos")
    return folder


@pytest.fixture
def fedssl(place, tmp_path, monkeypatch, capsys):
    """Calls a command in an empty folder with the run and the photos beside it; returns stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "photos"):
        (tmp_path / name).symlink_to(place / name)

    def call(line):
        app(line.split(), standalone_mode=False)
        return capsys.readouterr()

    return call


def test_embed_names_bad_images_and_goes_on(fedssl, tmp_path):
    shown = fedssl("embed run photos -o features.npz")
    assert "24 images, 32 features each: features.npz" in shown.out
    assert "skipped: photos/blue/broken.jpg: not an image" in shown.err
    assert "3 images were skipped; all are in features.skipped.jsonl" in shown.err
    assert (tmp_path / "features.skipped.jsonl").read_text().count("\n") == 3


def test_a_long_list_is_cut_on_the_screen(fedssl, tmp_path):
    for number in range(25):
        path = tmp_path / "many" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    shown = fedssl("embed run photos/green many -o features.npz")
    assert shown.err.count("skipped: many/") == 20
    assert "25 images were skipped, 5 of them not shown; all are in features.skipped.jsonl" in shown.err


def test_neighbours_of_several_images(fedssl, tmp_path):
    shown = fedssl("neighbours run photos/red/001.png photos/blue/002.png --in photos -k 3 --client 1")
    assert "24 images were looked at: neighbours.html" in shown.out
    assert (tmp_path / "neighbours.html").read_text().count("data:image/png") == 8


def test_finetune_without_a_test_and_classify(fedssl):
    shown = fedssl("finetune run --data photos --test-fraction 0 --head-only --epochs 2 --hidden 8 -o made")
    assert "learnt 3 classes from 24 images" in shown.out
    assert "no accuracy can be given" in shown.out
    assert "all are in made/skipped.jsonl" in shown.err
    shown = fedssl("classify made photos/red")
    lines = shown.out.splitlines()
    assert lines[0] == "file,class,probability"
    assert len(lines) == 9
    assert lines[1].startswith("photos/red/000.png,")
    assert "skipped: photos/red/cut.png: damaged" in shown.err


def test_export_of_a_clients_target(fedssl, tmp_path):
    shown = fedssl("export run --client 1 --network target -o out")
    assert shown.out == "client 1 encoder: out (README.md, config.json, encoder.safetensors)\n"
    assert "it never left the client" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export run --network teacher -o out", "--network: there is no 'teacher'; known: online, target"),
        ("export run --network target -o out", "target encoders never leave their clients"),
        ("embed run photos -o features.txt", r"end in \.parquet or \.npz"),
        ("embed run nowhere.png -o features.npz", r"nowhere\.png: there is no such file or folder"),
        ("finetune run --data photos --to timm -o out", "safetensors or onnx, not as timm"),
        ("classify run photos", "there is no encoder"),
    ],
)
def test_bad_input_is_one_line(fedssl, line, message):
    with pytest.raises(FedsslError, match=message):
        fedssl(line)
