"""Sites and a coordinator in one process, every message through its bytes; nothing is stubbed."""

import numpy as np

from fedssl.federation.secure.coordinator import Coordinator
from fedssl.federation.secure.keys import Identity
from fedssl.federation.secure.member import Member, RunRecord, new_record
from fedssl.federation.secure.stages import RoundCall, Session, from_bytes, to_bytes

NAMES = ("berlin", "delft", "lyon", "porto", "turin")
IDENTITIES = {}  # P-384 keys are slow to make: one a name


def identity(name):
    return IDENTITIES.setdefault(name, Identity.new(name))


def site_names(count):
    return [f"site-{number:02d}" for number in range(count)]


def roster_of(names):
    return {name: identity(name).key.public_key() for name in names}


def average_error(layout, entry, total_examples):
    """How far an averaged weight may be from the exact one: half a step when every client counts n_max."""
    return layout.step(entry) / 2 * layout.clients * layout.most_examples / total_examples


def tolerated(sites, threshold):
    """How many sites may help a server that lies, before it can have both secrets of another."""
    return 2 * threshold - sites - 1


def carried(message):
    """As it is after a journey."""
    return from_bytes(type(message), to_bytes(message))


def make_members(names=NAMES, run="run-1", least=2):
    """Sites that have met."""
    roster = roster_of(names)
    members = {name: Member(identity(name), roster, new_record(run), least) for name in names}
    adverts = [carried(member.advertise()) for member in members.values()]
    for member in members.values():
        member.meet(adverts)
    return members


def restarted(member):
    """The same site after a stop: all it has left is its record."""
    record = from_bytes(RunRecord, to_bytes(member.record))
    return Member(member.identity, member.roster, record, member.least)


def call_to(names=NAMES, threshold=3, round_number=1, attempt=1, run="run-1", common="0" * 64):
    return RoundCall(Session(run, round_number, attempt), tuple(names), threshold, common)


class Sum:
    """One masked sum, stage by stage; what travelled stays here to look at."""

    def __init__(self, members, vectors, threshold=3, round_number=1, attempt=1):
        self.members, self.vectors = members, vectors
        names, length = tuple(members), len(next(iter(vectors.values())))
        self.call = call_to(names, threshold, round_number, attempt)
        self.coordinator = Coordinator(roster_of(names), self.call, length)
        self.shares, self.uploads, self.unmaskings = {}, {}, {}

    def share(self, without=()):
        for name, member in self.members.items():
            if name not in without:
                self.shares[name] = carried(member.share(carried(self.call)))
                self.coordinator.take_shares(self.shares[name])
        self.deliveries = {name: carried(one) for name, one in self.coordinator.deliveries().items()}
        return self

    def upload(self, without=()):
        for name, delivery in self.deliveries.items():
            if name not in without:
                self.uploads[name] = carried(self.members[name].mask(delivery, self.vectors[name].copy()))
                self.coordinator.take_upload(self.uploads[name])
        self.survivor_call = carried(self.coordinator.survivor_call())
        return self

    def agree(self, without=()):
        for name in self.survivor_call.survivors:
            if name not in without:
                self.coordinator.take_agreement(carried(self.members[name].agree(self.survivor_call)))
        self.unmask_call = carried(self.coordinator.unmask_call())
        return self

    def unmask(self, without=()):
        for name in self.survivor_call.survivors:
            if name not in without:
                self.unmaskings[name] = carried(self.members[name].unmask(self.unmask_call))
                self.coordinator.take_unmasking(self.unmaskings[name])
        return self

    def total(self):
        return self.coordinator.total()

    def expected(self):
        return sum((self.vectors[name] for name in self.uploads), np.zeros_like(next(iter(self.vectors.values()))))


def random_vectors(names, length=50, seed=0):
    draw = np.random.default_rng(seed)
    return {name: draw.integers(0, 2**32, length, dtype=np.uint32) for name in names}


def summed(names=NAMES, threshold=3, **when):
    """A finished sum of random vectors; `when` says who is gone at which stage."""
    one = Sum(make_members(names), random_vectors(names), threshold)
    for stage in ("share", "upload", "agree", "unmask"):
        getattr(one, stage)(without=when.get(stage, ()))
    return one
