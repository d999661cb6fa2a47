package ipvs

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// allSchedulers are those of IPVS, with and without options.
func allSchedulers() []servicemodel.Scheduler {
	l := slices.Clone(schedulerOrder)
	for _, name := range []servicemodel.Scheduler{servicemodel.SourceHash, servicemodel.Maglev} {
		l = append(l, name+servicemodel.HashPort, name+servicemodel.HashFallback,
			name+servicemodel.HashPort+servicemodel.HashFallback)
	}
	return l
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
			for _, s := range b.servers(table, fe, nil, 0) {
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
		p := withoutKernel(t, Config{Scheduler: "mh+fallback"}).plan(servicemodel.Diff(nil, table))
		require.Contains(t, p.String(), "-A -t 10.96.0.10:80 "+text)
	}
}
