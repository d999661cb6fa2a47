package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// replace edits a manifest that holds the text.
func replace(text, old, new string) string {
	if !strings.Contains(text, old) {
		panic("a manifest lacks " + old)
	}
	return strings.Replace(text, old, new, 1)
}

// ports is the service with another list of ports.
func ports(list string) string {
	return replace(service, "  - name: http\n    port: 80\n", list)
}

// inDocument is the text of a problem in a line of a document. at is that in the first document;
// inWeb and inSlice are those of its service and its EndpointSlice.
func inDocument(document, line int, text string) string {
	return fmt.Sprintf("m.yaml:%d: document %d: %s", line, document, text)
}

func at(line int, text string) string    { return inDocument(1, line, text) }
func inWeb(line int, text string) string { return at(line, "Service default/web: "+text) }

func inSlice(line int, text string) string {
	return at(line, "EndpointSlice default/web-1: "+text)
}

// problems are manifests with mistakes, and the problems that the loader reports.
var problems = []struct {
	name, text string
	want       []string
}{
	{"port 0", replace(service, "port: 80", "port: 0"),
		[]string{inWeb(9, "spec.ports[0].port: 0: must be between 1 and 65535")}},
	{"a missing port", ports("  - name: http\n"),
		[]string{inWeb(8, "spec.ports[0].port: 0: must be between 1 and 65535")}},
	{"unknown protocol", ports("  - {port: 80, protocol: tcp}\n"),
		[]string{inWeb(8, "spec.ports[0].protocol: tcp: must be TCP, UDP or SCTP")}},
	{"duplicate port names", ports("  - name: a\n    port: 80\n  - name: a\n    port: 81\n"),
		[]string{inWeb(10, "spec.ports[1].name: a: is the name of spec.ports[0] too")}},
	{"bad cluster IP", replace(service, "10.96.0.10", "10.96.0.300"),
		[]string{inWeb(6, "spec.clusterIP: 10.96.0.300: not an IP address")}},
	{"bad external IP", service + "  externalIPs:\n  - 192.0.2.1\n  - nonsense\n",
		[]string{inWeb(12, "spec.externalIPs[1]: nonsense: not an IP address")}},
	{"bad source range", service + "  type: LoadBalancer\n" +
		"  loadBalancerSourceRanges: [10.0.0.0/33]\n",
		[]string{inWeb(11, "spec.loadBalancerSourceRanges[0]: 10.0.0.0/33: not an IP range such "+
			"as 10.0.0.0/8")}},
	{"bad endpoint address", replace(slice, "10.1.0.2", "10.1.0"),
		[]string{inSlice(13, "endpoints[1].addresses[0]: 10.1.0: not an IP address")}},
	{"a label with dots in its name", replace(slice, "kubernetes.io/service-name: web",
		"kubernetes.io/service-name: ''"),
		[]string{inSlice(6, "metadata.labels[kubernetes.io/service-name]: names no service, the "+
			"slice is skipped")}},
	{"a service without a cluster IP", replace(service, "  clusterIP: 10.96.0.10\n", ""),
		[]string{inWeb(6, "spec.clusterIP: no address is given, the service is skipped")}},
	{"no name", replace(service, "  name: web\n", "  namespace: default\n"),
		[]string{at(4, "Service default/: metadata.name: must be given")}},

	{"an unknown field", service + "  clusterIp: x\n",
		[]string{inWeb(10, "spec.clusterIp: unknown field, did you mean clusterIP?")}},
	{"an unknown field at the top", service + "specs: {}\n",
		[]string{inWeb(10, "specs: unknown field")}},
	{"an unknown field deep down", ports("  - port: 80\n    target: 8080\n"),
		[]string{inWeb(9, "spec.ports[0].target: unknown field")}},
	{"text for a number", ports("  - port: http\n"),
		[]string{inWeb(8, "spec.ports[0].port: http: is text, must be a number")}},
	{"a quoted number", ports("  - port: \"80\"\n"),
		[]string{inWeb(8, "spec.ports[0].port: 80: is text, must be a number")}},
	{"a number for text", ports("  - {port: 80, name: 80}\n"),
		[]string{inWeb(8, "spec.ports[0].name: 80: is a number, must be text; write it in "+
			"quotes")}},
	{"a fraction for an integer", ports("  - port: 80.5\n"),
		[]string{inWeb(8, "spec.ports[0].port: 80.5: must be an integer of 32 bits")}},
	{"an integer that is too large", ports("  - port: 99999999999\n"),
		[]string{inWeb(8, "spec.ports[0].port: 99999999999: must be an integer of 32 bits")}},
	{"text for a list", replace(service, "ports:\n  - name: http\n    port: 80\n",
		"ports: http\n"),
		[]string{inWeb(7, "spec.ports: http: is text, must be a list")}},
	{"a list for an object", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: []\n",
		[]string{inWeb(4, "spec: is a list, must be an object")}},
	{"an object for text", replace(service, "clusterIP: 10.96.0.10",
		"clusterIP: {ip: 10.96.0.10}"),
		[]string{inWeb(6, "spec.clusterIP: is an object, must be text")}},
	{"text for true or false", service + "  publishNotReadyAddresses: maybe\n",
		[]string{inWeb(10, "spec.publishNotReadyAddresses: maybe: is text, must be true or "+
			"false")}},
	{"a number in the labels", replace(slice, "    kubernetes",
		"    version: 1.0\n    kubernetes"),
		[]string{inSlice(6, "metadata.labels[version]: 1.0: is a number, must be text; write it "+
			"in quotes")}},
	{"a list for a target port", ports("  - port: 80\n    targetPort: [80]\n"),
		[]string{inWeb(9, "spec.ports[0].targetPort: is a list, must be a single value")}},
	{"a time that is none", replace(service, "  name: web\n",
		"  name: web\n  creationTimestamp: yesterday\n"),
		[]string{inWeb(5, "metadata.creationTimestamp: yesterday: is not a valid Time")}},
	{"all of them at once", replace(ports("  - port: http\n"), "clusterIP:", "clusterip:"),
		[]string{inWeb(6, "spec.clusterip: unknown field, did you mean clusterIP?"),
			inWeb(8, "spec.ports[0].port: http: is text, must be a number"),
		}},
	{"a field given twice", service + "  clusterIP: 10.96.0.11\n",
		[]string{at(10, "field clusterIP is given twice")}},
	{"a field given twice in JSON", replace(serviceJSON, `"kind":"Service"`,
		`"kind":"Service","kind":"Service"`),
		[]string{at(1, "field kind is given twice")}},

	{"no kind", "apiVersion: v1\nmetadata: {name: web}\n",
		[]string{at(1, "kind: must be given, as text")}},
	{"no API version", "kind: Service\nmetadata: {name: web}\n",
		[]string{inWeb(1, "apiVersion: must be given, as text")}},
	{"an old API version", replace(slice, "k8s.io/v1", "k8s.io/v1beta1"),
		[]string{inSlice(1, "apiVersion: discovery.k8s.io/v1beta1: is not supported, must be "+
			"discovery.k8s.io/v1")}},
	{"a kind in small letters", replace(service, "kind: Service", "kind: service"),
		[]string{at(2, "service default/web: kind: service: did you mean Service?")}},
	{"a misspelt kind", replace(service, "kind: Service", "kind: Sevice"),
		[]string{at(2, "Sevice default/web: kind: Sevice: did you mean Service?")}},
	{"a misspelt kind in an old version", replace(replace(slice, "k8s.io/v1", "k8s.io/v1beta1"),
		"EndpointSlice", "EndpointSlices"),
		[]string{at(2, "EndpointSlices default/web-1: kind: EndpointSlices: did you mean "+
			"EndpointSlice?")}},
	{"a misspelt list", "{apiVersion: v1, kind: ServiceLst, items: []}",
		[]string{at(1, "ServiceLst default/(without a name): kind: ServiceLst: did you mean "+
			"ServiceList?")}},
	{"a misspelt kind of others", "{apiVersion: v1, kind: ConfgMap, metadata: {name: a}}",
		[]string{at(1, "ConfgMap default/a: kind: ConfgMap: did you mean ConfigMap?")}},
	{"a kind that is none", "{apiVersion: discovery.k8s.io/v1, kind: Backend}",
		[]string{at(1, "Backend default/(without a name): kind: Backend: discovery.k8s.io/v1 has "+
			"no such kind")}},
	{"another group", replace(service, "apiVersion: v1", "apiVersion: apps/v1"),
		[]string{inWeb(1, "apiVersion: apps/v1: has no kind Service, must be v1")}},
	{"a misspelt group", replace(slice, "discovery", "dicovery"),
		[]string{inSlice(1, "apiVersion: dicovery.k8s.io/v1: has no kind EndpointSlice, must be "+
			"discovery.k8s.io/v1")}},
	{"an empty file", "", []string{noObject}},
	{"a file of white space", "\ufeff \n\n", []string{noObject}},
	{"a file of comments", "# later\n---\n", []string{noObject}},
	{"null in JSON", "null", []string{noObject}},
	{"a list without items", "{apiVersion: v1, kind: List, items: []}", []string{noObject}},
	{"a list of nothing", "{apiVersion: v1, kind: ServiceList, items: null}", []string{noObject}},
	{"what an API server would refuse", replace(service, "  - name: http\n", "  - name: http\n"+
		"    nodePort: 30080\n"), []string{inWeb(9, "spec.ports[0].nodePort: 30080: may only be "+
		"given where spec.type is NodePort or LoadBalancer")}},
	{"items that are no list", "{apiVersion: v1, kind: ServiceList, items: {}}",
		[]string{at(1, "ServiceList: items: is an object, must be a list")}},
	{"an item that is no object", "{apiVersion: v1, kind: List, items: [1]}",
		[]string{at(1, "1: is a number, must be a Kubernetes object")}},
	{"a list of objects without List", "- apiVersion: v1\n",
		[]string{at(1, "is a list, must be a Kubernetes object")}},

	{"an item that is nothing", "{apiVersion: v1, kind: List, items: [null]}",
		[]string{at(1, "is nothing, must be a Kubernetes object")}},

	{"the second document", "# comment\n" + service + "---\n# comment\n" +
		replace(slice, "port: 8080", "port: 0"),
		[]string{inDocument(2, 22, "EndpointSlice default/web-1: ports[0].port: 0: must be "+
			"between 1 and 65535")}},
	{"a document that cannot be parsed leaves the others", "a: b: c\n---\n" +
		replace(service, "80", "0"),
		[]string{at(1, "not YAML: mapping values are not allowed in this context"),
			inDocument(2, 11, "Service default/web: spec.ports[0].port: 0: must be between 1 and "+
				"65535"),
		}},
}

