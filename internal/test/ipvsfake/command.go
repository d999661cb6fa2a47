package ipvsfake

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/rawnl"
)

// request is a request about a service, and maybe a destination, taken apart.
type request struct {
	ipvsnl.Wire
	key   ipvsnl.ServiceKey
	found *service // nil if there is none with the key
}

// parse takes the attributes of a request apart and finds its service: ip_vs_genl_parse_service.
func (k *Kernel) parse(attrs []byte) (r request, errno syscall.Errno) {
	var err error
	if r.Wire, err = ipvsnl.Parse(attrs); err != nil || !r.Service.Named() {
		return r, syscall.EINVAL
	}
	if !knows(r.Service.Family) {
		return r, syscall.EAFNOSUPPORT
	}
	if r.key, err = r.Service.Key(); err != nil {
		return r, syscall.EINVAL
	}
	r.found = k.services[r.key]
	return r, 0
}

// knows reports whether the kernel has an address family.
func knows(f ipvsnl.Family) bool { return f == ipvsnl.FamilyIPv4 || f == ipvsnl.FamilyIPv6 }

// do carries out a command that is not a dump: ip_vs_genl_set_cmd and ip_vs_genl_get_cmd. A body is
// a reply.
func (k *Kernel) do(cmd ipvsnl.Command, attrs []byte) (body []byte, errno syscall.Errno) {
	switch cmd {
	case ipvsnl.CommandGetConfig:
		return Body(uint8(ipvsnl.CommandSetConfig), func(b *rawnl.Batch) {
			ipvsnl.PutTimeouts(b, k.timeouts)
		}), 0
	case ipvsnl.CommandSetConfig:
		return nil, k.setTimeouts(attrs)
	case ipvsnl.CommandNewService, ipvsnl.CommandSetService, ipvsnl.CommandDelService,
		ipvsnl.CommandGetService, ipvsnl.CommandNewDestination, ipvsnl.CommandSetDestination,
		ipvsnl.CommandDelDestination:
	default:
		return nil, syscall.EOPNOTSUPP // also IPVS_CMD_GET_DEST, which only lists
	}
	r, errno := k.parse(attrs)
	if errno != 0 {
		return nil, errno
	}
	return k.aboutService(cmd, r)
}

// aboutService carries out a command that has to name a service.
func (k *Kernel) aboutService(cmd ipvsnl.Command, r request) (body []byte, errno syscall.Errno) {
	whole := cmd == ipvsnl.CommandNewService || cmd == ipvsnl.CommandSetService
	if whole && !r.Service.Full() {
		return nil, syscall.EINVAL
	}
	if r.found == nil && cmd != ipvsnl.CommandNewService {
		return nil, syscall.ESRCH
	}
	switch cmd {
	case ipvsnl.CommandGetService:
		return ServiceBody(r.found.ObservedService), 0
	case ipvsnl.CommandNewService, ipvsnl.CommandSetService:
		return nil, k.putService(cmd, r)
	case ipvsnl.CommandDelService:
		delete(k.services, r.key)
		k.order = slices.DeleteFunc(k.order, func(s *service) bool { return s == r.found })
		k.logf("%v %v", cmd, r.key)
		return nil, 0
	default:
		return nil, k.aboutDestination(cmd, r)
	}
}

// schedulers are the kernel's schedulers.
var schedulers = strings.Fields("none rr wrr lc wlc lblc lblcr dh sh sed nq fo ovf mh twos")

