package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// theirs makes virtual servers of kube-proxy: one at the cluster IP of a rig's service, with an
// endpoint that stays and one that goes, and one that nobody wants.
func theirs(t *testing.T, r *rig) (wanted, other ipvsnl.ServiceKey) {
	t.Helper()
	wanted = ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.10:80"))
	other = ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.99:80"))
	c := r.client()
	var b ipvsnl.Batch
	for _, k := range []ipvsnl.ServiceKey{wanted, other} {
		b.NewService(ipvsnl.Service{ServiceKey: k, Scheduler: "rr"})
		for _, addr := range []string{"10.244.1.1", "10.244.9.9"} {
			b.NewDestination(k, ipvsnl.Destination{DestinationKey: ipvsnl.DestinationKey{
				Addr: netip.MustParseAddr(addr), Port: 8080}, Weight: 1})
		}
	}
	require.NoError(t, c.Submit(t.Context(), &b))
	return wanted, other
}

// The service takes over a foreign virtual server in place: it is edited, endpoints that stay are
// not touched, and those that go drain. A foreign virtual server that nobody wants is left alone.
func TestAVirtualServerIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wanted, other := theirs(t, r)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"})
	_, err := dataplane.New(r.backend(), &dataplane.Config{Strict: true}).Apply(t.Context(), s)
	require.ErrorIs(t, err, dataplane.ErrCollision, "it is not configured")
	r.fake.ResetLog()

	e := dataplane.New(r.backend(Config{TakeOver: true}), &dataplane.Config{Strict: true})
	applied(t, e, s)
	var log []string
	for _, line := range r.fake.Log() {
		if strings.Contains(line, wanted.String()) {
			log = append(log, line)
		}
		require.NotContains(t, line, other.String())
	}
	require.Equal(t, []string{
		"set service TCP 10.96.0.10:80: wrr",
		"new destination 10.244.2.2:8080 of TCP 10.96.0.10:80: weight 1 masquerade",
		"set destination 10.244.9.9:8080 of TCP 10.96.0.10:80: weight 0 masquerade",
		"delete destination 10.244.9.9:8080 of TCP 10.96.0.10:80", // it has no connections
	}, log)

	// From here on it belongs to the instance, even without the configuration.
	r.apply(e, rigState([]string{"10.244.2.2"}))
	cleanUp(t, e)
	require.Equal(t, []ipvsnl.ServiceKey{other}, r.fake.Keys())
}

// Virtual servers of another instance of kernlb are never taken over.
func TestAnotherInstanceIsNotTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	applied(t, r.engine(Config{Table: "other"}), s)
	_, err := dataplane.New(r.backend(Config{TakeOver: true}), &dataplane.Config{Strict: true}).
		Apply(t.Context(), s)
	require.ErrorIs(t, err, dataplane.ErrCollision)
}

// Another program's table with the name of the instance stays as it is.
func TestTablesOfOthersStay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("nft add table ip filter")
	r.run("nft add chain ip filter INPUT { type filter hook input priority 0 ; policy drop ; }")
	before := r.state()
	e := r.engine(Config{Table: "filter"})
	_, err := e.Apply(t.Context(), rigState([]string{"10.244.1.1"}))
	require.ErrorIs(t, err, dataplane.ErrCollision)
	require.ErrorContains(t, err, "table ip filter")
	cleanUp(t, e)
	require.Equal(t, before, r.state())
}
