# Each target does all the set-up that it needs. ARGS is handed on: make test ARGS="tests/unit -x".
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
# A Spark on tiny tables uses half of two cores: most of its time is planning, by one thread.
WORKERS ?= 2
# What JVMs start with; to make it takes as long as it saves in some ten starts, so that the oldest pair's few go without.
CLASSES ?= $(VENV)/classes.jsa
IS_NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c '$(IS_NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)

# A Spark that is installed on the machine would otherwise replace the pinned one.
unexport SPARK_HOME SPARK_CONF_DIR PYSPARK_SUBMIT_ARGS PYTHONPATH PYTHONHOME
export PYSPARK_PYTHON := $(CURDIR)/$(VENV)/bin/python

.PHONY: help demo quick quick-stop test test-oldest test-long docs benchmark crash-matrix lint format build python java clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' Makefile

demo: $(VENV)/.installed-test ## Stream a real change log into Delta tables and compare them with the database
	$(VENV)/bin/python -m demo $(ARGS)

test: $(VENV)/.installed-test $(CLASSES) ## Run all tests on the newest supported Spark and Delta
	$(if $(CLASSES),STREAM_MERGE_TEST_CLASSES='$(CURDIR)/$(CLASSES)' \
	SPARK_SUBMIT_OPTS="$$SPARK_SUBMIT_OPTS '-XX:SharedArchiveFile=$(CURDIR)/$(CLASSES)' -Xlog:cds*=off") \
	$(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS)

quick: export STREAM_MERGE_TEST_KEPT_JVM := $(CURDIR)/$(VENV)/kept-jvm
quick: export STREAM_MERGE_TEST_CLASSES := $(CURDIR)/$(VENV)/classes.jsa
quick: $(VENV)/classes.jsa ## Run some tests in a JVM that is kept for the next ones: make quick ARGS=tests/spark/test_unchanged.py
	SPARK_SUBMIT_OPTS="$$SPARK_SUBMIT_OPTS '-XX:SharedArchiveFile=$(CURDIR)/$(VENV)/classes.jsa' -Xlog:cds*=off" \
	$(VENV)/bin/python -m pytest $(ARGS)

quick-stop: export STREAM_MERGE_TEST_KEPT_JVM := $(CURDIR)/$(VENV)/kept-jvm
quick-stop: ## End the JVM that is kept; it also ends half an hour after the last make quick
	$(VENV)/bin/python -m tests.kept_jvm stop

test-oldest: ## Run the core of the tests on the oldest supported Spark and Delta
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt CLASSES= ARGS="-m core --one-strategy $(ARGS)"

test-long: ## Run all tests there are, with both strategies, whole logs, and an hour of the random machine: takes hours
	STREAM_MERGE_TEST_RANDOM_MINUTES=$${STREAM_MERGE_TEST_RANDOM_MINUTES:-60} STREAM_MERGE_EXAMPLES=$${STREAM_MERGE_EXAMPLES:-50} \
	$(MAKE) test ARGS="--long $(ARGS)"

docs: $(VENV)/.installed-test ## Check the documentation: links, width of lines, code, and what it says of options and figures
	$(VENV)/bin/python -m pytest $(wildcard tests/test_docs*.py) tests/cli/test_documents.py tests/cli/test_reference.py $(ARGS)

benchmark: $(VENV)/.installed-test ## Time the batches of one workload: make benchmark WORKLOAD=recent (names: make benchmark ARGS=--help)
	$(VENV)/bin/python benchmarks/merge_speed.py $(if $(WORKLOAD),--workload $(WORKLOAD)) $(ARGS)

crash-matrix: $(VENV)/.installed-test ## Let every fault come at every step of a merge, and write what was found to docs/reliability.md
	$(VENV)/bin/python -m tests.crash.matrix $(ARGS)

lint: export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# Its version is pinned: whether there is a newer one need not be asked of the network.
lint: export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
lint: $(VENV)/.installed-dev ## Run ruff, mypy and pyright
	@status=0; for check in "ruff check ." "ruff format --check ." mypy pyright \
	"pyright --verifytypes stream_merge --ignoreexternal"; do \
	echo "$$check"; $$check || status=1; done; exit $$status

format: $(VENV)/.installed-dev ## Format the code, and fix what ruff can fix
	$(VENV)/bin/ruff check --fix . ; $(VENV)/bin/ruff format .

build: $(VENV)/.installed-test ## Build the release: an sdist and a wheel, in dist/
	$(VENV)/bin/python -m build $(ARGS)

clean: ## Remove the virtual environments and caches
	rm -rf dist .venv .venv-oldest .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | java
	@echo "Installing Spark, Delta Lake and the tools into $(VENV); Spark alone is some 400 MB, so this takes minutes, once."
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 \
		--constraint $(CONSTRAINTS) --editable ".[spark,cli,$*]"
	@touch $@

# Without the archive JVMs take longer to start, and that is all.
$(VENV)/classes.jsa: $(VENV)/.installed-test tests/class_archive.py $(wildcard tests/jvm/*)
	@$(VENV)/bin/python -m tests.class_archive "$(CURDIR)/$@" >/dev/null 2>&1 || touch $@

java: python
	@$(PYTHON) -I stream_merge/java.py "$$(sed -n 's/^pyspark==//p' $(CONSTRAINTS))"

python:
	@{ test -n "$(PYTHON)" && $(PYTHON) -c '$(IS_NEW_ENOUGH)' 2>/dev/null; } || { echo \
	"stream_merge needs Python 3.10 or newer: put one on PATH, or name it, as in make test PYTHON=/path/to/python3." \
	>&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo \
	"$(PYTHON) cannot make virtual environments: install its venv module (package python3-venv on Debian and Ubuntu)." \
	>&2; exit 1; }
