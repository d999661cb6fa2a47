package silence_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/nftables"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestMain(m *testing.M) { netnstest.Main(m) }

// kinds open the backends.
var kinds = map[string]func(netns.Namespace) (backends.Backend, error){
	"nftables": func(ns netns.Namespace) (backends.Backend, error) {
		return nftables.New(&nftables.Config{NetNS: ns})
	},
	"iptables": func(ns netns.Namespace) (backends.Backend, error) {
		return iptables.New(&iptables.Config{NetNS: ns})
	},
	"ipvs": func(ns netns.Namespace) (backends.Backend, error) {
		return ipvs.New(&ipvs.Config{NetNS: ns})
	},
}

var (
	name     = servicemodel.Name{Namespace: "default", Name: "web"}
	frontend = netip.MustParseAddrPort("10.96.0.10:80")
)

const port = 8080

// network is a service in a network, with an engine, a follower, and clients.
type network struct {
	*netnstest.Cluster
	t        *testing.T
	follower *silence.Follower
	changes  chan silence.Change
	servers  []*netnstest.Server
	saved    string // a file with commands that mend a link

	mu       sync.Mutex
	outcomes []outcome
}

// outcome is the outcome of a connection, with the time of its beginning.
type outcome struct {
	netnstest.Outcome
	began time.Time
}

// start starts a service with some pods as its endpoints, and a follower.
func start(t *testing.T, kind string, pods, clients int) *network {
	t.Helper()
	n := &network{t: t, changes: make(chan silence.Change, 100),
		Cluster: netnstest.Start(t, netnstest.Options{Pods: pods, OutsideClients: clients})}
	var addrs []string
	for i, pod := range n.Pods {
		n.servers = append(n.servers, nil)
		n.serve(i)
		addrs = append(addrs, pod.IPv4.String())
	}

	backend, err := kinds[kind](n.Node.NS.NetNS())
	if kind == "ipvs" && errors.Is(err, kernelerr.ErrMissingModule) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = backend.Close() })
	engine := dataplane.New(backend, nil)
	n.follower, err = silence.NewFollower(func(s servicemodel.State) { engine.Set(s) },
		&silence.Config{NetNS: n.Node.NS.NetNS(), IPVS: kind == "ipvs",
			Table:   func() *servicemodel.Table { return engine.Status().Held },
			Changed: func(c silence.Change) { t.Log(c); n.changes <- c }})
	require.NoError(t, err)
	n.follower.Set(service(addrs...))
	ctx, stop := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	runs.Go(func() { _ = engine.Run(ctx, nil) })
	runs.Go(func() {
		if err := n.follower.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})

	t.Cleanup(func() { stop(); runs.Wait(); _ = n.follower.Close() })
	require.Eventually(t, func() bool { return !engine.Status().Pending() }, 2*time.Minute,
		10*time.Millisecond)
	return n
}

// service returns a state with a service that has endpoints at addresses.
func service(addrs ...string) servicemodel.State {
	var eps []servicemodel.Endpoint
	for _, a := range addrs {
		eps = append(eps, servicemodel.Endpoint{Addr: netip.MustParseAddr(a),
			Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: port}}})
	}

	return servicemodel.State{}.WithService(&servicemodel.Service{Name: name,
		ClusterIPs: []netip.Addr{frontend.Addr()},
		Ports: []servicemodel.ServicePort{{Protocol: servicemodel.TCP,
			Port: frontend.Port()}}}).WithEndpoints(name, eps)
}

// serve starts the server of a pod.
func (n *network) serve(i int) {
	pod := n.Pods[i]
	n.servers[i] = must.OK(pod.NS.Serve(pod.Name, servicemodel.TCP,
		netip.AddrPortFrom(pod.IPv4, port)))(n.t)
}

// send makes a connection.
func (n *network) send(client int) {
	began := time.Now()
	o := netnstest.Probe{From: n.Outside[client%len(n.Outside)], Proto: servicemodel.TCP,
		To: frontend}.Send(context.Background())
	n.mu.Lock()
	n.outcomes = append(n.outcomes, outcome{o, began})
	n.mu.Unlock()
}

