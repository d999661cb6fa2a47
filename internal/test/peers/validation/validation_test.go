package validation

import (
	_ "embed" // of the changes
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	apicore "k8s.io/kubernetes/pkg/apis/core/v1"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	apidiscovery "k8s.io/kubernetes/pkg/apis/discovery/v1"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// objects is the number of random objects that both judge.
const objects = 20000

//go:embed testdata/changes.txt
var changesText string

// changes are the random changes of testdata/changes.txt, by the kind of object.
var changes = func() map[string][]string {
	all, kind := map[string][]string{}, ""
	text := strings.NewReplacer("LONG", strings.Repeat("a", 64), "MANY",
		`[""`+strings.Repeat(`, ""`, 100)+"]").Replace(changesText)
	for _, group := range strings.Split(text, "\n\n")[1:] {
		if name, first, found := strings.Cut(group, "\n"); found && !strings.Contains(name, ": ") {
			kind, group = name, first
		}
		all[kind] = append(all[kind], strings.TrimSpace(group))
	}
	return all
}()

// changed returns a valid object with one or two changes.
func changed[T any](t *testing.T, r *rand.Rand, kind string, valid T) *T {
	t.Helper()
	text, err := json.Marshal(valid)
	require.NoError(t, err)
	var object any
	require.NoError(t, json.Unmarshal(text, &object))
	for range 1 + r.IntN(2) {
		chosen := ""
		for line := range strings.Lines(changes[kind][r.IntN(len(changes[kind]))]) {
			path, values, found := strings.Cut(strings.TrimSpace(line), ": ")
			require.True(t, found, line)
			all := strings.Split(values, " | ")
			value := strings.ReplaceAll(all[r.IntN(len(all))], "$", chosen)
			if path == "$" {
				chosen = value
				continue
			}

			var v any
			require.NoError(t, json.Unmarshal([]byte(value), &v), line)
			object = with(object, strings.Split(path, "."), v)
		}
	}

	text, err = json.Marshal(object)
	require.NoError(t, err)
	out := new(T)
	require.NoError(t, json.Unmarshal(text, out))
	return out
}

// with returns a JSON object with a new value at a path of names and indices.
func with(object any, path []string, v any) any {
	if len(path) == 0 {
		return v
	}
	if i, err := strconv.Atoi(path[0]); err == nil {
		list, _ := object.([]any)
		for len(list) <= i {
			list = append(list, nil)
		}
		list[i] = with(list[i], path[1:], v)
		return list
	}

	fields, _ := object.(map[string]any)
	if fields == nil {
		fields = map[string]any{}
	}
	fields[path[0]] = with(fields[path[0]], path[1:], v)
	return fields
}

var validService = corev1.Service{
	ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
	Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10",
		Ports: []corev1.ServicePort{{Port: 80}}},
}

var validSlice = discoveryv1.EndpointSlice{
	ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
		Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
	AddressType: discoveryv1.AddressTypeIPv4,
	Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080)), Name: new("http")}},
	Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
}

// apiService returns an API server's errors for a Service that is created with its status.
func apiService(t *testing.T, s *corev1.Service) (errs field.ErrorList) {
	s = s.DeepCopy()
	apicore.SetObjectDefaults_Service(s)
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 { // normalizeClusterIPs
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && local && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = 32000 // allocated
	}
	for i := range s.Status.LoadBalancer.Ingress {
		if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
			in.IPMode = new(corev1.LoadBalancerIPModeVIP)
		}
	}

	var out core.Service
	require.NoError(t, apicore.Convert_v1_Service_To_core_Service(s, &out, nil))
	errs = corevalidation.ValidateServiceCreate(&out)
	return append(errs, corevalidation.ValidateLoadBalancerStatus(&out.Status.LoadBalancer, nil,
		field.NewPath("status", "loadBalancer"), &out.Spec)...)
}

// apiSlice returns an API server's errors for an EndpointSlice.
func apiSlice(t *testing.T, s *discoveryv1.EndpointSlice) field.ErrorList {
	s = s.DeepCopy()
	apidiscovery.SetObjectDefaults_EndpointSlice(s)
	var out discovery.EndpointSlice
	require.NoError(t,
		apidiscovery.Convert_v1_EndpointSlice_To_discovery_EndpointSlice(s, &out, nil))
	return discoveryvalidation.ValidateEndpointSliceCreate(&out)
}

// Strict trackers refuse exactly the objects that an API server refuses.
func TestStrictTrackersAreAPIServers(t *testing.T) {
	t.Parallel()
	refused := 0
	judge := func(seed uint64, object any, api field.ErrorList, problems []kube.Problem) {
		var ours []string
		for _, p := range problems {
			if !p.Warning {
				ours = append(ours, p.Error())
			}
		}

		if len(api) > 0 {
			refused++
		}
		if (len(api) > 0) != (len(ours) > 0) {
			require.Fail(t, "judged differently", "seed %d: %+v\nan API server: %v\nhere: %q", seed,
				object, api.ToAggregate(), ours)
		}
	}

	for seed := range uint64(objects) {
		r := rand.New(rand.NewPCG(seed, 0))
		tracker := kube.NewTracker(&kube.Config{Strict: true})
		service, slice := changed(t, r, "service", validService), changed(t, r, "slice", validSlice)
		judge(seed, service, apiService(t, service), tracker.SetService(completed(service)))
		api := apiSlice(t, slice)
		for i := range slice.Ports {
			if p := &slice.Ports[i]; p.Name == nil {
				p.Name = new("")
			}
		}

		judge(seed, slice, api, tracker.SetEndpointSlice(slice))
	}

	require.Greater(t, refused, objects/2, "of two for each seed")
	require.Less(t, refused, objects*7/4)
}

// completed derives the list of cluster IPs from the single cluster IP, as a reader of manifests
// does. It also gives ports without a name the empty name.
func completed(s *corev1.Service) *corev1.Service {
	s = s.DeepCopy()
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	return s
}
