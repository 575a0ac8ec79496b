"""A small federation whose uploads are summed securely: real clients, stores, keys; an engine that can be disturbed."""

from functools import partial

from fedssl.federation.client import attempt
from fedssl.federation.client_store import ClientStore
from fedssl.federation.messages import Failure
from fedssl.federation.model_communication import FedEMA
from fedssl.federation.rounds import ServerState, run_round
from fedssl.federation.secure.client_side import ROSTER, SecureClient, make_identities
from fedssl.federation.secure.keys import Identity, read_roster
from fedssl.federation.secure.server_side import SecureServer
from fedssl.federation.secure.terms import make_terms
from tests.helpers.small import make_client, make_method, make_server

STAGES = ("KeyCall", "Peers", "train", "RoundCall", "Delivery", "SurvivorCall", "UnmaskCall")
AFTER_TRAINING = STAGES[3:]


class KilledError(BaseException):
    """The server is gone."""


def stage_of(task):
    return task.stage.partition(b" ")[0].decode() or "train"


class SecureFederation:
    """`disturb(stage, task, answer)` gives the replies to a task; `answer()` is the client's own."""

    workers, idle_seconds = 1, 0.0

    def __init__(self, folder, *, rule=None, clients=4, per_round=None, method="byol", disturb=None, **options):
        folder.mkdir(exist_ok=True)
        rule, asked = rule or FedEMA(lambda_at="client"), per_round or clients
        about = {"threshold": None, "most_examples": 20, "limit": 8.0, "statistics_limit": 1024.0}
        terms = about | {key: options.pop(key) for key in list(options) if key in about or key in ("deviation",)}
        if privacy := options.get("privacy"):
            terms |= {"clip_norm": privacy.clip_norm, "deviation": privacy.deviation(asked)}
        secure = partial(make_terms, clients=asked, **terms)
        self.client = make_client(make_method(method), rule, clients=clients, rounds=4, secure=secure, **options)
        names = [f"client-{number:05d}" for number in range(clients)]
        roster = make_identities(folder / "keys", names)
        side = SecureClient(
            names=names,
            identity=lambda name: Identity.read(folder / "keys" / f"{name}.key", name),
            roster=lambda: read_roster(folder / "keys" / ROSTER),
            least=self.client.terms.threshold,
        )
        self.store = ClientStore(folder, secure=side)
        places = {"roster": roster, "file": folder / "secure.json"}
        sums = SecureServer(terms=self.client.terms, names=names, common=self.client.common, **places)
        self.server = make_server(clients, rule, per_round=per_round, secure=sums, needed=self.client.needed_numbers())
        self.state = ServerState(0, self.client.initial_global_weights())
        self.disturb, self.asked = disturb, []

    def run_tasks(self, tasks):
        for task in tasks:
            stage = stage_of(task)
            self.asked.append((stage, task.round_number, task.client_id))

            def answer(task=task):
                return attempt(self.client, self.store, task)

            yield from self.disturb(stage, task, answer) if self.disturb else [answer()]

    def round(self):
        outcome = run_round(self.server, self, self.state)
        self.state = outcome.state
        return outcome

    def rounds(self, count):
        return [self.round() for _ in range(count)]


def silent(stages, clients, rounds=(1, 2, 3)):
    """These clients do nothing at these stages, however often they are asked."""

    def disturb(stage, task, answer):
        gone = stage in stages and task.client_id in clients and task.round_number in rounds
        return [] if gone else [answer()]

    return disturb


def killed_once(at, client, after):
    """A client is killed at a stage of round 2, before or after it did its work; asked again it is back."""
    seen = set()

    def disturb(stage, task, answer):
        if (stage, task.client_id, task.round_number) == (at, client, 2) and not seen:
            seen.add(stage)
            if after:
                answer()
            return [Failure(task.client_id, task.round_number, "exception", detail="killed")]
        return [answer()]

    return disturb


def server_killed(at, after):
    """The server is killed at a stage of round 2, before the first reply or when it has had two."""
    replies = []

    def disturb(stage, task, answer):
        if (stage, task.round_number) == (at, 2):
            if len(replies) == (2 if after else 0):
                raise KilledError
            replies.append(task.client_id)
        return [answer()]

    return disturb
