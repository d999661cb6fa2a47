package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/internal/nfnl"
	"github.com/kernlb/kernlb/internal/nftwire"
)

var _ dataplane.Plan = (*plan)(nil)

// Stats counts what the plan sends.
func (p *plan) Stats() dataplane.Stats {
	var b nfnl.Batch
	p.encode(&b)
	return dataplane.Stats{Messages: b.Len(), Bytes: len(b.Bytes()), Elements: p.elements()}
}

// elements counts the elements and rules that the plan adds and deletes one by one.
func (p *plan) elements() int {
	n := 0
	for i := range p.families {
		fp := &p.families[i]
		for _, ops := range fp.ops {
			n += ops.del.Len + ops.add.Len
		}
		n += len(fp.newRules)
	}
	return n
}

// String is the plan in nft's language, in the order in which it is sent. It is decoded from the bytes that are sent.
func (p *plan) String() string {
	t := &text{table: p.table}
	for i := range p.families {
		t.family(&p.families[i])
	}
	for _, f := range p.forget {
		t.line("# forget clients of %s", f)
	}
	return t.b.String()
}

func (f forget) String() string {
	s := f.frontend.Key.String()
	for i, ep := range f.endpoints {
		if i == 0 {
			s += " given"
		}
		s += " " + ep.String()
	}
	return s
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

// name names an object of the table: "ip kernlb services".
func (t *text) name(object string) string { return t.f.name + " " + t.table + " " + object }

func (t *text) family(fp *familyPlan) {
	t.f = fp.f
	if fp.rebuild {
		t.line("delete table %s %s", t.f.name, t.table)
	}
	if fp.create {
		t.line("add table %s %s", t.f.name, t.table)
	}
	for _, s := range fp.newSets {
		t.set(s)
	}
	for _, s := range fp.sets {
		if ops := fp.ops[s.name]; ops != nil {
			t.elements("delete", s, &ops.del)
		}
	}
	for _, s := range fp.sets {
		if ops := fp.ops[s.name]; ops != nil {
			t.elements("add", s, &ops.add)
		}
	}
	if fp.program != nil {
		t.program(fp)
	}
	for _, r := range fp.newRules {
		t.line("add rule %s %s", t.name(r.chain), r.rule.text)
	}
	for _, s := range fp.goneSets {
		t.line("delete %s %s", s.kind(), t.name(s.name))
	}
}

func (s *set) kind() string {
	if s.data != nil {
		return "map"
	}
	return "set"
}

func (t *text) set(s *set) {
	spec := "type " + typeNames(s.key)
	if s.data != nil {
		spec += " : " + typeNames(s.data)
	}
	if s.typeof {
		spec = fmt.Sprintf("typeof %s : %s", t.typeofNames(s.key), t.typeofNames(s.data))
	}
	spec += ";"
	switch {
	case s.flags&setInterval != 0:
		spec += " flags interval;"
	case s.flags&setEval != 0:
		spec += " flags dynamic,timeout;"
	}
	if s.size > 0 {
		spec += fmt.Sprintf(" size %d;", s.size)
	}
	if s.comment != "" {
		spec += fmt.Sprintf(" comment %q;", s.comment)
	}
	t.line("add %s %s { %s }", s.kind(), t.name(s.name), spec)
}

func typeNames(fs []field) string {
	var l []string
	for _, f := range fs {
		switch f {
		case fieldProto:
			l = append(l, "inet_proto")
		case fieldPort:
			l = append(l, "inet_service")
		case fieldMark:
			l = append(l, "mark")
		case ipv6.addr:
			l = append(l, "ipv6_addr")
		default:
			l = append(l, "ipv4_addr")
		}
	}
	return strings.Join(l, " . ")
}

func (t *text) typeofNames(fs []field) string {
	var l []string
	for _, f := range fs {
		switch f {
		case fieldProto:
			l = append(l, "meta l4proto")
		case fieldPort:
			l = append(l, "th dport")
		case fieldSlot:
			l = append(l, "numgen random mod 2")
		default:
			l = append(l, t.f.name+" daddr")
		}
	}
	return strings.Join(l, " . ")
}

func (t *text) elements(verb string, s *set, list *nftwire.ElemList) {
	// The list was encoded by us, so it decodes.
	_ = nftwire.DecodeElems(list.Buf, func(e nftwire.Elem) error {
		t.line("%s element %s { %s }", verb, t.name(s.name), elemText(t.f, s, e))
		return nil
	})
}

// elemText writes an element as nft does.
func elemText(f *family, s *set, e nftwire.Elem) string {
	key := fieldsText(f, s.key, e.Key, e.KeyEnd)
	if c := nftwire.CommentOf(e.UserData); c != "" {
		key += fmt.Sprintf(" comment %q", c)
	}
	if s.data != nil && e.Data != nil {
		key += " : " + fieldsText(f, s.data, e.Data, nil)
	}
	return key
}

// fieldsText writes the fields of a key or data; end is the end of a range.
func fieldsText(f *family, fs []field, b, end []byte) string {
	r, re := nftwire.Reader{Bytes: b}, nftwire.Reader{Bytes: end}
	var l []string
	for _, fd := range fs {
		s := fieldText(&r, f, fd)
		if end != nil {
			if last := fieldText(&re, f, fd); last != s {
				s += "-" + last
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
	case fieldSlot:
		return fmt.Sprint(r.Native())
	case fieldMark:
		return fmt.Sprintf("0x%08x", r.Native())
	}
	a, _ := netip.AddrFromSlice(r.Take(fd.len))
	return a.String()
}

func (t *text) program(fp *familyPlan) {
	for _, c := range fp.program.chains {
		if c.typ == "" {
			t.line("add chain %s", t.name(c.name))
			continue
		}
		t.line("add chain %s { type %s hook %s priority %d; policy accept; }", t.name(c.name), c.typ, hookNames[c.hook], c.prio)
	}
	if !fp.create {
		for _, c := range fp.program.chains {
			t.line("flush chain %s", t.name(c.name))
		}
		for _, name := range fp.goneChains {
			t.line("flush chain %s", t.name(name))
		}
	}
	for _, c := range fp.program.chains {
		for i := range c.rules {
			t.line("add rule %s %s", t.name(c.name), c.rules[i].text)
		}
	}
	for _, name := range fp.goneChains {
		t.line("delete chain %s", t.name(name))
	}
}

// describeElem names the element that the kernel complained about, for errors.
var describeElem = nfnl.DescribeFunc(func(msg []byte, offset int) string {
	path := nfnl.AttrPath(msg, offset)
	for _, step := range path {
		if step.Type != 1 { // NFTA_LIST_ELEM
			continue
		}
		if e, err := nftwire.DecodeElem(step.Data); err == nil && e.Key != nil {
			if c := nftwire.CommentOf(e.UserData); c != "" {
				return fmt.Sprintf("element %x (%s)", e.Key, c)
			}
			return fmt.Sprintf("element %x", e.Key)
		}
	}
	return ""
})
