package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/test/nstest"
)

// The output of plan can be applied later, once, and only if the kernel is as it was.
func TestAPlanIsAppliedLater(t *testing.T) {
	t.Parallel()
	ns := nstest.New(t)
	out := done(t, ns, webManifest, "plan -f - -o json")
	file := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(file, []byte(out), 0o600))

	fails(t, ns, "", exitInvalid, "-changes: what was planned is applied without manifests (-f)",
		"apply -changes", file, "-f", file)
	require.Contains(t, done(t, ns, "", "apply -changes", file),
		"nftables: 1 added, 0 changed, 0 removed")

	out = done(t, ns, "", "show -o json")
	var shown struct {
		Backend     string                `json:"backend"`
		Observation dataplane.Observation `json:"observation"`
		Causes      []causeJSON           `json:"causes"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	require.Equal(t, 1, shown.Observation.Table.Len())
	require.NotNil(t, shown.Observation.Table.Frontend(shown.Causes[0].Frontend))

	fails(t, ns, "", exitFailed, "the change set begins from another table", "apply -changes", file)
	out = done(t, ns, webManifest, "plan -f -")
	require.Equal(t, "nothing would change\n", out)

	require.NoError(t, os.WriteFile(file, []byte(`{"services": []}`), 0o600))
	fails(t, ns, "", exitInvalid, "it is not what plan -o json prints", "apply -changes", file)
}
