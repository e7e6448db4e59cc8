"""The Python process: lazy imports, locks and forks, garbage collection, logs, tracebacks."""
