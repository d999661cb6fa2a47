package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/internal/nft"
	busy "github.com/kernlb/kernlb/internal/test/busywriter"
	"github.com/kernlb/kernlb/internal/test/dataplanetest"
	"github.com/kernlb/kernlb/internal/wait"
	"github.com/kernlb/kernlb/servicemodel"
)

// editedState uses every sort of set.
func editedState() servicemodel.State {
	svc := goldenService(func(s *servicemodel.Service) {
		s.LoadBalancerIPs = []servicemodel.LoadBalancerIP{
			{Addr: netip.MustParseAddr("203.0.113.10")}}
		s.LoadBalancerSourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
		s.ExternalTrafficPolicy = servicemodel.PolicyLocal
		s.SessionAffinity = servicemodel.SessionAffinity{ClientIP: true, Timeout: time.Minute}
	})
	return servicemodel.State{}.WithNode(goldenNode()).WithService(svc).
		WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1", "10.244.1.2"))
}

// handEdit is a command of nft.
type handEdit struct{ name, nft string }

// handEdits are edits that an administrator can make to a table.
var handEdits = []handEdit{
	{"the ruleset is flushed", "flush ruleset"},
	{"the table is flushed", "flush table ip kernlb"},
	{"the table is deleted", "delete table ip kernlb"},
	{"the table is dormant", "add table ip kernlb { flags dormant; }"},
	{"a base chain has another policy", "add chain ip kernlb filter-input { policy drop; }"},
	{"a chain is flushed", "flush chain ip kernlb service-balance"},
	{"a rule is added", "add rule ip kernlb dispatch accept"},
	{"a rule is inserted", "insert rule ip kernlb nat-prerouting accept"},
	{"a rule is deleted", "delete rule ip kernlb nat-prerouting handle HANDLE(nat-prerouting)"},
	{"a rule is replaced",
		"replace rule ip kernlb nat-prerouting handle HANDLE(nat-prerouting) accept"},
	{"a chain is added", "add chain ip kernlb mine"},
	{"a set is added", "add set ip kernlb mine { type ipv4_addr; }"},
	{"a frontend is deleted", "delete element ip kernlb services { 10.96.0.10 . tcp . 80 }"},
	{"an endpoint is deleted",
		"delete element ip kernlb service-endpoints { 10.96.0.10 . tcp . 80 . 1 }"},
	{"an endpoint is added",
		"add element ip kernlb service-endpoints " +
			"{ 10.96.0.10 . tcp . 80 . 2 : 10.244.9.9 . 8080 }"},
	{"an endpoint of nobody is added",
		"add element ip kernlb service-endpoints " +
			"{ 10.96.0.99 . tcp . 80 . 0 : 10.244.9.9 . 8080 }"},
	{"a membership is deleted",
		"delete element ip kernlb service-split { 203.0.113.10 . tcp . 80 }"},
	{"a membership is added", "add element ip kernlb service-drop { 10.96.0.10 . tcp . 80 }"},
	{"an affinity timeout is deleted",
		"delete element ip kernlb service-affinity-60 { 10.96.0.10 . tcp . 80 }"},
	{"a cluster IP is deleted", "delete element ip kernlb cluster-ips { 10.96.0.10 }"},
	{"a hairpin is deleted", "delete element ip kernlb hairpins { 10.244.1.1 . 10.244.1.1 }"},
	{"a source range is added",
		"add element ip kernlb sources { 203.0.113.10 . tcp . 80 . 0.0.0.0-255.255.255.255 }"},
	{"a restriction is deleted", "delete element ip kernlb restricted { 203.0.113.10 . tcp . 80 }"},
	{"a setting is deleted", "delete element ip kernlb settings { 0x00000001 }"},
	{"the version is deleted", "flush set ip kernlb VERSION"},
	{"a version is added", "add element ip kernlb VERSION { 0x00000007 }"},
	{"an epoch is deleted", "delete set ip kernlb VERSION"},
	{"an epoch is added", "add set ip kernlb version-00000007 { type mark; size 128; }"},
}

