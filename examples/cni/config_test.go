package main

import (
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/stretchr/testify/require"
)

func TestPortsAreFrom1To65535(t *testing.T) {
	t.Parallel()
	for port, valid := range map[int]bool{-1: false, 0: false, 1: true, 2: true, 65535: true,
		65536: false} {
		for _, ports := range []string{`{"hostPort":%d,"containerPort":80}`,
			`{"hostPort":80,"containerPort":%d}`} {
			text := prev + `{"address":"10.88.0.2/16"}]},"runtimeConfig":{"portMappings":[` +
				fmt.Sprintf(ports, port) + `]}}`
			_, err := parse([]byte(text), "eth0")
			require.Equal(t, valid, err == nil, "%s: %v", text, err)
		}
	}
}

// A command that cannot read its input fails, so that the runtime tries again.
func TestInputThatIsNoJSONFails(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]func(*skel.CmdArgs) error{"ADD": add, "DEL": del,
		"CHECK": check, "GC": gc} {
		require.Error(t, command(&skel.CmdArgs{StdinData: []byte(`{"name":`)}), name)
	}
}
