package ipvs

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
)

var _ dataplane.Plan = (*plan)(nil)

// String is the plan in the order in which it is sent. Commands of IPVS and timeouts are in the
// language of ipvsadm. Rules, routes, the device and its addresses are in the language of ip,
// sysctls in the language of sysctl, and the companion's transactions in the language of nft.
// ipvsadm cannot express the bits that identify our virtual servers. A restored value is left as it
// is if another program relies on it.
func (p *plan) String() string {
	t := &text{}
	t.stage(p, stageRestrict)
	t.prepare(&p.network)
	t.makeDevice(&p.device)
	t.ops(p.up)
	t.stage(p, stageOpen)
	t.release(&p.device)
	t.bind(&p.device)
	t.ops(p.down)
	t.tunables(p.network.restore)
	t.stage(p, stageEnd)
	return t.b.String()
}

func (t *text) stage(p *plan, s int) {
	for i, f := range nft.Families {
		p.stages[s][i].write(nft.NewText(&t.b, f, p.name), f)
	}
}

type text struct{ b strings.Builder }

func (t *text) line(format string, args ...any) {
	fmt.Fprintf(&t.b, format, args...)
	t.b.WriteByte('\n')
}

func (t *text) ops(l []op) {
	for _, o := range l {
		t.line("%s", o)
	}
}

// Options of ipvsadm(8).
var (
	ipvsadmCommands = map[ipvsnl.Command]string{
		ipvsnl.CommandNewService: "-A", ipvsnl.CommandSetService: "-E",
		ipvsnl.CommandDelService:     "-D",
		ipvsnl.CommandNewDestination: "-a", ipvsnl.CommandSetDestination: "-e",
		ipvsnl.CommandDelDestination: "-d",
	}
	ipvsadmProtocols = map[ipvsnl.Protocol]string{ipvsnl.TCP: "-t", ipvsnl.UDP: "-u",
		ipvsnl.SCTP: "--sctp-service"}
	ipvsadmMethods = map[ipvsnl.ForwardingMethod]string{
		ipvsnl.ForwardMasquerade: "-m", ipvsnl.ForwardDirectRoute: "-g", ipvsnl.ForwardTunnel: "-i",
	}
)

// String is the command in the form of ipvsadm.
func (o op) String() string {
	k := o.svc.ServiceKey
	s := ipvsadmCommands[o.cmd]
	switch {
	case k.FWMark == 0:
		s += fmt.Sprintf(" %s %s", ipvsadmProtocols[k.Protocol], netip.AddrPortFrom(k.Addr, k.Port))
	default:
		s += fmt.Sprintf(" -f %d", k.FWMark)
		if k.Family == ipvsnl.FamilyIPv6 {
			s += " -6"
		}
	}
	switch o.cmd {
	case ipvsnl.CommandNewService, ipvsnl.CommandSetService:
		s += " -s " + o.svc.Scheduler
		if o.svc.Flags&ipvsnl.FlagPersistent != 0 {
			s += fmt.Sprintf(" -p %d", int(o.svc.Timeout.Seconds()))
			if o.svc.Netmask != 0 {
				s += " -M " + o.svc.Netmask.Text(k.Family)
			}
		}
		var options []string
		if o.svc.Flags&ipvsnl.FlagHashPort != 0 {
			options = append(options, o.svc.Scheduler+"-port")
		}
		if o.svc.Flags&ipvsnl.FlagFallback != 0 {
			options = append(options, o.svc.Scheduler+"-fallback")
		}
		if options != nil {
			s += " -b " + strings.Join(options, ",")
		}
	case ipvsnl.CommandNewDestination, ipvsnl.CommandSetDestination:
		s += fmt.Sprintf(" -r %s %s -w %d", o.dest.DestinationKey, ipvsadmMethods[o.dest.Forward],
			o.dest.Weight)
	case ipvsnl.CommandDelDestination:
		s += " -r " + o.dest.DestinationKey.String()
	}
	return s
}
