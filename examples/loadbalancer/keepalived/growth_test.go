package keepalived_test

import (
	"strings"
	"testing"

	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
	"github.com/kernlb/kernlb/internal/test/growth"
)

// growing are configurations of which each line, or the text between a and b, is repeated.
var growing = map[string]struct{ before, line, after string }{
	"virtual servers": {"", "virtual_server 192.0.2.1 80 {\nreal_server 10.0.0.1 80 {\n}\n}\n", ""},
	"real servers":    {"virtual_server 192.0.2.1 80 {\n", "real_server 10.0.0.1 80 {\n}\n", "}\n"},
	"checks": {"virtual_server 192.0.2.1 80 {\nreal_server 10.0.0.1 80 {\n",
		"TCP_CHECK {\n}\n", "}\n}\n"},
	"urls": {"virtual_server 192.0.2.1 80 {\nreal_server 10.0.0.1 80 {\nHTTP_GET {\n",
		"url {\npath /\n}\n", "}\n}\n}\n"},
	"unknown keywords": {"virtual_server 192.0.2.1 80 {\n", "nothing\n", "}\n"},
	"warnings":         {"virtual_server 192.0.2.1 80 {\n", "omega\n", "}\n"},
	"members of a group": {"virtual_server_group g {\n", "192.0.2.1 80\n",
		"}\nvirtual_server group g {\n}\n"},
	"a long range": {"virtual_server_group g {\n", "192.0.2.1-250 80\n",
		"}\nvirtual_server group g {\n}\n"},
	"words":  {"", "word ", ""},
	"blocks": {"", "a {\n", ""},
	"quotes": {"", "\"a\"", ""},
}

func TestTimeAndMemoryGrowAsConfigurationsDo(t *testing.T) {
	for name, tt := range growing {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 1<<15, func(n int) string {
				return tt.before + strings.Repeat(tt.line, n) + tt.after
			}, func(text string) {
				_, _ = keepalived.Convert("keepalived.conf", text)
			})
		})
	}
}
