package randstate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// Every field of a state has several values, so a new field must get its values here.
func TestEveryFieldVaries(t *testing.T) {
	t.Parallel()
	c := Config{Services: 4, EndpointPorts: []uint16{8080, 8081}, Weights: true, Every: true,
		Ranges: true, Shifted: true, Schedulers: []servicemodel.Scheduler{"", "wrr"}}
	for i := range 4 {
		c.Places = append(c.Places, Place{IPv4: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}),
			IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:10:244::%x", i)),
			Node: fmt.Sprint("node-", i), Zone: fmt.Sprint("z", i%2)})
	}

	seen := map[string]map[string]bool{}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		text := fmt.Sprint(v.Interface())
		_, isText := v.Interface().(fmt.Stringer)
		name := v.Type() == reflect.TypeFor[servicemodel.Name]()
		switch {
		case v.Kind() == reflect.Slice:
			text = fmt.Sprint(v.Len())
			for i := range v.Len() {
				walk(path+"[]", v.Index(i))
			}
		case v.Kind() == reflect.Struct && (!isText || name):
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
			return
		}

		if seen[path] == nil {
			seen[path] = map[string]bool{}
		}
		seen[path][text] = true
	}

	g := New(c, rand.New(rand.NewPCG(1, 1)))
	s := g.State()
	for range 3000 {
		s = g.Change(s)
		walk("node", reflect.ValueOf(s.Node()))
		for svc := range s.Services() {
			require.NoError(t, svc.Validate())
			walk("service", reflect.ValueOf(*svc))
			for _, e := range s.Endpoints(svc.Name) {
				walk("endpoint", reflect.ValueOf(e))
			}
		}
	}

	require.Greater(t, len(seen), 50)
	for path, values := range seen {
		require.Greater(t, len(values), 1, path)
	}
}
