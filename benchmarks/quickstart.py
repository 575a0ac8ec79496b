"""A round as Flower's own quickstart has it: FedAvg over a state_dict, a stock SuperLink and SuperNodes, no TLS.

    python -m benchmarks.quickstart [--clients 3] [--rounds 3] [--parameters 38460000]

What one would take in place of `fedssl server` and `fedssl client`. Clients change the weights they get and send them
back; nothing is trained, so that a round is what lies beyond training.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.deployment import Watch, free_port

LAYERS = 40
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "quickstart"
version = "1.0.0"
description = "a round"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmarks"
[tool.flwr.app.components]
serverapp = "quickstart.server_app:app"
clientapp = "quickstart.client_app:app"
[tool.flwr.app.config]
clients = 3
rounds = 3
parameters = 1000
record = ""
"""
SERVER = f"""
import json, time
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    given, lines = context.run_config, []
    size = given["parameters"] // {LAYERS}
    weights = {{f"layer{{number}}": torch.randn(size) for number in range({LAYERS})}}

    def evaluate(number, arrays):
        arrays.to_torch_state_dict()
        lines.append(json.dumps({{"round": number, "time": time.time()}}))
        with open(given["record"], "w") as file:
            file.write("\\n".join(lines) + "\\n")
        return MetricRecord({{"accuracy": 0.0}})

    strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=given["clients"], min_available_nodes=given["clients"]
    )
    strategy.start(grid, ArrayRecord(weights), num_rounds=given["rounds"], evaluate_fn=evaluate)
"""
CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    weights = message.content["arrays"].to_torch_state_dict()
    weights = {name: tensor + 1e-3 * (1 + context.node_config["number"]) for name, tensor in weights.items()}
    content = {"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": 8})}
    return Message(RecordDict(content), reply_to=message)
"""


def measure(clients: int, rounds: int, parameters: int) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="fedssl-quickstart-"))
    try:
        return _measure(folder, clients, rounds, parameters)
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, clients: int, rounds: int, parameters: int) -> dict[str, Any]:
    app, record = _write_app(folder), folder / "rounds.jsonl"
    address = f"127.0.0.1:{free_port()}"
    (folder / "home").mkdir()
    connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    (folder / "home/config.toml").write_text(connection)
    place = ["--host", "127.0.0.1", "--port", address.rpartition(":")[2]]
    link = _start(folder, "superlink", "flower-superlink", "--insecure", *place)
    nodes = []
    watch = Watch(record)
    try:
        for number in range(clients):
            own = ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", f"number={number}"]
            nodes.append(
                _start(folder, f"node-{number}", "flower-supernode", "--insecure", "--superlink", address, *own)
            )
        watch.follow({"server": [link.pid], "client": [node.pid for node in nodes]})
        config = f'clients={clients} rounds={rounds} parameters={parameters} record="{record}"'
        while _start(folder, "run", "flwr", "run", str(app), "here", "--run-config", config).wait():
            time.sleep(1.0)  # the SuperLink does not listen yet
        while not record.exists() or len(record.read_text().splitlines()) <= rounds:
            if link.poll() is not None:
                raise SystemExit((folder / "superlink.txt").read_text())
            time.sleep(0.5)
        time.sleep(1.0)
        watch.stop()
    finally:
        for process in (link, *nodes):
            process.terminate()
        for process in (link, *nodes):
            process.wait(60)
    times = [json.loads(line)["time"] for line in record.read_text().splitlines()]
    seconds = [after - before for before, after in itertools.pairwise(times)]
    return {
        "clients": clients,
        "megabytes up, each": 4 * (parameters // LAYERS) * LAYERS / 1e6,
        "seconds a round, median of those after the first": statistics.median(seconds[1:]),
        "seconds, all": seconds,
        "CPU seconds of a round": watch.cpu_per_round(),
        "CPU seconds of a round, all": round(sum(watch.cpu_per_round().values()), 1),
        "peak MB of all processes": {name: round(peak / 1e6) for name, peak in watch.trees.items()},
        "load when it ended": os.getloadavg()[0],
    }


def _write_app(folder: Path) -> Path:
    app = folder / "app"
    (app / "quickstart").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "quickstart/__init__.py").write_text("")
    (app / "quickstart/server_app.py").write_text(SERVER)
    (app / "quickstart/client_app.py").write_text(CLIENT)
    return app


def _start(folder: Path, name: str, command: str, *arguments: str) -> "subprocess.Popen[bytes]":
    here = Path(sys.executable).parent
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / "home")}
    paths = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}
    with (folder / f"{name}.txt").open("ab") as output:
        words = [str(here / command), *arguments]
        given = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        return subprocess.Popen(words, cwd=folder, env=os.environ | quiet | paths, **given)  # type: ignore[call-overload,no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=38_460_000)
    options = parser.parse_args()
    print(json.dumps(measure(options.clients, options.rounds, options.parameters), indent=1))


if __name__ == "__main__":
    main()
