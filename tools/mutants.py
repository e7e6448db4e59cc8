"""Measure how many small faults in some packages their own quick tests notice.

After collection, each mutant gets a forked process that runs the tests that reach the change, the
fastest first, until one fails; what only programs and forks of tests run counts as not reached.
Hashes choose the mutants, so unchanged code keeps its mutants.

With --redundant, each mutant meets all tests that reach it, and a greedy cover of the killed
mutants lists the tests that it does without. Such a test may still document a rule, or kill mutants
that the hashes did not choose: read it before you delete it.

With --spare, only the mutants count that the tests listed in a file kill: those that survive die
today, and would live on if these tests were deleted.

mutmut mutates neither decorated functions nor limits; cosmic-ray imports all anew for each mutant.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from tools.mutations import Module, Mutation

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {  # modules, or packages of them: their tests
    "aad": "test_aad.py",
    "aead": "test_aead.py",
    "keys": "test_keys.py test_key_metadata.py test_private_files.py kms/test_references.py",
    "ags1": "ags1",
    "pkmt1": "pkmt1",
    "io/publication io/private_files io/destinations": (
        "io test_private_files.py test_filesystem_moves.py test_symbolic_links.py"
    ),
    "kms/wrapping kms/wrapped_key_metadata kms/policy kms/external_keys kms/references": (
        "kms/test_wrapping.py kms/test_wrapped_key_metadata.py kms/test_policy.py "
        "kms/test_external_keys.py kms/test_references.py test_policy_attacks.py"
    ),
    "kms/keyring": "kms/keyring",
    "kms/signing": "kms/signing jobs/test_seal_vectors.py jobs/test_signed_files.py",
    "jobs/run_record jobs/seal_writers jobs/dataset_seals": (
        "jobs/test_dataset_seals.py jobs/test_seal_ledger.py jobs/test_seal_attacks.py "
        "parquet/datasets"
    ),
    "lake/declarations": "lake/declarations",
    "iceberg/format": "iceberg/format",
    "parquet/crypto parquet/format/modules": (
        "parquet/crypto parquet/format/test_modules.py parquet/test_foreign_writers.py "
        "parquet/test_hostile.py parquet/test_tamper.py parquet/test_unknown_fields.py "
        "parquet/arrow/test_reader.py "
        "parquet/arrow/test_writer.py parquet/arrow/test_missing_keys.py "
        "parquet/rewrite/test_rekey.py parquet/verify/test_verification.py "
        "kms/test_expected_keys.py"
    ),
    "parquet/verify": "parquet/verify jobs/test_leaks.py",
}
QUICK_SECONDS = 1.0
"""CPU time of the longest tests that mutants are run against."""

GROUP_SECONDS, SPARE_SECONDS = 7200, 10
"""Limits on a group of modules, and on a mutant beyond three times what its tests usually take."""

MAX_MEMORY = 6 << 30
"""Bytes that a mutant may allocate."""


class Reach(NamedTuple):
    """The CPU time of a test, its number, and the numbers of the mutations that it reaches."""

    seconds: float
    number: int
    mutations: frozenset[int]


class Result(NamedTuple):
    """The outcome of one mutant, and the test functions that reach and that kill it."""

    module: str
    line: int
    change: str
    killed: bool
    reached_by: frozenset[str]
    killed_by: frozenset[str]


class Trial:
    """A pytest plugin that runs the collected tests against mutants instead of once."""

    def __init__(self, modules: list[str], options: argparse.Namespace) -> None:
        self.modules, self.number, self.seed = modules, options.number, options.seed
        self.exhaustive = options.redundant
        self.spare = frozenset(options.spare.read_text().split() if options.spare else ())
        self.results: list[Result] | None = None  # where tests cannot be collected

    def pytest_collection(self) -> None:
        """Have Hypothesis try fewer examples, and look for no smaller ones that fail."""
        from hypothesis import Phase, settings  # after pytest has seen to its assertions

        normal, phases = settings.default, (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", normal, phases=phases, max_examples=25)
        settings.load_profile("mutants")

    def pytest_internalerror(self, excrepr: object) -> None:
        """Show what ended the trial."""
        print(excrepr, file=sys.stderr)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests that reach a mutant, for each one."""
        mutations, self.results = self.find_mutations(), []
        all_tests: list[Reach] = in_fork(lambda: find_reach(session, mutations), GROUP_SECONDS)
        names = [item.nodeid.partition("[")[0] for item in session.items]
        reach = [t for t in all_tests if t.seconds < QUICK_SECONDS or names[t.number] in self.spare]
        for number, mutation in enumerate(mutations):
            tests = sorted(test for test in reach if number in test.mutations)
            spare = [test for test in tests if names[test.number] in self.spare]
            lost = self.find_killers(session, mutation, spare) if spare else []
            if self.spare and not lost:
                continue
            killers = self.find_killers(session, mutation, [t for t in tests if t not in spare])
            reached_by, killed_by = (
                frozenset(names[test.number] for test in some) for some in (tests, killers or lost)
            )
            where = mutation.module.name, mutation.line
            self.results.append(
                Result(*where, mutation.change, bool(killers), reached_by, killed_by)
            )
        return True

    def find_killers(
        self, session: pytest.Session, mutation: Mutation, tests: list[Reach]
    ) -> list[Reach]:
        """Return the tests that fail with a mutation: all of them, or the first one.

        A process that crashes or takes too long leaves no answer: each test then gets its own.
        """
        killers = run_mutant(session, mutation, tests, self.exhaustive)
        if killers is None and self.exhaustive:
            alone = {test: run_mutant(session, mutation, [test], False) for test in tests}
            return [test for test, found in alone.items() if found != []] or tests
        return tests[:1] if killers is None else killers

    def find_mutations(self) -> list[Mutation]:
        """Return a sample of the mutations of each module."""
        for name in self.modules:
            importlib.import_module(f"modcrypt.{name.replace('/', '.')}")
        functions = find_functions()
        paths = {name: str(ROOT / "modcrypt" / f"{name}.py") for name in self.modules}
        modules = [Module(name, path, functions[path]) for name, path in paths.items()]
        return [mutation for m in modules for mutation in m.sample(self.number, self.seed)]


