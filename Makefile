# make test      sets up what the tests need, and runs everything
# make race      the same packages under the race detector, with less repetition
# make fuzz      each fuzz target for FUZZTIME
# make bench     kernlb bench, and the Go benchmarks of the pure packages

GO       ?= go
FUZZTIME ?= 20s

.PHONY: test race fuzz bench setup

setup:
	@.ci/setup

test: setup
	@$(GO) test -json -timeout 15m ./... | $(GO) run ./internal/testreport $(REQUIRED)

race: setup
	@$(GO) test -json -race -short -timeout 15m ./... | $(GO) run ./internal/testreport

fuzz:
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

bench:
	$(GO) run ./examples/kernlb bench
	$(GO) test -run '^$$' -bench . -benchmem ./servicemodel/... ./internal/nfnl ./nftables

# The parts of the suite that must run: where they are skipped, the run fails.
REQUIRED = -require 'netns=nftables internal/nfnl internal/netnstest'
