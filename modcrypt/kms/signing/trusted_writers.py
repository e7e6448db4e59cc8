"""Who may sign the statements of a ledger: the keys that a reader trusts, and signed changes.

A change is signed by as many keys as were needed before it, and names the keys that may sign from
then on, so that writers can replace and revoke keys. In JSON it is an array:

    [DATASET, SEQUENCE, [VERIFIER-LINE,...], NEEDED, {ID:SIGNATURE,...}]

Each signature is over `"modcrypt-writers" | 0x00 | 0x01` and the SHA-256 of the first four elements
as a compact array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from modcrypt.errors import IntegrityError, KeyMaterialError
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey, check_verifying_keys
from modcrypt.parquet.signatures.signers import MAX_VERIFYING_KEYS
from modcrypt.pkmt1.strict_json import decode_base64, encode_base64

MAX_CHANGES = 64
"""Largest number of changes of the writers of a dataset."""

_CONTEXT = b"modcrypt-writers\x00\x01"


@dataclass(frozen=True, slots=True)
class WriterChange:
    """A signed change of the keys that may sign."""

    dataset: str  # id of the dataset
    sequence: int  # number of the first statement that the new keys sign
    keys: tuple[VerifyingKey, ...]  # keys that may sign from then on
    needed: int  # number of them that must sign
    # Signatures of keys that could sign before, by their ids
    signatures: Mapping[str, bytes] = field(default_factory=dict)

    def sign(self, keys: Iterable[SigningKey]) -> WriterChange:
        """Return the change with the signatures of these keys."""
        message = self._message()
        return replace(self, signatures={key.verifier.hex_id: key.sign(message) for key in keys})

    def is_signed_by(self, trust: Trust) -> bool:
        """Return whether enough of the keys that could sign before have signed the change."""
        return len(find_signers(trust.keys, self.signatures, self._message())) >= trust.needed

    def encode(self) -> list[Any]:
        """Return the change as JSON values."""
        signatures = {id_: encode_base64(made) for id_, made in self.signatures.items()}
        return [*self._signed(), signatures]

    def _signed(self) -> list[Any]:
        return [self.dataset, self.sequence, [str(key) for key in self.keys], self.needed]

    def _message(self) -> bytes:
        text = json.dumps(self._signed(), separators=(",", ":"))
        return _CONTEXT + hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True, slots=True)
class Trust:
    """The keys whose signatures are accepted."""

    keys: Mapping[str, VerifyingKey]  # keys by their ids
    needed: int = 1  # number of them that must have signed
    # Keys that could sign formerly, each with the number from which on it no longer may
    retired: tuple[tuple[VerifyingKey, int], ...] = ()
    proposal: bool = False  # whether one signature is enough, because others are to follow

    def follow(self, changes: Iterable[WriterChange]) -> Trust:
        """Return who is trusted after changes.

        Changes that too few trusted keys signed are without effect: anyone who trusts the new keys
        already need not know the old ones.
        """
        trust = self
        for change in changes:
            if change.is_signed_by(trust):
                trust = trust.replace_keys(change)
        return trust

    def replace_keys(self, change: WriterChange) -> Trust:
        """Return the trust in the keys that a change names."""
        keys = {key.hex_id: key for key in change.keys}
        gone = [*self.retired, *((key, change.sequence) for key in self.keys.values())]
        retired = tuple(pair for pair in gone if pair[0].hex_id not in keys)
        return replace(self, keys=keys, needed=change.needed, retired=retired)

    def check_signed(
        self, signatures: Mapping[str, bytes], message: bytes
    ) -> tuple[VerifyingKey, ...]:
        """Return the trusted keys that signed a message; raise IntegrityError if too few did."""
        found = find_signers(self.keys, signatures, message)
        if len(found) >= (1 if self.proposal else self.needed):
            return found
        for key, sequence in self.retired:
            if find_signers({key.hex_id: key}, signatures, message):
                raise IntegrityError(
                    f"the seal is signed by {key.hex_id}, which has not been allowed to sign since "
                    f"seal number {sequence}"
                )
        if found:
            raise IntegrityError(
                f"the seal is signed by {len(found)} of {', '.join(self.keys)}, and needs "
                f"{self.needed} signatures"
            )
        raise IntegrityError(
            f"the seal is not signed by {', '.join(self.keys)}: it was altered, or others signed it"
        )


def check_change(
    before: tuple[WriterChange, ...], after: tuple[WriterChange, ...], sequence: int, trust: Trust
) -> None:
    """Check the changes of a statement against those of the statement before.

    Raise IntegrityError unless they are the same and at most one more, which those have signed who
    could sign before.
    """
    if after[: len(before)] != before or len(after) > len(before) + 1:
        raise IntegrityError(f"seal number {sequence} leaves out or alters changes of the writers")
    if len(after) > len(before):
        new = after[-1]
        if new.sequence != sequence or not new.is_signed_by(trust.follow(before)):
            raise IntegrityError(
                f"seal number {sequence} changes the writers without their signatures"
            )


def make_trust(keys: Iterable[VerifyingKey], needed: int = 1) -> Trust:
    """Return the trust in keys that a caller names; raise ValueError for too few or too many."""
    known = check_verifying_keys(keys)
    if not 1 <= needed <= len(known):
        raise ValueError(f"{needed} signatures are needed, but {len(known)} keys are trusted")
    return Trust(known, needed)


def find_signers(
    keys: Mapping[str, VerifyingKey], signatures: Mapping[str, bytes], message: bytes
) -> tuple[VerifyingKey, ...]:
    """Return the keys whose valid signatures of a message are among these."""
    named = [(keys[id_], made) for id_, made in signatures.items() if id_ in keys]
    return tuple(key for key, made in named if key.verify(made, message))


def parse_changes(values: Any) -> tuple[WriterChange, ...]:
    """Parse changes; raise KeyMaterialError if they are malformed."""
    if not isinstance(values, list) or len(values) > MAX_CHANGES:
        raise KeyMaterialError(f"the writers are not a list of at most {MAX_CHANGES} changes")
    return tuple(_parse_change(value) for value in values)


def _parse_change(value: Any) -> WriterChange:
    if not isinstance(value, list) or len(value) != 5:
        raise KeyMaterialError("a change of the writers is not a list of five elements")
    dataset, sequence, lines, needed, signatures = value
    if not isinstance(dataset, str) or type(sequence) is not int or type(needed) is not int:
        raise KeyMaterialError("a change of the writers has elements of other types")
    if not isinstance(lines, list) or not 1 <= needed <= len(lines) <= MAX_VERIFYING_KEYS:
        raise KeyMaterialError("a change of the writers has too few or too many keys")
    keys = tuple(VerifyingKey.parse(str(line)) for line in lines)
    if len({key.hex_id for key in keys}) < len(keys):
        raise KeyMaterialError("a change of the writers names a key twice")
    return WriterChange(dataset, sequence, keys, needed, parse_signatures(signatures))


def parse_signatures(value: Any) -> dict[str, bytes]:
    """Return signatures by the ids of their keys; raise KeyMaterialError for other values."""
    if not isinstance(value, dict) or not 0 < len(value) <= MAX_VERIFYING_KEYS:
        raise KeyMaterialError(f"the signatures are not an object of 1 to {MAX_VERIFYING_KEYS}")
    return {id_: decode_base64(made, "a signature") for id_, made in value.items()}


def check_signing_keys(keys: SigningKey | Sequence[SigningKey]) -> tuple[SigningKey, ...]:
    """Return the keys that a caller signs with; raise ValueError for none, or one twice."""
    given = (keys,) if isinstance(keys, SigningKey) else tuple(keys)
    if not given or len({key.verifier.hex_id for key in given}) < len(given):
        raise ValueError("name one or more signing keys, each once")
    return given
