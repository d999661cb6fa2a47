# make test      sets up what the tests need, and runs everything, also what needs another kernel (make test-vm)
# make test-vm   the tests of IPVS, and those that take modules from the kernel, in a virtual machine with Linux 6.1
# make test-long a million random packets, twenty conformance runs and two with a mirror of the flows, and a minute of rolling replacement, on nftables
#                and iptables
# make race      the same packages under the race detector, with less repetition
# make test-kernel KERNEL=6.12 PKG=./nftables RUN=Kernel
#                runs tests of packages inside a virtual machine with that kernel; KERNEL may be 5.10, 6.1, 6.12, 7.x, several of them, or all
# make test-kernels   the suites on all of them
# make peers     kube-proxy and kernlb side by side: how fast, and with which outcome (internal/peers)
# make fuzz      each fuzz target for FUZZTIME
# make bench     kernlb bench, and the Go benchmarks of the pure packages

GO       ?= go
FUZZTIME ?= 20s
SEED     ?= 1

KERNEL   ?= 6.1
KERNELS  ?= all
PKG      ?= ./nftables ./iptables ./ipvs ./conntrack ./internal/nfnl ./internal/ipvsnl

# What must run in a virtual machine: the development kernels of many machines have no IPVS.
VM_PKG   = ./internal/kernelprobe ./internal/ipvsnl ./examples/kernlb ./ipvs
VM_NEED  = ^Test(Conformance|Kernel|MissingModules)

.PHONY: test test-vm test-long race fuzz bench setup test-kernel test-kernels peers peers-build

setup:
	@.ci/setup

test: setup
	@$(GO) test -json -timeout 15m ./... | $(GO) run ./internal/testreport $(REQUIRED)
	@$(MAKE) --no-print-directory test-vm

# The output of the tests goes to a file, and to the terminal only if something went wrong.
test-vm: setup
	@out=$$(mktemp) && trap 'rm -f "$$out"' EXIT && \
	if $(GO) run ./internal/vmtest/cmd/kerneltest -kernel 6.1 -timeout 15m -need '$(VM_NEED)' $(VM_PKG) >"$$out"; \
	then sed -n '/^$$/,$$p' "$$out"; else cat "$$out"; exit 1; fi

LONG_PKG = ./nftables ./iptables

test-long: setup
	KERNLB_RANDOM_PACKETS=1000000 KERNLB_RANDOM_SEED=$(SEED) $(GO) test -run TestRandomPackets -parallel 64 -timeout 60m -count 1 $(LONG_PKG)
	$(GO) test -run TestConformance -timeout 60m -count 20 $(LONG_PKG)
	KERNLB_TEST_MIRROR=1 $(GO) test -run TestConformance -timeout 60m -count 2 $(LONG_PKG)
	KERNLB_TEST_ROLL=1m $(GO) test -run 'TestConformance/endpoints_are_replaced_all_the_time' -parallel 1 -timeout 60m -count 1 -v $(LONG_PKG)

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

# A module of its own, since it depends on Kubernetes. Building it the first time takes minutes.
peers-build:
	@command -v ipset >/dev/null || .ci/setup ipset
	cd internal/peers && CGO_ENABLED=0 $(GO) build -p 1 -o $(CURDIR)/bin/peers .

peers: setup peers-build
	bin/peers bench -n 1000
	bin/peers compare

# The parts of the suite that must run: where they are skipped, the run fails.
REQUIRED = -require 'netns=nftables.TestConformance iptables.TestConformance internal/nfnl.TestKernelAppliesOneTransaction \
	internal/netnstest.TestRulesDecideOutcomes conntrack.TestCleanBringsUDPClientsToTheRightEndpoint' \
	-require 'vm=internal/vmtest.TestGuestIsWhatProgramsArePromised'
