"""The server's side of one masked sum: carries what sites say to each other, adds up, and takes the masks away.

Holds one sum, however many sites there are; trusts nobody's message, and learns nothing when fewer than t are left.
"""

from collections.abc import Container

import numpy as np

from fedssl.core.errors import FedsslError, RoundError
from fedssl.federation.secure.fixed_point import Vector
from fedssl.federation.secure.keys import Roster, public_key, verify
from fedssl.federation.secure.masks import add_stream, own_key, pair_key
from fedssl.federation.secure.member import commitment_to
from fedssl.federation.secure.shares import join
from fedssl.federation.secure.stages import (
    Agreement,
    Delivered,
    Delivery,
    MaskedUpload,
    RoundCall,
    RoundShares,
    Session,
    SurvivorCall,
    UnmaskCall,
    Unmasking,
)


class Coordinator:
    """Takes the messages of a stage in any order; asking for the next stage's messages closes it."""

    def __init__(self, roster: Roster, call: RoundCall, length: int) -> None:
        self.roster, self.call, self._sum = roster, call, np.zeros(length, np.uint32)
        self._shares: dict[str, RoundShares] = {}
        self._members: list[str] = []  # who shared: set when the shares are delivered
        self._uploaded: set[str] = set()
        self._survivors: list[str] = []  # who delivered: set when they are told
        self._agreements: dict[str, bytes] = {}
        self._unmaskings: dict[str, Unmasking] = {}

    @property
    def dropped(self) -> list[str]:
        """Who shared and did not deliver."""
        return [name for name in self._members if name not in self._survivors]

    # --- shares

    def take_shares(self, message: RoundShares) -> None:
        name, key = message.key.name, message.key
        self._check(message.session, name, self.call.names, self._shares, closed=bool(self._members))
        verify(self.roster, name, key.signature, key.statement(self.call))
        if set(message.boxes) != set(self.call.names) - {name}:
            raise FedsslError(f"site {name}: shares for others than those asked in {self.call.session}")
        self._shares[name] = message

    def deliveries(self) -> dict[str, Delivery]:
        """By receiver; who did not share until now is no member of this sum."""
        self._need(len(self._shares), "shared")
        self._members = sorted(self._shares)
        return {name: self._delivery(name) for name in self._members}

    def _delivery(self, receiver: str) -> Delivery:
        others = [self._shares[name] for name in self._members if name != receiver]
        return Delivery(self.call.session, tuple(Delivered(one.key, one.boxes[receiver]) for one in others))

    # --- uploads

    def take_upload(self, upload: MaskedUpload) -> None:
        """Adds a masked vector to the sum, which does not depend on the order."""
        self._check(upload.session, upload.name, self._members, self._uploaded, closed=bool(self._survivors))
        if len(upload.vector) != 4 * self._sum.size:
            raise FedsslError(f"site {upload.name}: {len(upload.vector)} bytes, expected {4 * self._sum.size}")
        self._sum += np.frombuffer(upload.vector, "<u4")
        self._uploaded.add(upload.name)

    def survivor_call(self) -> SurvivorCall:
        """For those who delivered; who did not until now has dropped out."""
        self._need(len(self._uploaded), "delivered")
        self._survivors = sorted(self._uploaded)
        return SurvivorCall(self.call.session, tuple(self._survivors))

    def take_agreement(self, message: Agreement) -> None:
        self._check(message.session, message.name, self._survivors, self._agreements)
        statement = self.call.survivors(self._members, self._survivors)
        verify(self.roster, message.name, message.signature, statement)
        self._agreements[message.name] = message.signature

    def unmask_call(self) -> UnmaskCall:
        self._need(len(self._agreements), "agreed about who is left")
        return UnmaskCall(self.call.session, tuple(self._survivors), tuple(self.dropped), self._agreements)

    def take_unmasking(self, message: Unmasking) -> None:
        self._check(message.session, message.name, self._survivors, self._unmaskings)
        if set(message.seeds) != set(self._survivors) or set(message.keys) != set(self.dropped):
            raise FedsslError(f"site {message.name}: other shares than those asked in {self.call.session}")
        self._unmaskings[message.name] = message

    # --- the sum

    def total(self) -> Vector:
        """The sum of the survivors' vectors, without any mask."""
        self._need(len(self._unmaskings), "gave their shares")
        session = self.call.masks(self._members)
        seeds = {name: self._seed(name) for name in self._survivors}
        private = {name: self._mask_key(name) for name in self.dropped}
        total = self._sum.copy()
        for name, seed in seeds.items():
            add_stream(total, own_key(seed, session, name), subtract=True)
        for dropped, key in private.items():
            for name in self._survivors:
                stream = pair_key(key, self._shares[name].key.mask_key, session, dropped, name)
                add_stream(total, stream, subtract=name < dropped)  # the first by name added it
        return total

    def _seed(self, name: str) -> bytes:
        seed = self._joined({giver: one.seeds[name] for giver, one in self._unmaskings.items()})
        if commitment_to(seed) != self._shares[name].key.commitment:
            raise self._unfit(name, "seed")
        return seed

    def _mask_key(self, name: str) -> bytes:
        key = self._joined({giver: one.keys[name] for giver, one in self._unmaskings.items()})
        if public_key(key) != self._shares[name].key.mask_key:
            raise self._unfit(name, "key")
        return key

    def _joined(self, shares: dict[str, bytes]) -> bytes:
        places = self.call.places()
        return join({places[giver]: share for giver, share in shares.items()}, self.call.threshold)

    def _unfit(self, name: str, what: str) -> RoundError:
        return RoundError(
            f"{self.call.session}: the shares of the {what} of site {name} do not fit together: that site or one that "
            f"gave a share back ({', '.join(sorted(self._unmaskings))}) sent rubbish; nothing was learnt"
        )

    # --- checks

    def _check(
        self, session: Session, name: str, expected: Container[str], taken: Container[str], closed: bool = False
    ) -> None:
        if session != self.call.session:
            raise FedsslError(f"site {name}: a message of {session} came in {self.call.session}")
        if name not in expected:
            raise FedsslError(f"site {name}: a message of a stage of {self.call.session} in which it has no part")
        if closed or name in taken:
            raise FedsslError(f"site {name}: a message of {self.call.session} that came late or twice")

    def _need(self, there: int, what: str) -> None:
        if there < self.call.threshold:
            sites, needed = len(self.call.names), self.call.threshold
            raise RoundError(
                f"{self.call.session}: {there} of {sites} sites {what}, {needed} are needed: "
                "nothing was learnt, the global weights stay as they were"
            )
