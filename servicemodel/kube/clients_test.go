package kube_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// A service whose clients cannot be parsed admits no clients.
func TestClientsOfAnAnnotation(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(&kube.Config{Annotations: "kernlb.io"})
	set := func(value string) []kube.Problem {
		return tracker.SetService(patched(webService(),
			"metadata: {annotations: {kernlb.io/clients: '"+value+"'}}"))
	}
	got := func() []servicemodel.ClientRule { return tracker.State().Service(web).Clients }
	p := netip.MustParsePrefix
	requireNoProblems(t, set("10.0.0.0/8, !10.1.0.0/16"))
	require.Equal(t, []servicemodel.ClientRule{{Allow: []netip.Prefix{p("10.0.0.0/8")},
		Deny: []netip.Prefix{p("10.1.0.0/16")}}}, got())
	for _, wrong := range []string{"10.0.0.0/8 10.1.0.0/16", "", "::ffff:10.0.0.0/104"} {
		require.Contains(t, fmt.Sprint(set(wrong)), "nobody may connect", wrong)
		require.Equal(t, []servicemodel.ClientRule{{Allow: []netip.Prefix{p("0.0.0.0/32"),
			p("::/128")}}}, got(), wrong)
	}
	require.NoError(t, tracker.State().Validate())
}
