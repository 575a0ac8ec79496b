"""A client's state on its own disk, one file a round it trained: a lost reply or a rolled-back round costs nothing."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedssl.errors import FedsslError
from fedssl.federation.messages import ClientState, ClientWeights
from fedssl.files import replacing
from fedssl.weights import Weights


class ClientStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, client_id: int, round_number: int) -> Path:
        return self.folder / f"client-{client_id:05d}" / f"round-{round_number:06d}.safetensors"

    def load(self, client_id: int, round_number: int) -> ClientState:
        path = self.path(client_id, round_number)
        if not path.exists():
            raise FedsslError(f"client {client_id}: its state after round {round_number} is missing ({path})")
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                about = json.loads(file.metadata()["state"])
        except (SafetensorError, OSError) as error:
            raise FedsslError(f"client {client_id}: its state {path} is damaged, not readable ({error})") from None
        weights = ClientWeights(*(_part(tensors, part) for part in ("online", "predictor", "target")))
        return ClientState(weights, about["last_round"], _under(tensors, "memory/"), about["scalars"])

    def save(self, client_id: int, state: ClientState, keep: int | None) -> None:
        """Writes this round's generation atomically, then removes all but it and generation `keep`."""
        tensors = {f"memory/{name}": tensor for name, tensor in state.memory.items()}
        for part in ("online", "predictor", "target"):
            weights: Weights = getattr(state.weights, part)
            tensors |= {f"{part}/parameters/{name}": tensor for name, tensor in weights.parameters.items()}
            tensors |= {f"{part}/buffers/{name}": tensor for name, tensor in weights.buffers.items()}
        path = self.path(client_id, state.last_round)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = json.dumps({"last_round": state.last_round, "scalars": state.scalars})
        with replacing(path) as unfinished:
            save_file(tensors, unfinished, metadata={"state": about})
        kept = {path} | ({self.path(client_id, keep)} if keep is not None else set())
        for other in path.parent.glob("round-*.safetensors"):
            if other not in kept:
                other.unlink()


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _part(tensors: dict[str, Tensor], part: str) -> Weights:
    return Weights(_under(tensors, f"{part}/parameters/"), _under(tensors, f"{part}/buffers/"))
