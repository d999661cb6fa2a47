package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
)

// What plan prints is applied later, once, and only where the kernel is as it was.
func TestAPlanIsAppliedLater(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	code, out, errs := kernlbWith(t, ns, webManifest, "plan", "-f", "-", "-o", "json")
	require.Equal(t, exitDone, code, errs)
	file := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(file, []byte(out), 0o600))

	code, _, errs = kernlb(t, ns, "apply", "-changes", file, "-f", file)
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "-changes: what was planned is applied without manifests (-f)")
	code, out, errs = kernlb(t, ns, "apply", "-changes", file)
	require.Equal(t, exitDone, code, errs)
	require.Contains(t, out, "nftables: 1 added, 0 changed, 0 removed")

	code, out, errs = kernlb(t, ns, "show", "-o", "json")
	require.Equal(t, exitDone, code, errs)
	var shown struct {
		Backend     string                `json:"backend"`
		Observation dataplane.Observation `json:"observation"`
		Causes      []causeJSON           `json:"causes"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	require.Equal(t, 1, shown.Observation.Table.Len())
	require.NotNil(t, shown.Observation.Table.Frontend(shown.Causes[0].Frontend))

	code, _, errs = kernlb(t, ns, "apply", "-changes", file)
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "the change set begins from another table")
	_, out, _ = kernlbWith(t, ns, webManifest, "plan", "-f", "-")
	require.Equal(t, "nothing would change\n", out)

	require.NoError(t, os.WriteFile(file, []byte(`{"services": []}`), 0o600))
	code, _, errs = kernlb(t, ns, "apply", "-changes", file)
	require.Equal(t, exitInvalid, code)
	require.Contains(t, errs, "it is not what plan -o json prints")
}
