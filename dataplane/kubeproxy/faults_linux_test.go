package kubeproxy

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rtnetlink"
	"github.com/kernlb/kernlb/internal/test/rawnltest"
)

// begin makes the objects of the ipvs mode that do not exist.
func (m *ipvsMode) begin() {
	m.t.Helper()
	if _, err := m.links.LinkByName(device); rtnetlink.Gone(err) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = device
		require.NoError(m.t, m.links.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}))
		m.bind(device, "10.96.0.1")
	}
	var b ipvsnl.Batch
	b.NewService(ipvsnl.Service{ServiceKey: tcp("10.96.0.1:443"), Scheduler: "rr"})
	_ = m.ipvs.Submit(m.t.Context(), &b) // it may be there
}

// ended requires that nothing is left, or that a cleanup recognises the rest and deletes it.
func (m *ipvsMode) ended(err error, what string) {
	m.t.Helper()
	if err != nil {
		cleanup(m.t, m.ns)
	}
	services := ok(m.ipvs.Services(m.t.Context()))(m.t)
	require.Empty(m.t, services, what)
	_, err = m.links.LinkByName(device)
	require.ErrorAs(m.t, err, &netlink.LinkNotFoundError{}, what)
	require.True(m.t, find(m.t, m.ns).Empty(), what)
}

// Each request fails. A cleanup still recognises the remaining objects as kube-proxy's.
func TestKernelEachRequestGoesWrong(t *testing.T) {
	m := newIPVSMode(t)
	m.begin()
	rawnltest.FailEach(t, "clean up", func(ctx context.Context) error {
		m.begin()
		_, err := Cleanup(ctx, &Config{NetNS: m.ns.Fd()})
		m.ended(err, "a request failed")
		return err
	})
	k := ok(open(&Config{NetNS: m.ns.Fd()}))(t)
	defer k.close()
	f := rawnltest.NewFaults()
	k.links.Wrap(f.Call)
	for _, fault := range rawnltest.Calls(netlink.ErrDumpInterrupted) {
		for n, hits := 0, 1; hits > 0; n++ { // each, then one at a time
			m.begin()
			f.Arm(fault, n)
			_, err := k.cleanup(t.Context())
			hits = f.Disarm()
			if fault.Errno != 0 && hits > 0 {
				require.ErrorIs(t, err, fault.Errno)
			} else if n > 0 {
				require.NoError(t, err, "request %d: %s", n, fault.Name)
			}
			m.ended(err, fault.Name)
		}
	}
}
