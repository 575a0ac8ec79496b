"""Targets 5 and 14: what it costs to save a round of 5 clients of the paper's network, against a round of two minutes.

    python -m benchmarks.checkpointing

Every client's state (online, predictor, target: 241 MB) and the server's checkpoint (154 MB), sealed by checksums and
synced to the disk; clock time. From the fourth round on every round removes as much as it writes, as in all of a run:
the median of five. The first three are a row of their own, their slowest: until files are removed, the system has to
find new memory for its page cache. A further row says what it would be without the time in which other programs had the
core: on a busy machine the clock's is theirs, too.
"""

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import Row, within
from fedssl.federation.checkpoint import Checkpoint, CheckpointStore
from fedssl.federation.client import weights_of
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import ClientState, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.rounds import ServerState
from fedssl.methods.byol import BYOL
from fedssl.networks.backbones import resnet18
from fedssl.networks.heads import HeadSizes

CLIENTS, FIRST, ROUNDS, ROUND_SECONDS = 5, 3, 5, 120


def waited() -> float:
    """Seconds in which this thread could have run and had no core, where Linux tells."""
    schedstat = Path("/proc/thread-self/schedstat")
    return int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0


def rows() -> list[Row]:
    weights = weights_of(BYOL(resnet18(3), 512, HeadSizes()))
    shared = GlobalWeights(weights.online, weights.predictor)
    times, undisturbed = [], []
    with tempfile.TemporaryDirectory(prefix="fedssl-bench-") as folder:
        clients, server = Path(folder, "clients"), Path(folder, "checkpoints")
        for path in (clients, server):
            path.mkdir()
        store, checkpoints = ClientStore(clients), CheckpointStore(server)
        for number in range(1, FIRST + ROUNDS + 1):
            accepted = number - 1 or None
            start, idle = time.perf_counter(), waited()
            for client in range(CLIENTS):
                task = TrainTask(client, number, accepted_round=accepted, global_weights=shared)
                state, result = ClientState(weights, number), TrainResult(client, number, shared, num_examples=10_000)
                store.save(task, "benchmark", state, result)
            accepted_rounds = dict.fromkeys(range(CLIENTS), number)
            checkpoints.save(Checkpoint(ServerState(number, shared, accepted_round=accepted_rounds)))
            times.append(time.perf_counter() - start)
            undisturbed.append(times[-1] - (waited() - idle))
    taken = {
        "5 saving a round": statistics.median(times[FIRST:]),
        "14 saving in the first rounds": max(times[:FIRST]),
        "14 the same, without waiting for a core": max(undisturbed[:FIRST]),
    }
    return [within(name, "a round of 2 minutes", "s", ROUND_SECONDS, seconds, 0.03) for name, seconds in taken.items()]


if __name__ == "__main__":
    for row in rows():
        print(row)
