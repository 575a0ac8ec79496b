"""MoCo v1: as v2, with a linear head, a lower temperature, weaker jitter and a constant learning rate."""

from functools import partialmethod

from fedssl.methods.moco import MoCo


class MoCoV1(MoCo):
    """MoCo with a linear head and a lower temperature (He et al., 2020).

    Needs: two encoders and the queue in memory; small batches do. Leaves the client: the online encoder.
    """

    recipe, schedule = "weak-jitter", "constant"

    __init__ = partialmethod(MoCo.__init__, head="linear", temperature=0.07)
