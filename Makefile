# Needs Python 3.11 to 3.13 (with venv and pip), Java 17 or 21 for Spark, and make; everything else
# comes from requirements.lock into .venv. `make PYTHON=/path/to/python3.12 setup` picks another.
# ARGS is handed on: `make test ARGS="tests/wal -x"`.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
PY := $(VENV)/bin/python
PACKAGES := wal persist ingester
READY := $(VENV)/.installed
ARGS ?=
JOBS ?= 2
PYTHON ?=
# Else Spark's Python workers are whatever `python3` is on PATH.
export PYSPARK_PYTHON := $(abspath $(PY))
# Compiled modules are kept, whatever the shell says (empty is none): tests start many interpreters.
export PYTHONDONTWRITEBYTECODE :=
# Nor are they made of all that is installed, a minute's work: who imports a module compiles it.
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile

# The first of these that is 3.11 to 3.13: what the lock was made for.
FIND_PYTHON = for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		>/dev/null 2>&1; then found="$$candidate"; break; fi; \
	done

COMPILE := $(PY) -m uv pip compile pyproject.toml --universal --python-version 3.11 --quiet \
	--generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: setup java ## Start, stream in real rows, query, persist, read with Spark, compare
	@$(VENV)/bin/ingester demo $(ARGS)

# The classes of Spark, loaded once: a JVM that maps them starts in half of the processor time.
SPARK_CLASSES := $(VENV)/spark.jsa

$(SPARK_CLASSES): $(READY) | java
	@rm -f $@
	@SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit=$@ \
		-Xlog:disable" $(VENV)/bin/spark-submit tests/spark/loaded_classes.py 2>/dev/null \
		|| echo "make: the classes of Spark could not be kept: its tests take longer" >&2

.PHONY: test
test: setup java open-duckdb $(SPARK_CLASSES) ## All tests, two files at a time (JOBS=1: one by one)
	@$(PY) -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Other PySparks than that of requirements.lock, each in a folder of its own before the environment
