"""What sites and server say to each other at each stage; whatever arrives is checked before it is looked at.

Once a run:  KeyCall down, KeyAdvert up; Peers down.
Each round:  RoundCall down, RoundShares up; Delivery down, MaskedUpload up; SurvivorCall down, Agreement up;
             UnmaskCall down, Unmasking up.

A site reveals shares only after t sites signed that they were told of the same survivors (Agreement). Without that a
server could tell each site of other dropouts, none of them too many, and put together the sum of fewer than t.
"""

from dataclasses import field
from hashlib import sha256
from typing import Annotated, Any, TypeVar

from annotated_types import Interval, Len
from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedssl.core.errors import FedsslError
from fedssl.core.settings import ClientName
from fedssl.federation.secure.keys import SECRET_BYTES, context
from fedssl.federation.secure.shares import BOX_BYTES

MOST_SITES = 1000
MOST_BYTES = 2**36  # of a vector

Name = Annotated[ClientName, Strict()]
Names = Annotated[tuple[Name, ...], Len(1, MOST_SITES)]
Number = Annotated[int, Strict(), Interval(ge=1, le=2**53)]  # JSON keeps these
Key = Annotated[bytes, Strict(), Len(SECRET_BYTES, SECRET_BYTES)]
Pair = Annotated[bytes, Strict(), Len(2 * SECRET_BYTES, 2 * SECRET_BYTES)]
Box = Annotated[bytes, Strict(), Len(BOX_BYTES, BOX_BYTES)]
Signature = Annotated[bytes, Strict(), Len(8, 104)]  # of P-384, as DER
RunId = Annotated[str, Strict(), Len(1, 200)]
Shares = Annotated[dict[Name, Key], Len(0, MOST_SITES)]
Digest = Annotated[str, Strict(), Len(64, 64)]
CHECKED = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


@dataclass(frozen=True, config=CHECKED)
class KeyCall:
    """Down, once a run: asks for a site's key."""

    run: RunId


@dataclass(frozen=True, config=CHECKED)
class KeyAdvert:
    """Up and down, once a run: the X25519 key with which shares are sealed for a site, signed by its node key."""

    run: RunId
    name: Name
    share_key: Key
    signature: Signature

    def statement(self) -> bytes:
        return advert_statement(self.run, self.name, self.share_key)


def advert_statement(run: str, name: str, share_key: bytes) -> bytes:
    return context("share key", run, name, share_key.hex())


@dataclass(frozen=True, config=CHECKED)
class Peers:
    """Down: the keys of all sites that may be in a sum with this one."""

    adverts: Annotated[tuple[KeyAdvert, ...], Len(1, MOST_SITES)]


@dataclass(frozen=True, config=CHECKED)
class Session:
    """One masked sum; attempts are counted over the whole run, so a round that is begun anew gets a higher number."""

    run: RunId
    round_number: Number
    attempt: Number

    def __str__(self) -> str:
        return f"round {self.round_number}, attempt {self.attempt}"


@dataclass(frozen=True, config=CHECKED)
class RoundCall:
    """Down: who is asked for this round, how many of them can open what is shared, and what all of them trained.

    `common` is a digest of the weights that they started from and of how they trained. A server could otherwise give
    all but one of them weights or settings that do not move, and read that one's update in the sum.
    """

    session: Session
    names: Names
    threshold: Number
    common: Digest

    def places(self) -> dict[str, int]:
        """Which of the shares belongs to whom."""
        return {name: place for place, name in enumerate(sorted(self.names))}

    def about(self, purpose: str, *facts: str | list[str]) -> bytes:
        """What a signature or a key is bound to: this very round and these very sites."""
        session = self.session
        about = (session.run, session.round_number, session.attempt, self.threshold, self.common)
        return context(purpose, *about, sorted(self.names), *facts)

    def box(self, sender: str, receiver: str) -> bytes:
        """What a sealed share is bound to."""
        return self.about("box", sender, receiver)

    def masks(self, members: list[str]) -> bytes:
        """What the round's masks are bound to: `members` are those who shared."""
        return sha256(self.about("masks", sorted(members))).digest()

    def survivors(self, members: list[str], survivors: list[str]) -> bytes:
        """What a site signs: of these members these delivered."""
        return self.about("survivors", sorted(members), sorted(survivors))


@dataclass(frozen=True, config=CHECKED)
class RoundKey:
    """A site's public key of a round and a commitment to the seed of its own mask, signed."""

    name: Name
    mask_key: Key
    commitment: Key
    signature: Signature

    def statement(self, call: RoundCall) -> bytes:
        return round_statement(call, self.name, self.mask_key, self.commitment)


