# Every target does its own set-up; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
READY := $(VENV)/.ready
# Where nothing compiled may be kept, each node and command that a test starts compiles our modules again: 0.2 s of each.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup java demo ui test check format unit compat sim sim-mutations rules-mutations bench bench-broker bench-drivers bench-secured bench-clients bench-state bench-schema bench-cluster bench-metadata bench-executors bench-scale bench-capacity bench-incremental bench-eltbench bench-nexmark bench-ask fuzz kill kill-tables kill-marts chaos rota sbom site clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with the locked dependencies and this package

$(READY): requirements.lock pyproject.toml hatch_build.py log_broker/records/_walk.c log_broker/server/process/_disk_threads.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fluvial needs Python 3.11 or newer, and $$($(PYTHON) --version) is what '$(PYTHON)' is: make PYTHON=python3.11 …" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV) …" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

java: # Spark needs Java 17 or 21: said before anything long starts
	@PYTHONPATH=platform $(PYTHON) -m fluvial.spark.java

demo: java $(READY) ## run the main job on real data and show the answer: SECURE=1 with TLS, users and rights, BROKERS=3
	@$(BIN)/fluvial demo $(if $(BROKERS),--brokers $(BROKERS)) $(if $(SECURE),--secure)

ui: $(READY) ## open the Dagster page of this project
	@$(BIN)/fluvial ui

check: $(READY) ## format, lint, types, layer contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: java $(READY) check ## check, then every test in WORKERS=3 processes, each with a Spark of a gigabyte
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.compat.run --prepare
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=30

unit: $(READY) ## only the tests that need neither Spark nor whole processes
	$(BIN)/python -m pytest -m "not spark and not e2e"

compat: java $(READY) ## run other people's client suites, N of M each: SUITES="franz-go kafkajs", BROKERS=3, SECURE=1
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.compat.run $(SUITES) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(SECURE),--secure)

sim: $(READY) ## simulate the cluster under faults: SEEDS=A:B, JOBS=N
	@$(BIN)/python -m log_broker sim --world quorum --seeds $(or $(SEEDS),0:1000) --jobs $(or $(JOBS),2)
	@$(BIN)/python -m log_broker sim --world cluster --seeds $(or $(SEEDS),0:400) --jobs $(or $(JOBS),2)

sim-mutations: $(READY) ## break each rule of the quorum and of the cluster on purpose: which check finds it, in how many seeds
	@$(BIN)/python tests/sim/quorum_mutations.py
	@$(BIN)/python tests/sim/cluster_mutations.py

rules-mutations: java $(READY) ## break rules of registry, lease, lag and Delta commits on purpose: which test fails: MUTATIONS="BACKWARD lease"
	@$(BIN)/python -m fluvial.spark.jars
	@$(BIN)/python tests/mutations/rules_mutations.py $(MUTATIONS)

bench: java $(READY) ## measure the main path on this machine
	$(BIN)/python -m tests.bench.main_path

bench-state: java $(READY) ## measure keyed tables beside the hand-written MERGE (about a quarter of an hour): BENCH="--only vectors", FULL=1 for every row
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.bench.state $(BENCH)

bench-broker: java $(READY) ## measure the broker beside Apache Kafka (about 25 minutes)
	$(BIN)/python -m tests.bench.broker

bench-drivers: java $(READY) ## measure the broker beside Apache Kafka by Kafka's own tools and OpenMessaging's workload shapes (about 20 minutes): BENCH="--only latency"
	$(BIN)/python -m tests.bench.drivers $(BENCH)

bench-secured: $(READY) ## measure what TLS, sign-in and rights cost our broker (about ten minutes): BENCH="--only small --rounds 5"
	$(BIN)/python -m tests.bench.broker.secured $(BENCH)

bench-clients: $(READY) ## measure what clients' choices cost on our brokers (about ten minutes)
	$(BIN)/python -m tests.bench.clients

bench-schema: $(READY) ## measure the registry: reads, start and memory with 100,000 schemas (about 10 minutes)
	$(BIN)/python -m tests.bench.schema $(BENCH)

