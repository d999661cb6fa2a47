package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/internal/test/growth"
)

const service = "services:\n- name: web\n  addresses: [192.0.2.1]\n  port: 80\n"

var growing = map[string]string{
	"services": "services:\n«- {name: web%d, addresses: ['fd00::%x'], port: 80, " +
		"backends: [{address: '[fd01::1]:80'}]}\n»",
	"services that are wrong":     "services:\n«- {name: web, port: 0}\n»",
	"backends":                    service + "  backends:\n«  - {address: '[fd00::%x]:80'}\n»",
	"backends that are wrong":     service + "  backends:\n«  - {address: x, weight: -1}\n»",
	"checks":                      service + "  checks:\n«  - {type: http}\n»",
	"fields that are not there":   service + "«  f%d: 1\n»",
	"fields that stand twice":     service + "«  port: 80\n»",
	"aliases":                     "services:\n- &a {name: web}\n«- *a\n»",
	"aliases of a list":           "services:\n- backends: &a [{}, {}, {}, {}]\n«- backends: *a\n»",
	"backends with the same name": service + "  backends:\n«  - {address: 10.1.1.1:80}\n»",
}

func TestTimeAndMemoryGrowAsFilesDo(t *testing.T) {
	growth.Texts(t, 1<<15, growing, func(text string) {
		f, err := config.Parse("lb.yaml", []byte(text))
		if err == nil {
			for i := range f.Services {
				_ = f.InService(f.Services[i].Name, "port", fmt.Errorf("refused"))
			}
		}
	})
}

// Aliases of aliases do not make a short file fill memory.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	text := "services:\n- checks: &c [" + strings.Repeat("{},", 1000) + "]\n  backends: &b [" +
		strings.Repeat("{checks: *c},", 1000) + "]\n" + strings.Repeat("- {backends: *b}\n", 1000)
	_, err := config.Parse("lb.yaml", []byte(text))
	require.EqualError(t, err, "lb.yaml: aliases make it more than 65536 values longer than it is")
}
