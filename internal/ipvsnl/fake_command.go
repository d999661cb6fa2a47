package ipvsnl

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
)

// fakeRequest is a request about a service, and maybe a destination, taken apart.
type fakeRequest struct {
	service     wireService
	key         ServiceKey
	found       *fakeService // nil if there is none with the key
	destination wireDestination
	dkey        DestinationKey // once the service is known
	hasService  bool
	hasDest     bool
}

// parse takes the attributes of a request apart and finds its service: ip_vs_genl_parse_service.
func (f *Fake) parse(data []byte) (r fakeRequest, errno syscall.Errno) {
	a := attrs{what: "request", rest: data}
	var err error
	for a.next() && err == nil {
		switch a.typ {
		case cmdAttrService:
			r.hasService = true
			r.service, err = decodeService(a.data)
		case cmdAttrDestination:
			r.hasDest = true
			r.destination, err = decodeDestination(a.data)
		}
	}
	if err != nil || a.err != nil {
		return r, syscall.EINVAL
	}
	if !r.hasService {
		return r, 0
	}
	if !r.service.identified() {
		return r, syscall.EINVAL
	}
	if r.service.family != FamilyIPv4 && (r.service.family != FamilyIPv6 || f.noIPv6) {
		return r, syscall.EAFNOSUPPORT
	}
	if r.key, err = r.service.key(); err != nil {
		return r, syscall.EINVAL
	}
	r.found = f.services[r.key]
	return r, 0
}

// do carries out a command that is not a dump: ip_vs_genl_set_cmd and ip_vs_genl_get_cmd. A body is
// a reply.
func (f *Fake) do(cmd Command, data []byte) (body []byte, errno syscall.Errno) {
	switch cmd {
	case CommandGetInfo:
		return appendInfo(genBody(uint8(CommandSetInfo)),
			Info{Version: fakeVersion, ConnTableSize: 1 << fakeConnBits}), 0
	case CommandGetConfig:
		return appendTimeouts(genBody(uint8(CommandSetConfig)), f.timeouts), 0
	case CommandSetConfig:
		return nil, f.setTimeouts(data)
	case CommandFlush:
		clear(f.services)
		f.order = nil
		f.logf("%v", cmd)
		return nil, 0
	case CommandNewService, CommandSetService, CommandDelService, CommandGetService,
		CommandNewDestination, CommandSetDestination, CommandDelDestination, CommandZero:
	default:
		return nil, syscall.EOPNOTSUPP // also IPVS_CMD_GET_DEST, which only lists
	}
	r, errno := f.parse(data)
	if cmd == CommandZero && errno == 0 && !r.hasService {
		for _, s := range f.order {
			s.zero()
		}
		return nil, 0
	}
	if f.fault != nil && r.hasService {
		r.dkey, _ = r.destination.key(r.key.Family)
		if e := f.fault(cmd, r.key, r.dkey); e != 0 {
			return nil, e
		}
	}
	if errno != 0 {
		return nil, errno
	}
	return f.aboutService(cmd, r)
}

// aboutService carries out a command that has to name a service.
func (f *Fake) aboutService(cmd Command, r fakeRequest) (body []byte, errno syscall.Errno) {
	whole := cmd == CommandNewService || cmd == CommandSetService
	if !r.hasService || whole && !r.service.full() {
		return nil, syscall.EINVAL
	}
	if r.found == nil && cmd != CommandNewService {
		return nil, syscall.ESRCH
	}
	switch cmd {
	case CommandGetService:
		return appendObservedService(genBody(uint8(CommandNewService)), r.found.ObservedService), 0
	case CommandNewService:
		return nil, f.newService(r)
	case CommandSetService:
		return nil, f.setService(r)
	case CommandDelService:
		delete(f.services, r.key)
		f.order = slices.DeleteFunc(f.order, func(s *fakeService) bool { return s == r.found })
		f.logf("%v %v", cmd, r.key)
		return nil, 0
	case CommandNewDestination, CommandSetDestination, CommandDelDestination:
		return nil, f.aboutDestination(cmd, r)
	default: // CommandZero
		r.found.zero()
		return nil, 0
	}
}

// settings makes the service of the request, with the flags of old where the request does not set
// them: the checks of ip_vs_add_service and ip_vs_edit_service.
func (f *Fake) settings(r fakeRequest, old ServiceFlags) (s Service, errno syscall.Errno) {
	w := r.service
	if !f.schedulers[w.scheduler] || w.pe != "" && !f.engines[w.pe] {
		return s, syscall.ENOENT
	}
	mask, err := w.netmask.in(w.family)
	if err != nil || !mask.valid(w.family) {
		return s, syscall.EINVAL
	}
	w.flags = uint32(old)&^w.mask | w.flags&w.mask
	o, err := w.observed()
	if err != nil {
		return s, syscall.EINVAL
	}
	return o.Service, 0
}

