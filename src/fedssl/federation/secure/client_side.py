"""A client's part in secure sums, on its own disk: reads what the server says at a stage, stores, then answers.

In a client's folder: member.secret (its keys and what it said, for its owner alone) and `masked`, the sealed vector
that leaves. Both are on the disk before an answer leaves, so a client that is killed answers again with the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import remove_folder, write_atomically
from fedssl.core.sealed import seal
from fedssl.federation.client_store import UPLOAD, ClientStore, Sent, StoredUpload
from fedssl.federation.messages import ClientError, GlobalWeights, TrainResult, TrainTask
from fedssl.federation.secure.keys import Identity, Roster, roster_text, write_secret
from fedssl.federation.secure.member import Member, RunRecord, new_record
from fedssl.federation.secure.stages import (
    Delivery,
    KeyCall,
    Peers,
    RoundCall,
    SurvivorCall,
    UnmaskCall,
    from_bytes,
    from_stage,
    to_bytes,
    to_stage,
)
from fedssl.federation.secure.terms import packed, unpacked

RECORD, MASKED, ROSTER = "member.secret", "masked", "roster"
MASKED_SENT = Sent("online", separate=True)
Said = KeyCall | Peers | RoundCall | Delivery | SurvivorCall | UnmaskCall


@dataclass(frozen=True, kw_only=True)
class SecureClient:
    """Who the clients here are, whom they trust, and the smallest sum that they hide in."""

    names: Sequence[str]  # by client
    identity: Callable[[str], Identity]
    roster: Callable[[], Roster]
    least: int

    def answer(self, store: ClientStore, task: TrainTask) -> TrainResult:
        """The one client-side path of a stage, on every engine."""
        folder = store.path(task.client_id, task.round_number).parent
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".member.lock"):  # a message that came twice may find the first still at work
            return self._answer(store, folder, task)

    def _answer(self, store: ClientStore, folder: Path, task: TrainTask) -> TrainResult:
        said: Said = from_stage(task.stage, KeyCall, Peers, RoundCall, Delivery, SurvivorCall, UnmaskCall)
        member = self._member(folder, task, said)
        upload: GlobalWeights | StoredUpload = GlobalWeights.EMPTY
        answer: object = None
        if isinstance(said, KeyCall):
            answer = member.advertise()
        elif isinstance(said, Peers):
            member.meet(said.adverts)
        elif isinstance(said, RoundCall):
            self._check_trained(store, task, said)
            answer = member.share(said)
        elif isinstance(said, Delivery):
            upload, answer = self._mask(member, store, folder, said), said.session
        elif isinstance(said, SurvivorCall):
            answer = member.agree(said)
        else:
            answer = member.unmask(said)
        write_secret(folder / RECORD, to_bytes(member.record))
        stage = to_stage(answer) if answer is not None else b""
        return TrainResult(task.client_id, task.round_number, upload, num_examples=1, stage=stage)

    def _check_trained(self, store: ClientStore, task: TrainTask, call: RoundCall) -> None:
        """All of a sum must have trained the same task: else the server could tell whose update is whose."""
        name, round_number = self.names[task.client_id], call.session.round_number
        if round_number != task.round_number:
            raise ClientError("refused", f"secure aggregation: a call of round {round_number} in {task.round_number}")
        if store.check(task.client_id, round_number).facts.get("common") != call.common:
            raise ClientError(
                "refused", f"secure aggregation: site {name} was given other weights or settings than the others"
            )

    def _mask(self, member: Member, store: ClientStore, folder: Path, said: Delivery) -> StoredUpload:
        """Masks what the round's training left on the disk; record and masked vector are sealed before it leaves."""
        trained = store.check(self.names.index(member.name), said.session.round_number)
        vector = unpacked(GlobalWeights.from_named(trained.tensors(UPLOAD)))
        member.mask(said, vector)
        write_secret(folder / RECORD, to_bytes(member.record))  # before anything masked is on the disk
        tensors = {UPLOAD + name: tensor for name, tensor in packed(vector).named().items()}
        seal(folder / MASKED, tensors, {"session": str(said.session)})
        return StoredUpload(folder / MASKED, MASKED_SENT, vector.nbytes)

    def _member(self, folder: Path, task: TrainTask, said: object) -> Member:
        name, path = self.names[task.client_id], folder / RECORD
        if path.exists():
            record = _read(path, name)
        elif isinstance(said, KeyCall):
            record = new_record(said.run)
        else:
            raise ClientError("state-damaged", f"{path}: site {name} has no keys of this run: put back a copy of it")
        if isinstance(said, KeyCall) and said.run != record.run:
            raise ClientError("refused", f"secure aggregation: site {name}: its keys are of run {record.run}")
        if isinstance(said, RoundCall) and (folder / MASKED).exists():
            remove_folder(folder / MASKED)  # of the attempt before
        return Member(self.identity(name), self.roster(), record, self.least)


def _read(path: Path, name: str) -> RunRecord:
    try:
        return from_bytes(RunRecord, path.read_bytes())
    except (OSError, FedsslError):
        raise DamagedError(f"{path}: site {name}: its keys of this run are damaged: put back a copy of it") from None


def make_identities(folder: Path, names: Sequence[str]) -> Roster:
    """For a run on one machine: a node key for each client, NAME.key, for its owner alone, and their roster."""
    folder.mkdir(exist_ok=True)
    for name in names:
        if not (folder / f"{name}.key").exists():
            Identity.new(name).write(folder / f"{name}.key")
    roster = {name: Identity.read(folder / f"{name}.key", name).key.public_key() for name in names}
    write_atomically(folder / ROSTER, roster_text(roster))
    return roster
