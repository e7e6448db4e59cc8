"""Run the command line as `python -m modcrypt`."""

from modcrypt.cli import run

run()
