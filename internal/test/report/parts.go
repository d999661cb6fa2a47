package main

// parts are the tests that must run, as PACKAGE.TEST. A part ran if each of its tests passed
// without a skipped subtest.
var parts = map[string][]string{
	"netns": {
		"nftables.TestConformance", "iptables.TestConformance",
		"internal/rawnl.TestKernelAppliesOneTransaction",
		"dataplane/netnstest.TestRulesDecideOutcomes", "conntrack.TestCleanCutsTCP",
		"examples/cni.TestChains",
		"examples/loadbalancer.TestKilledAndStartedAgainIsInvisible",
	},
	"prometheus": {
		"dataplane/metrics.TestPrometheusHasWhatDashboardsAndAlertsAskFor",
		"dataplane/metrics.TestAlertsFireWhenTheyShould",
	},
	"vm":        {"internal/test/vm.TestGuestIsWhatProgramsArePromised"},
	"apiserver": {"examples/kubeproxy.TestServicesOfAnAPIServerBecomeConnections"},
	"browser": {
		"dataplane/page.TestBrowserShowsEveryPage", "dataplane/page.TestBrowserWithAKeyboard",
		"dataplane/page.TestBrowserRefreshes",
	},
	"record": {"internal/test/winkernel.TestSameLoadBalancers"},
}

// allowed is an entry for tests that may be skipped, with the runs and the reason.
type allowed struct {
	runs    string // separated by spaces
	tests   string // a regular expression for the whole of PACKAGE.TEST
	reason  string // a regular expression for what the test says
	unless  string // the tests run where this is true; empty: they are always skipped in these runs
	instead string // what runs them, or holds the same behaviour, where they are skipped
}

const (
	ipvsKernel = "the kernel has IPVS"
	inVM       = "make test-vm, which fails if they are skipped there"
	inKernels  = "make test-kernels, in a virtual machine made for tests"
)

