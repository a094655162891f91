# Every target installs what it needs by itself, and can be repeated.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E env "PATH=$$PATH")
# Skipping a test is an error in CI; elsewhere it is listed at the end.
NO_SKIPS := $(if $(CI),-no-skips,)
TOOL := $(GO) tool -modfile=tools/go.mod

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.PHONY: build
build: ## bin/holdfast and bin/holdfast-guest, side by side
	@scripts/deps.sh build
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags="-s -w" -o bin/holdfast-guest ./cmd/holdfast-guest
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/holdfast ./cmd/holdfast

.PHONY: demo
demo: ## the main job on real containers, with each step's time, and again under faults
	@scripts/deps.sh demo
	@$(MAKE) --no-print-directory build
	@$(GO) build -o bin/demo ./internal/demo
	@$(SUDO) bin/demo -bin bin

.PHONY: cluster
cluster: ## two orchestrators, two fleets and three hosts on one PostgreSQL server, until ^C
	@scripts/deps.sh cluster
	@$(MAKE) --no-print-directory build
	@$(GO) build -o bin/cluster ./internal/cluster/run
	@exec $(SUDO) bin/cluster -bin bin

.PHONY: test
test: ## everything that must pass
	@scripts/deps.sh test
	@$(MAKE) --no-print-directory build
	@$(GO) build -o bin/testsummary ./internal/testsummary
	@$(GO) build -o bin/prove ./internal/prove/run
	@figures=$$(mktemp) && trap 'rm -f "$$figures"' EXIT; { failed=0; \
	$(GO) test -race -timeout 14m -json ./... || failed=1; \
	echo; echo "A slice of each rung of the proof, without the race detector:"; \
	HOLDFAST_PROVE_FIGURES="$$figures" $(GO) test -run '^TestProve' -timeout 10m -json $$(bin/prove -list) || failed=1; \
	exit $$failed; } 2>&1 | bin/testsummary $(NO_SKIPS) -figures "$$figures"

.PHONY: test-short
test-short: ## the fast part of it: no containers, no race detector
	@$(GO) build -o bin/testsummary ./internal/testsummary
	@$(GO) test -short -json ./... 2>&1 | bin/testsummary

# The time that all rungs share: make prove PROVE=10m. Without it each goes on to its goal.
PROVE ?= 0s

.PHONY: prove
prove: ## the rungs of the proof, each to its goal or as far as PROVE=10m lets it, and a page of figures
	@scripts/deps.sh test
	@$(GO) build -o bin/prove ./internal/prove/run
	@exec $(SUDO) bin/prove -time $(PROVE)

.PHONY: prove-mutants
prove-mutants: ## seed a bug for each trap (or ONLY=T12,T31), one at a time, and print which rung of the proof caught it
	@scripts/deps.sh test
	@$(GO) build -o bin/mutants ./internal/mutant/run
	@exec bin/mutants $(if $(ONLY),-only '$(ONLY)')

.PHONY: bench
bench: ## the speed table: each figure beside what it is measured against, in one run
	@scripts/deps.sh bench
	@$(MAKE) --no-print-directory build
	@$(GO) build -o bin/bench ./internal/bench
	@$(GO) build -C internal/bench/dbos -o ../../../bin/bench-dbos .
	@$(SUDO) bin/bench -bin bin

.PHONY: check
check: ## format, vet, lint, and generated files are current
	@unformatted=$$(git ls-files '*.go' | xargs gofmt -l); [ -z "$$unformatted" ] || { echo "run gofmt -w on: $$unformatted"; exit 1; }
	$(GO) vet ./...
	$(TOOL) golangci-lint run ./...
	@$(MAKE) --no-print-directory generate
	@git diff --exit-code --stat -- api go.mod go.sum tools || { echo "generated files are not current: commit what make generate changed"; exit 1; }

.PHONY: generate
generate: ## the API's Go code from its proto files
	$(TOOL) buf generate
