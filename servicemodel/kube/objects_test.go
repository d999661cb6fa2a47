package kube_test

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"cmp"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// objectCase is an object and its translation by a tracker. The file of a case describes the format
// of its objects and translations.
type objectCase[W any] struct {
	Name     string
	Config   kube.Config
	Given    json.RawMessage
	Second   json.RawMessage // of a second EndpointSlice; empty means none
	Want     W
	Problems []string
}

// runCases runs the cases of a file.
func runCases[W any](t *testing.T, file string, run func(*testing.T, *objectCase[W])) {
	t.Helper()
	t.Parallel()
	text, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	var cases []objectCase[W]
	require.NoError(t, yaml.UnmarshalStrict(text, &cases))
	for i := range cases {
		t.Run(cases[i].Name, func(t *testing.T) {
			t.Parallel()
			run(t, &cases[i])
		})
	}
}

// requireProblems compares the problems of an object with the wanted ones, and reports whether the
// object is valid.
func (c *objectCase[W]) requireProblems(t *testing.T, object string, got []kube.Problem) bool {
	t.Helper()
	valid := true
	require.Len(t, got, len(c.Problems), "%q", texts(got))
	for i, text := range texts(got) {
		text = strings.Replace(text, object+": ", "", 1)
		if begin, ok := strings.CutSuffix(c.Problems[i], "…"); ok {
			require.True(t, strings.HasPrefix(text, begin), "%s\nis not\n%s", text, c.Problems[i])
		} else {
			require.Equal(t, c.Problems[i], text)
		}

		valid = valid && got[i].Warning
	}

	return valid
}

// model is a service without its own decoder, which would replace the service instead of changing
// it.
type model servicemodel.Service

func TestServices(t *testing.T) {
	runCases(t, "services.yaml", func(t *testing.T, c *objectCase[json.RawMessage]) {
		tracker := kube.NewTracker(&c.Config)
		service := patched(webService(), string(c.Given))
		name := servicemodel.Name{Namespace: service.Namespace, Name: service.Name}
		before := webService()
		before.Namespace, before.Name = name.Namespace, name.Name
		tracker.SetService(before)
		problems := tracker.SetService(service)
		require.Equal(t, texts(problems), texts(tracker.Problems()))
		valid := c.requireProblems(t, "Service default/web", problems)
		if got := tracker.State().Service(name); !valid || string(c.Want) == `"none"` {
			require.Nil(t, got, "neither this version nor the one before")
		} else {
			want := model(*webModel())
			require.Equal(t, (*servicemodel.Service)(patched(&want, string(c.Want))), got)
		}

		require.NoError(t, tracker.State().Validate())
		if c.Config.Strict {
			for _, p := range kube.NewTracker(nil).SetService(service) {
				require.True(t, p.Warning, "only strict trackers refuse: %v", p)
			}
		}
	})
}

// endpointChanges are the endpoints that result from an object, as changes to webEndpoint. Nil
// means a single unchanged endpoint.
type endpointChanges []json.RawMessage

func (l endpointChanges) endpoints() (all []servicemodel.Endpoint) {
	if l == nil {
		l = endpointChanges{nil}
	}
	for _, change := range l {
		e := webEndpoint("10.1.0.1")
		all = append(all, *patched(&e, string(change)))
	}

	return all
}

func TestEndpointSlices(t *testing.T) {
	runCases(t, "endpointslices.yaml", func(t *testing.T, c *objectCase[endpointChanges]) {
		first := patched(webSlice("web-1", "10.1.0.1"), string(c.Given))
		second := patched(webSlice("web-2", "10.1.0.1"), string(c.Second))
		tracker, opposite := kube.NewTracker(&c.Config), kube.NewTracker(&c.Config)
		requireNoProblems(t, tracker.SetService(webService()))
		requireNoProblems(t, opposite.SetService(webService()))
		before := webSlice(first.Name, "10.1.0.3")
		before.Namespace = first.Namespace
		tracker.SetEndpointSlice(before)
		problems := tracker.SetEndpointSlice(first)
		if c.Second != nil {
			requireNoProblems(t, opposite.SetEndpointSlice(second))
			requireNoProblems(t, tracker.SetEndpointSlice(second))
		}

		require.Equal(t, texts(problems), texts(opposite.SetEndpointSlice(first)))
		want := c.Want.endpoints()
		if !c.requireProblems(t, "EndpointSlice default/web-1", problems) {
			require.Empty(t, tracker.State().Endpoints(web), "nor the version before")
			requireNoProblems(t, tracker.SetEndpointSlice(second))
			requireNoProblems(t, opposite.SetEndpointSlice(second))
			want = endpointChanges(nil).endpoints() // the other slice is not affected
		}

		require.Equal(t, want, tracker.State().Endpoints(web))
		require.Equal(t, want, opposite.State().Endpoints(web))
		require.NoError(t, tracker.State().Validate())
	})
}

func webEndpoints(subsets ...corev1.EndpointSubset) *corev1.Endpoints {
	return &corev1.Endpoints{ObjectMeta: webService().ObjectMeta, Subsets: subsets}
}

