package ipvs

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/test/nstest"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// outlined is a rig with an engine that has applied a state. Each check reads outlines, but
// compares only one virtual server in full.
type outlined struct {
	*rig
	b *backend
	e *dataplane.Engine
}

func newOutlined(t *testing.T) *outlined {
	t.Helper()
	r := newRig(t)
	o := &outlined{rig: r, b: r.backend()}
	o.e = dataplane.New(o.b, nil)
	o.apply(o.e, rigState([]string{"10.244.1.1", "10.244.2.2"}))
	return o
}

// look requires the result of the next check, which compares a virtual server other than k in full.
func (o *outlined) look(want backends.Integrity, k ipvsnl.ServiceKey, what string) {
	o.t.Helper()
	o.b.kernel.outlines.due = time.Time{}
	o.b.scrub.keys, o.b.scrub.share = nil, 0
	for other := range o.b.pl.have.servers {
		if other != k {
			o.b.scrub.keys = append(o.b.scrub.keys, other)
		}
	}

	i := ok(o.b.Integrity(o.t.Context()))(o.t)
	require.Equal(o.t, want, i, what)
}

// one returns an IPv4 virtual server with destinations.
func (o *outlined) one() *server {
	for k, s := range o.b.pl.have.servers {
		if k.Family == ipvsnl.FamilyIPv4 && len(s.dests) > 1 {
			return s
		}
	}

	o.t.Fatal("no virtual server of IPv4 has two destinations")
	return nil
}

// Each edit of a virtual server, and each added or removed destination, shows in its outline at the
// next check, even if it is not the virtual server's turn for a full comparison.
func TestOutlinesShowChangesAtOnce(t *testing.T) {
	t.Parallel()
	o := newOutlined(t)
	s := o.one()
	k, dest := s.svc.ServiceKey, sortedDests(s.dests)[0]
	mask := ipvsnl.PrefixNetmask(ipvsnl.FamilyIPv4, 24)
	svc := func(edit func(*ipvsnl.Service)) ipvsnl.Op {
		edited := s.svc
		edit(&edited)
		return ipvsnl.SetService(edited)
	}

	more := s.dests[dest]
	more.Addr = netip.MustParseAddr("192.0.2.99")
	o.look(backends.Intact, k, "at first")
	want := o.state()
	for what, edit := range map[string]ipvsnl.Op{
		"a destination went": ipvsnl.DelDestination(k, dest),
		"a destination came": ipvsnl.NewDestination(k, more),
		"it went":            ipvsnl.DelService(k),
		"flags":              svc(func(s *ipvsnl.Service) { s.Flags |= ipvsnl.FlagOnePacket }),
		"scheduler":          svc(func(s *ipvsnl.Service) { s.Scheduler = "lc" }),
		"timeout":            svc(func(s *ipvsnl.Service) { s.Timeout = time.Hour }),
		"netmask":            svc(func(s *ipvsnl.Service) { s.Netmask = mask }),
	} {
		o.submit(edit)
		read := o.b.kernel.outlines.read
		o.b.kernel.outlines.read = nil
		o.look(backends.Intact, k, what+": without outlines")
		o.b.kernel.outlines.read = read
		o.look(backends.Broken, k, what)
		o.apply(o.e, rigState([]string{"10.244.1.1", "10.244.2.2"}))
		require.Equal(t, want, o.state(), what)
		o.look(backends.Intact, k, what+": repaired")
		o.look(backends.Intact, k, what+": as compared")
	}
}

// After a commit, outlines are compared again even if they were right before.
func TestOutlinesAreComparedAnewAfterACommit(t *testing.T) {
	t.Parallel()
	o := newOutlined(t)
	k := o.one().svc.ServiceKey
	o.look(backends.Intact, k, "at first")
	o.apply(o.e, rigState([]string{"10.244.1.1", "10.244.2.2", "10.244.2.3"}))
	for k, s := range o.b.pl.have.servers {
		for d := range s.dests {
			if d.Addr == netip.MustParseAddr("10.244.2.3") {
				o.submit(ipvsnl.DelDestination(k, d))
			}
		}
	}

	o.look(backends.Broken, k, "as before the commit")
}

// If all IPv4 virtual servers are removed after a commit, the outlines show it.
func TestThatThereAreNoOutlinesShows(t *testing.T) {
	t.Parallel()
	o := newOutlined(t)
	o.b.scrub.keys, o.b.scrub.share = nil, 0
	for k := range o.b.pl.have.servers {
		if k.Family == ipvsnl.FamilyIPv4 {
			o.submit(ipvsnl.DelService(k))
		} else {
			o.b.scrub.keys = append(o.b.scrub.keys, k)
		}
	}

	o.b.kernel.outlines.forget() // as a commit does
	o.b.kernel.outlines.due = time.Time{}
	requireIntegrity(t, o.b, backends.Broken)
}

