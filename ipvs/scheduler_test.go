package ipvs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/servicemodel"
)

// allSchedulers are those of IPVS, with and without options.
func allSchedulers() []servicemodel.Scheduler {
	var l []servicemodel.Scheduler
	for _, s := range schedulers {
		l = append(l, s.name)
		if s.hashes {
			l = append(l, s.name+servicemodel.HashPort, s.name+servicemodel.HashFallback,
				s.name+servicemodel.HashPort+servicemodel.HashFallback)
		}
	}
	return l
}

// The numbers of schedulers are a format: virtual servers that an older program made have them in
// their flags, in four bits.
func TestNumbersOfSchedulersStay(t *testing.T) {
	t.Parallel()
	names := "|rr|wrr|lc|wlc|lblc|lblcr|sh|dh|sed|nq|mh|fo|ovf"
	for i, name := range strings.Split(names, "|") {
		require.Equal(t, i, schedulerNumber(servicemodel.Scheduler(name)), name)
	}
	require.LessOrEqual(t, len(schedulers), schedulerMask>>schedulerShift+1)
	require.Equal(t, -1, schedulerNumber(servicemodel.Random))
	require.Equal(t, ipvsnl.ServiceFlags(0x3b00), askedFlags("mh+port+fallback"))
	for _, s := range allSchedulers() {
		require.Equal(t, s, askedScheduler(askedFlags(s)))
		require.Equal(t, s != servicemodel.SchedulerDefault, hasScheduler(s), "%q", s)
		if s != servicemodel.SchedulerDefault {
			_, err := servicemodel.ParseScheduler(string(s))
			require.NoError(t, err)
		}
	}
	require.False(t, hasScheduler("rr+port"))
	require.False(t, hasScheduler("random"))
}

func TestSchedulersAreReadBack(t *testing.T) {
	t.Parallel()
	for _, want := range allSchedulers() {
		svc := goldenService(func(s *servicemodel.Service) { s.Scheduler = want })
		state := servicemodel.State{}.WithNode(goldenNode()).WithService(svc).WithEndpoints(
			svc.Name, goldenEndpoints("10.244.1.1"))
		table, err := servicemodel.Resolve(nil, state)
		require.NoError(t, err)
		b := withoutKernel(t, Config{Scheduler: servicemodel.SourceHash + servicemodel.HashPort})
		c := servicemodel.Diff(nil, table)
		require.NoError(t, b.Check(c))
		for fe := range table.Frontends() {
			for _, s := range b.pl.servers(table, fe, nil, 0) {
				id, ok := fe.Pool(fe.Internal)
				require.True(t, ok)
				require.Equal(t, want, s.pool(id).Scheduler)
			}
		}
	}
}

func TestOptionsOfSchedulersAreInThePlan(t *testing.T) {
	t.Parallel()
	for want, text := range map[servicemodel.Scheduler]string{
		"":                 "-s mh -b mh-fallback\n", // as configured
		"sh":               "-s sh\n",
		"sh+port":          "-s sh -b sh-port\n",
		"mh+fallback":      "-s mh -b mh-fallback\n",
		"sh+port+fallback": "-s sh -b sh-port,sh-fallback\n",
	} {
		svc := goldenService(func(s *servicemodel.Service) { s.Scheduler = want })
		table, err := servicemodel.Resolve(nil, servicemodel.State{}.WithNode(goldenNode()).
			WithService(svc).WithEndpoints(svc.Name, goldenEndpoints("10.244.1.1")))
		require.NoError(t, err)
		b := withoutKernel(t, Config{Scheduler: "mh+fallback"})
		p := b.pl.plan(servicemodel.Diff(nil, table))
		require.Contains(t, p.String(), "-A -t 10.96.0.10:80 "+text)
	}
}
