"""The top of the checkout, which holds `docs`, `spec-vectors`, `thrift` and `tools`."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
