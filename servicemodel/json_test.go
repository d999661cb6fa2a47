package servicemodel_test

import (
	"encoding"
	"encoding/json"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/internal/test/golden"
	sm "github.com/kernlb/kernlb/servicemodel"
)

// requireReadBack marshals a value, reads it into a new value and returns the new value.
func requireReadBack[T any](t *testing.T, v T) T {
	t.Helper()
	text := ok(json.Marshal(v))(t)
	var back T
	require.NoError(t, json.Unmarshal(text, &back), "%s", text)
	again := ok(json.Marshal(back))(t)
	require.Equal(t, string(text), string(again))
	return back
}

func TestAnEndpointAloneRefusesUnknownFields(t *testing.T) {
	t.Parallel()
	var e sm.Endpoint
	require.NoError(t, json.Unmarshal([]byte(`{"addr": "10.0.0.1", "condition": "ready"}`), &e))
	require.Equal(t, sm.Endpoint{Addr: ip("10.0.0.1")}, e)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"addr": "10.0.0.1", "redy": true}`), &e),
		"endpoint: redy: unknown field")
}

// Each exported type that is part of a state, a table or a change set itself refuses unknown
// fields, and its zero value can be written.
func TestEachTypeHasStrictJSON(t *testing.T) {
	t.Parallel()
	seen := map[reflect.Type]bool{}
	var walk func(v reflect.Type)
	walk = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			v = v.Elem()
		}
		asText := reflect.PointerTo(v).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
		if seen[v] || asText && v.Kind() != reflect.Struct ||
			!strings.HasSuffix(v.PkgPath(), "servicemodel") {
			return
		}

		seen[v] = true
		into := reflect.New(v).Interface()
		text, err := json.Marshal(into)
		require.NoError(t, err, "the zero %v", v)
		value, err := json.Marshal(reflect.Zero(v).Interface())
		require.NoError(t, err, "the zero %v", v)
		require.Equal(t, string(text), string(value), "%v and its pointer", v)
		if asText || v.Kind() != reflect.Struct {
			return
		}
		require.ErrorContains(t, json.Unmarshal([]byte(`{"noSuchField": 1}`), into),
			"noSuchField: unknown field", "%v", v)
		for i := range v.NumField() {
			if f := v.Field(i); f.IsExported() {
				walk(f.Type)
			}
		}
	}

	for _, v := range []any{sm.State{}, sm.Node{}, sm.Service{}, sm.Endpoint{}, sm.Table{},
		sm.Rules{}, sm.Frontend{}, sm.Pool{}, sm.HealthCheck{}, sm.ChangeSet{}} {
		walk(reflect.TypeOf(v))
	}

	require.Greater(t, len(seen), 20)
}

func TestJSONIsReadBack(t *testing.T) {
	t.Parallel()
	r := newSource(t)
	for range 50 {
		s := r.state()
		back := requireReadBack(t, s)
		table, same := mustResolve(t, nil, s), mustResolve(t, nil, back)
		require.True(t, table.Equal(same))
		require.True(t, table.Equal(requireReadBack(t, table)))
		for n := range s.Services() {
			require.Equal(t, s.Endpoints(n.Name), back.Endpoints(n.Name))
		}

		next := mustResolve(t, table, r.edit(s))
		c := sm.Diff(table, next)
		on := ok(requireReadBack(t, c).On(requireReadBack(t, table)))(t)
		require.True(t, on.New.Equal(next))
		require.Equal(t, c.Counts(), on.Counts())

		for f := range table.Frontends() {
			p := sm.Packet{Src: netip.MustParseAddrPort("192.0.2.1:40000"),
				Dst: netip.AddrPortFrom(f.Key.Addr, f.Key.Port), Protocol: f.Key.Protocol,
				InInterface: "eth0"}
			require.Equal(t, p, requireReadBack(t, p))
			d := table.Decide(p, nil)
			require.Equal(t, d, requireReadBack(t, d))
		}
	}
}

func TestAChangeSetIsAppliedOnlyWhereItBelongs(t *testing.T) {
	t.Parallel()
	old := tableOf(t, thisNode, webService(), endpoint("10.64.0.1"))
	here := sm.Diff(old, tableOf(t, thisNode, webService(), endpoint("10.64.0.1"),
		endpoint("10.64.0.2")))
	c := requireReadBack(t, here)
	for _, c := range []*sm.ChangeSet{here, c} {
		on, err := c.On(old)
		require.NoError(t, err)
		require.Equal(t, here.String(), on.String())
		_, err = c.On(nil)
		require.ErrorIs(t, err, sm.ErrOtherTable)
		_, err = c.On(tableOf(t, thisNode, webService(), endpoint("10.64.0.9")))
		require.ErrorIs(t, err, sm.ErrOtherTable)
	}

	c = requireReadBack(t, here) // no table shares its objects
	c.Pools[0].New.Slots[1].Endpoint = netip.MustParseAddrPort("192.0.2.66:1")
	_, err := c.On(old)
	require.ErrorContains(t, err, "the change set was changed")
	require.NotErrorIs(t, err, sm.ErrOtherTable)
}

func TestWrongJSONIsAnError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		into       any
		text, want string
	}{
		{&sm.State{}, `{"service": []}`, "state: service: unknown field"},
		{&sm.State{}, `{"services": [null]}`, "services[0]: is null"},
		{&sm.State{}, `{"services": [{"name": "web"}]}`, "must be NAMESPACE/NAME"},
		{&sm.State{}, `{"services": [{"name": "a/b", "x":1}]}`,
			"state: services[0].x: unknown field"},
		{&sm.State{}, `{"services": [{"ports": [{"port": 70000, "protocol": "icmp"}, {"x": 1}],
			"externalIPs": ["::1", "203.0.113.x"], "slowStart": 3, "prefer": []}]}`,
			`state: services[0].externalIPs[1]: ParseAddr("203.0.113.x"): unexpected character ` +
				`(at "x")
