import subprocess
import sys

import pytest
import torch

from fedssl.core.eager import eager


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_same_bits_as_torchs_own(kind):
    moved = []
    for one in (kind, eager(kind)):
        weights = torch.linspace(-1, 1, 7).requires_grad_()
        optimizer = one([weights], lr=0.1, weight_decay=0.01, fused=True)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            (weights**2).sum().backward()
            optimizer.step()
        assert weights.requires_grad
        moved.append(weights.detach())
    assert torch.equal(*moved)


def test_the_compiler_is_not_imported():
    code = (
        "import sys, torch; from fedssl.core.eager import eager\n"
        "w = torch.ones(3, requires_grad=True); o = eager(torch.optim.SGD)([w], lr=0.1, fused=True)\n"
        "o.zero_grad(); w.sum().backward(); o.step(); print('torch._dynamo' in sys.modules, w.tolist()[0] < 1)"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["False", "True"]
