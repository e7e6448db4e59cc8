"""Options whose values are references to secrets: `file:PATH`, `env:NAME`, `fd:N` or `prompt`.

A command refuses a file that other users can read before it does anything else.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from modcrypt.cli.shared_options import F, option

KEY_KINDS = ("file", "env", "fd")
PASSPHRASE_KINDS = (*KEY_KINDS, "prompt")


class Reference(click.ParamType):  # type: ignore[type-arg]  # older ones are not generic
    """The type of an option that names a secret.

    Args:
        what: Name of the secret in messages.
        services: Schemes of key services whose URIs the option takes, too.
        bare: Whether the option formerly took a path without `file:`.
        flag: Whether the option formerly was a flag.
        masters: Whether the option also takes references to master keys.
    """

    name = "reference"

    def __init__(
        self, what: str, kinds: Sequence[str] = KEY_KINDS, *, services: Sequence[str] = (),
        bare: bool = False, flag: bool = False, masters: bool = False,
    ) -> None:  # fmt: skip
        self.what, self.kinds, self.services = what, kinds, services
        self.bare, self.flag, self.masters = bare, flag, masters

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return a valid reference; messages omit one that is not, as it may be the secret."""
        from modcrypt.kms.key_references import (  # not for the help
            check_reference,
            names_master_key,
        )

        if self.masters and names_master_key(value):
            return value
        named = "KEY" if param is None or param.param_type_name == "argument" else param.opts[0]
        if self.bare and not self.fits(value):
            if _is_of_environment(ctx, param):  # it may not be needed: reading it checks it
                return f"file:{value}"
            if os.path.exists(os.path.expanduser(value)):
                warn_of_former(f"{named} PATH", f"{named} file:PATH")
                value = f"file:{value}"
        try:
            check_reference(value, self.what, self.kinds, self.services)
        except ValueError as error:
            raise click.UsageError(f"{named}: {error}", ctx) from None
        check_private_file(value, f"{self.what} file")
        return value

    def fits(self, value: str) -> bool:
        """Return whether a value begins as a reference; a file may be called alike."""
        return value.partition(":")[0].lower() in (*self.kinds, *self.services)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the paths or references in an environment variable, separated as in PATH."""
        return re.findall(rf"(?:file:)?[^{os.pathsep}]+", rv)


def reference_option(
    name: str, what: str, text: str, kinds: Sequence[str] = KEY_KINDS, *,
    services: Sequence[str] = (), bare: bool = False, flag: bool = False, masters: bool = False,
    **attributes: Any,
) -> Callable[[F], F]:  # fmt: skip
    """Return an option that takes one reference, with a help text.

    `attributes` are those of `option`, the others of `Reference`.
    """
    kind = Reference(what, kinds, services=services, bare=bare, flag=flag, masters=masters)
    return option(f"{name} REF", type=kind, help=text, **attributes)


def key_option(text: str, name: str = "--key", **attributes: Any) -> Callable[[F], F]:
    """Return the option for a key: a file of raw bytes, hex or base64, or text elsewhere.

    The help text ends with the kinds of references.
    """
    kinds = "file:PATH, env:NAME or fd:N"
    if attributes.get("masters"):  # short, so that each help fits on a screen
        kinds = "file:PATH, file:KEYRING#ID, env:NAME, fd:N"
    return reference_option(name, "key", f"{text}: {kinds}.", **attributes)


def new_passphrase_option(**attributes: Any) -> Callable[[F], F]:
    """Return the option for the passphrase of a key file."""
    text = "Passphrase of the key file; prompt asks for it."
    return reference_option(
        "--passphrase", "passphrase", text, PASSPHRASE_KINDS, flag=True, **attributes
    )


def _is_of_environment(ctx: click.Context | None, param: click.Parameter | None) -> bool:
    """Return whether a value comes from a variable, which names paths as other programs do."""
    if ctx is None or param is None:
        return False
    source = ctx.get_parameter_source(param.name or "")
    return source is click.core.ParameterSource.ENVIRONMENT


def warn_of_former(former: str, present: str) -> None:
    """Print that a former spelling will stop working, and the present one."""
    note = f"{former} is now called {present}; the former name works until modcrypt 1.1"
    click.echo(f"modcrypt: warning: {note}", err=True)


def check_private_file(
    reference: str, what: str, is_secret: Callable[[str], bool] | None = None
) -> None:
    """Raise a usage error if a reference names a file of the user that others can read.

    `is_secret` returns whether the file at a path is one; by default, unless it is a public key.
    A file of root that another user may read is accepted: containers mount secrets so. `doctor`
    reports the file itself.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.command.name == "doctor":
        return
    kind, _, path = reference.partition(":")
    try:
        status = os.stat(os.path.expanduser(path)) if kind == "file" else None
    except (OSError, ValueError):  # reading it fails with a message
        return
    if status is None or not stat.S_ISREG(status.st_mode) or status.st_uid != _user():
        return
    is_open = status.st_mode & (stat.S_IRGRP | stat.S_IROTH)
    if is_open and (is_secret is None or is_secret(path)):
        from modcrypt.keys.lookalikes import is_public_key, show_name  # not for the help

        with suppress(OSError), open(os.path.expanduser(path), "rb") as file:
            if is_public_key(file.read(64)):
                return  # no secret; what needs one says so
        shown, mode = show_name(path), f"mode {stat.S_IMODE(status.st_mode):04o}"
        raise click.UsageError(
            f"other users can read the {what} {shown} ({mode}): make it private with chmod 600 "
            f"{shown}"
        )


def _user() -> int | None:
    return os.geteuid() if hasattr(os, "geteuid") else None


def refuse_descriptors() -> None:
    """Raise a usage error if a reference of the command is a descriptor, for executors of Spark."""
    context = click.get_current_context()
    for parameter in context.command.get_params(context):
        value = context.params.get(parameter.name or "")
        if isinstance(parameter.type, Reference) and str(value).startswith("fd:"):
            raise click.UsageError(
                f"{parameter.opts[0]}: Spark's executors cannot read a file descriptor; use "
                "file:PATH or env:NAME"
            )


def is_stdin(options: Mapping[str, Any], name: str) -> bool:
    """Return whether an option names standard input, as `fd:0`."""
    kind, _, number = str(options.get(name)).partition(":")
    return kind == "fd" and int(number) == 0
