"""Erasures on purpose: the statements of a declaration and of the record."""