func subset(port int32, addresses ...string) corev1.EndpointSubset {
	s := corev1.EndpointSubset{
		Ports: []corev1.EndpointPort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: port}}}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, corev1.EndpointAddress{IP: a})
	}
	return s
}

func TestEndpoints(t *testing.T) {
	runCases(t, "endpoints.yaml", func(t *testing.T, c *objectCase[endpointChanges]) {
		tracker := kube.NewTracker(&c.Config)
		requireNoProblems(t, tracker.SetService(webService()))
		requireNoProblems(t, tracker.SetEndpoints(webEndpoints(subset(8080, "10.1.0.9"))))
		problems := tracker.SetEndpoints(patched(webEndpoints(subset(8080, "10.1.0.1")),
			string(c.Given)))
		want := c.Want.endpoints()
		if !c.requireProblems(t, "Endpoints default/web", problems) {
			want = nil
		}
		require.Equal(t, want, tracker.State().Endpoints(web))
		require.NoError(t, tracker.State().Validate())
		tracker.DeleteEndpoints(web)
		require.Empty(t, tracker.State().Endpoints(web))
	})
}

func TestSlicesWinOverEndpoints(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(nil)
	has := func(want ...servicemodel.Endpoint) {
		t.Helper()
		require.Equal(t, want, tracker.State().Endpoints(web))
	}

	requireNoProblems(t, tracker.SetService(webService()))
	requireNoProblems(t, tracker.SetEndpoints(webEndpoints(subset(8080, "10.1.0.1"))))
	has(webEndpoint("10.1.0.1"))
	requireNoProblems(t, tracker.SetEndpointSlice(webSlice("web-1", "10.1.0.2")))
	has(webEndpoint("10.1.0.2"))
	requireNoProblems(t, tracker.SetEndpointSlice(webSlice("web-1")))
	require.Empty(t, tracker.State().Endpoints(web), "an empty slice is a slice")
	tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: "default", Name: "web-1"})
	has(webEndpoint("10.1.0.1"))
}

// ourNode is the Node of the program.
func ourNode() *corev1.Node {
	return patched(&corev1.Node{}, `
metadata: {name: node-a, labels: {topology.kubernetes.io/zone: zone-1}}
spec: {podCIDR: 10.1.0.0/24, podCIDRs: [10.1.0.0/24, 'fd00:1::/64']}
status: {addresses: [{type: Hostname, address: node-a}, {type: ExternalIP, address: 192.0.2.1},
  {type: InternalIP, address: 172.16.0.1}, {type: InternalIP, address: 'fd00:16::1'},
  {type: ExternalIP, address: '2001:db8::1'}]}`)
}

func TestNodes(t *testing.T) {
	described := servicemodel.Node{Name: "node-a", Zone: "zone-1",
		Addresses: must.Addrs("172.16.0.1", "fd00:16::1", "192.0.2.1", "2001:db8::1")}
	runCases(t, "nodes.yaml", func(t *testing.T, c *objectCase[*servicemodel.Node]) {
		tracker := kube.NewTracker(&c.Config)
		c.requireProblems(t, "Node node-a", tracker.SetNode(patched(ourNode(), string(c.Given))))
		want := *cmp.Or(c.Want, &described)
		require.Equal(t, want, tracker.State().Node())
		require.NoError(t, tracker.State().Validate())
		tracker.DeleteNode("node-a")
		require.Equal(t, want, tracker.State().Node(), "the deletion of a node is ignored")
	})
}

func serviceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

func TestServiceCIDR(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(
		&kube.Config{Node: servicemodel.Node{ServiceCIDRs: must.Prefixes("10.98.0.0/16")}})
	require.Equal(t, must.Prefixes("10.98.0.0/16"), tracker.State().Node().ServiceCIDRs,
		"those the program names")

	requireNoProblems(t, tracker.SetServiceCIDR(serviceCIDR("kubernetes", "10.96.0.0/16",
		"fd00:96::/112")))
	requireNoProblems(t,
		tracker.SetServiceCIDR(serviceCIDR("more", "010.096.0.1/16", "10.97.0.0/16")))
	require.Equal(t, must.Prefixes("10.96.0.0/16", "10.97.0.0/16", "10.98.0.0/16", "fd00:96::/112"),
		tracker.State().Node().ServiceCIDRs)

	tracker.DeleteServiceCIDR("kubernetes")
	require.Equal(t, must.Prefixes("10.96.0.0/16", "10.97.0.0/16", "10.98.0.0/16"),
		tracker.State().Node().ServiceCIDRs,
		"another object names it too")

	require.Equal(t, []string{
		"error: ServiceCIDR more: spec.cidrs[1]: 10.97.0.0: not an IP range such as 10.0.0.0/8",
	}, texts(tracker.SetServiceCIDR(serviceCIDR("more", "10.96.0.0/16", "10.97.0.0"))))
	require.Equal(t, must.Prefixes("10.98.0.0/16"), tracker.State().Node().ServiceCIDRs)

	tracker.DeleteServiceCIDR("more")
	require.Empty(t, tracker.Problems())
}
