package proxy

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/servicemodel"
)

// forkTime is the time for which Check retries taken addresses. If the program starts another
// program, the child has copies of all sockets until it executes that program, including sockets
// that the last Check or Commit has closed.
const forkTime = 250 * time.Millisecond

// Check reports settings that the proxy does not support, and addresses and ports that it cannot
// use. It opens all sockets that the change would open at the same time, and closes them again. If
// two sockets exclude each other, the open socket stays; if neither is open, the lower address
// wins. If another program has an address, Check takes a quarter of a second.
func (b *Backend) Check(c *servicemodel.ChangeSet) error {
	errs := checkTable(c)
	b.mu.Lock()
	e := b.edit(c.New, b.node, c)
	b.mu.Unlock()
	errs = append(errs, e.refused...)
	until := time.Now().Add(b.forkTime)
	for _, k := range e.open {
		if slices.ContainsFunc(e.close, k.excludes) {
			continue // the commit closes the other socket first
		}
		s, err := b.listen(k)
		for errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(until) {
			time.Sleep(time.Millisecond)
			s, err = b.listen(k)
		}

		if err != nil {
			errs = append(errs, refusal(k, err))
			continue
		}

		defer s.close()
	}

	return errors.Join(errs...)
}

// checkTable reports settings in the table that a proxy cannot support.
func checkTable(c *servicemodel.ChangeSet) []error {
	var errs []error
	refuse := func(of servicemodel.PortName, field, value, hint string) {
		errs = append(errs, &backends.UnsupportedError{Backend: Name, Service: of.Name,
			Object: "service " + of.String(), Field: field, Value: value, Hint: hint})
	}

	for _, f := range c.Frontends {
		if f.New == nil {
			continue
		}
		if f.New.Key.Protocol == servicemodel.SCTP {
			refuse(f.New.Service, backends.FieldProtocol, "SCTP", "the kernel backends forward it")
		}
		if end := f.New.Key.EndPort; end != 0 {
			refuse(f.New.Service, backends.FieldEndPort, strconv.Itoa(int(end)),
				"a proxy needs a socket for each port")
		}

		if a := f.New.MasqueradeIP; a.IsValid() {
			refuse(f.New.Service, backends.FieldMasqueradeIPs, a.String(), "nftables and ipvs can")
		}
	}

	for _, p := range c.Pools {
		if p.New == nil {
			continue
		}
		if c, _ := costOf(p.New.Scheduler); c == nil {
			refuse(p.New.ID.Service, backends.FieldScheduler, string(p.New.Scheduler),
				"ipvs has it")
		}

		if f := p.New.Forwarding; f != servicemodel.ForwardNAT {
			refuse(p.New.ID.Service, backends.FieldForwarding, string(f), "ipvs has it")
		}
	}

	if c.Rules != nil {
		r, drop := c.Rules.New, ""
		if r.NoEndpoints == "drop" {
			drop = r.NoEndpoints
		}
		for _, f := range [][3]string{
			{"localPods.bridge", r.LocalPods.Bridge, "give localPods.cidrs"},
			{"localPods.interfacePrefix", r.LocalPods.InterfacePrefix, "give localPods.cidrs"},
			{backends.FieldNoEndpoints, drop, "nftables can"},
			{backends.FieldForbidden, r.Forbidden, "nftables can"},
		} {
			if f[1] != "" {
				errs = append(errs, &backends.UnsupportedError{Backend: Name, Object: "node",
					Field: f[0], Value: f[1], Hint: f[2]})
			}
		}
	}

	return errs
}

// fields contains the fields from which the addresses of frontends come.
var fields = map[servicemodel.Kind]string{
	servicemodel.ClusterIP: "clusterIPs", servicemodel.LoadBalancer: "loadBalancerIPs",
	servicemodel.ExternalIP: "externalIPs", servicemodel.HostIP: "hostIPs",
	servicemodel.NodePort: "nodePort",
}

// refusal returns the reason why a claim does not get its socket.
func refusal(k claim, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return &backends.CollisionError{Backend: Name, Service: k.service.Name,
			Object: fmt.Sprintf("the socket at %v, which is taken,", k.where)}
	}

	e := &backends.UnsupportedError{Backend: Name, Service: k.service.Name,
		Object: "service " + k.service.String(), Field: fields[k.kind],
		Value: k.dst.Addr().String()}
	if errors.Is(err, os.ErrPermission) && k.kind != servicemodel.NodePort {
		e.Field = "port"
	}
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner // the others repeat the address
	}
	e.Hint = fmt.Sprintf("listen at %v: %v; it can be mapped", k.where, err)
	return e
}
