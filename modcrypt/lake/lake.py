"""A lake that one file declares: `Lake.open("modcrypt.toml")`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeAlias

from modcrypt.errors import FormatError, ModcryptError
from modcrypt.io.places import Place
from modcrypt.io.stores import locate
from modcrypt.jobs.failures import describe
from modcrypt.kms.client import KmsClient
from modcrypt.kms.settings import Settings
from modcrypt.kms.signing.signing_keys import SigningKey
from modcrypt.lake.application import AppliedFile, LakeApplication, carry_out_plan
from modcrypt.lake.dataset import LakeDataset
from modcrypt.lake.declarations.declaration import LakeDeclaration, TableDeclaration
from modcrypt.lake.declarations.declaration_file import open_declaration, require_valid
from modcrypt.lake.declarations.declaration_path import FILE_NAME
from modcrypt.lake.examination import FooterExamination
from modcrypt.lake.files.file_policies import DatasetPolicies
from modcrypt.lake.files.lake_files import LakeFile, LakeFiles
from modcrypt.lake.key_ages import KeyAges, add_versions
from modcrypt.lake.key_impact import DatasetImpact, KeyChoice, find_impact
from modcrypt.lake.key_path import KeyStep, follow_keys
from modcrypt.lake.lake_reference import LakeReference
from modcrypt.lake.lake_report import LakeReport, make_report
from modcrypt.lake.plan import LakePlan, make_plan
from modcrypt.lake.state_cache import StateCache, open_cache
from modcrypt.lake.status import DatasetStatus, find_status
from modcrypt.lake.table_kind import LakeTable, load_table_kind
from modcrypt.lake.verification.dataset_check import Since, choose_unchanged, verify_files
from modcrypt.lake.verification.file_check import CheckedFile
from modcrypt.lake.verification.results import LakeVerification
from modcrypt.parquet.crypto.properties import FileDecryptionProperties
from modcrypt.parquet.verify.file_verification import verify_parquet
from modcrypt.parquet.verify.inspection import inspect_parquet
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
                properties of somebody's table, and must be trusted like a file that is found.
            more: Further arguments of `Lake`.

        Raises:
            FileNotFoundError: There is no declaration.
            ValueError: The declaration is invalid; the message lists all mistakes. Or nobody named
                or trusted it, and it has commands, which the message lists.
        """
        content = open_declaration(config, is_found=is_found)
        if content is None:
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
            raise ValueError(f"{name} is no Iceberg table; open it with Lake.dataset")
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
        return LakeFiles(policies.root, policies.dataset.include, source, parts)

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
            return [self.dataset_status(name, cache, **how) for name in self.names(dataset)]

    def dataset_status(
        self, name: str, cache: StateCache, *, jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> DatasetStatus:  # fmt: skip
        """Return the status of one dataset; errors of its location are part of it."""
        try:
            if (table := self._find_table(name)) is not None:
                return load_table_kind().find_table_status(table, self.ages)
            examination = FooterExamination(self.policies(name), self.ages)
            return find_status(
                self.list_files(name), examination, cache, jobs=jobs, progress=progress
            )
        except (OSError, ValueError, ImportError, FormatError) as error:
            declared, failure = self.declaration.find(name), describe(error)
            return DatasetStatus(dataset=declared, error=failure.message, code=failure.code)

    # --- apply -----------------------------------------------------------------------------------

    def apply(
        self, dataset: str | None = None, *, dry_run: bool = False, jobs: int | None = None,
        accept_replaced: bool = False, progress: Callable[[int], object] | None = None,
        carry_out: Callable[[LakePlan], Sequence[AppliedFile]] | None = None,
    ) -> list[LakeApplication]:  # fmt: skip
        """Establish the declared state with the jobs for conversion and key rotation.

        Plaintext files are encrypted in place, files under other policies re-keyed, and old keys
        rotated. Nothing is decrypted or deleted. Files that may be forged or moved are refused.
        A second run finds nothing to do.

        Args:
            dataset: Name of a dataset; None for all.
            dry_run: Whether to plan only.
            accept_replaced: Whether to encrypt plaintext files that replaced encrypted ones, which
                are refused otherwise. The cache remembers these. In a dataset with `signed_by`,
                whether to encrypt and sign any plaintext file that is not in its source.
            jobs: Number of files processed concurrently; None for the default.
            progress: Function called with the number of files after each.
            carry_out: Function that carries out the plan of a dataset elsewhere, such as on Spark
                (`modcrypt.spark.apply`), and returns the result of each file.

        Raises:
            ValueError: The dataset is not declared.
            KeyRetrievalError: The key service cannot be opened, or refuses a new version.
        """

        def carry_out_here(plan: LakePlan) -> Sequence[AppliedFile]:
            policies = self.policies(plan.dataset)
            return carry_out_plan(plan, policies, jobs=jobs, progress=progress)

        carry_out = carry_out or carry_out_here
        with open_cache(self.declaration) as cache:
            return [
                self._apply_one(
                    name, cache, dry_run, accept_replaced, carry_out, jobs=jobs, progress=progress
                )
                for name in self.names(dataset)
            ]

    def _apply_one(
        self, name: str, cache: StateCache, dry_run: bool, accept_replaced: bool,
        carry_out: Callable[[LakePlan], Sequence[AppliedFile]], **how: Any,
    ) -> LakeApplication:  # fmt: skip
        """Plan and carry out the changes of one dataset.

        Versions that are due come first, and then another plan, because they make more keys old.
        Files change inside `hand_over`, so that the next seal states them. The cache learns last
        what was encrypted, so that it is examined again.
        """
        table = self._find_table(name)

        def plan_again() -> LakePlan:
            status = self.dataset_status(name, cache, **how)
            if table is not None:
                return load_table_kind().plan_table(status)
            return make_plan(status, accept_replaced=accept_replaced)

        plan = plan_again()
        if dry_run or plan.error:
            return LakeApplication(plan=plan, dry_run=dry_run)
        new_versions = plan.new_versions
        if new_versions:
            add_versions(self.client, new_versions)
            self.__dict__.pop("ages", None)  # lists the new versions again
            plan = plan_again()
        if table is not None:
            done: Sequence[AppliedFile] = load_table_kind().change_table(plan, table, self.ages)
        else:
            policies, how = self.policies(name), {"accept_new": accept_replaced}
            with policies.hand_over(**how) if plan.changes else nullcontext():
                done = carry_out(plan)
            cache.note_encrypted(name, [file.path for file in done if not file.code])
        return LakeApplication(plan=plan, files=done, new_versions=new_versions)

    # --- verify ----------------------------------------------------------------------------------

    def verify(
        self, dataset: str | None = None, *, since: Since | None = None, resume: bool = False,
        jobs: int | None = None, progress: Callable[[int], None] | None = None,
        check: CheckElsewhere | None = None, parts: Sequence[str] = (),
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

        Raises:
            ValueError: The dataset is not declared, or is a table, which has no `parts`.
            KeyRetrievalError: The key service cannot be opened.
        """
        with open_cache(self.declaration) as cache:
            return [
                self._verify_one(
                    name, cache, since, resume, check, parts, jobs=jobs, progress=progress
                )
                for name in self.names(dataset)
            ]

    def _verify_one(
        self, name: str, cache: StateCache, since: Since | None, resume: bool,
        check: CheckElsewhere | None, parts: Sequence[str], **how: Any,
    ) -> LakeVerification:  # fmt: skip
        location = self.declaration.find(name).location
        try:
            if (table := self._find_table(name)) is not None:
                return load_table_kind().verify_declared_table(table, **how)
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
        return result

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
        with open_cache(self.declaration) as cache:
            how: dict[str, Any] = {"jobs": jobs, "progress": progress}
            statuses = [self.dataset_status(name, cache, **how) for name in self.names(None)]
            report = make_report(
                statuses, self.ages, lake=self.declaration.path, digest=self.declaration.digest,
                before=cache.load_report(),
            )  # fmt: skip
            cache.save_report(report.counts())
        return report

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
        self, key: str, *, version: int | None = None, jobs: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> list[DatasetImpact]:  # fmt: skip
        """Find what a key protects: what leaks with it, and what is lost without it.

        Args:
            key: Id of a master key, or of a KEK in hex.
            version: Version of the master key; None for all.
            jobs, progress: As in `status`.

        Raises:
            KeyRetrievalError: The key service cannot be opened.
        """
        choice = KeyChoice(key=key, version=None if version is None else str(version))
        return [find_impact(status, choice) for status in self.status(jobs=jobs, progress=progress)]

    def why(self, file: str | os.PathLike[str], column: str | None = None) -> list[KeyStep]:
        """Follow a file, or one of its columns, to its key service; the last step may refuse.

        Args:
            file: Path or URL of a file of a dataset.
            column: Dotted name of a column.

        Raises:
            ValueError: The file belongs to no dataset of the lake.
            KeyRetrievalError: The key service cannot be opened.
        """
        place = Place(*locate(file, None))
        for policies in map(self.policies, self.declaration.datasets):
            if (listed := policies.find_listed(place)) is not None:
                return list(follow_keys(FooterExamination(policies, self.ages), listed, column))
        for table in self.declaration.tables.values():
            if place.inside(table.location) is not None:
                raise ValueError(
                    f"{os.fspath(file)} is a file of the Iceberg table {table.name}; modcrypt "
                    "iceberg keys shows which keys lead to it"
                )
        raise ValueError(f"{os.fspath(file)} belongs to no dataset of {self.declaration.path}")