def round_statement(call: RoundCall, name: str, mask_key: bytes, commitment: bytes) -> bytes:
    return call.about("mask key", name, mask_key.hex(), commitment.hex())


@dataclass(frozen=True, config=CHECKED)
class RoundShares:
    """Up: a site's key of the round, and for every other site a sealed share of its two secrets."""

    session: Session
    key: RoundKey
    boxes: Annotated[dict[Name, Box], Len(1, MOST_SITES)]


@dataclass(frozen=True, config=CHECKED)
class Delivered:
    """What one site shared, as another gets it."""

    key: RoundKey
    box: Box


@dataclass(frozen=True, config=CHECKED)
class Delivery:
    """Down: the shares of all others that shared; with the receiver they are the members of this sum."""

    session: Session
    shares: Annotated[tuple[Delivered, ...], Len(1, MOST_SITES)]


@dataclass(frozen=True, config=CHECKED)
class MaskedUpload:
    """Up: the masked vector, 32-bit numbers with the low byte first."""

    session: Session
    name: Name
    vector: Annotated[bytes, Strict(), Len(4, MOST_BYTES)] = field(repr=False)


@dataclass(frozen=True, config=CHECKED)
class SurvivorCall:
    """Down: whose uploads arrived."""

    session: Session
    survivors: Names


@dataclass(frozen=True, config=CHECKED)
class Agreement:
    """Up: a site's word that it was told of these survivors and will answer for no others."""

    session: Session
    name: Name
    signature: Signature


@dataclass(frozen=True, config=CHECKED)
class UnmaskCall:
    """Down: the seeds of these, the keys of those; and the word of t sites that all were told the same."""

    session: Session
    survivors: Names
    dropped: Annotated[tuple[Name, ...], Len(0, MOST_SITES)]
    agreements: Annotated[dict[Name, Signature], Len(1, MOST_SITES)]


@dataclass(frozen=True, config=CHECKED)
class Unmasking:
    """Up: a site's shares of the survivors' seeds and of the dropped sites' keys."""

    session: Session
    name: Name
    seeds: Shares = field(repr=False)
    keys: Shares = field(repr=False)


Message = TypeVar("Message")


_forms: dict[type[Any], TypeAdapter[Any]] = {}


def _form(kind: type[Message]) -> TypeAdapter[Message]:
    """Made once a kind: that takes longer than a message."""
    if kind not in _forms:
        _forms[kind] = TypeAdapter(kind)
    return _forms[kind]


def to_bytes(message: object) -> bytes:
    """A message or record as JSON."""
    return _form(type(message)).dump_json(message)


def from_bytes(kind: type[Message], content: bytes) -> Message:
    try:
        return _form(kind).validate_json(content)
    except ValidationError as error:
        raise _unreadable(kind, error) from None


def to_stage(message: object) -> bytes:
    """A message of a stage with its kind, as a task or its answer carries it."""
    return type(message).__name__.encode() + b" " + to_bytes(message)


def from_stage(content: bytes, *kinds: type[Any]) -> Any:
    """The message, if it is one of these kinds."""
    name, _, rest = content.partition(b" ")
    kind = {one.__name__.encode(): one for one in kinds}.get(name)
    if kind is None:
        raise FedsslError(f"secure aggregation: no message of this stage: expected {kinds[0].__name__}")
    return from_bytes(kind, rest)


def _unreadable(kind: type[Any], error: ValidationError) -> FedsslError:
    """Names the field; what arrived instead is not repeated, it may be a secret or very long."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = next((f" {part}" for part in first["loc"] if part in kind.__dataclass_fields__), "")
    return FedsslError(f"secure aggregation: no readable {kind.__name__}{where}: {first['msg']}")


def usual_threshold(sites: int) -> int:
    """More than two thirds: then a server that lies, with fewer than a third of the sites, gets nothing out of it."""
    return 2 * sites // 3 + 1


def check_threshold(sites: int, threshold: int | None = None) -> int:
    """The threshold of a round of so many, the usual one unless it is given; refuses one in which nobody can hide."""
    if sites < 2:
        raise FedsslError(f"aggregation.secure: {sites} client per round: its sum is that client's own: take 2 or more")
    needed = usual_threshold(sites) if threshold is None else threshold
    if not sites // 2 < needed <= sites:
        raise FedsslError(
            f"aggregation.secure_threshold: {needed} of {sites} clients per round: give {sites // 2 + 1} to {sites}"
        )
    return needed
