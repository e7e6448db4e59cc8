"""Checks whether a destination is already up to date, so that jobs can be repeated.

No record is needed; it only caches the answer. modcrypt opens the destination with the keys that it
should have; the contents show whether an earlier run, or an earlier attempt at the same task, has
done the work.
"""