state: services[0].ports[0].port: number 70000: must be a number from 0 to 65535
state: services[0].ports[0].protocol: "icmp": must be tcp, udp or sctp
state: services[0].ports[1].x: unknown field
state: services[0].prefer: array: must be a text
state: services[0].slowStart: number: must be a text`},
		{&sm.State{}, `{"services": [{"name": "a/b"}, {"name": "a/b"}]}`,
			"services[1]: is null or occurs twice"},
		{&sm.State{}, `{"endpoints": {"a/b": [{"addr": "10.0.0.1"}], "a/b": []}}`,
			"endpoints[a/b]: occurs twice"},
		{&sm.State{}, `{"endpoints": {"b": [], "a\n/b": {}}}`,
			`state: endpoints["a\n/b"]: object: must be a list
state: endpoints[b]: "b": must be NAMESPACE/NAME`},
		{&sm.State{}, `[]`, "state: array: must be an object"},
		{&sm.State{}, `{"endpoints": {"a/b": [{"weight": "1"}], "a/b": []}}`,
			"state: endpoint: weight: string: must be a number from 0 to 65535"},
		{&sm.State{}, `{} {}`, "after top-level value"},
		{&sm.Table{}, `{"pools": [null]}`, "a frontend or pool is nil"},
		{&sm.Table{}, `{"frontends": [{"afinity": "1s"}]}`,
			"table: frontends[0].afinity: unknown field"},
		{&sm.ChangeSet{}, `{"frontends": [{}]}`, "frontends[0]: old and new are not of one"},
		{&sm.ChangeSet{}, `{"pools": [{}]}`, "pools[0]: old and new are not of one"},
		{&sm.ChangeSet{}, `{"healthChecks": [{}]}`, "healthChecks[0]: old and new are not of one"},
	} {
		require.ErrorContains(t, json.Unmarshal([]byte(test.text), test.into), test.want,
			test.text)
	}
}

// TestJSONIsTheRecordedOne keeps the names of fields, because programs and people rely on them.
func TestJSONIsTheRecordedOne(t *testing.T) {
	t.Parallel()
	state := stateOf(thisNode, webService(externalLocal, func(s *sm.Service) {
		s.SessionAffinity.ClientIP = true
		s.HealthCheckNodePort = 32000
	}), endpoint("10.64.0.1", here), endpoint("10.64.0.2", notReady))
	table := mustResolve(t, nil, state)
	values := map[string]any{
		"state": state, "table": table,
		"changes": sm.Diff(table, tableOf(t, thisNode, webService(), endpoint("10.64.0.3"))),
		"decision": table.Decide(sm.Packet{Src: netip.MustParseAddrPort("10.64.0.9:40000"),
			Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: sm.TCP}, nil),
	}
	for name, v := range values {
		text := ok(json.MarshalIndent(v, "", "  "))(t)
		golden.File(t, "testdata/"+name+".json", string(text)+"\n")
	}
}

func FuzzJSON(f *testing.F) {
	for _, name := range []string{"state", "table", "changes"} {
		text := ok(os.ReadFile("testdata/" + name + ".json"))(f)
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		var s sm.State
		if json.Unmarshal(text, &s) == nil && s.Validate() == nil {
			requireReadBack(t, s)
		}
		var table sm.Table
		_ = json.Unmarshal(text, &table)
		var c sm.ChangeSet
		if json.Unmarshal(text, &c) == nil {
			_, _ = c.On(&table)
		}
	})
}
