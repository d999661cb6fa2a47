package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/flows"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// patience limits the waits of tests.
const patience = time.Minute

var tests atomic.Uint32

// loopback returns an address that no other test has, in this process or in another.
func loopback() netip.Addr {
	pid, n := os.Getpid(), tests.Add(1)
	return netip.AddrFrom4([4]byte{127, byte(pid >> 8), byte(pid), byte(n + 1)})
}

// The service of the tests, and the address that its clients ask for.
var (
	web   = servicemodel.Name{Namespace: "default", Name: "web"}
	webIP = netip.MustParseAddr("10.96.0.10")
)

// site is a proxy with an engine.
type site struct {
	*Backend
	t      *testing.T
	engine *dataplane.Engine
	at     netip.Addr // where the service is
	keeper *flows.Keeper
}

// newSite returns a proxy with an engine. Endpoint 10.244.0.n is mapped to the nth address.
func newSite(t *testing.T, cfg Config, endpoints ...netip.AddrPort) *site {
	t.Helper()
	s := &site{t: t, at: loopback()}
	cfg.Map = append(cfg.Map, Rule{From: netip.PrefixFrom(webIP, 32), To: s.at})
	for i, e := range endpoints {
		cfg.Map = append(cfg.Map, Rule{From: netip.PrefixFrom(endpointAddr(i+1), 32), To: e.Addr(),
			ToPort: e.Port()})
	}

	s.Backend = must.OK(New(&cfg))(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	s.keeper = must.OK(flows.New(s.Backend, nil))(t)
	s.engine = dataplane.New(s.Backend, &dataplane.Config{Flows: s.keeper})
	return s
}

func endpointAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(n)}) }

// service is the service, with a port 80 for TCP and one for UDP.
func service(edit ...func(*servicemodel.Service)) *servicemodel.Service {
	s := &servicemodel.Service{Name: web, ClusterIPs: []netip.Addr{webIP},
		Ports: []servicemodel.ServicePort{{Name: "tcp", Protocol: servicemodel.TCP, Port: 80},
			{Name: "udp", Protocol: servicemodel.UDP, Port: 80}}}
	for _, f := range edit {
		f(s)
	}
	return s
}

func scheduled(by servicemodel.Scheduler) func(*servicemodel.Service) {
	return func(s *servicemodel.Service) { s.Scheduler = by }
}

// state returns a state with the service and the endpoints with these numbers.
func state(svc *servicemodel.Service, endpoints ...int) servicemodel.State {
	var list []servicemodel.Endpoint
	for _, n := range endpoints {
		list = append(list, servicemodel.Endpoint{Addr: endpointAddr(n),
			Ports: []servicemodel.EndpointPort{
				{Name: "tcp", Protocol: servicemodel.TCP, Port: 8080},
				{Name: "udp", Protocol: servicemodel.UDP, Port: 8080}}})
	}

	return servicemodel.State{}.WithService(svc).WithEndpoints(svc.Name, list)
}

func (s *site) apply(state servicemodel.State) *dataplane.Result {
	s.t.Helper()
	return must.OK(s.engine.Apply(s.t.Context(), state))(s.t)
}

// dial connects to the service.
func (s *site) dial() *net.TCPConn {
	s.t.Helper()
	c := must.OK(net.DialTCP("tcp", nil,
		net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.at, 80))))(s.t)
	require.NoError(s.t, c.SetDeadline(time.Now().Add(patience)))
	s.t.Cleanup(func() { c.Close() })
	return c
}

// requireReset connects, and requires that the connection is reset, before or after it is
// established.
func (s *site) requireReset() {
	s.t.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.at, 80)))
	if err == nil {
		defer c.Close()
		require.NoError(s.t, c.SetDeadline(time.Now().Add(patience)))
		_, err = greeting(c)
	}

	require.ErrorIs(s.t, err, syscall.ECONNRESET)
}

// greeting returns the first line from a connection.
func greeting(c *net.TCPConn) (string, error) {
	line, err := bufio.NewReaderSize(io.LimitReader(c, 64), 64).ReadString('\n')
	return strings.TrimSpace(line), err
}

// visit connects, and returns the connection and the name of the server.
func (s *site) visit() (*net.TCPConn, string) {
	s.t.Helper()
	c := s.dial()
	name := must.OK(greeting(c))(s.t)
	return c, name
}

// listener listens at a free port until the test ends, and serves each connection.
func listener(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l := must.OK(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()

	return l.Addr().(*net.TCPAddr).AddrPort()
}

// echoes starts servers that send their number on a line and then echo.
func echoes(t *testing.T, n int) (all []netip.AddrPort) {
	for i := range n {
		all = append(all, listener(t, func(c *net.TCPConn) {
			fmt.Fprintf(c, "%d\n", i+1)
			io.Copy(c, c)
		}))
	}

	return all
}

// closed returns an address at which no program listens, so connections are refused.
func closed(t *testing.T) netip.AddrPort {
	return netip.AddrPortFrom(loopback(), 9)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, patience, 5*time.Millisecond, what)
}

// silence returns an address where connections are neither accepted nor refused: the queue of the
// listener has room for one connection, and is full.
func silence(t *testing.T) netip.AddrPort {
	t.Helper()
	at := netip.AddrPortFrom(loopback(), 9)
	fd := must.OK(syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Port: 9, Addr: at.Addr().As4()}))
	require.NoError(t, syscall.Listen(fd, 0))
	fill := must.OK(net.Dial("tcp", at.String()))(t)
	t.Cleanup(func() { fill.Close() })
	return at
}
