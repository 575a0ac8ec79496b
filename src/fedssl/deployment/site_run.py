"""A client's side of a deployment: its own images, its own state, and what it lets a server decide.

A server decides about the method, the training and the network by its name here. It decides neither about paths nor
about code: images come from where the client was told at home, a network by import path is refused unless allowed.
What it may ask for is bounded by the site's own limits, and by what it asked for at the first task of the run.
"""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedssl.core.devices import choose_device
from fedssl.core.errors import FedsslError, safe_text
from fedssl.core.files import UNFINISHED, storing
from fedssl.core.registry import AllowCode
from fedssl.core.sealed import named_tensors, named_weights, read_tensors, write_tensors
from fedssl.data.dataset import Pixels, fingerprint, where
from fedssl.data.partition import Partition
from fedssl.deployment.audit import Audit, after, parts_of
from fedssl.deployment.consent import check_consent, check_left, deciding, settings_digest
from fedssl.deployment.limits import check_disk, check_settings, check_spent, check_upload, open_run
from fedssl.deployment.policy import Policy
from fedssl.deployment.site_folder import LOG, claim_state
from fedssl.experiment.backends import client_store
from fedssl.experiment.build.data import build_dataset
from fedssl.experiment.build.networks import build_networks
from fedssl.experiment.build.parts import build, build_client
from fedssl.experiment.build.site_labels import build_examine, labels_of_site
from fedssl.experiment.config.resolve import choice, names_in, resolve
from fedssl.experiment.config.schema import Config, Raw
from fedssl.federation.client import Client
from fedssl.federation.client_store import PARTS, ClientStore
from fedssl.federation.engines.flower.client_app import Side
from fedssl.federation.messages import ClientError, ClientWeights, Failure, TrainResult
from fedssl.federation.privacy.budget import epsilon_after

if TYPE_CHECKING:
    from fedssl.federation.secure.client_side import SecureClient

THREADS = torch.get_num_threads()  # of a run that asks for no number


def name_of(node: Raw) -> str:
    return str(node.get("name", ""))


def log_of(node: Raw) -> Path:
    return Path(str(node["state"])) / LOG


def admit(node: Raw, about: Raw) -> tuple[Config, Policy]:
    """What a task asks for, if this site takes it now; ClientError when it does not, or it is for another client."""
    name, state, policy = name_of(node), Path(str(node["state"])), Policy.of_node(node)
    if about.get("name") != name:
        raise ClientError("refused", f"a task for {about.get('name')!r} came to {name!r}")
    claim_state(state, name)
    run = _run_name(about.get("run"))
    try:
        config = checked_settings(about["settings"], _allowed(node))
        check_settings(config, policy)
        check_consent(state, run, about["settings"], policy)
        policy.check_hours(datetime.now())
        check_spent(Audit(state).spent(run), about.get("round", 0), config, policy)
    except FedsslError as error:
        code = error.code if isinstance(error, ClientError) else "refused"
        raise ClientError(code, str(error), str(error) if policy.share_reasons else "") from None
    return config, policy


def open_side(node: Raw, about: Raw) -> Side:
    """The client's side of the run that a task belongs to."""
    (config, policy), state = admit(node, about), Path(str(node["state"]))
    folder, allow_code = open_run(state / "runs", str(about["run"]), config, policy), _allowed(node)
    if device := str(node.get("device", "")):
        config = resolve(config.as_raw() | {"device": device}, allow_code)
    torch.set_num_threads(config.run.threads or THREADS)
    places = tuple(str(node.get(name, "")) for name in ("data", "eval-train", "eval-test"))
    client, store = _made(json.dumps(config.as_raw()), allow_code, places, folder, policy.evaluation)
    check_upload(client.upload_bytes(), policy)
    check_disk(state, client.state_bytes(), policy)
    secure = _secure_client(config, client, node, policy)
    store = replace(store, secure=secure, changed=_data_changed(node, about))
    return Side(client, store, state / LOG, config.failures.client_timeout)


def _allowed(node: Raw) -> tuple[str, ...]:
    return tuple(filter(None, str(node.get("allow-code", "")).split(",")))


def _data_changed(node: Raw, about: Raw) -> Callable[[str, str], None] | None:
    """What is done about images that are not those of the state: recorded where the site allows it, else refused."""
    if "accept-changed-data" not in node:
        return None
    audit = Audit(Path(str(node["state"])))
    return lambda before, now: audit.add("data-changed", **_task(about), data_before=before, data=now)


def record_task(node: Raw, about: Raw) -> None:
    """A line for a task that came, whatever becomes of it."""
    Audit(Path(str(node["state"]))).add("task", **_task(about))


def record_reply(
    node: Raw, about: Raw, reply: TrainResult | Failure, *, seconds: float, side: Side | None = None
) -> None:
    """A line for what is about to leave; nothing does when it cannot be written, or the site has left meanwhile."""
    state, task, parts = Path(str(node["state"])), _task(about), parts_of(reply)
    audit = Audit(state)
    before = audit.spent(task["run"])
    spent = after(before, reply, parts, seconds)
    if task["evaluation"]:  # counts are no upload, also masked
        spent = replace(before, hours=spent.hours)
    epsilon = {"epsilon": _epsilon(side.client, spent.uploads)} if side and side.client.privacy else {}
    with deciding(state):  # a reply stands before the line of its site's leaving, or does not leave
        if isinstance(reply, TrainResult):
            check_upload(sum(part["bytes"] for part in parts), Policy.of_node(node))
            check_left(state, task["run"])
        audit.add("reply", **task, left=parts, spent=asdict(spent), **epsilon)


