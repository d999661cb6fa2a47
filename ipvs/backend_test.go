package ipvs

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// The error of a faulty configuration names the field, before anything is opened.
func TestConfigurationsAreChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want string
		cfg  Config
	}{
		{"table name", Config{Table: "9"}},
		{"scheduler", Config{Scheduler: servicemodel.Random}},
		{"AffinityMask4", Config{AffinityMask4: 33}},
		{"AffinityMask4", Config{AffinityMask4: -1}},
		{"AffinityMask6", Config{AffinityMask6: 129}},
		{"Device", Config{Device: "a name that is too long"}},
		{"Device", Config{Device: "a/b"}},
		{"Device", Config{Device: ".."}},
		{"StrictARP", Config{StrictARP: true}},
		{"Timeouts", Config{Timeouts: Timeouts{TCP: -time.Second}}},
		{"Timeouts", Config{Timeouts: Timeouts{UDP: 1500 * time.Millisecond}}},
	} {
		_, err := openBackend(&tc.cfg)
		require.ErrorContains(t, err, tc.want)
	}
	ok((&Config{Device: "kernlb0", StrictARP: true, AffinityMask4: 24, AffinityMask6: 1}).
		withDefaults())(t)
}

func ok[T any](v T, err error) func(testing.TB) T { return must.OK(v, err) }
