"""A site's side: what it says at each stage, and what it refuses, whatever the server or a peer sends.

The integrator stores `record` before an answer leaves: a site that is stopped resumes from there, gives the same
answers when it is asked again, and never masks a second vector under one attempt.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from hashlib import sha256
from typing import Annotated, NoReturn

from annotated_types import Len
from pydantic import Strict
from pydantic.dataclasses import dataclass

from fedssl.core.errors import FedsslError
from fedssl.federation.messages import ClientError
from fedssl.federation.secure.fixed_point import Vector
from fedssl.federation.secure.keys import (
    SECRET_BYTES,
    Identity,
    Roster,
    context,
    derive,
    new_private_key,
    pair_secret,
    public_key,
    verify,
)
from fedssl.federation.secure.masks import add_stream, own_key, pair_key
from fedssl.federation.secure.shares import open_box, seal_box, split
from fedssl.federation.secure.stages import (
    CHECKED,
    MOST_SITES,
    Agreement,
    Delivered,
    Delivery,
    Key,
    KeyAdvert,
    MaskedUpload,
    Name,
    Names,
    Number,
    Pair,
    RoundCall,
    RoundKey,
    RoundShares,
    RunId,
    Session,
    SurvivorCall,
    UnmaskCall,
    Unmasking,
    advert_statement,
    round_statement,
)

REMEMBERED = 64  # rounds: more than any server keeps checkpoints


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class RoundSecret:
    """What a site remembers of the round under way: its secrets, and what it was told and said."""

    call: RoundCall
    shares: RoundShares
    seed: Key = field(repr=False)
    mask_key: Key = field(repr=False)  # private
    own_share: Pair = field(repr=False)
    delivery: Delivery | None = None
    sent: Annotated[bytes, Strict(), Len(0, 32)] = field(default=b"", repr=False)  # digest of the vector it masked
    survivors: Annotated[tuple[Name, ...], Len(0, MOST_SITES)] = ()  # those it agreed to


@dataclass(frozen=True, config=CHECKED)
class Opened:
    """A round for which a site gave its shares: the sum over these sites is known."""

    round_number: Number
    survivors: Names


@dataclass(frozen=True, config=CHECKED, kw_only=True)
class RunRecord:
    """All that a site must remember of a run; secret, for its own disk alone."""

    run: RunId
    share_key: Key = field(repr=False)  # private
    adverts: dict[Name, KeyAdvert] = field(default_factory=dict)
    secret: RoundSecret | None = None
    opened: tuple[Opened, ...] = ()  # the newest, in the order of their rounds


def new_record(run: str) -> RunRecord:
    return RunRecord(run=run, share_key=new_private_key())


class Member:
    """One site in one run; `least` is the smallest number of sites in whose sum it will hide."""

    def __init__(self, identity: Identity, roster: Roster, record: RunRecord, least: int = 2) -> None:
        self.identity, self.roster, self.record, self.least = identity, roster, record, least

    @property
    def name(self) -> str:
        return self.identity.name

    def advertise(self) -> KeyAdvert:
        run, key = self.record.run, public_key(self.record.share_key)
        return KeyAdvert(run, self.name, key, self.identity.sign(advert_statement(run, self.name, key)))

    def meet(self, adverts: Sequence[KeyAdvert]) -> None:
        """Takes the other sites' keys; one that it knows already must be the same."""
        _distinct(advert.name for advert in adverts)
        for advert in adverts:
            if advert.run != self.record.run:
                _refuse(f"site {advert.name}: its key is for another run")
            verify(self.roster, advert.name, advert.signature, advert.statement())
            known = self._share_key(advert.name)
            if known not in (None, advert.share_key):
                _refuse(f"site {advert.name}: its key is not the one it had before: it must keep its key for a run")
        self.record = replace(self.record, adverts=self.record.adverts | {advert.name: advert for advert in adverts})

    def _share_key(self, name: str) -> bytes | None:
        if name == self.name:
            return public_key(self.record.share_key)
        return self.record.adverts[name].share_key if name in self.record.adverts else None

    # --- shares

    def share(self, call: RoundCall) -> RoundShares:
        """New secrets for a new attempt, shared among the sites of the call."""
        under_way = self.record.secret
        if under_way is not None and call == under_way.call:
            return under_way.shares
        if under_way is not None and call.session.attempt <= under_way.call.session.attempt:
            _refuse(
                f"{call.session}: came after attempt {under_way.call.session.attempt}: a new one needs a new number"
            )
        self._check(call)
        secret = self._new_secret(call)
        self.record = replace(self.record, secret=secret)
        return secret.shares

    def _check(self, call: RoundCall) -> None:
        if call.session.run != self.record.run:
            _refuse(f"{call.session}: is of another run")
        _distinct(call.names)
        if self.name not in call.names:
            _refuse(f"{call.session}: site {self.name} is not among those asked")
        for name in call.names:
            if self._share_key(name) is None:
                _refuse(f"site {name}: it has no key in this run: the keys of all sites are exchanged before a round")
        self._check_opened(call.session, call.names)
        sites, needed = len(call.names), max(self.least, len(call.names) // 2 + 1)
        if not needed <= call.threshold <= sites:
            _refuse(
                f"{call.session}: {sites} sites with a threshold of {call.threshold}: site {self.name} takes part in "
                f"sums of {needed} sites or more"
            )

    def _check_opened(self, session: Session, names: Sequence[str]) -> None:
        """A round is opened for one set of sites only: the difference of two such sums would be a site's own vector."""
        opened, round_number = self.record.opened, session.round_number
        if len(opened) == REMEMBERED and round_number < opened[0].round_number:
            _refuse(f"{session}: is too long ago for site {self.name} to know for whom it was opened")
        for one in opened:
            if one.round_number == round_number and set(one.survivors) != set(names):
                changed = min(set(one.survivors) ^ set(names))
                _refuse(f"site {changed}: round {round_number} was opened before, {session} is about other sites")

    def _new_secret(self, call: RoundCall) -> RoundSecret:
        seed, private = secrets.token_bytes(SECRET_BYTES), new_private_key()
        places = call.places()
        halves = zip(*(split(one, call.threshold, len(places)) for one in (seed, private)), strict=True)
        shares = dict(zip(places, map(b"".join, halves), strict=True))
        own = shares.pop(self.name)
        boxes = {
            peer: seal_box(self._box_key(peer), share, call.box(self.name, peer)) for peer, share in shares.items()
        }
        public, commitment = public_key(private), commitment_to(seed)
        signature = self.identity.sign(round_statement(call, self.name, public, commitment))
        sent = RoundShares(call.session, RoundKey(self.name, public, commitment, signature), boxes)
        return RoundSecret(call=call, shares=sent, seed=seed, mask_key=private, own_share=own)

    def _box_key(self, peer: str) -> bytes:
        """The key that encrypts the shares between this site and a peer, in either direction."""
        about = context("box key", self.record.run, *sorted((self.name, peer)))
        with _from(peer):
            return pair_secret(self.record.share_key, self.record.adverts[peer].share_key, about)

    # --- the masked vector

    def mask(self, delivery: Delivery, vector: Vector) -> MaskedUpload:
        """Masks the vector, in place; asked again it takes the same vector only."""
        secret = self._under_way(delivery.session)
        if secret.delivery not in (None, delivery):
            _refuse(f"{delivery.session}: other shares than before: a new set of sites needs a new attempt")
        digest = sha256(vector.data).digest()
        if secret.sent not in (b"", digest):
            _refuse(f"{delivery.session}: another vector than the one that was masked: it needs a new attempt")
        pair_keys = self._pair_keys(secret, delivery)
        self._remember(replace(secret, delivery=delivery, sent=digest))
        for peer, key in pair_keys.items():
            add_stream(vector, key, subtract=peer < self.name)
        members = [self.name, *pair_keys]
        add_stream(vector, own_key(secret.seed, secret.call.masks(members), self.name))
        return MaskedUpload(delivery.session, self.name, vector.astype("<u4", copy=False).tobytes())

    def _pair_keys(self, secret: RoundSecret, delivery: Delivery) -> dict[str, bytes]:
        """By peer, after a look at everything that the peers sent."""
        call, peers = secret.call, [one.key.name for one in delivery.shares]
        _distinct([self.name, *peers])
        members = [self.name, *peers]
        if len(members) < call.threshold:
            _refuse(f"{call.session}: shares of {len(members)} sites only, the threshold is {call.threshold}")
        keys = {}
        for one in delivery.shares:
            if one.key.name not in call.names:
                _refuse(f"site {one.key.name}: is not among those asked in {call.session}")
            verify(self.roster, one.key.name, one.key.signature, one.key.statement(call))
            self._opened(call, one)
            with _from(one.key.name):
                keys[one.key.name] = pair_key(
                    secret.mask_key, one.key.mask_key, call.masks(members), self.name, one.key.name
                )
        return keys

    def _opened(self, call: RoundCall, one: Delivered) -> bytes:
        with _from(one.key.name):
            return open_box(self._box_key(one.key.name), one.box, call.box(one.key.name, self.name))

    # --- after the uploads

    def agree(self, call: SurvivorCall) -> Agreement:
        """Its word that these delivered, once and for all in this attempt."""
        secret = self._under_way(call.session)
        members, survivors = self._members(secret), sorted(call.survivors)
        _distinct(survivors)
        for name in survivors:
            if name not in members:
                _refuse(f"site {name}: is said to have delivered in {call.session}, but never shared")
        if self.name not in survivors:
            _refuse(f"{call.session}: site {self.name} is said to have dropped out, and is asked to help")
        if len(survivors) < secret.call.threshold:
            _refuse(
                f"{call.session}: {len(survivors)} of {len(members)} sites are said to be left, the threshold is "
                f"{secret.call.threshold}"
            )
        self._check_opened(call.session, survivors)
        if secret.survivors not in ((), tuple(survivors)):
            changed = sorted(set(secret.survivors) ^ set(survivors))
            _refuse(f"site {changed[0]}: delivered and dropped out in {call.session}, by what the server says")
        self._remember(replace(secret, survivors=tuple(survivors)))
        signature = self.identity.sign(secret.call.survivors(members, survivors))
        return Agreement(call.session, self.name, signature)

    def unmask(self, call: UnmaskCall) -> Unmasking:
        """Its shares: of a site that delivered of the seed, of one that dropped out of the key, of none of both."""
        secret = self._under_way(call.session)
        members, survivors = self._members(secret), sorted(call.survivors)
        both = sorted(set(survivors) & set(call.dropped))
        if both:
            _refuse(f"site {both[0]}: the server asks for both of its secrets in {call.session}")
        if tuple(survivors) != secret.survivors or sorted([*survivors, *call.dropped]) != members:
            _refuse(f"{call.session}: the server asks for other secrets than those that site {self.name} agreed to")
        self._check_agreements(secret, call, members)
        shares = {one.key.name: self._opened(secret.call, one) for one in self._delivered(secret)}
        shares[self.name] = secret.own_share
        self._remember_opened(Opened(call.session.round_number, tuple(survivors)))
        return Unmasking(
            call.session,
            self.name,
            {name: shares[name][:SECRET_BYTES] for name in survivors},
            {name: shares[name][SECRET_BYTES:] for name in call.dropped},
        )

    def _remember_opened(self, new: Opened) -> None:
        others = (one for one in self.record.opened if one.round_number != new.round_number)
        kept = sorted((*others, new), key=lambda one: one.round_number)[-REMEMBERED:]
        self.record = replace(self.record, opened=tuple(kept))

    def _check_agreements(self, secret: RoundSecret, call: UnmaskCall, members: list[str]) -> None:
        statement = secret.call.survivors(members, list(secret.survivors))
        for name, signature in call.agreements.items():
            if name not in secret.survivors:
                _refuse(f"site {name}: agrees to survivors it is not one of")
            verify(self.roster, name, signature, statement)
        if len(call.agreements) < secret.call.threshold:
            _refuse(
                f"{call.session}: {len(call.agreements)} sites agree about who is left, "
                f"the threshold is {secret.call.threshold}"
            )

    def _members(self, secret: RoundSecret) -> list[str]:
        return sorted([self.name, *(one.key.name for one in self._delivered(secret))])

    def _delivered(self, secret: RoundSecret) -> Sequence[Delivered]:
        if secret.delivery is None:
            _refuse(f"{secret.call.session}: site {self.name} has sent nothing yet")
        return secret.delivery.shares

    def _under_way(self, session: Session) -> RoundSecret:
        secret = self.record.secret
        if secret is None or secret.call.session != session:
            now = "none is" if secret is None else f"{secret.call.session} is"
            _refuse(f"{session}: is not the one under way at site {self.name} ({now})")
        return secret

    def _remember(self, secret: RoundSecret) -> None:
        self.record = replace(self.record, secret=secret)


def commitment_to(seed: bytes) -> bytes:
    """Lets the server see that a seed was put together correctly, and says nothing of it before."""
    return derive(seed, context("commitment"))


def _refuse(text: str) -> NoReturn:
    raise ClientError("refused", f"secure aggregation: {text}")


def _distinct(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _refuse(f"site {name}: is named twice")
        seen.add(name)


@contextmanager
def _from(site: str) -> Iterator[None]:
    """What goes wrong with something that a site sent says whose it was."""
    try:
        yield
    except FedsslError as error:
        raise ClientError("refused", f"secure aggregation: site {site}: {error}") from None