const noObject = "m.yaml:1: the file holds no object"

// With AllowEmpty, a file without objects is accepted, and a set forgets the file's earlier
// objects.
func TestFilesWithoutObjectsAreTakenIfAllowed(t *testing.T) {
	t.Parallel()
	for _, tt := range problems {
		if tt.want[0] != noObject {
			continue
		}
		set := manifest.NewSet(kube.Config{Strict: true})
		put := func(text string) error {
			result, err := set.Put("m.yaml", strings.NewReader(text))
			require.NoError(t, err)
			return result.Err()
		}
		require.NoError(t, put(service))
		require.EqualError(t, put(tt.text), noObject, tt.name)
		require.Equal(t, 1, set.Tracker().State().Len(), tt.name)
		set.AllowEmpty = true
		require.NoError(t, put(tt.text), tt.name)
		require.Zero(t, set.Tracker().State().Len(), tt.name)
	}
}

// Of an object full of faults, a hundred problems are reported, and how many more there are.
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
		require.Equal(t, at(1, "Endpoints default/web: 900 more problems"),
			result.Problems[100].Error())
		require.False(t, result.Problems[100].Warning)
		require.Empty(t, tracker.State().Endpoints(web))
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for _, tt := range problems {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, result := load(t, tt.text)
			var got []string
			for _, p := range result.Problems {
				got = append(got, p.Error())
			}
			require.Equal(t, tt.want, got)
			isWarning := strings.Contains(tt.want[0], "is skipped")
			require.Equal(t, isWarning, result.Err() == nil)
		})
	}
}

