import torch

from fedssl.networks.inputs import as_floats, as_input


def test_bytes_become_floats_from_0_to_1_and_floats_stay_what_they_are():
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert as_floats(pixels).tolist() == [0.0, torch.tensor(0.2).item(), 1.0]
    given = torch.rand(3)
    assert as_floats(given) is given


def test_a_network_gets_the_same_floats_in_the_layout_that_is_fast():
    pixels = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    made = as_input(pixels, torch.device("cpu"))
    assert torch.equal(made, as_floats(pixels))
    assert made.is_contiguous(memory_format=torch.channels_last)
