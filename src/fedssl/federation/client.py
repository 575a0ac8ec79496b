"""One client's side of a round: the same code whatever engine carries the task."""

import hashlib
import secrets
import time
import traceback
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch

from fedssl.core.errors import DamagedError, StorageError
from fedssl.core.progress import Progress, silent
from fedssl.core.stopwatch import Stopwatch
from fedssl.core.weights import Weights, divergence, non_finite
from fedssl.data.augmentation.recipes import Recipe
from fedssl.data.dataset import Pixels
from fedssl.federation.client_store import ClientStore, Sent
from fedssl.federation.distributed import train_on_devices
from fedssl.federation.local_training import LocalTraining, train_locally, training_seed
from fedssl.federation.messages import (
    ClientError,
    ClientState,
    ClientWeights,
    Failure,
    FailureCode,
    GlobalWeights,
    Payload,
    Scalars,
    TrainResult,
    TrainTask,
)
from fedssl.federation.model_communication import BatchNormSharing, UpdateRule, begin, private_names
from fedssl.federation.privacy.mechanism import KEY, KEY_BYTES, ClientDP, run_key
from fedssl.federation.site_evaluation import Counts, answer
from fedssl.federation.wire import EXACT, Wire
from fedssl.methods.base import ClientRound, SiameseMethod
from fedssl.networks.blocks import frozen_names
from fedssl.networks.heads import Encoder

if TYPE_CHECKING:
    from fedssl.federation.secure.terms import Terms

MakeTerms = Callable[[GlobalWeights, tuple[str, ...]], "Terms"]
"""The terms of secure sums, given weights like those that clients share and the numbers that they may tell."""
Examine = Callable[[int, Encoder], Counts]
"""Looks at an encoder with the labelled images of a client; ClientError where there are none, or none may be used."""
WITH_NOISE = ("ema", "seconds")  # all that a client tells beside noise: a number made from images would be exact


