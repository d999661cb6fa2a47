package kube_test

//lint:file-ignore SA1019 Endpoints are deprecated, yet all that some clusters have

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

func TestEmptyTracker(t *testing.T) {
	t.Parallel()
	node := servicemodel.Node{Name: "node-a", MasqueradeAll: true}
	tracker := kube.NewTracker(&kube.Config{Node: node})
	require.Equal(t, node, tracker.State().Node())
	require.Zero(t, tracker.State().Len())
	require.Empty(t, tracker.Problems())

	tracker.DeleteService(web)
	tracker.DeleteEndpointSlice(web)
	tracker.DeleteEndpoints(web)
	tracker.DeleteNode("node-a")
	tracker.DeleteServiceCIDR("kubernetes")
	require.Equal(t, node, tracker.State().Node())
	require.Zero(t, tracker.State().Len())
}

func TestWhatChangesNothingLeadsToTheSameState(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(&kube.Config{Node: servicemodel.Node{Name: "node-a"}})
	set := func(version string) {
		service, slice, node, cidr := webService(), webSlice("web-1", "10.1.0.1"), ourNode(),
			serviceCIDR("kubernetes", "10.96.0.0/16")
		for _, o := range []interface{ SetResourceVersion(string) }{service, slice, node, cidr} {
			o.SetResourceVersion(version)
		}
		requireNoProblems(t, tracker.SetService(service))
		requireNoProblems(t, tracker.SetEndpointSlice(slice))
		requireNoProblems(t, tracker.SetNode(node))
		requireNoProblems(t, tracker.SetServiceCIDR(cidr))
	}

	set("1")
	before := tracker.State()
	require.True(t, before.Same(tracker.State()))
	set("2")
	require.True(t, before.Same(tracker.State()), "new versions that mean the same")

	requireNoProblems(t, tracker.SetEndpointSlice(webSlice("web-2", "10.1.0.1")))
	require.True(t, before.Same(tracker.State()), "an endpoint in a second slice")

	tracker.DeleteService(web)
	requireNoProblems(t, tracker.SetService(webService()))
	require.True(t, before.Same(tracker.State()), "deleted and set again since the last state")

	headless, db := webService(), webSlice("db-1", "10.1.0.2")
	headless.Name = "db"
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = "None", []string{"None"}
	db.Labels[discoveryv1.LabelServiceName] = "db"
	requireNoProblems(t, tracker.SetService(headless))
	requireNoProblems(t, tracker.SetEndpointSlice(db))
	require.True(t, before.Same(tracker.State()), "endpoints of a service that is not proxied")

	name := servicemodel.Name{Namespace: "default", Name: "db"}
	tracker.DeleteService(name)
	require.Len(t, tracker.State().Endpoints(name), 1, "the service is not known")
}

func TestProblemsAreOrdered(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(nil)
	for _, name := range []string{"b", "a"} {
		service := webService()
		service.Name = name
		service.Spec.Ports[0].Port, service.Spec.Ports[0].Protocol = 0, "X"
		tracker.SetService(service)
		slice := webSlice(name, "x")
		tracker.SetEndpointSlice(slice)
	}

	tracker.SetServiceCIDR(serviceCIDR("c", "x"))
	tracker.SetEndpoints(webEndpoints(subset(0)))
	want := []string{
		"error: EndpointSlice default/a: endpoints[0].addresses[0]: x: not an IP address",
		"error: EndpointSlice default/b: endpoints[0].addresses[0]: x: not an IP address",
		"error: Endpoints default/web: subsets[0].ports[0].port: 0: must be between 1 and 65535",
		"error: Service default/a: spec.ports[0].protocol: X: must be TCP, UDP or SCTP",
		"error: Service default/a: spec.ports[0].port: 0: must be between 1 and 65535",
		"error: Service default/b: spec.ports[0].protocol: X: must be TCP, UDP or SCTP",
		"error: Service default/b: spec.ports[0].port: 0: must be between 1 and 65535",
		"error: ServiceCIDR c: spec.cidrs[0]: x: not an IP range such as 10.0.0.0/8",
	}
	require.Equal(t, want, texts(tracker.Problems()))

	tracker.DeleteService(servicemodel.Name{Namespace: "default", Name: "a"})
	tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: "default", Name: "b"})
	tracker.DeleteEndpoints(web)
	require.Equal(t, append(append(want[:1:1], want[5:7]...), want[7]), texts(tracker.Problems()))
}

