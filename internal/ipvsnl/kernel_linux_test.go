package ipvsnl_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	. "github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// kernelClient returns a client in a new network namespace. It skips the test if the kernel has no
// IPVS or refuses us.
func kernelClient(tb testing.TB) (*Client, *netnstest.NS) {
	tb.Helper()
	ns := nstest.New(tb)

	c, err := Dial(tb.Context(), &rawnl.Config{NetNS: ns.NetNS()})
	if errors.Is(err, ErrNotSupported) {
		tb.Skipf("needs a kernel with IPVS: %v", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, c.Close()) })
	if _, err = c.Timeouts(tb.Context()); errors.Is(err, os.ErrPermission) {
		tb.Skipf("needs CAP_NET_ADMIN in the initial user namespace: %v", err)
	}
	require.NoError(tb, err)
	return c, ns
}

func TestKernelIsLikeTheFake(t *testing.T) {
	for name, test := range likeTheKernel {
		t.Run(name, func(t *testing.T) {
			test(t, func(t *testing.T) *Client {
				c, _ := kernelClient(t)
				return c
			})
		})
	}
}

func TestKernelListsInParts(t *testing.T) {
	c, _ := kernelClient(t)
	requireWholeDumps(t, c)
}

func TestKernelServicesAreSeenBesideAnotherNamespace(t *testing.T) {
	c, _ := kernelClient(t)
	const n = 300
	add, _ := Many(n, 0)
	require.NoError(t, c.Submit(t.Context(), add...))

	other, _ := kernelClient(t)
	add, remove := Many(20, 0)
	stop := make(chan struct{})
	churned := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				churned <- nil
				return
			default:
			}

			if err := other.Submit(t.Context(), append(add, remove...)...); err != nil {
				churned <- err
				return
			}
		}
	}()

	hidden := 0 // of a single dump, one in ten hides some
	for range 50 {
		if len(ok(c.Services(t.Context()))(t)) < n {
			hidden++
		}
	}

	close(stop)
	require.NoError(t, <-churned)
	require.LessOrEqual(t, hidden, 1)
}

func TestKernelAnswersFitTheReceiveQueue(t *testing.T) {
	_, ns := kernelClient(t)

	// Only the queue limits the amount that is sent at once.
	c := ok(Dial(t.Context(), &rawnl.Config{NetNS: ns.NetNS(), Limit: 1 << 30}))(t)
	defer c.Close()
	const n = 20_000 // several times the room of the queue
	_, remove := Many(n, 0)
	err := c.Submit(t.Context(), remove...)
	require.NotErrorIs(t, err, rawnl.ErrAnswersLost)
	refused := rawnl.Refusals(err)
	require.Len(t, refused, n, "each command fails, and none of the answers is lost")
	for i, f := range refused {
		require.Equal(t, i, f.Index)
		require.ErrorIs(t, f, ErrNoService)
	}
}

func TestKernelShowsIpvsadmWhatWeWrote(t *testing.T) {
	c, ns := kernelClient(t)
	require.NoError(t, c.Submit(t.Context(),
		NewService(Wanted(Web)),
		NewDestination(Web, Dest("10.244.1.1:8080")),
		NewDestination(Web, Destination{DestinationKey: DestKey("10.244.1.2:80"),
			Forward: ForwardTunnel, Weight: 1000}),
		NewService(SIP), NewService(OPS),
		NewService(Service{ServiceKey: DNS6, Scheduler: "mh",
			Flags:   FlagHashPort | FlagFallback | FlagPersistent,
			Timeout: time.Hour, Netmask: PrefixNetmask(FamilyIPv6, 64)}),
		NewDestination(DNS6, Dest("[2001:db8::2]:53")),
		NewService(Service{ServiceKey: Marks, Scheduler: "sh", Flags: FlagHashPort}),
		NewDestination(Marks, Destination{DestinationKey: DestKey("10.244.1.3:0"),
			Forward: ForwardDirectRoute})))
	var services []string // with their destinations, without the head and superfluous spaces
	for i, line := range strings.Split(strings.TrimSpace(nstest.Run(t, ns, "ipvsadm -Ln")), "\n") {
		line = strings.Join(strings.Fields(line), " ")
		switch {
		case i < 3:
		case strings.HasPrefix(line, "-> "):
			services[len(services)-1] += "; " + line[3:]
		default:
			services = append(services, line)
		}
	}

	require.ElementsMatch(t, []string{
		"TCP 10.96.0.1:80 rr; 10.244.1.1:8080 Masq 1 0 0; 10.244.1.2:80 Tunnel 1000 0 0",
		"TCP 10.96.0.2:5060 rr persistent 60 mask 255.255.255.0 pe sip",
		"UDP 10.96.0.3:53 rr ops",
		"UDP [2001:db8::1]:53 mh (mh-fallback,mh-port) persistent 3600 mask 64; " +
			"[2001:db8::2]:53 Masq 1 0 0",
		"FWM 7 sh (sh-port); 10.244.1.3:0 Route 0 0 0",
	}, services)
}
