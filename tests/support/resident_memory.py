"""How much memory this process holds, as Linux counts it; elsewhere nothing is measured.

Not tracemalloc: before CPython 3.12.9 it crashes the process if a thread that has no Python
frame begins to run Python code while it stops, as PyArrow's threads do when they drop a buffer
(gh-128679). What Linux counts has the memory of native code in it, too.
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc/self")


def forget_peak() -> int:
    """Begin to look for the peak anew, and return what the process holds now, in bytes."""
    if PROC.exists():
        (PROC / "clear_refs").write_text("5")
    return resident_memory("VmRSS")


def resident_memory(what: str) -> int:
    """Return VmRSS, what the process holds now, or VmHWM, the most since the last reset; bytes."""
    if not PROC.exists():
        return 0
    status = (PROC / "status").read_text()
    return int(status.split(f"{what}:")[1].split()[0]) << 10
