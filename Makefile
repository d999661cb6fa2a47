# make test      installs what the tests need and the machine lacks, and runs the tests
# make test-all  also those that need another kernel (make test-vm), an API server (make test-api)
#                or a browser (make browser)
# make test-vm   the tests of IPVS, and those that take modules from the kernel, in a virtual
#                machine with Linux 6.1
# make test-long a million random packets, twenty conformance runs, and a minute of rolling
#                replacement, on nftables and iptables
# make soak      changes without pause for DURATION (an hour) beside a neighbour, writers that are
#                killed and an administrator who flushes; fails if anything grows; then each call to
#                the kernel goes wrong in each way, processes are killed 200 times, and new flows
#                meet at least 10,000 commits, for at least FLOOD (five minutes)
# make soak-vm   the first part of that on ipvs, with fewer services, in a virtual machine
# make rolling   1,000 endpoints replaced a second for a minute, under 5,000 open connections
# make race      the same packages under the race detector, with less repetition
# make sharecheck   tests of the model and the engine that fail if a caller modifies a shared object
# make test-kernel KERNEL=6.12 PKG=./nftables RUN=Kernel
#                runs tests of packages inside a virtual machine with that kernel; KERNEL may be
#                5.10, 6.1, 6.12, 7.x, several of them, or all
# make test-kernels   the suites on all of them
# make peers     kube-proxy and kernlb side by side: how fast, and with which outcome
#                (internal/test/peers)
# make figures   measures kube-proxy 1.36.3, 1.37.2 and kernlb on a mix of services, and draws the
#                plots of the documents (five minutes on a quiet machine)
# make apiserver examples/kubeproxy and kube-proxy 1.36.3 on a real API server: 5,000 services while
#                traffic flows, a rollout, and how long it takes from a write to a connection
# make apiserver-vm  its mode ipvs on a real API server, in a virtual machine with Linux 6.1
# make keepalived  examples/loadbalancer and a real keepalived meet the same failures, in a virtual
#                machine
# make browser   the page in headless Chromium, which it installs; UPDATE=-update makes the pictures
#                of docs/page.md anew
# make fuzz      each fuzz target for FUZZTIME
# make mutate    makes small changes in the library, and fails if no test sees one; N mutants (200)
#                drawn with SEED. ONLY is a text: of those, it tries only mutants that have it
# make bench     internal/test/bench, and the Go benchmarks of the pure packages
# make bench-against COMMIT=v0.1.0   the benchmark of that commit and of this tree, in turn: ratios
# make census    counts the code: lines by floor with their budgets, the sizes of functions, types
#                that the reader of an exported declaration cannot name, and the functions that run
#                when one endpoint is replaced and when a program starts (as root)
# make release VERSION=v0.1.0   checks what a release needs, and prints the commands that publish
#                it; it changes and pushes nothing

GO       ?= go
FUZZTIME ?= 20s
SEED     ?= 1

BACKEND  ?= nftables
KERNEL   ?= 6.1
KERNELS  ?= all
PKG      ?= ./nftables ./iptables ./ipvs ./conntrack ./internal/rawnl ./internal/ipvsnl

# What must run in a virtual machine: the development kernels of many machines have no IPVS. The
# names of the tests that need IPVS begin so. The others run with make test, and on four kernels
# with make test-kernels: under emulation they would take longer than all of these.
VM_PKG   = ./internal/rendering ./internal/ipvsnl ./examples/kernlb ./ipvs ./dataplane/kubeproxy
VM_NEED  = ^Test(Conformance|Kernel|MissingModules)

.PHONY: test test-all test-here test-api test-vm test-long race fuzz bench bench-against setup \
	vmtools test-kernel test-kernels peers peers-build soak soak-vm rolling release controlplane \
	apiserver apiserver-vm browser keepalived figures census mutate sharecheck

setup:
	@.ci/setup

# The module of its own that boots virtual machines: bin/kerneltest and the guest's init program.
vmtools: setup
	@CGO_ENABLED=0 $(GO) build -C internal/test/vm -o $(CURDIR)/bin/ ./cmd/...

# The module of its own that has an API server of Kubernetes, etcd, a controller and kube-proxy in
# one program. With an empty build cache it takes 2 min 45 s on two idle cores (10 min 41 s of CPU,
# measured on two busy ones); it is kept in bin.
controlplane: setup
	@mkdir -p bin && CGO_ENABLED=0 GOWORK=off flock bin \
		$(GO) build -C internal/test/controlplane -trimpath -buildvcs=false \
		-ldflags='-s -w' -o $(CURDIR)/bin/ .

