package randstate

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Variant is a state in which one field has another value.
type Variant struct {
	Name  string // which field, such as "service.ports[0].nodePort #1"
	State servicemodel.State
}

// Variants returns valid states. The first is the base. In each of the others, one field differs
// from the base: a field of the service, of its first endpoint or of the node. Reflection finds the
// fields, so new fields are included.
func Variants(base servicemodel.State, name servicemodel.Name) []Variant {
	list := []Variant{{"as it is", base}}
	add := func(field string, s servicemodel.State) {
		if s.Validate() == nil {
			list = append(list, Variant{field, s})
		}
	}

	svc := reflect.ValueOf(base.Service(name)).Elem()
	each("service", svc, func(field string, v reflect.Value) {
		changed := v.Interface().(servicemodel.Service)
		add(field, base.WithoutService(name).WithService(&changed).WithEndpoints(changed.Name,
			base.Endpoints(name)))
	})

	eps := base.Endpoints(name)
	each("endpoint", reflect.ValueOf(&eps[0]).Elem(), func(field string, v reflect.Value) {
		changed := slices.Clone(eps)
		changed[0] = v.Interface().(servicemodel.Endpoint)
		add(field, base.WithEndpoints(name, changed))
	})

	node := base.Node()
	each("node", reflect.ValueOf(&node).Elem(), func(field string, v reflect.Value) {
		add(field, base.WithNode(v.Interface().(servicemodel.Node)))
	})
	return list
}

// values are the values for fields of some types. Fields of other types get a few values by their
// kind.
var values = map[reflect.Type][]any{
	reflect.TypeFor[netip.Addr](): {netip.MustParseAddr("192.0.2.77"),
		netip.MustParseAddr("2001:db8::77"), netip.MustParseAddr("10.244.9.7")},
	reflect.TypeFor[netip.Prefix](): {netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("2001:db8:51::/64"), netip.MustParsePrefix("0.0.0.0/0")},
	reflect.TypeFor[time.Duration](): {time.Second, time.Hour},
	reflect.TypeFor[servicemodel.Protocol](): {servicemodel.TCP, servicemodel.UDP,
		servicemodel.SCTP},
	reflect.TypeFor[servicemodel.Scheduler](): {servicemodel.Random, servicemodel.RoundRobin,
		servicemodel.WeightedRR, servicemodel.LeastConn, servicemodel.WeightedLC,
		servicemodel.LocalityLC, servicemodel.LocalityLCR, servicemodel.SourceHash,
		servicemodel.DestHash, servicemodel.ShortestDelay, servicemodel.NeverQueue,
		servicemodel.Maglev, servicemodel.Failover, servicemodel.Overflow,
		servicemodel.Maglev + "+port" + "+fallback"},
	reflect.TypeFor[servicemodel.Condition](): {servicemodel.NotReady, servicemodel.Serving,
		servicemodel.Terminating, servicemodel.Quiesced},
	reflect.TypeFor[servicemodel.TrafficPolicy](): {servicemodel.PolicyLocal,
		servicemodel.PolicyCluster},
	reflect.TypeFor[servicemodel.MasqueradePolicy](): {servicemodel.MasqueradeAlways,
		servicemodel.MasqueradeNotPods, servicemodel.MasqueradeHost, servicemodel.MasqueradeNever},
	reflect.TypeFor[servicemodel.Forwarding](): {servicemodel.ForwardDirect,
		servicemodel.ForwardTunnel},
	reflect.TypeFor[servicemodel.SilentPolicy](): {servicemodel.SilentEject,
		servicemodel.SilentStay},
}

// words are the valid values of text fields that accept only certain words.
var words = map[string][]string{"service.Prefer": {"node", "zone"},
	"node.NoEndpoints": {"reject", "reset", "drop"}, "node.Forbidden": {"reject", "reset", "drop"}}

// each calls f with copies of v. In each copy, one field has another value.
func each(path string, v reflect.Value, f func(field string, v reflect.Value)) {
	to := func(field string, x any) { f(field, reflect.ValueOf(x).Convert(v.Type())) }
	if known, ok := values[v.Type()]; ok {
		for _, x := range known {
			to(path, x)
		}
		return
	}

	switch v.Kind() {
	case reflect.Bool:
		to(path, !v.Bool())
	case reflect.String:
		if v.Type() != reflect.TypeFor[string]() {
			panic("randstate: no values for " + path + " of type " + v.Type().String())
		}
		for _, x := range append(words[path], v.String()+"x") {
			to(path, x)
		}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		for i := range uint64(4) {
			to(path, v.Uint()+i+1)
			to(path, v.Uint()<<1+i)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := path + "." + v.Type().Field(i).Name
			each(field, v.Field(i), func(field string, x reflect.Value) {
				changed := reflect.New(v.Type()).Elem()
				changed.Set(v)
				changed.Field(i).Set(x)
				f(field, changed)
			})
		}
	case reflect.Slice:
		eachOfSlice(path, v, f)
	default:
		panic("randstate: no values for " + path + " of type " + v.Type().String())
	}
}

// eachOfSlice is each for a slice: one element is removed, added or changed.
func eachOfSlice(path string, v reflect.Value, f func(field string, v reflect.Value)) {
	with := func(n int, last reflect.Value) reflect.Value {
		l := reflect.MakeSlice(v.Type(), 0, n+1)
		l = reflect.AppendSlice(l, v.Slice(0, n))
		return reflect.Append(l, last)
	}

	like := reflect.New(v.Type().Elem()).Elem()
	if n := v.Len(); n > 0 {
		f(path+" shorter", v.Slice(0, n-1))
		like.Set(v.Index(n - 1))
		each(path+"[last]", like, func(field string, x reflect.Value) { f(field, with(n-1, x)) })
	}

	each(path+"[new]", like, func(field string, x reflect.Value) { f(field, with(v.Len(), x)) })
}
