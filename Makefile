# make test      sets up what the tests need, and runs everything
# make race      the same packages under the race detector, with less repetition
# make test-kernel KERNEL=6.12 PKG=./nftables RUN=Kernel
#                runs tests of packages inside a virtual machine with that kernel; KERNEL may be 5.10, 6.1, 6.12, 7.x, several of them, or all
# make test-kernels   the same on all of them
# make fuzz      each fuzz target for FUZZTIME
# make bench     kernlb bench, and the Go benchmarks of the pure packages

GO       ?= go
FUZZTIME ?= 20s

KERNEL   ?= 6.1
KERNELS  ?= all
PKG      ?= ./internal/nfnl

.PHONY: test race fuzz bench setup test-kernel test-kernels

setup:
	@.ci/setup

test: setup
	@$(GO) test -json -timeout 15m ./... | $(GO) run ./internal/testreport $(REQUIRED)

race: setup
	@$(GO) test -json -race -short -timeout 15m ./... | $(GO) run ./internal/testreport

test-kernel: setup
	$(GO) run ./internal/vmtest/cmd/kerneltest -kernel '$(KERNEL)' -run '$(RUN)' $(PKG) $(if $(ARGS),-- $(ARGS))

test-kernels:
	$(MAKE) test-kernel KERNEL='$(KERNELS)'

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
REQUIRED = -require 'netns=nftables internal/nfnl internal/netnstest' -require 'vm=internal/vmtest'