// A program that applies again, a new program, and a running program all notice edits by hand,
// either by the numbers of elements or only by a reading. They repair the edit: the ruleset is the
// same as before.
func TestEditsByHandAreNoticedAndPutRight(t *testing.T) {
	t.Parallel()
	program := nftPrograms(t)[0]
	const endpoint = "element ip kernlb service-endpoints { 10.96.0.10 . tcp . 80 . 1"
	replaced := handEdit{"an endpoint is replaced",
		"delete " + endpoint + " }\nadd " + endpoint + " : 10.244.9.9 . 8080 }"}
	for _, tc := range append(slices.Clone(handEdits), replaced) {
		for _, how := range []string{"again", "anew", "running"} {
			t.Run(tc.name+", "+how, func(t *testing.T) {
				t.Parallel()
				ns, b := newNS(t)
				e := dataplane.New(b, nil)
				s := editedState()
				ok(e.Apply(t.Context(), s))(t)
				want := listing(t, ns, program)
				if how == "running" {
					defer dataplanetest.RunEngine(t, e, s)()
					editByHand(t, ns, program, tc.nft)
					require.Eventually(t, func() bool {
						return e.Status().Totals.Repairs == 1
					}, time.Minute, 10*time.Millisecond)
					require.Equal(t, want, listing(t, ns, program))
					require.Zero(t, e.Status().Totals.Failures)
					return
				}

				silent := tc == replaced || !tellsCounts(t, b) &&
					strings.Contains(tc.nft, "element ") && !strings.Contains(tc.nft, "VERSION")
				if how == "again" && silent {
					return // a reading notices it later: see backends.Touched
				}
				editByHand(t, ns, program, tc.nft)
				if how == "anew" {
					e = dataplane.New(newBackend(t, ns, nil), nil)
				}
				r := ok(e.Apply(t.Context(), s))(t)
				require.True(t, r.Observed)
				require.NotZero(t, r.Stats.Messages)
				require.Equal(t, want, listing(t, ns, program))

				r = ok(e.Apply(t.Context(), s))(t)
				require.Zero(t, r.Stats.Messages)
				require.False(t, r.Observed)
			})
		}
	}
}

// listing returns the ruleset without the version, which each transaction changes.
func listing(t *testing.T, ns *netnstest.NS, program string) string {
	t.Helper()
	all := runNft(t, ns, program, "", "list", "ruleset")
	before, rest, _ := strings.Cut(all, "set version-")
	_, after, _ := strings.Cut(rest, "}\n")
	return before + after
}

// editByHand runs a command of nft. In the command, HANDLE(chain) stands for the handle of the
// chain's first rule, and VERSION for the set of the epoch.
func editByHand(t *testing.T, ns *netnstest.NS, program, edit string) {
	t.Helper()
	if _, rest, ok := strings.Cut(edit, "HANDLE("); ok {
		chain, _, _ := strings.Cut(rest, ")")
		edit = strings.ReplaceAll(edit, "HANDLE("+chain+")", firstHandle(t,
			runNft(t, ns, program, "", "-a", "list", "chain", "ip", "kernlb", chain)))
	}

	if strings.Contains(edit, "VERSION") {
		_, rest, _ := strings.Cut(runNft(t, ns, program, "", "list", "ruleset"), "set version-")
		epoch, _, _ := strings.Cut(rest, " ")
		edit = strings.ReplaceAll(edit, "VERSION", "version-"+epoch)
	}

	runNft(t, ns, program, edit, "-f", "-")
}

// firstHandle returns the handle of the first rule of a chain in nft's listing.
func firstHandle(t *testing.T, listing string) string {
	t.Helper()
	for _, l := range strings.Split(listing, "\n") {
		if before, handle, ok := strings.Cut(l, " # handle "); ok &&
			!strings.HasSuffix(before, "{") {
			return handle
		}
	}

	t.Fatalf("no rule in\n%s", listing)
	return ""
}

