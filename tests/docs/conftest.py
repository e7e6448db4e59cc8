"""Tests of the website run by name alone, as in `make docs`, after it is built."""

collect_ignore = ["test_website.py"]
