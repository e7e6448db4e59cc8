"""Crypto-shredding: make data unreadable for good by removing its wrapped keys: `shred_keys`.

    a tenant       master_keys=("tenant-7",)   every key that this master key has wrapped
    a partition    everything=True             all keys of the files of a folder
    a column       columns=("ssn",)            its keys; the rest of the file stays readable

The removed bytes may survive in places that have no name: `REMAINS` lists them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from modcrypt.errors import KeyNotFoundError, ModcryptError
from modcrypt.jobs.key_scan import resolve_decryption
from modcrypt.jobs.run_record import Record, list_files_except, run_recorded
from modcrypt.jobs.shredding.choice import criteria_of
from modcrypt.jobs.shredding.file_shredding import ShreddedFile, Shredding
from modcrypt.keys import hide_keys
from modcrypt.kms.audit import AuditEvent
from modcrypt.kms.key_tools import KeyTools
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.parquet.crypto.properties import AnyDecryption
from modcrypt.report.text import format_count
from modcrypt.runtime.former_names import accept_former_names

REMAINS = (
    "Removed keys may survive in earlier versions of the files: freed blocks and journals of a "
    "disk, snapshots, versions of an object, replicas, backups, copies. Such a key opens the data "
    "for as long as its master key unwraps it: destroy the master key if it wraps nothing else."
)
"""Text for results about what shredding can't reach."""


@hide_keys
@accept_former_names(where="source", threads="jobs")
def shred_keys(
    source: Any,
    tools: KeyTools | None = None,
    *,
    columns: Iterable[str] = (),
    master_keys: Iterable[str] = (),
    everything: bool = False,
    destroy_master_keys: bool = False,
    filesystem: Any = None,
    decryption: AnyDecryption | None = None,
    dry_run: bool = False,
    record: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    progress: Callable[[ShreddedFile, int], object] | None = None,
    signing_key: SigningKey | None = None,
) -> list[ShreddedFile]:
    """Remove the wrapped keys of columns, of master keys or of whole files; this is final.

    A file that fails is not changed; the run continues with the others. `prove_shredded` checks
    afterwards what can still be read.

    Args:
        source: Path or URL of a file or a folder, or a list of files. Files behind symbolic links
            in a folder fail and are not changed; pass the targets of the links instead.
        tools: Key tools that decrypt footers: needed to shred only columns, and to find the keys of
            columns in encrypted footers that stay readable.
        columns: Dotted names of columns, or of groups for all columns within; a column under the
            footer key can't be shredded alone.
        master_keys: Ids of master keys: removes every key that they have wrapped, and every key
            under a KEK that they have wrapped.
        everything: Whether to remove all keys. Pass exactly one of `columns`, `master_keys` and
            `everything`.
        destroy_master_keys: Whether the key service destroys the master keys after all files, if no
            file has failed; a service that can't destroy keys disables them. Everything else that
            they have wrapped is lost, too.
        filesystem: The pyarrow or fsspec filesystem of `source`.
        decryption: Decryption properties for files that do not store their AAD prefix, or whose
            footer key is known; by default `tools.decryption()`.
        dry_run: Whether to only report what would be done, and write nothing.
        record: Path of a file that receives a line of JSON for each finished file. Files that a run
            with the same selection has finished, and that have not changed since, are `"current"`.
        jobs: Number of files processed concurrently, 4 by default.
        progress: Function called in the calling thread with each file's result and the number of
            files.
        signing_key: Key that signed the files, which signs those again that stay readable. With
            `signed_by` in the properties, these are refused without it.

    Returns:
        The result of each file, in the order of their paths, then of each master key.

    Raises:
        FileNotFoundError: `source` does not exist.
        ValueError, TypeError: An argument has a wrong value or type.
        OSError: The record can't be read or written.
    """
    wanted = criteria_of(columns, master_keys, everything)
    decryption = resolve_decryption(tools, decryption)
    if destroy_master_keys and (tools is None or not wanted.master_keys):
        raise ValueError("destroy_master_keys needs master_keys, and tools of their key service")
    places = list_files_except(record, source, filesystem)
    shredding = Shredding(tools, wanted, decryption, dry_run, signing_key)
    ledger = None
    if record is not None:
        ledger = Record(record, {"what": "shred", **wanted.fields()}, write=not dry_run)
    results = run_recorded(
        places, shredding.run, ShreddedFile, record=ledger, restore=_restore_columns,
        jobs=jobs, progress=progress,
    )  # fmt: skip
    if destroy_master_keys and tools is not None:
        failed = sum(file.failed for file in results)
        results += end_master_keys(tools, wanted.master_keys, failed, dry_run=dry_run)
    if tools is not None and not dry_run:
        tools.wrapper.forget()  # cached keys would keep opening the shredded data
    return results


def _restore_columns(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the selected columns of a file that the record lists."""
    names = entry.get("columns")
    return {"columns": tuple(map(str, names)) if isinstance(names, list) else ()}


def end_master_keys(
    tools: KeyTools, master_keys: Iterable[str], failed: int, *, dry_run: bool
) -> list[ShreddedFile]:
    """Destroy master keys after all files, unless a file has failed; return their results."""
    unique = dict.fromkeys(master_keys)
    return [_end_master_key(tools, key_id, failed, dry_run) for key_id in unique]


def _end_master_key(
    tools: KeyTools, master_key_id: str, failed: int, dry_run: bool
) -> ShreddedFile:
    """Have the key service destroy a master key, or disable it if it can't destroy keys."""
    state, message = "kept", "modcrypt can't destroy keys of this key service; use its own tools"
    if failed:
        message = f"{format_count(failed, 'file')} failed and may still need the master key"
    else:
        for result, method, more in _ENDS:
            if (end := getattr(tools.client, method, None)) is not None:
                state, message = result, more
                if not dry_run:
                    state, message = _call_key_service(tools, master_key_id, end, result, more)
                break
    return ShreddedFile(
        path=repr(tools.client), result=state, master_key_id=master_key_id, message=message
    )


def _call_key_service(
    tools: KeyTools, master_key_id: str, end: Callable[[str], object], state: str, message: str
) -> tuple[str, str]:
    """Destroy or disable the master key and record it; return errors as results."""
    result = state
    try:
        end(master_key_id)
    except KeyNotFoundError:
        result, message = "current", "the key service has no such master key"
    except ModcryptError as error:
        result, message = error.word, str(error)
    if tools.wrapper.audit is not None:
        outcome = "ok" if result == state else result
        tools.wrapper.audit(
            AuditEvent(operation="shred", by="kms", master_key_id=master_key_id, result=outcome)
        )
    return result, message


_ENDS = (
    (
        "destroyed",
        "destroy_key",
        "some services keep a destroyed key for a while: AWS KMS for 7 days, during which the "
        "deletion can be cancelled; and backups of a service may contain it",
    ),
    (
        "disabled",
        "disable_key",
        "this key service can't destroy keys; a disabled key can be enabled again",
    ),
)