# each ARGUMENTS runs the tests of the modules in go.work. internal/test/report says what failed.
# Many tests wait for packets, so twice as many packages run as there are processors. What takes
# longest begins first.
each     = $(GO) test -json -timeout 30m -p $$((2 * $$(nproc))) $(1) ./nftables ./iptables ./ipvs \
	work
REPORT   = $(GO) run ./internal/test/report -packages $$($(GO) list work | wc -l)

test: export KERNLB_TEST_APISERVER ?= none
test: export KERNLB_TEST_FETCH ?= none
test: export KERNLB_TEST_VM ?= none
test: setup
	@echo 'compiling and testing; the first time this takes some minutes until the first line'
	@$(call each) | $(REPORT) -run test

# The control plane takes minutes to build, and is built while other tests run. Packages are
# installed before the virtual machine starts, because its apt-get update may empty apt's cache.
test-all: setup
	@mkdir -p bin; \
	nice -n 10 $(MAKE) controlplane vmtools >bin/build.log 2>&1 & built=$$!; \
	trap 'kill $$built 2>/dev/null' EXIT; \
	$(MAKE) --no-print-directory test && echo 'waiting for bin/controlplane' && \
	{ wait $$built || { cat bin/build.log; exit 1; }; } && \
	{ .ci/setup buildah chromium || true; } && \
	$(MAKE) --no-print-directory -j 2 test-vm test-here

# What test-all runs on this machine while the virtual machine runs.
test-here: test-api
	@$(MAKE) --no-print-directory browser

# What needs an API server or builds the image, and the boots of virtual machines.
test-api: setup controlplane
	@command -v buildah >/dev/null || .ci/setup buildah || echo 'no buildah: builds no image'
	@echo 'tests with an API server'
	@{ KERNLB_TEST_APISERVER= $(GO) test -C examples/kubeproxy -json -timeout 15m . ; \
		KERNLB_TEST_FETCH= $(GO) test -json ./internal/test/release ; \
		KERNLB_TEST_VM= $(GO) test -C internal/test/vm -json -timeout 15m . ; } | \
		$(GO) run ./internal/test/report -packages 3 -run api

# The output of the tests goes to a file, and to the terminal only if something went wrong.
test-vm: vmtools
	@echo 'tests of $(VM_PKG) on Linux 6.1, in a virtual machine: about ten minutes'
	@out=$$(mktemp) && trap 'rm -f "$$out"' EXIT && \
	if bin/kerneltest -kernel 6.1 -timeout 40m -run '$(VM_NEED)' -need '$(VM_NEED)' \
		$(VM_PKG) >"$$out" && \
		bin/kerneltest -kernel 6.1 -append ipv6.disable=1 -run '^TestWithoutIPv6$$' \
		-need '^TestWithoutIPv6' ./internal/rendering >>"$$out"; \
	then sed -n '/^$$/,$$p' "$$out"; else cat "$$out"; exit 1; fi

LONG      = $(GO) test -timeout 60m
ENDLESS   = $(GO) test -timeout 0 -count 1 -v
LONG_PKG  = ./nftables ./iptables
ROLL      = TestConformance/endpoints_are_replaced_all_the_time

test-long: export KERNLB_RANDOM_SEED = $(SEED)
test-long: setup
	KERNLB_RANDOM_PACKETS=1000000 \
		$(LONG) -run TestRandomPackets -parallel 64 -count 1 $(LONG_PKG)
	$(LONG) -run TestConformance -count 20 $(LONG_PKG)
	KERNLB_TEST_ROLL=1m $(LONG) -run '$(ROLL)' -parallel 1 -count 1 -v $(LONG_PKG)

soak: DURATION = 1h
soak: FLOOD = 5m
soak: setup
	KERNLB_TEST_SOAK=$(DURATION) $(ENDLESS) -run TestEndures ./$(BACKEND)
	KERNLB_TEST_FAULTS=all KERNLB_TEST_KILLS=200 $(LONG) -count 1 -v \
		-run 'GoesWrong|TestKilledAtAnyMoment' ./$(BACKEND)
	KERNLB_TEST_FLOOD=$(FLOOD) $(LONG) -count 1 -v -run 'TestConformance/no_(new|forb)' ./$(BACKEND)

soak-vm: DURATION = 1h
soak-vm:
	KERNLB_TEST_SOAK=$(DURATION) $(MAKE) test-kernel PKG=./ipvs RUN=TestEndures TIMEOUT=1000h

rolling: setup
	KERNLB_TEST_ROLLS=1m $(ENDLESS) -run TestRolls ./$(BACKEND)

