"""Trace the sentences of the specifications to checks and cases.

    python tools/conformance/trace.py          print what covers each sentence
    python tools/conformance/trace.py --ci     fail if a sentence has nothing, or names what is gone
    python tools/conformance/trace.py --text pme Encryption.md
                                               fail if a quote is not in the specification's text

The files trace/*.toml list the sentences.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for a run as a script

from tools.conformance import corpus
from tools.conformance.corpus import Case

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).with_name("trace")
LONGEST_QUOTE = 25  # words


@dataclass(frozen=True)
class Sentence:
    """A sentence of a specification; `spec` is the name of its file."""

    spec: str
    id: str
    section: str
    quote: str
    checks: tuple[str, ...]
    patterns: tuple[str, ...]
    flags: frozenset[str]
    reason: str

    def covers(self, case: Case) -> bool:
        """Return whether a case tests the sentence."""
        own = {*case.raw.get("flags", ())} | ({"accept"} & {case.raw.get("outcome", "")})
        listed = case.format == "ags1" and case.direction == "read" and bool(self.flags & own)
        return listed or any(fnmatchcase(case.id, pattern) for pattern in self.patterns)

    def cases(self) -> list[str]:
        """Return the ids of the cases that test the sentence."""
        return [case.id for case in all_cases() if self.covers(case)]

    @property
    def coverage(self) -> str:
        """Return what the sentence has: `both`, `cases`, `check` or `reason`."""
        if self.checks and self.patterns:
            return "both"
        return "cases" if self.patterns else "check" if self.checks else "reason"


@cache
def all_cases() -> tuple[Case, ...]:
    """Return the cases for readers and writers."""
    return (*corpus.read_cases(), *corpus.write_cases())


@cache
def sentences() -> tuple[Sentence, ...]:
    """Return the sentences of all specifications, in the order of the files."""
    return tuple(sentence for path in sorted(FOLDER.glob("*.toml")) for sentence in _read(path))


def _read(path: Path) -> Iterator[Sentence]:
    document = tomllib.loads(path.read_text())
    for entry in document["sentence"]:
        yield Sentence(
            path.stem, entry["id"], entry["section"], entry["quote"],
            tuple(entry.get("check", ())), tuple(entry.get("cases", ())),
            frozenset(entry.get("flags", ())), entry.get("reason", ""),
        )  # fmt: skip


def specification(spec: str) -> tuple[str, str]:
    """Return title and address of a specification."""
    document = tomllib.loads((FOLDER / f"{spec}.toml").read_text())
    return document["spec"], document["url"]


def sentences_of(case: Case) -> list[Sentence]:
    """Return the sentences that a case tests."""
    return [sentence for sentence in sentences() if sentence.covers(case)]


# --- the check ------------------------------------------------------------------------------------


def problems() -> Iterator[str]:
    """Yield what is wrong with the lists."""
    seen: set[str] = set()
    for sentence in sentences():
        if sentence.id in seen:
            yield f"{sentence.id}: the number occurs twice"
        seen.add(sentence.id)
        yield from (f"{sentence.id}: {problem}" for problem in sentence_problems(sentence))
    for case in all_cases():
        if not sentences_of(case) and not case.id.startswith(UNTRACED):
            yield f"{case.id}: the case tests no sentence"


UNTRACED = ("read/pkmt1/", "read/signatures/", "read/seals/", "read/key-metadata/",
            "write/key-metadata/", *(
    f"read/parquet/{name}" for name in (
        # parquet.thrift, not the text on encryption, is about these.
        "page-kind-", "crc", "ctr-data-page-with-crc", "extension-in-", "foreign-extensions",
        "types", "empty", "v2-", "page-header-uncompressed-size-lies", "offset-index-lies",
        "bloom-filter-header-lies",
    )
))  # fmt: skip
"""Beginnings of the ids of cases that no sentence of these specifications is about."""


def sentence_problems(sentence: Sentence) -> Iterator[str]:
    if not (sentence.checks or sentence.patterns or sentence.reason):
        yield "neither check, cases nor reason"
    if len(sentence.quote.split()) > LONGEST_QUOTE:
        yield f"the quote has more than {LONGEST_QUOTE} words"
    if not (sentence.checks and sentence.patterns) and not sentence.reason:
        yield "a sentence that lacks check or cases needs a reason"
    for pattern in sentence.patterns:
        if not any(fnmatchcase(case.id, pattern) for case in all_cases()):
            yield f"no case matches {pattern}"
    for check in sentence.checks:
        if not exists(check):
            yield f"{check} does not exist"


def invented_quotes(spec: str, text: str) -> Iterator[str]:
    """Yield the numbers of sentences whose quotes a specification's text does not have."""
    plain = _without_markup(text)
    for sentence in sentences():
        if sentence.spec == spec and _without_markup(sentence.quote) not in plain:
            yield f"{sentence.id}: the text has no {sentence.quote!r}"


def _without_markup(text: str) -> str:
    linked = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[`*_\\]", "", linked).split())


def exists(check: str) -> bool:
    """Return whether FILE or FILE:SYMBOL exists; the symbol may be Class.method."""
    file, _, symbol = check.partition(":")
    path = ROOT / file
    return path.is_file() and (not symbol or symbol in _symbols(path))


@cache
def _symbols(path: Path) -> frozenset[str]:
    return frozenset(_definitions(ast.parse(path.read_text()), ""))


def _definitions(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name
            yield from _definitions(child, f"{prefix}{child.name}.")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ci", action="store_true", help="print problems only; fail if any")
    parser.add_argument(
        "--text", nargs=2, metavar=("SPEC", "FILE"), help="look for the quotes in a file"
    )
    options = parser.parse_args()
    if options.ci or options.text:
        spec, path = options.text or ("", "")
        found = list(problems())
        found += invented_quotes(spec, Path(path).read_text()) if spec else ()
        print(*found, sep="\n", end="\n" if found else "")
        print(f"{len(sentences())} sentences, {len(all_cases())} cases, {len(found)} problems")
        return int(bool(found))
    for sentence in sentences():
        print(
            f"{sentence.id} [{sentence.coverage}, {len(sentence.cases())} cases] {sentence.quote}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
