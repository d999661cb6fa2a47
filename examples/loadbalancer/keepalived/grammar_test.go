package keepalived

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
)

// Whatever value a keyword has, an error about it names its line and has no words of Go.
func TestErrorsOfEveryKeywordAreForUsers(t *testing.T) {
	t.Parallel()
	frames := map[block]string{
		globals:       "global_defs {\n%s\n}\n",
		virtualServer: "virtual_server 192.0.2.1 80 {\n%s\n}\n",
		realServer:    "virtual_server 192.0.2.1 80 {\nreal_server 10.0.0.1 80 {\n%s\n}\n}\n",
		checker: "virtual_server 192.0.2.1 80 {\nreal_server 10.0.0.1 80 {\nUDP_CHECK {\n%s\n}\n" +
			"}\n}\n",
		url: "virtual_server 192.0.2.1 80 {\nreal_server 10.0.0.1 80 {\nHTTP_GET {\nurl {\n%s\n" +
			"}\n}\n}\n}\n",
	}
	internals := regexp.MustCompile(`Parse[A-Z]|netip\.|encoding/|strconv\.|%!|invalid syntax`)
	said := 0
	for at := range newGrammar() {
		for _, value := range []string{"", "x", "-1", "1.5", "web.example.com 80", "10.0.0.1 http",
			"10.0.0.1/33 80", "10.0.0.9-10.0.0.1 80", "0xz", "0", "99999999999999999999", "a b c d",
			"{\n}", "group", "fwmark 1", "::1%eth0 80", `""`} {
			text := fmt.Sprintf(frames[at.in], at.word+" "+value)
			_, err := Convert("k.conf", text, nil)
			if err == nil {
				continue
			}
			said++
			require.NotRegexp(t, internals, err.Error(), text)
			require.Regexp(t, `^k\.conf(:\d+: \S+)?: `, err.Error(), text)
		}
	}

	require.Greater(t, said, 300)
}

// A keyword that is neither converted nor warned about is in the list of the documentation.
func TestKeywordsThatNeedNothingAreDocumented(t *testing.T) {
	t.Parallel()
	text := string(must.OK(os.ReadFile("doc.go"))(t))
	for _, r := range append(rules(), checkRules()...) {
		for _, word := range strings.Fields(r.words) {
			if r.use == nil && r.warning == "" {
				require.Contains(t, text, word)
			}
		}
	}
}
