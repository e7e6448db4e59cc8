"""Measure how many small faults in the core modules their own quick tests notice.

After collection, each mutant gets a forked process that runs the tests that reach the change, the
fastest first, until one fails; what only programs and forks of tests run counts as not reached.
Hashes choose the mutants, so unchanged code keeps its mutants.
mutmut mutates neither decorated functions nor limits; cosmic-ray imports all anew for each mutant.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import pytest

from tools.mutations import Module, Mutation

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {  # modules: their tests
    "aad": "test_aad.py",
    "aead": "test_aead.py",
    "keys": "test_keys.py",
    "kms/wrapping": "kms/test_wrapping.py",
    "ags1/blocks ags1/layout ags1/lengths ags1/reader ags1/writer ags1/files": (
        "ags1/test_reader.py ags1/test_writer.py ags1/test_files.py"
    ),
    "parquet/crypto/footer parquet/crypto/footer_opening parquet/crypto/crypto_fields "
    "parquet/crypto/ciphers "
    "parquet/crypto/key_lookup parquet/crypto/column_kinds parquet/crypto/file_plan "
    "parquet/crypto/chunk_opening "
    "parquet/crypto/bloom_filters parquet/format/modules": (
        "parquet/crypto parquet/format/test_modules.py parquet/test_foreign_writers.py "
        "parquet/test_hostile.py parquet/test_tamper.py parquet/test_unknown_fields.py "
        "parquet/arrow/test_reader.py "
        "parquet/arrow/test_writer.py parquet/arrow/test_missing_keys.py "
        "parquet/rewrite/test_rekey.py parquet/verify/test_verification.py "
        "kms/test_expected_keys.py"
    ),
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
    """The outcome of one mutant."""

    module: str
    line: int
    change: str
    killed: bool


class Trial:
    """A pytest plugin that runs the collected tests against mutants instead of once."""

    def __init__(self, modules: list[str], number: int, seed: str) -> None:
        self.modules, self.number, self.seed = modules, number, seed
        self.results: list[Result] = []

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
        mutations = self.find_mutations()
        reach: list[Reach] = in_fork(lambda: find_reach(session, mutations), GROUP_SECONDS)
        for number, mutation in enumerate(mutations):
            tests = sorted(test for test in reach if number in test.mutations)
            seconds = SPARE_SECONDS + int(3 * sum(test.seconds for test in tests))
            survives = in_fork(partial(survive, session, mutation, tests), seconds)
            where = mutation.module.name, mutation.line
            self.results.append(Result(*where, mutation.change, not survives))
        return True

    def find_mutations(self) -> list[Mutation]:
        """Return a sample of the mutations of each module."""
        functions = find_functions()
        paths = {name: str(ROOT / "modcrypt" / f"{name}.py") for name in self.modules}
        modules = [Module(name, path, functions[path]) for name, path in paths.items()]
        return [mutation for m in modules for mutation in m.sample(self.number, self.seed)]


def find_reach(session: pytest.Session, mutations: list[Mutation]) -> list[Reach]:
    """Run all tests without a mutant; return what the quick ones reach.

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
    return [test for test in reach if test.seconds < QUICK_SECONDS]


def survive(session: pytest.Session, mutation: Mutation, tests: list[Reach]) -> bool:
    """Change the live module; return whether the tests pass."""
    mutation.module.apply(mutation)
    return all(passes(session, test.number) for test in tests)


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
            signal.alarm(10 * seconds)  # for those that wait; a busy machine is slower, too
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


def run_group(modules: list[str], tests: str, number: int, seed: str) -> list[Result]:
    """Return the results for some modules, which have the same tests."""
    trial = Trial(modules, number, seed)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # pytest reports each mutant it kills
    arguments = [str(ROOT / "tests" / test) for test in tests.split()]
    # Without its plugin, pytest would not know the options of faulthandler in pyproject.toml.
    quiet = ["-pno:cacheprovider", "-pno:xdist", "-ofaulthandler_timeout=0"]
    pytest.main([*arguments, "-q", *quiet], [trial])
    return trial.results


def show_rate(name: str, results: list[Result]) -> None:
    """Print a row of the table."""
    killed, count = sum(result.killed for result in results), len(results)
    print(f"{name:30} {count:4} mutants {killed:4} killed {killed / count:5.0%}", flush=True)


def main() -> None:
    """Print a table of the modules, and the mutants that survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=30, help="mutants of each module")
    parser.add_argument("--seed", default="1", help="another seed chooses other mutants")
    parser.add_argument("modules", nargs="*", help="modules to mutate instead of all")
    options = parser.parse_args()
    known = [module for group in GROUPS for module in group.split()]
    if unknown := sorted(set(options.modules) - set(known)):
        parser.error(f"no such module: {', '.join(unknown)}; there are {', '.join(known)}")
    results: list[Result] = []
    for group, tests in GROUPS.items():
        modules = [m for m in group.split() if m in (options.modules or group.split())]
        run = partial(run_group, modules, tests, options.number, options.seed)
        found = in_fork(run, GROUP_SECONDS) if modules else []
        for module in modules:
            show_rate(module, [r for r in found or sys.exit("no results") if r.module == module])
        results += found
    show_rate("all", results)
    for result in sorted(result for result in results if not result.killed):
        print(f"modcrypt/{result.module}.py:{result.line}: {result.change}")


if __name__ == "__main__":
    main()
