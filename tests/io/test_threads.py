"""Generators and pools that the garbage collector closes do not wait for threads; others do."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from modcrypt.iceberg.read.ordered_threads import run_in_order
from modcrypt.io import threads
from modcrypt.io.threads import ThreadPool, in_threads

BATCH = pa.record_batch({"a": [1]})


def several_batches() -> Generator[pa.RecordBatch]:
    for _ in range(9):
        yield BATCH


def start_mapping() -> Iterator[object]:
    return in_threads(str, range(99), 2)


def start_lanes() -> Iterator[object]:
    return run_in_order([several_batches] * 9, 2)


@pytest.mark.parametrize(("of_cores", "count"), [(False, 3), (True, 2)])
def test_a_pool_has_a_thread_for_each_processor_if_asked(
    of_cores: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    over = threading.Event()
    with closing(ThreadPool(3, "counted", of_cores=of_cores)) as pool:
        for _ in range(3):
            pool.submit(over.wait)
        started = sum(thread.name.startswith("counted") for thread in threading.enumerate())
        over.set()
    assert started == count


def start_pool() -> Iterator[object]:
    with closing(ThreadPool(2, "modcrypt")) as pool:
        while True:
            yield pool.submit(str).result()


@pytest.mark.parametrize("start", [start_mapping, start_lanes, start_pool])
def test_a_thread_that_starts_collects_an_abandoned_generator(
    start: Callable[[], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holder:
        def __init__(self) -> None:
            self.results, self.own = start(), self

    gc.collect()  # what earlier tests have left may complain
    next(Holder().results)

    def fail(*_: object) -> None:
        raise AssertionError("a thread is waited for")

    monkeypatch.setattr(threading.Thread, "join", fail)
    monkeypatch.setattr("sys.unraisablehook", lambda raised: failures.append(raised.exc_value))
    failures: list[object] = []
    gc.collect()
    assert not failures


def test_a_closed_generator_waits_for_calls_that_have_begun() -> None:
    begun, stopped, ended = threading.Event(), threading.Event(), threading.Event()

    def work(number: int) -> int:
        if number:
            begun.set()
            assert stopped.wait(60)
            ended.set()
        return number

    results = in_threads(work, range(20), 2, "closed", stop=stopped.set)
    assert next(results) == 0
    assert begun.wait(20)
    results.close()
    assert ended.is_set()
    assert not [each for each in threading.enumerate() if each.name.startswith("closed")]


def test_a_pool_waits_for_its_calls() -> None:
    pool, over = ThreadPool(2, "busy"), threading.Event()
    call = pool.submit(over.wait, 20)
    threading.Timer(0.05, over.set).start()
    pool.close()
    assert call.done()