// Virtual servers of other programs do not matter, whatever their number.
func TestOutlinesMakeRoom(t *testing.T) {
	t.Parallel()
	o := newOutlined(t)
	for i := range 2*outlineRoom + 1 {
		o.addForeign(ipvsnl.MarkService(ipvsnl.FamilyIPv4, uint32(i)+1))
	}
	k := o.one().svc.ServiceKey
	o.look(backends.Intact, k, "beside many")
	require.Greater(t, len(o.b.kernel.outlines.buf), 2*outlineRoom*ipvsnl.OutlineSize)
	o.submit(ipvsnl.DelDestination(k, sortedDests(o.one().dests)[0]))
	o.look(backends.Broken, k, "beside many")
}

// The socket option compares the destinations of IPv4 virtual servers. Generic netlink compares the
// destinations of IPv6 and of tunnels.
func TestDestinationsAreComparedByWhatKnowsThem(t *testing.T) {
	t.Parallel()
	o := newOutlined(t)
	s := o.one()
	k, dest := s.svc.ServiceKey, sortedDests(s.dests)[0]
	holds := func(want bool, what string) {
		t.Helper()
		is, known, err := o.b.kernel.outlines.holdsDests(s)
		require.NoError(t, err)
		require.True(t, known)
		require.Equal(t, want, is, what)
	}

	holds(true, "at first")
	for what, edit := range map[string]func(d *ipvsnl.Destination){
		"weight":  func(d *ipvsnl.Destination) { d.Weight++ },
		"forward": func(d *ipvsnl.Destination) { d.Forward = ipvsnl.ForwardDirectRoute },
		"upper":   func(d *ipvsnl.Destination) { d.UpperThreshold = 7 },
		"lower":   func(d *ipvsnl.Destination) { d.UpperThreshold, d.LowerThreshold = 7, 3 },
	} {
		d := s.dests[dest]
		edit(&d)
		o.submit(ipvsnl.SetDestination(k, d))
		holds(false, what)
		o.submit(ipvsnl.SetDestination(k, s.dests[dest]))
		holds(true, what)
	}

	other := s.dests[dest]
	other.Port++
	o.submit(ipvsnl.NewDestination(k, other))
	holds(false, "one more")
	o.submit(ipvsnl.DelDestination(k, dest))
	holds(false, "another one")
	o.submit(ipvsnl.DelDestination(k, other.DestinationKey))
	holds(false, "one less")
	o.submit(ipvsnl.DelService(k))
	holds(false, "no service")

	s.dests[dest] = ipvsnl.Destination{DestinationKey: dest, Forward: ipvsnl.ForwardTunnel}
	_, known, err := o.b.kernel.outlines.holdsDests(s)
	require.NoError(t, err)
	require.False(t, known, "a tunnel")
	s.svc.Family = ipvsnl.FamilyIPv6
	_, known, err = o.b.kernel.outlines.holdsDests(s)
	require.NoError(t, err)
	require.False(t, known, "IPv6")
}

// Outlines take their share of the time. If a kernel refuses the option, the option is not tried
// again. Other errors are returned.
func TestOutlinesAreRationedAndMayBeRefused(t *testing.T) {
	t.Parallel()
	asked, answer := 0, error(nil)
	o := outlines{read: func(int, []byte) error {
		asked++
		time.Sleep(time.Millisecond)
		return answer
	}}
	look := func(intact bool, wantAsked int) error {
		is, err := o.intact(nil, 1e-6)
		require.Equal(t, intact, is)
		require.Equal(t, wantAsked, asked)
		return err
	}

	require.NoError(t, look(true, 1))
	require.NoError(t, look(true, 1))
	require.Greater(t, time.Until(o.due), 10*time.Minute)
	o.due, answer = time.Time{}, syscall.EPERM
	refusal := look(false, 2)
	require.ErrorIs(t, refusal, syscall.EPERM)
	require.ErrorIs(t, refusal, kernelerr.ErrNoPermission)
	require.EqualError(t, refusal, "read virtual servers of IPv4: operation not permitted")
	answer = syscall.EINVAL
	require.NoError(t, look(true, 3))
	o.due = time.Time{}
	require.NoError(t, look(true, 3))
}

