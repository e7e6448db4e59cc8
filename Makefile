# `make demo` and `make test` set up all they need in .venv on a machine with Python and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Files that other implementations wrote; tests that use them say so when the folder is not there.
export MODCRYPT_SHARED_VECTORS ?= $(abspath $(wildcard ../shared/vectors))

# Pinned versions and hashes of all that development needs; `make lock` writes it.
LOCK := requirements-dev.lock
DOCS_LOCK := requirements-docs.lock
RELEASE_LOCK := requirements-release.lock

# Tests start hundreds of Python processes, and pytest rewrites each test file: both keep the result.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check test-slow test-random mutants lake-judge corpus lint native test-compiled interpreted bench pipeline conformance vectors docs test-oldest test-comet test-delta lock audit clean

demo: $(VENV)/demo
	$(BIN)/python tools/demo.py

# mypy takes as long as it takes pytest to collect the tests, so both run at once.
test: $(VENV)/dev
	$(MAKE) --no-print-directory --jobs=2 lint check

check: $(VENV)/collected
	$(BIN)/python tools/vectors.py check
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow" $(PYTEST_ARGS)

# Tests that start Spark, those that kill jobs at each of their steps, and the rest of large matrices.
test-slow: $(VENV)/dev $(VENV)/spark.jsa
	$(BIN)/python -m pytest -n auto --dist worksteal -m slow $(PYTEST_ARGS)

# Tests of random inputs, with fresh ones and more of them; `make test-random SEED=…` repeats a run.
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
test-random: $(VENV)/dev
	@echo "repeat with: make test-random SEED=$(SEED)"
	MODCRYPT_TEST_SEED=$(SEED) $(BIN)/python -m pytest -n auto --dist worksteal -m seeded \
		--hypothesis-seed=$(SEED) $(PYTEST_ARGS)

# Put small faults into the core modules and count those that tests notice;
# `make mutants MUTANT_ARGS="--number 5 keys"` puts fewer into one module.
mutants: $(VENV)/dev
	$(BIN)/python -m tools.mutants $(MUTANT_ARGS)

# Let stock Spark and Iceberg and modcrypt change one table, and look for wrong rows:
# `make lake-judge JUDGE_ARGS="--catalog rest --seed 7"` chooses the catalog and repeats a run.
lake-judge: $(VENV)/dev
	$(BIN)/python tools/lake_judge $(JUDGE_ARGS)

# Take every file of a folder through encryption and back, and compare with PyArrow:
# `make corpus CORPUS=folder CORPUS_ARGS="--json results.json --html results.html"`.
corpus: $(VENV)/dev
	$(BIN)/python -m tools.corpus $(CORPUS) $(CORPUS_ARGS)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell --dictionary - --dictionary tools/glossary.txt

# Compile what runs per page and per column chunk, in place, and make a wheel with it;
# `make interpreted` undoes it.
# Symbols that nothing else links to are hidden: 4 of 10 calls would go through a table, and no
# function could be inlined. pyproject.toml has the same flag for wheels.
NATIVE_CFLAGS := -fvisibility=hidden
native: interpreted $(VENV)/dev
	CFLAGS=$(NATIVE_CFLAGS) HATCH_BUILD_HOOKS_ENABLE=1 $(BIN)/hatchling build --target wheel \
		--directory build/native
	$(BIN)/modcrypt --version

# What comes to compiled modules, after `make native`: the formats, hostile bytes, and jobs on files.
COMPILED_TESTS := tests/parquet tests/test_aead.py tests/test_keys.py tests/test_vectors.py \
	tests/ags1/test_files.py tests/ags1/test_reader.py tests/ags1/test_vectors.py \
	$(patsubst %,tests/jobs/test_%.py,key_rotation key_scan leaks recipient_changes shredding \
		signed_files) tests/iceberg/format tests/subjects/test_values.py
test-compiled:
	$(BIN)/python -m pytest -n auto --dist worksteal $(COMPILED_TESTS) $(PYTEST_ARGS)

