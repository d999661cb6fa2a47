package manifest_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// mistake is a manifest with mistakes, in the format of problems.yaml.
type mistake struct {
	Name               string
	Of                 string // the manifest of that name, in which Replace and Add change lines
	Replace, With, Add string
	Text               string
	Want               []string // the problems, behind "m.yaml:"
}

// mistakes returns the manifests of problems.yaml.
func mistakes(t *testing.T) (all []mistake) {
	t.Helper()
	text, err := os.ReadFile("testdata/problems.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &all))
	for i := range all {
		m := &all[i]
		if of := map[string]string{"service": service, "slice": slice}[m.Of]; of != "" {
			require.Contains(t, of, m.Replace, m.Name)
			m.Text = strings.Replace(of, m.Replace, m.With, 1) + m.Add
		}
	}

	return all
}

const noObject = "1: the file holds no object"

// With AllowEmpty, a file without objects is accepted, and a set forgets the file's earlier
// objects.
func TestFilesWithoutObjectsAreTakenIfAllowed(t *testing.T) {
	t.Parallel()
	for _, tt := range mistakes(t) {
		if tt.Want[0] != noObject {
			continue
		}
		set := manifest.NewSet(&kube.Config{Strict: true})
		put := func(text string) error {
			result, err := set.Put("m.yaml", strings.NewReader(text))
			require.NoError(t, err)
			return result.Err()
		}

		require.NoError(t, put(service))
		require.EqualError(t, put(tt.Text), "m.yaml:"+noObject, tt.Name)
		require.Equal(t, 1, set.Tracker().State().Len(), tt.Name)
		set.AllowEmpty = true
		require.NoError(t, put(tt.Text), tt.Name)
		require.Zero(t, set.Tracker().State().Len(), tt.Name)
	}
}

// For an object full of faults, a hundred problems are reported, and the number of further
// problems.
func TestProblemsOfAnObjectAreBounded(t *testing.T) {
	t.Parallel()
	const wrong = 1000
	endpoints := func(address string) string {
		return `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"web"},"subsets":[{` +
			`"ports":[{"port":80}],"addresses":[` + strings.Repeat(address+",", wrong-1) + address +
			`]}]}`
	}

	for _, text := range []string{endpoints(`{"ip":"x"}`), endpoints(`{"pi":"10.0.0.1"}`)} {
		tracker, result := load(t, text)
		require.Len(t, result.Problems, 101)
		require.Equal(t, "m.yaml:1: document 1: Endpoints default/web: 900 more problems",
			result.Problems[100].Error())
		require.False(t, result.Problems[100].Warning)
		require.Empty(t, tracker.State().Endpoints(web))
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for _, tt := range mistakes(t) {
		t.Run(tt.Name, func(t *testing.T) {
			t.Parallel()
			tracker, result := load(t, tt.Text)
			var got []string
			for _, p := range result.Problems {
				got = append(got, strings.TrimPrefix(p.Error(), "m.yaml:"))
			}
			require.Equal(t, tt.Want, got)
			isWarning := strings.Contains(tt.Want[0], "is skipped")
			require.Equal(t, isWarning, result.Err() == nil)
			require.Nil(t, tracker.State().Service(web))
		})
	}
}

func TestTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	_, result := load(t, "a: b\n\nc: \xff\n")
	require.EqualError(t, result.Err(), "m.yaml:3: not text: it is not valid UTF-8")
}
