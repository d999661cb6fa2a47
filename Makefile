# CONTRIBUTING.md says more. What must run, what may be skipped and what the race detector leaves
# out stand in internal/test/report; what is mutated, in internal/test/mutate.
#
# make test          all tests, except those of the next line. It installs what they need
# make test-all      also test-vm (IPVS), test-api (an API server, the image) and browser (the page
#                    in Chromium; UPDATE=-update makes the pictures of docs/page.md anew)
# make test-kernel   tests on another kernel: KERNEL=6.12 PKG=./nftables RUN=Kernel. KERNEL may be
#                    5.10, 6.1, 6.12, 7.x, several of them, or all
# make test-kernels  the suites on all of them
# make test-long     a million random packets, twenty conformance runs, a minute of replacements
# make race          make test under the race detector, with less repetition
# make sharecheck    tests that fail if a caller modifies an object that a table shares
# make mutate        small changes, which tests must see: N (200), drawn with SEED; ONLY=TEXT
# make fuzz          each fuzz target for FUZZTIME
# make soak          changes for DURATION (an hour) beside programs that write, flush and are
#                    killed; all faults; 200 kills; new flows for at least FLOOD (five minutes)
# make soak-vm       the first part of that on ipvs, in a virtual machine
# make rolling       1,000 endpoints replaced a second for a minute, under 5,000 open connections
# make apiserver     examples/kubeproxy and kube-proxy 1.36.3 on an API server, with 5,000 services
# make apiserver-vm  its mode ipvs, in a virtual machine
# make keepalived    examples/loadbalancer beside keepalived, in a virtual machine
# make peers         kube-proxy beside kernlb: costs and outcomes (internal/test/peers)
# make figures       measures both, and draws the plots of the documents, in five minutes
# make bench         internal/test/bench, and the Go benchmarks of the pure packages
# make bench-against COMMIT=v0.1.0   the benchmark of that commit and of this tree, in turn
# make census        lines by floor with budgets, functions, hidden types, roads (as root)
# make release VERSION=v0.1.0   checks a release, prints what publishes it, and changes nothing

KERNEL ?= 6.1
PKG    ?= ./nftables ./iptables ./ipvs ./conntrack ./internal/rawnl ./internal/ipvsnl

.PHONY: $(shell sed -n 's/^\([a-z -]*\):.*/\1/p' Makefile)

test: setup
	@echo 'compiling and testing; the first time this takes some minutes until the first line'
	@go run ./internal/test/report test

test-all: setup
	@.ci/test-all

test-vm: vmtools
	@.ci/test-vm

test-api: setup controlplane
	@command -v buildah >/dev/null || .ci/setup buildah || echo 'no buildah: builds no image'
	@go run ./internal/test/report api

browser: setup
	@command -v chromium >/dev/null || .ci/setup chromium
	@go run ./internal/test/report browser $(UPDATE)

race: setup
	@go run ./internal/test/report race

sharecheck:
	go test -tags sharecheck -short ./servicemodel ./dataplane ./dataplane/flows \
		./dataplane/graph ./dataplane/page

test-kernel: vmtools
	bin/kerneltest -kernel '$(KERNEL)' -run '$(RUN)' $(if $(TIMEOUT),-timeout $(TIMEOUT)) \
		$(PKG) $(if $(ARGS),-- $(ARGS))

test-kernels:
	$(MAKE) test-kernel KERNEL='$(or $(KERNELS),all)'

test-long soak rolling: setup
	@.ci/long $@

soak-vm:
	KERNLB_TEST_SOAK=$(or $(DURATION),1h) \
		$(MAKE) test-kernel PKG=./ipvs RUN=TestEndures TIMEOUT=1000h

fuzz:
	@.ci/fuzz $(or $(FUZZTIME),20s)

mutate: setup
	@go run ./internal/test/mutate -n $(or $(N),200) -seed $(or $(SEED),1) -only '$(ONLY)'

keepalived: vmtools
	@command -v keepalived >/dev/null || .ci/setup keepalived
	@cd examples/loadbalancer && ../../bin/kerneltest -tools 'keepalived ip nft' \
		-need '^TestFailoverBesideKeepalived' -run BesideKeepalived .

apiserver: controlplane
	.ci/kubernetes $@

apiserver-vm: controlplane vmtools
	@.ci/kubernetes $@

peers figures: peers-build
	.ci/kubernetes $@

bench:
	go run ./internal/test/bench
	go test -run '^$$' -bench . -benchmem ./servicemodel/... ./nftables

bench-against:
	.ci/bench-against $(COMMIT)

census:
	go run ./internal/test/census -roads

release:
	@.ci/release '$(VERSION)'

# The rest is built or installed for the targets above.

setup:
	@.ci/setup

vmtools: setup
	@CGO_ENABLED=0 go build -C internal/test/vm -o $(CURDIR)/bin/ ./cmd/...

controlplane: setup
	@.ci/kubernetes $@

peers-build: vmtools
	@.ci/kubernetes $@
