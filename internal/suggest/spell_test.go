package suggest_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/suggest"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	words := []string{"Service", "ServiceList", "Node", "web", "http", "apply", "show"}
	for word, want := range map[string]string{
		"Sevice": "Service", "service": "Service", "Services": "Service", "Node": "Node",
		"wep": "web", "ewb": "web", "wxy": "", "htpp": "http", "aply": "apply", "shwo": "show",
		"hsow": "show", "xhow1": "show", "ConfigMap": "", "": "", "w": "",
		"Srevcie": "Service", "Sxrxvxce": "", strings.Repeat("x", 1000): "",
	} {
		got, ok := suggest.Nearest(word, slices.Values(words))
		require.Equal(t, want, got, word)
		require.Equal(t, want != "", ok, word)
	}

	_, ok := suggest.Nearest("web", slices.Values([]string{strings.Repeat("w", 1000)}))
	require.False(t, ok)
}

// Words with up to two letters added, left out, changed or swapped are found.
func FuzzNearest(f *testing.F) {
	f.Add("service", 3, byte('x'))
	f.Add("\xff", 0, byte(0))
	f.Fuzz(func(t *testing.T, word string, at int, letter byte) {
		if len(word) < 4 || len(word) > 60 || at < 0 || !utf8.ValidString(word) {
			suggest.Nearest(word, slices.Values([]string{word}))
			return
		}

		at %= len(word)
		for _, wrong := range []string{word[:at] + word[at+1:], word[:at] + string(letter) +
			word[at+1:]} {
			got, ok := suggest.Nearest(wrong, slices.Values([]string{word}))
			if len(wrong) < 4 || !utf8.ValidString(wrong) {
				continue
			}
			require.True(t, ok, "%q for %q", wrong, word)
			require.Equal(t, word, got)
		}
	})
}