func TestUnmatched(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(nil)
	service := webService()
	service.Spec.ClusterIPs, service.Spec.IPFamilies = service.Spec.ClusterIPs[:1], nil
	requireNoProblems(t, tracker.SetService(service))
	headless := webService()
	headless.Name = "db"
	headless.Spec.ClusterIP, headless.Spec.ClusterIPs = "None", []string{"None"}
	requireNoProblems(t, tracker.SetService(headless))

	of := func(s *discoveryv1.EndpointSlice, service string) *discoveryv1.EndpointSlice {
		s.Labels[discoveryv1.LabelServiceName] = service
		return s
	}

	udp, six := webSlice("udp", "10.1.0.4"), webSlice("six", "fd00::1")
	udp.Ports[0].Protocol = ptr(corev1.ProtocolUDP)
	six.AddressType = discoveryv1.AddressTypeIPv6
	for _, s := range []*discoveryv1.EndpointSlice{webSlice("web", "10.1.0.1"), udp, six,
		of(webSlice("near", "10.1.0.2"), "wep"), of(webSlice("far", "10.1.0.3"), "other"),
		of(webSlice("headless", "10.1.0.5"), "db")} {
		requireNoProblems(t, tracker.SetEndpointSlice(s))
	}

	legacy := webEndpoints(subset(8080, "10.1.0.1"))
	legacy.Name = "wbe"
	requireNoProblems(t, tracker.SetEndpoints(legacy))

	const label = "metadata.labels[kubernetes.io/service-name]: "
	require.Equal(t, []string{
		"warning: EndpointSlice default/far: " + label + "other: there is no Service default/other",
		"warning: EndpointSlice default/near: " + label + "wep: there is no Service default/wep; " +
			"did you mean web?",
		"warning: EndpointSlice default/six: addressType: IPv6: Service default/web has no IPv6 " +
			"cluster IP",
		"warning: EndpointSlice default/udp: ports: http/udp: Service default/web has no port of " +
			"that name and protocol, it has http/tcp",
		"warning: Endpoints default/wbe: metadata.name: wbe: there is no Service default/wbe; " +
			"did you mean web?",
	}, texts(tracker.Unmatched()))
}

// The names of at most 16 unknown services are compared with all known names.
func TestFewNamesAreGuessed(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(nil)
	requireNoProblems(t, tracker.SetService(webService()))
	for i := range 20 {
		s := webSlice(fmt.Sprint("s", i), "10.1.0.1")
		s.Labels[discoveryv1.LabelServiceName] = "web" + string(rune('a'+i))
		requireNoProblems(t, tracker.SetEndpointSlice(s))
	}

	unmatched := texts(tracker.Unmatched())
	require.Len(t, unmatched, 20)
	require.Equal(t, 16, strings.Count(strings.Join(unmatched, "\n"), "; did you mean web?"))
}

func TestProblemsAreFieldErrors(t *testing.T) {
	t.Parallel()
	problems := kube.NewTracker(nil).SetService(
		patched(webService(), "spec: {ports: [{port: 0}]}"))
	field := new(*servicemodel.FieldError)
	require.ErrorAs(t, problems[0], field)
	require.Equal(t, "spec.ports[0].port", (*field).Field)
}

// The JSON of a service has no slow start, so services.yaml cannot contain it.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(&kube.Config{Annotations: "kernlb.io"})
	requireNoProblems(t, tracker.SetService(patched(webService(),
		"metadata: {annotations: {kernlb.io/slow-start: 1m}}")))
	require.Equal(t, time.Minute, tracker.State().Service(web).SlowStart)
}

// world is a small set of objects that changes at random.
type world struct {
	rng     *rand.Rand
	objects map[string]func(*kube.Tracker) // that set the objects in a tracker, by their names
}

func (w *world) pick(list ...string) string { return list[w.rng.IntN(len(list))] }

// address returns one of few addresses, so that they repeat; occasionally it returns none.
func (w *world) address() string {
	if w.rng.IntN(60) == 0 {
		return w.pick("x", "127.0.0.1", "fd00::1")
	}
	return fmt.Sprintf("10.1.0.%d", 1+w.rng.IntN(6))
}

func (w *world) name() string { return w.pick("a", "b", "c", "d") }

func (w *world) service(name string) *corev1.Service {
	s := webService()
	s.Name = name
	s.Spec.Ports[0].Port = int32(w.rng.IntN(8)) // 0 is invalid
	s.Spec.ExternalIPs = []string{w.address()}
	switch w.rng.IntN(8) {
	case 0:
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"}
	case 1:
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	case 2:
		s.Spec.ClusterIPs, s.Spec.IPFamilies = s.Spec.ClusterIPs[:1], s.Spec.IPFamilies[:1]
	}

	return s
}

