package ipvs

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
)

var _ backends.Plan = (*plan)(nil)

// String is the plan in the order in which it is sent. Commands of IPVS and timeouts are in the
// language of ipvsadm. Rules, routes, the device and its addresses are in the language of ip,
// sysctls in the language of sysctl, and the companion's transactions in the language of nft.
// ipvsadm cannot express the bits that identify our virtual servers. A restored value does not
// change if another program relies on the current value.
func (p *plan) String() string {
	t, d, n := &text{}, &p.device, &p.network
	t.stage(p, stageRestrict)
	for i, ip := range []string{"ip", "ip -6"} {
		rule := fmt.Sprintf("fwmark 0x%x/0x%x table %d priority %d", n.mark, ledMask, n.number,
			rulePriority)
		if n.route[i] {
			t.line("%s route replace local default dev lo table %d", ip, n.number)
			t.line("%s rule add %s", ip, rule)
		}

		if n.unroute[i] {
			t.line("%s rule del %s", ip, rule)
			t.line("%s route del local default dev lo table %d", ip, n.number)
		}
	}

	t.tunables(n.tunables.Set)
	switch {
	case d.add:
		t.line("ip link add %s up group %d type dummy", d.name, d.metric)
	case d.up:
		t.line("ip link set %s up", d.name)
	}

	t.ops(p.up)
	t.stage(p, stageOpen)
	for _, b := range d.release {
		t.line("ip address del %s dev %s", netip.PrefixFrom(b.addr, b.addr.BitLen()), b.dev)
	}
	for _, name := range d.remove {
		t.line("ip link del %s", name)
	}
	for _, a := range d.bind {
		how := "scope host"
		if a.Is6() {
			how = "preferred_lft 0 nodad"
		}
		t.line("ip address add %s dev %s metric %d %s noprefixroute",
			netip.PrefixFrom(a, a.BitLen()), d.name, d.metric, how)
	}

	t.ops(p.down)
	t.tunables(n.tunables.Restore)
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

func (t *text) ops(l []ipvsnl.Op) {
	for _, o := range l {
		t.line("%s", ipvsadm(o))
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

// ipvsadm is a command in the language of ipvsadm.
func ipvsadm(o ipvsnl.Op) string {
	k := o.Service.ServiceKey
	s := ipvsadmCommands[o.Command]
	switch {
	case k.FWMark == 0:
		s += fmt.Sprintf(" %s %s", ipvsadmProtocols[k.Protocol], netip.AddrPortFrom(k.Addr, k.Port))
	case k.Family == ipvsnl.FamilyIPv6:
		s += fmt.Sprintf(" -f %d -6", k.FWMark)
	default:
		s += fmt.Sprintf(" -f %d", k.FWMark)
	}

	switch o.Command {
	case ipvsnl.CommandNewService, ipvsnl.CommandSetService:
		s += " -s " + o.Service.Scheduler
		if o.Service.Flags&ipvsnl.FlagPersistent != 0 {
			s += fmt.Sprintf(" -p %d", int(o.Service.Timeout.Seconds()))
			if o.Service.Netmask != 0 {
				s += " -M " + o.Service.Netmask.Text(k.Family)
			}
		}

		var options []string
		if o.Service.Flags&ipvsnl.FlagHashPort != 0 {
			options = append(options, o.Service.Scheduler+"-port")
		}
		if o.Service.Flags&ipvsnl.FlagFallback != 0 {
			options = append(options, o.Service.Scheduler+"-fallback")
		}
		if options != nil {
			s += " -b " + strings.Join(options, ",")
		}
	case ipvsnl.CommandNewDestination, ipvsnl.CommandSetDestination:
		d := o.Destination
		s += fmt.Sprintf(" -r %s %s -w %d", d.DestinationKey, ipvsadmMethods[d.Forward], d.Weight)
	case ipvsnl.CommandDelDestination:
		s += " -r " + o.Destination.DestinationKey.String()
	}

	return s
}

// batch returns the messages of one of the transactions. They are encoded once, because Commit
// counts them before it sends them. So the stage must be complete.
func (p *plan) batch(s int) *rawnl.Batch {
	if p.batches[s] == nil {
		p.batches[s] = &rawnl.Batch{}
		for i, f := range nft.Families {
			p.stages[s][i].write(nft.NewEncoder(p.batches[s], f, p.name), f)
		}
	}

	return p.batches[s]
}

// write writes the changes of a companion table. It deletes the version first, even if it then
// deletes the table: if the version does not exist, another writer has committed.
func (tp *tablePlan) write(w nft.Writer, f *nft.Family) {
	if l := tp.del[setVersion]; l != nil {
		w.Elements(nft.Delete, versionSet, l)
	}
	for _, s := range setsOf(f, tp.shape) {
		if l := tp.del[s.Name]; l != nil && s != versionSet {
			w.Elements(nft.Delete, s, l)
		}
	}

	if tp.remove {
		w.DeleteTable()
	}
	if tp.create {
		w.AddTable()
		for _, s := range tp.sets {
			w.AddSet(s)
		}
	}

	for _, s := range setsOf(f, tp.shape) {
		if l := tp.add[s.Name]; l != nil {
			w.Elements(nft.Add, s, l)
		}
	}

	if tp.create {
		tp.program.Write(w)
	}
}

// Stats counts the requests of the plan.
func (p *plan) Stats() backends.Stats {
	commands := len(p.up) + len(p.down)
	var s backends.Stats
	for i := range p.stages {
		b := p.batch(i)
		s.Messages += b.Len()
		s.Bytes += len(b.Bytes())
		for _, tp := range p.stages[i] {
			for _, m := range []elements{tp.add, tp.del} {
				for set, l := range m {
					if set != setVersion {
						s.Elements += l.Len
					}
				}
			}
		}
	}

	s.Messages += commands + p.device.len()
	s.Elements += commands
	return s
}
