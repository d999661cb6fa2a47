package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShowSome(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	db := strings.ReplaceAll(serviceManifest("db", "10.96.0.2", "", ""), "namespace: default",
		"namespace: prod")
	manifest := serviceManifest("web", "10.96.0.1", "", "") + strings.NewReplacer("10.244.1.2",
		"10.244.1.3", "8080", "5432").Replace(db)
	code, _, errs := kernlbWith(t, ns, manifest, "apply", "-f", "-")
	require.Equal(t, exitDone, code, errs)
	for flags, want := range map[string]string{
		"": "web db", "-namespace prod": "db", "-service default/web": "web",
		"-service prod/web":  "",
		"-address 10.96.0.1": "web", "-address 10.244.1.3": "db",
		"-port 80": "web db", "-port 5432": "db", "-port 5432 -address 10.96.0.1": "",
	} {
		for _, output := range []string{"text", "json"} {
			args := append([]string{"show", "-o", output}, strings.Fields(flags)...)
			code, out, errs := kernlb(t, ns, args...)
			require.Equal(t, exitDone, code, errs)
			for name, ip := range map[string]string{"web": "10.96.0.1", "db": "10.96.0.2"} {
				require.Equal(t, strings.Contains(want, name), strings.Contains(out, ip), "%s: %s",
					flags, out)
			}
		}
	}
	for flags, want := range map[string]string{
		"-address here": `-address: "here" is not an IP address`, "-port 70000": "-port: 70000",
		"-diff": "-diff compares with manifests: it needs -f",
	} {
		code, _, errs := kernlb(t, ns, append([]string{"show"}, strings.Fields(flags)...)...)
		require.Equal(t, exitInvalid, code)
		require.Contains(t, errs, want)
	}
}

func TestShowDiff(t *testing.T) {
	t.Parallel()
	ns := newNS(t)
	file := filepath.Join(t.TempDir(), "web.yaml")
	web := serviceManifest("web", "10.96.0.1", "", "")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	diff := func(want int, args ...string) string {
		code, out, errs := kernlb(t, ns, append([]string{"show", "-diff", "-f", file}, args...)...)
		require.Equal(t, want, code, errs)
		return out
	}
	write(web + serviceManifest("old", "10.96.0.2", "", ""))
	code, _, errs := kernlb(t, ns, "apply", "-f", file)
	require.Equal(t, exitDone, code, errs)
	head := "--- kernel (nftables)\n+++ manifests (" + file + ")\n"
	require.Equal(t, head, diff(exitDone))
	write(strings.Replace(web, "{ready: true}}", "{ready: true}}, {addresses: [10.244.1.3]}", 1) +
		serviceManifest("new", "10.96.0.3", "", ""))
	require.Equal(t, head+`@@ 10.96.0.1:80/tcp default/web:http @@
 10.96.0.1:80/tcp default/web:http cluster-ip -> cluster
   -> 10.244.1.2:8080
+  -> 10.244.1.3:8080
@@ 10.96.0.2:80/tcp default/old:http @@
-10.96.0.2:80/tcp default/old:http cluster-ip -> cluster
-  -> 10.244.1.2:8080
@@ 10.96.0.3:80/tcp default/new:http @@
+10.96.0.3:80/tcp default/new:http cluster-ip -> cluster
+  -> 10.244.1.2:8080
`, diff(exitFailed))
	require.NotContains(t, diff(exitFailed, "-service", "default/web"), "default/new")
	code, out, errs := kernlb(t, ns, "show", "-diff", "-f", file, "-masquerade-bit", "15")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "the kernel does not hold what the manifests say")
	require.Contains(t, out, "@@ settings of the node @@\n~ rules: ")
}
