"""Mutations of Python modules: small faults such as a shifted limit or a missing check.

Functions change by their code alone, so that live modules can take a mutation on. Left out are thus
defaults, decorators and attributes of classes, and also messages.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

__all__ = ["Module", "Mutation"]

SWAPS: dict[type[ast.AST], Any] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


class Place(NamedTuple):
    """A node's place in its parent: an item of a list, or a field."""

    holder: Any
    key: Any


class Site(NamedTuple):
    """A node that a mutation may change, within a function of this name ("" for constants)."""

    node: ast.AST
    place: Place
    statement: Place
    function: str


@dataclass(frozen=True)
class Mutation:
    """A change to a module: code for its functions, or new values of its constants."""

    module: Module
    line: int
    change: str
    code: CodeType
    constants: dict[str, object]
    statements: list[Place]


def replacements(site: Site) -> Iterator[ast.expr | ast.stmt]:
    """Yield the replacements of a node."""
    node = site.node
    match node:
        case ast.Compare(left, ops, right):
            for at, op in enumerate(ops):
                yield ast.Compare(left, [*ops[:at], SWAPS[type(op)](), *ops[at + 1 :]], right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(SWAPS[type(op)](), values)
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Raise() | ast.Expr(ast.Call()):
            yield ast.Pass()
    if site.place.key == "test" and not isinstance(node, ast.UnaryOp):
        assert isinstance(node, ast.expr)
        yield ast.UnaryOp(ast.Not(), node)


def find_sites(node: ast.AST, function: str = "", statement: Place | None = None) -> Iterator[Site]:
    """Yield the sites below a node."""
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.FunctionDef) and field != "body":
            continue
        for at, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or not _is_mutable(node, child):
                continue
            place = Place(value, at) if isinstance(value, list) else Place(vars(node), field)
            name = getattr(child, "name", None) if isinstance(child, ast.stmt) else None
            inner = f"{function}.{name}" if name else function
            around = place if isinstance(child, ast.stmt) or statement is None else statement
            yield Site(child, place, around, inner)
            yield from find_sites(child, inner, around)


def _is_mutable(parent: ast.AST, child: ast.AST) -> bool:
    """Return whether code may change that `parent` has in this place."""
    if isinstance(parent, ast.Module):
        return isinstance(child, ast.FunctionDef | ast.ClassDef | ast.Assign)
    if isinstance(parent, ast.ClassDef):
        return isinstance(child, ast.FunctionDef | ast.ClassDef)
    return not isinstance(child, ast.JoinedStr | ast.Assert)


class Module:
    """The mutations of one live module; `functions` are all that its file defines."""

    def __init__(self, name: str, path: str, functions: list[FunctionType]) -> None:
        self.name, self.path, self.functions = name, path, functions
        self.live = next(m for m in sys.modules.values() if getattr(m, "__file__", None) == path)
        self.tree = ast.parse(Path(path).read_bytes())
        self.sites = list(find_sites(self.tree))
        self.uses = defaultdict[str, list[Place]](list)
        for site in self.sites:
            if isinstance(site.node, ast.Name) and site.function:
                self.uses[site.node.id].append(site.statement)

    def sample(self, number: int, seed: str) -> list[Mutation]:
        """Return some mutations, the same ones for the same code and seed."""
        ranked, seen = [], Counter[str]()
        for site in self.sites:
            for new in replacements(site):
                change = " ".join(f"{ast.unparse(site.node)} -> {ast.unparse(new)}".split())
                text = f"{seed} {site.function} {change}"
                seen[text] += 1
                rank = hashlib.sha256(f"{text} {seen[text]}".encode()).digest()
                ranked.append((rank, site, new, change))
        ranked.sort(key=lambda entry: entry[0])
        found = (self._mutation(site, new, change) for _, site, new, change in ranked)
        return list(islice(filter(None, found), number))

    def _mutation(self, site: Site, new: ast.AST, change: str) -> Mutation | None:
        """Return a mutation; None if live code cannot take it on."""
        site.place.holder[site.place.key] = ast.copy_location(new, site.node)
        code = self._compile()
        site.place.holder[site.place.key] = site.node
        line: int = site.node.lineno  # type: ignore[attr-defined]
        if site.function:
            fits = all(f.__code__.co_freevars == c.co_freevars for f, c in self._pairs(code))
            return Mutation(self, line, change, code, {}, [site.statement]) if fits else None
        constants = self._constants(code)
        statements = [place for name in constants for place in self.uses[name]]
        return Mutation(self, line, change, code, constants, statements) if constants else None

    def _compile(self) -> CodeType:
        return compile(ast.fix_missing_locations(self.tree), self.path, "exec", dont_inherit=True)

    def _constants(self, code: CodeType) -> dict[str, object]:
        """Return the constants to which the code gives other values."""
        fresh, live = {**vars(self.live)}, vars(self.live)
        exec(code, fresh)
        return {
            name: value for name, value in fresh.items()
            if isinstance(value, int | bytes | tuple) and value != live.get(name)
        }  # fmt: skip

    def _pairs(self, code: CodeType) -> Iterator[tuple[FunctionType, CodeType]]:
        codes = {(c.co_qualname, c.co_firstlineno): c for c in nested_codes(code)}
        for function in self.functions:
            old = function.__code__
            yield function, codes[old.co_qualname, old.co_firstlineno]

    def apply(self, mutation: Mutation) -> None:
        """Change the live module; what other modules imported keeps its value."""
        vars(self.live).update(mutation.constants)
        self._swap(mutation.code)

    def _swap(self, code: CodeType) -> None:
        for function, new in self._pairs(code):
            function.__code__ = new

    def watch(self, mutations: dict[int, Mutation], report: Callable[[int], None]) -> None:
        """Have the live module call `report` with the number of each mutation that it reaches."""
        for number, mutation in mutations.items():
            for holder, key in mutation.statements:
                call = ast.Call(ast.Name("_report", ast.Load()), [ast.Constant(number)], [])
                both = ast.If(ast.Constant(True), [ast.Expr(call), holder[key]], [])
                holder[key] = ast.copy_location(both, holder[key])
        vars(self.live)["_report"] = report
        self._swap(self._compile())


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects within a code object."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from nested_codes(constant)
