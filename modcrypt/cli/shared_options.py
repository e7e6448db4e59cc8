"""Options that many commands share, as `--kms`: declared once, accepted before a command and after.

Each belongs to the innermost group whose commands use it, where `place_options` puts it. A command
uses it by its decorator; those of `IMPLIED`, by a parameter of its function with their name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click
import cloup

from modcrypt.errors import list_names

F = TypeVar("F", bound=Callable[..., Any])

_BEFORE = "modcrypt.before"
"""Member of a context's `meta`: values typed before the command, by their options."""

MAX_NAMED = 8
"""Largest number of commands that a message names."""


class OneValueOption(click.Option):
    """An option whose values may not contradict each other, unless it takes several."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Have the parser keep each value that is typed, not only the last."""
        if self.is_flag or self.count:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(self, self.opts, self.name, action="append", nargs=self.nargs)

    def handle_parse_result(
        self, ctx: click.Context, opts: Any, args: list[str]
    ) -> tuple[Any, list[str]]:
        """Process what was typed."""
        return super().handle_parse_result(ctx, self.take_one(opts, ctx), args)

    def take_one(self, opts: Any, ctx: click.Context) -> Any:
        """Return parsed values with one of this option; raise a usage error if some differ."""
        typed = opts.get(self.name)
        if self.multiple or not isinstance(typed, list):
            return opts
        if any(value != typed[0] for value in typed):
            name = self.opts[0]
            raise click.UsageError(f"{name} is given twice with different values; pass one", ctx)
        return {**opts, self.name: typed[0]}


class RareOption(OneValueOption):
    """An option that only `--help-all` shows, not `--help`."""


class SharedOption(OneValueOption):
    """An option of a group that commands in it use; a group keeps its value for the command."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Any, args: list[str]
    ) -> tuple[Any, list[str]]:
        """Process what was typed here and before the command, or keep it for the command."""
        if not isinstance(ctx.command, click.Group):
            return super().handle_parse_result(ctx, opts, args)
        if (value := self.take_one(opts, ctx).get(self.name)) is not None:
            kept = ctx.meta.setdefault(_BEFORE, {}).setdefault(self, [])
            kept += value if isinstance(value, list) else [value]
        return None, args

    def spell(self, values: Sequence[Any]) -> list[str]:
        """Return the arguments that give the option its values."""
        name = max(self.opts, key=len)
        return [name] if self.is_flag else [f"{name}={value}" for value in values]


class RareSharedOption(SharedOption, RareOption):
    """A shared option that only `--help-all` shows."""


def share(options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds the same options to each command, not equal ones."""

    def holder() -> None: ...

    options(holder)
    shared = vars(holder)["__click_params__"]

    def apply(command: F) -> F:
        for option in shared:
            option.group = None  # the group of options of the command before
        vars(command).setdefault("__click_params__", []).extend(shared)
        return command

    return apply


def option(
    *names: str, shared: bool = False, rare: bool = False, **attributes: Any
) -> Callable[[F], F]:
    """Return an option, whose first name is spelt as in the help.

    `--name VALUE` takes a value, `--name VALUE...` several, and `--name` without a type is a flag.

    Args:
        names: Name, and that of its parameter, as for `click.option`.
        rare: Whether only `--help-all` shows it.
    """
    spelt = [text.partition(" ")[0] for text in names]
    if metavar := "".join(text.partition(" ")[2] for text in names):
        several = {"multiple": True} if metavar.endswith("...") else {}
        attributes |= {"metavar": metavar.removesuffix("..."), **several}
    elif "type" not in attributes and "/" not in names[0]:
        attributes["is_flag"] = True
    classes = (RareSharedOption, SharedOption) if shared else (RareOption, OneValueOption)
    decorator = click.option(*spelt, cls=classes[not rare], **attributes)
    return share(decorator) if shared else decorator


def rare_option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """Return an option that only `--help-all` shows; arguments are those of `option`."""
    return option(*names, rare=True, **attributes)


def shared_option(*names: str, **attributes: Any) -> Callable[[F], F]:
    """Return a shared option; arguments are those of `option`."""
    return option(*names, shared=True, **attributes)


