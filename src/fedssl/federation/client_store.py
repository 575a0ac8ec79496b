"""A client's state on its own disk, one sealed folder per round it trained: what is lost on the way costs nothing.

A task names the generation that the server accepted last. The new one is written beside it and counts only when a
later task names it, so a lost reply, a killed process and a rolled-back round need no special code.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import forget, remove_folder
from fedssl.core.sealed import TENSORS, Sealed, named_tensors, rounds_in, seal, unseal
from fedssl.federation.messages import ClientState, ClientWeights, GlobalWeights, Scalars, TrainResult, TrainTask

if TYPE_CHECKING:
    from fedssl.federation.secure.client_side import SecureClient

PARTS = ("online", "predictor", "target")
UPLOAD = "upload/"


@dataclass(frozen=True)
class Sent:
    """What of a client's state goes up: which encoder, and which tensors stay (BatchNorm that is kept local)."""

    encoder: str  # "online" or "target"; "": nothing is shared
    private_encoder: frozenset[str] = frozenset()
    private_predictor: frozenset[str] = frozenset()
    separate: bool = False  # the upload is not those weights as they are: it is kept beside the state


@dataclass(frozen=True)
class StoredUpload:
    """An upload that stays in the client's file until the server reads it."""

    folder: Path
    sent: Sent
    size: int

    def read(self) -> GlobalWeights:
        sealed = Sealed(self.folder, {})  # checked when it was written or found, moments ago
        if self.sent.separate:
            return GlobalWeights.from_named(sealed.tensors(UPLOAD))
        return GlobalWeights(
            sealed.weights(self.sent.encoder).without(self.sent.private_encoder),
            sealed.weights("predictor").without(self.sent.private_predictor),
        )

    def num_bytes(self) -> int:
        return self.size


@dataclass(frozen=True)
class ClientStore:
    """`data_of` gives a client's data fingerprint: a state is never used with another client's images.

    `changed` is called with the old and the new one where a site allows its images to change (some were withdrawn).
    """

    folder: Path
    _: KW_ONLY
    keep: int = 2
    data_of: Callable[[int], str] | None = None
    secure: "SecureClient | None" = None
    changed: Callable[[str, str], None] | None = None

    def path(self, client_id: int, round_number: int) -> Path:
        return self.folder / f"client-{client_id:05d}" / f"round-{round_number:06d}"

    def load(self, client_id: int, round_number: int) -> ClientState:
        """The state after a round it trained; FedsslError when it is missing, damaged, or another client's."""
        sealed = self.check(client_id, round_number)
        weights = ClientWeights(*(sealed.weights(part) for part in PARTS))
        return ClientState(weights, sealed.facts["round"], sealed.tensors("memory/"), sealed.facts["scalars"])

    def check(self, client_id: int, round_number: int) -> Sealed:
        """Opens a generation after checking its bytes, and that it is this client's and about these images."""
        path = self.path(client_id, round_number)
        if not path.exists():
            raise DamagedError(f"client {client_id}: its state after round {round_number} is missing ({path})")
        try:
            sealed = unseal(path)
        except DamagedError as error:
            raise DamagedError(f"client {client_id}: {error}") from None
        if sealed.facts["client"] != client_id:
            raise FedsslError(
                f"{path}: holds the state of client {sealed.facts['client']}, not of client {client_id}: "
                "put the folders back where they were"
            )
        if self._other_data(sealed, client_id):
            if self.changed is None or self.data_of is None:
                raise FedsslError(
                    f"{path}: client {client_id} was trained on other images than it has now: give it back its images, "
                    "start anew with --fresh, or at a site allow it with --accept-changed-data"
                )
            self.changed(sealed.facts["data"], self.data_of(client_id))
        return sealed

    def _other_data(self, sealed: Sealed, client_id: int) -> bool:
        return self.data_of is not None and sealed.facts["data"] not in (None, self.data_of(client_id))

    def find(self, task: TrainTask, settings: str) -> Sealed | None:
        """What this very task gave before, if the process or its reply was lost; checked byte for byte."""
        path = self.path(task.client_id, task.round_number)
        try:
            sealed = unseal(path) if path.exists() else None
        except DamagedError:
            return None  # it is trained again
        if sealed is None or sealed.facts["task"] != _key(task, settings):
            return None
        # Withdrawn images must not leave in what they were part of: it is trained again.
        return None if self._other_data(sealed, task.client_id) else sealed

    def save(
        self, task: TrainTask, settings: str, state: ClientState, result: TrainResult, separate: bool = False
    ) -> Sealed:
        """Seals this round's generation, then removes those that no checkpoint can ask for any more.

        `separate`: with the upload, where it is not just a part of the state.
        """
        tensors = {f"memory/{name}": tensor for name, tensor in state.memory.items()}
        tensors |= {f"payload/{name}": tensor for name, tensor in result.payload.items()}
        for part in PARTS:
            tensors |= named_tensors(part, getattr(state.weights, part))
        if separate:
            tensors |= {UPLOAD + name: tensor for name, tensor in result.weights.named().items()}
        reply = {"num_examples": result.num_examples, "scalars": result.scalars, "bytes": result.upload.num_bytes()}
        facts = {
            "client": task.client_id,
            "data": self.data_of(task.client_id) if self.data_of else None,
            "round": state.last_round,
            "task": _key(task, settings),
            "scalars": state.scalars,
            "result": reply,
        }
        if result.stage:  # of a secure sum: what all of its clients must have trained
            facts["common"] = result.stage.decode()
        sealed = seal(self.path(task.client_id, task.round_number), tensors, facts)
        self._prune(task)
        return sealed

    def result(self, sealed: Sealed, sent: Sent, profile: Scalars | None = None) -> TrainResult:
        """The reply that a generation stands for; its weights stay on disk until somebody reads them."""
        facts, reply = sealed.facts, sealed.facts["result"]
        return TrainResult(
            client_id=facts["client"],
            round_number=facts["round"],
            upload=StoredUpload(sealed.folder, sent, reply["bytes"]) if sent.encoder else GlobalWeights.EMPTY,
            num_examples=reply["num_examples"],
            scalars=reply["scalars"],
            payload=sealed.tensors("payload/"),
            profile=profile or {},
        )

    def _prune(self, task: TrainTask) -> None:
        """Keeps the new generation, the accepted one, and older ones for as long as the server keeps checkpoints.

        Those in between were never accepted.
        """
        folder = self.path(task.client_id, task.round_number).parent
        rounds = rounds_in(folder)
        accepted = task.accepted_round or 0
        kept = {task.round_number, *[number for number in rounds if number <= accepted][-self.keep :]}
        for number in rounds:
            if number not in kept:
                remove_folder(self.path(task.client_id, number))
            elif number != task.round_number:
                forget(self.path(task.client_id, number) / TENSORS)


def _key(task: TrainTask, settings: str) -> str:
    return f"{task.digest()} {settings}".strip()
