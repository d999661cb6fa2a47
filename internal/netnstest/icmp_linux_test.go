package netnstest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzDecodeExtendedErr(f *testing.F) {
	// Native byte order: the family only reads right on little-endian machines, which a seed may.
	f.Add(append([]byte{111, 0, 0, 0, 2, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 2, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0))
	f.Add(append([]byte{111, 0, 0, 0, 3, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0}, append([]byte{10, 0, 0, 0, 0, 0, 0, 0, 0xfd}, make([]byte, 19)...)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := decodeExtendedErr(b); ok {
			require.True(t, e.From.IsValid())
			require.NotEmpty(t, e.String())
		}
	})
}
