"""Verification of the files of a dataset against the declaration."""
