"""Check the pinned versions of lock files for known vulnerabilities (`make audit`).

The exit code is 1 if any is found, and 75 if pip-audit's data is unreachable: then nothing is
known. `.ci/run` goes on with a message; the release workflow does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOT_AUDITED = 75
"""Exit code without data, as sysexits.h has it for a failure that may pass."""

TIMEOUT = 300
"""Seconds for one request a package; offline, pip-audit gives up in seconds."""


def look_up(lock: str) -> list[dict[str, Any]]:
    """Return pip-audit's results for each package; an empty list if it has no data."""
    program = Path(sys.executable).with_name("pip-audit")
    options = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json")
    try:
        answer = subprocess.run(
            [program, *options, "--requirement", lock],
            capture_output=True,
            check=False,
            timeout=TIMEOUT,
        )
        packages: list[dict[str, Any]] = json.loads(answer.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):  # its service cannot be reached
        return []
    return packages


def audit(lock: str) -> int:
    """Print the vulnerable packages of a lock file, and return the exit code."""
    packages = look_up(lock)
    audited = [package for package in packages if "skip_reason" not in package]
    for package in audited:
        for found in package["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {found['id']}; fixed in {fixed}")
    if not audited:
        print(f"audit: {lock}: NOT AUDITED, because the data on vulnerabilities cannot be reached")
        return NOT_AUDITED
    print(f"audit: {lock}: looked up {len(audited)} of {len(packages)} packages")
    return int(any(package["vulns"] for package in audited))


def main(locks: Sequence[str]) -> int:
    """Audit each lock file, and return 1 if a package is vulnerable, else `NOT_AUDITED` or 0."""
    codes = {audit(lock) for lock in locks}
    return 1 if 1 in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
