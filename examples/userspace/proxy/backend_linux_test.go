package proxy

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

func TestAPlanSaysWhichSocketsChange(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{})
	at := s.at.String()
	p := must.OK(s.engine.Plan(t.Context(), state(service(), 1)))(t)
	require.Equal(t, `listen `+at+`:80/tcp for default/web:tcp at 10.96.0.10:80
listen `+at+`:80/udp for default/web:udp at 10.96.0.10:80
`+p.Changes.String(), p.Plan.String())
	require.Empty(t, s.sockets, "a preview leaves nothing")
	r := s.apply(state(service(), 1))
	require.Equal(t, p.Plan.Stats().Messages, r.Stats.Messages)
	require.Equal(t, 2, r.Stats.Elements)
	p = must.OK(s.engine.Plan(t.Context(), servicemodel.State{}))(t)
	require.Equal(t, "close "+at+":80/tcp\nclose "+at+":80/udp\n"+p.Changes.String(),
		p.Plan.String())
}

// A change touches only its own services: other listeners and connections stay, and so do the
// connections of removed endpoints.
func TestWhatDoesNotChangeIsNotTouched(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, echoes(t, 2)...)
	base := state(service(), 1, 2)
	s.apply(base)
	before := s.sockets[where{servicemodel.TCP, netip.AddrPortFrom(s.at, 80)}]
	c, name := s.visit()
	left := 2
	if name == "2" {
		left = 1
	}
	r := s.apply(state(service(), left))
	require.Zero(t, r.Stats.Elements, "no socket changes")
	other := service(func(v *servicemodel.Service) {
		v.Name.Name = "other"
		v.Ports = v.Ports[:1]
		v.Ports[0].Port = 81
	})
	r = s.apply(state(service(), left).WithService(other).WithEndpoints(other.Name,
		base.Endpoints(web)))
	require.Equal(t, 1, r.Stats.Elements)
	require.Same(t, before, s.sockets[before.where])
	s.apply(servicemodel.State{})
	must.OK(c.Write([]byte("still here")))(t)
	b := make([]byte, 10)
	must.OK(io.ReadFull(c, b))(t)
	require.Equal(t, "still here", string(b))
}

func TestRefusalsNameTheField(t *testing.T) {
	t.Parallel()
	taken := netip.AddrPortFrom(loopback(), 80)
	l := must.OK(net.ListenTCP("tcp", net.TCPAddrFromAddrPort(taken)))(t)
	defer l.Close()
	elsewhere := netip.MustParseAddr("203.0.113.77")
	tcp := func(edit func(*servicemodel.Service)) *servicemodel.Service {
		return service(func(v *servicemodel.Service) { v.Ports = v.Ports[:1] }, edit)
	}
	const inUse = "service default/web: the socket at "
	for want, edit := range map[string]func(*servicemodel.Service){
		"clusterIPs: 203.0.113.77 (listen at 203.0.113.77:80/tcp: cannot assign requested " +
			"address; it can be mapped)": func(v *servicemodel.Service) {
			v.ClusterIPs = []netip.Addr{elsewhere}
		},
		inUse + taken.String() + "/tcp, which is taken,": func(v *servicemodel.Service) {
			v.ClusterIPs = nil
			v.HostIPs = []netip.Addr{taken.Addr()}
		},
		"/tcp for 10.96.0.11:80, which excludes that at ": func(v *servicemodel.Service) {
			v.ExternalIPs = []netip.Addr{netip.MustParseAddr("10.96.0.11")}
		},
		"protocol: SCTP (the kernel backends forward it)": func(v *servicemodel.Service) {
			v.Ports = append(v.Ports, servicemodel.ServicePort{Name: "sctp",
				Protocol: servicemodel.SCTP, Port: 80})
		},
		"scheduler: dh (ipvs has it)": scheduled(servicemodel.DestHash),
		"forwarding: tunnel (ipvs has it)": func(v *servicemodel.Service) {
			v.Forwarding = servicemodel.ForwardTunnel
		},
	} {
		s := newSite(t, Config{})
		s.cfg.Map = append(s.cfg.Map, Rule{From: netip.PrefixFrom(
			netip.MustParseAddr("10.96.0.11"), 32), To: s.at})
		st := state(tcp(edit), 1).WithNode(servicemodel.Node{LocalhostNodePorts: true})
		r := s.apply(st)
		require.Len(t, r.Refused, 1, want)
		require.Equal(t, web, r.Refused[0].Service)
		require.ErrorContains(t, r.Refused[0].Err, want)
		require.Empty(t, s.sockets)
	}

	s := newSite(t, Config{})
	_, err := s.engine.Apply(t.Context(), state(service(), 1).WithNode(servicemodel.Node{
		LocalPods: servicemodel.PodDetector{Bridge: "cni0"}}))
	require.ErrorIs(t, err, dataplane.ErrRefused)
	require.ErrorContains(t, err, "node: localPods.bridge: cni0 (give localPods.cidrs)")
}

// Another program takes the port after the check. The engine reads again, and names the service.
func TestAPortTakenInBetweenIsACollision(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, echoes(t, 1)...)
	s.apply(servicemodel.State{})
	var c *servicemodel.ChangeSet
	p := must.OK(s.engine.Plan(t.Context(), state(service(), 1)))(t)
	c = p.Changes
	l := must.OK(net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.at, 80))))(t)
	_, err := s.Commit(t.Context(), c)
	require.ErrorIs(t, err, kernelerr.ErrConflict)
	require.Empty(t, s.sockets, "all or nothing")
	r := s.apply(state(service(), 1))
	require.ErrorIs(t, r.Refused[0].Err, backends.ErrCollision)
	require.NoError(t, l.Close())
	require.Empty(t, s.apply(state(service(), 1)).Refused)
	s.visit()
}

