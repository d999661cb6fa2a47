package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/check"
	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

func TestTheExampleIsRight(t *testing.T) {
	t.Parallel()
	f := ok(config.Load("loadbalancer.yaml"))(t)
	require.Len(t, f.Services, 2)
}

// The README names every field.
func TestTheReadmeHasAllFields(t *testing.T) {
	t.Parallel()
	text := ok(os.ReadFile("README.md"))(t)
	for _, of := range []reflect.Type{reflect.TypeFor[config.File](),
		reflect.TypeFor[config.Service](), reflect.TypeFor[config.Backend](),
		reflect.TypeFor[check.Spec]()} {
		for i := range of.NumField() {
			if name := of.Field(i).Tag.Get("yaml"); name != "" {
				require.Contains(t, string(text), "`"+name+"`")
			}
		}
	}
}

func TestTheCommandLine(t *testing.T) {
	t.Parallel()
	conf := filepath.Join(t.TempDir(), "keepalived.conf")
	require.NoError(t, os.WriteFile(conf, []byte("virtual_server 192.0.2.1 80 {\n omega\n"+
		"real_server 10.0.0.1 80 {\n}\n}\n"), 0o600))
	scheduled := filepath.Join(t.TempDir(), "scheduled.yaml")
	require.NoError(t, os.WriteFile(scheduled, []byte("services:\n- name: a\n  addresses: "+
		"[192.0.2.1]\n  port: 80\n  scheduler: lc\n  forwarding: direct\n"+
		"  backends: [{address: 10.0.0.1:80}]\n"), 0o600))
	own, elsewhere := filepath.Join(t.TempDir(), "own.yaml"),
		filepath.Join(t.TempDir(), "dev.yaml")
	require.NoError(t, os.WriteFile(own, []byte("services:\n- name: a\n  addresses: "+
		"[192.0.2.1]\n  port: 80\n  sorry: [192.0.2.1:80]\n  backends: "+
		"[{address: 192.0.2.1:80}]\n"), 0o600))
	require.NoError(t, os.WriteFile(elsewhere, []byte("services:\n- name: a\n  addresses: "+
		"[192.0.2.1]\n  port: 80\n  device: none0\n  backends: [{address: 10.0.0.1:80}]\n"),
		0o600))
	for _, c := range []struct {
		args                   []string
		stdout, stderr, failed string
	}{
		{[]string{"-config", "loadbalancer.yaml", "-check"},
			"loadbalancer.yaml: right for nftables: 2 services\n", "", ""},
		{[]string{"-config", "loadbalancer.yaml", "-check", "-listen", "8080"}, "", "",
			"-listen: address 8080: missing port"},
		{[]string{"-config", "no.yaml", "-check"}, "", "", "no.yaml: no such file"},
		{[]string{"-config", conf, "-check"}, "", "", "keepalived.conf:"},
		{[]string{"-config", "loadbalancer.yaml", "-backend", "pf"}, "", "", `"pf": must be`},
		{[]string{"-config", "loadbalancer.yaml", "-check", "-backend", "pf"}, "", "",
			`"pf": must be`},
		{[]string{"-config", scheduled, "-check"}, "", "",
			"scheduled.yaml:5: services[0].scheduler: nftables cannot express"},
		{[]string{"-config", scheduled, "-check"}, "", "",
			"scheduled.yaml:6: services[0].forwarding: nftables cannot express"},
		{[]string{"-config", own, "-check"}, "", "",
			"own.yaml:6: services[0].backends[0].address: 192.0.2.1:80 is where"},
		{[]string{"-config", own}, "", "", "own.yaml:5: services[0].sorry[0]: 192.0.2.1:80 is"},
		{[]string{"-config", elsewhere, "-check"}, "", "",
			"dev.yaml:5: services[0].device: none0: Link not found"},
		{[]string{"-config", "loadbalancer.yaml", "-listen", "8080"}, "", "",
			"-listen: listen tcp"},
		{[]string{"start"}, "", "", `no command "start"`},
		{[]string{"-colour"}, "", "", "not defined: -colour"},
		{[]string{"version"}, "loadbalancer ", "", ""},
		{[]string{"-h"}, "loadbalancer convert keepalived.conf", "", "help requested"},
		{[]string{"convert", conf}, "name: 192.0.2.1-80-tcp", "keepalived.conf:2: omega: ", ""},
		{[]string{"convert", conf}, "", "keepalived.conf:1: virtual_server: is the service " +
			"192.0.2.1-80-tcp", ""},
		{[]string{"convert", conf}, "", "the file needs -backend ipvs:\nthe file:", ""},
		{[]string{"convert"}, "", "", "want the name of one"},
		{[]string{"convert", "-h"}, "loadbalancer convert keepalived.conf", "", "help requested"},
		{[]string{"convert", "no.conf"}, "", "", "no.conf: no such file"},
		{[]string{"convert", "README.md"}, "", "", "README.md:"},
	} {
		var stdout, stderr bytes.Buffer
		err := command(t.Context(), c.args, &stdout, &stderr)
		if c.failed == "" {
			require.NoError(t, err, c.args)
		} else {
			require.ErrorContains(t, err, c.failed, c.args)
		}
		require.Contains(t, stdout.String(), c.stdout)
		require.Contains(t, stderr.String(), c.stderr)
	}
}