def find_reach(session: pytest.Session, mutations: list[Mutation]) -> list[Reach]:
    """Run all tests without a mutant; return what they reach.

    A test that fails here, as one of interrupted threads may in a fork, reaches nothing.
    """
    reached: set[int] = set()
    for module in {mutation.module for mutation in mutations}:
        own = {number: m for number, m in enumerate(mutations) if m.module is module}
        module.watch(own, reached.add)
    reach = []
    for number, item in enumerate(session.items):
        reached.clear()
        start = time.process_time()
        if not passes(session, number):
            print(f"left out: {item.nodeid} fails without a mutant", file=sys.stderr, flush=True)
            session.testsfailed = 0
            continue
        reach.append(Reach(time.process_time() - start, number, frozenset(reached)))
    return reach


def run_mutant(
    session: pytest.Session, mutation: Mutation, tests: list[Reach], exhaustive: bool
) -> list[Reach] | None:
    """Return the tests that fail in a process with a mutation; None if the process fails."""

    def find_failing() -> list[Reach]:
        mutation.module.apply(mutation)
        failing = []
        for test in tests:
            if not passes(session, test.number):
                failing.append(test)
                if not exhaustive:
                    break
                session.testsfailed = 0
        return failing

    seconds = SPARE_SECONDS + int(3 * sum(test.seconds for test in tests))
    found: list[Reach] | None = in_fork(find_failing, seconds)
    return found


def find_functions() -> dict[str, list[FunctionType]]:
    """Return all live functions by the file that defines them."""
    gc.unfreeze()  # conftest.py froze them, which hides them
    functions = defaultdict[str, list[FunctionType]](list)
    for found in gc.get_objects():
        if type(found) is FunctionType:
            functions[found.__code__.co_filename].append(found)
    return functions


def passes(session: pytest.Session, number: int) -> bool:
    """Run one test."""
    item = session.items[number]
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return not session.testsfailed


