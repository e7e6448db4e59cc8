"""`modcrypt keys`: the master keys of a key service, and the wrapped keys in files."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import cloup

import modcrypt
from modcrypt.cli.keys.generation import generate
from modcrypt.cli.keys.key_rotation import admin_method, print_master, rotate
from modcrypt.cli.keys.key_scan import scan
from modcrypt.cli.options.kms_options import refuse, required_service, service_options
from modcrypt.cli.references import key_option
from modcrypt.cli.shared import confirm, format_table, print_json, print_line, read_key
from modcrypt.cli.shared_options import VerbGroup, option
from modcrypt.errors import printable

if TYPE_CHECKING:  # not to be loaded for the help
    from modcrypt.kms.client import MasterKey
    from modcrypt.kms.settings import Settings

_GROUP_EXAMPLE = """\b
Examples: create a master key, use it, rotate it and disable its first version
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt encrypt --kms file:lake.keyring#footer orders.parquet lake/orders.parquet
  modcrypt keys rotate --kms file:lake.keyring --key footer lake
  modcrypt keys disable --kms file:lake.keyring footer --version 1"""

_CREATE_EXAMPLE = """\b
Examples: a keyring and its first master key; a key that is already used elsewhere
  modcrypt keys create --kms file:lake.keyring footer
  modcrypt keys create --kms file:lake.keyring pii --import file:pii.key"""

_LIST_EXAMPLE = """\b
Example:
  modcrypt keys list --kms file:lake.keyring"""

_DISABLE_EXAMPLE = """\b
Example: keys wrapped under version 1 can no longer be unwrapped
  modcrypt keys disable --kms file:lake.keyring footer --version 1"""

_ENABLE_EXAMPLE = """\b
Example:
  modcrypt keys enable --kms file:lake.keyring footer --version 1"""

_DESTROY_EXAMPLE = """\b
Example:
  modcrypt keys destroy --kms file:lake.keyring footer --version 1 --yes"""


_version_option = option(
    "--version N",
    type=click.IntRange(min=1),
    help="Older version of the master key; disable also stops all versions before it.",
)


@cloup.group(cls=VerbGroup, epilog=_GROUP_EXAMPLE)
def keys() -> None:
    """Make keys, and manage master keys and what they wrap.

    A master key stays in its key service: a keyring, Vault, a cloud's KMS or a PKCS#11 token. The
    files contain the keys that it wraps.
    """


@keys.command(epilog=_CREATE_EXAMPLE)
@click.argument("key_id", metavar="ID")
@service_options
@option(
    "--plaintext",
    help="Create the keyring without a passphrase; anyone who can read the file has the keys.",
)
@key_option("Keyring only: import a key of 16, 24 or 32 bytes", "--import")
def create(*, key_id: str, plaintext: bool, as_json: bool, **options: Any) -> None:
    """Create a master key, and the keyring if it does not exist.

    ID names the key, which has 256 bits. A keyring is one file, encrypted under a passphrase, or
    unencrypted with --plaintext.
    """
    settings = required_service(options)
    if not (is_keyring := settings.uri.startswith("file:")):
        refuse({"plaintext", "import"}, "this needs a keyring, --kms file:PATH")
    if plaintext:
        refuse({"passphrase"}, "--plaintext creates a keyring without a passphrase")
    value = read_key(options["import"], "imported key")
    more = {} if value is None else {"value": value}
    client: Any = (
        _open_or_create_keyring(settings, plaintext, key_id) if is_keyring else settings.client
    )
    master = admin_method(client, "create_key")(key_id, **more)
    print_master("created", master, as_json)


def _open_or_create_keyring(settings: Settings, plaintext: bool, key_id: str) -> Any:
    from modcrypt.kms.keyring.keyring import check_key_id

    check_key_id(key_id)  # before an empty keyring is created
    try:
        if not plaintext:
            return settings.client
        return modcrypt.kms.open_kms(settings.uri)
    except FileNotFoundError:
        return _create_keyring(settings, plaintext)
    except modcrypt.errors.KeyAccessDeniedError:
        if not plaintext:
            raise
        raise click.UsageError("the keyring exists and is encrypted; omit --plaintext") from None


def _create_keyring(settings: Settings, plaintext: bool) -> Any:
    from modcrypt.kms.key_references import PROMPT
    from modcrypt.kms.keyring.keyring_passphrase import ask_passphrase
    from modcrypt.kms.keyring.keyring_uri import keyring_path

    path = keyring_path(settings.uri)
    if plaintext:
        return modcrypt.Keyring.create(path, plaintext=True)
    if settings.passphrase != PROMPT:
        return modcrypt.Keyring.create(path, passphrase=settings.asker)
    name = settings.uri.partition("#")[0].partition("?")[0]
    passphrase = ask_passphrase(f"the new {name}", twice=True)
    return modcrypt.Keyring.create(path, passphrase=passphrase)


@keys.command("list", epilog=_LIST_EXAMPLE)
@service_options
def list_(*, as_json: bool, **options: Any) -> None:
    """List the master keys, without their values."""
    master_keys: list[MasterKey] = admin_method(required_service(options).client, "list_keys")()
    if as_json:
        print_json("keys.list", {"keys": [asdict(master) for master in master_keys]})
        return
    rows = [
        (
            key.id,
            key.version,
            "destroyed" if key.destroyed else "enabled" if key.enabled else "disabled",
            key.created,
            ", ".join(
                f"{version} (destroyed)" if version in key.destroyed_versions else str(version)
                for version in key.disabled_versions
            ) or None,
        )
        for key in master_keys
    ]  # fmt: skip
    titles = ("master key", "version", "state", "created", "disabled versions")
    print_line(format_table(titles, rows, left=(0, 2, 3, 4)))


def _add_switch(name: str, epilog: str, text: str) -> None:
    """Add a command that stops a master key, or starts it again."""

    @keys.command(name, epilog=epilog, help=text)
    @click.argument("key_id", metavar="ID")
    @_version_option
    @service_options
    def switch(*, key_id: str, version: int | None, as_json: bool, **options: Any) -> None:
        change = admin_method(required_service(options).client, f"{name}_key")
        print_master(f"{name}d", change(key_id, version), as_json, version)


_add_switch("disable", _DISABLE_EXAMPLE, """\
Stop a master key, or older versions of it, from unwrapping.

