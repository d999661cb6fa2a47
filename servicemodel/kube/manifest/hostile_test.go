package manifest_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	long        = strings.Repeat("x", 64<<10)
	nestedKinds = strings.Repeat("{apiVersion: v1, kind: List, items: [", 20) +
		strings.Repeat("]}", 20)
)

// billionLaughs is a text in which each alias stands for ten of the previous one.
func billionLaughs() string {
	text, previous := "a0: &a0 ha\n", "a0"
	for name := range strings.SplitSeq("b c d e f g h i j k l m", " ") {
		ten := strings.Repeat("*"+previous+", ", 9) + "*" + previous
		text += name + ": &" + name + " [" + ten + "]\n"
		previous = name
	}

	return text
}

// hostileTexts are texts that are designed to cost time or memory, and the problems that the loader
// reports.
var hostileTexts = []struct{ name, text, want string }{
	{"a billion laughs", billionLaughs(),
		"aliases make the document more than 1 MiB longer than it is"},
	{"64 KiB, a thousand times", "a: &a " + long + "\nb: [" + strings.Repeat("*a, ", 1000) +
		"]\n", "aliases make the document"},
	{"endpoints upon endpoints", "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n" +
		"x: &x [" + strings.Repeat("{ip: 10.0.0.1},", 1000) + "]\n" +
		"subsets: [" + strings.Repeat("{addresses: *x},", 1000) + "]\n",
		"aliases make the document"},
	{"nested YAML lists", strings.Repeat("[", 100_000),
		"document 1: not YAML: exceeded max depth"},
	{"nested YAML objects", strings.Repeat("{a: ", 5000) + strings.Repeat("}", 5000),
		"nested more than 1000 deep"},
	{"nested YAML in block style", strings.Repeat("- ", 5000), "nested more than 1000 deep"},
	{"nested JSON lists", strings.Repeat("[", 100_000), "document 1: "},
	{"nested JSON objects", strings.Repeat(`{"a":`, 100_000) + strings.Repeat("}", 100_000),
		"document 1: not JSON: invalid character '{' exceeded max depth"},
	{"JSON lists, well formed", strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"nested more than 1000 deep"},
	{"nested lists of kind List", nestedKinds, "items: more than 8 lists in one another"},
	{"a YAML document that is too large", "a: b\n" + strings.Repeat("# "+long+"\n",
		16<<20/len(long)), "larger than 16 MiB"},
	{"a value that is long", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n" +
		"spec: {type: " + long + ", clusterIP: 10.0.0.1, ports: [{port: 80}]}\n",
		"spec.type: " + long[:64] + "…: must be ClusterIP"},
	{"a quantity that would take forever",
		"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nstatus: {capacity: {cpu: " +
			"1e999999999}}\nx: 1\n",
		"Node a: x: unknown field"},
}

func TestHostileText(t *testing.T) {
	t.Parallel()
	for _, tt := range hostileTexts {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker, result := load(t, tt.text)
			require.Len(t, result.Problems, 1)
			require.Contains(t, result.Problems[0].Error(), tt.want)
			require.Less(t, len(result.Problems[0].Error()), 400)
			require.Zero(t, tracker.State().Len())
		})
	}
}

func TestGarbage(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const printable = "abc \n\t:-[]{}#&*!|>'\"%@`0123,.?<~=/\\"
	for round := range 20 {
		text := make([]byte, 100<<10)
		for i := range text {
			text[i] = byte(rng.Uint32())
			if round%2 == 0 {
				text[i] = printable[rng.IntN(len(printable))]
			}
		}

		tracker, result := load(t, string(text))
		require.Error(t, result.Err())
		require.Zero(t, tracker.State().Len())
	}
}

// A file that is truncated at any place results in a problem, or at most in the objects that were
// complete.
func TestTruncation(t *testing.T) {
	t.Parallel()
	for i := 1; i < len(serviceJSON); i++ {
		tracker, result := load(t, serviceJSON[:i])
		require.Error(t, result.Err(), "%q", serviceJSON[:i])
		require.Nil(t, tracker.State().Service(web))
	}

	whole := service + "---\n" + slice

	// a truncated number cannot be recognized
	portAt := strings.Index(service, "port: 80") + len("port: ")
	for i := 1; i < len(whole); i++ {
		tracker, _ := load(t, whole[:i])
		if i <= portAt {
			require.Nil(t, tracker.State().Service(web), "%q", whole[:i])
		}
		if i < len(service)+len("---\n")+strings.Index(slice, "10.1.0.1") {
			require.Empty(t, tracker.State().Endpoints(web), "%q", whole[:i])
		}
	}
}

// breaks are the line breaks of YAML 1.1.
var breaks = strings.NewReplacer("\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

func FuzzLoad(f *testing.F) {
	for _, s := range []string{
		service, slice, service + "---\n" + slice, serviceJSON,
		"{apiVersion: v1, kind: List, items: [{}, [], 1]}",
		"a: &a [*a]", "a: &a b\n*a : c", "<<: {a: b}", "%YAML 1.1\n---\n...\n", "? a\n: b",
		"!!set {a}", "a: |\n b",
		"\"\\ud800\"", "{\"a\":1}{\"b\":2}", "\r0", "?\n?",
		"a: 0x10\nb: 1_000\nc: .inf\nd: 0o17\ne: 99999999999999999999",
		"apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: " +
			"InternalIP, address: 1.2.3.4}]}",
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: a}\nspec: {cidrs: " +
			"[10.0.0.0/8]}",
		"apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets: [{addresses: [{ip: " +
			"10.0.0.1}], ports: [{port: 80}]}]",
	} {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, text string) {
		tracker, result := load(t, text)
		if result.Objects == 0 {
			require.Zero(t, tracker.State().Len())
		}
		for _, p := range result.Problems {
			require.Positive(t, p.Line)
			require.NotEmpty(t, p.Reason)

			// A value that is missing at the very end is reported on the line after the end.
			require.LessOrEqual(t, p.Line, 2+strings.Count(breaks.Replace(text), "\n"))
		}
	})
}
