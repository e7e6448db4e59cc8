"""The verbs of files: what each does, declared once for threads, Spark, SQL and JSON."""
