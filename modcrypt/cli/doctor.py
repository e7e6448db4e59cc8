"""`modcrypt doctor`: is this machine fit for keys, and are they where they belong?"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from modcrypt.cli import key_refs
from modcrypt.cli.options.kms_options import Service, service_options
from modcrypt.cli.options.parquet_options import parquet_key_options
from modcrypt.cli.options.passphrases import said_by_uri
from modcrypt.cli.output.failures import explain, in_options, printable
from modcrypt.cli.shared import json_option, key_from, print_line, root_option
from modcrypt.errors import KeyRetrievalError

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.checkup import Check
    from modcrypt.keys import Key
    from modcrypt.kms.client import KmsClient

__all__ = ["doctor"]

# click keeps the lines of a paragraph after \b as they are.
_EXAMPLE = """\b
Examples: the machine alone; a keyring and what is under it; the logs of a history server
  modcrypt doctor
  modcrypt doctor --kms file:lake.keyring --file orders.kms.parquet
  modcrypt doctor --key-file footer.key --spark-event-log spark-events"""

MAX_PROBED = 20
"""Master keys that are tried where neither a policy nor the URI names one."""


@click.command(epilog=_EXAMPLE)
@service_options
@root_option
@click.option(
    "--file",
    "files",
    metavar="FILE",
    multiple=True,
    help="A Parquet file, of which it is told which keys it needs and whether they are there; or a "
    "file with a secret, which others should not be able to use. Repeatable.",
)
@click.option(
    "--spark-event-log",
    "logs",
    metavar="PATH",
    multiple=True,
    help="Search a Spark event log, or those in a folder, for keys, passphrases and tokens. "
    "Repeatable.",
)
@parquet_key_options
@click.option("--offline", is_flag=True, help="Don't ask the key service, nor open a keyring.")
@click.option("--strict", is_flag=True, help="Count warnings as failures.")
@json_option
def doctor(
    *,
    files: tuple[str, ...],
    logs: tuple[str, ...],
    key_file: str | None,
    key_env: str | None,
    key_fd: int | None,
    column_key_refs: tuple[str, ...],
    offline: bool,
    strict: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Check Python, packages, AES, files with secrets, policy, master keys and Spark's logs.

    With --kms or --policy random bytes are wrapped and unwrapped under each master key, which the
    key service may record. Keys that are given or opened are looked for in the logs. No secret is
    shown. The exit code is 1 where something fails.
    """
    footer = key_from(key_file, key_env, key_fd, "footer key")
    column_keys = key_refs.read_refs(column_key_refs)
    examined = _Examined(options, footer, column_keys)
    checks: list[Check] = []
    for check in examined.checks(files, logs, offline=offline):
        if not as_json:
            _print(check, checks[-1].advice if checks else "")
        checks.append(check)
    counts = Counter(check.state for check in checks)
    totals = {state: counts[state] for state in ("ok", "hint", "warn", "fail")}
    if as_json:
        print_line(json.dumps({"checks": [check.fields() for check in checks], **totals}))
    else:
        print_line(", ".join(f"{number} {state}" for state, number in totals.items()))
    return int(bool(totals["fail"] or (strict and totals["warn"])))


def _print(check: Check, advised: str) -> None:
    """Print a check; its advice, unless that stands there already."""
    print_line(printable(f"{check.state:5} {check.check}: {in_options(check.message)}"))
    if check.advice not in ("", advised):
        print_line(printable(f"      {in_options(check.advice)}"))


