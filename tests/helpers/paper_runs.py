"""Runs of the paper's experiments written by hand, and made for real in this process."""

import json

from fedssl.encoders.evaluate import Request, evaluate
from fedssl.experiment.experiment import Experiment
from fedssl.paper.catalogue import Study, load_studies
from fedssl.paper.plan import make_plan
from fedssl.paper.scales import load_scales
from tests.helpers.written_runs import ROUNDS, SUMMARY

SMOKE = load_scales()["smoke"]


def study(name, **changes):
    """An experiment of the paper with something changed."""
    return Study.model_validate({**load_studies()[name].model_dump(), **changes})


def plan_of(name, out, seeds=1, rows=(), columns=(), scale=SMOKE):
    chosen = load_studies()[name] if isinstance(name, str) else name
    return make_plan([chosen], scale, out, seeds, rows, columns)


def complete(run, epochs=SMOKE.evaluation_epochs):
    """What the command does in processes, here."""
    Experiment(run.config).run(run.folder)
    missing = run.missing_protocols(epochs)
    if missing:
        evaluate(run.folder, Request(protocols=missing, batchnorm="running", epochs=epochs, cache=False))


def write(run, accuracy, epochs=SMOKE.evaluation_epochs, rounds=ROUNDS, encoder="global", sd=None, **summary):
    """A finished run with this accuracy by every protocol that its cells need."""
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "config.toml").write_text(run.config.as_toml())
    (run.folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    entries = [
        {
            "encoder": encoder,
            "data": "synthetic",
            "protocol": protocol,
            "variant": "paper",
            "batchnorm": "running",
            "test_images": "all",
            "accuracy": accuracy,
            "sd": sd,
            "n": 10_000,
            "settings": {"epochs": epochs[protocol.partition("-")[0]]},
        }
        for protocol in run.protocols
    ]
    content = SUMMARY | {"rounds": run.config.run.rounds, "evaluation": entries, **summary}
    (run.folder / "summary.json").write_text(json.dumps(content))
