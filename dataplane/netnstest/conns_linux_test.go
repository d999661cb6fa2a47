package netnstest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// patience is far longer than any answer takes.
const patience = time.Minute

func TestConnectionsAreHeldAndTheirLossIsSeen(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	nft(t, c.Node.NS, serviceRules)
	require.NoError(t, c.RemotePods[0].Serve(servicemodel.TCP, 8080))
	s := ok(c.Pods[0].NS.Serve("mortal", servicemodel.TCP, netip.AddrPortFrom(c.Pods[0].IPv4,
		8080)))(t)
	const count = 500
	mortal := ok(OpenConns(t.Context(), c.Outside[0], netip.MustParseAddrPort("10.96.0.10:80"),
		count))(t)
	lasting := ok(OpenConns(t.Context(), c.Pods[1],
		netip.MustParseAddrPort("[fd00:10:96::10]:81"), count))(t)
	require.Equal(t, map[string]int{"mortal": count}, mortal.Servers())
	require.Equal(t, map[string]int{"remote1": count}, lasting.Servers())

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	r := lasting.Watch(ctx, 10*time.Millisecond, patience)
	require.Zero(t, r.Lost(), "%v", r.Errors)
	require.Positive(t, r.Rounds)
	require.Equal(t, r.Rounds*count, r.Answered)

	require.Equal(t, count, mortal.Ping(patience).Answered)
	require.NoError(t, s.Close())
	r = mortal.Ping(patience)
	require.Equal(t, count, r.Reset, "%+v", r)
	require.Len(t, r.Errors, maxReportedErrors)
	require.Zero(t, mortal.Ping(patience).Lost(), "each is counted once")
	require.Equal(t, count, lasting.Ping(patience).Answered)
	require.NoError(t, mortal.Close())
	require.NoError(t, lasting.Close())
}

func TestSilentConnectionsAreSeen(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	require.NoError(t, c.Pods[0].Serve(servicemodel.TCP, 8080))
	conns := ok(OpenConns(t.Context(), c.Outside[0], netip.AddrPortFrom(c.Pods[0].IPv4, 8080),
		20))(t)
	nft(t, c.Node.NS,
		"table ip cut {\n chain forward { type filter hook forward priority 0; drop; }\n}\n")
	r := conns.Ping(50 * time.Millisecond)
	require.Equal(t, 20, r.Silent, "%+v", r)
}

func TestConnectionsThatCannotBeOpenedAreAnError(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	_, err := OpenConns(t.Context(), c.Outside[0], netip.AddrPortFrom(c.Pods[0].IPv4, 9), 3)
	require.ErrorContains(t, err, "open connection 1 of 3 from outside1 to 10.244.1.1:9: refused")
	_, err = OpenConns(t.Context(), nil, netip.AddrPortFrom(c.Pods[0].IPv4, 9), 3)
	require.ErrorContains(t, err, "From")
}
