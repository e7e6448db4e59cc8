"""Other keepers of data keys that a compromised key opens: recipients, copies and old snapshots.

Renewed files do not help against copies of the old ones. What is named here needs a person: an old
snapshot is expired, a backup deleted, and a recipient gets a new copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from modcrypt.errors import ModcryptError, list_names
from modcrypt.io.places import Place
from modcrypt.jobs.key_scan import parse_wrapped_version
from modcrypt.lake.compromise.leak_judgement import LeakJudge
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import FileState, KeyUse, name_recipient
from modcrypt.pkmt1.external import read_store
from modcrypt.pkmt1.material import decode_material
from modcrypt.report.json_fields import JsonFields
from modcrypt.report.text import format_count

MAX_MATERIALS = 10_000
"""Largest number of files of key material without their data file that are read for a dataset."""

_RECIPIENT = name_recipient(b"")  # beginning of the names of recipients' keys


@dataclass(frozen=True, kw_only=True)
class LeakReach(JsonFields):
    """The other keepers of data keys that compromised keys open, beside the files of a dataset.

    Attributes:
        recipients: Ids, in hex, of the recipients who open the exposed files, too.
        gone: Paths of files that are not in the dataset any more: the record of the leak, or key
            material, names them, and copies of them would open.
        snapshots: Ids of the older snapshots of an Iceberg table that open.
    """

    recipients: Sequence[str] = ()
    gone: Sequence[str] = ()
    snapshots: Sequence[int] = ()

    def describe(self) -> list[str]:
        """Return a sentence about each kind that there is."""
        lines = []
        if self.recipients:
            count = format_count(len(self.recipients), "recipient")
            lines.append(f"exposed files open to {count}: {list_names(self.recipients)}")
        if self.gone:
            count = format_count(len(self.gone), "file")
            lines.append(f"copies of {count} that are gone would open: {list_names(self.gone)}")
        if self.snapshots:
            count = format_count(len(self.snapshots), "snapshot")
            lines.append(f"exposed files are in {count}: {list_names(map(str, self.snapshots))}")
        return lines


class ReachSearch:
    """A search that takes the files of a dataset one by one, as they are judged.

    Args:
        is_table: Whether the dataset is a table, whose snapshots name older files.
    """

    def __init__(self, judge: LeakJudge, *, is_table: bool = False) -> None:
        self._judge = judge
        self._recipients: dict[str, None] = {}
        name, choices = judge.dataset.name, judge.choices
        self._gone = set[str]() if is_table else judge.record.list_files(name, choices)

    def add(self, state: FileState, *, is_exposed: bool) -> None:
        """Take a file of the dataset."""
        self._gone.discard(state.path)
        if is_exposed:
            ids = (use.kek_id for use in state.keys if use.kek_id and use.column is None)
            self._recipients |= {
                id_.removeprefix(_RECIPIENT): None for id_ in ids if id_.startswith(_RECIPIENT)
            }

    def finish(self, absent: Iterable[tuple[str, Sequence[KeyUse]]] = ()) -> LeakReach:
        """Return what was found; `absent` are files that only key material names, with its keys."""
        named = {
            path for path, uses in absent
            if any(choice.matches(use) for choice in self._judge.choices for use in uses)
        }  # fmt: skip
        gone = tuple(sorted(self._gone | named))
        return LeakReach(recipients=tuple(sorted(self._recipients)), gone=gone)


def list_material(
    policies: DatasetPolicies, paths: Iterable[str]
) -> Iterator[tuple[str, list[KeyUse]]]:
    """Yield files, of which only the key material is there, with the keys in it."""
    for _, path in zip(range(MAX_MATERIALS), paths, strict=False):
        with suppress(ModcryptError, OSError):  # it opens nothing
            yield path, list(_list_uses(policies.root.place.below(path)))


def _list_uses(place: Place) -> Iterator[KeyUse]:
    for text in read_store(place).values():
        material = decode_material(text)
        kek = None if material.kek_id is None else material.kek_id.hex()
        version = parse_wrapped_version(material.master_wrapped)
        yield KeyUse(None, material.master_key_id, version, kek)
