package ipvs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
)

// ipvsadm shows each scheduler with its options. A new program finds it, and has nothing to do.
func TestKernelHasEachScheduler(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	for want, text := range map[servicemodel.Scheduler]string{
		"":     "-s wrr",
		"rr":   "-s rr",
		"wlc":  "-s wlc",
		"lblc": "-s lblc", "lblcr": "-s lblcr",
		"dh":  "-s dh",
		"sed": "-s sed", "nq": "-s nq", "fo": "-s fo", "ovf": "-s ovf",
		"sh":               "-s sh",
		"sh+port":          "-s sh -b sh-port",
		"mh+fallback":      "-s mh -b mh-fallback",
		"mh+port+fallback": "-s mh -b mh-fallback,mh-port",
	} {
		s := k.state(web(func(s *servicemodel.Service) { s.Scheduler = want }), "pod2", "pod3")
		k.apply(s)
		require.Contains(t, k.run("ipvsadm", "-Sn"), "-A -t 10.96.0.10:80 "+text+"\n")
		k.restart(ipvs.Config{})
		r := k.apply(s)
		require.Zero(t, r.Added+r.Changed+r.Removed, "%q", want)
		require.Zero(t, r.Messages, "%q", want)
	}
}
