"""`modcrypt doctor`: checks of the machine, the key service, files with keys, and their writers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import modcrypt
from modcrypt.cli.datasets.arguments import take_paths
from modcrypt.cli.datasets.declared import find_lake
from modcrypt.cli.options.kms_options import (
    names_service,
    service_of_lake,
    service_options,
    service_settings,
)
from modcrypt.cli.options.parquet_options import key_references, parquet_key_options
from modcrypt.cli.output.failures import explain, use_option_names
from modcrypt.cli.shared import print_json, print_line, root_option
from modcrypt.cli.shared_options import option, verb
from modcrypt.errors import KeyRetrievalError, printable

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.doctor.machine_checks import Check
    from modcrypt.keys import Key
    from modcrypt.kms.client import KmsClient
    from modcrypt.kms.settings import Settings

_EXAMPLE = """\b
Examples: only the machine; bugs of the writer of a file; a keyring and a file under it; logs of a
history server
  modcrypt doctor
  modcrypt doctor orders.parquet
  modcrypt doctor --kms file:lake.keyring --file orders.kms.parquet
  modcrypt doctor --key file:footer.key --spark-event-log spark-events"""

MAX_PROBED = 20
"""Largest number of master keys tried if neither a policy nor the URI names one."""


@verb(epilog=_EXAMPLE)
@click.argument("paths", metavar="[FILE...]", nargs=-1, callback=take_paths)
@service_options
@root_option
@option(
    "--file FILE...",
    "files",
    callback=take_paths,
    help="Parquet file or dataset whose keys to try, or file with a secret whose mode to check. "
    "Repeatable.",
)
@option(
    "--spark-event-log PATH...",
    "logs",
    help="Search a Spark event log, or all logs in a folder, for keys, passphrases and "
    "tokens. Repeatable.",
)
@parquet_key_options
@option("--offline", help="Do not contact the key service or open a keyring.")
@option("--strict", help="Count warnings as failures.")
def doctor(
    *, paths: tuple[str, ...], files: tuple[str, ...], logs: tuple[str, ...], offline: bool,
    strict: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Check the machine, keys and secrets, or FILEs for known bugs.

    With FILE, doctor checks nothing else: it looks into Parquet files or folders, plaintext or,
    with their keys, encrypted, for known bugs of their writers, and explains their effects.

    doctor checks Python, packages, AES, files with secrets, the policy and master keys. With --kms
    or --policy, it wraps and unwraps random bytes under each master key, which the key service may
    log. It searches Spark's logs for the keys that options name or a keyring holds. It prints no
    secret.
    The exit code is 1 if a check fails.
    """
    explicit = modcrypt.Settings(**key_references(options))
    _ = explicit.keys  # raises if a key cannot be read
    examination = _Examination(options, explicit)
    checks: list[Check] = []
    of_files = examination.bugs(paths) if paths else None
    for check in of_files or examination.checks(files, logs, offline=offline):
        if not as_json:
            _print_check(check, checks[-1].advice if checks else "")
        checks.append(check)
    counts = Counter(check.state for check in checks)
    totals = {state: counts[state] for state in ("ok", "hint", "warn", "fail")}
    if as_json:
        print_json("doctor", {"checks": [check.fields() for check in checks], **totals})
    else:
        print_line(", ".join(f"{number} {state}" for state, number in totals.items()))
    return int(bool(totals["fail"] or (strict and totals["warn"])))


def _print_check(check: Check, previous_advice: str) -> None:
    """Print a check and its advice, unless the line before gave the same advice."""
    print_line(printable(f"{check.state:5} {check.check}: {use_option_names(check.message)}"))
    if check.advice not in ("", previous_advice):
        print_line(printable(f"      {use_option_names(check.advice)}"))


