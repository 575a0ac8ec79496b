"""The collapse measure: have all images come to look alike to the encoder?"""

import torch.nn.functional as F
from torch import Tensor


def feature_std(features: Tensor) -> float:
    """sqrt(d) times the mean standard deviation, over images, of the l2-normalised features.

    About 1 when they spread over the sphere, 0 when every image maps to one point. Of an image's tokens (N x L x d) the
    mean counts.
    """
    vectors = features.float().mean(dim=1) if features.ndim == 3 else features.float()  # N x d
    normalised = F.normalize(vectors, dim=1)
    return float(normalised.std(dim=0, correction=0).mean() * vectors.shape[1] ** 0.5)
