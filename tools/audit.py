"""Check the pinned versions of a lock file for known vulnerabilities (`make audit`).

The exit code is 1 if any is found, and 0, with a message, if pip-audit's data is unreachable.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def main(lock: str) -> int:
    """Print vulnerable packages, and return the exit code."""
    packages = look_up(lock)
    audited = [package for package in packages if "skip_reason" not in package]
    for package in audited:
        for found in package["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {found['id']}; fixed in {fixed}")
    if not audited:
        print("audit: skipped, because the data on vulnerabilities cannot be reached")
    else:
        print(f"audit: looked up {len(audited)} of {len(packages)} packages")
    return int(any(package["vulns"] for package in audited))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
