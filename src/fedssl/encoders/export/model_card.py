"""The README.md of an export: what the encoder is, how good by which protocol, its use, and what left the clients."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.verdict import against_start, best_text
from fedssl.federation.privacy.accounting import privacy_text
from fedssl.reports.compare import percent
from fedssl.reports.prose import DATA_NAMES, headline, leaving, shares, story, warnings

About = dict[str, Any]
FRONT = """---
library_name: fedssl
pipeline_tag: image-feature-extraction
tags:
- federated-learning
- self-supervised-learning
- {method}
---
"""


def model_card(record: RunRecord, about: About, usage: Mapping[str, str]) -> str:
    """Markdown with the front matter that model hubs read; names neither paths nor clients."""
    parts = [
        FRONT.format(method=record.config["method"]["name"]) + f"# Image encoder: {headline(record)}",
        _what(about),
        "## How it was trained\n\n" + "\n\n".join(text.replace("\u00a0", " ") for text in story(record, None)),
        _settings(record),
        "## How good it is\n\n" + _results(record, about),
        "## Input\n\n" + _input(about),
        "## How to use it",
        *(f"### {name}\n\n{text}" for name, text in usage.items()),
        "## What it is for, and what not\n\n" + _intended(record),
        "## What left the clients\n\n" + _privacy(record, about),
        "## Where it comes from\n\n" + _origin(record, about),
    ]
    return "\n\n".join(parts) + "\n"


def _what(about: About) -> str:
    network = ", ".join(f"{key} {value}" for key, value in about["network"].items() if key != "name")
    return (
        f"From an image to a vector of {about['feature_size']} numbers. The network is {about['network']['name']}"
        f"{f' ({network})' if network else ''}; these are the weights of the {_owner(about)} "
        f"after round {about['round']}."
    )


def _owner(about: About) -> str:
    if about["encoder"] == "global":
        return f"global encoder (the average of the clients' {about['weights']} encoders)"
    return f"{about['weights']} encoder of {about['encoder']}, which is its own and was not averaged"


def _settings(record: RunRecord) -> str:
    config, clients = record.config, record.summary.get("data", {}).get("clients") or [0]
    training = config.get("local_training", {})
    data = config["data"]["name"]
    rows = [
        ("data", f"{DATA_NAMES.get(data, data)}, {sum(clients):,} images"),
        (
            "clients",
            f"{len(clients)} ({config['partition']['name']}), {min(clients)}–{max(clients)} images each",
        ),
        ("method, update rule", f"{config['method']['name']}, {config['update_rule']['name']}"),
        ("rounds, epochs a round", f"{record.summary.get('rounds')}, {training.get('epochs')}"),
        ("batch size, learning rate", f"{training.get('batch_size')}, {training.get('lr')}"),
        ("seed", str(config.get("seed"))),
    ]
    return _table(("setting", "value"), rows)


def _results(record: RunRecord, about: About) -> str:
    rows = []
    for measure, label in (("knn", "kNN, during the run"), ("linear", "linear probe, at the end of the run")):
        if gain := record.gain(measure):
            rows.append((label, best_text(gain.trained), against_start(gain, record)))
    for one in record.evaluation:
        what = f"{one['encoder']}: {one['protocol']} ({one['variant']}), {one['data']}, BatchNorm {one['batchnorm']}"
        if one["test_images"] == "all":
            rows.append((what, percent(one["accuracy"]), _spread(one)))
    if not rows:
        return "No accuracy is known: the run had no labelled test images."
    note = (
        "" if about["encoder"] == "global" else "These are the run's numbers, not those of this client's encoder.\n\n"
    )
    return note + _table(("protocol", "accuracy", "compared with, or spread"), rows)


def _spread(one: Table) -> str:
    if one.get("interval_95"):
        low, high = one["interval_95"]
        return f"95 % interval {100 * low:.1f}–{100 * high:.1f}, {one['n']:,} test images"
    return f"± {100 * one['sd']:.1f} over {one.get('clients') or one['seeds']}" if one.get("sd") is not None else ""


def _input(about: About) -> str:
    facts = about["input"]
    return (
        f"N x {facts['channels']} x {facts['height']} x {facts['width']} ({facts['layout']}), {facts['dtype']} from 0 "
        f"to 1: {facts['scale']}. Images are brought to this size by the {facts['fit']}, {facts['resampling']}; EXIF "
        "orientation is obeyed, transparency becomes white. As PyTorch modules the networks take other sizes too, for "
        "which they were not trained."
    )


def _intended(record: RunRecord) -> str:
    lines = [
        "Features for search, clustering, a linear classifier or fine-tuning, on images like those it was trained on.",
        "It names no classes by itself. It was not checked for fairness, nor on images of another kind; measure it on "
        "your own labelled images before you rely on it.",
    ]
    return "\n".join(f"- {line}" for line in [*lines, *warnings(record)])


def _privacy(record: RunRecord, about: About) -> str:
    aggregation = record.config.get("aggregation", {})
    sent, batchnorm = aggregation.get("upload", "online"), aggregation.get("batchnorm", "average")
    kept = {
        "average": "BatchNorm statistics (means and variances of features) went with them.",
        "local-statistics": "BatchNorm statistics stayed at the clients.",
        "local-layers": "BatchNorm layers stayed at the clients.",
    }[batchnorm]
    if not shares(record.config):
        text = "Nothing was sent: every client trained alone."
    else:
        leaves = leaving(record.config)
        features = "Images, labels" if leaves else "Images, labels, features"
        beside = f" **Beside that it sent {leaves}.**" if leaves else ""
        text = (
            f"After each round a client sent the weights of its {sent} encoder and of its predictor, its number of "
            f"images and a few numbers for the record (loss, divergence, seconds). {kept}{beside} {features} and "
            "optimizer state never left a client."
        )
    if about["encoder"] != "global":
        alone = not shares(record.config) or about["weights"] != sent
        seen = "it never left the client" if alone else "only the server saw it"
        text += f"\n\nThis is the own {about['weights']} encoder of one client: in training {seen}."
    if "batchnorm" in about:
        text += f"\n\nThis file has BatchNorm {about['batchnorm']}, exactly as they are."
    warning = (
        "Weights are not anonymous: with effort one may learn from them whether an image was among those trained on. "
        "Ask those whose images they were before you publish this folder."
    )
    return f"{text}{_promise(record, about)}\n\n{warning}"


def _promise(record: RunRecord, about: About) -> str:
    """Differential privacy, where the run had it, and what of this file it does not cover."""
    promised = record.summary.get("privacy")
    if not promised:
        return ""
    uncovered = "a client's own encoder, which has no noise" if about["encoder"] != "global" else ""
    uncovered = uncovered or ("these BatchNorm statistics" if "batchnorm" in about else "")
    exception = f" **That does not cover {uncovered}.**" if uncovered else ""
    text = privacy_text(promised)
    return f"\n\n{text[0].upper()}{text[1:]}.{exception}"


def _origin(record: RunRecord, about: About) -> str:
    rows = [
        ("written by", about["exported_by"]),
        ("trained by", f"fedssl {about['fedssl']}"),
        ("SHA-256 of the run's global weights", f"`{record.summary.get('weights_sha256', 'unknown')}`"),
        ("commit", str(record.environment.get("git_commit") or "unknown")),
    ]
    return _table(("what", "value"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