# on the path: nothing else differs. They are kept; `make distclean` takes them.
SPARKS ?= $(patsubst tests/spark/versions/%.txt,%,$(sort $(wildcard tests/spark/versions/*.txt)))
SPARK_TESTS := $(addprefix tests/spark/test_,new_columns.py source.py source_stream.py \
	source_filters.py refusals.py append_writer.py keyed_writer.py four_ways.py)

.PHONY: spark-versions
spark-versions: setup java ## The data source's tests on other PySparks (SPARKS="4.0 4.1"; 480 MB each)
	@$(MAKE) --no-print-directory --output-sync=target --jobs $(JOBS) \
		$(addprefix spark-version-,$(SPARKS))

# Their own sockets that nobody closes are no fault of what is tested.
spark-version-%: $(VENV)/spark/%/.installed
	@echo "PySpark $*"
	@PYTHONPATH=$(abspath $(<D)) $(PY) -m pytest -p no:cacheprovider --quiet -m "not s3" \
		-W default::ResourceWarning -W default::pytest.PytestUnraisableExceptionWarning \
		-k "not (every_reader and (native or arrow))" $(SPARK_TESTS) $(ARGS)

.PRECIOUS: $(VENV)/spark/%/.installed
$(VENV)/spark/%/.installed: tests/spark/versions/%.txt
	@echo "installing $$(sed -n 's/ .*//p;q' $<) into $(@D)"
	@rm -rf $(@D)
	@$(PIP_INSTALL) --no-deps --require-hashes --target $(@D) -r $<
	@touch $@

# Engines that read open tables and need other packages than the project: DuckDB's extensions are on
# PyPI for 1.5 alone. They are kept; `make distclean` takes them.
OPEN := $(VENV)/open_tables
TRINO := 476

.PHONY: open-duckdb
open-duckdb: setup $(OPEN)/duckdb/.installed ## DuckDB 1.5 with its extensions into .venv, for the tests of open tables (80 MB)

.PHONY: open-trino
open-trino: setup $(OPEN)/jdk/.installed $(OPEN)/trino-server-$(TRINO)/.installed ## Trino and Java 25 into .venv, for make open-tables (900 MB)

.PHONY: open-tables
open-tables: setup java open-duckdb $(VENV)/spark/4.0/.installed $(VENV)/spark/4.1/.installed ## Open tables with every engine, then while 8 writers write (ARGS="--seconds 600 --trino")
	@$(PY) -m tests.open_tables $(ARGS)

.PRECIOUS: $(OPEN)/%/.installed
$(OPEN)/%/.installed: tests/open_tables/versions/%.txt
	@echo "installing $$(sed -n 's/ .*//p;q' $<) into $(@D)"
	@rm -rf $(@D)
	@$(PIP_INSTALL) --no-deps --require-hashes --target $(@D) -r $<
	@touch $@

# Its jars are hard links, so all of it is extracted.

$(OPEN)/trino-server-$(TRINO)/.installed:
	@mkdir -p $(OPEN)
	@mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
		-Dartifact=io.trino:trino-server:$(TRINO):tar.gz -DoutputDirectory=$(OPEN)
	@tar -xzf $(OPEN)/trino-server-$(TRINO).tar.gz -C $(OPEN)
	@rm $(OPEN)/trino-server-$(TRINO).tar.gz
	@touch $@

# Flight SQL clients in other languages; go.mod pins those in Go. `make distclean` takes them.
FLIGHT_SQL := $(VENV)/flight_sql
JDBC_VERSION := 18.3.0
JDBC_JAR := flight-sql-jdbc-driver-$(JDBC_VERSION).jar

.PHONY: flight-sql
flight-sql: setup java $(FLIGHT_SQL)/client $(FLIGHT_SQL)/$(JDBC_JAR) ## Flight SQL clients in Go and Java (1 min; needs Go 1.25 and Maven; fetches 200 MB)
	@$(PY) -m pytest -q tests/flight_sql_clients tests/server/flight_sql/test_tools.py $(ARGS)

$(FLIGHT_SQL)/client: $(wildcard tests/flight_sql_clients/go/*)
	@mkdir -p $(@D)
	@cd $(<D) && go build -o $(abspath $@) .

$(FLIGHT_SQL)/$(JDBC_JAR):
	@rm -f $(FLIGHT_SQL)/*.jar
	@mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
		-Dartifact=org.apache.arrow:flight-sql-jdbc-driver:$(JDBC_VERSION) -DoutputDirectory=$(@D)

.PHONY: check
check: setup ## Lint, format, types, layers, documents, known vulnerabilities
	@$(MAKE) --no-print-directory --output-sync=target --jobs $(JOBS) types rules

# The two halves of `make check`, which take as long as each other. The second one has every test
# compiled, with its assertions: each process of `make test` would do that for itself.
.PHONY: types
types: setup
	@$(PY) -m mypy --strict $(PACKAGES) tests

.PHONY: rules
rules: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(VENV)/bin/lint-imports
	@$(PY) -m pytest -q tests/house/test_documents.py tests/house/test_packaging.py \
		tests/readme/test_generated.py tests/readme/test_architecture.py \
		tests/readme/test_threat_model.py
	@$(PY) -m tests.supply_chain.advisories
	@found=$$($(PY) -m pytest -qq --collect-only 2>&1) || { echo "$$found"; exit 1; }

.PHONY: audit
audit: setup ## What is locked against deploy/advisories.json, without a network
	@$(PY) -m tests.supply_chain.advisories

.PHONY: advisories
advisories: setup ## Renew deploy/advisories.json from OSV (needs the internet)
	@$(PY) -m tests.supply_chain.advisories renew

# CycloneDX, the same bytes for the same lock.
SBOM := dist/ingester.cdx.json

.PHONY: sbom
sbom: setup ## What the container has, as CycloneDX, in dist/
	@mkdir -p $(dir $(SBOM))
	@$(VENV)/bin/cyclonedx-py requirements deploy/requirements.lock --pyproject pyproject.toml \
		--output-reproducible --of JSON -o $(SBOM) 2>/dev/null
	@echo "wrote $(SBOM)"

# The base image by its digest: name:tag@sha256:…
PYTHON_IMAGE ?=
BUILDER ?= podman
# The name in deploy/kubernetes.
IMAGE ?= ingester:$(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' ingester/__init__.py)

.PHONY: image
image: ## The container (PYTHON_IMAGE=python:3.12-slim@sha256:…; BUILDER=docker IMAGE=…)
	@grep -qE '^[^@ ]+@sha256:[0-9a-f]{64}$$' <<<"$(PYTHON_IMAGE)" || { \
		echo "make: PYTHON_IMAGE='$(PYTHON_IMAGE)' has no digest: a tag may be another image" \
			"tomorrow; name it as python:3.12-slim@sha256:…" >&2; exit 1; }
	@$(BUILDER) build -f deploy/Containerfile --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) \
		-t $(IMAGE) .

.PHONY: docs
docs: setup ## Settings, error codes and metrics from the code into their pages
	@$(PY) -m tests.readme.generated

# Built with Go; another binary: make manifests KUSTOMIZE=/path/to/kustomize
KUSTOMIZE ?= go run sigs.k8s.io/kustomize/kustomize/v5@v5.6.0
.PHONY: manifests
manifests: setup ## Render the overlays of deploy/kubernetes (needs Go or kustomize)
	@$(PY) -m tests.deploy.render "$(KUSTOMIZE)"

.PHONY: pictures
pictures: setup ## The operator's page as pictures, into docs/pictures (needs chromium)
	@$(PY) -m tests.server.http.pictures $(ARGS)

.PHONY: bench
bench: setup ## Benchmarks of the main paths (4 min; ARGS="--full" or names of tables)
	@$(PY) -m tests.bench $(ARGS)

.PHONY: crash
crash: setup java ## 300 times kill -9, with pauses, full disks, a lying store (30 min; ARGS="--kills 30")
	@$(PY) -m tests.crash $(ARGS)

.PHONY: lost-machine
lost-machine: setup java ## 100 lost machines, half of them paused and woken, on files and S3 (30 min; ARGS="--losses 20")
	@$(PY) -m tests.lost_machine $(ARGS)

.PHONY: follow
follow: setup java ## 50 times kill -9 of followers and daemons under load (3 min; ARGS="--kills 300")
	@$(PY) -m tests.followers $(ARGS)

.PHONY: push
push: setup java ## Pushes to three regions, 40 times kill -9 (10 min; ARGS="--kills 100 --seed 2")
	@$(PY) -m tests.push $(ARGS)

.PHONY: storm
storm: setup ## Ten minutes of random DDL and DML at PostgreSQL, 40 kills (ARGS="--seconds 60 --seed 2")
	@$(PY) -m tests.postgres.storm $(ARGS)

.PHONY: tenants
tenants: setup ## Ten minutes of five tenants, one of them hostile (ARGS="--seconds 60 --attack filter")
	@$(PY) -m tests.tenants $(ARGS)

.PHONY: memory
memory: setup ## Kill a daemon by its memory limit, again and again; no acknowledged row is lost (ARGS="--rounds 100")
	@$(PY) -m tests.memory.campaign $(ARGS)

.PHONY: show
show: setup java ## An hour of three daemons, 80 % load, a fault each minute (ARGS="--seconds 60 --every 7")
	@$(PY) -m tests.show $(ARGS)

.PHONY: sql-logic
sql-logic: setup ## Random SQL and files of SQLLogicTest against DuckDB, ten minutes (ARGS="--seconds 60 --suite FOLDER --s3")
	@$(PY) -m tests.sql_logic $(ARGS)

.PHONY: simulation
simulation: setup ## 1 to 1,000 daemons that commit to one table, in simulated time (10 min)
	@$(PY) -m tests.simulation $(ARGS)

.PHONY: fixture
fixture: setup java ## This release's data for tests/upgrades (ARGS=--again: while it is not out)
	@$(PY) -m tests.upgrades.make $(ARGS)

.PHONY: rollback
rollback: setup ## An earlier release opens what this one wrote, and back (FROM=tag or commit)
	@[ -n "$(FROM)" ] || { echo "make: name the earlier release: make rollback FROM=v0.1.0" >&2; exit 1; }
	@$(PY) -m tests.upgrades.rolling_back $(FROM)

.PHONY: s3a
s3a: setup java ## Read a bucket with Spark's S3A connector (its jars come from Maven, 600 MB)
	@$(PY) -m tests.s3a $(ARGS)

.PHONY: alerts
alerts: setup prometheus ## Every fault at real daemons, its alerts, and the runbook against it (10 min; ARGS="down")
	@$(PY) -m tests.alerts $(ARGS)

# Debian's, unpacked and not installed: its package would start a server that everybody reaches.
PROMETHEUS := $(VENV)/prometheus

.PHONY: prometheus
prometheus: setup ## Prometheus and promtool into .venv, for the tests of alerts (Debian, Ubuntu)
	@command -v promtool >/dev/null || [ -x $(PROMETHEUS)/usr/bin/promtool ] || { \
		rm -rf $(PROMETHEUS) && mkdir -p $(PROMETHEUS) && cd $(PROMETHEUS) \
		&& apt-get download -qq prometheus >/dev/null && dpkg -x prometheus_*.deb . \
		&& rm prometheus_*.deb; }

# Debian 12's, with the libraries that its package needs, unpacked like Prometheus.
HAPROXY := $(VENV)/haproxy
HAPROXY_PACKAGES := haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1

.PHONY: haproxy
haproxy: setup ## HAProxy into .venv, for the tests of deploy/haproxy (Debian)
	@command -v haproxy >/dev/null || [ -x $(HAPROXY)/usr/sbin/haproxy ] || { \
		rm -rf $(HAPROXY) && mkdir -p $(HAPROXY) && cd $(HAPROXY) \
		&& apt-get download -qq $(HAPROXY_PACKAGES) >/dev/null \
		&& for package in *.deb; do dpkg -x $$package .; done && rm *.deb; }

.PHONY: power
power: setup ## Power cuts on a file system that loses what was not synced (needs FUSE)
	@$(PY) -m tests.power $(ARGS)

# Guided by coverage where atheris has a wheel for this Python; else hypothesis does it alone. It is
# kept out of the environment that the lock describes.
FUZZ := $(VENV)/fuzz

.PHONY: fuzz
fuzz: setup ## Bad bytes into everything that reads, five minutes (ARGS="--seconds 3600")
	@[ -d $(FUZZ)/atheris ] || $(PY) -m pip install --quiet --disable-pip-version-check --no-deps \
		--only-binary :all: --target $(FUZZ) atheris==3.0.0 \
		|| echo "make: no atheris for this Python: not guided by coverage" >&2
	@PYTHONPATH=$(abspath $(FUZZ)) $(PY) -m tests.fuzz $(ARGS)

.PHONY: format
format: setup ## Sort imports and format all Python files
	@$(PY) -m ruff check --select I --fix .
	@$(PY) -m ruff format .

.PHONY: lock
lock: setup ## Make both lock files anew (ARGS="--upgrade" for newer versions)
	@$(COMPILE) --all-extras --output-file requirements.lock $(ARGS)
	@$(COMPILE) --extra build --extra jwt --extra otel --extra sql --constraint requirements.lock --no-annotate \
		--output-file deploy/requirements.lock
	@! grep -nE '://|^--' requirements.lock deploy/requirements.lock

.PHONY: clean
clean: ## Remove what tests, checks, benchmarks and builds left behind
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -rf bench-out ingester-data spark-warehouse metastore_db derby.log
	@find $(PACKAGES) tests -type d -name __pycache__ -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## As clean, and the virtual environment
	@rm -rf $(VENV)

.PHONY: setup
setup: $(READY) ## The virtual environment, from requirements.lock

# An environment that is already there is kept and completed, unless its Python does not run.
$(READY): pyproject.toml requirements.lock
	@if ! $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		found=; $(FIND_PYTHON); \
		if [ -z "$$found" ]; then \
			echo "make: no Python 3.11, 3.12 or 3.13 (python3 is: $$(python3 -V 2>&1 || true));" \
				"install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi; \
		"$$found" -m venv --clear $(VENV) || { \
			echo "make: $$found cannot make a virtual environment; on Debian or Ubuntu:" \
				"apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }; fi
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null
	@echo "installing into $(VENV)"
	@$(PIP_INSTALL) --require-hashes -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: java
java:
	@version=$$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
		| sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1) || true; \
	if [ "$${version:-0}" -lt 17 ]; then \
		echo "make: Spark needs Java 17 or 21 on PATH or in JAVA_HOME (found: $${version:-none});" \
			"on Debian or Ubuntu: apt-get install openjdk-17-jre-headless" >&2; exit 1; fi
