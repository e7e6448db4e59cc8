"""Find the bugs of writers of encrypted files, which show without decoding a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from modcrypt.io.sources import Source
from modcrypt.module_ids import GCM_CTR_V1, GCM_V1
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.verify.footer_view import view_chunks, view_footer
from modcrypt.parquet.verify.region_walk import RegionWalk
from modcrypt.parquet.writers.quirk import FoundQuirk, Place, load_quirks


def find_encrypted_quirks(
    source: Source, decryption: FileDecryptionProperties | None
) -> tuple[FoundQuirk, ...]:
    """Return the bugs that encryption by other writers left in a file, as far as keys show them.

    Raise FormatError or LimitError if the bytes are not a Parquet file, or the footer is invalid.
    """
    view = view_footer(source, decryption)
    walk = RegionWalk(view, view_chunks(view, source), pages=False)
    walk.run()
    return find_walk_quirks(walk)


def find_walk_quirks(walk: RegionWalk) -> tuple[FoundQuirk, ...]:
    """Return the bugs that a finished walk through a file shows."""
    found = ((name, [*detect(walk)]) for name, detect in DETECTORS.items())
    return tuple(FoundQuirk.of(load_quirks()[name], places) for name, places in found if places)


def _places(paths: Iterable[str]) -> list[Place]:
    return [Place(path=path) for path in paths]


def _file_if(found: object) -> list[Place]:
    return [Place()] if found else []


def _ctr_label(walk: RegionWalk) -> list[Place]:
    footer, probe = walk.view.footer, walk.probe
    is_ctr = probe is not None and probe.bodies == GCM_CTR_V1
    return _file_if(is_ctr and footer.plaintext_footer and footer.algorithm_name == GCM_V1)


def _no_aad(walk: RegionWalk) -> list[Place]:
    footer = walk.view.footer
    lacks = footer.algorithm is not None and footer.algorithm.aad_file_unique is None
    return _file_if(lacks and not footer.plaintext_footer)


def _module_types(walk: RegionWalk) -> list[Place]:
    opens = walk.probe is not None and walk.probe.is_parquet_go
    return _file_if(opens or walk.view.has_parquet_go_signature)


DETECTORS: Final[dict[str, Callable[[RegionWalk], list[Place]]]] = {
    "ctr-label": _ctr_label,
    "clear-bloom-filters": lambda walk: _places(walk.unencrypted_parts["bloom filter"]),
    "clear-levels": lambda walk: _places(walk.clear_levels),
    "padded-modules": lambda walk: _file_if(walk.view.footer.padding),
    "no-aad": _no_aad,
    "module-types": _module_types,
    "empty-prefix": lambda walk: _file_if(walk.view.footer.stored_prefix == b""),
}
"""Detectors by the name of the bug; the others show in no single file."""

OF_PROBE = ("ctr-label", "module-types")  # bugs that explain the layout of pages
