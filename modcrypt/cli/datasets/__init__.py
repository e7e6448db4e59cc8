"""Datasets of a lake in arguments and options of commands."""