// putService is ip_vs_add_service and ip_vs_edit_service. Flags that the request does not set stay.
func (k *Kernel) putService(cmd ipvsnl.Command, r request) syscall.Errno {
	w, add := r.Service, cmd == ipvsnl.CommandNewService
	if add && r.found != nil {
		return syscall.EEXIST
	}
	if !slices.Contains(schedulers, w.Scheduler) ||
		w.PersistenceEngine != "" && w.PersistenceEngine != "sip" {
		return syscall.ENOENT
	}
	svc := r.found
	if add {
		svc = &service{}
	}
	w.Flags = svc.Flags&^w.Mask | w.Flags&w.Mask
	o, err := w.Observed()
	if err != nil {
		return syscall.EINVAL
	}
	if o.Netmask >= 128 && o.Family == ipvsnl.FamilyIPv6 { // a prefix of no bits, or of too many
		return syscall.EINVAL
	}
	if svc.Service = o.Service; add {
		k.services[r.key] = svc
		k.order = slices.Insert(k.order, 0, svc)
	}
	k.logf("%v %v: %s", cmd, r.key, o.Scheduler)
	return 0
}

// aboutDestination carries out a command about a destination: the second half of
// ip_vs_genl_set_cmd.
func (k *Kernel) aboutDestination(cmd ipvsnl.Command, r request) syscall.Errno {
	w := r.Destination
	whole := cmd != ipvsnl.CommandDelDestination
	if !w.Named() || whole && !w.Full() {
		return syscall.EINVAL
	}
	family := w.Family
	if family == 0 {
		family = r.key.Family
	}
	if !knows(family) {
		return syscall.EAFNOSUPPORT
	}
	key, err := w.Key(r.key.Family)
	if err != nil {
		return syscall.EINVAL
	}
	if whole {
		o, _ := w.Observed(r.key.Family)
		o.Forward &= 0x7 // IP_VS_CONN_F_FWD_MASK
		if family != r.key.Family && o.Forward != ipvsnl.ForwardTunnel {
			return syscall.EINVAL
		}
		return k.putDestination(cmd, r, o.Destination)
	}
	n := len(r.found.destinations)
	r.found.destinations = slices.DeleteFunc(r.found.destinations,
		func(o *ipvsnl.ObservedDestination) bool { return o.DestinationKey == key })
	if len(r.found.destinations) == n {
		return syscall.ENOENT
	}
	k.logf("%v %v of %v", cmd, key, r.key)
	return 0
}

// putDestination is ip_vs_add_dest and ip_vs_edit_dest.
func (k *Kernel) putDestination(cmd ipvsnl.Command, r request, d ipvsnl.Destination) syscall.Errno {
	const gue = 1 // IP_VS_CONN_F_TUNNEL_TYPE_GUE
	switch {
	case d.Weight > ipvsnl.MaxWeight, d.LowerThreshold > d.UpperThreshold:
		return syscall.ERANGE
	case d.UpperThreshold > ipvsnl.MaxWeight, d.Tunnel.Type == gue && d.Tunnel.Port == 0:
		return syscall.EINVAL
	}
	o := r.found.find(d.DestinationKey)
	switch {
	case cmd == ipvsnl.CommandSetDestination && o == nil:
		return syscall.ENOENT
	case cmd == ipvsnl.CommandSetDestination:
		o.Destination = d
	case o != nil:
		return syscall.EEXIST
	case !assignable(d.Addr):
		return syscall.EINVAL
	default:
		r.found.destinations = slices.Insert(r.found.destinations, 0,
			&ipvsnl.ObservedDestination{Destination: d})
	}
	k.logf("%v %v of %v: weight %d %v", cmd, d.DestinationKey, r.key, d.Weight, d.Forward)
	return 0
}

// assignable reports whether ip_vs_new_dest takes the address. The kernel also refuses the
// broadcast addresses of its links, and takes link-local ones that are its own.
func assignable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast()) &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (k *Kernel) setTimeouts(attrs []byte) syscall.Errno {
	t, err := ipvsnl.ParseTimeouts(attrs)
	if err != nil || t.Validate() != nil {
		return syscall.EINVAL
	}
	old := k.timeouts // a timeout of zero stays
	k.timeouts = ipvsnl.Timeouts{TCP: cmp.Or(t.TCP, old.TCP), TCPFin: cmp.Or(t.TCPFin, old.TCPFin),
		UDP: cmp.Or(t.UDP, old.UDP)}
	return 0
}