func (f *Fake) newService(r fakeRequest) syscall.Errno {
	if r.found != nil {
		return syscall.EEXIST
	}
	s, errno := f.settings(r, 0)
	if errno != 0 {
		return errno
	}
	svc := &fakeService{ObservedService: ObservedService{Service: s, Hashed: true}}
	f.services[r.key] = svc
	f.order = slices.Insert(f.order, 0, svc)
	f.logf("%v %v: %s", CommandNewService, r.key, s.settings())
	return 0
}

func (f *Fake) setService(r fakeRequest) syscall.Errno {
	s, errno := f.settings(r, r.found.Flags)
	if errno != 0 {
		return errno
	}
	r.found.Service = s
	f.logf("%v %v: %s", CommandSetService, r.key, s.settings())
	return 0
}

// aboutDestination carries out a command about a destination: the second half of
// ip_vs_genl_set_cmd.
func (f *Fake) aboutDestination(cmd Command, r fakeRequest) syscall.Errno {
	whole := cmd != CommandDelDestination
	if !r.hasDest || !r.destination.identified() || whole && !r.destination.full() {
		return syscall.EINVAL
	}
	family := r.destination.family
	if family == 0 {
		family = r.key.Family
	}
	if family != FamilyIPv4 && (family != FamilyIPv6 || f.noIPv6) {
		return syscall.EAFNOSUPPORT
	}
	d, err := r.destination.key(r.key.Family)
	if err != nil {
		return syscall.EINVAL
	}
	r.dkey = d
	w := &r.destination.dest
	w.Forward &= forwardMask
	if whole && family != r.key.Family && w.Forward != ForwardTunnel {
		return syscall.EINVAL
	}
	if whole {
		return f.putDestination(cmd, r)
	}
	n := len(r.found.destinations)
	r.found.destinations = slices.DeleteFunc(r.found.destinations,
		func(o *ObservedDestination) bool { return o.DestinationKey == d })
	if len(r.found.destinations) == n {
		return syscall.ENOENT
	}
	f.logf("%v %v of %v", cmd, d, r.key)
	return 0
}

// putDestination is ip_vs_add_dest and ip_vs_edit_dest.
func (f *Fake) putDestination(cmd Command, r fakeRequest) syscall.Errno {
	d := r.destination.dest.Destination
	d.DestinationKey = r.dkey
	switch {
	case d.Weight > MaxWeight, d.LowerThreshold > d.UpperThreshold:
		return syscall.ERANGE
	case d.UpperThreshold > MaxWeight, d.Tunnel.Type == TunnelGUE && d.Tunnel.Port == 0:
		return syscall.EINVAL
	}
	o := r.found.find(r.dkey)
	switch {
	case cmd == CommandSetDestination && o == nil:
		return syscall.ENOENT
	case cmd == CommandSetDestination:
		o.Destination = d
	case o != nil:
		return syscall.EEXIST
	case !assignable(d.Addr):
		return syscall.EINVAL
	default:
		r.found.destinations = slices.Insert(r.found.destinations, 0,
			&ObservedDestination{Destination: d})
	}
	f.logf("%v %v of %v: %s", cmd, r.dkey, r.key, d.settings())
	return 0
}

// assignable reports whether ip_vs_new_dest takes the address. The kernel also refuses the
// broadcast addresses of its links, and takes link-local ones that are its own.
func assignable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast()) &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func (f *Fake) setTimeouts(data []byte) syscall.Errno {
	t, err := decodeTimeouts(data)
	if err != nil || t.Validate() != nil {
		return syscall.EINVAL
	}
	if t.TCP != 0 {
		f.timeouts.TCP = t.TCP
	}
	if t.TCPFin != 0 {
		f.timeouts.TCPFin = t.TCPFin
	}
	if t.UDP != 0 {
		f.timeouts.UDP = t.UDP
	}
	f.logf("%v: tcp %v, tcp fin %v, udp %v", CommandSetConfig, f.timeouts.TCP, f.timeouts.TCPFin,
		f.timeouts.UDP)
	return 0
}

// zero sets the statistics to zero.
func (s *fakeService) zero() {
	s.Stats = Stats{}
	for _, d := range s.destinations {
		d.Stats = Stats{}
	}
}

// logf adds a line to the log.
func (f *Fake) logf(format string, args ...any) {
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

// settings returns all of s but its key, for the log.
func (s Service) settings() string {
	text := fmt.Sprintf("%s flags %v timeout %v netmask %s", s.Scheduler, s.Flags, s.Timeout,
		s.Netmask.Text(s.Family))
	if s.PersistenceEngine != "" {
		text += " engine " + s.PersistenceEngine
	}
	return text
}

// settings returns all of d but its key, for the log.
func (d Destination) settings() string {
	text := fmt.Sprintf("weight %d %v", d.Weight, d.Forward)
	if d.Forward == ForwardTunnel {
		text += fmt.Sprintf(" %v port %d %v", d.Tunnel.Type, d.Tunnel.Port, d.Tunnel.Flags)
	}
	if d.UpperThreshold != 0 {
		text += fmt.Sprintf(" thresholds %d %d", d.LowerThreshold, d.UpperThreshold)
	}
	return text
}
