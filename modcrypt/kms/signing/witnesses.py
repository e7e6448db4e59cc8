"""Witnesses of seals: readers or second stores that countersign the newest number.

    {"format":"modcrypt-seal-witness","version":2,"dataset":ID,"sequence":7,...,"seal":HEX}

A statement as in `sealed_statements`, with number and hash of the seal. Its witness remembers what
it has countersigned, and signs only what follows; so a writer who works together with a store
cannot roll a dataset back, or show two histories, to readers who require the witness.
"""

from __future__ import annotations

from collections.abc import Iterable

from modcrypt.errors import IntegrityError
from modcrypt.io.destinations import open_sink_at
from modcrypt.io.places import Place
from modcrypt.io.sources import open_source_at
from modcrypt.kms.signing.ledger import Ledger
from modcrypt.kms.signing.seal_memory import remember
from modcrypt.kms.signing.seal_writing import check_remembered, name_folder
from modcrypt.kms.signing.sealed_statements import (
    Draft,
    SealFormat,
    Statement,
    encode_statement,
    is_hash,
    read_statement,
)
from modcrypt.kms.signing.signing_keys import SigningKey, VerifyingKey
from modcrypt.kms.signing.trusted_writers import Trust, make_trust

WITNESS = SealFormat("modcrypt-seal-witness", (), ("seal",))


def countersign(
    ledger: Ledger, statement: Statement, trust: Trust, key: SigningKey, store: Place
) -> None:
    """Countersign the newest statement, which is verified, in the witness's folder `store`.

    The witness remembers it before it signs: a signature that nobody remembers could be followed by
    that of another statement with the same number. Raise IntegrityError if the statement does not
    follow the last one that the witness countersigned, or is of version 1.
    """
    if statement.dataset is None:
        raise IntegrityError(
            f"{ledger.place.address}: seals of version 1 cannot be countersigned; its writer makes "
            "one of version 2 with the next change"
        )
    place = _place_of(store, statement.dataset, key.verifier)
    place.make_folder()
    with place.lock():
        check_remembered(ledger, statement, trust, key)
        remember(key, statement, name_folder(ledger))
        draft = Draft(statement.dataset, {"seal": statement.hash})
        data = encode_statement([key], WITNESS, draft, (statement.sequence - 1, None))
        with open_sink_at(place) as sink:
            sink.append(data)


def check_witnesses(
    ledger: Ledger, statement: Statement, witnesses: Iterable[VerifyingKey], store: Place
) -> None:
    """Raise IntegrityError unless each witness has countersigned a statement."""
    for key in witnesses:
        if statement.dataset is None:
            raise IntegrityError("seals of version 1 have no witnesses")
        place = _place_of(store, statement.dataset, key)
        try:
            with open_source_at(place) as source:
                seen = read_statement(source, make_trust([key]), WITNESS)
        except (FileNotFoundError, NotADirectoryError):
            raise IntegrityError(
                f"{place.address} does not exist: the witness {key.hex_id} has not countersigned"
            ) from None
        except IntegrityError as error:
            raise IntegrityError(f"{place.address}: {error}") from None
        _check_same(seen, statement, key)


def _check_same(seen: Statement, statement: Statement, key: VerifyingKey) -> None:
    seen.check(0, "dataset", statement.dataset)
    if seen.sequence > statement.sequence:
        raise IntegrityError(
            f"the seal has number {statement.sequence}, but the witness {key.hex_id} countersigned "
            f"{seen.sequence}: the dataset was rolled back"
        )
    if seen.sequence < statement.sequence:
        raise IntegrityError(
            f"the witness {key.hex_id} has countersigned seal number {seen.sequence}, not yet "
            f"{statement.sequence}"
        )
    if not is_hash(seen.members["seal"]) or seen.members["seal"] != statement.hash:
        raise IntegrityError(
            f"the witness {key.hex_id} countersigned another seal with number {seen.sequence}"
        )


def _place_of(store: Place, dataset: str, key: VerifyingKey) -> Place:
    return store.below(f"witness-{dataset}-{key.hex_id}.json")
