package growth

import (
	"fmt"
	"strings"
	"testing"
)

// recorder notes the errors of a test.
type recorder struct {
	testing.TB
	errors []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

var sink []string

func TestOnlyWhatIsMoreThanLinearFails(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: nothing is measured")
	}
	words := func(n int) []string { return strings.Fields(strings.Repeat("word ", n)) }
	for name, tt := range map[string]struct {
		run  func([]string)
		want string
	}{
		"linear": {func(l []string) {
			for range 100 {
				sink = append([]string(nil), l...)
			}
		}, ""},
		"quadratic time": {func(l []string) {
			found := 0
			for i := range l {
				for j := range l {
					if l[i] == l[j] && i != j {
						found++
					}
				}
			}

			sink = sink[:min(found, len(sink))]
		}, "more than linear"},
		"quadratic memory": {func(l []string) {
			for i := range l {
				sink = append([]string(nil), l[:i]...)
			}
		}, "more than linear"},
	} {
		r := &recorder{TB: t}
		Linear(r, 1<<13, words, tt.run)
		if got := strings.Join(r.errors, "\n"); !strings.Contains(got, tt.want) ||
			(got == "") != (tt.want == "") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
