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
	f, err := config.Load("loadbalancer.yaml")
	require.NoError(t, err)
	require.Len(t, f.Services, 2)
}

// The README names every field.
func TestTheReadmeHasAllFields(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
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
	for _, c := range []struct {
		args                   []string
		stdout, stderr, failed string
	}{
		{[]string{"-config", "loadbalancer.yaml", "-check"}, "", "", ""},
		{[]string{"-config", "no.yaml", "-check"}, "", "", "no.yaml: no such file"},
		{[]string{"-config", conf, "-check"}, "", "", "keepalived.conf:"},
		{[]string{"-config", "loadbalancer.yaml", "-backend", "pf"}, "", "", `"pf": must be`},
		{[]string{"start"}, "", "", `no command "start"`},
		{[]string{"-colour"}, "", "not defined: -colour", "not defined"},
		{[]string{"convert", conf}, "name: 192.0.2.1-80-tcp", "keepalived.conf:2: omega: ", ""},
		{[]string{"convert"}, "", "", "want the name of one"},
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
