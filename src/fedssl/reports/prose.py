"""A run in plain words and headline numbers, for a reader who was not there."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from fedssl.core.files import size_text
from fedssl.core.settings import summary_of
from fedssl.experiment.progress.health import RunWarnings
from fedssl.experiment.records.run_record import RunRecord, Table
from fedssl.experiment.records.site_accuracy import at_sites, mean_of
from fedssl.experiment.records.verdict import Verdict, accuracy, advice, continued, points, start, verdict
from fedssl.federation.model_aggregation import AGGREGATORS
from fedssl.federation.model_communication import UPDATE_RULES, UpdateRule
from fedssl.federation.privacy.accounting import cautions, privacy_text
from fedssl.federation.privacy.mechanism import PRIVACY, no_privacy
from fedssl.methods import METHODS
from fedssl.reports.compare import duration, number, percent, site_text, traffic
from fedssl.reports.page import Tile

COUNTS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def headline(record: RunRecord) -> str:
    """`BYOL with FedEMA on CIFAR-10`, as far as the names are known."""
    return "{} with {} on {}".format(*(title(record.config, table) for table in ("method", "update_rule", "data")))


@cache
def phrases() -> dict[str, dict[str, Any]]:
    """What is known to say of methods, rules, aggregators, data and partitions, by kind and name."""
    return tomllib.loads((resources.files("fedssl.reports") / "templates" / "prose.toml").read_text(encoding="utf-8"))


def title(config: Table, table: str) -> str:
    """How people call what a table of the settings names; else the name itself."""
    name = str(config[table].get("name", "?"))
    return str(phrases()["titles"][table].get(name, name))


def story(record: RunRecord, num_classes: int | None) -> list[str]:
    """What was done and what came of it, in two or three short paragraphs."""
    paragraphs = [_who(record), _how(record), _outcome(record, num_classes)]
    return [text.replace(" %", "\u00a0%") for text in paragraphs]  # a number and its unit stay on one line


def _who(record: RunRecord) -> str:
    config, sizes = record.config, record.summary.get("data", {}).get("clients", [])
    data = title(config, "data")
    share = _phrase("partition", config["partition"])
    if len(sizes) == 1:
        return f"One client held all {sizes[0]:,} images ({data}), without their labels: nothing was federated."
    held = f"{sum(sizes):,} images between them ({data}; {share})" if sizes else f"images ({data}; {share})"
    count = len(sizes) or config["partition"].get("num_clients", 0)
    written = COUNTS[count] if 0 < count < len(COUNTS) else f"{count:,}"
    counts = "how many of its labelled images were right" if record.summary.get("at_sites") else ""
    leaves = " and ".join(filter(None, [leaving(config), counts]))
    travelled = f"network weights and {leaves} travelled." if leaves else "only network weights travelled."
    return f"{written} clients held {held}, without labels. No image left its client: {travelled}"


def leaving(config: Table) -> str:
    """What left the clients beside weights; of a method that is not fedssl's own nobody knows it here."""
    method = str(config["method"].get("name"))
    if not shares(config):
        return ""
    return METHODS[method].leaves if method in METHODS else f"whatever else {method} sends"


def shares(config: Table) -> bool:
    """Whether anything was averaged."""
    rule = _rule(config)
    return rule is None or rule.shares


def _rule(config: Table) -> type[UpdateRule] | None:
    """None: it is not fedssl's own, and nobody knows it here."""
    return UPDATE_RULES.get(str(config["update_rule"].get("name")))