func TestUnreadableText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, want string }{
		{"truncated YAML", strings.TrimSuffix(service, "  - name: http\n    port: 80\n") +
			"  - {name: http,\n",
			"m.yaml:8: document 1: not YAML: did not find expected node content"},
		{"truncated JSON", serviceJSON[:60],
			"m.yaml:1: document 1: not JSON: the text ends in the middle of a value"},
		{"broken JSON", "{\"apiVersion\":\n\"v1\",,}",
			"m.yaml:2: document 1: not JSON: invalid character ','"},
		{"text after a YAML value", "{a: b}\n{c: d}\n",
			"m.yaml:1: document 1: there is more text after the document's value"},
		{"a tab", "a:\n\t- b\n",
			"m.yaml:2: document 1: not YAML: found character that cannot start any token"},
		{"a word", "hello\n", "m.yaml:1: document 1: hello: is text, must be a Kubernetes object"},
		{"a NUL byte", "a: b\nc: \x00\n", "m.yaml:2: not text: it contains a NUL byte"},
		{"not UTF-8", "a: b\n\nc: \xff\n", "m.yaml:3: not text: it is not valid UTF-8"},
		{"a merge key", "a: &a {b: c}\nd:\n  <<: *a\n",
			"m.yaml:3: document 1: merge keys (<<) are not supported"},
		{"a tag", "a: !!binary aGVsbG8=\n",
			"m.yaml:1: document 1: the tag !!binary is not supported"},
		{"a tag that does not fit", "a: !!int hello\n",
			"m.yaml:1: document 1: hello is not a number"},
		{"an object as field name", "{a: b}: c\n",
			"m.yaml:1: document 1: a field name must be text"},
		{"a value of an object cut off in JSON", "{\"a\":",
			"m.yaml:1: document 1: not JSON: the text ends in the middle of a value"},
		{"an unknown alias", "a: *b\n",
			"m.yaml:1: document 1: not YAML: unknown anchor 'b' referenced"},
		{"an alias to itself", "a: &a [*a]\n",
			"m.yaml:1: document 1: the alias *a stands for something it is part of"},
		{"a terminal escape", "kind: \"\\e[2J\"\napiVersion: v1\n\"\\e\": 1\n\"\\e\": 2",
			`m.yaml:4: document 1: field "\x1b" is given twice`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tracker, result := load(t, tt.text)
			require.Len(t, result.Problems, 1)
			require.Contains(t, result.Problems[0].Error(), tt.want)
			require.False(t, result.Problems[0].Warning)
			require.Zero(t, tracker.State().Len())
		})
	}
}
