"""Run folders written by hand, with numbers that are easy to check."""

import json

import tomli_w

from fedssl.core.checksums import signed_json

CONFIG = {
    "seed": 0,
    "rounds": 2,
    "data": {"name": "synthetic", "classes": 10},
    "partition": {"name": "classes", "num_clients": 2, "classes_per_client": 5},
    "method": {"name": "byol", "momentum": 0.99},
    "update_rule": {"name": "fedema", "tau": 0.7},
    "local_training": {"epochs": 1, "batch_size": 8},
}


def client(number, **values):
    usual = {"client": number, "n": 40, "loss": 2.0, "feature_std": 0.5, "ema": 0.0, "seconds": 1.0, "images": 40}
    return usual | {"bytes_up": 1000, "bytes_down": 1500} | values


ROUNDS = [
    {"round": 0, "clients": [], "knn": 0.25, "linear": 0.2, "backbone_std": 0.3},
    {
        "round": 1,
        "lr": 0.1,
        "loss": 2.5,
        "mu": None,
        "ema_share": 0.0,
        "knn": 0.3,
        "seconds": 2.0,
        "aggregation_seconds": 0.25,
        "images_per_second": 40.0,
        "clients": [client(0), client(1, loss=3.0)],
    },
    {
        "round": 2,
        "lr": 0.05,
        "loss": 1.5,
        "mu": 0.5,
        "ema_share": 1.0,
        "knn": 0.375,
        "linear": 0.4,
        "seconds": 4.0,
        "aggregation_seconds": 0.25,
        "images_per_second": 20.0,
        "clients": [
            client(0, loss=1.0, mu=0.25, divergence=2.0, ema=1.0, feature_std=0.75),
            client(1, mu=0.75, divergence=4.0, ema=1.0),
        ],
    },
]
SUMMARY = {
    "status": "finished",
    "rounds": 2,
    "initial": {"knn": 0.25, "linear": 0.2},
    "final": {"knn": 0.375, "linear": 0.4},
    "mean_mu": 0.5,
    "ema_share": 0.5,
    "final_loss": 1.5,
    "seconds": 75.0,
    "bytes_up": 4000,
    "bytes_down": 6000,
    "data": {"source": "made by hand", "clients": [40, 40], "unused": 0},
}


def changed(tables, **overrides):
    """A copy with `table__key=value` changed."""
    copy = json.loads(json.dumps(tables))
    for path, value in overrides.items():
        *parents, key = path.split("__")
        place = copy
        for parent in parents:
            place = place[parent]
        place[key] = value
    return copy


def write_run(folder, config=CONFIG, rounds=ROUNDS, summary=SUMMARY):
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    (folder / "environment.json").write_text(json.dumps({"python": "3.11", "command": ["fedssl", "run", "x"]}))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def as_older(folder):
    """Makes a run folder one of a version that vouched for nothing: no seals, no checksums in last lines."""
    for path in (folder / "summary.json", folder / "environment.json"):
        if path.exists():
            content = json.loads(path.read_text())
            path.write_text(
                json.dumps({key: value for key, value in content.items() if key not in ("files", "sha256")})
            )
    config = (folder / "config.toml").read_text().splitlines(keepends=True)
    assert config[-1].startswith("# sha256")
    (folder / "config.toml").write_text("".join(config[:-1]))
    for path in folder.glob("checkpoints/round-*/manifest.json"):
        content = json.loads(path.read_text())
        content["course"] = {key: content["course"][key] for key in ("results", "seconds")}
        del content["sha256"]
        path.write_text(signed_json(json.dumps(content, indent=1)))
    return folder
