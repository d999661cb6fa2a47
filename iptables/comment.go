package iptables

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// Comments carry what a rule itself does not say: which service it is for, and what was decided
// about it. They are written to be read by people first ("default/web:http cluster IP"), and by
// Observe second: everything in a comment but the name of the service can be told from the rules
// too, so a comment that lies shows as drift.

// kindWords are what kube-proxy calls the kinds of frontends in its comments; it has no words for
// node ports.
var kindWords = [...]string{
	servicemodel.ClusterIP:    "cluster IP",
	servicemodel.LoadBalancer: "loadbalancer IP",
	servicemodel.ExternalIP:   "external IP",
	servicemodel.NodePort:     "node port",
}

// usualMasquerade is what goes without saying in the comment of a frontend.
func usualMasquerade(k servicemodel.Kind) servicemodel.Origins {
	if k == servicemodel.ClusterIP {
		return servicemodel.FromHost | servicemodel.FromOutside
	}
	return servicemodel.FromAnywhere
}

// frontendComment describes a frontend: "default/web:http cluster IP", and whatever is not usual
// about it as name=value. Where the name is so long that the words do not fit, numbers stand for
// them: "verdict=2/0" for "internal=cluster external=reject", "masquerade=5" for
// "masquerade=pods,outside".
func frontendComment(f *servicemodel.Frontend) string {
	if s := describeFrontend(f, false); len(s) <= maxComment {
		return s
	}
	return describeFrontend(f, true)
}

func describeFrontend(f *servicemodel.Frontend, numbers bool) string {
	s := f.Service.String() + " " + kindWords[f.Kind]
	switch {
	case f.Internal == servicemodel.BalanceCluster && f.External == servicemodel.BalanceCluster:
	case numbers:
		s += " verdict=" + strconv.Itoa(int(f.Internal)) + "/" + strconv.Itoa(int(f.External))
	case f.Internal != f.External:
		s += " internal=" + f.Internal.String() + " external=" + f.External.String()
	default:
		s += " verdict=" + f.Internal.String()
	}
	switch {
	case f.Masquerade == usualMasquerade(f.Kind):
	case numbers:
		s += " masquerade=" + strconv.Itoa(int(f.Masquerade))
	default:
		s += " masquerade=" + f.Masquerade.String()
	}
	if f.Affinity != 0 {
		s += " affinity=" + strconv.Itoa(int(f.Affinity/time.Second))
	}
	return s
}

// parseFrontend is the inverse of frontendComment, but for the sources, which are rules of their
// own.
func parseFrontend(comment string, k servicemodel.FrontendKey) (*servicemodel.Frontend, error) {
	name, rest, _ := strings.Cut(comment, " ")
	service, err := parsePortName(name, k.Protocol)
	if err != nil {
		return nil, err
	}
	f := &servicemodel.Frontend{Key: k, Service: service, Internal: servicemodel.BalanceCluster,
		External: servicemodel.BalanceCluster}
	found := false
	for kind, words := range kindWords {
		if after, ok := strings.CutPrefix(rest, words); ok && (after == "" || after[0] == ' ') {
			f.Kind, rest, found = servicemodel.Kind(kind), after, true
		}
	}
	if !found {
		return nil, fmt.Errorf("comment %q names no kind of address", comment)
	}
	f.Masquerade = usualMasquerade(f.Kind)
	for _, word := range strings.Fields(rest) {
		name, value, _ := strings.Cut(word, "=")
		if !setAttribute(f, name, value) {
			return nil, fmt.Errorf("comment %q: unknown word %q", comment, word)
		}
	}
	return f, nil
}

func setAttribute(f *servicemodel.Frontend, name, value string) (ok bool) {
	switch name {
	case "verdict":
		internal, external, two := strings.Cut(value, "/")
		if f.Internal, ok = named(internal, servicemodel.BalanceLocal); !two || !ok {
			f.External = f.Internal
			return ok
		}
		f.External, ok = named(external, servicemodel.BalanceLocal)
	case "internal":
		f.Internal, ok = named(value, servicemodel.BalanceLocal)
	case "external":
		f.External, ok = named(value, servicemodel.BalanceLocal)
	case "masquerade":
		f.Masquerade, ok = named(value, servicemodel.FromAnywhere)
	case "affinity":
		f.Affinity, ok = seconds(value)
	}
	return ok
}

// named finds the value, from 0 to last, whose name or number is s.
func named[T interface {
	~uint8
	String() string
}](s string, last T) (T, bool) {
	for v := T(0); v <= last; v++ {
		if v.String() == s || strconv.Itoa(int(v)) == s {
			return v, true
		}
	}
	return 0, false
}

func seconds(s string) (time.Duration, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return time.Duration(n) * time.Second, err == nil && n > 0
}

// parsePortName reads "namespace/name:port" or "namespace/name".
func parsePortName(s string, p servicemodel.Protocol) (servicemodel.PortName, error) {
	namespace, name, ok := strings.Cut(s, "/")
	name, port, _ := strings.Cut(name, ":")
	if !ok || name == "" {
		return servicemodel.PortName{}, fmt.Errorf("%q is not the name of a service", s)
	}
	return servicemodel.PortName{Name: servicemodel.Name{Namespace: namespace, Name: name},
		Port: port, Protocol: p}, nil
}

// slotComment describes an endpoint of a pool: its weight if it has one, and at the last endpoint,
// which takes what is left, whose pool this is.
func slotComment(p *servicemodel.Pool, slot int) string {
	var words []string
	if slot == 0 {
		words = append(words, p.ID.Service.String())
		if p.Scheduler != servicemodel.SchedulerDefault {
			words = append(words, "scheduler="+string(p.Scheduler))
		}
	}
	if w := p.Slots[slot].Weight; w != 1 {
		words = append(words, "weight="+strconv.Itoa(int(w)))
	}
	return strings.Join(words, " ")
}

// parseSlot is the inverse of slotComment.
func parseSlot(comment string) (scheduler servicemodel.Scheduler, weight uint16, err error) {
	weight = 1
	for _, word := range strings.Fields(comment) {
		name, value, ok := strings.Cut(word, "=")
		switch {
		case ok && name == "scheduler":
			scheduler = servicemodel.Scheduler(value)
		case ok && name == "weight":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil || n == 0 {
				return "", 0, fmt.Errorf("comment %q: weight %q", comment, value)
			}
			weight = uint16(n)
		}
	}
	return scheduler, weight, nil
}
