package silence

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// Only the ports of an endpoint that are out take no connections.
func TestStatesWithoutSilentPorts(t *testing.T) {
	t.Parallel()
	name := web.Name
	ports := []servicemodel.EndpointPort{{Name: "a", Protocol: servicemodel.TCP, Port: 1},
		{Name: "b", Protocol: servicemodel.TCP}}
	addr := netip.MustParseAddr("10.0.0.1")
	other := servicemodel.Endpoint{Addr: addr.Next(), Ports: ports}
	wanted := servicemodel.State{}.WithService(&servicemodel.Service{Name: name,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []servicemodel.ServicePort{{Name: "a", Protocol: servicemodel.TCP, Port: 80},
			{Name: "b", Protocol: servicemodel.TCP, Port: 81}}})
	for _, c := range []struct {
		before servicemodel.Condition
		out    []uint16
		want   []servicemodel.Endpoint
	}{
		{out: nil, want: []servicemodel.Endpoint{{Addr: addr, Ports: ports}}},
		{out: []uint16{1}, want: []servicemodel.Endpoint{
			{Addr: addr, Ports: ports[1:]},
			{Addr: addr, Ports: ports[:1], Condition: servicemodel.NotReady}}},
		{out: []uint16{81}, before: servicemodel.Serving, want: []servicemodel.Endpoint{
			{Addr: addr, Ports: ports[:1], Condition: servicemodel.Serving},
			{Addr: addr, Ports: ports[1:], Condition: servicemodel.Terminating}}},
		{out: []uint16{1, 81}, want: []servicemodel.Endpoint{
			{Addr: addr, Ports: ports, Condition: servicemodel.NotReady}}},
	} {
		var got servicemodel.State
		f := &Follower{judge: newJudge(0.5), set: func(s servicemodel.State) { got = s }}
		for _, port := range c.out {
			p := place{servicemodel.PortName{Name: name, Protocol: servicemodel.TCP,
				Port: map[uint16]string{1: "a", 81: "b"}[port]}, netip.AddrPortFrom(addr, port)}
			f.judge.open[p] = f.judge.at(p)
			f.judge.eject(f.judge.at(p), p, time.Now())
		}

		f.Set(wanted.WithEndpoints(name, []servicemodel.Endpoint{
			{Addr: addr, Ports: ports, Condition: c.before}, other}))
		require.Equal(t, append(c.want, other), got.Endpoints(name))
		require.NoError(t, got.Validate())
		require.Len(t, f.Ejected(), len(c.out))

		f.Set(wanted.WithEndpoints(name, []servicemodel.Endpoint{other}))
		require.Empty(t, f.Ejected(), "they are no longer wanted")
		require.Equal(t, []servicemodel.Endpoint{other}, got.Endpoints(name))
		f.Set(servicemodel.State{})
	}
}
