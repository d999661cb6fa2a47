package netnstest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCountersAreParsed(t *testing.T) {
	t.Parallel()
	c := Counters{}
	require.NoError(t,
		c.parseTables(
			"Tcp: MaxConn OutRsts\nTcp: -1 7\nUdp: InErrors\nUdp: 18446744073709551615\n"))
	require.NoError(t, c.parsePairs("Ip6InReceives   \t3\n"))
	require.Equal(t, Counters{"Tcp.MaxConn": -1, "Tcp.OutRsts": 7, "Udp.InErrors": -1,
		"Ip6InReceives": 3}, c)
	before := Counters{"Tcp.MaxConn": -1, "Tcp.OutRsts": 5, "Udp.InErrors": -1, "Ip6InReceives": 3}
	require.Equal(t, Counters{"Tcp.OutRsts": 2}, c.Since(before))
	for text, problem := range map[string]string{
		"Tcp: A\nTcp: 1 2\n": "do not match",
		"Tcp: A\nUdp: 1\n":   "do not match",
		"\n\nTcp: A\nTcp: x": "Tcp.A",
	} {
		require.ErrorContains(t, Counters{}.parseTables(text), problem)
	}
	require.ErrorContains(t, Counters{}.parsePairs("A\n"), "not a name and a value")
	require.ErrorContains(t, Counters{}.parsePairs("A x\n"), "A")
}

func FuzzCounters(f *testing.F) {
	f.Add("Tcp: MaxConn OutRsts\nTcp: -1 7\n")
	f.Add("Ip6InReceives 3\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(Counters) error{
			func(c Counters) error { return c.parseTables(text) },
			func(c Counters) error { return c.parsePairs(text) },
		} {
			c := Counters{}
			if parse(c) == nil {
				require.Empty(t, c.Since(c))
			}
		}
	})
}
