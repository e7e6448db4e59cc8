"""Record what `shred` is about to erase in declared datasets, before it removes a key."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from modcrypt.jobs.listing import Folder, place_at
from modcrypt.jobs.shredding.choice import criteria_of
from modcrypt.jobs.shredding.file_shredding import ShreddedFile
from modcrypt.jobs.shredding.removal import shred_keys
from modcrypt.kms.signing.signing_keys import SigningKey, read_verifying_keys
from modcrypt.lake.declarations.declaration import (
    AnyDataset,
    DatasetDeclaration,
    LakeDeclaration,
    TableDeclaration,
)
from modcrypt.lake.erasure.erasure_record import append_erasure
from modcrypt.lake.erasure.erasures import MAX_REQUEST, Erasure, list_path_faults
from modcrypt.lake.files.declared_keys import declared_decryption
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.parquet.datasets.discovery import list_files


@dataclass(frozen=True, kw_only=True)
class Shredding:
    """An erasure that is about to begin in one dataset."""

    parts: Sequence[str]  # paths of files and folders inside the dataset; an empty one is all of it
    columns: Sequence[str]  # names of columns whose keys are selected; empty for other selections
    everything: bool  # whether all keys are selected
    request: str  # id of the request
    # Function that returns what a dry run says about each file.
    plan: Callable[[], Iterable[ShreddedFile]]


def record_shredding(
    declaration: LakeDeclaration, name: str, shredding: Shredding, signing_key: SigningKey | None
) -> int:
    """Add what is about to be erased to the record beside a declaration.

    What the declaration or the record states already is not added again.

    Returns:
        The number of statements added.

    Raises:
        ValueError: The dataset has `signed_by`, and the key is not that of a writer.
        KeyRetrievalError, OSError: As `append_erasure`.
    """
    dataset = declaration.datasets[name]
    _check_signing_key(dataset, signing_key)
    _check_request(shredding.request)
    now, count = _now(), 0
    for files, columns in _list_selected(dataset, shredding):
        erasure = Erasure(files=files, columns=columns, when=now, request=shredding.request)
        append_erasure(declaration.path, name, erasure, signing_key)
        count += 1
    return count


def record_emptied(declaration: LakeDeclaration, name: str, signing_key: SigningKey | None) -> None:
    """Add to the record that a dataset may be empty, because all of it is erased.

    Raise ValueError, KeyRetrievalError or OSError as `record_shredding`.
    """
    dataset = declaration.datasets[name]
    _check_signing_key(dataset, signing_key)
    if not dataset.erasures.emptied:
        erasure = Erasure(emptied=True, when=_now())
        append_erasure(declaration.path, name, erasure, signing_key)


def record_partition(
    declaration: LakeDeclaration, name: str, partition: Mapping[str, str], request: str,
    signing_key: SigningKey | None,
) -> None:  # fmt: skip
    """Add to the record that a partition of a table is about to be erased, unless it is stated.

    Raise ValueError, KeyRetrievalError or OSError as `record_shredding`.
    """
    declared = declaration.find(name)
    _check_signing_key(declared, signing_key)
    _check_request(request)
    if not any(each.partition == partition and not each.files for each in declared.erased):
        dataset, _, table = name.partition("/")
        erasure = Erasure(partition=dict(partition), table=table, when=_now(), request=request)
        append_erasure(declaration.path, dataset, erasure, signing_key)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _check_request(request: str) -> None:
    if len(request) > MAX_REQUEST:
        raise ValueError(f"request is longer than {MAX_REQUEST} characters")


def _check_signing_key(dataset: AnyDataset, signing_key: SigningKey | None) -> None:
    if isinstance(dataset, TableDeclaration):
        writers = read_verifying_keys(dataset.signed_by)
    else:
        writers = read_verifying_keys(dataset.members.get("signed_by", ()))
    if writers and (signing_key is None or signing_key.verifier not in writers):
        raise ValueError(
            f"{dataset.name} requires signatures (signed_by), also of what is erased; pass the "
            "signing key of one of its writers"
        )


def _list_selected(
    dataset: DatasetDeclaration, shredding: Shredding
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield files and columns that are erased, and that no statement names yet."""
    parts, columns = tuple(shredding.parts), tuple(shredding.columns)
    whole = "" in parts
    if columns:
        files = () if whole else parts
        stated = dataset.erasures.find_columns
        if not all(len(stated(f, columns)) == len(columns) for f in files or ("",)):
            yield files, columns
    elif shredding.everything and not whole:
        yield from _group(dataset, [(part, ()) for part in parts])
    else:
        yield from _group(dataset, _list_planned(dataset, shredding))


def _list_planned(
    dataset: DatasetDeclaration, shredding: Shredding
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the files that lose keys, each with its columns; none if it is lost as a whole."""
    # The folders that the caller names stand for their files if these are lost without exception.
    root = Folder.at(dataset.location).place
    planned = list(shredding.plan())
    if "" not in shredding.parts and all(file.keys and file.whole for file in planned):
        return [(part, ()) for part in shredding.parts]
    found = []
    for file in planned:
        place = place_at(file.path)
        is_dataset = place.resolve().path == root.resolve().path  # which is a single file
        path = place.name if is_dataset else place.inside(root) or ""
        is_whole = file.whole or shredding.everything
        if path and file.keys:
            found.append((path, () if is_whole else file.columns))
    return found


def _group(
    dataset: DatasetDeclaration, found: Iterable[tuple[str, tuple[str, ...]]]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the files that share erased columns, without those that are stated already."""
    erasures = dataset.erasures
    by_columns: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, columns in found:
        # A folder has no value of its own partition, but its files do.
        if not (erasures.find(path) or erasures.find(f"{path}/")) and (
            not columns or len(erasures.find_columns(path, columns)) < len(columns)
        ):
            by_columns[columns].append(path)
    for columns, files in by_columns.items():
        yield tuple(files), columns


def _check_parts(policies: DatasetPolicies, parts: Sequence[str]) -> None:
    """Raise ValueError for paths outside a dataset, FileNotFoundError for those of nothing."""
    if isinstance(parts, str):
        raise ValueError("parts must be a list of paths, not a string")
    if faults := list_path_faults(parts):
        raise ValueError("; ".join(faults))
    list_files([policies.root.file(part) for part in parts], None)


def shred_dataset(
    declaration: LakeDeclaration, policies: DatasetPolicies, parts: Sequence[str], request: str,
    *, destroy_master_keys: bool, jobs: int | None, **selection: Any,
) -> list[ShreddedFile]:  # fmt: skip
    """Record what is erased in a dataset, then remove its keys; see `Lake.shred`."""
    chosen = criteria_of(**selection)
    _check_parts(policies, parts)
    shred = partial(
        shred_keys, [policies.root.file(part) for part in parts] or policies.dataset.location,
        policies.tools, decryption=declared_decryption(policies, exactly=False), jobs=jobs,
        **selection,
    )  # fmt: skip
    shredding = Shredding(
        parts=parts or ("",), columns=chosen.columns, everything=chosen.everything,
        request=request, plan=partial(shred, dry_run=True),
    )  # fmt: skip
    record_shredding(declaration, policies.dataset.name, shredding, policies.signing_key)
    with policies.hand_over():
        return shred(destroy_master_keys=destroy_master_keys, signing_key=policies.signing_key)
