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

// growing are files whose last line is repeated. %[1]d is its number, %[2]d and %[3]d its bytes.
var growing = map[string]string{
	"services": "services:\n" + "- {name: web%[1]d, addresses: [10.9.%[2]d.%[3]d], port: 80, " +
		"backends: [{address: 10.0.0.1:80}]}",
	"services that are wrong":     "services:\n- {name: web, port: 0}",
	"backends":                    service + "  backends:\n  - {address: 10.1.%[2]d.%[3]d:80}",
	"backends that are wrong":     service + "  backends:\n  - {address: x, weight: -1}",
	"checks":                      service + "  checks:\n  - {type: http}",
	"fields that are not there":   service + "  f%[1]d: 1",
	"fields that stand twice":     service + "  port: 80",
	"aliases":                     "services:\n- &a {name: web}\n- *a",
	"aliases of a list":           "services:\n- backends: &a [{}, {}, {}, {}]\n- backends: *a",
	"backends with the same name": service + "  backends:\n  - {address: 10.1.1.1:80}",
}

func TestTimeAndMemoryGrowAsFilesDo(t *testing.T) {
	for name, text := range growing {
		t.Run(name, func(t *testing.T) {
			end := strings.LastIndex(text, "\n") + 1
			head, line := text[:end], text[end:]
			growth.Linear(t, 1<<15, func(n int) []byte {
				var b strings.Builder
				b.WriteString(head)
				for i := range n {
					l := strings.NewReplacer("%[1]d", fmt.Sprint(i), "%[2]d", fmt.Sprint(i>>8),
						"%[3]d", fmt.Sprint(i&255)).Replace(line)
					b.WriteString(l + "\n")
				}
				return []byte(b.String())
			}, func(text []byte) {
				f, err := config.Parse("lb.yaml", text)
				if err == nil {
					for i := range f.Services {
						_ = f.InService(f.Services[i].Name, "port", fmt.Errorf("refused"))
					}
				}
			})
		})
	}
}

// Aliases of aliases do not make a short file fill memory.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	text := "services:\n- checks: &c [" + strings.Repeat("{},", 1000) + "]\n  backends: &b [" +
		strings.Repeat("{checks: *c},", 1000) + "]\n" + strings.Repeat("- {backends: *b}\n", 1000)
	_, err := config.Parse("lb.yaml", []byte(text))
	require.EqualError(t, err, "lb.yaml: aliases make it more than 65536 values longer than it is")
}