class VerbCommand(cloup.Command):
    """A command that uses options of the groups around it.

    Args:
        essential: Parameters of rare options that the first help shows, too.
        instead: What to do in place of shared options that the command does not use, by option.
    """

    def __init__(
        self, *args: Any, params: Any = (), callback: Any = None,
        essential: Collection[str] = (), instead: Mapping[str, str] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        params = [*params, *_implied(callback, {param.name for param in params})]
        super().__init__(*args, params=params, callback=callback, **more)
        self.declared, self.essential, self.instead = params, essential, instead or {}
        self.shared = [option for option in params if isinstance(option, SharedOption)]
        self.params = [param for param in params if param not in self.shared]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters, with those of the groups."""
        return list(dict.fromkeys([*self.declared, *super().get_params(ctx)]))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments after those for options that were typed before the command."""
        before = ctx.meta.get(_BEFORE, {})
        known = {option: values for option, values in before.items() if option in self.shared}
        typed = [text for option, values in known.items() for text in option.spell(values)]
        unused = [] if ctx.resilient_parsing else [*(before.keys() - known.keys())]
        try:
            rest = super().parse_args(ctx, [*typed, *args])
        except click.UsageError as error:
            if unused:  # perhaps it was to be what is missing
                raise _not_used(unused[0], ctx) from None
            raise _explain(error, ctx) from None
        if unused:
            raise _not_used(unused[0], ctx)
        if ctx.params.get("yes") and ctx.params.get("dry_run"):
            raise click.UsageError("--dry-run and --yes exclude each other", ctx)
        return rest


class VerbGroup(cloup.Group):
    """A group of verbs."""

    command_class = VerbCommand
    group_class = type  # a group in it is of the same class
    inherited: Sequence[SharedOption] = ()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters, with those of the groups around it that its commands use."""
        return [*super().get_params(ctx), *self.inherited]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before the command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _explain(error, ctx) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that the arguments name; of one in another group, name its path."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            root = ctx.find_root()
            paths = [path for path, _ in _walk(root.command) if path.split()[-1] == args[0]]
            if not paths:
                raise
            names = " or ".join(f"{root.command_path} {path}" for path in paths)
            raise click.UsageError(f"{error.message} Did you mean {names}?", ctx) from None


def verb(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], VerbCommand]:
    """Return a decorator that makes a command of a function, as `cloup.command`."""
    return cloup.command(name, cls=VerbCommand, **attributes)


def parameters_of(command: click.Command) -> list[click.Parameter]:
    """Return the parameters of a command or group, also those that it shares with others."""
    declared, inherited = getattr(command, "declared", ()), getattr(command, "inherited", ())
    return list(dict.fromkeys([*declared, *command.params, *inherited]))


def option_names(command: click.Command) -> frozenset[str] | None:
    """Return the spellings of a command's options; None for a group."""
    if isinstance(command, click.Group):
        return None
    return frozenset(
        name for each in parameters_of(command) for name in (*each.opts, *each.secondary_opts)
    )


def _implied(callback: Any, declared: Collection[str | None]) -> Iterator[click.Parameter]:
    """Yield the options that a function takes by parameters of their names."""
    for name in inspect.signature(callback).parameters if callback else ():
        if name in IMPLIED and name not in declared:
            holder: Any = IMPLIED[name](lambda: None)
            yield from holder.__click_params__


def list_shared(command: click.Command) -> list[SharedOption]:
    """Return the shared options that a command uses, or any command in a group, each once."""
    parts = command.commands.values() if isinstance(command, click.Group) else ()
    found = [*getattr(command, "shared", ()), *(o for part in parts for o in list_shared(part))]
    return list(dict.fromkeys(found))


def place_options(group: Any, above: Collection[SharedOption] = ()) -> None:
    """Add shared options, except those of groups above, to the groups whose commands use them."""
    uses: dict[SharedOption, list[click.Command]] = {}
    for part in group.commands.values():
        for option in list_shared(part):
            uses.setdefault(option, []).append(part)
    group.inherited = [option for option in uses if option in above]
    own = [
        option
        for option, users in uses.items()
        if option not in above and (len(users) > 1 or not isinstance(users[0], click.Group))
    ]
    if own:
        section = cloup.OptionGroup("Options that commands share, before or after them")
        section.options = own
        group.params.extend(own)
        group.option_groups.append(section)
    for part in group.commands.values():
        if isinstance(part, click.Group):
            place_options(part, {*above, *own})


_PATH_WORDS = re.compile(r"\b(PATH|FILE|FOLDER|DIR|SOURCE|DESTINATION|TABLE)\b", re.IGNORECASE)


def complete_paths(command: click.Command) -> None:
    """Let shells complete paths where a command takes one, or any command in a group."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            complete_paths(part)
        return
    for parameter in parameters_of(command):
        name = parameter.metavar or parameter.name or ""
        if parameter.type is click.STRING and _PATH_WORDS.search(name):
            parameter.type = click.Path()


def _explain(error: click.UsageError, ctx: click.Context) -> click.UsageError:
    """Return an error that says which commands have an unknown option, if others share it."""
    unknown = error.option_name if isinstance(error, click.NoSuchOption) else None
    for option in list_shared(ctx.find_root().command):
        if unknown in option.opts:
            return _not_used(option, ctx)
    return error


def _not_used(option: SharedOption, ctx: click.Context) -> click.UsageError:
    name = option.opts[0]
    if any(name in each.opts for each in parameters_of(ctx.command)):
        why = f"{ctx.command_path} has a {name} of its own, which is given after it"
        return click.UsageError(why, ctx)
    if instead := getattr(ctx.command, "instead", {}).get(name):
        return click.UsageError(f"{ctx.command_path} does not use {name}: {instead}", ctx)
    root = ctx.find_root().command
    used = ((path, getattr(command, "shared", ())) for path, command in _walk(root))
    users = [path for path, shared in used if any(name in option.opts for option in shared)]
    why = f"{ctx.command_path} does not use {name}, which is for {list_names(users, MAX_NAMED)}"
    after = "; give it after the command" if isinstance(ctx.command, click.Group) else ""
    return click.UsageError(f"{why}{after}", ctx)


def _walk(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, part in getattr(command, "commands", {}).items():
        yield f"{path}{name}", part
        yield from _walk(part, f"{path}{name} ")


json_option = shared_option("--json", "as_json", help="Print lines of JSON, also for a failure.")
dry_run_option = shared_option("--dry-run", help="Report what would be done; change nothing.")
force_option = shared_option("--force", help="Replace the output if it exists.")
yes_option = shared_option("--yes", help="Confirm, instead of a question on the terminal.")
jobs_option = shared_option(
    "--jobs N",
    rare=True,
    type=click.IntRange(min=1),
    help="Number of files processed concurrently. Default: by command and processors.",
)
spark_option = shared_option(
    "--spark MASTER",
    "spark_master",
    rare=True,
    help="Run on Spark (local[4], spark://HOST:PORT, yarn or sc://HOST:PORT); executors need the "
    "keys.",
)
IMPLIED = {
    "as_json": json_option, "dry_run": dry_run_option, "force": force_option, "yes": yes_option,
    "jobs": jobs_option, "spark_master": spark_option,
}  # fmt: skip
"""Shared options by the parameters of functions that stand for them."""
