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

// frames are configurations with a place for a statement.
var frames = map[block][]string{
	globals:       {"global_defs {\n%s\n}\n" + server + end},
	virtualServer: {virtual + "%s\n" + real + web + "}" + end},
	realServer:    {server + "%s\n" + web + "}" + end},
	check: {server + "TCP_CHECK {\n%s\n}" + end, server + web + "%s\n}" + end,
		udp + real + "UDP_CHECK {\n%s\n}" + end},
	otherCheck: {server + "SMTP_CHECK {\n%s\n}" + end, server + "MISC_CHECK {\n%s\n}" + end},
	host:       {server + "SMTP_CHECK {\nhost {\n%s\n}\n}" + end},
	url:        {server + "SSL_GET {\nurl {\npath /\n%s\n}\n}" + end},
}

const (
	virtual = udp + "protocol TCP\n"
	udp     = "virtual_server 192.0.2.1 80 {\n"
	real    = "real_server 10.0.0.1 80 {\n"
	server  = virtual + real
	web     = "HTTP_GET {\nurl {\npath /\n}\n"
	end     = "\n}\n}\n"
)

// Whatever value a keyword has, an error about it names its line and has no words of Go.
func TestErrorsOfEveryKeywordAreForUsers(t *testing.T) {
	t.Parallel()
	internals := regexp.MustCompile(`Parse[A-Z]|netip\.|encoding/|strconv\.|%!|invalid syntax`)
	said := 0
	for at := range newGrammar() {
		for _, value := range []string{"", "x", "-1", "1.5", "web.example.com 80", "10.0.0.1 http",
			"10.0.0.1/33 80", "10.0.0.9-10.0.0.1 80", "0xz", "0", "99999999999999999999", "a b c d",
			"{\n}", "group", "fwmark 1", "::1%eth0 80", `""`} {
			for _, frame := range frames[at.in] {
				text := fmt.Sprintf(frame, at.word+" "+value)
				_, err := Convert("k.conf", text, nil)
				if err == nil {
					continue
				}
				said++
				require.NotRegexp(t, internals, err.Error(), text)
				require.Regexp(t, `^k\.conf(:\d+: \S+)?: `, err.Error(), text)
			}
		}
	}

	require.Greater(t, said, 300)
}

// Wherever a keyword may stand, whatever valid value it has, it changes the file or is named. The
// documentation lists the exceptions.
func TestEveryStatementIsConvertedOrNamed(t *testing.T) {
	t.Parallel()
	convert := func(frame, statement string) (string, error) {
		r, err := Convert("k.conf", fmt.Sprintf(frame, statement), nil)
		return fmt.Sprint(string(r.File), r.Warnings, r.Changes), err
	}

	for at, rule := range newGrammar() {
		for _, frame := range frames[at.in] {
			without, err := convert(frame, "!")
			require.NoError(t, err, frame)
			if rule.use == nil && rule.warning == "" {
				continue // see TestKeywordsThatNeedNothingAreDocumented
			}
			for _, value := range []string{"7", "10.9.9.9", "x.example", "TUN", "UDP", "sh", "00ff",
				"10.9.9.9 90", "tcp 7", "255.255.255.0", "{\npath /y\n}"} {
				with, err := convert(frame, at.word+" "+value)
				require.True(t, err != nil || with != without, "%s %s in %s", at.word, value, frame)
			}
		}
	}
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
