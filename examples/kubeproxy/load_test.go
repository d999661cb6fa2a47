package main

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/servicemodel"
)

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// file writes a configuration and returns its name.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.conf")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	return name
}

// The file has errors, each with its configuration.
func TestErrorsNameFileLineAndField(t *testing.T) {
	t.Parallel()
	text := string(ok(os.ReadFile("testdata/wrong.txt"))(t))
	for test := range strings.SplitSeq(text, "\n\n") {
		want, conf, _ := strings.Cut(test, "\n")
		name := file(t, strings.ReplaceAll(conf, "HEADER\n", header))
		_, err := parseOptions([]string{"--config", name, "--hostname-override=node1"})
		require.ErrorContains(t, err, strings.Replace(want, "FILE", name, 1))
	}

	_, err := parseOptions([]string{"--config", "/nowhere"})
	require.EqualError(t, err, "configuration: open /nowhere: no such file or directory")
}

func TestErrorsNameFlags(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--iptables-masquerade-bit=40": "--iptables-masquerade-bit: 40: must be 0 to 31",
		"--proxy-mode=kernelspace":     `--proxy-mode: "kernelspace": want iptables`,
		"--bind-address=x":             `--bind-address: "x": not an IP address`,
		"--iptables-sync-period=x":     `--iptables-sync-period: "x": must be a time such as 30s`,
		"--no-such-flag":               "unknown flag: --no-such-flag: see --help",
		"--hostname-overide=x":         "--hostname-overide; did you mean --hostname-override?",
		"--cluster-cidr=10.244.0.0":    `"10.244.0.0": must be a CIDR such as 10.244.0.0/16`,
		"--metrics-port=70000":         "--metrics-port: 70000: must be 0 to 65535",
		"--hostname-override= ":        "--hostname-override: is blank",
		"more":                         `argument "more": there are flags only`,
	} {
		_, err := parseOptions([]string{arg})
		require.ErrorContains(t, err, want)
	}
}

// Errors of every field and flag name the field or flag, and contain no Go terms, whatever the
// value.
func TestErrorsOfEveryFieldAreForUsers(t *testing.T) {
	t.Parallel()
	internals := regexp.MustCompile(`Parse[A-Z]|strconv|json:|unmarshal|struct|type v1|int32|` +
		`invalid (syntax|duration)`)
	said := 0
	for _, f := range fields {
		for _, value := range []string{"x", "-1", "1.5", "[x]", "{a: b}", "999999999999999999"} {
			section, last, inner := strings.Cut(f.field, ".")
			text := header + f.field + ": " + value + "\n"
			if inner {
				text = header + section + ": {" +
					strings.ReplaceAll(last, ".", ": {") + ": " + value +
					strings.Repeat("}", 1+strings.Count(last, ".")) + "}\n"
				text = strings.TrimSuffix(text, "}\n") + "\n"
			}
			for _, args := range [][]string{{"--config", file(t, text), "--hostname-override=n"},
				{"--" + f.flag + "=" + value}} {
				ofFile := args[0] == "--config"
				if f.field == "" && ofFile || f.flag == "" && !ofFile ||
					f.flag == "write-config-to" || f.flag == "config" || f.flag == "version" {
					continue
				}
				_, err := parseOptions(args)
				if err == nil || errors.Is(err, pflag.ErrHelp) {
					continue
				}
				said++
				require.NotRegexp(t, internals, err.Error(), "%s %s", args, text)
			}
		}
	}

	require.Greater(t, said, 150)
}

// Two modes in one command line are an error, because only one would be done.
func TestModesExcludeEachOther(t *testing.T) {
	t.Parallel()
	modes := []string{"compare", "--cleanup", "--init-only", "--write-config-to=" + t.TempDir()}
	for set := range 1 << len(modes) {
		var args []string
		for i, m := range modes {
			if set&(1<<i) != 0 {
				args = append(args, m)
			}
		}

		_, err := parseOptions(args)
		if len(args) < 2 {
			require.NoError(t, err, args)
		} else {
			require.ErrorContains(t, err, ": want one of them", args)
		}
	}
}