bench-cluster: java $(READY) ## measure three nodes beside three of Apache Kafka (about 15 minutes)
	$(BIN)/python -m tests.bench.cluster

bench-metadata: $(READY) ## measure the controller with 10 to 1,000 brokers that have no logs (about five minutes)
	$(BIN)/python -m tests.bench.metadata

bench-executors: java $(READY) ## measure transforms that keep nothing on 1, 2, 4 … executors of a core each (about five minutes)
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.bench.executors

bench-incremental: java $(READY) ## measure marts by key, aggregates, marts of rows and joins by time beside the full query and what one writes by hand (about 20 minutes)
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.bench.incremental $(BENCH)
	$(BIN)/python -m tests.bench.incremental.rows
	$(BIN)/python -m tests.bench.incremental.joins
	$(BIN)/python -m tests.bench.incremental.idle

bench-eltbench: java $(READY) ## run LakeBench's ELTBench on fluvial, plain Spark and Sail in an environment of its own: BENCH="--scale 10 --rounds 3"
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.bench.eltbench $(BENCH)

bench-nexmark: java $(READY) ## run Nexmark's queries as tables beside Spark's batch queries and compare (an hour or two): BENCH="--events 200000 --queries q4 q7"
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.bench.nexmark $(BENCH)

bench-ask: java $(READY) ## measure queries by Sail beside warm Spark, on a state with 100 batches of deletion vectors (about ten minutes)
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python -m tests.bench.ask $(BENCH)

bench-scale: $(READY) ## measure one broker beside three under more clients, cores and partitions (about five minutes): BENCH="--only cores"
	$(BIN)/python -m tests.bench.scale $(BENCH)

bench-capacity: $(READY) ## calculate clusters for 1 to 100 million records a second, and simulate years of a thousand brokers that fail (about two minutes)
	$(BIN)/python -m tests.bench.capacity

fuzz: $(READY) ## a million broken requests at the broker, 10,000 schemas and 100,000 calls at the registry: FUZZ="--seed 2 --from 500000" goes on elsewhere
	$(BIN)/python tests/fuzz/fuzz_run.py $(FUZZ)
	$(BIN)/python tests/fuzz/fuzz_schemas.py
	$(BIN)/python tests/fuzz/fuzz_registry.py

kill: $(READY) ## 50 rounds of SIGKILL under load: KILL="--rounds 10 --seed 3"
	$(BIN)/python tests/chaos/kill_run.py $(KILL)

kill-tables: java $(READY) ## 50 times SIGKILL while tables are brought up to date: KILL="--kills 3 --seed 3 --executors"
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python tests/e2e/kill_tables_run.py $(KILL)

kill-marts: java $(READY) ## 50 times SIGKILL while ten marts are brought up to date: KILL="--kills 3 --seed 3 --executors"
	$(BIN)/python -m fluvial.spark.jars
	$(BIN)/python tests/e2e/kill_marts_run.py $(KILL)

chaos: $(READY) ## real processes under faults: CHAOS="--seconds 600 --seed 3", SCENARIOS="F-16 F-02"
	$(BIN)/python tests/chaos/chaos_run.py $(CHAOS) $(if $(SCENARIOS),--scenarios $(SCENARIOS))

rota: java $(READY) ## what is too long for `make test`, that which has waited longest: MINUTES=20, ROTA="storm kills", ROTA=--list
	@$(BIN)/python -m fluvial.spark.jars
	@$(BIN)/python -m tests.compat.run --prepare
	@$(BIN)/python tests/rota.py --minutes $(or $(MINUTES),20) $(ROTA)

sbom: $(READY) ## write dist/fluvial.cdx.json, the bill of materials of what the locks pin (CycloneDX)
	@$(BIN)/python infra/sbom.py dist/fluvial.cdx.json

site: $(READY) ## build the site of the documentation in build/site; say how many of its blocks of code are run
	@$(BIN)/mkdocs build --strict --quiet
	@$(BIN)/python tests/unit/test_documentation.py

clean: ## stop the local platform and remove what the project made here
	@if [ -x $(BIN)/fluvial ]; then $(BIN)/fluvial down || true; fi
	rm -rf .fluvial $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