@dataclass(kw_only=True, eq=False)
class Client:
    """Trains any client of a run with one set of networks: weights come from the state, memory does not grow with K."""

    method: SiameseMethod
    rule: UpdateRule
    recipe: Recipe
    training: LocalTraining
    images_of: Callable[[int], Pixels]
    rounds: int
    seed: int
    num_clients: int
    upload: Literal["online", "target"] = "online"
    batchnorm: BatchNormSharing = "average"
    profile: bool = False
    wire: Wire = EXACT
    privacy: ClientDP | None = None
    start_over: bool = False  # from the global model, when its own state is damaged
    secure: MakeTerms | None = None  # only masked vectors leave, for a sum
    examine: Examine | None = None  # None: no accuracy is measured here; training has no part in it

    def __post_init__(self) -> None:
        method = self.method
        self.clock = Stopwatch(self.profile, next(method.parameters()).device)
        self.first_weights = weights_of(method)
        self.rule.check(self.first_weights.online)
        method.check(self.num_clients)
        self.first_memory = {name: tensor.clone() for name, tensor in method.memory().items()}
        private = [private_names(part, self.batchnorm) for part in (method.online_encoder, method.predictor)]
        self.private = private[0], private[1]
        frozen = frozen_names(method.online_encoder.backbone, self.training.freeze)
        self.frozen = frozenset(f"backbone.{name}" for name in frozen)
        self.encoder_sent = "target" if self.upload == "target" and method.target_encoder is not None else "online"
        self.terms = self.secure(self.initial_global_weights(), self.reported_numbers()) if self.secure else None
        separate = bool(self.privacy) or bool(self.terms) or not self.wire.exact
        leaves = self.rule.shares and not self.terms  # else nothing, until it is masked
        self.sent = Sent(self.encoder_sent if leaves else "", *self.private, separate=separate)

    def settings_for(self, task: TrainTask) -> str:
        """What a task's training depends on beside the task itself, and a resumed run may have changed."""
        lr = self.training.learning_rate(task.round_number, self.rounds)
        return f"lr {lr!r} {self.training} {self.rule} seed {self.seed} of {self.rounds} rounds"

    def common(self, task: TrainTask) -> str:
        """A digest of what all clients of a round have in common: where they start from, and how they train."""
        assert self.terms is not None
        about = f"{task.global_weights.digest} {self.settings_for(task)} {self.terms.settings}"
        return hashlib.sha256(about.encode()).hexdigest()

    @property
    def adds_noise(self) -> bool:
        return self.privacy is not None and self.privacy.at_clients

    def needed_numbers(self) -> tuple[str, ...]:
        """What every reply of this run tells, so that the server may count on it.

        A client that adds noise tells nothing else, one whose uploads are summed securely nothing at all.
        """
        if self.terms:
            return ()
        return WITH_NOISE if self.adds_noise else ("loss", "images", "seconds", *self.rule.reads())

    def reported_numbers(self) -> tuple[str, ...]:
        """What a secure sum may hold for the record."""
        rest = ("loss", "images", "core_seconds", "mu", "divergence", "feature_std")
        return WITH_NOISE if self.adds_noise else (*WITH_NOISE, *rest)

    def initial_global_weights(self) -> GlobalWeights:
        """W_g^0 and W_g^{p,0}, without what stays at the clients."""
        return self._shared(self.first_weights.online, self.first_weights.predictor)

    def global_encoder(self, task: TrainTask) -> Encoder:
        """The encoder of a task's weights, a copy: evaluation leaves what is trained alone."""
        sent = self.wire.decode(task.global_weights, self.initial_global_weights())
        encoder = deepcopy(self.method.online_encoder)
        self.first_weights.online.overlaid(sent.encoder).load_into(encoder)
        return encoder

    def upload_bytes(self) -> int:
        """What a client sends a round, without a method's payload."""
        if self.terms:
            return self.terms.num_bytes
        return self.wire.encode(self.initial_global_weights()).num_bytes() if self.rule.shares else 0

    def state_bytes(self) -> int:
        """What a client keeps on disk of a round."""
        weights, separate = self.first_weights, self.upload_bytes() if self.sent.separate else 0
        separate *= 2 if self.terms else 1  # as it is and masked
        parts = (weights.online, weights.predictor, weights.target, Weights(self.first_memory))
        return sum(part.num_bytes() for part in parts) + separate

    def train(
        self, state: ClientState | None, task: TrainTask, progress: Progress = silent
    ) -> tuple[ClientState, TrainResult]:
        """Update by the rule, train, and return the new state (stays here) and the result (goes to the server).

        The state before is not held while it trains, unless the caller holds it.
        """
        started, started_working = time.perf_counter(), time.process_time()
        with self.clock.part("rule"):
            task = replace(task, global_weights=self.wire.decode(task.global_weights, self.initial_global_weights()))
            scalars, at = self._start(state, task)
            key = self._noise_key(state, task.client_id)
            started_over = state is None and task.accepted_round is not None
            del state
            images = self.images_of(task.client_id)
            before = Weights.of(self.method.online_encoder)
        train = train_locally if self.training.devices == 1 else train_on_devices
        report = train(
            self.method,
            images,
            recipe=self.recipe,
            settings=self.training,
            lr=partial(self.training.learning_rate, task.round_number, self.rounds),
            seed=at.seed,
            progress=partial(progress, client=task.client_id),
            clock=self.clock,
            received=(at.encoder, at.predictor),
        )
        self.method.zero_grad()  # gradients take as much memory as the copy that comes next
        with self.clock.part("rule"):
            weights = weights_of(self.method)
            self._check_finite(weights, report.loss, task)
            measured = self.rule.measure(before, weights.online)
            payload = self.method.payload() if self.rule.shares else {}  # first: a method may remember what it sent
            memory = {name: tensor.detach().cpu().clone() for name, tensor in self.method.memory().items()}
        if key:
            memory[KEY] = torch.frombuffer(bytearray(key), dtype=torch.uint8)
        kept = {**task.note, **self.rule.kept(scalars), **measured}
        new_state = ClientState(weights, task.round_number, memory, kept)
        scalars |= measured | {
            "loss": report.loss,
            "feature_std": report.feature_std,
            "images": report.images,
            "seconds": time.perf_counter() - started,
            # Of all threads: does not grow with other work.
            "core_seconds": time.process_time() - started_working + report.core_seconds_elsewhere,
        }
        if started_over:
            scalars["started_over"] = 1.0
        if key:
            reported = {name: scalars[name] for name in WITH_NOISE}
            return new_state, self._result(task, weights, 1, reported, payload, key)
        return new_state, self._result(task, weights, len(images), scalars, payload)

    def _noise_key(self, state: ClientState | None, client_id: int) -> bytes:
        """The key of a client's own noise; empty if it adds none."""
        if self.privacy is None or not self.adds_noise:
            return b""
        if self.privacy.noise_seed == "run":
            return run_key(self.seed, client_id)
        return bytes(state.memory[KEY].numpy()) if state else secrets.token_bytes(KEY_BYTES)

    def _start(self, state: ClientState | None, task: TrainTask) -> tuple[Scalars, ClientRound]:
        """Loads the weights with which the rule lets this round begin."""
        local = self._without_private(state)
        start, scalars = begin(self.rule, local, task)
        if local is not None and self.rule.shares and "divergence" not in scalars:
            scalars["divergence"] = divergence(task.global_weights.encoder, local.weights.online, "l2")
        return scalars, self._load(state, start, task)

    def _result(
        self,
        task: TrainTask,
        weights: ClientWeights,
        num_examples: int,
        scalars: Scalars,
        payload: Payload,
        key: bytes = b"",
    ) -> TrainResult:
        encoder = weights.target if self.encoder_sent == "target" else weights.online
        shared = self._shared(encoder, weights.predictor) if self.rule.shares else GlobalWeights.EMPTY
        if self.privacy is not None:
            key = self.privacy.round_key(key, task.round_number)
            clients = self.terms.clients if self.terms else 1
            shared = self.privacy.protect(shared, task.global_weights, key, clients)
        if self.terms:  # kept here until it is masked; nothing but the sum will say n_k and the numbers
            part = self.terms.part(shared, task.global_weights, num_examples, scalars)
            stage = self.common(task).encode()
            return TrainResult(task.client_id, task.round_number, part, num_examples=1, stage=stage)
        return TrainResult(
            client_id=task.client_id,
            round_number=task.round_number,
            upload=self.wire.encode(shared),
            num_examples=num_examples,
            scalars=scalars,
            payload=payload,
        )

    def _shared(self, encoder: Weights, predictor: Weights) -> GlobalWeights:
        return GlobalWeights(encoder.without(self.private[0]), predictor.without(self.private[1]))

    def _without_private(self, state: ClientState | None) -> ClientState | None:
        """Rules mix only what both sides have: the private BatchNorm tensors are laid back under in `_load`."""
        if state is None or not any(self.private):
            return state
        w = state.weights
        shared = ClientWeights(
            w.online.without(self.private[0]), w.predictor.without(self.private[1]), w.target.without(self.private[0])
        )
        return replace(state, weights=shared)

    def _load(self, state: ClientState | None, start: ClientWeights, task: TrainTask) -> ClientRound:
        own = state.weights if state is not None else self.first_weights
        own.online.overlaid(start.online).load_into(self.method.online_encoder)
        own.predictor.overlaid(start.predictor).load_into(self.method.predictor)
        if self.method.target_encoder is not None:
            own.target.overlaid(start.target).load_into(self.method.target_encoder)
        memory = state.memory if state is not None else self.first_memory
        with torch.no_grad():
            for name, tensor in self.method.memory().items():
                tensor.copy_(memory[name])
        at = ClientRound(
            client_id=task.client_id,
            num_clients=self.num_clients,
            round_number=task.round_number,
            rounds=self.rounds,
            seed=training_seed(self.seed, task.client_id, task.round_number),
            encoder=own.online.overlaid(task.global_weights.encoder),
            predictor=own.predictor.overlaid(task.global_weights.predictor),
        )
        self.method.prepare(at)
        self.method.receive(task.payload)
        self.method.start_round()
        return at

    def _check_finite(self, weights: ClientWeights, loss: float, task: TrainTask) -> None:
        broken = [*non_finite(weights.online), *non_finite(weights.predictor)]
        if loss != loss or loss in (float("inf"), float("-inf")) or broken:
            where = f"client {task.client_id}, round {task.round_number}"
            what = f"the weights {broken[0]!r}" if broken else f"the loss ({loss})"
            remedy = "lower local_training.lr, or take a robust aggregation.name if a client sends rubbish"
            raise ClientError("non-finite", f"{where}: {what} became NaN or infinite: {remedy}")