interpreted:
	rm -f ./*__mypyc*.so $$(find modcrypt -name '*.so')

bench: $(VENV)/dev
	$(BIN)/python tools/bench.py

pipeline: $(VENV)/dev
	$(BIN)/python tools/pipeline.py

# Run every client of the conformance suite that this machine can build, and make the results page.
conformance: $(VENV)/dev
	$(BIN)/python tools/conformance --results tools/conformance/results; status=$$?; \
	$(BIN)/python tools/conformance/page.py tools/conformance/results build/conformance/index.html; \
	exit $$status

vectors: $(VENV)/dev
	$(BIN)/python tools/vectors.py build

# Build the website from docs/ into build/site, and check it; any warning is an error.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python -m pytest -q tests/docs/test_website.py $(PYTEST_ARGS)

# The core with the lowest versions that pyproject.toml allows, in an environment of its own.
OLDEST := .venv-oldest
OLDEST_TESTS := tests/test_keys.py tests/ags1/test_vectors.py tests/ags1/test_filesystem.py \
	tests/parquet/arrow tests/parquet/datasets tests/kms/test_key_tools.py tests/cli/test_tables.py
# PyArrow 25 itself lacks an option, keys that are string views, correct counts of nulls in data pages
# V2, the reading of columns without a key in a signed footer, pruning by nulls of dictionaries, and
# the reading of fixed-size lists that are null.
NOT_IN_OLDEST := text_in_views or legacy_columns_be_read or nothing_but_errors_of_modcrypt or \
	reads_as_pyarrow_reads or is_the_very_file_that_pyarrow_writes or with_its_own_decryption or \
	sees_the_same_footer or decrypted_file_have_the_column_as_nulls or \
	random_nested_tables_are_read or rows_with_views_are_filtered
test-oldest: $(VENV)/dev
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct \
		--editable ".[cli,html,fsspec,iceberg]"
	$(BIN)/uv pip freeze --quiet --python $(OLDEST) | grep == >$(OLDEST)/oldest.txt
	$(BIN)/uv pip install --quiet --python $(OLDEST) --constraint $(OLDEST)/oldest.txt \
		"pytest>=9.2" pytest-xdist "hypothesis>=6.140" pandas polars duckdb \
		"dask[dataframe]" jsonschema
	$(OLDEST)/bin/python -m pytest -q -n auto -p no:cacheprovider \
		-k "not ($(NOT_IN_OLDEST))" $(OLDEST_TESTS)

# Spark's own Parquet under Comet and under Delta, with the newest Spark that both have jars for.
OLDER_SPARK := build/spark-4.1
test-comet test-delta: $(VENV)/dev
	$(BIN)/uv pip install --quiet --python $(VENV) --target $(OLDER_SPARK) --no-deps "pyspark==4.1.*"
	PYTHONPATH=$(CURDIR)/$(OLDER_SPARK) $(BIN)/python -m pytest -q -p no:cacheprovider tests/spark/$(subst -,_,$@).py

# Keep the pinned versions that still fit pyproject.toml; `make lock LOCK_ARGS=--upgrade` takes
# the newest ones.
lock: $(VENV)/dev
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --python-version 3.11 \
		--custom-compile-command "make lock" --extra cli --extra fsspec --group dev $(LOCK_ARGS) \
		--output-file $(LOCK) pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --python-version 3.11 \
		--custom-compile-command "make lock" --constraint $(LOCK) --group docs $(LOCK_ARGS) \
		--output-file $(DOCS_LOCK)
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --python-version 3.11 \
		--custom-compile-command "make lock" --constraint $(LOCK) --group release $(LOCK_ARGS) \
		--output-file $(RELEASE_LOCK)

# Known vulnerabilities in the locked packages; fails without data about them, too (Error 75).
audit: $(VENV)/dev
	$(BIN)/python tools/audit.py $(LOCK) $(DOCS_LOCK) $(RELEASE_LOCK)

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	touch $@

$(VENV)/demo: $(VENV)/pip pyproject.toml $(LOCK)
	grep == $(LOCK) | tr -d '\\' > $(VENV)/versions.txt  # pip takes no hashes with --editable
	$(BIN)/python -m pip install --quiet --constraint $(VENV)/versions.txt --editable ".[cli]" \
		--group demo
	touch $@

$(VENV)/dev: $(VENV)/pip pyproject.toml $(LOCK)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(LOCK)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	touch $@ $(VENV)/demo

$(VENV)/docs: $(VENV)/dev $(DOCS_LOCK)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement $(DOCS_LOCK)
	touch $@

# One process compiles the tests, else each of several does so at the same time.
$(VENV)/collected: $(VENV)/dev
	$(BIN)/python -m pytest -qq --collect-only >$@

# `make test-slow` starts about twenty JVMs with Spark, each a third cheaper with its classes at hand.
$(VENV)/spark.jsa: $(VENV)/dev
	$(BIN)/python -m tests.support.spark.class_archive $@

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
