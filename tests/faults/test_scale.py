"""Client states live on disk: memory does not grow with the number of clients. FAULTS 40."""

import resource

from fedssl.experiment.experiment import load
from tests.helpers.faults import CONTEXT
from tests.helpers.small import TINY


def measured_child(folder, clients, rounds, said):
    settings = {
        "partition.name": "iid",
        "partition.num_clients": clients,
        "data.train_images": 2000,
        "data.image_size": 8,
        "network.width": 16,
        "network.head_hidden": 64,
        "network.head_out": 32,
        "local_training.batch_size": 2,
        "evaluation.every": 0,
        "rounds": rounds,
    }
    load("smoke", TINY | settings).run(folder)
    said.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peak_memory(folder, clients, rounds):
    said = CONTEXT.Queue()
    process = CONTEXT.Process(target=measured_child, args=(folder, clients, rounds, said))
    process.start()
    peak = said.get(timeout=600)
    process.join()
    return peak


def test_a_thousand_clients_need_no_more_memory_than_ten(tmp_path):
    few, many = (peak_memory(tmp_path / str(clients), clients, 1) for clients in (10, 1000))
    states = sum(path.stat().st_size for path in (tmp_path / "1000" / "clients").rglob("*.safetensors")) / 2**20
    assert states > few / 2, "the states must weigh enough to be noticed, were they held in memory"
    assert many < 1.1 * few, f"{many:.0f} MiB with 1,000 clients, {few:.0f} MiB with 10"
