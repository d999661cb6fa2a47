package main

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// trace follows several packets, also until one is lost, and sums up by endpoint. -endpoint chooses
// the packets, or where they are sent.
func TestTraceFollowsSeveralPackets(t *testing.T) {
	t.Parallel()
	n := newNight(t, netnstest.Options{}, nightManifest("", ""))
	const good, silent = "10.244.1.2:8080", "10.244.1.3:8080"
	const send = "trace -send -from 192.0.2.10 -to 10.96.0.10:80/tcp"

	for _, endpoint := range []string{good, silent} {
		out := done(t, n.Node.NS, "", send+" -endpoint "+endpoint)
		require.Contains(t, out, "it works: "+endpoint+" answers")
	}

	fails(t, n.Node.NS, "", exitFailed, "10.244.1.9:8080 is no endpoint for connections from",
		send+" -endpoint 10.244.1.9:8080")
	out := done(t, n.Node.NS, "", send+" -count 3 -endpoint "+good)
	require.Regexp(t, `(?m)^ENDPOINT +ANSWERED +FAILED\n`+regexp.QuoteMeta(good)+` +3 +0$`, out)

	// others' packets
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for ctx.Err() == nil {
			netnstest.Probe{From: n.Pods[0], Proto: servicemodel.TCP,
				To: netip.MustParseAddrPort("10.96.0.10:80")}.Send(ctx)
			time.Sleep(50 * time.Millisecond)
		}
	}()

	const live = "trace -live -from 10.244.1.1 -to 10.96.0.10:80/tcp -wait 20s"
	out = done(t, n.Node.NS, "", live+" -until-lost -count 6")
	require.Regexp(t, `(?ms)^6: tcp 10\.244\.1\.1:\d+ -> 10\.96\.0\.10:80, syn: it works`, out)
	require.NotRegexp(t, `(?m)[1-9]$`, out[strings.Index(out, "ENDPOINT"):], "some were lost")

	rules(3, "type filter hook input priority 0; tcp dport 8080 drop")(n)
	out, _ = kernlb(t, n.Node.NS, "", exitFault, send+" -until-lost")
	require.Contains(t, out, "no answer of "+silent+" was seen")
	require.Contains(t, out, "What it met:")
	require.Regexp(t, `(?m)^`+regexp.QuoteMeta(silent)+` +0 +1$`, out)
	out = done(t, n.Node.NS, "", send+" -until-lost -count 2 -o json -endpoint "+good)
	require.Contains(t, out, `"answered": 2,`)

	out, _ = kernlb(t, n.Node.NS, "", exitFault, live+" -until-lost -endpoint "+silent)
	require.Contains(t, out, "no answer of "+silent+" was seen")
	out = done(t, n.Node.NS, "", live+" -count 2 -endpoint "+good)
	require.Regexp(t, `(?m)^`+regexp.QuoteMeta(good)+` +2 +0$`, out)
	stop()
	out, _ = kernlb(t, n.Node.NS, "", exitFailed, "trace -live -from 10.244.1.9 "+
		"-to 10.96.0.10:80/tcp -wait 1ms -count 2")
	require.Empty(t, out)
}
