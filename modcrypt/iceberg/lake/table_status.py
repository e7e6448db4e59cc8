"""The status of an Iceberg table: its keys and files by its key tree, and what is to be changed."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from modcrypt.errors import IntegrityError, KeyNotFoundError, ModcryptError, PlaintextError
from modcrypt.iceberg.lake.declared_table import DeclaredTable
from modcrypt.iceberg.lake.erased_table_files import ErasedTableFiles
from modcrypt.iceberg.lake.plaintext_orphans import find_plaintext_orphans
from modcrypt.lake.compromise.leak_judgement import LeakJudge
from modcrypt.lake.compromise.leak_reach import LeakReach
from modcrypt.lake.compromise.leak_record import fingerprint_location
from modcrypt.lake.erasure.erasures import NOT_ERASED
from modcrypt.lake.files.file_states import EXPOSED, FileState, KeyUse, KnownWraps, State
from modcrypt.lake.files.key_choice import KeyChoice
from modcrypt.lake.key_ages import KeyAges
from modcrypt.lake.reports.key_impact import DatasetImpact
from modcrypt.lake.spool import Spool
from modcrypt.lake.status import DatasetStatus

if TYPE_CHECKING:
    from modcrypt.iceberg.tables.table import IcebergTable
    from modcrypt.iceberg.verify.key_tree_nodes import TreeFile, TreeKek, TreeList, TreeManifest
    from modcrypt.iceberg.verify.key_trees import KeyTree

Step: TypeAlias = Literal["policy", "mek", "kek", "dek"]

METADATA = "metadata.json"  # path of the entry for the table as a whole
_DAY = 86400

OLDER = "older-snapshots"
"""The reason of an exposed file that new keys for the table's branches and tags do not replace."""

_EXPIRE = "only older snapshots have it: drop them with modcrypt iceberg expire"


@dataclass(frozen=True, slots=True)
class TableChange:
    """A step that establishes the declared state of a table, and why it is needed."""

    step: Step
    why: str


def name_version(table: IcebergTable) -> str:
    """Return a text that changes with every version of a table."""
    return hashlib.sha256(table.metadata.encode()).hexdigest()


def find_table_status(
    declared: DeclaredTable,
    ages: KeyAges,
    judge: LeakJudge | None = None,
    is_verified: Callable[[str], bool] = lambda _: False,
) -> DatasetStatus:
    """Return the status of a table; data files are not read.

    `judge` judges what compromised keys open; None if there are none. `is_verified` is the function
    that says whether `verify` found a version, as `name_version` names it, correct. Raise OSError
    or ValueError if the table does not exist or cannot be listed.
    """
    try:
        table = declared.open(sealed=False)
    except PlaintextError as error:
        return _make_closed_status(declared, "plaintext", error)
    except IntegrityError as error:
        return _make_closed_status(declared, "other-keys", error)
    except ModcryptError as error:
        return _make_closed_status(declared, "unreadable", error)
    from modcrypt.iceberg import key_tree

    tree = key_tree(table)
    search = _TreeStates(ErasedTableFiles(declared.dataset, table, ages), tree, judge)
    verified = is_verified(name_version(table))
    states = Spool(replace(state, verified=verified) for state in search.list_states())
    changes = plan_changes(declared, table, tree, ages)
    state: State = "declared"
    if changes:
        state = "other-policy" if changes[0].step == "policy" else "old-keys"
    message = "; ".join(change.why for change in changes)
    if exposed := [file for file in states if is_renewable(file)]:
        state, message = exposed[0].state, f"{len(exposed)} of its files: {exposed[0].message}"
    size = len(table.metadata.encode())
    whole = FileState(
        path=METADATA, state=state, message=message, size=size, rows=0, verified=verified
    )
    files = Spool([whole])
    files.extend(states)
    if table.walk.encrypted:
        files.extend(find_plaintext_orphans(table, tree))
    due = ages.find_due(declared.dataset)
    return DatasetStatus(
        dataset=declared.dataset,
        files=files,
        due_keys=due,
        worn_keys=ages.find_worn(_count_wraps(tree), str),
        find_impact=partial(_find_impact, declared.dataset.name, tree),
        reach=LeakReach(snapshots=tuple(sorted(search.older_snapshots, reverse=True))),
        snapshots=search.snapshots,
    )


