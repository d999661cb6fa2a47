package manifest_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

var web = servicemodel.Name{Namespace: "default", Name: "web"}

// load reads text as the file "m.yaml".
func load(t *testing.T, text string) (*kube.Tracker, manifest.Result) {
	t.Helper()
	tracker := kube.NewTracker(kube.Config{Strict: true, Node: servicemodel.Node{Name: "node-a"}})
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

// namedService returns service with another name and address.
func namedService(name, ip string) string {
	return strings.NewReplacer("web", name, "10.96.0.10", ip).Replace(service)
}

var other = namedService("other", "10.96.0.11")

// documents are texts of several forms, and the services in them.
var documents = []struct {
	name, text string
	services   []string
}{
	{"one document", service, []string{"default/web"}},
	{"two documents", service + "---\n" + other, []string{"default/other", "default/web"}},
	{"a separator at the beginning and the end", "---\n" + service + "---\n" + other + "---\n",
		[]string{"default/other", "default/web"}},
	{"empty documents and comments", "# a file\n---\n---\n# nothing\n\n---\n" + service +
		"---\n\n", []string{"default/web"}},
	{"a comment behind the separator", "--- # first\n" + service + "--- # second\n" + other,
		[]string{"default/other", "default/web"}},
	{"an object behind the separator",
		"--- {apiVersion: v1, kind: Service, metadata: {name: web}, " +
			"spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}\n", []string{"default/web"}},
	{"lines that end in CR LF", strings.ReplaceAll(service+"---\n"+other, "\n", "\r\n"),
		[]string{"default/other", "default/web"}},
	{"document end markers", service + "...\n---\n" + other + "...\n",
		[]string{"default/other", "default/web"}},
	{"a document after an end marker alone", service + "...\n" + other,
		[]string{"default/other", "default/web"}},
	{"a YAML directive", "%YAML 1.1\n---\n" + service, []string{"default/web"}},
	{"a byte order mark", "\ufeff" + service, []string{"default/web"}},
	{"no newline at the end", strings.TrimSpace(service), []string{"default/web"}},
	{"dashes inside a value", strings.Replace(service, "  name: web\n",
		"  name: web\n  annotations:\n    note: |\n      ---\n      x\n", 1),
		[]string{"default/web"}},
	{"JSON", serviceJSON, []string{"default/web"}},
	{"JSON indented with tabs",
		"{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Service\",\n\t\"metadata\": {\n" +
			"\t\t\"name\": \"web\"\n\t},\n" +
			"\t\"spec\": {\n\t\t\"clusterIP\": \"10.96.0.10\",\n\t\t\"ports\": [\n\t\t\t{\n" +
			"\t\t\t\t\"port\": 80\n\t\t\t}\n\t\t]\n\t}\n}\n",
		[]string{"default/web"}},
	{"JSON with escapes that YAML does not know", strings.Replace(serviceJSON, `{"name":"web"}`,
		`{"name":"\u0077eb","annotations":{"mood":"\ud83d\ude00","path":"a\/b"}}`, 1),
		[]string{"default/web"}},
	{"JSON of every type", strings.Replace(serviceJSON, `"ports"`,
		`"type":"LoadBalancer","selector":null,"publishNotReadyAddresses":true,`+
			`"allocateLoadBalancerNodePorts":false,"externalIPs":[],"ports"`, 1),
		[]string{"default/web"}},
	{"JSON values one after another", serviceJSON + "\n" + strings.NewReplacer("web", "other",
		"0.10", "0.11").Replace(serviceJSON),
		[]string{"default/other", "default/web"}},
	{"JSON and YAML in one file", serviceJSON + "\n---\n" + other,
		[]string{"default/other", "default/web"}},
	{"YAML in flow style",
		"{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: " +
			"10.96.0.10, ports: [{port: 80}]}}",
		[]string{"default/web"}},
	{"a YAML anchor", strings.Replace(service, "metadata:\n  name: web\n",
		"metadata:\n  name: web\n  labels: &l {app: web}\n", 1) +
		"  selector: *l\n", []string{"default/web"}},
	{"a namespace", strings.Replace(service, "name: web", "name: web\n  namespace: shop", 1),
		[]string{"shop/web"}},
	{"null", "null\n---\n" + service, []string{"default/web"}},
}

func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, tt := range documents {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker, result := load(t, tt.text)
			require.Empty(t, texts(result.Problems))
			var names []string
			for s := range tracker.State().Services() {
				names = append(names, s.Name.String())
			}
			require.Equal(t, tt.services, names)
			require.Equal(t, len(tt.services), result.Objects)
		})
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	indent := func(text string) string {
		return "- " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
	}
	untyped := strings.TrimPrefix(service, "apiVersion: v1\nkind: Service\n")
	for _, tt := range []struct {
		name, text string
		endpoints  int
		skipped    string
	}{
		{"a List", "apiVersion: v1\nkind: List\nitems:\n" + indent(service) + indent(slice), 2, ""},
		{"a List with metadata of its own",
			"apiVersion: v1\nkind: List\nmetadata: {resourceVersion: ''}\nitems:\n" +
				indent(service), 0, ""},
		{"a ServiceList, whose items need no kind", "apiVersion: v1\nkind: ServiceList\nitems:\n" +
			indent(untyped), 0, ""},
		{"a ServiceList, whose items have a kind", "apiVersion: v1\nkind: ServiceList\nitems:\n" +
			indent(service), 0, ""},
		{"an EndpointSliceList",
			service + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n" +
				indent(slice), 2, ""},
		{"a List in a List", "apiVersion: v1\nkind: List\nitems:\n" +
			indent("apiVersion: v1\nkind: List\nitems:\n"+indent(service)), 0, ""},
		{"an empty List", service + "---\napiVersion: v1\nkind: List\nitems: []\n", 0, ""},
		{"a List of nothing", service + "---\napiVersion: v1\nkind: List\nitems:\n", 0, ""},
		{"a List in JSON", `{"apiVersion":"v1","kind":"List","items":[` + serviceJSON + `]}`,
			0, ""},
		{"other kinds among the items", "apiVersion: v1\nkind: List\nitems:\n" + indent(service) +
			"- {apiVersion: v1, kind: Pod}\n- {apiVersion: v1, kind: Pod, spec: {anything: " +
			"goes}}\n", 0, "2 v1 Pod"},
		{"a PodList", service + "---\n{apiVersion: v1, kind: PodList, items: [{}, {}, {}]}\n", 0,
			"3 v1 Pod"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker, result := load(t, tt.text)
			require.Empty(t, texts(result.Problems))
			require.NotNil(t, tracker.State().Service(web))
			require.Len(t, tracker.State().Endpoints(web), tt.endpoints)
			require.Equal(t, tt.skipped, result.SkippedKinds())
		})
	}
}

