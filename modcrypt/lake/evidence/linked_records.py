"""The other records beside a declaration, which prove what events state: their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from modcrypt.lake.evidence.events import EvidenceEvent, LinkedRecord

SUFFIXES = (".erased.jsonl", ".leaks.jsonl")  # ends of the names of these records
_CHUNK = 1 << 20


def link_records(declaration: str, before: EvidenceEvent | None) -> tuple[LinkedRecord, ...]:
    """Return the records beside a declaration as they are now, those that exist.

    Args:
        before: The event before; None if there is none, so that no line counts as added.

    Raises:
        OSError: A record cannot be read.
    """
    paths = [Path(declaration).with_suffix(suffix) for suffix in SUFFIXES]
    return tuple(_link_record(path, before) for path in paths if path.is_file())


def _link_record(path: Path, before: EvidenceEvent | None) -> LinkedRecord:
    digest, lines, size = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            lines, size = lines + chunk.count(b"\n"), size + len(chunk)
    known = () if before is None else before.records
    seen = next((each.lines for each in known if each.name == path.name), 0)
    return LinkedRecord(
        name=path.name, first=(lines if before is None else seen) + 1, lines=lines, bytes=size,
        sha256=digest.hexdigest(),
    )  # fmt: skip


def list_altered(folder: Path, claims: Iterable[LinkedRecord]) -> Iterator[LinkedRecord]:
    """Yield the claims about records that no longer begin with the bytes that they name.

    Each record is read once, whatever their number; claims about fewer bytes come first. Raise
    OSError if a record cannot be read.
    """
    ordered = sorted(claims, key=lambda claim: (claim.name, claim.bytes))
    for name in dict.fromkeys(claim.name for claim in ordered):
        known = [claim for claim in ordered if claim.name == name]
        path = folder / name
        if not name.endswith(SUFFIXES) or Path(name).name != name or not path.is_file():
            yield from known
            continue
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            for claim in known:
                while size < claim.bytes and (chunk := file.read(min(_CHUNK, claim.bytes - size))):
                    digest.update(chunk)
                    size += len(chunk)
                if size != claim.bytes or digest.hexdigest() != claim.sha256:
                    yield claim