With --version, only versions up to that one, which is not the newest, are disabled. Files
whose keys they wrapped become unreadable: rotate them first.""")  # fmt: skip
_add_switch("enable", _ENABLE_EXAMPLE, """\
Enable a disabled master key, or one version of it, again.

ID is the master key.""")  # fmt: skip


@keys.command(epilog=_DESTROY_EXAMPLE)
@click.argument("key_id", metavar="ID")
@_version_option
@service_options
def destroy(*, key_id: str, version: int | None, yes: bool, as_json: bool, **options: Any) -> None:
    """Destroy a master key, or one older version of it, for good.

    The data whose keys the master key ID wrapped is lost, unless a copy of the key exists, for
    example in a backup.
    """
    settings = required_service(options)
    from modcrypt.kms.client import MasterKey

    if version is not None and not settings.uri.startswith("file:"):
        raise click.UsageError(
            "--version needs a keyring; this service can only destroy whole keys"
        )
    destroyed = key_id if version is None else f"{key_id}, version {version}"
    confirm(printable(f"destroys {destroyed}, and all that it has wrapped is lost for good"), yes)
    change = admin_method(settings.client, "destroy_key")
    master = change(key_id) if version is None else change(key_id, version)
    gone = MasterKey(id=key_id, enabled=False, destroyed=True)
    print_master("destroyed", master or gone, as_json, version)


keys.add_command(rotate)
keys.add_command(generate)
keys.add_command(scan)