def in_fork(work: Callable[[], object], seconds: int) -> Any:
    """Return the result of `work` in a forked process.

    Args:
        work: Function without arguments, whose result can be pickled.
        seconds: CPU time after which the process ends.

    Returns:
        The result; None if the process failed or took too long.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.alarm(3 * seconds)  # for those that wait; a busy machine is slower, too
            resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
            with open(writing, "wb") as pipe:
                pickle.dump(work(), pipe)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(answer) if answer else None


def run_group(modules: list[str], tests: str, options: argparse.Namespace) -> list[Result] | None:
    """Return the results for some modules, which have the same tests; None without them."""
    trial = Trial(modules, options)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # pytest reports each mutant it kills
    arguments = [str(ROOT / "tests" / test) for test in tests.split()]
    # Without its plugin, pytest would not know the options of faulthandler in pyproject.toml.
    quiet = ["-mnot slow", "-pno:cacheprovider", "-pno:xdist", "-ofaulthandler_timeout=0"]
    pytest.main([*arguments, "-q", *quiet], [trial])
    return trial.results


def find_modules(group: str) -> list[str]:
    """Return the names of the modules of a group, those within packages included."""
    package = ROOT / "modcrypt"
    paths = [
        path for name in group.split()
        for path in sorted(package.glob(f"{name}/**/*.py")) or [package / f"{name}.py"]
        if path.name != "__init__.py"
    ]  # fmt: skip
    return [path.relative_to(package).with_suffix("").as_posix() for path in paths]


def find_redundant(results: list[Result]) -> dict[str, int]:
    """Return the test functions that kill only mutants that others kill.

    Returns:
        The functions that a greedy cover of the killed mutants leaves over, with the number of
        mutants that they reach.
    """
    reached = Counter(test for result in results for test in result.reached_by)
    left = [result.killed_by for result in results if result.killed_by]
    kept = set[str]()
    while left:
        kills = Counter(test for killers in left for test in killers)
        best = min(kills, key=lambda test: (-kills[test], reached[test], test))
        kept.add(best)
        left = [killers for killers in left if best not in killers]
    return {test: reached[test] for test in sorted(reached) if test not in kept}


def show_rate(name: str, results: list[Result]) -> float:
    """Print a row of the table; return the percentage of mutants that tests kill."""
    killed, count = sum(result.killed for result in results), len(results)
    rate = killed / count if count else 1
    print(f"{name:30} {count:4} mutants {killed:4} killed {rate:5.0%}", flush=True)
    return 100 * rate


def main() -> None:
    """Print a table of the modules, and the mutants that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=30, help="mutants of each module")
    parser.add_argument("--seed", default="1", help="another seed chooses other mutants")
    parser.add_argument("--at-least", type=float, default=0, help="fail below this percentage")
    parser.add_argument("--redundant", action="store_true", help="list tests that add no kill")
    parser.add_argument("--spare", type=Path, help="file of tests: what only these kill survives")
    parser.add_argument("--tests", help="tests of the modules, which may be any, instead of GROUPS")
    parser.add_argument("modules", nargs="*", help="modules or packages to mutate instead of all")
    options = parser.parse_args()
    tests_of = {" ".join(options.modules): options.tests} if options.tests else GROUPS
    groups = {group: find_modules(group) for group in tests_of}
    known = [module for modules in groups.values() for module in modules]
    chosen = find_modules(" ".join(options.modules)) if options.modules else known
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"no such module: {', '.join(unknown)}; there are {', '.join(known)}")
    results: list[Result] = []
    for group, tests in tests_of.items():
        modules = [module for module in groups[group] if module in chosen]
        run = partial(run_group, modules, tests, options)
        found = in_fork(run, GROUP_SECONDS) if modules else []
        if found is None:
            sys.exit("no results")
        for module in modules:
            show_rate(module, [r for r in found if r.module == module])
        results += found
    rate = show_rate("all", results)
    for result in sorted(result for result in results if not result.killed):
        print(f"modcrypt/{result.module}.py:{result.line}: {result.change}", *result.killed_by)
    if options.redundant:
        for test, count in find_redundant(results).items():
            print(f"adds no kill to the others, reaches {count} mutants: {test}")
    if rate < options.at_least:
        sys.exit(f"tests kill {rate:.1f} % of the mutants, less than {options.at_least:g} %")


if __name__ == "__main__":
    main()
