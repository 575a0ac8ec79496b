"""On fixed features kNN and the linear probe must say what scikit-learn says."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from fedssl.evaluation.fitting import Fitting
from fedssl.evaluation.knn import knn_predictions
from fedssl.evaluation.linear_probe import linear_probe_predictions


@pytest.fixture(scope="module")
def features():
    """1,500 training and 600 test points of 5 overlapping classes in 20 dimensions, not negative as a ResNet's."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 2100)
    points = np.maximum(rng.normal(size=(5, 20))[labels] * 0.7 + rng.normal(size=(2100, 20)), 0).astype(np.float32)
    return points[:1500], labels[:1500], points[1500:], labels[1500:]


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (15, 0.1), (200, 0.1), (200, 1.0)])
def test_knn_names_the_same_classes(features, k, temperature):
    train, labels, test, _ = features
    voters = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / temperature)
    )
    theirs = voters.fit(train, labels).predict(test)
    tensors = [torch.from_numpy(array) for array in (train, labels, test)]
    ours = knn_predictions(*tensors, k=k, temperature=temperature, num_classes=5).numpy()
    assert (ours == theirs).mean() > 0.998, "but for ties in the last bit"


def test_linear_probe_reaches_the_optimum_of_logistic_regression(features):
    train, labels, test, truth = features
    theirs = LogisticRegression(C=np.inf, max_iter=2000).fit(train, labels)  # C = inf: no penalty, as the probe
    tensors = [torch.from_numpy(array) for array in (train, labels, test)]
    fitting = Fitting(epochs=200, batch_size=128, lr=3e-3)  # of 512 these few images give too few steps
    ours = linear_probe_predictions(*tensors, num_classes=5, fitting=fitting, seed=0).numpy()
    assert theirs.score(test, truth) == pytest.approx((ours == truth).mean(), abs=0.012)
    assert (ours == theirs.predict(test)).mean() > 0.95
    assert 0.5 < (ours == truth).mean() < 0.99, "a task where both could go wrong"