// Wherever node ports shall answer, they answer somewhere, even if the Node is not known, as with
// kube-proxy.
func TestNodePortsAnswerWithoutTheNode(t *testing.T) {
	t.Parallel()
	node4, node6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	for _, mode := range modes() {
		for _, bind := range []string{"0.0.0.0", "::", "192.0.2.9", "2001:db8::9"} {
			for _, at := range []string{"", "primary", "192.0.2.0/24,2001:db8::/64"} {
				for _, known := range [][]netip.Addr{nil, {node4}, {node6, node4}} {
					o := ok(parseOptions([]string{"--hostname-override=n", "--proxy-mode=" +
						string(mode), "--bind-address=" + bind, "--nodeport-addresses=" + at}))(t)
					n := o.settings.tracker.Node
					n.Addresses = known
					n = o.settings.withAddress(servicemodel.State{}.WithNode(n)).Node()
					require.True(t, !n.NodePortAddresses.Primary || len(n.Addresses) > 0,
						"%s %s %q %v", mode, bind, at, known)
				}
			}
		}
	}
}

func TestTheStatusOfCompare(t *testing.T) {
	t.Parallel()
	require.Equal(t, 1, status([]string{"compare"}, errDiffers))
	require.Equal(t, 2, status([]string{"compare"}, pflag.ErrHelp))
	require.Equal(t, 1, status(nil, pflag.ErrHelp))
}

func TestFlagsBesideAFile(t *testing.T) {
	t.Parallel()
	name := file(t, header+"mode: nftables\nlogging: {verbosity: 1}\nportRange: 1-2\n"+
		"featureGates: {WatchListClient: true, ContextualLogging: true}\n")
	o := ok(parseOptions([]string{"--config=" + name, "-v=5", "--hostname-override= Node1 ",
		"--proxy-mode=ipvs", "--master=https://api", "--healthz-port=0"}))(t)
	require.Equal(t, modeNFTables, o.settings.mode)
	require.EqualValues(t, 5, o.config.Logging.Verbosity)
	require.Equal(t, "node1", o.settings.tracker.Node.Name)
	require.Equal(t, "https://api", o.settings.master)
	require.Equal(t, "0.0.0.0:10256", o.settings.healthzAt.String())
	require.True(t, o.settings.tracker.Node.NodePortAddresses.Primary)
	require.Equal(t, []string{
		"--healthz-port has no effect: there is a file, " + name,
		"--proxy-mode has no effect: there is a file, " + name,
		"portRange has no effect: kube-proxy has not used it since its userspace mode went",
		"featureGates.WatchListClient has no effect: it is about code of Kubernetes that is not " +
			"here",
	}, o.warnings)
}

func TestFlags(t *testing.T) {
	t.Parallel()
	o := ok(parseOptions([]string{"--proxy-mode", "nftables", "--masquerade-all",
		"--iptables-sync-period=10s", "--iptables-min-sync-period=0s", "--cluster-cidr",
		"10.244.0.0/16,fd00::/48", "--nodeport-addresses=10.0.0.0/8,fd00::/8",
		"--nodeport-addresses=192.0.2.0/24", "--healthz-bind-address=::1", "--healthz-port=99",
		"--metrics-port=0", "--bind-address=2001:db8::1", "--hostname-override=N",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
		"--feature-gates=A=true,B=false", "--feature-gates=C=true", "--metrics-bind-address=",
		"--boot-id-file=x"}))(t)
	s := o.settings
	require.Equal(t, 10*time.Second, s.run.RetryMax)
	require.Zero(t, s.run.MinInterval)
	require.True(t, s.tracker.Node.MasqueradeAll)
	require.Len(t, s.tracker.Node.LocalPods.CIDRs, 2)
	require.Len(t, s.tracker.Node.NodePortAddresses.CIDRs, 3)
	require.Equal(t, "[::1]:99", s.healthzAt.String())
	require.False(t, s.metricsAt.IsValid())
	require.Equal(t, "2001:db8::1", s.bindAddress.String())
	require.Zero(t, s.conntrack.MaxPerCore)
	require.Zero(t, s.conntrack.TCPEstablished)
	require.Equal(t, time.Hour, s.conntrack.TCPCloseWait)
	require.Len(t, o.warnings, 4)
}

