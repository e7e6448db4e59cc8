"""What a file's key metadata says of a key: its kind, its size, and the names in it.

Never the bytes: key metadata of an unknown kind may hold the key itself.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from modcrypt.errors import KeyMaterialError
from modcrypt.pkmt1.material import DEFAULT_INSTANCE, KeyMaterial, decode_metadata

__all__ = ["KeyInfo", "key_info", "key_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """What a file says of one key: never the key, wrapped or not.

    Attributes:
        kind: "PKMT1" for the key tools' material, "opaque" for key metadata of another kind,
            or "none", or "hidden" where no row group tells.
        size: bytes of the key metadata.
        master_key_id: under which the key is wrapped; None where the file does not tell.
        kek_id: in hex; None in single wrapping.
        storage: "internal", or "external" for material in a file beside this one.
        double_wrapping: whether a KEK stands between; None where the file does not tell.
        reference: name of the key in the external material.
        kms_instance: what the file says of the key service, which is never contacted for it.
    """

    kind: Literal["PKMT1", "opaque", "none", "hidden"]
    size: int = 0
    master_key_id: str | None = None
    kek_id: str | None = None
    storage: Literal["internal", "external"] | None = None
    double_wrapping: bool | None = None
    reference: str | None = None
    kms_instance: str | None = None

    def fields(self) -> dict[str, Any]:
        """Give it as what JSON takes."""
        return asdict(self)

    def __str__(self) -> str:
        """Say it in words."""
        if self.kind != "PKMT1":
            return f"opaque, {self.size} bytes" if self.kind == "opaque" else self.kind
        if self.storage == "external":
            return f"PKMT1, external as {self.reference}"
        wrapping = f"KEK {self.kek_id}" if self.double_wrapping else "single wrapping"
        return f"PKMT1, master key {self.master_key_id}, {wrapping}"


def key_info(metadata: bytes | None) -> KeyInfo:
    """Say what key metadata tells."""
    if not metadata:
        return KeyInfo(kind="none")
    try:
        material = decode_metadata(metadata)
    except KeyMaterialError:
        return KeyInfo(kind="opaque", size=len(metadata))
    if not isinstance(material, KeyMaterial):
        return KeyInfo(
            kind="PKMT1", size=len(metadata), storage="external", reference=material.name
        )
    return KeyInfo(
        kind="PKMT1",
        size=len(metadata),
        master_key_id=material.master_key_id,
        kek_id=None if material.kek_id is None else material.kek_id.hex(),
        storage="internal",
        double_wrapping=material.double_wrapping,
        kms_instance=_instance(material),
    )


def _instance(material: KeyMaterial) -> str | None:
    """Repeat what the file says of a key service, but no password or query of its address."""
    name, url = material.instance
    told = [] if name in (None, DEFAULT_INSTANCE) else [f"instance {name[:200]!r}"]
    if url not in (None, DEFAULT_INSTANCE):
        told.append(f"address {_address(url)!r}")
    return f"{', '.join(told)}: named by the file, never used" if told else None


def _address(url: str) -> str:
    scheme, found, rest = url.partition("://")
    shown = (rest if found else scheme).rpartition("@")[2]
    for mark in "?#":
        shown = shown.partition(mark)[0]
    return (f"{scheme}://{shown}" if found else shown)[:200]


def key_name(metadata: bytes | None, default: str) -> str:
    """Call a key by its master key's id where its key metadata tells it, else by `default`."""
    return key_info(metadata).master_key_id or default
