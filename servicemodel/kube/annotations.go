package kube

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/suggest"
	"github.com/kernlb/kernlb/servicemodel"
)

// annotation is an annotation that has a meaning: its name without the prefix, and the function
// that sets its value in T.
type annotation[T any] struct {
	name string
	set  func(to *T, value string) error
}

// serviceAnnotations are the annotations of a Service. Problems are reported in this order.
var serviceAnnotations = []annotation[servicemodel.Service]{
	{"affinity", func(s *servicemodel.Service, value string) error {
		a := &s.SessionAffinity
		if !a.ClientIP {
			return errors.New("has no effect where spec.sessionAffinity is not ClientIP")
		}
		var read servicemodel.SessionAffinity
		if read.UnmarshalText([]byte("default "+value)) != nil || value == "" {
			return errors.New("must be one or several of ipv4/BITS, ipv6/BITS and service")
		}
		a.Bits4, a.Bits6, a.WholeService = read.Bits4, read.Bits6, read.WholeService
		return nil
	}},
	{"clients", setClients},
	{"connections", func(s *servicemodel.Service, value string) (err error) {
		s.Connections, err = servicemodel.ParseConnectionPolicy(value)
		return err
	}},
	{"forwarding", func(s *servicemodel.Service, value string) (err error) {
		s.Forwarding, err = servicemodel.ParseForwarding(value)
		return err
	}},
	{"masquerade", func(s *servicemodel.Service, value string) error {
		p, err := servicemodel.ParseMasqueradePolicy(value)
		s.Masquerade = servicemodel.MasqueradeAt(p)
		return err
	}},
	{"masquerade-ips", func(s *servicemodel.Service, value string) error {
		for word := range strings.SplitSeq(value, ",") {
			a, err := netip.ParseAddr(strings.TrimSpace(word))
			if err != nil {
				s.MasqueradeIPs = nil
				return errors.New("must be addresses, separated by commas")
			}
			s.MasqueradeIPs = append(s.MasqueradeIPs, a)
		}
		err := together(&servicemodel.Service{MasqueradeIPs: s.MasqueradeIPs})
		if err != nil {
			s.MasqueradeIPs = nil
		}
		return err
	}},
	{"ports", setRanges},
	{"prefer", func(s *servicemodel.Service, value string) error {
		s.Prefer = value
		if value != "node" && value != "zone" {
			s.Prefer = ""
			return errors.New("must be node or zone")
		}
		return nil
	}},
	{"scheduler", func(s *servicemodel.Service, value string) (err error) {
		if s.Scheduler, err = servicemodel.ParseScheduler(value); err == nil {
			err = together(s)
		}
		if err != nil {
			s.Scheduler = servicemodel.SchedulerDefault
		}
		return err
	}},
	{"silent-endpoints", func(s *servicemodel.Service, value string) (err error) {
		if s.SilentEndpoints, err = servicemodel.ParseSilentPolicy(value); err == nil {
			err = together(s)
		}
		if err != nil {
			s.SilentEndpoints = servicemodel.SilentDefault
		}
		return err
	}},
	{"slow-start", func(s *servicemodel.Service, value string) (err error) {
		s.SlowStart, err = time.ParseDuration(value)
		if err != nil || together(&servicemodel.Service{SlowStart: s.SlowStart}) != nil {
			err = errors.New("must be a time from 5s to 24h, in whole seconds")
		} else {
			err = together(s)
		}
		if err != nil {
			s.SlowStart = 0
		}
		return err
	}},
}

// together returns the reason why a service may not combine fields that its annotations have set.
func together(s *servicemodel.Service) error {
	checked := servicemodel.Service{Name: servicemodel.Name{Namespace: "any", Name: "any"},
		Clients: s.Clients, MasqueradeIPs: s.MasqueradeIPs, Prefer: s.Prefer,
		Scheduler: s.Scheduler, SlowStart: s.SlowStart, SilentEndpoints: s.SilentEndpoints,
		Forwarding: s.Forwarding}
	if e, ok := errors.AsType[*servicemodel.FieldError](checked.Validate()); ok {
		return fmt.Errorf("%s %s", e.Field, e.Reason)
	}
	return nil
}

// sliceAnnotations are the annotations of an EndpointSlice.
var sliceAnnotations = []annotation[slice]{
	{"weight", func(s *slice, value string) error {
		w, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return errors.New("must be a number from 0 to 65535")
		}
		for i := range s.endpoints {
			e := &s.endpoints[i]
			e.Weight = uint16(w)
			if w == 0 && (e.Condition == servicemodel.Ready ||
				e.Condition == servicemodel.Serving) {
				e.Condition = servicemodel.Quiesced
			}
		}
		return nil
	}},
}

// annotate sets in v the values of the annotations of its object. A nil v is ignored.
func annotate[T any](v *T, known []annotation[T], values map[string]string, prefix string,
	r *report) {
	if v == nil || prefix == "" {
		return
	}
	var names []string
	for _, a := range known {
		names = append(names, a.name)
		key := prefix + "/" + a.name
		value, ok := values[key]
		if !ok {
			continue
		}
		if err := a.set(v, value); err != nil {
			r.skip("metadata.annotations["+key+"]", value, "%v", err)
		}
	}

	for _, key := range slices.Sorted(maps.Keys(values)) {
		name, ours := strings.CutPrefix(key, prefix+"/")
		if !ours || slices.Contains(names, name) {
			continue
		}
		hint := ""
		if meant, ok := suggest.Nearest(name, slices.Values(names)); ok {
			hint = "; did you mean " + prefix + "/" + meant + "?"
		}
		r.warn("metadata.annotations["+shorten(key, maxShown)+"]", values[key],
			"unknown annotation%s", hint)
	}
}