// skips has all tests that may be skipped in continuous integration, on a Debian machine with root
// after .ci/setup.
var skips = []allowed{
	{"test race", `ipvs\.Test.*`, `IPVS|ip_vs`, ipvsKernel, inVM},
	{"test race", `internal/ipvsnl\.TestKernel.*`, `IPVS`, ipvsKernel, inVM},
	{"test race", `dataplane/kubeproxy\.Test.*`, `^the kernel has no IPVS`, ipvsKernel, inVM},
	{"test race", `dataplane/(livetrace|diagnose)\.Test.*`, `IPVS|ip_vs`, ipvsKernel, inVM},
	{"test race", `dataplane/silence\.Test.*`, `IPVS|ip_vs`, ipvsKernel, inVM},
	{"test race", `examples/kernlb\.Test.*`, `ip_vs|IPVS|ipvs`, ipvsKernel, inVM},
	{"test race", `ipvs\.TestKernelThatDoesNotLoadItByItself`, `^unloads a module`, "", inVM},
	{"test race", `internal/rendering\.TestMissingModules`, `^takes modules away`, "", inVM},
	{"test race", `internal/rendering\.TestWithoutIPv6`, `^needs a kernel that was booted`, "",
		inVM},

	{"test", `(.*\.TestCounts|examples/command/version\.TestEveryProgramHasHelpAndAVersion/counts)`,
		`^counts of another compiler`, "Go is the version of internal/test/counts/counts.txt",
		"another machine"},
	{"test", `(nftables|iptables|ipvs)\.TestCounts`, `Linux 6\.16`, "the kernel is 6.16 or newer",
		"another machine"},
	{"test race", `conntrack\.TestTuningOfTheMachine`, `^changes nf_conntrack_max`, "", inKernels},
	{"test race", `conntrack\.TestAMillionFlows`, `^fills the table`, "", inKernels},
	{"test race", `(nftables|iptables|ipvs)\.TestKernelClockJumps`, `^sets the clock`, "",
		inKernels},
	{"test race", `(nftables|iptables|ipvs)\.TestEndures`, `^takes long`, "", "make soak"},
	{"test race", `(nftables|iptables|ipvs)\.TestRolls`, `^takes long`, "", "make rolling"},
	{"test race", `nftables\.Test.*`, `Linux 6\.16`, "the kernel is 6.16 or newer", inKernels},
	{"test", `examples/cni\.TestSameOutcomeAsPortmap/.*`, `^the kernel lacks br_netfilter`,
		"the kernel has br_netfilter", "the same cases without filtering of bridges"},
	{"test race", `dataplane/kubeproxy\.Test.*`, `^the kernel has no nfnetlink_acct`,
		"the kernel has nfnetlink_acct", "the cases of the other versions of kube-proxy"},
	{"test race", `dataplane/kubeproxy\.Test.*`, `^the kernel has no ip_set`,
		"the kernel has ip_set", inVM},
	{"test race", `dataplane/netnstest\.Test.*`, `unprivileged user namespaces`,
		"users may make user namespaces", "nothing"},
	{"test race", `internal/rawnl\.TestUserNamespace`, `^making a user namespace is not allowed`,
		"users may make user namespaces", "nothing"},

	{"test race", `examples/loadbalancer\.Test.*BesideKeepalived`, `^needs IPVS and minutes`, "",
		"make keepalived"},
	{"test race", `examples/kernlb\.TestWhatClientsSee`, `^takes a minute`, "",
		"a person who measures: -clients BACKEND"},
	{"test race", `examples/kubeproxy\.Test.*`, `^long: `, "", "make apiserver, make apiserver-vm"},
	{"api", `examples/kubeproxy\.Test.*`, `^long: `, "", "make apiserver, make apiserver-vm"},
	{"test race", `examples/kubeproxy\.Test.*`, `^apiserver: `, "", "make test-api"},
	{"test", `examples/kubeproxy\.TestTheImage`, `^missing: buildah`, "buildah is installed",
		"make test-api"},
	{"test api", `examples/kubeproxy\.TestTheImage`, `^buildah cannot mount here`,
		"the machine lets buildah mount",
		"TestTheContainerfileBuildsAProgramThatStandsAlone"},
	{"race", `examples/kubeproxy\.TestThe(Image|Containerfile.*)`, `^not with -short`, "",
		"make test, make test-api"},
	{"test race", `internal/test/release\.TestModulesAreFetchedWithoutAClone`,
		`^builds client-go`, "", "make test-api"},
	{"test race", `internal/test/release\.TestBuildsAreReproducible`, `^compiles the standard`, "",
		"make test-api"},
	{"test race", `internal/test/vm\.Test.*`, `^booting a VM`, "", "make test-api"},
	{"test race", `dataplane/page\.TestBrowser.*`, `^needs chromium`, "chromium is installed",
		"make browser"},
	{"race", `dataplane/page\.TestBrowser.*`, `^drives a browser: -short`,
		"chromium is not installed", "make browser"},
	{"test race browser", `dataplane/page\.TestBrowser.*`, `^makes pictures: needs -update`,
		"chromium is not installed, or UPDATE=-update is given", "make browser UPDATE=-update"},

	{"test race", `internal/wait\.TestGracePeriodsTakeTimeAndEnd`, `^needs two processors`,
		"there are two processors", "another machine"},
	{"test race", `examples/loadbalancer/keepalived\.Test.*`, `^keepalived is not installed`,
		"keepalived is installed", "the recorded conversions in testdata"},
	{"test race", `examples/loadbalancer\.TestUnits`, `^systemd-analyze is not installed`,
		"systemd-analyze is installed", "nothing"},
	{"race", `.*`, `^-short: the race detector allocates, too`, "", "make test"},
	{"race", `internal/test/growth\.Test.*`, `^-short: nothing is measured`, "", "make test"},
	{"race", `examples/command/version\.Test.*`, `^it builds eight programs`, "", "make test"},
	{"race", `internal/test/release\.Test.*`, `^nothing of it concerns the race`, "", "make test"},
	{"peers", `internal/test/winkernel\.TestTheRecordIsWinkernels`, `^needs Wine`,
		"Wine is installed", "the record, which TestSameLoadBalancers reads"},
}
