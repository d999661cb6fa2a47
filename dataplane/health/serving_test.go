package health_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/health"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// with adds a service with a cluster IP.
func with(s servicemodel.State, name string, eps []servicemodel.Endpoint,
	edits ...func(*servicemodel.Service)) servicemodel.State {
	n := servicemodel.Name{Namespace: "default", Name: name}
	svc := &servicemodel.Service{Name: n,
		Ports:      []servicemodel.ServicePort{{Name: "a", Protocol: servicemodel.TCP, Port: 80}},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, name[0]})}}
	for _, edit := range edits {
		edit(svc)
	}
	return s.WithService(svc).WithEndpoints(n, eps)
}

// elsewhere returns an endpoint on another node.
func elsewhere(edits ...func(*servicemodel.Endpoint)) []servicemodel.Endpoint {
	e := servicemodel.Endpoint{Addr: netip.MustParseAddr("10.244.0.1"), Node: "n2",
		Ports: []servicemodel.EndpointPort{{Name: "a", Protocol: servicemodel.TCP, Port: 8080}}}
	for _, edit := range edits {
		edit(&e)
	}
	return []servicemodel.Endpoint{e}
}

// Each service counts once, by the outcome for its clients, and each cause is named.
func TestServing(t *testing.T) {
	t.Parallel()
	notReady := func(e *servicemodel.Endpoint) { e.Condition = servicemodel.NotReady }
	nodePort := func(s *servicemodel.Service) { s.Ports[0].NodePort = 30080 }
	local := func(s *servicemodel.Service) {
		s.ExternalTrafficPolicy, s.Ports[0].NodePort = servicemodel.PolicyLocal, 30090
	}
	node := servicemodel.State{}.WithNode(servicemodel.Node{Name: "n1"})
	fine := with(node, "a", elsewhere())

	for name, tt := range map[string]struct {
		state  servicemodel.State
		want   health.Serving
		causes []string
	}{
		"nothing is wanted": {node, health.Serving{}, nil},
		"all serve": {with(fine, "b", elsewhere()),
			health.Serving{Services: 2, Serve: 2}, nil},
		"no endpoints": {with(fine, "b", nil), health.Serving{Services: 2, Serve: 1, Reject: 1},
			[]string{"no-endpoints"}},
		"another port name": {with(fine, "b", elsewhere(func(e *servicemodel.Endpoint) {
			e.Ports[0].Name = "web"
		})), health.Serving{Services: 2, Serve: 1, Reject: 1, Warnings: 1}, []string{"no-port"}},
		"none ready": {with(fine, "b", elsewhere(notReady)),
			health.Serving{Services: 2, Serve: 1, Reject: 1, Warnings: 1}, []string{"not-ready"}},
		"one port of two": {with(fine, "b", elsewhere(), func(s *servicemodel.Service) {
			s.Ports = append(s.Ports, servicemodel.ServicePort{Name: "other",
				Protocol: servicemodel.TCP, Port: 81})
		}), health.Serving{Services: 2, Serve: 1, Reject: 1, Warnings: 1}, []string{"no-port"}},
		"a node port conflict": {
			with(with(fine, "b", elsewhere(), nodePort), "c", elsewhere(), nodePort),
			health.Serving{Services: 3, Serve: 3, Conflicts: 1}, nil},
		"local elsewhere": {with(fine, "b", elsewhere(), local),
			health.Serving{Services: 2, Serve: 1, Local: 1}, nil},
		"no address": {with(fine, "b", elsewhere(), func(s *servicemodel.Service) {
			s.ClusterIPs = nil
		}), health.Serving{Services: 2, Serve: 1, Nowhere: 1, Warnings: 1}, nil},
		"refused": {with(fine, "b", elsewhere(), func(s *servicemodel.Service) {
			s.Ports[0].Port = 0
		}), health.Serving{Services: 2, Serve: 1, Refused: 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := dataplane.New(memory.New(nil), nil)
			require.Nil(t, health.ServingOf(e.Status()), "before the first apply")
			proxy := health.NewProxy(e, nil)
			_, err := e.Apply(t.Context(), tt.state)
			require.NoError(t, err)

			got := health.ServingOf(e.Status())
			var causes []string
			for _, c := range got.Rejected {
				causes = append(causes, c.Kind)
				require.Equal(t, "default/b", c.Service.Name.String())
			}

			require.Equal(t, tt.causes, causes)
			answered := *got
			require.Len(t, got.Lost, tt.want.Conflicts)
			got.Rejected, got.Lost = nil, nil
			require.Equal(t, &tt.want, got)
			healthy := tt.want.Serve+tt.want.Local == tt.want.Services && tt.want.Conflicts == 0
			require.Equal(t, healthy, got.All())
			sum := 0
			for _, n := range got.Outcomes() {
				sum += n
			}
			require.Equal(t, got.Services, sum)

			w := httptest.NewRecorder()
			proxy.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			var answer struct{ Serving health.Serving }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
			require.Equal(t, answered, answer.Serving)
		})
	}
}

// The answers follow each change, including changes of refused services and of states that are not
// applied yet.
func TestServingFollowsTheEngine(t *testing.T) {
	t.Parallel()
	e := dataplane.New(memory.New(nil), &dataplane.Config{KeepRefused: true})
	proxy := health.NewProxy(e, nil)
	serving := func() (s struct{ Serving *health.Serving }) {
		w := httptest.NewRecorder()
		proxy.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
		return s
	}

	require.Nil(t, serving().Serving)
	svc := servicemodel.Service{Name: web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: 80}}}
	bad := svc
	bad.Ports = []servicemodel.ServicePort{{Protocol: servicemodel.TCP}}
	for _, step := range []struct {
		svc  servicemodel.Service
		kept int
	}{{svc, 0}, {bad, 1}, {svc, 0}} {
		_, err := e.Apply(t.Context(), servicemodel.State{}.WithService(&step.svc))
		require.NoError(t, err)
		require.Equal(t, step.kept, serving().Serving.Kept)
	}

	e.Set(with(servicemodel.State{}.WithService(&svc), "a", elsewhere()))
	pending := serving().Serving
	require.Equal(t, []int{2, 1}, []int{pending.Services, pending.Nowhere})
	_, err := e.Cleanup(t.Context())
	require.NoError(t, err)
	require.Nil(t, serving().Serving)
}
