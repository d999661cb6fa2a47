package manifest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

func TestFileThatIsTooLarge(t *testing.T) {
	t.Parallel()
	loader := NewLoader(kube.NewTracker(nil))
	loader.maxSize, loader.AllowEmpty = 10, true
	require.NoError(t, loader.Read("m.yaml", strings.NewReader("# 1234567\n")))
	require.NoError(t, loader.Result().Err())
	require.NoError(t, loader.Read("m.yaml", strings.NewReader("# 1234567\n#")))
	require.EqualError(t, loader.Result().Err(), "m.yaml:2: larger than 10 bytes")
}
