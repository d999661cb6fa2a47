package tuning

import (
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/test/golden"
)

// fresh returns the settings of a machine that nobody tuned.
func fresh(limit uint64) map[string]uint64 {
	return map[string]uint64{
		settingMax: limit, settingBuckets: limit, settingTCPEstablished: 432000,
		settingTCPCloseWait: 60,
		settingTCPBeLiberal: 0, settingUDP: 30, settingUDPStream: 120,
	}
}

// plans are configurations and present settings. testdata/plans.txt contains the resulting plans.
var plans = []struct {
	name   string
	config Config
	now    map[string]uint64
	cores  int
}{
	{"nothing is wanted", Config{}, fresh(262144), 4},
	{"kube-proxy's defaults on a small machine", KubeProxy(), fresh(65536), 2},
	{"kube-proxy's defaults on a large machine", KubeProxy(), fresh(65536), 16},
	{"no more than a million is computed", Config{MaxPerCore: 32768, Min: 131072}, fresh(65536),
		64},
	{"but more can be asked for", Config{MaxPerCore: 1, Min: 4 << 20}, fresh(65536), 64},
	{"the CPUs can be told", Config{MaxPerCore: 100000, Cores: 3}, fresh(65536), 64},
	{"what an administrator raised stays", KubeProxy(), map[string]uint64{
		settingMax: 2000000, settingBuckets: 500000, settingTCPEstablished: 864000,
		settingTCPCloseWait: 7200,
	}, 2},
	{"unless lowering is allowed", Config{MaxPerCore: 1, Min: 131072,
		TCPEstablished: 24 * time.Hour, Lower: true},
		map[string]uint64{settingMax: 2000000, settingBuckets: 500000,
			settingTCPEstablished: 864000}, 2},
	{"no maximum is above any", Config{MaxPerCore: 1, Min: 131072},
		map[string]uint64{settingMax: 0, settingBuckets: 65536}, 2},
	{"UDP and liberal TCP", Config{UDP: 10 * time.Second, UDPStream: 300 * time.Second,
		TCPBeLiberal: true}, fresh(65536), 2},
}

func TestPlan(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for _, tc := range plans {
		p, err := tc.config.plan(tc.now, tc.cores)
		require.NoError(t, err, tc.name)
		fmt.Fprintf(&all, "# %s\n%s\n\n", tc.name, p)
		now := maps.Clone(tc.now)
		for _, s := range p {
			now[s.Name] = s.New
		}
		again, err := tc.config.plan(now, tc.cores)
		require.NoError(t, err, tc.name)
		require.True(t, again.Empty(), "%s: a plan that was applied leaves nothing to do, but:\n%s",
			tc.name, again)
	}

	golden.File(t, "testdata/plans.txt", all.String())
}

func TestConfigThatIsNotPossible(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		config Config
		want   string
	}{
		{Config{MaxPerCore: -1}, "MaxPerCore: -1 is negative"},
		{Config{Min: -1}, "Min: -1 is negative"},
		{Config{Cores: -1}, "Cores: -1 is negative"},
		{Config{UDP: time.Millisecond}, "UDP: 1ms is not a number of seconds"},
		{Config{TCPCloseWait: -time.Second}, "TCPCloseWait: -1s is not a number of seconds"},
	} {
		_, err := tc.config.plan(fresh(65536), 2)
		require.ErrorIs(t, err, ErrBadConfig)
		require.ErrorContains(t, err, tc.want)
	}

	_, err := KubeProxy().plan(map[string]uint64{}, 2)
	require.ErrorIs(t, err, kernelerr.ErrMissingModule)
}

func TestExplain(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}
	require.ErrorIs(t, explain(settingMax, denied), ErrGlobalSetting)
	require.NotErrorIs(t, explain(settingUDP, denied), ErrGlobalSetting)
}