// The records are the output of "kube-proxy --proxy-mode MODE --write-config-to FILE" of 1.36.3. It
// leaves out the periods of other modes.
func TestDefaultsAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		record := ok(os.ReadFile("testdata/defaults-" + mode + ".yaml"))(t)
		name := filepath.Join(t.TempDir(), "out")
		require.NoError(t, start(t.Context(),
			[]string{"--proxy-mode", mode, "--write-config-to", name}))
		text := ok(os.ReadFile(name))(t)
		_, err := parseOptions([]string{"--config", name})
		require.NoError(t, err, "what is written can be read")
		var want, got config
		require.NoError(t, yaml.UnmarshalStrict(record, &want))
		require.NoError(t, yaml.UnmarshalStrict(text, &got))
		for section, periods := range map[string][]*metav1.Duration{
			"iptables": {&got.IPTables.SyncPeriod, &got.IPTables.MinSyncPeriod},
			"nftables": {&got.NFTables.SyncPeriod, &got.NFTables.MinSyncPeriod},
			"ipvs":     {&got.IPVS.SyncPeriod, &got.IPVS.MinSyncPeriod},
		} {
			if section != mode {
				*periods[0], *periods[1] = metav1.Duration{}, metav1.Duration{}
			}
		}

		setModeDefaults(&want) // kube-proxy leaves these out
		want.IPTables.MinSyncPeriod.Duration = min(want.IPTables.MinSyncPeriod.Duration,
			minSyncIPTables)
		want.NFTables.MinSyncPeriod.Duration = min(want.NFTables.MinSyncPeriod.Duration,
			minSyncNFTables)
		if mode == "ipvs" { // by flag, kube-proxy has the default of iptables; by file, its own
			want.IPVS.MinSyncPeriod = metav1.Duration{}
		}
		require.Equal(t, want, got, mode)
	}
}

// Fields that kube-proxy dropped are warnings. A field that it never had is an error, even in a
// file with dropped fields.
func TestFieldsThatKubeProxyDropped(t *testing.T) {
	t.Parallel()
	const bosh = "testdata/old-k8sbosh.yaml"
	_, err := parseOptions([]string{"--config", bosh, "--hostname-override=node1"})
	require.EqualError(t, err, bosh+":11: ipvs.masqueradeAll: no such field; did you mean "+
		"iptables.masqueradeAll?")
	text := strings.Replace(string(ok(os.ReadFile(bosh))(t)), "  masqueradeAll: true\n", "", 1)
	for field, why := range dropped {
		name, inner, nested := strings.Cut(field, ".")
		conf := header + "mode: nftables\n" + name + ": 1\n"
		if nested {
			conf = header + name + ":\n  " + inner + ": 1\n"
		}
		file := file(t, conf)
		o := ok(parseOptions([]string{"--config", file, "--hostname-override=node1"}))(t)
		require.Equal(t, []string{file + ":4: " + field + " has no effect: " + why}, o.warnings)
	}

	name := file(t, text)
	o := ok(parseOptions([]string{"--config", name, "--hostname-override=node1"}))(t)
	require.ElementsMatch(t, []string{
		name + ":6: conntrack.max has no effect: maxPerCore and min took its place",
		name + ":16: resourceContainer has no effect: kube-proxy leaves its cgroup to the kubelet",
	}, o.warnings)
}

// As in kube-proxy, an underscore in the name of a flag is a dash.
func TestFlagsWithUnderscores(t *testing.T) {
	t.Parallel()
	fs := newFlags(&options{config: &config{}})
	fs.VisitAll(func(f *pflag.Flag) {
		with := strings.ReplaceAll(f.Name, "-", "_")
		require.Same(t, f, fs.Lookup(with), with)
	})

	o := ok(parseOptions([]string{"--proxy_mode=nftables", "--hostname_override", "N",
		"--machine_id_file=x"}))(t)
	require.Equal(t, modeNFTables, o.settings.mode)
	require.Equal(t, []string{"--machine-id-file has no effect: " + machineID}, o.warnings)
}