class _Examination:
    """The checks that the options select."""

    def __init__(self, options: dict[str, Any], explicit: Settings) -> None:
        self._options = options
        self._explicit = explicit
        self._service: Settings | None = None
        self._client: KmsClient | None = None

    def checks(
        self, files: tuple[str, ...], logs: tuple[str, ...], *, offline: bool
    ) -> Iterator[Check]:
        from modcrypt.doctor import checkup
        from modcrypt.doctor.machine_checks import machine

        yield from machine()
        yield checkup.secret_variables(os.environ)
        yield from self._policy()
        yield from self._secret_files()
        yield from self._key_service(offline)
        for path in files:
            yield from self._file(path)
        for path in logs:
            yield from checkup.event_log(path, self._keys_to_find())

    def bugs(self, paths: tuple[str, ...]) -> Iterator[Check]:
        """Explain the bugs of the writers of files."""
        from modcrypt.doctor.writer_bugs import writer_bugs
        from modcrypt.jobs.listing import find_named_files, folders_of

        files = find_named_files(folders_of(paths, absolute=False))
        decryption = None
        if self._explicit.footer_key is not None:
            decryption = self._explicit.decryption()
        elif service := service_settings(self._options, needed=names_service()):
            decryption = service.decryption()
        for file in files:
            yield from writer_bugs(file.place, decryption)

    def _policy(self) -> Iterator[Check]:
        """Check the policy; ignore an invalid one afterwards."""
        from modcrypt.doctor.checkup import policy_file

        path, kms = self._options["policy_file"], self._options["kms"]
        if path is not None:
            check = policy_file(path)
            yield check
            if check.state == "fail":
                self._options["policy_file"] = None
                if kms is None:
                    return
            if kms is None and modcrypt.Policy.load(path).kms is None:
                return
        self._service = service_settings(self._options)
        if self._service is None and self._explicit.footer_key is None:
            yield from self._declaration()
        if self._service is None and names_service():
            self._service = service_settings(self._options, needed=True)

    def _declaration(self) -> Iterator[Check]:
        """Check the declaration of a lake that is found, and take its key service."""
        from modcrypt.doctor.machine_checks import Subject

        if (lake := find_lake()) is None:
            return
        about = Subject("declaration")
        if lake.refusal is not None:
            yield about.hint(str(lake.refusal), "doctor ignores it")
            return
        yield about.ok(lake.path)
        self._service = service_of_lake(lake, self._options)

    def _secret_files(self) -> Iterator[Check]:
        from modcrypt.doctor.checkup import keyring, secret_file
        from modcrypt.kms.keyring.keyring_uri import keyring_path, passphrase_of_uri

        service = self._service
        if service is None or not service.uri.startswith("file:"):
            return
        yield from keyring(keyring_path(service.uri))
        reference = passphrase_of_uri(service.uri) or service.passphrase or ""
        kind, _, path = reference.partition(":")
        if kind == "file":
            yield secret_file(os.path.expanduser(path), "passphrase file")

    def _key_service(self, offline: bool) -> Iterator[Check]:
        from modcrypt.doctor.checkup import master_key, wrapping
        from modcrypt.doctor.machine_checks import Subject

        about, service = Subject("key service"), self._service
        if service is None:
            return
        if offline:
            yield about.hint("not contacted: --offline")
            return
        try:
            self._client = service.client
        except (KeyRetrievalError, ValueError, OSError, ImportError, click.ClickException) as error:
            message = explain(error, [service.uri]).message  # hides secrets in the URI
            yield about.fail(message)
            return
        policy = service.policy
        signed = service.signed_by or (policy is not None and policy.signed_by)
        yield from wrapping(self._client, signed=bool(signed))
        aad = b"" if policy is None else (policy.kms_aad or "").encode()
        names = self._master_keys()
        for name in names:
            yield master_key(self._client, name, aad)
        if not names:
            yield about.hint(
                "no master key was tried", "name master keys by --policy, or one by --kms URI#ID"
            )

    def _master_keys(self) -> list[str]:
        """Return the master keys to try: the policy's, the URI's, or else the first enabled."""
        assert self._service is not None
        policy = self._service.policy
        if declared := getattr(self._service, "declared", None):
            return list(declared["master_keys"])
        if policy is not None:
            return list(dict.fromkeys((policy.footer_key, *policy.column_keys)))
        client: Any = self._client
        if default := getattr(client, "default_key", None):
            return [default]
        if not hasattr(client, "list_keys"):
            return []
        try:
            masters = client.list_keys()
        except KeyRetrievalError:
            return []  # users of keys may lack the right to list them
        return [master.id for master in masters if master.enabled][:MAX_PROBED]

    def _file(self, path: str) -> Iterator[Check]:
        from modcrypt.doctor import checkup
        from modcrypt.parquet.datasets.discovery import is_dataset

        if not _may_be_parquet(path):
            yield checkup.secret_file(path, "file")
            return
        decryption = tools = None
        if self._service is not None and self._client is not None:
            settings = self._service
            if is_dataset(path, None):
                settings = settings.under(path)
            tools, decryption = settings.tools(), settings.decryption()
        elif self._explicit.footer_key is not None:
            decryption = self._explicit.decryption()
        yield from checkup.parquet_file(path, tools, decryption)

    def _keys_to_find(self) -> list[Key]:
        """Return the keys to search for: those that options name, and those in a keyring."""
        from modcrypt.kms.keyring.keyring import Keyring

        footer, columns = self._explicit.keys
        wanted = [*([] if footer is None else [footer]), *columns.values()]
        if isinstance(self._client, Keyring):
            masters = self._client._states.current().masters.values()
            versions = (version.key for master in masters for version in master.versions)
            wanted += [key for key in versions if key is not None]
        return wanted


def _may_be_parquet(path: str) -> bool:
    if "://" in path or os.path.isdir(path):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"PAR1", b"PARE")
    except OSError:
        return False  # the check for secret files reports it