func TestOtherKindsAreCounted(t *testing.T) {
	t.Parallel()
	_, result := load(t, service+`---
apiVersion: apps/v1
kind: Deployment
spec: {replicas: many, anything: goes}
---
apiVersion: v1
kind: Namespace
---
apiVersion: apps/v1
kind: Deployment
---
apiVersion: serving.knative.dev/v1
kind: Service
spec: {template: {}}
---
apiVersion: example.com/v1
kind: AllowList
items: {anything: goes}
`)
	require.Empty(t, texts(result.Problems))
	require.Equal(t, 1, result.Objects)
	require.Equal(t,
		"2 apps/v1 Deployment, 1 example.com/v1 AllowList, 1 serving.knative.dev/v1 Service, 1 v1 "+
			"Namespace",
		result.SkippedKinds())
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
	tracker := kube.NewTracker(kube.Config{Strict: true})
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
	loader := manifest.NewLoader(kube.NewTracker(kube.Config{}))
	require.ErrorIs(t, loader.ReadFile(filepath.Join(t.TempDir(), "none.yaml")), os.ErrNotExist)
	broken := errors.New("broken pipe")
	require.ErrorIs(t, loader.Read("standard input", iotest.ErrReader(broken)), broken)
	require.Zero(t, loader.Result().Objects)
}