// present returns the paths in a document that have a value, including objects.
func present(doc map[string]any, prefix string) map[string]bool {
	out := map[string]bool{}
	for name, value := range doc {
		out[prefix+name] = true
		if inner, ok := value.(map[string]any); ok {
			maps.Copy(out, present(inner, prefix+name+"."))
		}
	}

	return out
}

func TestAFileWithAllFieldsLoadsInEachMode(t *testing.T) {
	t.Parallel()
	text := ok(os.ReadFile("testdata/all-fields.yaml"))(t)
	var doc map[string]any
	require.NoError(t, yaml.Unmarshal(text, &doc))
	there := present(doc, "")
	var withoutEffect []string
	for _, f := range fields {
		require.True(t, f.field == "" || there[f.field], f.field)
		if f.field != "" && f.effect == noEffect {
			withoutEffect = append(withoutEffect, f.field+" has no effect: "+f.text)
		}
	}

	for _, mode := range []string{"iptables", "nftables", "ipvs"} {
		name := file(t, strings.Replace(string(text), "MODE", mode, 1))
		o := ok(parseOptions([]string{"--config", name}))(t)
		require.EqualValues(t, mode, o.settings.mode)
		require.Equal(t, withoutEffect, o.warnings)
		require.Equal(t, "192.0.2.10", o.settings.bindAddress.String())
		require.Equal(t, 20*time.Second, o.settings.conntrack.TCPEstablished)
	}
}

// The files with which Kubernetes tests its configuration are in its module, which
// internal/test/controlplane requires.
func TestFilesOfKubernetesLoad(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-C", "../../internal/test/controlplane", "-m", "-f",
		"{{.Dir}}", "k8s.io/kubernetes")
	list.Env = append(os.Environ(), "GOWORK=off")
	out, err := list.Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Skip("apiserver: the module k8s.io/kubernetes is not there; make controlplane brings it")
	}
	const ours, kubeadm = "pkg/proxy/apis/config/scheme/testdata/KubeProxyConfiguration/",
		"cmd/kubeadm/app/util/config/strict/testdata/"
	for pattern, want := range map[string]string{
		ours + "*/v1alpha1.yaml":                              "",
		ours + "*/*/v1alpha1.yaml":                            "",
		kubeadm + "valid_kubeproxycfg.yaml":                   "",
		kubeadm + "invalid_unknown_field_kubeproxycfg.yaml":   "unknownField: no such field",
		kubeadm + "invalid_duplicate_field_kubeproxycfg.yaml": `key "portRange" already`,
	} {
		names := ok(filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern))))(t)
		require.NotEmpty(t, names, pattern)
		for _, name := range names {
			_, err := parseOptions([]string{"--config", name, "--hostname-override=node1"})
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
		}
	}
}

// pflag uses no part of a text as the name of a value.
func TestHelpIsReadable(t *testing.T) {
	t.Parallel()
	newFlags(&options{config: &config{}}).VisitAll(func(f *pflag.Flag) {
		_, usage := pflag.UnquoteUsage(f)
		require.Equal(t, f.Usage, usage, f.Name)
	})
}

// An explicit value is used, even if it equals kube-proxy's default of a second.
func TestTheLeastTimeBetweenSyncs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"mode: nftables\n": minSyncNFTables,
		"mode: iptables\n": minSyncIPTables,
		"mode: nftables\nnftables: {minSyncPeriod: 1s}\n": time.Second,
		"mode: iptables\niptables: {minSyncPeriod: 3s}\n": 3 * time.Second,
		"mode: ipvs\n": 0,
	} {
		o := ok(parseOptions([]string{"--config", file(t, header+text)}))(t)
		require.Equal(t, want, o.settings.run.MinInterval, text)
	}
}
