package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// putService puts a file with one service into a set; a service without an address is invalid.
func putService(t *testing.T, s *Set, file, name, ip string) {
	t.Helper()
	r, err := s.Put(file, strings.NewReader("{apiVersion: v1, kind: Service, metadata: {name: "+
		name+"}, spec: {clusterIP: '"+ip+"', ports: [{port: 80}]}}"))
	require.NoError(t, err)
	require.Equal(t, ip == "broken", r.Err() != nil)
}

// addresses returns the cluster IPs of a set's services by name.
func addresses(s *Set) map[string]string {
	m := map[string]string{}
	for svc := range s.Tracker().State().Services() {
		m[svc.Name.Name] = svc.ClusterIPs[0].String()
	}
	return m
}

func TestSetFollowsFiles(t *testing.T) {
	t.Parallel()
	s := NewSet(&kube.Config{Strict: true})
	putService(t, s, "a", "web", "10.96.0.1")
	putService(t, s, "b", "db", "10.96.0.2")
	require.Equal(t, map[string]string{"web": "10.96.0.1", "db": "10.96.0.2"}, addresses(s))
	require.Equal(t, []string{"a", "b"}, s.Files())

	putService(t, s, "a", "web", "broken")
	require.Equal(t, map[string]string{"web": "10.96.0.1", "db": "10.96.0.2"}, addresses(s))
	putService(t, s, "a", "other", "10.96.0.3")
	require.Equal(t, map[string]string{"other": "10.96.0.3", "db": "10.96.0.2"}, addresses(s))
	s.Remove("b")
	require.Equal(t, map[string]string{"other": "10.96.0.3"}, addresses(s))
	s.Remove("b")
	require.Equal(t, []string{"a"}, s.Files())
}

// If two files have an object, the last file wins, in any order of reading.
func TestSetTakesTheLastFile(t *testing.T) {
	t.Parallel()
	s := NewSet(&kube.Config{Strict: true})
	putService(t, s, "b", "web", "10.96.0.2")
	putService(t, s, "a", "web", "10.96.0.1")
	require.Equal(t, map[string]string{"web": "10.96.0.2"}, addresses(s))
	putService(t, s, "c", "web", "10.96.0.3")
	require.Equal(t, map[string]string{"web": "10.96.0.3"}, addresses(s))
	r, err := s.Put("a", strings.NewReader("\n{apiVersion: v1, kind: Service, "+
		"metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}"))
	require.NoError(t, err)
	require.Len(t, r.Warnings(), 2)
	require.EqualError(t, r.Warnings()[1],
		"a:2: document 1: Service default/web: is in c:1, too; that of c counts")
	require.Equal(t, "a:2: document 1: Service default/web: does not count: it is in c:1, too",
		s.Doubles()[0].Error())
	file, line, ok := s.Locate(servicemodel.Name{Namespace: "default", Name: "web"})
	require.True(t, ok)
	require.Equal(t, "c:1", fmt.Sprintf("%s:%d", file, line))
	_, _, ok = s.Locate(servicemodel.Name{Namespace: "default", Name: "db"})
	require.False(t, ok)
	s.Remove("c")
	require.Equal(t, map[string]string{"web": "10.96.0.2"}, addresses(s))
	putService(t, s, "b", "db", "10.96.0.9")
	require.Equal(t, map[string]string{"web": "10.96.0.1", "db": "10.96.0.9"}, addresses(s))
}

// A Node or a ServiceCIDR that is no longer in any file leaves nothing behind.
func TestSetForgetsTheNode(t *testing.T) {
	t.Parallel()
	s := NewSet(&kube.Config{Node: servicemodel.Node{Name: "node-a"}, NodeCIDRs: true})
	before := s.Tracker().State()
	_, err := s.Put("node", strings.NewReader(`---
{apiVersion: v1, kind: Node, metadata: {name: node-a, labels: {topology.kubernetes.io/zone: z}},
  spec: {podCIDRs: [10.1.0.0/24, wrong]},
  status: {addresses: [{type: InternalIP, address: 10.0.0.1}]}}
---
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: a},
  spec: {cidrs: [10.96.0.0/12]}}
`))
	require.NoError(t, err)
	require.NotEqual(t, before.Node(), s.Tracker().State().Node())
	require.NotEmpty(t, s.Tracker().Problems())
	s.Remove("node")
	require.Equal(t, before.Node(), s.Tracker().State().Node())
	require.Empty(t, s.Tracker().Problems())
}

// A slice may match a service of another file, so Unmatched judges after all files were read.
func TestSetTellsWhatIsUnmatched(t *testing.T) {
	t.Parallel()
	s := NewSet(&kube.Config{Strict: true})
	r, err := s.Put("a", strings.NewReader(`# a slice
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.1]}]
`))
	require.NoError(t, err)
	require.Empty(t, r.Problems)
	require.Len(t, s.Unmatched(), 1)
	require.Equal(t, "a:2: document 1: EndpointSlice default/web-1: "+
		"metadata.labels[kubernetes.io/service-name]: web: there is no Service default/web",
		s.Unmatched()[0].Error())
	putService(t, s, "b", "web", "10.96.0.1")
	require.Empty(t, s.Unmatched())
}

// Objects whose long names differ only at the end are different objects, and their places are
// known.
func TestLongNamesAreToldApart(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("x", 63)
	slice := func(suffix string) string {
		return "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, " +
			"metadata: {name: " + name + suffix + ", labels: {kubernetes.io/service-name: " + name +
			"}}}\n"
	}

	s := NewSet(&kube.Config{Strict: true})
	r, err := s.Put("a", strings.NewReader(slice("-a")+slice("-b")))
	require.NoError(t, err)
	require.Empty(t, r.Problems)
	require.Len(t, s.Unmatched(), 2)
	require.Contains(t, s.Unmatched()[1].Error(), "a:4: document 2: EndpointSlice default/"+name+
		"-b: ")
	r, err = s.Put("b", strings.NewReader("\n"+slice("-b")))
	require.NoError(t, err)
	require.Len(t, r.Problems, 1)
	require.EqualError(t, r.Problems[0], "b:3: document 1: EndpointSlice default/"+name+
		"-b: is in a:4, too; that of b counts")
	require.Equal(t, "a:4: document 2: EndpointSlice default/"+name+"-b: does not count: it is in "+
		"b:3, too", s.Doubles()[0].Error())
}
