# `make demo` and `make test` are all a newcomer needs; both set the machine up first and do nothing twice.
.DEFAULT_GOAL := help
.PHONY: help demo test test-kubernetes soak fuzz docs check bench clean distclean set-up-demo set-up-test
SHELL := /bin/bash
BIN := .venv/bin
FLEET := examples/quickstart/fleet.yml
# Tests of the ledger, of runs and of what asks for them.
OF_RUNS := tests/runner tests/cli tests/stacks tests/e2e
# Some images of Python set it; here it has each process of each test compile all it imports anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: set-up-demo ## set-up, then two local nodes, a PyTorch training and an MPI program on them
	@scripts/demo.sh

test: set-up-test ## all tests in four processes; ARGS="-m quick": what needs no engine, container or other program, and of many cases a sample
	@case "$(ARGS)" in *quick*) ;; *) $(BIN)/orch engine install && $(BIN)/python -m orch.images node job mpi;; esac
	$(BIN)/pytest -n $(if $(findstring quick,$(ARGS)),3,4) $(ARGS)

soak: set-up-test ## the trials that repeat what a test of the suite shows once, and tests of runs on PostgreSQL; hours
	$(BIN)/orch engine install
	$(BIN)/python -m orch.images node job mpi
	$(BIN)/python -m orch.rehearsal.kubernetes --install
	$(BIN)/pytest -n 4 -m soak $(ARGS)
	$(if $(ARGS),,ORCHCTL_TEST_LEDGER=postgresql $(BIN)/pytest -n 4 $(OF_RUNS))

test-kubernetes: set-up-test ## tests on a real Kubernetes control plane of this machine, which is built first where it cannot be downloaded
	$(BIN)/python -m orch.images node job mpi
	$(BIN)/python -m orch.rehearsal.kubernetes --install
	$(BIN)/pytest -n 2 --dist loadfile -m "kubernetes and not soak" tests/kubernetes $(ARGS)

fuzz: set-up-test ## 100,000 mutated documents through `orch validate`
	ORCHCTL_FUZZ_RUNS=100000 $(BIN)/pytest tests/spec/test_fuzz.py --timeout 0

docs: set-up-test ## write docs/reference/configuration.md from the models, and docs/images from a rehearsal
	$(BIN)/python -m orch.spec.reference > docs/reference/configuration.md
	$(BIN)/orch engine install
	$(BIN)/python scripts/images.py

check: set-up-test ## lint, format, types and import borders
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p .types && ln -sfn .. .types/orch
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: set-up-test ## the benchmarks, each printing a ratio
	$(BIN)/orch engine install
	$(BIN)/python -m orch.images node job mpi
	$(BIN)/python -m bench $(ARGS)

clean: ## remove the demo's fleet, .venv and caches; images, engine and .orch stay
	@if [ -x $(BIN)/orch ] && [ -d .orch ]; then $(BIN)/orch down $(FLEET) --yes; fi
	rm -rf .venv .types build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## as clean, and the images that orch built
	@images=$$(docker images --quiet 'orch/*' | sort -u); if [ -n "$$images" ]; then docker image rm --force $$images; fi

set-up-demo:
	@scripts/bootstrap.sh

set-up-test:
	@scripts/bootstrap.sh test