class _Examined:
    """What the options name to be looked at."""

    def __init__(
        self, options: dict[str, Any], footer: Key | None, column_keys: dict[str, Key]
    ) -> None:
        self._root: str | None = options.pop("root")
        self._options = options
        self._footer, self._column_keys = footer, column_keys
        self._service: Service | None = None
        self._client: KmsClient | None = None

    def checks(
        self, files: tuple[str, ...], logs: tuple[str, ...], *, offline: bool
    ) -> Iterator[Check]:
        from modcrypt import checkup

        yield from checkup.machine()
        yield checkup.secret_variables(os.environ)
        yield from self._policy()
        yield from self._secret_files()
        yield from self._key_service(offline)
        for path in files:
            yield from self._file(path)
        for path in logs:
            yield from checkup.event_log(path, self._keys())

    def _policy(self) -> Iterator[Check]:
        """Check the policy; one that is wrong is left out of all else."""
        from modcrypt.checkup import policy_file

        path, kms = self._options["policy_file"], self._options["kms"]
        if path is not None:
            found = policy_file(path)
            yield found
            if found.state == "fail":
                self._options["policy_file"] = None
                if kms is None:
                    return
        service = Service(self._options)
        if kms is not None or (service.policy is not None and service.policy.kms is not None):
            self._service = service

    def _secret_files(self) -> Iterator[Check]:
        from modcrypt.checkup import keyring, secret_file
        from modcrypt.kms.keyring.keyring import keyring_path

        service = self._service
        if service is None or not service.is_keyring:
            return
        yield from keyring(keyring_path(service.uri))
        by_uri = said_by_uri(service.uri)
        path = service.passphrase.file or (by_uri.file if by_uri is not None else None)
        if path is not None:
            yield secret_file(os.path.expanduser(path), "passphrase file")

    def _key_service(self, offline: bool) -> Iterator[Check]:
        from modcrypt.checkup import Check, master_key

        service = self._service
        if service is None:
            return
        if offline:
            yield Check(check="key service", state="hint", message="not asked: --offline")
            return
        try:
            self._client = service.client()
        except (KeyRetrievalError, ValueError, OSError, ImportError, click.ClickException) as error:
            said = explain(error, [service.uri]).message  # without what a URI may hold
            yield Check(check="key service", state="fail", message=said)
            return
        policy = service.policy
        aad = b"" if policy is None else (policy.kms_aad or "").encode()
        names = self._master_keys()
        for name in names:
            yield master_key(self._client, name, aad)
        if not names:
            yield Check(
                check="key service",
                state="hint",
                message="no master key was tried",
                advice="--policy names them, or the URI: --kms URI#ID",
            )

    def _master_keys(self) -> list[str]:
        """Name the master keys to try: the policy's, the URI's, or else the first that are on."""
        assert self._service is not None
        policy = self._service.policy
        if policy is not None:
            return list(dict.fromkeys((policy.footer_key, *policy.column_keys)))
        client: Any = self._client
        named = getattr(client, "default_key", None)
        if named:
            return [named]
        if not hasattr(client, "list_keys"):
            return []
        try:
            found = client.list_keys()
        except KeyRetrievalError:
            return []  # who uses keys need not be allowed to list them
        return [master.id for master in found if master.enabled][:MAX_PROBED]

    def _file(self, path: str) -> Iterator[Check]:
        import modcrypt
        from modcrypt import checkup
        from modcrypt.parquet.datasets.discovery import is_dataset

        if not _may_be_parquet(path):
            yield checkup.secret_file(path, "file")
            return
        decryption = tools = None
        if self._service is not None and self._client is not None:
            policy = self._service.policy
            tools = (
                modcrypt.KeyTools(self._client)
                if policy is None
                else modcrypt.KeyTools.from_policy(policy, kms=self._client)
            )
            folder = path if is_dataset(path, None) else None
            decryption = tools.decryption(policy, root=self._root or folder)
        elif self._footer is not None:
            decryption = modcrypt.FileDecryptionProperties(
                footer_key=self._footer, column_keys=self._column_keys
            )
        yield from checkup.parquet_file(path, tools, decryption)

    def _keys(self) -> list[Key]:
        """Give the keys to be looked for: those given, and a keyring's."""
        from modcrypt.kms.keyring.keyring import Keyring

        found = [*([] if self._footer is None else [self._footer]), *self._column_keys.values()]
        if isinstance(self._client, Keyring):
            masters = self._client._current().masters.values()
            versions = (version.key for master in masters for version in master.versions)
            found += [key for key in versions if key is not None]
        return found


def _may_be_parquet(path: str) -> bool:
    if "://" in path or os.path.isdir(path):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(4) in (b"PAR1", b"PARE")
    except OSError:
        return False  # which the check of a secret's file tells
