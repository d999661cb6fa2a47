package ipvs

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/ipvsnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

var _ dataplane.Plan = (*plan)(nil)

// String is the plan in the order in which it is sent: what adds to IPVS as ipvsadm -R reads it, the device and its addresses in that of ip, the companion tables
// in nft's, decoded from the bytes that are sent, and what takes away from IPVS. ipvsadm has no word for the bits by which we know our virtual servers.
func (p *plan) String() string {
	t := &text{table: p.table}
	t.ops(p.up)
	t.before(&p.device)
	for i, f := range families {
		t.companion(f, &p.tables[i])
	}
	t.after(&p.device)
	t.ops(p.down)
	return t.b.String()
}

type text struct {
	b     strings.Builder
	table string
	f     *family
}

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
		ipvsnl.CommandNewService: "-A", ipvsnl.CommandSetService: "-E", ipvsnl.CommandDelService: "-D",
		ipvsnl.CommandNewDestination: "-a", ipvsnl.CommandSetDestination: "-e", ipvsnl.CommandDelDestination: "-d",
	}
	ipvsadmProtocols = map[ipvsnl.Protocol]string{ipvsnl.TCP: "-t", ipvsnl.UDP: "-u", ipvsnl.SCTP: "--sctp-service"}
	ipvsadmMethods   = map[ipvsnl.ForwardingMethod]string{
		ipvsnl.ForwardMasquerade: "-m", ipvsnl.ForwardDirectRoute: "-g", ipvsnl.ForwardTunnel: "-i",
	}
)

// String is the command as ipvsadm has it.
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
			if o.svc.Netmask != (ipvsnl.Netmask{}) {
				s += " -M " + o.svc.Netmask.Text(k.Family)
			}
		}
		if o.svc.Flags&ipvsnl.FlagFallback != 0 {
			s += " -b " + o.svc.Scheduler + "-fallback"
		}
	case ipvsnl.CommandNewDestination, ipvsnl.CommandSetDestination:
		s += fmt.Sprintf(" -r %s %s -w %d", o.dest.DestinationKey, ipvsadmMethods[o.dest.Forward], o.dest.Weight)
	case ipvsnl.CommandDelDestination:
		s += " -r " + o.dest.DestinationKey.String()
	}
	return s
}

// name names an object of the companion table: "ip kernlb-ipvs services".
func (t *text) name(object string) string { return t.f.name + " " + t.table + " " + object }

func (t *text) companion(f *family, tp *tablePlan) {
	t.f = f
	if tp.rebuild {
		t.line("delete table %s %s", f.name, t.table)
	}
	if tp.create {
		t.line("add table %s %s", f.name, t.table)
		for _, s := range tp.sets {
			t.set(s)
		}
	}
	for _, s := range tp.sets {
		t.elements("delete", s, tp.del[s.name])
	}
	for _, s := range tp.sets {
		t.elements("add", s, tp.add[s.name])
	}
	if tp.create {
		t.program(tp.program)
	}
}

func (t *text) set(s *set) {
	kind, spec := "set", "type "+typeNames(s.key)
	if s.data != nil {
		kind, spec = "map", spec+" : "+typeNames(s.data)
	}
	spec += ";"
	if s.flags&setInterval != 0 {
		spec += " flags interval;"
	}
	t.line("add %s %s { %s }", kind, t.name(s.name), spec)
}

func typeNames(fs []field) string {
	names := map[uint32]string{fieldProto.typ: "inet_proto", fieldPort.typ: "inet_service", typeMark: "mark", typeIPv4Addr: "ipv4_addr", typeIPv6Addr: "ipv6_addr"}
	var l []string
	for _, f := range fs {
		l = append(l, names[f.typ])
	}
	return strings.Join(l, " . ")
}

func (t *text) elements(verb string, s *set, list *nftwire.ElemList) {
	if list == nil {
		return
	}
	// The list was encoded by us, so it decodes.
	_ = nftwire.DecodeElems(list.Buf, func(e nftwire.Elem) error {
		text := fieldsText(t.f, s.key, e.Key, e.KeyEnd)
		if c := nftwire.CommentOf(e.UserData); c != "" {
			text += fmt.Sprintf(" comment %q", c)
		}
		if s.data != nil && e.Data != nil {
			text += " : " + fieldsText(t.f, s.data, e.Data, nil)
		}
		t.line("%s element %s { %s }", verb, t.name(s.name), text)
		return nil
	})
}

// fieldsText writes the fields of a key or data; end is the end of a range.
func fieldsText(f *family, fs []field, b, end []byte) string {
	first, last := nftwire.Reader{Bytes: b}, nftwire.Reader{Bytes: end}
	var l []string
	for _, fd := range fs {
		s := fieldText(&first, f, fd)
		if end != nil {
			if e := fieldText(&last, f, fd); e != s {
				s += "-" + e
			}
		}
		l = append(l, s)
	}
	return strings.Join(l, " . ")
}

// fieldText takes one field, and writes it.
func fieldText(r *nftwire.Reader, f *family, fd field) string {
	switch fd {
	case fieldProto:
		return r.Proto().String()
	case fieldPort:
		return fmt.Sprint(r.Port())
	case fieldMark:
		return fmt.Sprintf("0x%08x", r.Native())
	}
	return r.Addr(f.addrLen).String()
}

var hookNames = map[uint32]string{hookPrerouting: "prerouting", hookInput: "input", hookOutput: "output", hookPostrouting: "postrouting"}

func (t *text) program(chains []programChain) {
	for _, c := range chains {
		if c.typ == "" {
			t.line("add chain %s", t.name(c.name))
			continue
		}
		t.line("add chain %s { type %s hook %s priority %d; policy accept; }", t.name(c.name), c.typ, hookNames[c.hook], c.prio)
	}
	for _, c := range chains {
		for i := range c.rules {
			t.line("add rule %s %s", t.name(c.name), c.rules[i].text)
		}
	}
}