// A check compares at least one virtual server, and more for a share of the time since the last
// check, up to a limit. A virtual server that differs keeps its turn.
func TestComparisonsTakeAShareOfTheTime(t *testing.T) {
	t.Parallel()
	servers := map[ipvsnl.ServiceKey]*server{}
	for i := range 1000 {
		servers[ipvsnl.MarkService(ipvsnl.FamilyIPv4, uint32(i)+1)] = &server{}
	}
	s := scrub{share: 1e-3, at: time.Now()}
	compared := func(took time.Duration, holds bool) int {
		different := map[*server]bool{}
		ok, err := s.each(servers, func(s *server) (bool, error) {
			different[s] = true
			time.Sleep(took)
			return holds, nil
		})
		require.NoError(t, err)
		require.Equal(t, holds, ok)
		return len(different)
	}

	require.Equal(t, 1, compared(time.Millisecond, true), "nothing has passed")
	s.at = s.at.Add(-time.Hour)
	require.Equal(t, 1, compared(2*scrubMost, true), "the limit")
	s.at = s.at.Add(-time.Hour)
	require.Greater(t, compared(0, true), 1)
	left := len(s.keys)
	require.Equal(t, 1, compared(0, false))
	require.Len(t, s.keys, left, "its turn comes again")
	none, err := s.each(nil, nil)
	require.NoError(t, err)
	require.True(t, none)
}

// The number of references to the module reveals deleted virtual servers, except those that the
// backend deletes.
func TestReferencesTellOfDeletedServers(t *testing.T) {
	t.Parallel()
	r, b := rigWithBackend(t)
	b.kernel.references.file = filepath.Join(t.TempDir(), "refcnt")
	set := func(n int) {
		require.NoError(t, os.WriteFile(b.kernel.references.file,
			[]byte(strconv.Itoa(n)+"\n"), 0o600))
	}

	look := func(want backends.Integrity) {
		t.Helper()
		requireIntegrity(t, b, want)
	}

	set(3)
	e := dataplane.New(b, nil)
	applied(t, e, rigState([]string{"10.244.1.1"}))
	set(3 + len(r.fake.Keys()))
	look(backends.Intact)
	set(2 + len(r.fake.Keys()))
	look(backends.Touched)
	look(backends.Intact)
	set(20) // other virtual servers are added and removed
	look(backends.Intact)
	set(19)
	look(backends.Touched)
	applied(t, e, rigState([]string{"10.244.1.1"}, restrictedTo()))
	require.NoError(t, os.Remove(b.kernel.references.file))
	look(backends.Intact)
}

// The socket options and generic netlink agree about virtual servers of all kinds. A destination
// that was deleted by hand is noticed long before its virtual server is compared in full.
func TestKernelOutlinesAreWhatTheKernelHas(t *testing.T) {
	needIPVS(t)
	ns := nstest.New(t)
	b := ok(openBackend(&Config{NetNS: ns.NetNS(), AffinityMask4: 24}))(t)
	defer b.Close()
	state := rigState([]string{"10.244.1.1", "10.244.2.2"}, func(s *sm.Service) {
		// this needs a virtual server by mark
		s.ExternalTrafficPolicy = sm.PolicyLocal
		s.SessionAffinity = sm.SessionAffinity{ClientIP: true}
	})
	ok(dataplane.New(b, nil).Apply(t.Context(), state))(t)
	o, have := &b.kernel.outlines, b.pl.have.servers
	require.NoError(t, o.readHeads())
	require.NotNil(t, o.read)
	require.True(t, o.hold(have))
	one := holdAllDests(t, o, have)
	b.scrub.share = 0
	require.NoError(t, b.kernel.vs.Submit(t.Context(),
		ipvsnl.DelDestination(one.svc.ServiceKey, sortedDests(one.dests)[0])))
	require.NoError(t, o.readHeads())
	require.False(t, o.hold(have))
	holds, _, err := o.holdsDests(one)
	require.NoError(t, err)
	require.False(t, holds)
	o.due = time.Time{}
	requireIntegrity(t, b, backends.Broken)
}

// holdAllDests requires that all IPv4 virtual servers have their destinations, and returns a
// virtual server with two destinations. Some virtual servers are by mark.
func holdAllDests(t *testing.T, o *outlines, have map[ipvsnl.ServiceKey]*server) (one *server) {
	t.Helper()
	marks := 0
	for k, s := range have {
		if k.Family == ipvsnl.FamilyIPv4 && k.FWMark != 0 {
			marks++
		}
		holds, known, err := o.holdsDests(s)
		require.NoError(t, err)
		require.Equal(t, k.Family == ipvsnl.FamilyIPv4, known, k)
		require.Equal(t, known, holds, k)
		if known && len(s.dests) > 1 {
			one = s
		}
	}

	require.Positive(t, marks)
	require.NotNil(t, one)
	return one
}