// Checks for edits are rate-limited while another program commits without end: the edit is found
// when the limit allows a check. A kernel that does not report the number of elements of a set only
// shows edits of rules, chains and sets.
func TestLooksAreRationed(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	other := newBackend(t, ns, &Config{Table: "other"})
	e, oe := dataplane.New(b, nil), dataplane.New(other, nil)
	s := editedState()
	ok(e.Apply(t.Context(), s))(t)
	b.looks = wait.Budget{} // a budget that allows no check
	ok(oe.Apply(t.Context(), s))(t)
	require.Equal(t, backends.Touched, integrity(t, b))

	require.NoError(t, editSet(t, b, "service-drop"))
	require.Equal(t, backends.Touched, integrity(t, b))
	afterElements := backends.Broken
	if !tellsCounts(t, b) {
		afterElements = backends.Touched
	}
	require.Equal(t, afterElements, look(t, b))

	require.NoError(t, byHand(t, b, nft.IPv4, func(e *nft.Encoder) {
		e.AddSet(&nft.Set{Name: "mine", Key: []nft.Field{nft.IPv4.Addr}})
	}))
	b.looks = wait.Budget{}
	require.Equal(t, backends.Touched, integrity(t, b))
	b.looks = wait.NewBudget(8, 20)
	require.Equal(t, backends.Broken, integrity(t, b))
}

// editSet adds a frontend that belongs to no service to a set of the IPv4 table.
func editSet(t *testing.T, b *backend, name string) error {
	t.Helper()
	k := tcpKey("10.96.0.99:80")
	return addTo(t, b, name, nft.Elem{Key: nft.AppendFrontend(nil, k)})
}

// Another program's tables with the name of the instance stay until the user sets TakeOver.
func TestATableOfOthersIsNotTakenOver(t *testing.T) {
	t.Parallel()
	ns, _ := newNS(t)
	program := nftPrograms(t)[0]
	const rule = "tcp dport 22 accept"
	runNft(t, ns, program, "table ip6 firewalld {\nset settings {\ntype ipv6_addr\n}\n"+
		"chain INPUT {\ntype filter hook input priority 0; policy drop;\n"+rule+"\n}\n}\n"+
		"table ip kernlb {\ncounter theirs {\n}\n}\n", "-f", "-")
	ok(dataplane.New(newBackend(t, ns, nil), nil).Cleanup(t.Context()))(t)
	_, err := dataplane.New(newBackend(t, ns, nil), nil).Apply(t.Context(), sharedState()["other"])
	require.ErrorIs(t, err, backends.ErrCollision, "a table with a counter only")
	before := runNft(t, ns, program, "", "list", "ruleset")
	b := newBackend(t, ns, &Config{Table: "firewalld"})
	e, p := dataplane.New(b, nil), dataplane.NewParts(b, nil)
	s := sharedState()["other"]
	for name, fn := range map[string]func() error{
		"apply":   func() error { _, err := e.Apply(t.Context(), s); return err },
		"observe": func() error { _, err := e.Observe(t.Context()); return err },
		"part":    func() error { _, err := p.Apply(t.Context(), "other", s); return err },
		"remove":  func() error { _, err := p.Remove(t.Context(), "other"); return err },
	} {
		err := fn()
		require.ErrorIs(t, err, backends.ErrCollision, name)
		require.ErrorContains(t, err, "table ip6 firewalld is not ours", name)
	}

	ok(e.Cleanup(t.Context()))(t) // the instance has no tables to delete
	require.Equal(t, before, runNft(t, ns, program, "", "list", "ruleset"))

	e = dataplane.New(newBackend(t, ns, &Config{Table: "firewalld", TakeOver: true}), nil)
	ok(e.Apply(t.Context(), s))(t)
	require.False(t, strings.Contains(runNft(t, ns, program, "", "list", "ruleset"), rule))
	ok(dataplane.New(b, nil).Apply(t.Context(), s))(t) // now it is the instance's
}

// A neighbour that commits all the time, and has many chains, does not prevent other programs from
// publishing ports at loopback addresses, nor from cleaning up.
func TestPublishedAtLoopbackBesideANeighbour(t *testing.T) {
	t.Parallel()
	ns, b := newNS(t)
	var script strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&script, "chain c%d { }\n", i)
	}
	runNft(t, ns, nftPrograms(t)[0], "table ip others {\n"+script.String()+"}\n", "-f", "-")
	n := ok(busy.Start(t.Context(), ns.NetNS()))(t)
	defer n.Close()
	node := goldenNode()
	node.LocalhostNodePorts = true
	s := servicemodel.State{}.WithNode(node).WithService(goldenService()).
		WithEndpoints(goldenService().Name, goldenEndpoints("10.244.1.1"))
	e := dataplane.New(b, nil)
	for range 5 {
		ok(e.Apply(t.Context(), s))(t)
		ok(e.Cleanup(t.Context()))(t)
	}
}
