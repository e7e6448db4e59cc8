"""Former spellings of options, which work until 1.1 with a warning on stderr."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import click

from modcrypt.cli.references import Reference, warn_of_former
from modcrypt.cli.shared_options import parameters_of

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


@dataclass(frozen=True)
class FormerOptions:
    """The `--new` options of `rekey`, `mask` and `share`, which `--to` took the place of."""

    new: tuple[str, ...] = ()


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
) -> tuple[list[str], FormerOptions]:
    """Return arguments with former commands and spellings replaced.

    A spelling that the command has as an option of its own stays. The `--new` options of `rekey`,
    `mask` and `share` are not among them, but returned apart.
    """
    arguments = _replace_command(arguments)
    command, former = find_command(program, arguments), FormerOptions()
    if command.name in ("rekey", "mask", "share"):
        encrypt = program.get_command(click.Context(program), "encrypt")
        assert encrypt is not None  # it is one of the program's own
        arguments, new = _take_new(arguments, _options_of(encrypt))
        former = FormerOptions(tuple(_replace(new, encrypt, warn=False)))
    return list(_replace(arguments, command)), former


def _replace_command(arguments: Sequence[str]) -> Sequence[str]:
    former = tuple(arguments[:2])
    if (present := _MOVED.get(former)) is None:
        return arguments
    warn_of_former(f"modcrypt {' '.join(former)}", f"modcrypt {' '.join(present)}")
    rest = arguments[2:]
    if former == ("recipients", "generate"):  # whose --kind had another meaning
        rest = [re.sub(r"^--kind(?=$|=)", "--scheme", argument) for argument in rest]
    return [*present, *rest]


def _options_of(command: click.Command) -> dict[str, click.Parameter]:
    return {name: option for option in parameters_of(command) for name in option.opts}


def _take_new(
    arguments: Sequence[str], options: Mapping[str, click.Parameter]
) -> tuple[list[str], list[str]]:
    """Return arguments without the `--new` options, and these as other options."""
    kept, taken, rest, names = list[str](), list[str](), iter(arguments), list[str]()
    for argument in rest:
        former, equals, value = argument.partition("=")
        name = former.replace("--new-", "--", 1)
        option = options.get(_KINDS.get(name, (_PRESENT.get(name, name), ""))[0])
        option = options.get(name, option)
        if argument == "--" or not former.startswith("--new-") or option is None:
            kept += [argument, *rest] if argument == "--" else [argument]
            continue
        names.append(former)
        taken.append(f"{name}{equals}{value}")
        if not equals and not getattr(option, "is_flag", False):
            taken += islice(rest, 1)
    if names:
        note = f"{', '.join(names)} will be removed in modcrypt 1.1; name a policy by --to instead"
        click.echo(f"modcrypt: warning: {note}", err=True)
    return kept, taken


def find_command(program: click.Command, arguments: Sequence[str]) -> click.Command:
    """Return the command that arguments name, or the group around it."""
    command, context = program, click.Context(program)
    rest = iter(arguments)
    for argument in rest:
        if isinstance(command, click.Group):
            option = _options_of(command).get(argument)
            if option is not None and not getattr(option, "is_flag", False):
                next(rest, None)  # its value, which is no command
            command = command.get_command(context, argument) or command
    return command


def _replace(
    arguments: Sequence[str], command: click.Command, *, warn: bool = True
) -> Iterator[str]:
    known = _options_of(command)
    types = {name: each.type for name, each in known.items() if isinstance(each.type, Reference)}
    secrets = types.keys()
    rest = iter(arguments)
    for argument in rest:
        former, equals, value = argument.partition("=")
        name, kind = _KINDS.get(former, (_PRESENT.get(former, ""), ""))
        if argument == "--":
            yield argument
            break
        if argument == "--passphrase" and getattr(types.get(argument), "flag", False):
            yield from _name_prompt(rest, types[argument])
        elif former in known or name not in (secrets | {"--aad-prefix"} if kind else known):
            yield argument
        else:
            if warn:
                warn_of_former(former, f"{name} {kind}..." if kind else name)
            if kind:
                equals, value = "=", kind + (value if equals else next(rest, ""))
            yield f"{name}{equals}{value}"
    yield from rest


def _name_prompt(rest: Iterator[str], kind: Reference) -> Iterator[str]:
    """Yield `--passphrase` with its reference, which is `prompt` if it was a flag before."""
    following = next(rest, None)
    is_value = following is not None and kind.fits(following)
    if not is_value and (
        following is None or following.startswith("-") or following.endswith((".key", ".pub"))
        or os.path.exists(following)
    ):  # fmt: skip
        warn_of_former("--passphrase as a flag", "--passphrase prompt")
        yield "--passphrase=prompt"
        if following is not None:
            yield following
    else:
        yield f"--passphrase={following}"
