package keepalived

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// judge returns what the real keepalived says about a configuration.
func judge(t *testing.T, text string) string {
	t.Helper()
	program, err := exec.LookPath("keepalived")
	if err != nil {
		t.Skip("keepalived is not installed")
	}
	name := filepath.Join(t.TempDir(), "keepalived.conf")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	out, _ := exec.Command(program, "-t", "-f", name).CombinedOutput() // it fails if it complains
	return string(out)
}

// The real keepalived reads the same words from random lines. It names the scheduler that it read.
func TestKeepalivedReadsTheSameWords(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 3))
	pieces := []string{"a", " ", "#", " #", "!", `\`, `\a`, `\\`, "'", `"c d"`, `"e#f"`, `"g!"`}
	var text strings.Builder
	text.WriteString("virtual_server 192.0.2.1 80 {\nprotocol TCP\n")
	want := map[int]string{}
	for line := range 300 {
		statement := "lb_algo z"
		for range 1 + r.IntN(6) {
			statement += pieces[r.IntN(len(pieces))]
		}
		words, err := split(statement)
		if text.WriteString(statement + "\n"); err == nil {
			want[line+3] = words[1].text
		}
	}
	text.WriteString("real_server 10.0.0.1 80 {\n}\n}\n")
	require.Greater(t, len(want), 150)
	said := judge(t, text.String())
	for _, m := range regexp.MustCompile(`Line (\d+)\) Invalid lvs_scheduler '(.*)' - ign`).
		FindAllStringSubmatch(said, -1) {
		line, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		if word, read := want[line]; read {
			require.Equal(t, m[2], word, "line %d of\n%s", line, text.String())
			delete(want, line)
		}
	}
	require.Empty(t, want, said)
}

// The real keepalived takes the same protocol, and the same ports of real and sorry servers.
func TestKeepalivedTakesTheSamePorts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 3))
	var text strings.Builder
	for i := range 60 {
		kind := []string{"", "NAT", "DR", "TUN"}[r.IntN(4)]
		fmt.Fprintf(&text, "virtual_server 192.0.2.%d 80 {\nlb_algo rr\n", i+1)
		if kind != "" {
			fmt.Fprintf(&text, "lb_kind %s\n", kind)
		}
		if r.IntN(2) == 0 {
			fmt.Fprintf(&text, "protocol %s\n", []string{"TCP", "udp", "SCTP"}[r.IntN(3)])
		}
		fmt.Fprintf(&text, "real_server 10.0.0.%d %d {\n}\n", i+1, 80+r.IntN(2))
		fmt.Fprintf(&text, "sorry_server 10.0.1.%d %d\n}\n", i+1, 80+r.IntN(2))
	}
	said := judge(t, text.String())
	result, err := Convert("f", text.String())
	require.NoError(t, err)

	find := func(in, pattern string) (out []int) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(in, -1) {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			out = append(out, n)
		}
		slices.Sort(out)
		return out
	}
	var changes strings.Builder
	for _, c := range result.Changes {
		fmt.Fprintln(&changes, c)
	}
	for ours, theirs := range map[string]string{
		`service 192\.0\.2\.(\d+)-80-udp: without a protocol`: `\[192\.0\.2\.(\d+)\]:none:80: no ` +
			`protocol set - defaulting to UDP`,
		`real_server: 10\.0\.0\.(\d+):81 gets`: `real server \[10\.0\.0\.(\d+)\]:\w+:81 ports ` +
			`don't match - res`,
		`sorry_server: 10\.0\.1\.(\d+):81 gets`: `\[192\.0\.2\.(\d+)\]:\w+:80 and sorry server ` +
			`ports don't match - res`,
	} {
		require.NotEmpty(t, find(said, theirs), said)
		require.Equal(t, find(said, theirs), find(changes.String(), ours), theirs)
	}
}
