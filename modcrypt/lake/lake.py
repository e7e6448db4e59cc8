"""A lake that one file declares: `Lake.open("modcrypt.toml")`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Self, TypeAlias

from modcrypt.errors import FormatError, ModcryptError, list_names
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.jobs.failures import describe, exit_code
from modcrypt.jobs.shredding.file_shredding import ShreddedFile
from modcrypt.kms.client import KmsClient
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.lake.applying.application import AppliedFile, LakeApplication, carry_out_plan
from modcrypt.lake.applying.plan import LakePlan, make_plan
from modcrypt.lake.compromise.leak_judgement import LeakJudge
from modcrypt.lake.compromise.leak_reach import list_material
from modcrypt.lake.compromise.leak_record import LeakRecordFile
from modcrypt.lake.copied_lake import declare_copies
from modcrypt.lake.dataset import LakeDataset
from modcrypt.lake.declarations.declaration import (
    DatasetDeclaration,
    LakeDeclaration,
    TableDeclaration,
)  # fmt: skip
from modcrypt.lake.declarations.declaration_file import open_declaration, require_valid
from modcrypt.lake.declarations.declaration_path import FILE_NAME
from modcrypt.lake.declarations.partitions import matches_any, names_in
from modcrypt.lake.erased_files import judge_state
from modcrypt.lake.erased_removal import remove_erased
from modcrypt.lake.erasure_recording import record_emptied, record_partition, shred_dataset
from modcrypt.lake.evidence.events import DatasetResult, EvidenceCheck
from modcrypt.lake.evidence.evidence_check import MAX_EVENTS, check_declared
from modcrypt.lake.evidence.evidence_writer import EvidenceWriter
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.claimed_files import find_claims
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.file_states import EXPOSED, STATES, FileState, KeyUse, name_recipient
from modcrypt.lake.files.key_choice import (
    FormerRecipient,
    KeyChoice,
    KeyTrial,
    check_known,
    check_writing,
)
from modcrypt.lake.files.lake_files import LakeFile, LakeFiles, make_matcher
from modcrypt.lake.key_ages import KeyAges, add_versions
from modcrypt.lake.lake_reference import LakeReference
from modcrypt.lake.reports.key_impact import DatasetImpact, add_reach, find_impact
from modcrypt.lake.reports.key_path import KeyStep, follow_keys
from modcrypt.lake.reports.lake_report import LakeReport, make_report
from modcrypt.lake.spool import Spool
from modcrypt.lake.state_cache import StateCache, open_cache
from modcrypt.lake.status import DatasetStatus, find_status
from modcrypt.lake.table_kind import LakeTable, RotateTable, load_table_kind
from modcrypt.lake.verification.dataset_check import (
    Since,
    choose_unchanged,
    find_overlaps,
    verify_files,
)
from modcrypt.lake.verification.file_check import CheckedFile
from modcrypt.lake.verification.results import LakeVerification
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.format.findings import Finding
from modcrypt.parquet.verify.file_verification import verify_parquet
from modcrypt.parquet.verify.inspection import inspect_parquet
from modcrypt.report.text import format_count
from modcrypt.runtime.fork_safety import cached_property

CheckElsewhere: TypeAlias = Callable[[str, Sequence[LakeFile]], Iterable[CheckedFile]]
"""Function of a dataset's name and files that yields the verification of each."""