// warm makes many connections, so that the follower knows that the network loses no packets.
func (n *network) warm(count int) {
	probes := make([]netnstest.Probe, count)
	for i := range probes {
		probes[i] = netnstest.Probe{From: n.Outside[i%len(n.Outside)], Proto: servicemodel.TCP,
			To: frontend}
	}

	for _, o := range netnstest.SendAll(n.t.Context(), probes) {
		require.Equal(n.t, netnstest.Answered, o.Kind, o)
	}
}

// traffic opens a connection at each interval, from each client in turn, until the test ends.
func (n *network) traffic(interval time.Duration) {
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			work.Go(func() { n.send(i) })
			<-tick.C
		}
	})

	n.t.Cleanup(func() { stop(); work.Wait() })
}

// since returns the outcomes of the connections that began after a time.
func (n *network) since(at time.Time) []outcome {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := slices.DeleteFunc(slices.Clone(n.outcomes), func(o outcome) bool {
		return !o.began.After(at)
	})
	slices.SortFunc(out, func(a, b outcome) int { return a.began.Compare(b.began) })
	return out
}

// next waits for the next change.
func (n *network) next() (c silence.Change) {
	n.t.Helper()
	select {
	case c = <-n.changes:
	case <-time.After(2 * time.Minute):
		require.FailNow(n.t, "no change")
	}

	return c
}

// run runs a program in the namespace of a host, or skips the test if there is no such program.
func run(t *testing.T, h *netnstest.Host, stdin string, command ...string) {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Skip("needs the program " + command[0])
	}
	require.NoError(t, h.NS.Do(func() error {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdin = bytes.NewBufferString(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
		return nil
	}))
}

// sendMany opens count connections, a limited number at a time, from each client in turn.
func (n *network) sendMany(count int) {
	probes := make([]netnstest.Probe, count)
	for i := range probes {
		probes[i] = netnstest.Probe{From: n.Outside[i%len(n.Outside)], Proto: servicemodel.TCP,
			To: frontend, Timeout: 20 * time.Millisecond}
	}

	began := time.Now()
	for _, o := range netnstest.SendAll(n.t.Context(), probes) {
		n.outcomes = append(n.outcomes, outcome{o, began})
	}
}

// forge sends a SYN from another forged source every millisecond until the test ends, and, if it
// resets, a reset right behind each.
func (n *network) forge(reset bool) {
	ctx, stop := context.WithCancel(context.Background())
	var fd int
	require.NoError(n.t, n.Outside[0].NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))

	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		to := &unix.SockaddrInet4{Addr: frontend.Addr().As4()}
		for i := uint32(1); ctx.Err() == nil; i++ {
			from := netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})
			if err := unix.Sendto(fd, segment(from, 0x02, i), 0, to); err != nil {
				n.t.Error(err)
			}
			if reset {
				_ = unix.Sendto(fd, segment(from, 0x04, i+1), 0, to)
			}
			<-tick.C
		}
	})

	n.t.Cleanup(func() { stop(); work.Wait(); _ = unix.Close(fd) })
}

// segment returns an IP packet to the frontend with a TCP segment of some flags.
func segment(from netip.Addr, flags byte, seq uint32) []byte {
	p := make([]byte, 40)
	p[0], p[3], p[8], p[9] = 4<<4|5, 40, 64, unix.IPPROTO_TCP
	copy(p[12:], from.AsSlice())
	copy(p[16:], frontend.Addr().AsSlice())
	tcp := p[20:]
	binary.BigEndian.PutUint16(tcp, 40000)
	binary.BigEndian.PutUint16(tcp[2:], frontend.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	tcp[12], tcp[13], tcp[14] = 5<<4, flags, 0x10
	sum := uint32(unix.IPPROTO_TCP + 20)
	for i := 12; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	return p
}

// drop makes a host drop what arrives and matches.
func (n *network) drop(h *netnstest.Host, match string) {
	run(n.t, h, "table ip t { chain c { type filter hook input priority 0; "+match+" drop; }; }",
		"nft", "-f", "-")
}