def find_erased_states(declared: DeclaredTable, table: IcebergTable) -> dict[str, FileState]:
    """Return the states of the files of a table that statements of erasure name, by their paths."""
    from modcrypt.iceberg import key_tree

    if not declared.dataset.erased:
        return {}
    erased = ErasedTableFiles(declared.dataset, table, KeyAges(declared.client))
    states = _TreeStates(erased, key_tree(table), None).list_states()
    return {state.path: state for state in states if state.state in ("erased", "not-erased")}


def is_renewable(state: FileState) -> bool:
    """Return whether new keys for the table's branches and tags replace an exposed file."""
    return state.state in EXPOSED and not state.reason


def _make_closed_status(
    declared: DeclaredTable, state: State, error: ModcryptError
) -> DatasetStatus:
    """Return the status of a table that cannot be opened."""
    reason = "" if state == "plaintext" else error.word
    file = FileState(path=METADATA, state=state, reason=reason, message=str(error))
    return DatasetStatus(dataset=declared.dataset, files=[file])


def plan_changes(
    declared: DeclaredTable, table: IcebergTable, tree: KeyTree, ages: KeyAges
) -> list[TableChange]:
    """Return the steps that establish the declared state, in order."""
    dataset = declared.dataset
    changes = []
    if why := declared.compare_policy(table):
        changes.append(TableChange("policy", why))
    limit = dataset.max_kek_age
    for kek in tree.keks:
        age = ages.now().timestamp() - kek.created_ms / 1000
        if limit is not None and age > limit and kek.store == "table":
            days = f"KEK {kek.id} is {age / _DAY:.0f} days old"
            return [*changes, TableChange("kek", days)]
    if why := _find_old_master(declared, tree, ages):
        singly = any(item.single for item in _list_wrapped(tree))
        changes.append(TableChange("kek" if singly else "mek", why))
    return changes


def _find_old_master(declared: DeclaredTable, tree: KeyTree, ages: KeyAges) -> str:
    """Return which key is under a previous master key, or too long under an older version."""
    former = [key for key in tree.master_key_ids if key in declared.dataset.previous.master_keys]
    if former:
        return f"under the previous master key {', '.join(former)}"
    uses = [_use_of_kek(kek) for kek in tree.keks]
    uses += [_use_of_master(item) for item in _list_wrapped(tree) if item.single]
    return ages.find_old(uses, declared.dataset.rotation)


def _list_wrapped(tree: KeyTree) -> list[TreeList | TreeFile]:
    """Return the nodes that may have key metadata encrypted by a KEK or master key."""
    return [*tree.lists, *tree.files]


def _use_of_kek(kek: TreeKek) -> KeyUse:
    return KeyUse(column=None, master_key_id=kek.master_key_id, version=kek.version, kek_id=kek.id)


def _use_of_master(item: TreeList | TreeFile) -> KeyUse:
    return KeyUse(column=None, master_key_id=item.sealed_by, version=item.version)


def _count_wraps(tree: KeyTree) -> list[KnownWraps]:
    """Return how many keys the KEKs and master keys of a table have wrapped."""
    counts: Counter[tuple[str, str | None, str | None]] = Counter()
    for kek in tree.keks:
        counts[kek.master_key_id, kek.version, None] += 1
        counts[kek.master_key_id, kek.version, kek.id] += kek.lists + kek.files
    for item in _list_wrapped(tree):
        if item.single and item.sealed_by is not None:
            counts[item.sealed_by, item.version, None] += 1
    return [KnownWraps(*key, count) for key, count in counts.items()]