@dataclass(frozen=True, kw_only=True)
class Lake:
    """A lake: datasets that must look as its declaration says.

    Args:
        declaration: The declaration.
        passphrase: Reference to the passphrase of a keyring whose URI names none, as `Settings`
            takes it.
        audit: Path of a file to which uses of keys are appended, as `Settings` takes it.
        signing_key: Key that signs new files and seals tables; `signed_by` needs it.
        signing_reference: Reference to that key and, if it has one, to its passphrase, as
            `Settings` takes them, for executors of Spark.
    """

    declaration: LakeDeclaration
    passphrase: str | None = None
    audit: str | None = None
    signing_key: SigningKey | None = None
    signing_reference: tuple[str, str | None] | None = None
    _policies: dict[str, DatasetPolicies] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def open(
        cls, config: str | os.PathLike[str] | None = None, *, is_found: bool = False, **more: Any
    ) -> Self:
        """Open the lake that a file declares; no key service is opened yet.

        Args:
            config: Path of the declaration; None for MODCRYPT_CONFIG, or the first `modcrypt.toml`
                in the working directory or a folder above it, which `modcrypt trust` must have
                recorded if it names more than data sets and master keys.
            is_found: Whether `config` is not the caller's own word, but was found, such as in the
                properties of someone's table, and must be trusted like a file that is found.
            more: Further arguments of `Lake`.

        Raises:
            FileNotFoundError: There is no declaration.
            ValueError: The declaration is invalid; the message lists all mistakes. Or nobody named
                or trusted it, and it has commands, which the message lists.
        """
        if (content := open_declaration(config, is_found=is_found)) is None:
            raise FileNotFoundError(
                f"there is no {FILE_NAME} here or in a folder above; pass its path, or set "
                "MODCRYPT_CONFIG"
            )
        return cls(declaration=require_valid(content), **more)

    @cached_property
    def client(self) -> KmsClient:
        """The client of the key service."""
        return Settings(kms=self.declaration.kms, passphrase=self.passphrase).client

    @cached_property
    def _evidence(self) -> EvidenceWriter:
        """The writer of the record of evidence, without effect unless it is declared."""
        return EvidenceWriter(self.declaration, self.signing_key)

    @cached_property
    def ages(self) -> KeyAges:
        """The ages of master keys."""
        return KeyAges(self.client)

    def names(self, dataset: str | None) -> list[str]:
        """Return the name of a dataset, or those of all; of a namespace, those of its tables.

        A namespace whose tables cannot be listed has its own name, so that the error is its status.

        Raises:
            ValueError: The dataset is not declared.
        """
        declared = (
            self.declaration.all.values() if dataset is None else [self.declaration.find(dataset)]
        )
        names: list[str] = []
        for each in declared:
            if isinstance(each, TableDeclaration) and each.namespace is not None:
                names += load_table_kind().list_names(each)
            else:
                names.append(each.name)
        return names

    def policies(self, dataset: str) -> DatasetPolicies:
        """Return the policies of the files of a dataset.

        Raises:
            KeyRetrievalError: The key service cannot be opened.
        """
        if dataset not in self._policies:
            known = self.declaration.datasets[dataset], self.client, self.audit, self.signing_key
            self._policies[dataset] = DatasetPolicies(*known)
        return self._policies[dataset]

    def dataset(self, name: str) -> LakeDataset:
        """Return a dataset of Parquet files, to read and write it.

        Raises:
            ValueError: The dataset is not declared, or is an Iceberg table; see `table`.
            KeyRetrievalError: The key service cannot be opened.
        """
        if self._find_table(name) is not None:
            raise ValueError(f"{name} is an Iceberg table; open it with Lake.table")
        return LakeDataset(self.policies(name))

    def table(self, name: str) -> LakeTable:
        """Return a dataset that is an Iceberg table, to read and write it.

        Raises:
            ValueError: The dataset is not declared, or consists of Parquet files; see `dataset`.
            KeyRetrievalError: The key service cannot be opened.
        """
        if (table := self._find_table(name)) is None:
            raise ValueError(f"{name} is not an Iceberg table; open it with Lake.dataset")
        return table

    def reference(self, name: str, **options: Any) -> LakeReference:
        """Return a dataset of Parquet files as settings, which other processes can receive.

        Args:
            name: Name of the dataset.
            options: Arguments of `Settings`, such as `on_missing_key`.

        Raises:
            ValueError: As `dataset`.
        """
        key, passphrase = self.signing_reference or (None, None)
        audit = None if self.audit is None else os.path.abspath(self.audit)
        return LakeReference.of(
            self.declaration, name, passphrase=self.passphrase, audit=audit, signing_key=key,
            signing_passphrase=passphrase, **options,
        )  # fmt: skip

    def __getitem__(self, name: str) -> LakeDataset | LakeTable:
        """Return a dataset of either kind; raise as `dataset` and `table`."""
        return self._find_table(name) or self.dataset(name)

    def _find_table(self, name: str) -> LakeTable | None:
        """Return the dataset of a name if it is a table; raise ValueError if it is not declared."""
        declared = self.declaration.find(name)
        if not isinstance(declared, TableDeclaration):
            return None
        kind = load_table_kind()
        return kind.open_declared(declared, self.client, self.audit, self.signing_key)

    def list_files(self, dataset: str, parts: Sequence[str] = ()) -> LakeFiles:
        """Return the files of a dataset, or of parts of it, which are listed by iterating."""
        policies = self.policies(dataset)
        source = None if parts else policies.source
        return LakeFiles(
            policies.root, policies.dataset.include, source, parts,
            may_be_empty=policies.dataset.erasures.emptied and not parts,
            is_claimed=find_claims(self.declaration, dataset),
        )  # fmt: skip

    # --- status ----------------------------------------------------------------------------------

    def status(
        self, dataset: str | None = None, *, jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[DatasetStatus]:  # fmt: skip
        """Compare files with the declaration, by their footers and a cache.

        Args:
            dataset: Name of a dataset; None for all.
            jobs: Number of files examined concurrently; None for the default.
            progress: Function called with the number of a dataset's files after each.

        Raises:
            ValueError: The dataset is not declared.
            KeyRetrievalError: The key service cannot be opened.
        """
        with open_cache(self.declaration) as cache:
            how: dict[str, Any] = {"jobs": jobs, "progress": progress}
            found = [self.dataset_status(name, cache, **how) for name in self.names(dataset)]
        self._check_known(self.compromised, found)
        return found

    def dataset_status(
        self, name: str, cache: StateCache, *, jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> DatasetStatus:  # fmt: skip
        """Return the status of one dataset; errors of its location are part of it."""
        try:
            if (table := self._find_table(name)) is not None:
                judge = self._judge(name, cache)
                return load_table_kind().find_table_status(
                    table, self.ages, judge, partial(cache.is_correct_version, name)
                )
            examination = FooterExamination(self.policies(name), self.ages)
            return find_status(
                self.list_files(name), examination, cache, judge=self._judge(name, cache),
                jobs=jobs, progress=progress,
            )  # fmt: skip
        except (OSError, ValueError, ImportError, FormatError) as error:
            declared, failure = self.declaration.find(name), describe(error)
            return DatasetStatus(dataset=declared, error=failure.message, code=failure.code)

    # --- compromised keys ------------------------------------------------------------------------

    @cached_property
    def compromised(self) -> tuple[KeyChoice, ...]:
        """The master keys that the declaration calls compromised."""
        return tuple(map(KeyChoice.parse, self.declaration.compromised))

    @cached_property
    def _leaks(self) -> LeakRecordFile:
        return LeakRecordFile(self.declaration.path)

    def _judge(self, name: str, cache: StateCache) -> LeakJudge | None:
        """Return the judge of what compromised keys open in a dataset; None without any."""
        if not (choices := self._list_exposing(name)):
            return None
        declared = self.declaration.find(name)
        return LeakJudge(declared, choices, self._leaks.read(), cache.find_wraps)

    def _list_exposing(self, name: str) -> tuple[KeyChoice, ...]:
        """Return the compromised keys, and the former recipients of a dataset."""
        former = getattr(self.declaration.find(name), "former_recipients", ())
        ids = (name_recipient(recipient.id) for recipient in former)
        return (*self.compromised, *(FormerRecipient(key=key) for key in ids))

    def _check_known(
        self, choices: Sequence[KeyChoice], statuses: Sequence[DatasetStatus] | None = None
    ) -> None:
        """Check that keys exist; raise ValueError otherwise, and without `statuses` find them."""
        if not choices:
            return
        others = {KeyChoice.parse(key).key for _, key in self._leaks.read().started}
        if not self.ages.masters:  # the service lists no keys, so their names cannot be checked
            others |= {key for each in self.declaration.all.values() for key in each.key_templates}

        def list_uses() -> Iterable[KeyUse]:
            if statuses is None or len(statuses) < len(self.names(None)):
                with open_cache(self.declaration) as cache:
                    found = [self.dataset_status(name, cache) for name in self.names(None)]
            else:
                found = list(statuses)
            return (use for status in found for file in status.files for use in file.keys)

        check_known(choices, self.ages.masters, others, list_uses)

    def _check_compromised(self, names: Sequence[str], trial: KeyTrial | None) -> None:
        """Check what the declaration says of compromised keys, before `apply` plans.

        Raises:
            ValueError: A key is unknown, or new files would be under it.
        """

        def find_newest(key: str) -> str | None:
            master = self.ages.masters.get(key)
            if master is not None and master.version is not None:
                return str(master.version)
            return None if trial is None else trial.wrap_with(key)

        self._check_known(self.compromised)
        for dataset in map(self.declaration.find, names):
            check_writing(dataset, dataset.key_templates, find_newest)

    # --- apply -----------------------------------------------------------------------------------

    def apply(
        self, dataset: str | None = None, *, dry_run: bool = False, jobs: int | None = None,
        accept_replaced: bool = False, remove_erased: bool = False,
        progress: Callable[[int], object] | None = None,
        carry_out: Callable[[LakePlan], Sequence[AppliedFile]] | None = None,
        rotate: RotateTable | None = None,
    ) -> list[LakeApplication]:  # fmt: skip
        """Establish the declared state with the jobs for conversion and key rotation.

        Plaintext files are encrypted in place, files under other policies re-keyed, and old keys
        rotated. Nothing is decrypted, and only erased files are deleted, on request. Files that may
        be forged or moved are refused. A second run finds nothing to do.

        Args:
            dataset: Name of a dataset; None for all.
            dry_run: Whether to plan only.
            accept_replaced: Whether to encrypt plaintext files that replaced encrypted ones, which
                are refused otherwise. The cache remembers these. In a dataset with `signed_by`,
                whether to encrypt and sign any plaintext file that is not in its source.
            remove_erased: Whether to delete the files that are declared as erased, after a proof
                that nothing opens them.
            jobs: Number of files processed concurrently; None for the default.
            progress: Function called with the number of files after each.
            carry_out: Function that carries out the plan of a dataset elsewhere, such as on Spark
                (`modcrypt.spark.apply`), and returns the result of each file.
            rotate: Function that rotates the keys of a table elsewhere, as `rotate_table` does.

        Raises:
            ValueError: The dataset is not declared.
            KeyRetrievalError: The key service cannot be opened, or refuses a new version.
        """

        def carry_out_here(plan: LakePlan) -> Sequence[AppliedFile]:
            policies = self.policies(plan.dataset)
            return carry_out_plan(plan, policies, jobs=jobs, progress=progress)

        carry_out = carry_out or carry_out_here
        choices = {"accept_replaced": accept_replaced, "remove_erased": remove_erased}
        names = self.names(dataset)
        trial = KeyTrial(self.client)
        self._check_compromised(names, None if dry_run else trial)
        recording = self._evidence.record("apply", is_off=dry_run)
        with open_cache(self.declaration) as cache, recording as outcomes:
            done = [
                self._apply_one(
                    name, cache, None if dry_run else partial(self._try_keys, trial, names),
                    carry_out, choices, rotate, jobs=jobs, progress=progress,
                )
                for name in names
            ]  # fmt: skip
            outcomes += [application.outcome for application in done]
        return done

    def _try_keys(self, trial: KeyTrial, names: Sequence[str], plan: LakePlan) -> None:
        """Wrap a key on trial with each named master key, before anything is written.

        Those of all datasets are tried, and with partitions those that the planned files need.

        Raises:
            KeyRetrievalError: A master key does not exist, or may not be used.
        """
        ids = [(key, each) for each in map(self.declaration.find, names)
               for key in each.key_templates if not names_in(key)]  # fmt: skip
        declared = self.declaration.find(plan.dataset)
        if isinstance(declared, DatasetDeclaration) and declared.used_partitions:
            paths = (f.state.path for f in plan.files if f.action not in ("refuse", "none"))
            groups = {self.policies(plan.dataset).key_ids(path) for path in paths}
            ids += [(key, declared) for key in sorted(set[str]().union(*groups))]
        for key, dataset in ids:
            members = dataset.members if isinstance(dataset, DatasetDeclaration) else {}
            trial.wrap_with(key, members.get("kms_aad", ""), self.ages.masters)

    def _apply_one(
        self, name: str, cache: StateCache, try_keys: Callable[[LakePlan], None] | None,
        carry_out: Callable[[LakePlan], Sequence[AppliedFile]], choices: dict[str, bool],
        rotate: RotateTable | None, **how: Any,
    ) -> LakeApplication:  # fmt: skip
        """Plan and carry out the changes of one dataset; without `try_keys`, plan only."""
        # Versions that are due come first, and then another plan, because they make more keys old.
        # Files change inside `hand_over`, so that the next seal states them. The cache learns last
        # what was encrypted, so that it is examined again.
        table = self._find_table(name)

        def plan_again() -> LakePlan:
            status = self.dataset_status(name, cache, **how)
            if table is not None:
                return load_table_kind().plan_table(status)
            return make_plan(status, **choices)

        started = time.time()
        plan = plan_again()
        if try_keys is None or plan.error:
            return LakeApplication(plan=plan, dry_run=try_keys is None)
        if plan.changes or plan.new_versions:
            try_keys(plan)
        if new_versions := plan.new_versions:
            add_versions(self.client, new_versions)
            self._evidence.add("rotate", keys=new_versions)
            self.__dict__.pop("ages", None)  # lists the new versions again
            plan = plan_again()
        self._record_exposed(name, cache, plan, started)
        if table is not None:
            done: Sequence[AppliedFile] = load_table_kind().change_table(
                plan, table, self.ages, rotate
            )
        else:
            policies, accept_new = self.policies(name), choices["accept_replaced"]
            is_changed = plan.changes or plan.removals
            with policies.hand_over(accept_new=accept_new) if is_changed else nullcontext():
                done = carry_out(plan)
                cache.note_encrypted(name, [file.path for file in done if not file.code])
                # Before the last file is removed, the record states that there may be none.
                if plan.removals and plan.total == len(plan.removals):
                    record_emptied(self.declaration, plan.dataset, self.signing_key)
                removed = remove_erased(plan.removals, policies, how["jobs"])
                done = Spool(chain(done, removed)) if plan.removals else done
        return LakeApplication(plan=plan, files=done, new_versions=new_versions)

    def _record_exposed(self, name: str, cache: StateCache, plan: LakePlan, started: float) -> None:
        """Record the data keys that compromised keys may open, before any file is changed."""
        if (judge := self._judge(name, cache)) is not None:
            exposed = judge.list_exposed(planned.state for planned in plan.files)
            found = judge.record.add_inventory(name, judge.choices, started, exposed)
            if found is not None:
                outcome = DatasetResult.of(name, 0, plan.total, {"exposed": found})
                self._evidence.add("leak", [outcome], keys=[*map(str, judge.choices)])

    def shred(
        self, dataset: str, parts: Sequence[str] = (), *, columns: Iterable[str] = (),
        master_keys: Iterable[str] = (), everything: bool = False,
        destroy_master_keys: bool = False, request: str = "", jobs: int | None = None,
    ) -> list[ShreddedFile]:  # fmt: skip
        """Erase data of a dataset for good: record the erasure, then remove the keys.

        The record lies beside the declaration. Open the lake again to see its erased files.

        Args:
            dataset: Name of the dataset.
            parts: Paths of files and folders inside the dataset; none for all of it.
            columns, master_keys, everything, destroy_master_keys: As in `shred_keys`.
            request: Id of the request to erase.
            jobs: Number of files processed concurrently; None for the default.

        Returns:
            The result of each file, then of each master key.

        Raises:
            ValueError: The dataset is not declared or is a table, the selection is invalid, a part
                is outside, or the dataset has `signed_by` and the lake no signing key of a writer.
            FileNotFoundError: A part does not exist.
            KeyRetrievalError, OSError: The record cannot be written.
        """
        with self._evidence.record("shred", request=request) as outcomes:
            done = shred_dataset(
                self.declaration, self.dataset(dataset).policies, parts, request,
                destroy_master_keys=destroy_master_keys, jobs=jobs, columns=columns,
                master_keys=master_keys, everything=everything,
            )  # fmt: skip
            code = exit_code(file.result for file in done if file.failed)
            counts = Counter(file.result for file in done)
            outcomes.append(DatasetResult.of(dataset, code, len(done), counts))
        return done

    def shred_partition(
        self, table: str, partition: Mapping[str, str], *, request: str = "", dry_run: bool = False
    ) -> Any:
        """Erase a partition of a table for good: record the erasure, then remove its KEKs.

        Open the lake again to see its erased files.

        Args:
            table: Name of a dataset that is a table.
            partition: Names and values of the partition, as in the paths of its files.
            request: Id of the request to erase.
            dry_run: Whether to change nothing and only return what would be removed.

        Returns:
            The `modcrypt.iceberg.ShreddedPartition`.

        Raises:
            ValueError, ModcryptError, OSError: As `shred_partition`, or the erasure cannot be
                recorded; then nothing is removed.
        """
        found = self.table(table)
        planned = found.shred(partition, dry_run=True)
        if dry_run:
            return planned
        with self._evidence.record("shred", request=request) as outcomes:
            record_partition(self.declaration, table, partition, request, self.signing_key)
            done = found.shred(partition)
            outcomes.append(DatasetResult.of(table, int(bool(done.left)), done.files, {}))
        return done

    # --- verify ----------------------------------------------------------------------------------

    def verify(
        self, dataset: str | None = None, *, since: Since | None = None, resume: bool = False,
        jobs: int | None = None, progress: Callable[[int], None] | None = None,
        check: CheckElsewhere | None = None, parts: Sequence[str] = (), evidence: bool = True,
    ) -> list[LakeVerification]:  # fmt: skip
        """Verify files against the declaration: every tag of every module, and how it is made.

        Args:
            dataset: Name of a dataset; None for all.
            since: Verify only files that changed at this time or later; `"last"` for those that
                changed since `verify` found them correct. Others may set the time of a file, and
                the user's cache is trusted, so verify everything from time to time.
            resume: Whether to skip files that an interrupted verification found correct, and that
                have not changed since.
            jobs: Number of files verified concurrently; None for the default.
            progress: Function called with the number of bytes of a dataset checked so far.
            check: Function that verifies files of a dataset elsewhere, such as on Spark
                (`modcrypt.spark.verify`).
            parts: Paths inside the dataset of the files and folders to verify; none for all.
                What is beside them, and what a seal says about others, is not examined.
            evidence: Whether to record the result, if the declaration has a table `[evidence]`.

        Raises:
            ValueError: The dataset is not declared, or is a table, which has no `parts`.
            KeyRetrievalError: The key service cannot be opened.
        """
        self._check_known(self.compromised)
        limits = {"since": since is not None, "resume": resume, "parts": bool(parts)}
        recording = self._evidence.record(
            "verify", is_off=not evidence, begins=False,
            scope=", ".join(name for name, limit in limits.items() if limit),
        )  # fmt: skip
        with open_cache(self.declaration) as cache, recording as outcomes:
            found = [
                self._verify_one(
                    name, cache, since, resume, check, parts, jobs=jobs, progress=progress
                )
                for name in self.names(dataset)
            ]
            outcomes += [result.outcome for result in found]
        return found

    def _verify_one(
        self, name: str, cache: StateCache, since: Since | None, resume: bool,
        check: CheckElsewhere | None, parts: Sequence[str], **how: Any,
    ) -> LakeVerification:  # fmt: skip
        location = self.declaration.find(name).location
        try:
            if (table := self._find_table(name)) is not None:
                result = load_table_kind().verify_declared_table(table, **how)
                cache.save_version(name, result.version, is_correct=result.code == 0)
                return self._with_exposure(result, cache)
            whole = resume or not parts
            started = cache.begin_verification(name, resume=resume) if whole else None
            is_unchanged = choose_unchanged(since, started if resume else None)
            result = verify_files(
                self.list_files(name, parts), self.policies(name), cache,
                is_unchanged=is_unchanged,
                check=None if check is None else partial(check, name), **how,
            )  # fmt: skip
        except (OSError, ValueError, ImportError, FormatError) as error:
            failure = describe(error)
            return LakeVerification(
                dataset=name, location=location, error=failure.message, error_code=failure.code
            )
        if not parts:
            cache.end_verification(name)
            others = [each for each in self.declaration.datasets if each != name]
            tables = {
                table.name: Place(*locate(table.location, None))
                for table in self.declaration.tables.values()
                if table.catalog is None
            }
            overlaps = find_overlaps(self.policies(name), map(self.policies, others), tables)
            result = replace(result, findings=[*result.findings, *overlaps])
        return self._with_exposure(result, cache)

    def _with_exposure(self, result: LakeVerification, cache: StateCache) -> LakeVerification:
        """Return a verification with faults for keys that are due, or compromised."""
        declared = self.declaration.find(result.dataset)
        varies = declared.rotation.max_version_age is not None and any(
            map(names_in, declared.key_templates)
        )
        exposing = self._list_exposing(result.dataset)
        status = self.dataset_status(result.dataset, cache) if varies or exposing else None
        due = self.ages.find_due(declared) if status is None else status.due_keys
        if due:
            message = f"master keys due for a new version: {list_names(due)}; apply adds it"
            result = replace(
                result, findings=[*result.findings, Finding(word="key-age", message=message)]
            )

        worn = [
            Finding(
                word="key-uses", message=each.describe(),
                severity="fault" if each.kek_id is None else "warning",
            )
            for each in self.ages.find_worn(
                cache.count_wraps(), partial(matches_any, declared.key_templates)
            )
        ]  # fmt: skip
        result = replace(result, findings=[*result.findings, *worn])
        if status is None or not exposing:
            return result
        counts = status.counts
        findings = [
            Finding(word=state, message=f"{format_count(count, 'file')} {STATES[state]}")
            for state in EXPOSED
            if (count := counts.get(state))
        ]
        return replace(result, findings=[*result.findings, *findings])

    # --- report, impact and why ------------------------------------------------------------------

    def report(
        self, *, jobs: int | None = None, progress: Callable[[int], object] | None = None
    ) -> LakeReport:
        """Report about all datasets, by their status: coverage, keys, drift and findings.

        Args:
            jobs, progress: As in `status`.

        Raises:
            KeyRetrievalError: The key service cannot be opened.
        """
        evidence = self.read_evidence(events=MAX_EVENTS)
        is_recorded = self.declaration.evidence is not None or evidence.lines
        with open_cache(self.declaration) as cache:
            how: dict[str, Any] = {"jobs": jobs, "progress": progress}
            statuses = [self.dataset_status(name, cache, **how) for name in self.names(None)]
            report = make_report(
                statuses, self.ages, lake=self.declaration.path, digest=self.declaration.digest,
                before=cache.load_report(), evidence=evidence if is_recorded else None,
                compromised=self.compromised,
            )  # fmt: skip
            cache.save_report(report.counts())
        return report

    def read_evidence(
        self, *, at_least: str | None = None, events: int | None = None
    ) -> EvidenceCheck:
        """Return the record of evidence with its events, and whether it is as it was written.

        Neither the key service nor a file of a dataset is read.

        Args:
            at_least: A line that the record must have, `NUMBER` or `NUMBER:HASH`: the `head` of an
                earlier check, so that lines which were cut off at the end are missed.
            events: Number of events to return, the newest ones; None for all.

        Raises:
            ValueError: `at_least` names no line.
            OSError: The record, or one that it names, cannot be read.
        """
        return check_declared(self.declaration, at_least=at_least, events=events)

    def draw_file(self, dataset: str, path: str) -> str:
        """Return the page of a file, opened with the declared keys as far as possible.

        The page shows what the footer states, as `inspect --html` does; if the footer does not
        open, what verifying finds, as `verify --html` does.

        Args:
            dataset: Name of a dataset of Parquet files.
            path: Path of the file inside it, as in a report.

        Raises:
            ValueError: The dataset is not declared, or is an Iceberg table.
            OSError: The file cannot be read.
            KeyRetrievalError: The key service cannot be opened.
            ModuleNotFoundError: The extra `modcrypt[html]` is not installed.
        """
        policies = self.dataset(dataset).policies
        place = policies.place_of(path)
        properties: FileDecryptionProperties | None = None
        with suppress(ValueError):  # the partition values name no master key
            properties = policies.opening(place)
        where = {"filesystem": place.filesystem}
        try:
            return inspect_parquet(place.path, properties, **where).to_html()
        except ModcryptError:  # its footer does not open
            return verify_parquet(place.path, properties, regions=True, **where).to_html()

    def impact(
        self, key: str, *, version: int | None = None, copies: Sequence[str] = (),
        jobs: int | None = None, progress: Callable[[int], object] | None = None,
    ) -> list[DatasetImpact]:  # fmt: skip
        """Find what a key protects: what leaks with it, and what is lost without it.

        Files that are declared as erased, but open, are named whatever key opens them.

        Args:
            key: Id of a master key, also with a version as in `pii@1`, or of a KEK in hex.
            version: Version of the master key; None for all.
            copies: Paths or URLs of folders with copies of datasets, such as backups, which are
                examined like the datasets.
            jobs, progress: As in `status`.

        Raises:
            FileNotFoundError: A folder of copies does not exist.
            ValueError: Neither the key service nor any file knows the key, or versions differ.
            KeyRetrievalError: The key service cannot be opened.
        """
        choice = KeyChoice.parse(key)
        if version is not None:
            if choice.version not in (None, str(version)):
                raise ValueError(f"version {version} is given for {key}; pass one version")
            choice = KeyChoice(key=choice.key, version=str(version))
        how: dict[str, Any] = {"jobs": jobs, "progress": progress}
        statuses, record = self.status(**how), self._leaks.read()
        copied = [(at, status) for at in copies for status in self._examine_copies(at, **how)]
        self._check_known([choice], [*statuses, *(status for _, status in copied)])
        with open_cache(self.declaration) as cache:

            def judge(status: DatasetStatus) -> LeakJudge:
                return LeakJudge(status.dataset, [choice], record, cache.find_wraps)

            found = [
                add_reach(
                    find_impact(status, choice, judge(status)), status, judge(status),
                    self._list_absent(status),
                )
                for status in statuses
            ]  # fmt: skip
            return found + [
                find_impact(status, choice, judge(status), folder) for folder, status in copied
            ]

    def _examine_copies(self, folder: str, **how: Any) -> list[DatasetStatus]:
        copied = replace(self, declaration=declare_copies(self.declaration, folder))
        cache = StateCache(copied.declaration, None)  # what is known is of the files themselves
        return [copied.dataset_status(name, cache, **how) for name in copied.names(None)]

    def _list_absent(self, status: DatasetStatus) -> Iterable[tuple[str, Sequence[KeyUse]]]:
        """Return files of which only key material is left, with the keys in it."""
        if not status.absent:
            return ()
        return list_material(self.policies(status.dataset.name), status.absent)

    def why(self, file: str | os.PathLike[str], column: str | None = None) -> list[KeyStep]:
        """Follow a file, or one of its columns, to its key service; the last step may refuse.

        Args:
            file: Path or URL of a file of a dataset.
            column: Dotted name of a column.

        Raises:
            ValueError: The file belongs to no dataset of the lake.
            KeyRetrievalError: The key service cannot be opened.
            OSError: The file does not exist, is a folder, or cannot be opened.
        """
        place = Place(*locate(file, None))
        if (found := self._choose_policies(place)) is not None:
            return self._follow_keys(*found, column)
        for table in self.declaration.tables.values():
            if place.inside(table.location) is not None:
                raise ValueError(
                    f"{os.fspath(file)} is a file of the Iceberg table {table.name}; modcrypt "
                    "iceberg keys shows which keys lead to it"
                )
        raise ValueError(f"{os.fspath(file)} belongs to no dataset of {self.declaration.path}")

    def _choose_policies(self, place: Place) -> tuple[DatasetPolicies, Place] | None:
        """Return the policies of a file, and its place as listed: those of the nearest dataset."""
        # Datasets may share a folder, if their patterns differ.
        found = []
        for policies in map(self.policies, self.declaration.datasets):
            if (listed := policies.find_listed(place)) is not None:
                include, location = policies.dataset.include, policies.dataset.location
                matches = include is None or make_matcher(include)(policies.path_of(listed))
                found.append(((bool(matches), len(location)), (policies, listed)))
        return max(found, key=itemgetter(0), default=(None, None))[1]

    def _follow_keys(
        self, policies: DatasetPolicies, place: Place, column: str | None
    ) -> list[KeyStep]:
        name, path = policies.dataset.name, policies.path_of(place)
        with open_cache(self.declaration) as cache:
            leaks = self._judge(name, cache)
            is_replaced = bool(cache.find_encrypted(name, [path]))

            def judge(state: FileState) -> FileState:
                exposed = state if leaks is None else leaks.judge(state, place.modified())
                return judge_state(exposed, policies.dataset.erasures)

            examination = FooterExamination(policies, self.ages)
            is_doubted = is_replaced or bool(policies.writers)
            return list(follow_keys(examination, place, column, judge, is_doubted=is_doubted))
