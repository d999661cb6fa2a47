package keepalived_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
)

// Errors about what is read name the file and the line that is wrong, also in an included file.
func TestReadingFails(t *testing.T) {
	t.Parallel()
	const server = "virtual_server 192.0.2.1 80 {\nprotocol TCP\nreal_server 10.0.0.1 80 {\n"
	for name, c := range map[string]struct{ main, inner, want string }{
		"a keyword in an included file": {server + "include i\n}\n}\n", "\nweigth 2\n",
			"i:2: weigth: unknown keyword in the block of real_server"},
		"a file includes itself": {"include main\n", "", "main:1: include: more than 20 files"},
		"files include each other": {"include i\n", "\ninclude main\n",
			"main:1: include: more than 20 files"},
		"no file matches": {"includer none*\n", "", "main:1: includer: no file matches none*"},
		"a bad pattern":   {"include [\n", "", "main:1: include: syntax error in pattern"},
		"braces":          {"include {a,i}\n", "", "main:1: include: braces in a pattern"},
		"a value in itself": {"$A=${A}\n\n$A\n", "",
			"main:3: more than 100 values in a line"},
		"values of several lines in each other": {"$A= \\\n$A \\\nb\n\n$A\n", "",
			"main:5: more than 20 values within values"},
		"a value that grows": {"$A=" + strings.Repeat("a", 600) + "\n$A $A\n", "",
			"main:2: with the values in it, the line is longer than 1024 bytes"},
		"many lines": {"$A= \\\na \\\na\n\n" + doublings(18), "",
			"more than 65536 lines"},
		"a word in an included file": {"include i\n", "\n\"\n", "i:2: a quotation mark is missing"},
		"a block in an included file": {"include i\n", "\n\nvirtual_server {\n",
			"i:3: the block of virtual_server has no end"},
		"a parameter without a value": {"$A\n" + server + "weight $A\n}\n}\n", "",
			"main:1: $A: the parameter is not defined"},
		"a sequence": {"~SEQ(N, 1, 3) include i\n", "", "main:1: ~SEQ(N,: sequences and lists"},
		"a condition in an included file": {server + "include i\n}\n}\n", "@b weight 1\n",
			"i:1: @b: this line counts on one host"},
	} {
		dir := t.TempDir()
		write := func(name, text string) string {
			name = filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			return name
		}

		write("i", c.inner)
		_, err := keepalived.Convert(write("main", c.main), c.main,
			&keepalived.Config{Include: true})
		require.Error(t, err, name)
		require.Contains(t, strings.ReplaceAll(err.Error(), dir+"/", ""), c.want, name)
	}

	_, err := keepalived.Convert("f", "include /etc/hosts\n", nil)
	require.EqualError(t, err, "f:1: include: no other file is read")
}

// doublings returns definitions of values, each twice as long as the value before, and a use of the
// last value.
func doublings(n int) string {
	var b strings.Builder
	for i := range n {
		last, next := string(rune('A'+i)), string(rune('B'+i))
		b.WriteString("$" + next + "= \\\n$" + last + " \\\n$" + last + "\n\n")
	}

	return b.String() + "$" + string(rune('A'+n)) + "\n"
}
