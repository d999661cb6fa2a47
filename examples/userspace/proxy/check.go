package proxy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check reports what the proxy cannot do, and the addresses and ports that it cannot have: it tries
// the sockets that the change would open, and closes them again.
func (b *Backend) Check(c *servicemodel.ChangeSet) error {
	errs := checkTable(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.edit(c)
	for _, w := range e.open {
		claims := e.claims[w]
		if w.protocol == servicemodel.SCTP {
			continue // said above
		}
		if err := b.tryOut(&e, w); err != nil {
			errs = append(errs, refusal(claims[0], w, err))
		}
	}
	for w, claims := range e.claims {
		for _, k := range claims {
			if k.dst != claims[0].dst {
				errs = append(errs, &dataplane.CollisionError{Backend: Name,
					Service: k.service.Name,
					Object: fmt.Sprintf("%v, to which %v is mapped and %v of %v too,", w, k.dst,
						claims[0].dst, claims[0].service)})
			}
		}
	}
	return errors.Join(errs...)
}

// tryOut opens a socket for a moment. One that is open now and is closed by the edit is free, and
// so is one that is inherited.
func (b *Backend) tryOut(e *edit, w where) error {
	if slices.Contains(e.close, w) || b.inherited[w] != nil {
		return nil
	}
	var l io.Closer
	var err error
	if w.protocol == servicemodel.UDP {
		l, err = b.listenUDP(w.addr)
	} else {
		l, err = b.listenTCP(w.addr)
	}
	if err != nil {
		return err
	}
	return l.Close()
}

// checkTable reports what is in the table that no proxy can do.
func checkTable(c *servicemodel.ChangeSet) []error {
	var errs []error
	refuse := func(of servicemodel.PortName, field, value, hint string) {
		errs = append(errs, &dataplane.UnsupportedError{Backend: Name, Service: of.Name,
			Object: "service " + of.String(), Field: field, Value: value, Hint: hint})
	}
	for _, f := range c.Frontends {
		if f.New != nil && f.New.Key.Protocol == servicemodel.SCTP {
			refuse(f.New.Service, "protocol", "SCTP", "the kernel backends forward it")
		}
	}
	for _, p := range c.Pools {
		if p.New == nil {
			continue
		}
		if s, _, _ := p.New.Scheduler.Split(); !slices.Contains(schedulers, s) {
			refuse(p.New.ID.Service, "scheduler", string(p.New.Scheduler), "ipvs has it")
		}
		if f := p.New.Forwarding; f != servicemodel.ForwardNAT {
			refuse(p.New.ID.Service, "forwarding", f.String(), "ipvs has it")
		}
	}
	if c.Rules != nil {
		for field, value := range map[string]string{"bridge": c.Rules.New.LocalPods.Bridge,
			"interfacePrefix": c.Rules.New.LocalPods.InterfacePrefix} {
			if value != "" {
				errs = append(errs, &dataplane.UnsupportedError{Backend: Name, Object: "node",
					Field: "localPods." + field, Value: value, Hint: "give localPods.cidrs"})
			}
		}
	}
	return errs
}

// fields are where the addresses of frontends come from.
var fields = map[servicemodel.Kind]string{
	servicemodel.ClusterIP: "clusterIPs", servicemodel.LoadBalancer: "loadBalancerIPs",
	servicemodel.ExternalIP: "externalIPs", servicemodel.HostIP: "hostIPs",
}

// refusal says why a claim does not get its socket.
func refusal(k claim, w where, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return &dataplane.CollisionError{Backend: Name, Service: k.service.Name,
			Object: fmt.Sprintf("the socket at %v, which is taken,", w)}
	}
	e := &dataplane.UnsupportedError{Backend: Name, Service: k.service.Name,
		Object: "service " + k.service.String(), Field: fields[k.kind],
		Value: k.dst.Addr().String()}
	switch {
	case errors.Is(err, os.ErrPermission) && k.kind == servicemodel.NodePort:
		e.Field, e.Value = "nodePort", fmt.Sprint(k.dst.Port())
	case errors.Is(err, os.ErrPermission):
		e.Field, e.Value = "port", fmt.Sprint(k.dst.Port())
	case k.kind == servicemodel.NodePort:
		e.Field = "nodePort"
	}
	e.Hint = fmt.Sprintf("listen at %v: %s; it can be mapped", w, reason(err))
	return e
}

// reason returns the innermost error's text: the others repeat the address.
func reason(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return strings.TrimSpace(err.Error())
		}
		err = inner
	}
}
