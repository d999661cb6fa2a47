package docs_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// oneLine returns a file of docs, in one line.
func oneLine(t *testing.T, name string) string {
	t.Helper()
	return strings.Join(strings.Fields(source(t, "../../../docs/"+name)), " ")
}

// programs.md has the right limit for the total length of the names of an owner, a service and a
// port.
func TestNamesHaveTheLengthThatTheDocumentationNames(t *testing.T) {
	t.Parallel()
	m := regexp.MustCompile(`have at most (\d+) bytes, or (\d+) if the port has no name`).
		FindStringSubmatch(oneLine(t, "programs.md"))
	require.Len(t, m, 3)
	for i, port := range []string{"http", ""} {
		limit := must.OK(strconv.Atoi(m[i+1]))(t)
		valid := func(bytes int) error {
			return (&servicemodel.Service{Name: servicemodel.Name{Namespace: "owner",
				Name: strings.Repeat("n", bytes-len("owner")-len(port))},
				Ports: []servicemodel.ServicePort{{Name: port, Protocol: servicemodel.TCP,
					Port: 80}}}).Validate()
		}

		require.NoError(t, valid(limit), "with %d bytes", limit)
		require.Error(t, valid(limit+1), "with %d bytes", limit+1)
	}
}
