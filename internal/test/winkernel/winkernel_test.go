package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/examples/kernelspace/hnsfake"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

var update = flag.Bool("update", false, "record winkernel's outcomes and the differences")

const (
	recorded    = "testdata/winkernel.json"
	differences = "testdata/differences.txt"
)

// TestSameLoadBalancers compares, after each step of each scenario, the objects of winkernel in HNS
// with the objects of package kernelspace. After the last step, kernelspace must leave the same
// objects as a new instance, even if calls failed before. winkernel's outcomes are recorded, so the
// comparison needs no Windows; TestTheRecordIsWinkernels checks the record. All differences are in
// a file, which docs/decisions/kernelspace.md explains.
func TestSameLoadBalancers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(recorded)
	require.NoError(t, err)
	var theirs map[string][]outcome
	require.NoError(t, json.Unmarshal(text, &theirs))
	var out strings.Builder
	same, steps := 0, 0
	for _, s := range scenarios() {
		ours, err := ourOutcomes(t, &s)
		require.NoError(t, err, s.Case)
		require.Len(t, theirs[s.Name], len(ours), "run with -update")
		last := s
		last.Steps = s.Steps[len(s.Steps)-1:]
		anew, err := ourOutcomes(t, &last)
		require.NoError(t, err, s.Case)
		require.Equal(t, anew[0].LoadBalancers, ours[len(ours)-1].LoadBalancers, s.Case)
		require.Equal(t, anew[0].Endpoints, ours[len(ours)-1].Endpoints, s.Case)
		for i := range ours {
			steps++
			d := compare("load balancer", theirs[s.Name][i].LoadBalancers, ours[i].LoadBalancers)
			if d == "" {
				same++
			}
			d += compare("endpoint", theirs[s.Name][i].Endpoints, ours[i].Endpoints)
			d += compareCalls(theirs[s.Name][i].Calls, ours[i].Calls)
			if d != "" {
				fmt.Fprintf(&out, "%s, %s, step %d\n%s\n", s.Case, s.Network.Type, i+1, d)
			}
		}
	}

	fmt.Fprintf(&out, "%d of %d steps have the same load balancers\n", same, steps)
	if *update {
		require.NoError(t, os.WriteFile(differences, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(differences)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String())
}

// compare returns a line for each difference.
func compare(object string, theirs, ours map[string]string) string {
	var out strings.Builder
	all := maps.Clone(theirs)
	maps.Copy(all, ours)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if a, b := theirs[k], ours[k]; a != b {
			fmt.Fprintf(&out, "\t%s %s\n\t\twinkernel   %s\n\t\tkernelspace %s\n", object, k,
				cmp.Or(a, "none"), cmp.Or(b, "none"))
		}
	}

	return out.String()
}

// compareCalls returns the calls that only one of the two programs made.
func compareCalls(theirs, ours []string) string {
	a, b := slices.Clone(theirs), []string(nil)
	for _, c := range ours {
		if i := slices.Index(a, c); i >= 0 {
			a = slices.Delete(a, i, i+1)
		} else {
			b = append(b, c)
		}
	}

	var out string
	for _, c := range a {
		out += "\twinkernel alone calls: " + c + "\n"
	}
	for _, c := range b {
		out += "\tkernelspace alone calls: " + c + "\n"
	}
	return out
}

// ourOutcomes runs a scenario with package kernelspace.
func ourOutcomes(t *testing.T, s *scenario) (out []outcome, err error) {
	h, err := machine(s)
	if err != nil {
		return nil, err
	}
	addr := netip.MustParseAddr
	b, err := kernelspace.New(&kernelspace.Config{HNS: h, Store: &kernelspace.Memory{},
		Network: s.Network.Name, SourceVIP: addr(s.Config.SourceVIP), HostMAC: hostMAC,
		NodeIPs: []netip.Addr{addr(nodeIP), addr(nodeIPv6)}, EnableDSR: s.Config.EnableDSR,
		ForwardHealthCheckVIP: s.Config.ForwardVIP, RootEndpoint: s.Config.RootEndpoint,
		HealthzPort: healthz})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	e := dataplane.New(b, nil)
	for _, step := range s.Steps {
		tracker := kube.NewTracker(&kube.Config{Node: servicemodel.Node{Name: nodeName},
			Annotations: "kernlb.io"})
		for i := range step.Services {
			require.Empty(t, tracker.SetService(&step.Services[i]))
		}
		for i := range step.Slices {
			require.Empty(t, tracker.SetEndpointSlice(&step.Slices[i]))
		}
		fail(h, &step)
		r, err := e.Apply(t.Context(), tracker.State())
		if step.Fails == "" {
			require.NoError(t, err, s.Case)
			require.Empty(t, r.Refused, s.Case)
		} else if err != nil {
			require.ErrorIs(t, err, hnsfake.ErrFault, s.Case)
		}

		o, err := observe(h, s)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}

	return out, nil
}

// wine returns the program that runs programs of Windows, or "".
func wine() string {
	for _, name := range []string{"wine64", "/usr/lib/wine/wine64"} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}

	return ""
}

// TestTheRecordIsWinkernels runs winkernel's own proxier under Wine and compares its outcomes with
// the record.
func TestTheRecordIsWinkernels(t *testing.T) {
	run := wine()
	switch {
	case run == "":
		t.Skip("needs Wine (apt-get install wine64): the record of winkernel's outcomes is used")
	case testing.Short():
		t.Skip("builds kube-proxy's proxier, which takes minutes the first time")
	}

	dir := t.TempDir()
	program, err := build(dir)
	require.NoError(t, err)
	all, err := json.Marshal(scenarios())
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), run, program)
	c.Env = append(os.Environ(), "WINEPREFIX="+dir+"/prefix", "WINEDEBUG=-all")
	c.Stdin = bytes.NewReader(all)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(t, err, "%s", tail(&stderr))
	var got map[string][]outcome
	require.NoError(t, json.Unmarshal(out, &got))
	text, err := json.MarshalIndent(got, "", "\t")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(recorded, append(text, '\n'), 0o644))
	}
	want, err := os.ReadFile(recorded)
	require.NoError(t, err)
	require.Equal(t, string(want), string(text)+"\n")
}

// tail returns the end of a text.
func tail(r io.Reader) string {
	text, _ := io.ReadAll(r)
	return string(text[max(0, len(text)-4000):])
}
