package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// settingsText has a line for each setting that a configuration of kube-proxy decides.
func settingsText(o *options) []string {
	s, n := o.settings, &o.settings.tracker.Node
	return []string{
		fmt.Sprint("mode ", s.mode),
		fmt.Sprint("node ", n.Name),
		fmt.Sprintf("API server %q, kubeconfig %q, %g a second, burst %d", s.master,
			s.client.Kubeconfig, s.client.QPS, s.client.Burst),
		fmt.Sprintf("log %s, verbosity %d", o.config.Logging.Format, o.config.Logging.Verbosity),
		fmt.Sprint("address ", s.bindAddress),
		fmt.Sprintf("healthz at %s, metrics at %s", s.healthzAt, s.metricsAt),
		fmt.Sprint("oomScoreAdj ", s.oomScoreAdj),
		fmt.Sprintf("pods %+v, those of the Node object %t", n.LocalPods, s.tracker.NodeCIDRs),
		fmt.Sprintf("node ports %+v, at localhost %t", n.NodePortAddresses, n.LocalhostNodePorts),
		fmt.Sprintf("mark %#x, masquerade all %t", n.MasqueradeMark, n.MasqueradeAll),
		fmt.Sprintf("sync %s, at least %s apart", s.run.RetryMax, s.run.MinInterval),
		fmt.Sprint("objects are looked at again after ", s.resync),
		fmt.Sprintf("conntrack %+v", s.conntrack),
		fmt.Sprintf("ipvs %+v", s.ipvs),
	}
}

// Each *.flags is a command line as written by an installer of Kubernetes, one argument a line. The
// *.yaml next to it is the file that the command line names. installers.txt has the resulting
// settings that are not kube-proxy's defaults, and the warnings.
func TestFilesAndFlagsOfInstallers(t *testing.T) {
	t.Parallel()
	defaults := settingsText(ok(parseOptions([]string{"--hostname-override=node1"}))(t))
	names := ok(filepath.Glob("testdata/installers/*.flags"))(t)
	require.NotEmpty(t, names)
	var got strings.Builder
	for _, name := range names {
		args := strings.Split(strings.TrimSpace(string(ok(os.ReadFile(name))(t))), "\n")
		for i, arg := range args {
			if strings.HasPrefix(arg, "--config=") {
				args[i] = "--config=" + strings.Replace(name, ".flags", ".yaml", 1)
			}
		}

		o, err := parseOptions(args)
		require.NoError(t, err, name)
		fmt.Fprintf(&got, "%s\n", strings.TrimSuffix(filepath.Base(name), ".flags"))
		for i, line := range settingsText(o) {
			if line != defaults[i] {
				fmt.Fprintf(&got, "  %s\n", line)
			}
		}

		for _, w := range o.warnings {
			fmt.Fprintf(&got, "  warning: %s\n", w)
		}
	}

	const golden = "testdata/installers.txt"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
	}
	require.Equal(t, string(ok(os.ReadFile(golden))(t)), got.String())
}