func (w *world) slice(name string) *discoveryv1.EndpointSlice {
	var addresses []string
	for range w.rng.IntN(4) {
		addresses = append(addresses, w.address())
	}
	s := webSlice(name, addresses...)
	s.Labels[discoveryv1.LabelServiceName] = w.name()
	s.Ports[0].Port = ptr(int32(8080 + w.rng.IntN(2)))
	for i := range s.Endpoints {
		s.Endpoints[i].Conditions.Ready = ptr(w.rng.IntN(2) == 0)
		s.Endpoints[i].Conditions.Terminating = ptr(w.rng.IntN(2) == 0)
	}

	return s
}

// change makes one random change and passes it to the tracker.
func (w *world) change(t *kube.Tracker) {
	name, slice := w.name(), w.pick("s1", "s2", "s3", "s4", "s5")
	n := servicemodel.Name{Namespace: "default", Name: name}
	set := func(object string, set func(*kube.Tracker)) {
		w.objects[object] = set
		set(t)
	}

	switch w.rng.IntN(12) {
	case 0, 1:
		s := w.service(name)
		set("service "+name, func(t *kube.Tracker) { t.SetService(s) })
	case 2:
		delete(w.objects, "service "+name)
		t.DeleteService(n)
	case 3, 4, 5:
		s := w.slice(slice)
		set(slice, func(t *kube.Tracker) { t.SetEndpointSlice(s) })
	case 6, 7:
		delete(w.objects, slice)
		t.DeleteEndpointSlice(servicemodel.Name{Namespace: "default", Name: slice})
	case 8:
		e := webEndpoints(subset(8080, w.address()), subset(8081, w.address(), w.address()))
		e.Name = name
		set("endpoints "+name, func(t *kube.Tracker) { t.SetEndpoints(e) })
	case 9:
		delete(w.objects, "endpoints "+name)
		t.DeleteEndpoints(n)
	case 10:
		c := serviceCIDR(name, w.pick("10.96.0.0/16", "10.97.0.0/16", "fd00:96::/112", "x"))
		set("CIDR "+name, func(t *kube.Tracker) { t.SetServiceCIDR(c) })
	case 11:
		delete(w.objects, "CIDR "+name)
		t.DeleteServiceCIDR(name)
		node := ourNode()
		node.Labels["topology.kubernetes.io/zone"] = w.name()
		set("node", func(t *kube.Tracker) { t.SetNode(node) })
	}
}

// replay sets all objects in a tracker, in random order.
func (w *world) replay(t *kube.Tracker) {
	sets := slices.Collect(maps.Values(w.objects))
	w.rng.Shuffle(len(sets), func(i, j int) { sets[i], sets[j] = sets[j], sets[i] })
	for _, set := range sets {
		set(t)
	}
}

// newWorld returns a world without objects.
func newWorld(seed, round uint64) *world {
	return &world{rand.New(rand.NewPCG(seed, round)), map[string]func(*kube.Tracker){}}
}

func TestHistoryDoesNotMatter(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	config := kube.Config{Node: servicemodel.Node{Name: "node-a"}, NodeCIDRs: true}
	for round := range 300 {
		w := newWorld(seed, uint64(round))
		tracker := kube.NewTracker(&config)
		for range w.rng.IntN(80) {
			w.change(tracker)
			if w.rng.IntN(3) == 0 {
				require.NoError(t, tracker.State().Validate())
			}
		}

		fresh := kube.NewTracker(&config)
		w.replay(fresh)
		require.Equal(t, contentsOf(fresh.State()), contentsOf(tracker.State()), "round %d", round)
		require.Equal(t, texts(fresh.Problems()), texts(tracker.Problems()), "round %d", round)

		state := tracker.State()
		w.replay(tracker)
		require.True(t, state.Same(tracker.State()),
			"round %d: a resynchronisation changes nothing", round)
	}
}

func TestTrackerIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	tracker := kube.NewTracker(&kube.Config{Node: servicemodel.Node{Name: "node-a"}})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			w := newWorld(1, uint64(i))
			for range 200 {
				w.change(tracker)
				tracker.State()
				tracker.Problems()
			}
		})
	}

	group.Wait()
	require.NoError(t, tracker.State().Validate())
}
