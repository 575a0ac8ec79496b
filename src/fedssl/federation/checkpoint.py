"""What a run must remember, written so that a kill at any instant loses nothing.

A checkpoint is one sealed folder per round: the server's state and what the run itself needs. The clients' states are
not in it: they lie at the clients, unchanged ones are never rewritten, and the state names the generation of each.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssl.core.errors import DamagedError, FedsslError
from fedssl.core.files import forget, move_aside, remove_folder
from fedssl.core.sealed import TENSORS, rounds_in, seal, unseal
from fedssl.federation.messages import GlobalWeights
from fedssl.federation.rounds import ServerState

LEAST_KEPT = 2  # the newest may turn out damaged


@dataclass(frozen=True)
class Checkpoint:
    state: ServerState
    run: dict[str, Any] = field(default_factory=dict)  # plain values that belong to the run, not to the federation


class CheckpointStore:
    def __init__(self, folder: Path, keep: int = LEAST_KEPT) -> None:
        if keep < LEAST_KEPT:
            raise FedsslError(f"keep_checkpoints: {keep} is too few: the newest may be damaged, keep {LEAST_KEPT}")
        self.folder, self.keep = folder, keep

    def path(self, round_number: int) -> Path:
        return self.folder / f"round-{round_number:06d}"

    def rounds(self) -> list[int]:
        return rounds_in(self.folder)

    def save(self, checkpoint: Checkpoint) -> None:
        """Seals the checkpoint, then removes the oldest ones."""
        state = checkpoint.state
        tensors = {f"payload/{name}": tensor for name, tensor in state.payload.items()}
        tensors |= {f"memory/{name}": tensor for name, tensor in state.memory.items()}
        tensors |= state.global_weights.named()
        facts = {
            "round": state.round_number,
            "accepted_round": state.accepted_round,
            "notes": state.notes,
            "course": checkpoint.run,
        }
        seal(self.path(state.round_number), tensors, facts)
        forget(self.path(state.round_number) / TENSORS)
        for old in self.rounds()[: -self.keep]:
            remove_folder(self.path(old))

    def load(self, round_number: int) -> Checkpoint:
        sealed = unseal(self.path(round_number))
        facts = sealed.facts
        state = ServerState(
            facts["round"],
            GlobalWeights.from_named(sealed.tensors()),
            accepted_round={int(client): accepted for client, accepted in facts["accepted_round"].items()},
            notes={int(client): note for client, note in facts["notes"].items()},
            payload=sealed.tensors("payload/"),
            memory=sealed.tensors("memory/"),
        )
        return Checkpoint(state, facts["course"])

    def newest(self, check: Callable[[Checkpoint], None]) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole and passes `check`, and what was wrong with newer ones.

        Those are moved aside, or the next save would stumble over them; when none is left nothing is touched.
        """
        damaged: dict[int, str] = {}
        for number in reversed(self.rounds()):
            try:
                checkpoint = self.load(number)
                check(checkpoint)
            except DamagedError as error:
                damaged[number] = str(error)
            else:
                return checkpoint, [
                    f"{reason}; moved to {move_aside(self.path(bad))}; the run resumes from the one before"
                    for bad, reason in damaged.items()
                ]
        if damaged:
            reasons = "; ".join(damaged.values())
            raise DamagedError(
                f"{self.folder}: none of {len(damaged)} checkpoints can be used: {reasons}. Put back a copy of one, "
                "or start anew in another folder with --fresh"
            )
        return None, []