def _epsilon(client: Client, uploads: int) -> float | str:
    """What this client has spent of its privacy with so many uploads; a text where it is no number."""
    assert client.privacy is not None
    try:
        value = epsilon_after(client.privacy, uploads, client.terms)
    except ImportError:
        return 'not known: pip install "fedssl[privacy]"'
    return "infinite" if value is None else value


def _task(about: Raw) -> Raw:
    """The facts of a task as a line of the audit has them; what a server says is cut, and may be anything."""
    settings, number = about.get("settings"), about.get("round")
    return {
        "run": safe_text(str(about.get("run"))[:64]),
        "round": number if isinstance(number, int) else None,
        "evaluation": about.get("evaluation") is True,
        "settings": settings_digest(settings) if isinstance(settings, dict) else "",
    }


def checked_settings(raw: Raw, allow_code: AllowCode = ()) -> Config:
    """Settings as they came from the server, checked like any, and refused where they reach into this machine."""
    for setting, registry, name in names_in(raw):
        registry.check(name, allow_code, f"{setting} of the server")
    # What the server started from is a file of the server's; a client gets those weights with its first task.
    config = resolve(raw | {"init": {}}, allow_code)
    if where(config.data.factory) == "here":
        raise FedsslError(
            f"data.name: {config.data.name!r} would have the server choose what is read here: use 'sites'"
        )
    return config


def _run_name(run: object) -> str:
    text = str(run)
    if not (text.isalnum() and len(text) <= 64):
        raise FedsslError(f"the id of the run, {text[:64]!r}, is no name of a folder")
    return text


@lru_cache(maxsize=1)  # tasks of one run follow one another in this process; those of the next need its memory
def _made(
    raw: str, allow_code: tuple[str, ...], places: tuple[str, ...], folder: Path, evaluation: bool
) -> tuple[Client, ClientStore]:
    config = resolve(json.loads(raw), allow_code)
    data, *evaluated = places
    if where(config.data.factory) == "sites":
        client, store = _with_own_images(config, data, evaluated, folder)
    elif any(places):
        raise FedsslError(
            f"--data, --eval-train, --eval-test: this run trains on {config.data.name}, not on your own images: leave "
            "them out"
        )
    else:
        parts = build(config)  # a shared set, of which every client has the part that the settings give it
        client, store = parts.client, client_store(config, parts, folder)
    if not evaluation:
        client.examine = None
    client.first_weights = _on_disk(client.first_weights, folder)
    return client, store


def _on_disk(weights: ClientWeights, folder: Path) -> ClientWeights:
    """The same, out of memory: only a client without a state needs those it begins with, and that is seldom."""
    tensors: dict[str, torch.Tensor] = {}
    for part in PARTS:
        tensors |= named_tensors(part, getattr(weights, part))
    path = folder / f"first.{os.getpid()}{UNFINISHED}"
    with storing(path, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())):
        try:
            write_tensors(path, tensors)
            mapped = read_tensors(path)
        finally:
            with suppress(PermissionError):  # Windows keeps the name of a file that is mapped
                path.unlink(missing_ok=True)
    return ClientWeights(*(named_weights(part, mapped) for part in PARTS))


def _with_own_images(config: Config, data: str, evaluated: list[str], folder: Path) -> tuple[Client, ClientStore]:
    if not data:
        raise FedsslError("--data: this run trains on the clients' own images: say where yours are")
    decoding = {key: config.data.settings[key] for key in ("image_size", "resampling", "channels", "fit", "white")}
    dataset = build_dataset(choice("data", {"name": "folder", "path": data, "labels": False, **decoding}))
    if len(dataset.train) < 2:
        raise FedsslError(f"--data: {len(dataset.train)} images can be used: at least 2 are needed")
    images = dataset.train.unlabelled()
    device = choose_device(config.run.device)
    config.local_training.check(device)
    method, _ = build_networks(config, dataset, Partition((), 0), device)  # none of these images is public

    def images_of(client_id: int) -> Pixels:  # noqa: ARG001 - all that is here is this client's
        return images.chosen(np.arange(len(images)))

    examine = build_examine(config, labels_of_site(decoding, data, *evaluated))
    client = build_client(config, method, images_of, len(config.flower.clients), examine=examine)
    return client, ClientStore(folder, keep=config.run.keep_checkpoints, data_of=lambda _: fingerprint(images))


def _secure_client(config: Config, client: Client, node: Raw, policy: Policy) -> "SecureClient | None":
    """This site's part in secure sums: its own node key, and the others' as they are in its roster."""
    if client.terms is None:
        return None
    from fedssl.federation.secure.client_side import SecureClient
    from fedssl.federation.secure.keys import Identity, read_roster

    name, names, roster = name_of(node), config.flower.clients, str(node.get("roster", ""))
    if not roster:
        raise FedsslError("--roster: this run sums securely: give the file of all sites' keys (fedssl certificates)")
    keys = read_roster(Path(roster))
    if missing := [one for one in names if one not in keys]:
        raise ClientError("untrusted", f"{roster}: site {missing[0]} is not in the roster: get its .pub file from it")
    identity = Identity.read(Path(str(node.get("key", ""))), name)
    if identity.key.public_key() != keys[name]:
        raise ClientError(
            "untrusted", f"{roster}: site {name}: another key than this site's own: exchange rosters anew"
        )
    least = max(client.terms.threshold, policy.min_sites)
    return SecureClient(names=names, identity=lambda _: identity, roster=lambda: keys, least=least)
