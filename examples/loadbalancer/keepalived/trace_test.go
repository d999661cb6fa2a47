package keepalived_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
)

// writer writes a random configuration, one statement a line.
type writer struct {
	*rand.Rand
	lines  []string
	number int
}

func (w *writer) add(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

// some writes some of the statements, in any order. "#" in a statement becomes a number that
// no other statement has.
func (w *writer) some(statements ...string) {
	w.Shuffle(len(statements), func(i, j int) {
		statements[i], statements[j] = statements[j], statements[i]
	})
	for _, s := range statements {
		if w.IntN(3) == 0 {
			w.number = w.number%240 + 1
			w.add("%s", strings.ReplaceAll(s, "#", strconv.Itoa(10+w.number)))
		}
	}
}

// timed are statements that blocks inherit. No number is a default.
var timed = []string{"delay_loop #.5", "connect_timeout #.5", "delay_before_retry #.5", "retry #",
	"virtualhost h#.example", "alpha", "warmup #"}

func (w *writer) checkers(plain bool) {
	w.add("HTTP_GET {") // it inherits all
	w.add("url {")
	w.add("path /#%d", len(w.lines))
	w.add("}")
	w.add("}")
	if plain {
		return
	}
	w.some("MISC_CHECK {\nmisc_path x\n}", "PING_CHECK {\n}")
	w.add("SSL_GET {")
	w.some(append(timed[:5:5], "connect_ip 10.1.0.#", "connect_port #", "bindto 10.2.0.#",
		"bind_port #", "bind_if eth#", "fwmark #", "http_protocol 1.0", "enable_sni",
		"log_all_failures", "fast_recovery")...)
	w.add("url {")
	w.some("path /p#", "digest 0123456789abcdef0123456789abcdef", "virtualhost u#.example",
		"status_code 204", "status_code 302", "regex ok#", "regex_no_match", "regex_options icase")
	w.add("}")
	w.add("url {") // it inherits all
	w.add("}")
	w.add("}")
}

// randomConfiguration returns a configuration that can be converted.
func randomConfiguration(r *rand.Rand) string {
	w := &writer{Rand: r}
	w.some("global_defs {\nrouter_id x\nlvs_timeouts tcp # udp #\nlvs_sync_daemon eth0 V\n"+
		"lvs_flush\n}", "vrrp_instance V {\nstate MASTER\n}", "net_namespace blue#",
		"SSL {\nca x\n}", "virtual_server_group unused {\n192.0.2.99 80\n}")
	w.add("virtual_server_group g {")
	w.add("192.0.2.%d-%d 80", 20+r.IntN(5), 30+r.IntN(5))
	w.some("192.0.2.15 8#")
	w.add("}")
	for i := range 1 + r.IntN(3) {
		if i == 0 {
			w.add("virtual_server group g {")
		} else {
			w.add("virtual_server 192.0.2.%d 80 {", i)
		}

		kind := []string{"NAT", "DR", "TUN"}[r.IntN(3)]
		w.add("lb_kind %s", kind)
		w.some(append(timed[:len(timed):len(timed)], "lb_algo sh", "protocol TCP",
			"persistence_timeout #", "persistence_granularity 255.255.255.0", "quorum #",
			"ha_suspend", "omega", "quorum_up x#", "ip_family inet", "ops", "hysteresis #",
			"notify_up x", "smtp_alert", "inhibit_on_failure", "lb_algo wrr",
			"sorry_server 10.0.1.# 8#", "sorry_server 10.0.2.#")...)
		for j := range 1 + r.IntN(3) {
			w.add("real_server 10.0.0.%d %d {", 1+j, 80+r.IntN(2))
			if j == 0 {
				w.checkers(true)
				w.add("}")
				continue
			}

			w.some(append(timed[:len(timed):len(timed)], "weight #", "lvs_method "+kind,
				"notify_down x", "uthreshold #", "inhibit_on_failure", "weight #")...)
			w.checkers(false)
			w.add("}")
		}

		w.add("}")
	}

	return strings.ReplaceAll(strings.Join(w.lines, "\n")+"\n", "/#", "/x")
}

// same are the statements that need no trace, because the load balancer always works so. A
// real_server may repeat the forwarding of its virtual server.
var same = regexp.MustCompile(`^(alpha|warmup|ip_family|sorry_server_inhibit|inhibit_on_failure|` +
	`log_all_failures|fast_recovery|enable_sni|lvs_method)\b`)

// bodies are blocks that a warning names as a whole.
var bodies = regexp.MustCompile(`^(router_id|misc_path|state|ca|192.0.2.99) `)

// Every statement is in the file, or a message names its line: without the statement, or with
// another number in it, the result of the conversion differs.
func TestEveryStatementLeavesATrace(t *testing.T) {
	t.Parallel()
	numbers := regexp.MustCompile(`\d+`)
	tried := 0
	for seed := range uint64(40) {
		text := randomConfiguration(rand.New(rand.NewPCG(seed, 2)))
		r, err := keepalived.Convert("f", text, nil)
		if err != nil {
			continue
		}
		tried++
		_, err = config.Parse("f", r.File)
		require.NoError(t, err)
		whole, lines := report("f", text), strings.Split(text, "\n")
		changed := func(i int, line string) string {
			now := append(lines[:i:i], line)
			return report("f", strings.Join(append(now, lines[i+1:]...), "\n"))
		}

		for i, line := range lines {
			named := strings.Contains(whole, fmt.Sprintf("# warning: f:%d: ", i+1))
			if named || line == "" || same.MatchString(line) || bodies.MatchString(line) ||
				strings.ContainsAny(line, "{}") {
				continue
			}

			require.False(t, whole == changed(i, ""), "line %d: %s in\n%s", i+1, line, text)
			if at := numbers.FindAllStringIndex(line, -1); len(at) > 0 {
				last := at[len(at)-1]
				n, err := strconv.Atoi(line[last[0]:last[1]])
				require.NoError(t, err)
				other := line[:last[0]] + strconv.Itoa(n+1) + line[last[1]:]
				require.False(t, whole == changed(i, other), "line %d: %s, %s in\n%s", i+1, line,
					other, text)
			}
		}
	}

	require.Greater(t, tried, 15)
}