class _TreeStates:
    """The states of the files in a key tree."""

    def __init__(self, erased: ErasedTableFiles, tree: KeyTree, judge: LeakJudge | None) -> None:
        from modcrypt.iceberg.rotate.rotated_snapshots import list_heads

        table = erased.table
        self._erased, self._ages = erased, erased.ages
        self._tree, self._judge_leak = tree, judge
        self._heads = {head.snapshot.id for head in list_heads(table.metadata)}
        self._keks = {kek.id: kek for kek in tree.keks}
        self._base = f"{table.metadata.location.rstrip('/')}/"
        self._columns = _count_columns(table.metadata.document)
        # Ids of snapshots, by the paths of their manifest lists.
        self.snapshots = {
            each.location.removeprefix(self._base): each.snapshots for each in tree.lists
        }
        # Ids of the older snapshots that compromised keys open, once all states are listed.
        self.older_snapshots: set[int] = set()

    def list_states(self) -> Iterator[FileState]:
        """Yield the state of each manifest list, manifest, data and delete file."""
        live = self._find_live() if self._judge_leak is not None else set()
        for location, state in self._list_judged():
            is_older = state.state in EXPOSED and location not in live
            message = f"{state.message}; {_EXPIRE}"
            self.older_snapshots.update(self.snapshots.get(state.path, ()) if is_older else ())
            yield replace(state, reason=OLDER, message=message) if is_older else state

    def _find_live(self) -> set[str]:
        """Return the locations of the files that branches and tags lead to."""
        tree = self._tree
        lists = [each for each in tree.lists if self._heads.intersection(each.snapshots)]
        manifests, files = tree.beneath(lists)
        found: list[TreeList | TreeManifest | TreeFile] = [*lists]
        found += [tree.manifests[number] for number in manifests]
        found += [tree.files[number] for number in files]
        return {each.location for each in found}

    def _list_judged(self) -> Iterator[tuple[str, FileState]]:
        tree = self._tree
        of_manifests, of_files = self._spread_keys()
        for item in tree.lists:
            keys = self._keys_of(item)
            state = self._judge(item, keys, item.key_id is not None, item.error)
            yield item.location, self._judge_erasure(state, item.location, keys)
        for number, manifest in enumerate(tree.manifests):
            keys = of_manifests[number]
            state = self._judge(manifest, keys, manifest.encrypted, manifest.error)
            yield manifest.location, self._judge_erasure(state, manifest.location, keys)
        for number, file in enumerate(tree.files):
            yield file.location, self._judge_file(file, of_files[number])

    def _judge_file(self, file: TreeFile, above: tuple[KeyUse, ...]) -> FileState:
        """Return the state of a data or delete file, given the keys of the lists above it."""
        own = self._keys_of(file)
        rows = file.records if file.kind == "data" else 0
        refusal = self._find_refusal(own)
        state = self._judge(
            file, tuple(dict.fromkeys((*above, *own))), file.encrypted, refusal,
            refused=() if refusal is None else own, rows=rows, columns=self._columns,
            encrypted_columns=self._columns if file.encrypted else 0,
        )  # fmt: skip
        return self._judge_erasure(state, file.location, above)

    def _judge_erasure(self, state: FileState, location: str, above: Sequence[KeyUse]) -> FileState:
        """Return the state of a file with what is declared of its erasure."""
        statement, found = self._erased.find(location), "it opens"
        if statement is None:
            return state
        if state.state == "unreadable":
            lists = ((use.kek_id or use.master_key_id or "", use.kek_id is None) for use in above)
            if self._erased.is_erased(location, lists):
                return replace(state, state="erased", message=f"erased {statement}")
            found = self._erased.find_copy(location)
        if not found:
            return state
        message = f"it is declared as erased ({statement}), but {found}"
        return replace(state, state="not-erased", reason=NOT_ERASED, message=message)

    def _find_refusal(self, own: Sequence[KeyUse]) -> str | None:
        """Return why the key of a file in its manifest cannot be used; None if it can."""
        for use in own:
            kek = None if use.kek_id is None else self._keks.get(use.kek_id)
            if kek is not None:
                return kek.error
            if use.kek_id is not None:
                return f"its KEK {use.kek_id} is neither in the table nor in the key store"
        return None

    def _spread_keys(
        self,
    ) -> tuple[Mapping[int, tuple[KeyUse, ...]], Mapping[int, tuple[KeyUse, ...]]]:
        """Return the keys of the manifest lists above each manifest and file, by number."""
        lists: defaultdict[tuple[KeyUse, ...], list[TreeList]] = defaultdict(list)
        for item in self._tree.lists:
            lists[self._keys_of(item)].append(item)
        manifests: defaultdict[int, tuple[KeyUse, ...]] = defaultdict(tuple)
        files: defaultdict[int, tuple[KeyUse, ...]] = defaultdict(tuple)
        for keys, items in lists.items():
            for numbers, target in zip(self._tree.beneath(items), (manifests, files), strict=True):
                for number in numbers:
                    target[number] += keys
        return manifests, files

    def _keys_of(self, item: TreeList | TreeFile) -> tuple[KeyUse, ...]:
        """Return the key that encrypts a file's key metadata; empty if none does."""
        if item.sealed_by is None:
            return ()
        kek = None if item.single else self._keks.get(item.sealed_by)
        if kek is not None:
            return (_use_of_kek(kek),)
        return (
            _use_of_master(item) if item.single else KeyUse(column=None, kek_id=item.sealed_by),
        )

    def _judge(
        self, item: Any, keys: tuple[KeyUse, ...], encrypted: bool, error: str | None,
        refused: tuple[KeyUse, ...] = (), **counts: Any,
    ) -> FileState:  # fmt: skip
        state: State = "declared" if encrypted else "plaintext"
        reason = message = ""
        closed = [self._keks[key.kek_id] for key in keys if key.kek_id in self._keks]
        closed = [kek for kek in closed if kek.error is not None]
        if error is not None or (closed and len(closed) == len(keys)):
            state, message = "unreadable", error or closed[0].error or ""
            reason = self._find_reason(refused or keys)
        found = FileState(
            path=item.location.removeprefix(self._base), state=state, reason=reason,
            message=message, size=item.size or 0, keys=keys,
            data_keys=fingerprint_location(item.location), **counts,
        )  # fmt: skip
        return found if self._judge_leak is None else self._judge_leak.judge(found)

    def _find_reason(self, keys: Sequence[KeyUse]) -> str:
        """Return why keys cannot be used, as the key service lists their master keys."""
        if any(use.kek_id is not None and use.kek_id not in self._keks for use in keys):
            return KeyNotFoundError.word
        if any(map(self._ages.is_destroyed, keys)):
            return "destroyed"
        masters = [self._ages.masters.get(key.master_key_id or "") for key in keys]
        if any(master is not None and not master.enabled for master in masters):
            return "disabled"
        return "unavailable" if self._tree.kms_unavailable else "key"


def _count_columns(document: Mapping[str, Any]) -> int:
    """Return the number of columns of the current schema."""
    current = document.get("current-schema-id")
    schemas = document.get("schemas") or []
    fields = next((s.get("fields") for s in schemas if s.get("schema-id") == current), None)
    return len(fields or ())


def _find_impact(name: str, tree: KeyTree, choice: KeyChoice) -> DatasetImpact:
    """Return the impact of a key on an Iceberg table."""
    found = tree.protected_by(choice.key, choice.version)
    locations = {file.location for file in found}
    rows = sum(
        file.records for file in tree.files if file.kind == "data" and file.location in locations
    )
    unread = [item.error for item in tree.lists] + [item.error for item in tree.manifests]
    lists = sorted(
        (item for item in tree.lists if item.location in locations),
        key=lambda item: item.sequence_number, reverse=True,
    )  # fmt: skip
    return DatasetImpact(
        dataset=name, files=len(found), rows=rows, bytes=sum(file.size for file in found),
        columns=(), footers=0, footer_columns=0,
        hidden=len(unread) - unread.count(None),
        snapshots=[id_ for item in lists for id_ in item.snapshots],
        lost=sum(file.only for file in found),
    )  # fmt: skip
