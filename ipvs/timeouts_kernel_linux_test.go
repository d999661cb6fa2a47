package ipvs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/ipvs"
)

// ipvsadm sees the timeouts that are configured, and those of before when they are not any more.
func TestKernelTimeouts(t *testing.T) {
	t.Parallel()
	k := newKernel(t, ipvs.Config{})
	s := k.state(web(), "pod2")
	k.apply(s)
	requireTimeouts := func(want string) {
		t.Helper()
		got := k.run("ipvsadm", "-l", "--timeout")
		require.Equal(t, "Timeout (tcp tcpfin udp): "+want+"\n", got)
	}
	requireTimeouts("900 120 300")
	cfg := ipvs.Config{Timeouts: ipvs.Timeouts{TCP: 2 * time.Hour, UDP: 20 * time.Second}}
	k.restart(cfg)
	k.apply(s)
	requireTimeouts("7200 120 20")
	require.Zero(t, k.apply(s).Messages)

	k.run("ipvsadm", "--set", "60", "0", "0")
	require.Equal(t, []string{"timeout tcp is 60, not 7200"}, k.apply(s).Drift)
	requireTimeouts("7200 120 20")

	k.restart(cfg)
	require.Empty(t, k.apply(s).Drift)
	_, err := k.engine.Cleanup(t.Context())
	require.NoError(t, err)
	requireTimeouts("900 120 300")
}
