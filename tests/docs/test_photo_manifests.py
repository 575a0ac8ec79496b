"""The manifests of photos: every photo once, with label, client and split."""

import csv

import pytest

from scripts.photo_manifests import write


@pytest.mark.parametrize(
    ("name", "folders", "label"),
    [
        ("grocery", ["train/Fruit/Apple/Pink-Lady", "test/Fruit/Apple/Pink-Lady"], "Apple"),
        ("grocery", ["train/Vegetables/Brown-Cap-Mushroom", "test/Vegetables/Mushroom/Brown-Cap-Mushroom"], "Mushroom"),
        ("waste", ["Glass"], "Glass"),
    ],
)
def test_every_photo_has_a_label_a_client_and_a_split(tmp_path, name, folders, label):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        for number in range(40):
            (tmp_path / folder / f"{number}.jpg").touch()
    (tmp_path / "classes.txt").touch()
    with write(name, tmp_path).open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len({row["path"] for row in rows}) == len(rows) == 40 * len(folders)
    assert {row["label"] for row in rows} == {label}
    assert {row["split"] for row in rows} == {"train", "test"}
    assert all(row["client"].removeprefix("client-") in "01234" for row in rows)
    assert write(name, tmp_path).read_text().count("\n") == len(rows) + 1, "made again it is the same"
