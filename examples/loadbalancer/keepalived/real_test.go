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
	name := filepath.Join(t.TempDir(), "keepalived.conf")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return judgeFile(t, "-f", name)
}

func judgeFile(t *testing.T, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("keepalived")
	if err != nil {
		t.Skip("keepalived is not installed")
	}

	// It fails if it complains.
	out, _ := exec.Command(program, append(args, "-t")...).CombinedOutput()
	return string(out)
}

// randomLines returns lines of a virtual server, with parameters, conditions and includes of the
// names. They define three parameters, of which B may use A, and C both.
func randomLines(r *rand.Rand, includes []string) string {
	pick := func(l ...string) string { return l[r.IntN(len(l))] }
	statement := func(names ...string) string {
		if name := pick(names...); r.IntN(2) == 0 {
			return "lb_algo " + pick("z", "z,") + "$" + name // of several lines, too
		} else {
			return fmt.Sprintf(`lb_algo "z%s${%s}%s%s"`, pick("", "b ", "${UNKNOWN}"), name,
				pick("", "b", "#"), pick("", "$"+name+",", "${"+name+"}"))
		}
	}

	var text strings.Builder
	for range 4 + r.IntN(8) {
		if len(includes) > 0 && r.IntN(4) == 0 {
			fmt.Fprintf(&text, "%s %s\n", pick("include", "includer", "include\t"),
				pick(includes...))
			continue
		}

		name, uses := "A", []string{"UNKNOWN"}
		if r.IntN(2) == 0 {
			name, uses = "B", []string{"A"}
		} else if r.IntN(2) == 0 {
			name, uses = "C", []string{"A", "B"}
		}

		switch r.IntN(4) {
		case 0:
			fmt.Fprintf(&text, "%s$%s=%s%s\n", pick("", "  ", "@m ", "@n\t"), name,
				pick("", "x", "1,2", "a  b", "$"+uses[0]+",y"), pick("", " # no"))
		case 1: // keepalived never skips the rest of a value, so the condition holds
			// and it does not understand a condition in the first line of a value.
			fmt.Fprintf(&text, "%s$%s= \\\n", pick("", "@m ", "@^n "), name)
			text.WriteString(statement(uses...) + " \\\n")
			for range r.IntN(4) {
				text.WriteString(pick("  ", "", "@m ", "@n ") + statement(uses...) + pick(" ", "") +
					"\\\n")
			}

			text.WriteString(pick("lb_algo zlast", "  # comment", "", "$A=inner") + "\n\n")
		default:
			text.WriteString(pick("", "", "  ", "@m ", "@^m ", "@n\t", "@^n ") +
				statement("A", "B", "C") + pick("", " # no") + "\n")
		}

		if r.IntN(3) == 0 {
			fmt.Fprintf(&text, "%s\n", pick("$A", "$C", "$B", " $C # value", "lb_algo z$C"))
		}
	}

	return text.String()
}

// The real keepalived reads the same statements from random files that include each other, with
// random parameters and conditions. It names the schedulers that it read.
func TestKeepalivedReadsTheSameLines(t *testing.T) {
	t.Parallel()
	read := 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 4))
		dir, all := t.TempDir(), ""
		write := func(name, text string) string {
			all += name + ":\n" + text
			name = filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
			require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			return text
		}

		for _, name := range []string{"d/1.conf", "d/2.conf"} {
			write(name, "$A="+name[2:3]+"\n"+randomLines(r, []string{"e/*"}))
		}
		write("d/e/3.conf", randomLines(r, nil))
		text := write("keepalived.conf", "$A=1\n$B=2\n$C=3\nvirtual_server 192.0.2.1 80 {\n"+
			"protocol TCP\n"+randomLines(r, []string{"d/*.conf", "d/1.*"})+
			"real_server 10.0.0.1 80 {\n}\n}\n")
		name := filepath.Join(dir, "keepalived.conf")
		in := newReader(&Config{ID: "m", Include: true})
		if err := in.read(name, text, 0); err != nil {
			t.Log(err)
			continue
		}

		var want, got []string
		for _, l := range in.lines {
			words, err := split(l.text)
			require.NoError(t, err)
			if len(words) > 1 && words[0].text == "lb_algo" {
				want = append(want, words[1].text)
			}
		}

		said := judgeFile(t, "-f", name, "-i", "m")
		for _, m := range regexp.MustCompile(`Invalid lvs_scheduler '(.*)' - ign`).
			FindAllStringSubmatch(said, -1) {
			got = append(got, m[1])
		}

		require.Equal(t, want, got, "seed %d:\n%s\n%s", seed, all, said)
		read += len(want)
	}

	require.Greater(t, read, 300)
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
	result, err := Convert("f", text.String(), nil)
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
