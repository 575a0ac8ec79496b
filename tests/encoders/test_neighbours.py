import numpy as np
import pytest
import torch

from fedssl.core.errors import FedsslError
from fedssl.encoders.neighbours import find_neighbours, write_page
from fedssl.encoders.trained import open_encoder
from tests.helpers.html_page import HtmlPage
from tests.helpers.pictures import write
from tests.helpers.small_photos import photos_and_run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return photos_and_run(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def encoder(place):
    return open_encoder(place / "run")


def test_the_nearest_by_cosine_as_numpy_finds_them(place, encoder, monkeypatch):
    from fedssl.encoders import embed as embedding

    monkeypatch.setattr(embedding, "batch_size_for", lambda *size: 5)  # several batches, merged
    photos = place / "photos"
    asked = [str(photos / "red" / "003.png"), str(photos / "blue" / "001.png")]
    found = find_neighbours(encoder, asked, str(photos), 4)
    assert found.searched == 24
    batches = list(embedding.embed(encoder.model.backbone, embedding.ImageReader([str(photos)], encoder.decoding)))
    names = [name for batch in batches for name in batch.names]
    features = torch.cat([batch.outputs for batch in batches]).double().numpy()
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    for query in found.queries:
        cosines = features @ features[names.index(query.name)]
        order = [names[number] for number in np.argsort(-cosines, kind="stable")]
        assert [one.name for one in query.neighbours] == [name for name in order if name != query.name][:4]
        np.testing.assert_allclose([one.similarity for one in query.neighbours], np.sort(cosines)[::-1][1:5], atol=1e-5)
        assert query.copies == [query.name]


def test_the_page_stands_alone_and_shows_every_image(place, encoder, tmp_path):
    photos = place / "photos"
    outside = write(tmp_path / "<b>new<b>.png", np.full((20, 20, 3), (220, 40, 30), np.uint8))
    found = find_neighbours(encoder, [str(outside), str(photos / "red" / "001.png")], str(photos), 5)
    write_page(found, encoder, tmp_path / "deep" / "page.html")
    page = HtmlPage((tmp_path / "deep" / "page.html").read_text())
    assert page.problems == []
    assert page.headings[0] == ("h1", "Images most like <b>new<b>.png and others")
    assert [figure["drawings"] for figure in page.figures.values()] == [6, 6]
    for query, figure in zip(found.queries, page.figures.values(), strict=True):
        shown = [f"{one.similarity:.3f} {one.name.removeprefix(f'{photos}/')}" for one in query.neighbours]
        assert figure["texts"][-5:] == shown
    assert "Left out, as the same file: red/001.png." in page.figures["query1"]["caption"]
    assert f"The 24 images of {photos} were compared with 2 images by the global encoder" in page.text
    assert "3 refused, first" in page.text


def test_bad_questions_are_refused(place, encoder, tmp_path):
    photos = place / "photos"
    with pytest.raises(FedsslError, match=r"not every image can be used \(1 refused, first .*broken\.jpg"):
        find_neighbours(encoder, [str(photos / "blue" / "broken.jpg")], str(photos), 4)
    alone = write(tmp_path / "alone" / "x.png", np.zeros((20, 20, 3), np.uint8))
    with pytest.raises(FedsslError, match="no other image there can be used"):
        find_neighbours(encoder, [str(alone)], str(alone.parent), 4)
