"""What a secure round costs beside a plain one: seconds at one site and at the server, for 3, 5 and 10 sites.

    python -m benchmarks.secure_round [--values 38460000] [--sites 3 5 10]

One site does all that a secure round adds: turn its update into steps, store it, mask it once for itself and once for
every peer, store that. The server checks and adds the uploads, puts the seeds together and takes the masks off; once
more with a site that dropped out, whose masks with all others it takes off, too. Plain: the server averages as many
uploads. Training and transport are the same in both, and not counted: as many bytes travel. Sites work side by side, so
the round takes longer by one site's and the server's seconds. One thread; CPU seconds, which other programs do not add
to.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedssl.core.sealed import seal
from fedssl.core.weights import Weights
from fedssl.federation.messages import GlobalWeights, TrainResult
from fedssl.federation.model_aggregation.weighted_average import WeightedAverage
from fedssl.federation.secure.coordinator import Coordinator
from fedssl.federation.secure.keys import Identity
from fedssl.federation.secure.member import Member, new_record
from fedssl.federation.secure.stages import MaskedUpload, RoundCall, Session, usual_threshold
from fedssl.federation.secure.terms import Terms, make_terms, packed, unpacked


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def met(names: list[str]) -> dict[str, Member]:
    identities = [Identity.new(name) for name in names]
    roster = {one.name: one.key.public_key() for one in identities}
    members = {one.name: Member(one, roster, new_record("bench")) for one in identities}
    adverts = [member.advertise() for member in members.values()]
    for member in members.values():
        member.meet(adverts)
    return members


class Round:
    """A sum of so many sites: every message is real, but of the uploads, of which one site's is."""

    def __init__(self, sites: int, trained: GlobalWeights, origin: GlobalWeights, folder: Path) -> None:
        self.trained, self.origin, self.folder = trained, origin, folder
        names = [f"site-{number:02d}" for number in range(sites)]
        limits = {"limit": 8.0, "statistics_limit": 1024.0}
        self.terms: Terms = make_terms(origin, (), clients=sites, threshold=None, most_examples=1000, **limits)
        self.members, session = met(names), Session("bench", 1, 1)
        self.call = RoundCall(session, tuple(names), usual_threshold(sites), "0" * 64)
        roster = next(iter(self.members.values())).roster
        self.coordinator = Coordinator(roster, self.call, self.terms.layout.length)
        for member in self.members.values():
            self.coordinator.take_shares(member.share(self.call))
        self.deliveries = self.coordinator.deliveries()

    def at_the_site(self) -> None:
        part = self.terms.part(self.trained, self.origin, 500, {})
        seal(self.folder / "part", part.named(), {})
        vector = unpacked(part)
        name = self.call.names[0]
        self.members[name].mask(self.deliveries[name], vector)
        seal(self.folder / "masked", packed(vector).named(), {})

    def at_the_server(self, lost: int) -> None:
        upload, names = bytes(self.terms.num_bytes), self.call.names[: len(self.call.names) - lost]
        for name in names:
            self.coordinator.take_upload(MaskedUpload(self.call.session, name, upload))
        survivors = self.coordinator.survivor_call()
        small = np.zeros(1, np.uint32)  # the others' own vectors are no matter here, what they say is
        for name in names[1:] if lost == 0 else names:
            self.members[name].mask(self.deliveries[name], small.copy())
        for name in names:
            self.coordinator.take_agreement(self.members[name].agree(survivors))
        call = self.coordinator.unmask_call()
        for name in names:
            self.coordinator.take_unmasking(self.members[name].unmask(call))
        self.terms.read(_counted(self.coordinator.total()), self.origin)


def _counted(total: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """The uploads were made up: so that the sum can be read, its count of images is made up, too."""
    total[-1] = 500
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=38_460_000)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 5, 10])
    given = parser.parse_args()
    torch.set_num_threads(1)
    origin = GlobalWeights(Weights({"w": torch.zeros(given.values)}), Weights())
    trained = GlobalWeights(Weights({"w": 0.01 * torch.randn(given.values)}), Weights())
    results = [TrainResult(number, 1, trained, num_examples=500) for number in range(max(given.sites))]
    print(f"{4 * given.values / 1e6:.0f} MB an upload; CPU seconds")
    print(
        "sites   plain: server   secure: a site   secure: server   a round longer by   one lost: server   peak memory"
    )
    for sites in given.sites:
        with tempfile.TemporaryDirectory() as folder:
            plain = seconds_of(lambda count=sites: WeightedAverage()(results[:count], origin))
            whole = Round(sites, trained, origin, Path(folder))
            site = seconds_of(whole.at_the_site)
            server = seconds_of(lambda one=whole: one.at_the_server(0))
            lost = Round(sites, trained, origin, Path(folder))
            lost_one = seconds_of(lambda one=lost: one.at_the_server(1)) if sites > 3 else float("nan")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        columns = (plain, site, server, site + server - plain, lost_one)
        print(f"{sites:5} " + "".join(f"{value:17.2f}" for value in columns) + f"{memory:15.2f} GB")


if __name__ == "__main__":
    main()