def weights_of(method: SiameseMethod) -> ClientWeights:
    target = Weights() if method.target_encoder is None else Weights.of(method.target_encoder)
    return ClientWeights(Weights.of(method.online_encoder), Weights.of(method.predictor), target)


def handle(client: Client, store: ClientStore, task: TrainTask, progress: Progress = silent) -> TrainResult:
    """The only client-side path: load the generation the server accepted last, train, keep the new one beside it.

    Or look at the global encoder; or, where uploads are summed securely, answer a stage of the sum.
    """
    if task.evaluates:
        return answer(client, store, task)
    if task.stage:
        if store.secure is None:
            raise ClientError("refused", "a stage of a secure sum in a run without secure aggregation")
        return store.secure.answer(store, task)
    settings, clock = client.settings_for(task), client.clock
    clock.taken()
    with clock.part("state"):
        kept = store.find(task, settings)
    if kept is None:
        state, result = client.train(last_state(client, store, task), task, progress)
        with clock.part("state"):
            kept = store.save(task, settings, state, result, client.sent.separate)
    return store.result(kept, client.sent, clock.taken())


def last_state(client: Client, store: ClientStore, task: TrainTask) -> ClientState | None:
    """The state that the server accepted last; None: the client starts from the global model."""
    if task.accepted_round is None:
        return None
    try:
        with client.clock.part("state"):
            return store.load(task.client_id, task.accepted_round)
    except DamagedError as error:
        if client.start_over:
            return None
        remedy = 'put back a copy, or let the client start over: failures.damaged_state = "start-over"'
        raise DamagedError(f"{error}: {remedy}") from None


def attempt(
    client: Client,
    store: ClientStore,
    task: TrainTask,
    progress: Progress = silent,
    time_limit: float | None = None,
) -> TrainResult | Failure:
    """`handle`, where whatever goes wrong at the client is a reply too; only a disk that refuses is not its fault."""
    deadline = None if time_limit is None else time.monotonic() + time_limit

    def step(text: str, done: int, total: int | None, client: int | None = None, images: int = 0) -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise ClientError("timeout", f"step {done} of {total} after more than {time_limit:g} s")
        progress(text, done, total, client, images)

    try:
        return handle(client, store, task, step)
    except StorageError:
        raise
    except Exception as error:
        text, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
        return Failure(task.client_id, task.round_number, _code(error), detail=text, trace=trace)


def _code(error: Exception) -> FailureCode:
    if isinstance(error, ClientError):
        return error.code
    return "state-damaged" if isinstance(error, DamagedError) else "exception"