# What runs on one goroutine, or in many processes, takes the race detector minutes
# and shows it nothing.
ALONE = RandomPackets|KernelHoldsWhatWasApplied|EachCallGoesWrong|PartsAreWhatTheModelSays
ALONE := $(ALONE)|SlotsAreDrawnFairly|ReadingsAgree|PlansLeaveWhatTheyWouldWriteFromNothing
ALONE := $(ALONE)|EveryElementHasItsPlaceOrIsDrift|EveryField|FiftyAtOnce
ALONE := $(ALONE)|ChainKilled|KilledBetweenAnyTwoSteps|SameOutcomeAsPortmap

sharecheck:
	$(GO) test -tags sharecheck -short ./servicemodel ./dataplane ./dataplane/flows \
		./dataplane/graph ./dataplane/page

race: export CGO_ENABLED = 1
race: setup
	@$(call each,-race -short -skip 'Test($(ALONE))') | $(REPORT) -run race

test-kernel: vmtools
	bin/kerneltest -kernel '$(KERNEL)' -run '$(RUN)' $(if $(TIMEOUT),-timeout $(TIMEOUT)) \
		$(PKG) $(if $(ARGS),-- $(ARGS))

test-kernels:
	$(MAKE) test-kernel KERNEL='$(KERNELS)'

keepalived: vmtools
	@command -v keepalived >/dev/null || .ci/setup keepalived
	@cd examples/loadbalancer && ../../bin/kerneltest -kernel 6.1 -tools 'keepalived ip nft' \
		-need '^TestFailoverBesideKeepalived' -run BesideKeepalived .

browser: setup
	@command -v chromium >/dev/null || .ci/setup chromium
	@$(GO) test -json -count 1 -run Browser ./dataplane/page $(UPDATE) | \
		$(GO) run ./internal/test/report -packages 1 -run browser

fuzz:
	@for pkg in $$($(GO) list work); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
			$(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

# Each package with the packages whose tests check its behaviour; what takes longest ends.
comma    = ,
MUTATED  = servicemodel,servicemodel/kube,dataplane servicemodel/kube,servicemodel/kube/manifest \
	dataplane,dataplane/memory,dataplane/health conntrack,dataplane/flows examples/cni ipvs \
	iptables $(addsuffix $(comma)nftables,$(wildcard nftables/internal/*)) nftables

mutate: N = 200
mutate: setup
	@$(GO) run ./internal/test/mutate -n $(N) -seed $(SEED) -only '$(ONLY)' $(MUTATED)

bench:
	$(GO) run ./internal/test/bench
	$(GO) test -run '^$$' -bench . -benchmem ./servicemodel/... ./nftables

census:
	$(GO) run ./internal/test/census -roads

bench-against:
	.ci/bench-against $(COMMIT)

# Modules of their own, since they depend on Kubernetes. Building them the first time takes minutes.
peers-build: vmtools
	@command -v ipset >/dev/null || .ci/setup ipset
	CGO_ENABLED=0 GOWORK=off $(GO) build -C internal/test/peers -p 1 -o $(CURDIR)/bin/peers .
	CGO_ENABLED=0 GOWORK=off $(GO) build -C internal/test/peers/v137 -p 1 \
		-o $(CURDIR)/bin/peers-1.37 .

apiserver: controlplane
	KERNLB_TEST_APISERVER=long $(GO) test -C examples/kubeproxy -timeout 60m -count 1 -v -run Long .

# The directory of a module's tests is /src in the virtual machine, so that ../../bin is /bin.
apiserver-vm: controlplane vmtools
	@command -v ipset >/dev/null || .ci/setup ipset
	cd examples/kubeproxy && ../../bin/kerneltest -kernel 6.1 -memory 4096 -timeout 40m \
		-run TestTheModeIPVS -need TestTheModeIPVS -tools '$(KUBE_PROXY_TOOLS)' \
		-file bin/controlplane=../../bin/controlplane -file src/deploy=deploy .

KUBE_PROXY_TOOLS = ipset conntrack nft ip $(foreach t,iptables ip6tables,$(t)-nft $(t)-nft-save \
	$(t)-nft-restore)

release:
	@.ci/release '$(VERSION)'

peers: peers-build
	bin/peers measure -n 10,1000 -endpoints 10 -only costs,first -o bin/peers.json \
		kube-proxy-nftables kube-proxy-iptables kernlb-nftables kernlb-iptables
	bin/peers compare
	bin/peers handover

# Real-time priority keeps other programs from the processors, where it is allowed.
figures: peers-build
	@command -v conntrack >/dev/null || .ci/setup conntrack
	$$(chrt -f 10 true 2>/dev/null && echo chrt -f 10) \
		bin/peers measure -o internal/test/peers/figures.json
	bin/peers plot -from internal/test/peers/figures.json -o docs/plots >docs/plots/tables.md
