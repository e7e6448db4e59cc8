"""Pauses of the garbage collector end, whatever happens in them."""

from __future__ import annotations

import gc

import pytest

from modcrypt.runtime.collector import paused_collector


def pause_and_fail(before: tuple[int, int, int]) -> None:
    with paused_collector():
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[1] == before[1]
        assert gc.get_threshold()[2] > 1_000_000
        with paused_collector():
            pass
        assert gc.get_threshold()[2] > 1_000_000  # the inner pause does not end the outer one
        raise KeyError


def test_full_collections_pause_and_resume_also_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError):
        pause_and_fail(before)
    assert gc.get_threshold() == before


def test_a_function_pauses_them_in_each_call() -> None:
    before = gc.get_threshold()

    @paused_collector()
    def find() -> int:
        return gc.get_threshold()[2]

    assert find() == find() > before[2]
    assert gc.get_threshold() == before
