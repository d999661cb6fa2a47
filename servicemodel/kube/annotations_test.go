package kube

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// annotationRow is a row of the table in docs/backends.md.
var annotationRow = regexp.MustCompile("(?m)^\\| `kernlb.io/(\\S+)` \\| (\\w+) \\| .* \\| " +
	"`(\\S+)` \\| .* \\|$")

// The table of the documentation has exactly the known annotations, each with the right kind and an
// example that is accepted.
func TestTheDocumentationHasAllAnnotations(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/backends.md")
	require.NoError(t, err)
	packageDoc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	var got, want [][2]string
	examples := map[string]string{}
	for _, m := range annotationRow.FindAllStringSubmatch(string(text), -1) {
		got = append(got, [2]string{m[1], m[2]})
		examples[m[1]] = m[3]
	}

	for _, a := range serviceAnnotations {
		want = append(want, [2]string{a.name, "Service"})
		s := &servicemodel.Service{SessionAffinity: servicemodel.SessionAffinity{ClientIP: true},
			Ports: []servicemodel.ServicePort{{Port: 10000}}}
		require.NoError(t, a.set(s, examples[a.name]), a.name)
	}

	for _, a := range sliceAnnotations {
		want = append(want, [2]string{a.name, "EndpointSlice"})
		require.NoError(t, a.set(&slice{}, examples[a.name]), a.name)
	}

	require.Equal(t, want, got)
	for _, w := range want {
		require.Contains(t, string(packageDoc), "kernlb.io/"+w[0])
	}
}
