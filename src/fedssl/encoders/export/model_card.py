"""The README.md of an export: what the encoder is, how good by which protocol, its use, and what left the clients."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedssl.encoders.export.libraries import timm_config
from fedssl.encoders.markdown import markdown
from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.verdict import against_start, best_text
from fedssl.federation.privacy.accounting import privacy_text
from fedssl.reports.compare import percent
from fedssl.reports.prose import headline, leaving, shares, story, title, warnings

About = dict[str, Any]
PUBLIC = {"cifar10": "uoft-cs/cifar10", "cifar100": "uoft-cs/cifar100"}  # datasets that model hubs know


def model_card(record: RunRecord, about: About, usage: Mapping[str, str]) -> str:
    """Markdown with the front matter that model hubs read; names neither paths nor clients."""
    aggregation = record.config.get("aggregation", {})
    promised = record.summary.get("privacy")
    text = privacy_text(promised) if promised else ""
    card = markdown(
        "model_card",
        front=_front(record, about),
        about=about,
        is_global=about["encoder"] == "global",
        headline=headline(record),
        network=", ".join(f"{key} {value}" for key, value in about["network"].items() if key != "name"),
        story=[text.replace("\u00a0", " ") for text in story(record, None)],
        settings=_settings(record),
        results=_results(record),
        usage=usage,
        warnings=warnings(record),
        shares=shares(record.config),
        leaves=leaving(record.config),
        sent=aggregation.get("upload", "online"),
        batchnorm=aggregation.get("batchnorm", "average"),
        promise=text[:1].upper() + text[1:],
        origin=_origin(record, about),
        table=_table,
    )
    return card + "\n"


def _front(record: RunRecord, about: About) -> list[str]:
    """The lines that model hubs read; JSON is YAML."""
    data = record.config["data"]["name"]
    facts: dict[str, Any] = {
        "license": about.get("license", "unknown"),
        "library_name": "timm" if timm_config(about) else "fedssl",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["federated-learning", "self-supervised-learning", record.config["method"]["name"]],
    }
    if data in PUBLIC:
        facts["datasets"] = [PUBLIC[data]]
    measured = {"kNN accuracy": record.gain("knn"), "linear probe accuracy": record.gain("linear")}
    results = [
        {
            "task": {"type": "image-classification"},
            "dataset": {"name": title(record.config, "data"), "type": PUBLIC.get(data, data)},
            "metrics": [{"type": "accuracy", "name": name, "value": round(gain.trained.accuracy, 4)}],
        }
        for name, gain in measured.items()
        if gain
    ]
    if results and about["encoder"] == "global":  # of a client's own encoder the run measured none of these
        facts["model-index"] = [{"name": headline(record), "results": results}]
    return [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in facts.items()]


def _settings(record: RunRecord) -> list[tuple[str, str]]:
    config, clients = record.config, record.summary.get("data", {}).get("clients") or [0]
    training = config.get("local_training", {})
    held = f"{len(clients)} ({config['partition']['name']}), {min(clients)}–{max(clients)} images each"
    return [
        ("data", f"{title(config, 'data')}, {sum(clients):,} images"),
        ("clients", held),
        ("method, update rule", f"{config['method']['name']}, {config['update_rule']['name']}"),
        ("rounds, epochs a round", f"{record.summary.get('rounds')}, {training.get('epochs')}"),
        ("batch size, learning rate", f"{training.get('batch_size')}, {training.get('lr')}"),
        ("seed", str(config.get("seed"))),
    ]


def _results(record: RunRecord) -> list[tuple[str, str, str]]:
    rows = []
    for measure, label in (("knn", "kNN, during the run"), ("linear", "linear probe, at the end of the run")):
        if gain := record.gain(measure):
            rows.append((label, best_text(gain.trained), against_start(gain, record)))
    for one in record.evaluation:
        what = f"{one['encoder']}: {one['protocol']} ({one['variant']}), {one['data']}, BatchNorm {one['batchnorm']}"
        if one["test_images"] == "all":
            rows.append((what, percent(one["accuracy"]), _spread(one)))
    return rows


def _spread(one: Table) -> str:
    if one.get("interval_95"):
        low, high = one["interval_95"]
        return f"95 % interval {100 * low:.1f}–{100 * high:.1f}, {one['n']:,} test images"
    return f"± {100 * one['sd']:.1f} over {one.get('clients') or one['seeds']}" if one.get("sd") is not None else ""


def _origin(record: RunRecord, about: About) -> list[tuple[str, str]]:
    return [
        ("written by", about["exported_by"]),
        ("trained by", f"fedssl {about['fedssl']}"),
        ("SHA-256 of the run's global weights", f"`{record.summary.get('weights_sha256', 'unknown')}`"),
        ("commit", str(record.environment.get("git_commit") or "unknown")),
    ]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
