"""`python -m modcrypt` is the command line."""

from modcrypt.cli import run

run()