def _how(record: RunRecord) -> str:
    config, training = record.config, record.config.get("local_training", {})
    epochs, drawn = training.get("epochs", "?"), config.get("client_sampling", {}).get("clients_per_round")
    done, planned = record.summary.get("rounds", len(record.trained)), config.get("rounds", "?")
    rounds = f"{done} rounds" if done == planned else f"{done} of {planned} rounds"
    who, own = (f"{drawn} clients drawn at random", "their") if drawn else ("every client", "its")
    passes = f"once through {own} own images" if epochs == 1 else f"{epochs} times through {own} own images"
    trained = f"In {rounds}, {who} trained {passes} ({_phrase('method', config['method'])})."
    if len(record.summary.get("data", {}).get("clients", [])) == 1:
        return trained
    rule = _phrase("rule", config["update_rule"])
    if not shares(config):
        return f"{trained} {rule}"
    private = config.get("privacy", {})
    plain = PRIVACY.get(str(private.get("name", "none"))) is no_privacy
    averaged = _phrase("aggregation", config.get("aggregation", {"name": "weighted-average"}))
    return f"{trained} {averaged if plain else _phrase('privacy', private)} {rule}"


def _outcome(record: RunRecord, num_classes: int | None) -> str:
    first = record.baseline("knn")
    if first is None and record.summary.get("at_sites"):
        return (
            "Each site looked at the encoder with labelled images of its own and sent how many were classified "
            "correctly; no other accuracy is known."
        )
    if first is None and record.first("backbone_std") is not None:
        return (
            "No accuracy can be given: there were no labelled test images. The loss and the collapse measure show "
            "whether the encoder learnt to tell images apart, not what it is good for."
        )
    if first is None:
        return "No accuracy was recorded."
    test = (
        "To see what the encoder has learnt, test images are classified by a vote of the most similar training images"
    )
    guess = f"; guessing would give {percent(1 / num_classes)}" if num_classes else ""
    before = f"{test} (kNN): {percent(first)} correctly by {start(record)} in the BatchNorm mode that suits it better"
    gain = record.gain("knn")
    if gain is None:
        return f"{before}{guess}. No round was finished."
    mean = ", the mean over the clients' own encoders" if gain.trained.sd is not None else ""
    return f"{before}, {percent(gain.trained.accuracy)} after training{mean}{guess}."


def _phrase(kind: str, settings: Table) -> str:
    name = str(settings.get("name", "?"))
    if name in phrases()[kind]:
        try:
            return str(phrases()[kind][name]).format(**settings)
        except (KeyError, IndexError):
            return name
    registries: dict[str, Mapping[str, Any]] = {"method": METHODS, "rule": UPDATE_RULES, "aggregation": AGGREGATORS}
    known = registries.get(kind, {})
    return f"{name}: {summary_of(known[name])}" if name in known else name


def tiles(record: RunRecord) -> list[Tile]:
    """The headline numbers; what was not measured is left out."""
    summary, made = record.summary, []
    if judged := verdict(record):
        tried = "".join(f" To try: {text}." for text in advice(record))
        made.append(verdict_tile("Verdict", judged, tried))
    if kept := continued(record):
        made.append(verdict_tile("Continued", kept))
    for measure, label in (("knn", "kNN accuracy"), ("linear", "Linear probe")):
        first, gain = record.baseline(measure), record.gain(measure)
        if gain:
            note = f"{points(gain)} over {start(record)}, {accuracy(gain.baseline)}"
            made.append(Tile(label, accuracy(gain.trained), note))
        elif first is not None:
            made.append(Tile(label, percent(first), f"of {start(record)}; no round was finished"))
    if sites := at_sites(record):
        worst, mean = sites[0]["linear"], mean_of(sites, "linear")
        note = f"of a linear probe, mean of {len(sites)}; worst: {worst.title}, {site_text(worst)}"
        made.append(
            Tile("At the sites", site_text(mean), note if len(sites) > 1 else f"of a linear probe, {worst.title}")
        )
    if summary.get("mean_mu") is not None:
        share = summary.get("ema_share")
        often = "" if share is None else f"; {percent(share)} of updates by EMA".replace(" %", "\u00a0%")
        note = f"share of its own weights that a client kept{often}"
        made.append(Tile("Mean mu", number(summary["mean_mu"]), note))
    if about := summary.get("privacy"):
        value = "infinite" if about["epsilon"] is None else number(about["epsilon"])
        unit = f"client-level differential privacy, delta {about['delta']:g}, {about['placement']} noise"
        made.append(Tile("Epsilon", value, unit))
    done, planned = summary.get("rounds", len(record.trained)), record.config.get("rounds")
    made.append(
        Tile("Rounds", str(done), record.status if done == planned else f"{record.status}; {planned} were planned")
    )
    if summary.get("seconds") is not None:
        made.append(Tile("Time", duration(summary["seconds"]), "training and evaluation"))
    if summary.get("bytes_up") is not None:
        up, down = size_text(summary["bytes_up"]), size_text(summary.get("bytes_down", 0))
        made.append(Tile("Sent", traffic(summary), f"{up} from the clients, {down} to them"))
    return made


