#!/bin/sh
# mypyc leaves the exception of a handler that yields as the current one of the caller.
#
# Versions: mypy 2.4.1 with CPython 3.11, and a C compiler.
# Behaviour: a generator yields inside of `except`, and its caller takes no further item, as `next`,
# `any` and `break` do. Interpreted, the exception is handled in the generator alone. Compiled by mypyc,
# it stays the current exception of the caller: `sys.exception()` returns it, later errors get it as
# their context, and its traceback keeps frames alive. CPython reports a keyword that is passed twice
# by such a state: the TypeError becomes a KeyError.
# Seen: None and TypeError of the interpreted module; ValueError and KeyError of the compiled one. A
# caller that exhausts the generator sees no difference.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python=${PYTHON:-python3}
"$python" -m venv "$folder/new"
"$folder/new/bin/python" -m pip install --quiet --disable-pip-version-check mypy==2.4.1 "setuptools<81"

cd "$folder"
cat > numbers_of.py <<'PYTHON'
from collections.abc import Iterator


def read(texts: list[str]) -> Iterator[str]:
    for text in texts:
        try:
            number = int(text)
        except ValueError:
            yield f"{text} is not a number"
            return
        yield str(number)
PYTHON
cat > finding.py <<'PYTHON'
import sys

import numbers_of


def collect(**arguments):
    return arguments


def try_it(take):
    take(numbers_of.read(["x"]))
    current = type(sys.exception()).__name__
    try:
        collect(a=1, **{"a": 2})
    except (TypeError, KeyError) as error:
        return current, type(error).__name__


print(numbers_of.__file__.rpartition(".")[2], try_it(list), try_it(next))
PYTHON
interpreted=$(new/bin/python finding.py)
new/bin/mypyc numbers_of.py >/dev/null
compiled=$(new/bin/python finding.py)
echo "$interpreted"
echo "$compiled"
test "$interpreted" = "py ('NoneType', 'TypeError') ('NoneType', 'TypeError')"
test "$compiled" = "so ('NoneType', 'TypeError') ('ValueError', 'KeyError')"
