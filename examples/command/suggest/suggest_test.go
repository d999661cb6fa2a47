package suggest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"apply", "watch", "show", "-services", "-o"}
	for word, want := range map[string]string{
		"aply": "apply", "Watch": "watch", "shwo": "show", "hsow": "show", "-service": "-services",
		"applyyyy": "", "": "", "x": "", "-p": "-o", "nothing": "",
	} {
		got, ok := Nearest(word, known)
		require.Equal(t, want, got, word)
		require.Equal(t, want != "", ok, word)
	}
}
