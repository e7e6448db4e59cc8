"""Former spellings of options, which work until 1.1 with a warning on stderr."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice

import click

from modcrypt.cli.references import Reference, warn_of_former

_PRESENT = {
    "--accept": "--accept-algorithm",
    "--recipients-file": "--to",
    "--threads": "--jobs",
    "--verify-key": "--signed-by",
    "--witness-key": "--witnessed-by",
}
"""Present spellings by former ones."""

_MOVED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("iceberg", "policy"): ("iceberg", "admin", "policy"),
    ("iceberg", "prune"): ("iceberg", "admin", "prune"),
    ("iceberg", "remove-orphans"): ("iceberg", "admin", "remove-orphans"),
    ("iceberg", "repair"): ("iceberg", "admin", "repair"),
    ("recipients", "generate"): ("keys", "generate", "--kind", "recipient"),
    ("seals", "generate"): ("keys", "generate", "--kind", "signing"),
}
"""Present commands by former ones."""

NewOptions = list[str]
"""Former `--new` options of a command, spelled as those of `encrypt`."""

_KINDS = {
    f"{option}-{kind}": (option, f"{kind}:")
    for option, kinds in (
        *((name, ("file", "env", "fd")) for name in ("--key", "--hash-key", "--passphrase")),
        ("--import", ("file", "env")),
        ("--aad-prefix", ("file", "hex")),
    )
    for kind in kinds
}
"""Options, and the kinds of their values, by the former options for each kind."""


def use_present_names(
    program: click.Group, arguments: Sequence[str]
) -> tuple[list[str], NewOptions]:
    """Return arguments with former commands and spellings replaced.

    A spelling that the command has as an option of its own stays.
    The `--new` options of `rekey`, `mask` and `share` are not among them, but returned apart.
    """
    arguments = _replace_command(arguments)
    command, encrypt = _find_command(program, arguments), program.commands["encrypt"]
    new: NewOptions = []
    if command.name in ("rekey", "mask", "share"):
        arguments, new = _take_new_options(arguments, encrypt)
    return list(_replace(arguments, command)), list(_replace(new, encrypt, warn=False))


def _replace_command(arguments: Sequence[str]) -> Sequence[str]:
    former = tuple(arguments[:2])
    if (present := _MOVED.get(former)) is None:
        return arguments
    warn_of_former(f"modcrypt {' '.join(former)}", f"modcrypt {' '.join(present)}")
    rest = arguments[2:]
    if former == ("recipients", "generate"):  # whose --kind had another meaning
        rest = [re.sub(r"^--kind(?=$|=)", "--scheme", argument) for argument in rest]
    return [*present, *rest]


def _take_new_options(
    arguments: Sequence[str], encrypt: click.Command
) -> tuple[list[str], NewOptions]:
    """Return arguments without `--new` options, and these as options of `encrypt`."""
    options = {name: option for option in encrypt.params for name in option.opts}
    kept, new, rest = list[str](), NewOptions(), iter(arguments)
    for argument in rest:
        former, equals, value = argument.partition("=")
        name = former.replace("--new-", "--", 1)
        option = options.get(_KINDS.get(name, (name, ""))[0])
        if argument == "--" or not former.startswith("--new-") or option is None:
            kept += [argument, *rest] if argument == "--" else [argument]
            continue
        new.append(f"{name}{equals}{value}")
        if not equals and not getattr(option, "is_flag", False):
            new += islice(rest, 1)
    if new:
        warn_of_former("what the --new options say", "--to POLICY")
    return kept, new


def _find_command(program: click.Group, arguments: Sequence[str]) -> click.Command:
    command: click.Command = program
    for argument in arguments:
        if isinstance(command, click.Group) and not argument.startswith("-"):
            command = command.commands.get(argument, command)
    return command


def _replace(
    arguments: Sequence[str], command: click.Command, *, warn: bool = True
) -> Iterator[str]:
    known = {name: parameter for parameter in command.params for name in parameter.opts}
    secrets = {name for name, each in known.items() if isinstance(each.type, Reference)}
    rest = iter(arguments)
    for argument in rest:
        former, equals, value = argument.partition("=")
        name, kind = _KINDS.get(former, (_PRESENT.get(former, ""), ""))
        if argument == "--":
            yield argument
            break
        if argument == "--passphrase" and argument in secrets:
            yield from _name_prompt(rest)
        elif former in known or name not in (secrets | {"--aad-prefix"} if kind else known):
            yield argument
        else:
            if warn:
                warn_of_former(former, f"{name} {kind}..." if kind else name)
            if kind:
                equals, value = "=", kind + (value if equals else next(rest, ""))
            yield f"{name}{equals}{value}"
    yield from rest


def _name_prompt(rest: Iterator[str]) -> Iterator[str]:
    """Yield `--passphrase` with its reference, which is `prompt` if it was a flag before."""
    following = next(rest, None)
    is_flag = following is None or following.startswith("-") or following.endswith((".key", ".pub"))
    if is_flag or os.path.exists(following or ""):
        warn_of_former("--passphrase as a flag", "--passphrase prompt")
        yield "--passphrase=prompt"
        if following is not None:
            yield following
    else:
        yield f"--passphrase={following}"