def verdict_tile(label: str, judged: Verdict, more: str = "") -> Tile:
    """What is said first of a run."""
    return Tile(label, judged.word, _sentence(judged.because) + more, is_text=True, tone=judged.kind)


def warnings(record: RunRecord) -> list[str]:
    """What a reader should know before trusting the numbers."""
    texts = []
    if record.status != "finished":
        texts.append(f"The run was {record.status}: the numbers are those of the rounds that were finished.")
    init = record.summary.get("init")
    if init:
        skipped = f", without {', '.join(init['skip'])}" if init["skip"] else ""
        texts.append(
            f"The run did not start at random but from weights in a file (SHA-256 {init['sha256'][:12]}…{skipped}): "
            "what is said of the untrained or random encoder is said of those."
        )
    if not record.environment:
        texts.append("environment.json is missing: it is not known where the run was made.")
    if (leaves := leaving(record.config)) and record.config["method"].get("name") in METHODS:
        texts.append(f"FEATURES LEFT THE CLIENTS: every client also sent {leaves}.")
    if about := record.summary.get("privacy"):
        texts += [_sentence(text) for text in (privacy_text(about), *cautions(about))]
    unused = record.summary.get("data", {}).get("unused")
    if unused:
        texts.append(f"{unused:,} training images belonged to no client (they could not be shared out evenly).")
    refused = record.summary.get("data", {}).get("refused")
    if refused:
        texts.append(f"{refused:,} files could not be used and were left out; refused.jsonl names each of them.")
    texts += _failures(record) + _resumptions(record)
    rule = _rule(record.config)
    watch = RunWarnings(record.client, mu_remedy=rule.mu_remedy if rule else "")
    for one in record.trained:
        complete = {**one, "clients": [client for client in one["clients"] if "feature_std" in client]}
        texts += [_sentence(text) for text in watch.check(complete)]
    return texts


def _failures(record: RunRecord) -> list[str]:
    """Who failed, how and when; the rounds continued without them."""
    met: dict[tuple[int, str], list[int]] = {}
    for one in record.trained:
        for failure in one.get("failures", []):
            met.setdefault((failure["client"], failure["code"]), []).append(one["round"])
    return [
        _sentence(
            f"{record.client(client)} failed {_times(len(rounds))} ({code}; rounds {', '.join(map(str, rounds[:10]))}"
            f"{' …' if len(rounds) > 10 else ''}); the rounds continued without it"
        )
        for (client, code), rounds in sorted(met.items())
    ]


def _resumptions(record: RunRecord) -> list[str]:
    """Where the run was stopped and resumed, if that may have changed its bits or its settings."""
    texts = []
    for one in record.environment.get("resumed", []):
        changed = "; ".join(f"{key} {old} → {new}" for key, (old, new) in one["changed"].items())
        if changed:
            texts.append(f"The run was resumed after round {one['after_round']} with changes: {changed}.")
    return texts


def _sentence(text: str) -> str:
    return f"{text if text.startswith('kNN') else text[0].upper() + text[1:]}."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
