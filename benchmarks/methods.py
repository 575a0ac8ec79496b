"""A training step of each method beside a plain loop of it, and beside BYOL's: what a method costs; one thread.

    python -m benchmarks.methods [RECORD.json]

Both sides have the same networks and the same views in memory. The plain side is written as the papers' code: one
function per method, row-major memory, PyTorch's usual SGD, a target that moves tensor by tensor. Each side has a
process of its own and they take turns; CPU time of the least disturbed turn.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measuring import Row, contest, within
from benchmarks.plain import LR, SGD_MOMENTUM, WEIGHT_DECAY
from fedssl.core.memory import keep_freed_memory
from fedssl.core.weights import Weights
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.augmentation.views import make_views
from fedssl.data.standard.synthetic import synthetic_images
from fedssl.experiment.records.environment import describe_environment
from fedssl.federation.local_training import LocalTraining, Stepper
from fedssl.methods import METHODS
from fedssl.methods.base import ClientRound, SiameseMethod
from fedssl.networks.backbones import BACKBONES, feature_size
from fedssl.networks.heads import HeadSizes

BATCH, SIZE, STEPS, TURNS = 64, 32, 4, 4
HEADS = HeadSizes(256, 128)
NETWORK: dict[str, Any] = {"convnet": {"width": 24}, "vit-tiny": {"width": 64, "depth": 4}}
SLACK = 1.03  # of a busy machine
TRAINING = LocalTraining()

Views = list[Tensor]
PlainLoss = Callable[[Any, Views], Tensor]


# --- the losses as their papers' code has them -----------------------------------------------------------------------


def simclr(m: Any, views: Views) -> Tensor:
    z = F.normalize(torch.cat([m.online_encoder(view) for view in views]), dim=1)
    count = len(views[0])
    logits = (z @ z.T / m.temperature).masked_fill(torch.eye(2 * count, dtype=torch.bool), -1e9)
    return F.cross_entropy(logits, torch.cat([torch.arange(count) + count, torch.arange(count)]))


def byol(m: Any, views: Views) -> Tensor:
    p1, p2 = (m.predictor(m.online_encoder(view)) for view in views)
    with torch.no_grad():
        z1, z2 = (m.target_encoder(view) for view in views)
    return (4 - 2 * F.cosine_similarity(p1, z2) - 2 * F.cosine_similarity(p2, z1)).mean()


def simsiam(m: Any, views: Views) -> Tensor:
    z1, z2 = (m.online_encoder(view) for view in views)
    p1, p2 = m.predictor(z1), m.predictor(z2)
    return -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2


def moco(m: Any, views: Views) -> Tensor:
    q1, q2 = (F.normalize(m.online_encoder(view), dim=1) for view in views)
    with torch.no_grad():
        k1, k2 = (F.normalize(m.target_encoder(view), dim=1) for view in views)
    losses = []
    for q, k in ((q1, k2), (q2, k1)):
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ m.queue.clone().T], dim=1) / m.temperature
        losses.append(F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)))
    place = int(m.queue_end)
    m.queue[place : place + 2 * len(k1)] = torch.cat([k1, k2])  # the queue is a multiple of it
    m.queue_end.copy_((m.queue_end + 2 * len(k1)) % len(m.queue))
    return losses[0] + losses[1]


def off_diagonal(x: Tensor) -> Tensor:
    return x.flatten()[:-1].view(len(x) - 1, len(x) + 1)[:, 1:].flatten()


def vicreg(m: Any, views: Views) -> Tensor:
    x, y = (m.online_encoder(view) for view in views)
    repr_loss = F.mse_loss(x, y)
    x, y = x - x.mean(dim=0), y - y.mean(dim=0)
    std_x, std_y = torch.sqrt(x.var(dim=0) + 1e-4), torch.sqrt(y.var(dim=0) + 1e-4)
    std_loss = F.relu(1 - std_x).mean() / 2 + F.relu(1 - std_y).mean() / 2
    cov_x, cov_y = (x.T @ x) / (len(x) - 1), (y.T @ y) / (len(y) - 1)
    cov_loss = off_diagonal(cov_x).pow(2).sum() / x.shape[1] + off_diagonal(cov_y).pow(2).sum() / x.shape[1]
    return 25 * repr_loss + 25 * std_loss + cov_loss


def barlow(m: Any, views: Views) -> Tensor:
    a, b = (F.batch_norm(m.online_encoder(view), None, None, training=True) for view in views)
    c = a.T @ b / len(a)
    return (torch.diagonal(c) - 1).pow(2).sum() + 0.0051 * off_diagonal(c).pow(2).sum()


def align_uniform(m: Any, views: Views) -> Tensor:
    x, y = (F.normalize(m.online_encoder(view), dim=1) for view in views)
    uniform = [torch.pdist(z).pow(2).mul(-2).exp().mean().log() for z in (x, y)]
    return (x - y).norm(dim=1).pow(2).mean() + (uniform[0] + uniform[1]) / 2


def dino(m: Any, views: Views) -> Tensor:
    student = [F.log_softmax(m.online_encoder(view) / 0.1, dim=1) for view in views]
    with torch.no_grad():
        outputs = [m.target_encoder(view) for view in views[:2]]
        teacher = [F.softmax((output - m.centre) / 0.04, dim=1) for output in outputs]
        m.centre.copy_(m.centre * 0.9 + torch.cat(outputs).mean(dim=0) * 0.1)
    losses = [-(t * s).sum(dim=1).mean() for i, t in enumerate(teacher) for j, s in enumerate(student) if i != j]
    return torch.stack(losses).mean()


def mae(m: Any, views: Views) -> Tensor:
    images, backbone = views[0], m.online_encoder.backbone
    patch, (rows, columns) = backbone.patch_size, backbone.grid(tuple(views[0].shape[2:]))
    pixels = images.reshape(len(images), 3, rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
    pixels = pixels.reshape(len(images), rows * columns, -1)
    order = torch.argsort(torch.rand(len(images), rows * columns), dim=1)
    kept = order[:, : rows * columns // 4]
    patches = backbone.patches(images)
    tokens = backbone.tokens(torch.gather(patches, 1, kept.unsqueeze(2).expand(-1, -1, patches.shape[2])))
    painted = m.predictor(tokens, order, (rows, columns))
    mean, variance = pixels.mean(dim=2, keepdim=True), pixels.var(dim=2, keepdim=True)
    wanted = (pixels - mean) / (variance + 1e-6) ** 0.5
    hidden = order[:, kept.shape[1] :].unsqueeze(2).expand(-1, -1, wanted.shape[2])
    return (painted - torch.gather(wanted, 1, hidden)).pow(2).mean()


def cross_entropy_of_pairs(a: Tensor, b: Tensor, temperature: float, extra: Tensor | None = None) -> Tensor:
    z = torch.cat([F.normalize(a, dim=1), F.normalize(b, dim=1)])
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    logits = logits if extra is None else torch.cat([logits, z @ extra.T / temperature], dim=1)
    return F.cross_entropy(logits, torch.cat([torch.arange(len(a)) + len(a), torch.arange(len(a))]))


def fedca(m: Any, views: Views) -> Tensor:
    z1, z2 = (m.online_encoder(view) for view in views)
    with torch.no_grad():
        keys = F.normalize(m.target_encoder(views[0]), dim=1)
    m.recent = torch.cat([m.recent, keys])[-m.shared :]
    return cross_entropy_of_pairs(z1, z2, m.temperature, m.dictionary)


def ssd(m: Any, views: Views) -> Tensor:
    features = [m.online_encoder.backbone(view) for view in views]
    outputs = [m.online_encoder.projector(h) for h in features]
    x, y = (F.normalize(z, dim=1) for z in outputs)
    loss = (x - y).norm(dim=1).pow(2).mean()
    for h, raw, z in zip(features, outputs, (x, y), strict=True):
        loss = loss + torch.pdist(z).pow(2).mul(-2).exp().mean().log() / 2
        loss = loss + (z - (z * m.scaling).detach()).pow(2).sum(dim=1).mean() / 2
        loss = loss + 0.1 * F.kl_div(F.log_softmax(raw, dim=1), F.softmax(h, dim=1), reduction="batchmean") / 2
    return loss


def jensen_shannon(a: Tensor, b: Tensor, others: Tensor, temperature: float) -> Tensor:
    away = torch.eye(len(a), dtype=torch.bool)
    others = F.normalize(others, dim=1)
    p, q = (F.softmax((F.normalize(z, dim=1) @ others.T / temperature).masked_fill(away, -1e9), dim=1) for z in (a, b))
    middle = ((p + q) / 2 + 1e-12).log()
    return (F.kl_div(middle, p, reduction="batchmean") + F.kl_div(middle, q, reduction="batchmean")) / 2


def fedx(m: Any, views: Views) -> Tensor:
    z1, z2 = (m.online_encoder(view) for view in views)
    p1, p2 = m.predictor(z1), m.predictor(z2)
    with torch.no_grad():
        g1, g2 = (m.global_encoder(view) for view in views)
    own = cross_entropy_of_pairs(z1, z2, 0.1) + jensen_shannon(z1, z2, z1, 0.1)
    return own + cross_entropy_of_pairs(p1, g2, 0.1) + jensen_shannon(p1, p2, g1, 0.1)


def fedsc(m: Any, views: Views) -> Tensor:
    z1, z2 = (m.online_encoder(view) for view in views)
    z1, z2 = (z * (2 / z.norm(dim=1, keepdim=True)).clamp(max=1) for z in (z1, z2))
    both = torch.cat([z1, z2])
    r = both.T @ both / len(both)
    m.total = m.total + r.detach()
    return -2 * (z1 * z2).sum(dim=1).mean() + m.alpha * r.pow(2).sum() + 2 * (1 - m.alpha) * torch.trace(r @ m.others)


def decorrelated_simclr(m: Any, views: Views) -> Tensor:
    features = [m.online_encoder.backbone(view) for view in views]
    z1, z2 = (m.online_encoder.projector(h) for h in features)
    loss = cross_entropy_of_pairs(z1, z2, m.temperature)
    for h in features:
        standardised = (h - h.mean(dim=0)) / (h.std(dim=0, unbiased=False) + 1e-4)
        loss = loss + 0.1 * off_diagonal(standardised.T @ standardised / len(h)).pow(2).mean() / 2
    return loss


def uniform_simclr(m: Any, views: Views) -> Tensor:
    z1, z2 = (m.online_encoder(view) for view in views)
    loss = cross_entropy_of_pairs(z1, z2, m.temperature)
    for z in (z1, z2):
        sphere, directions = F.normalize(torch.randn_like(z), dim=1), torch.randn(50, z.shape[1])
        ours, theirs = (torch.sort(x @ directions.T, dim=0)[0] for x in (F.normalize(z, dim=1), sphere))
        loss = loss + 0.01 * (ours - theirs).pow(2).mean() / 2
    return loss


def proximal_simclr(m: Any, views: Views) -> Tensor:
    weights = list(m.online_encoder.parameters())
    if not hasattr(m, "anchors"):  # the global model, at the first step of a round
        m.anchors = [weight.detach().clone() for weight in weights]
    loss, proximal = simclr(m, views), torch.zeros(())
    for weight, anchor in zip(weights, m.anchors, strict=True):
        proximal = proximal + (weight - anchor).pow(2).sum()
    return loss + 0.01 / 2 * proximal


@dataclass(frozen=True)
class Case:
    name: str
    plain: PlainLoss
    network: str = "convnet"
    training: LocalTraining = TRAINING
    label: str = ""  # instead of the method's name

    def method(self) -> SiameseMethod:
        backbone = BACKBONES[self.network](3, **NETWORK[self.network])
        method = METHODS[self.name](backbone, feature_size(backbone, 3, (SIZE, SIZE)), HEADS)
        if METHODS[self.name].leaves:  # as in a round that is not the first
            unit = F.normalize(torch.randn(1024, HEADS.out), dim=1)
            method.prepare(
                ClientRound(
                    client_id=0,
                    num_clients=5,
                    round_number=2,
                    rounds=10,
                    seed=0,
                    encoder=Weights(),
                    predictor=Weights(),
                )
            )
            method.receive({"dictionary": unit, "correlation": unit[: HEADS.out], "clients": torch.tensor(5)})
        return method

    def views(self, method: SiameseMethod) -> Views:
        pixels = synthetic_images(BATCH, 10, SIZE, 0, "benchmark").pixels
        return make_views(pixels, Recipe(), torch.Generator().manual_seed(0), method.view_groups)


CASES = (
    Case("byol", byol),
    Case("simclr", simclr),
    Case("simsiam", simsiam),
    Case("mocov1", moco),
    Case("mocov2", moco),
    Case("vicreg", vicreg),
    Case("barlow", barlow),
    Case("align-uniform", align_uniform),
    Case("dino", dino),
    Case("mae", mae, "vit-tiny"),
    Case("fedca", fedca),
    Case("ssd", ssd),
    Case("fedx", fedx),
    Case("fedsc", fedsc),
    Case("simclr", decorrelated_simclr, training=LocalTraining(decorrelation=0.1), label="+feddecorr"),
    Case("simclr", uniform_simclr, training=LocalTraining(uniformity=0.01), label="+fedu2"),
    Case("simclr", proximal_simclr, training=LocalTraining(proximal=0.01), label="+fedprox"),
)


def plain_steps(case: Case) -> Callable[[], object]:
    method: Any = case.method().train()
    views = [view.contiguous() for view in case.views(method)]
    trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LR / 10, momentum=SGD_MOMENTUM, weight_decay=WEIGHT_DECAY)

    def turn() -> None:
        for _ in range(STEPS):
            loss = case.plain(method, views)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if method.target_encoder is not None:
                pairs = zip(method.target_encoder.parameters(), method.online_encoder.parameters(), strict=True)
                for target, online in pairs:
                    target.data = method.momentum * target.data + (1 - method.momentum) * online.data

    return turn


def our_steps(case: Case) -> Callable[[], object]:
    keep_freed_memory()
    method = case.method().train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    views, device = case.views(method), torch.device("cpu")
    stepper = Stepper(method, case.training, lr=LR / 10, device=device)

    def turn() -> None:
        for _ in range(STEPS):
            stepper.step(views)

    return turn


def measured(case: Case) -> Row:
    seconds = contest({"plain": (plain_steps, case), "ours": (our_steps, case)}, TURNS)
    plain, ours = (1000 * seconds[side] / STEPS for side in ("plain", "ours"))
    return within(f"a step of {case.label or case.name}", "its plain loop", "ms", plain, ours, SLACK)


def main(record: Path | None) -> None:
    """Prints each as it is measured; all of them into a file, if one is named."""
    steps: dict[str, dict[str, float]] = {}
    for one in CASES:
        row = measured(one)
        plain, ours = row.baseline or 0.0, row.ours or 0.0
        byol = next(iter(steps.values()))["ours_ms"] if steps else ours  # the first
        steps[one.label or one.name] = {"plain_ms": plain, "ours_ms": ours, "of_byol": ours / byol}
        print(f"{row.target:30} plain {plain:6.1f} ms, ours {ours:6.1f} ms, ratio {ours / plain:.2f}, ", end="")
        print(f"{ours / byol:.2f} of BYOL's", flush=True)
    if record:
        machine = describe_environment(torch.device("cpu"))
        about = {"command": f"python -m benchmarks.methods {record}", "hardware": f"{machine['cpu']}, 1 thread"}
        about |= {"torch": torch.__version__, "commit": machine["git_commit"]}
        about["date"] = datetime.now(UTC).date().isoformat()
        rounded = {name: {key: round(value, 2) for key, value in row.items()} for name, row in steps.items()}
        record.write_text(json.dumps({**about, "steps": rounded}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
