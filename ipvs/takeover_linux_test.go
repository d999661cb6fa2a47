package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
)

// theirs are virtual servers of kube-proxy: one where the service of a rig has its cluster IP, with
// an endpoint that stays and one that goes, and one that nobody wants.
func theirs(t *testing.T, r *rig) (wanted, other ipvsnl.ServiceKey) {
	t.Helper()
	wanted = ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.10:80"))
	other = ipvsnl.AddressService(ipvsnl.TCP, netip.MustParseAddrPort("10.96.0.99:80"))
	c, err := r.fake.Dial(t.Context(), nil)
	require.NoError(t, err)
	defer c.Close()
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

// A virtual server of somebody else becomes the service's in place: it is edited, its endpoints
// that stay are not touched, and those that go drain. What nobody wants stays theirs.
func TestAVirtualServerIsTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wanted, other := theirs(t, r)
	s := rigState([]string{"10.244.1.1", "10.244.2.2"})
	_, err := dataplane.New(r.backend(), &dataplane.Config{Strict: true}).Apply(t.Context(), s)
	require.ErrorIs(t, err, dataplane.ErrCollision, "it is not configured")
	r.fake.ResetLog()

	e := dataplane.New(r.backend(Config{TakeOver: true}), &dataplane.Config{Strict: true})
	_, err = e.Apply(t.Context(), s)
	require.NoError(t, err)
	var log []string
	for _, line := range r.fake.Log() {
		if strings.Contains(line, wanted.String()) {
			log = append(log, line)
		}
		require.NotContains(t, line, other.String())
	}
	require.Equal(t, []string{
		"set service TCP 10.96.0.10:80: wrr flags 0xf49d0000 timeout 0s netmask 255.255.255.255",
		"new destination 10.244.2.2:8080 of TCP 10.96.0.10:80: weight 1 masquerade",
		"set destination 10.244.9.9:8080 of TCP 10.96.0.10:80: weight 0 masquerade",
		"delete destination 10.244.9.9:8080 of TCP 10.96.0.10:80", // it has no connections
	}, log)

	// It is the instance's from here on, also without the configuration.
	r.apply(e, rigState([]string{"10.244.2.2"}))
	_, err = e.Cleanup(t.Context())
	require.NoError(t, err)
	require.Equal(t, []ipvsnl.ServiceKey{other}, r.fake.Keys())
}

// What another instance of kernlb has is never taken over.
func TestAnotherInstanceIsNotTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := rigState([]string{"10.244.1.1"})
	_, err := r.engine(Config{Table: "other"}).Apply(t.Context(), s)
	require.NoError(t, err)
	_, err = dataplane.New(r.backend(Config{TakeOver: true}), &dataplane.Config{Strict: true}).
		Apply(t.Context(), s)
	require.ErrorIs(t, err, dataplane.ErrCollision)
}
