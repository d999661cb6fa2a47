package manifest_test

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

var web = servicemodel.Name{Namespace: "default", Name: "web"}

// load reads text as the file "m.yaml".
func load(t *testing.T, text string) (*kube.Tracker, manifest.Result) {
	t.Helper()
	tracker := kube.NewTracker(&kube.Config{Strict: true, Node: servicemodel.Node{Name: "node-a"}})
	loader := manifest.NewLoader(tracker)
	require.NoError(t, loader.Read("m.yaml", strings.NewReader(text)))
	require.NoError(t, tracker.State().Validate())
	return tracker, loader.Result()
}

func texts(problems []kube.Problem) []string {
	var out []string
	for _, p := range problems {
		out = append(out, p.Severity()+": "+p.Error())
	}
	return out
}

const service = `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: 10.96.0.10
  ports:
  - name: http
    port: 80
`

const slice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels:
    kubernetes.io/service-name: web
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: [10.1.0.1]
- addresses: [10.1.0.2]
  conditions: {ready: false}
`

const serviceJSON = `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},` +
	`"spec":{"clusterIP":"10.96.0.10","ports":[{"name":"http","port":80}]}}`

// document is a text of documents.yaml, and its contents.
type document struct {
	Name, Text string
	Services   []string
	Objects    int // 0: one for each service
	Endpoints  int // of default/web
	Skipped    string
}

// The notations in which a text can have objects, with lines that end in LF and in CR LF.
func TestDocuments(t *testing.T) {
	t.Parallel()
	var all []document
	text, err := os.ReadFile("testdata/documents.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &all))
	objects := strings.NewReplacer("SERVICE\n", service, "SERVICE", strings.TrimSpace(service),
		"OTHER\n", strings.NewReplacer("web", "other", "0.10", "0.11").Replace(service),
		"JSON", serviceJSON)
	for _, tt := range all {
		for _, end := range []string{"\n", "\r\n"} {
			text := strings.ReplaceAll(objects.Replace(tt.Text), "\n", end)
			tracker, result := load(t, text)
			require.Empty(t, texts(result.Problems), tt.Name)
			var names []string
			for s := range tracker.State().Services() {
				names = append(names, s.Name.String())
			}
			require.Equal(t, tt.Services, names, tt.Name)
			require.Equal(t, cmp.Or(tt.Objects, len(names)), result.Objects, tt.Name)
			require.Len(t, tracker.State().Endpoints(web), tt.Endpoints, tt.Name)
			require.Equal(t, tt.Skipped, result.SkippedKinds(), tt.Name)
		}
	}
}

func TestAllKindsAreTaken(t *testing.T) {
	t.Parallel()
	tracker, result := load(t, service+`---
apiVersion: v1
kind: Endpoints
metadata: {name: web}
subsets:
- addresses: [{ip: 10.1.0.1, nodeName: node-a}]
  notReadyAddresses: [{ip: 10.1.0.2}]
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Node
metadata:
  name: node-a
  creationTimestamp: "2026-01-02T03:04:05Z"
  labels: {topology.kubernetes.io/zone: zone-1}
  managedFields:
  - manager: kubelet
    operation: Update
    time: "2026-01-02T03:04:05Z"
    fieldsType: FieldsV1
    fieldsV1: {"f:status": {}}
spec: {podCIDR: 10.1.0.0/24}
status:
  addresses: [{type: InternalIP, address: 172.16.0.1}]
  capacity: {cpu: "4", memory: 16Gi, pods: 110}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
status:
  conditions: [{type: Ready, status: "True", lastTransitionTime: null, reason: "", message: ""}]
`)
	require.Empty(t, texts(result.Problems))
	require.Equal(t, 4, result.Objects)
	state := tracker.State()
	require.Len(t, state.Endpoints(web), 2)
	require.Equal(t, "zone-1", state.Node().Zone)
	require.Len(t, state.Node().Addresses, 1)
	require.Len(t, state.Node().ServiceCIDRs, 1)
}

func TestSeveralFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "service.yaml"), filepath.Join(dir, "slice.json")
	require.NoError(t, os.WriteFile(first, []byte(service), 0o600))
	require.NoError(t, os.WriteFile(second, []byte("\n\n"+service+"---\n"+slice), 0o600))
	tracker := kube.NewTracker(&kube.Config{Strict: true})
	loader := manifest.NewLoader(tracker)
	require.NoError(t, loader.ReadFile(first))
	require.NoError(t, loader.ReadFile(second))
	require.Equal(t, []string{
		"warning: " + second + ":3: document 1: Service default/web: was given before, at " +
			first + ":1; this one counts",
	}, texts(loader.Result().Problems))
	require.NoError(t, loader.Result().Err())
	require.Len(t, loader.Result().Warnings(), 1)
	require.Len(t, tracker.State().Endpoints(web), 2)
}

func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	loader := manifest.NewLoader(kube.NewTracker(nil))
	require.ErrorIs(t, loader.ReadFile(filepath.Join(t.TempDir(), "none.yaml")), os.ErrNotExist)
	broken := errors.New("broken pipe")
	require.ErrorIs(t, loader.Read("standard input", iotest.ErrReader(broken)), broken)
	require.Zero(t, loader.Result().Objects)
}