func TestNodePortsFollowTheAddressesOfTheNode(t *testing.T) {
	t.Parallel()
	first, second := loopback(), loopback()
	var node atomic.Pointer[[]netip.Addr]
	node.Store(&[]netip.Addr{first, first})
	s := newSite(t, Config{Addresses: func() ([]netip.Addr, error) { return *node.Load(), nil }},
		echoes(t, 1)...)
	published := service(func(v *servicemodel.Service) {
		v.Ports = v.Ports[:1]
		v.Ports[0].NodePort = 30080
	})
	s.apply(state(published, 1).WithNode(servicemodel.Node{LocalhostNodePorts: true}))
	require.Contains(t, s.sockets, where{servicemodel.TCP, netip.AddrPortFrom(first, 30080)})
	require.Equal(t, []netip.Addr{first, first}, *node.Load(), "it is the program's")
	node.Store(&[]netip.Addr{second})
	i := must.OK(s.Integrity(t.Context()))(t)
	require.Equal(t, backends.Broken, i)
	r := s.apply(state(published, 1).WithNode(servicemodel.Node{LocalhostNodePorts: true}))
	require.Equal(t, []string{"close " + first.String() + ":30080/tcp", "listen " +
		second.String() + ":30080/tcp for default/web:tcp at " + second.String() + ":30080"},
		r.Drift)
	c := must.OK(net.Dial("tcp", netip.AddrPortFrom(second, 30080).String()))(t)
	defer c.Close()
	name := must.OK(greeting(c.(*net.TCPConn)))(t)
	require.Equal(t, "1", name)
	i = must.OK(s.Integrity(t.Context()))(t)
	require.Equal(t, backends.Intact, i)
}

func TestCleanupStopsListeningAndDrainWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t, Config{}, echoes(t, 1)...)
	s.apply(state(service(), 1))
	c, _ := s.visit()
	must.OK(s.engine.Cleanup(t.Context()))(t)
	eventually(t, "connections are refused", func() bool { // when the accepting goroutine has ended
		late, err := net.Dial("tcp", netip.AddrPortFrom(s.at, 80).String())
		if err == nil {
			late.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})

	drained := make(chan error)
	go func() { drained <- s.Drain(t.Context()) }()
	must.OK(c.Write([]byte("x")))(t)
	must.OK(io.ReadFull(c, make([]byte, 1)))(t)
	c.Close()
	require.NoError(t, <-drained)
}

// If two sockets exclude each other, the service of one socket is refused, and the other services
// are served. The open socket stays.
func TestSocketsThatExcludeEachOther(t *testing.T) {
	t.Parallel()
	all, one := netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.96.0.12")
	for _, first := range []string{"all", "one"} {
		port := netip.MustParseAddrPort(freePort(t)).Port()
		s := newSite(t, Config{Map: Mapping{
			{From: netip.PrefixFrom(all, 32), To: netip.IPv4Unspecified(), ToPort: port},
			{From: netip.PrefixFrom(one, 32), To: loopback(), ToPort: port}}}, echoes(t, 1)...)
		with := func(st servicemodel.State, name string) servicemodel.State {
			v := service(func(v *servicemodel.Service) { v.Name.Name, v.Ports = name, v.Ports[:1] })
			v.ClusterIPs = []netip.Addr{map[string]netip.Addr{"all": all, "one": one}[name]}
			return st.WithService(v).WithEndpoints(v.Name, st.Endpoints(web))
		}

		st := with(state(service(), 1), first)
		require.Empty(t, s.apply(st).Refused)
		second := map[string]string{"all": "one", "one": "all"}[first]
		r := s.apply(with(st, second))
		require.Len(t, r.Refused, 1)
		require.Equal(t, second, r.Refused[0].Service.Name)
		require.ErrorIs(t, r.Refused[0].Err, backends.ErrCollision)
		s.visit()
		require.Empty(t, s.apply(with(state(service(), 1), second)).Refused,
			"it is free as soon as the other goes")

		// If one change adds both sockets, the lower address wins.
		s.apply(servicemodel.State{})
		r = s.apply(with(with(state(service(), 1), "one"), "all"))
		require.Len(t, r.Refused, 1)
		require.Equal(t, "one", r.Refused[0].Service.Name)
		s.visit()
	}
}

// freePort returns an address with a port that is free everywhere. It is below the kernel's
// ephemeral ports, because an ephemeral port may be in use again before the test binds it.
func freePort(t *testing.T) string {
	for range 100 {
		at := netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(10_000+rand.IntN(20_000))).String()
		if l, err := net.Listen("tcp4", at); err == nil {
			require.NoError(t, l.Close())
			return at
		}
	}

	t.Fatal("there is no free port")
	return ""
}

// Check tries sockets and closes them, and Commit opens them again. This must work even if the
// program starts other programs at the same time: a child has copies of all sockets until it
// executes its program.
func TestCheckBesideForks(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run()
			}
		})
	}

	defer forks.Wait()
	defer stop()
	s := newSite(t, Config{})
	s.forkTime = patience // a child may wait for a processor
	for range 300 {
		r := s.apply(state(service(), 1))
		require.Empty(t, r.Refused)
		must.OK(s.engine.Cleanup(t.Context()))(t)
	}
}
