"""Descriptions of keys from a file's key metadata: its kind, its size and the names in it.

They never contain the key metadata's bytes: metadata of an unknown kind may hold the key itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from modcrypt.errors import KeyMaterialError
from modcrypt.pkmt1.material import DEFAULT_INSTANCE, KeyMaterial, decode_metadata
from modcrypt.pkmt1.recipient_metadata import decode_recipients
from modcrypt.report.json_fields import JsonFields
from modcrypt.report.text import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo(JsonFields):
    """The facts that a file states about one key; never the key itself, wrapped or not.

    Attributes:
        kind: "PKMT1" for the key tools' material, "recipients" for a key that is encrypted to
            recipients alone, "opaque" for key metadata of another kind, "none" for no key metadata,
            or "hidden" if no row group shows it.
        size: Size of the key metadata in bytes.
        master_key_id: Id of the master key that wraps the key; None if the file does not state it.
        kek_id: Id of the KEK in hex; None in single wrapping.
        storage: "internal", or "external" for material in a file beside this one.
        double_wrapping: Whether a KEK wraps the key; None if the file does not state it.
        reference: Name of the key in the external material.
        kms_instance: Key service that the file names; modcrypt never contacts it because of this.
        recipients: Ids of the recipients that the footer key's metadata lists, in hex.
    """

    kind: Literal["PKMT1", "recipients", "opaque", "none", "hidden"]
    size: int = 0
    master_key_id: str | None = None
    kek_id: str | None = None
    storage: Literal["internal", "external"] | None = None
    double_wrapping: bool | None = None
    reference: str | None = None
    kms_instance: str | None = None
    recipients: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return a short description for people."""
        recipients = format_count(len(self.recipients), "recipient")
        if self.kind == "PKMT1" and self.recipients:
            return f"{replace(self, recipients=())}, {recipients}"
        if self.kind != "PKMT1":
            text = {
                "none": "no key metadata",
                "opaque": f"opaque, {format_count(self.size, 'byte')}",
                "recipients": recipients,
            }
            return text.get(self.kind, self.kind)
        if self.storage == "external":
            return f"PKMT1, external as {self.reference}"
        wrapping = f"KEK {self.kek_id}" if self.double_wrapping else "single wrapping"
        return f"PKMT1, master key {self.master_key_id}, {wrapping}"


def key_info(metadata: bytes | None) -> KeyInfo:
    """Return the description of a key with this key metadata."""
    if not metadata:
        return KeyInfo(kind="none")
    try:
        shared = decode_recipients(metadata)
    except KeyMaterialError:
        shared = None
    recipients = () if shared is None else tuple(w.id.hex() for w in shared.recipients or ())
    try:
        material = decode_metadata(metadata)
    except KeyMaterialError:
        kind: Literal["opaque", "recipients"] = "opaque" if shared is None else "recipients"
        return KeyInfo(kind=kind, size=len(metadata), recipients=recipients)
    if not isinstance(material, KeyMaterial):
        return KeyInfo(
            kind="PKMT1", size=len(metadata), storage="external", reference=material.name
        )
    return KeyInfo(
        kind="PKMT1", size=len(metadata), master_key_id=material.master_key_id,
        kek_id=None if material.kek_id is None else material.kek_id.hex(), storage="internal",
        double_wrapping=material.double_wrapping, kms_instance=_describe_instance(material),
        recipients=recipients,
    )  # fmt: skip


def _describe_instance(material: KeyMaterial) -> str | None:
    """Describe the key service that the file names, without its address's password or query."""
    name, url = material.instance
    parts = [] if name in (None, DEFAULT_INSTANCE) else [f"instance {name[:200]!r}"]
    if url not in (None, DEFAULT_INSTANCE):
        scheme, separator, rest = url.partition("://")
        address = (rest if separator else scheme).rpartition("@")[2]
        address = re.split(r"[?#]", address, maxsplit=1)[0]
        text = f"{scheme}://{address}" if separator else address
        parts.append(f"address {text[:200]!r}")
    return f"{', '.join(parts)}: named by the file, never used" if parts else None


def key_name(metadata: bytes | None, default: str) -> str:
    """Return the master key's id if the key metadata states it, else `default`."""
    return key_info(metadata).master_key_id or default
