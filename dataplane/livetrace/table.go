package livetrace

import (
	"math"
	"time"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// hooks are the hooks that packets of IP pass.
var hooks = [...]string{"prerouting", "input", "forward", "output", "postrouting"}

// afterConntrack is the priority just after conntrack (NF_IP_PRI_CONNTRACK + 1).
const afterConntrack = -199

// The maximum numbers of traced packets a second: packets that begin connections, and answers.
const (
	perSecond        = 5
	answersPerSecond = 50
)

// followed has the sources of the traced packets, so that their answers are traced, too.
func followed(f *nft.Family) *nft.Set {
	return &nft.Set{Name: "followed", Key: []nft.Field{f.Addr, nft.FieldPort},
		Flags: nft.SetTimeout | nft.SetEval, Size: 1024}
}

// remembered is the time for which answers are traced.
const remembered = 30 * time.Second

// program builds the chains of the tracer's table.
func program(f *nft.Family, want *Filter) nft.Program {
	var p nft.Program
	for i, hook := range hooks {
		n := uint32(i)
		first := p.Filter(hook+"-"+chainFirst, n, math.MinInt32)
		p.Filter(hook+"-"+chainLast, n, math.MaxInt32)
		if n != nft.HookPrerouting && n != nft.HookOutput {
			continue
		}
		p.Filter(hook+"-"+chainAnswers, n, afterConntrack).Add(nft.CTDirReply,
			nft.Concat{f.CTSaddr, nft.CTOriginalSPort}.In(followed(f).Name),
			f.CTDaddr.IsAddr(want.Dst.Addr()), nft.CTOriginalProtocol.IsProtocol(want.Protocol),
			nft.CTOriginalDPort.IsPort(want.Dst.Port()), nft.LimitPerSecond(answersPerSecond),
			nft.TraceOn)
		if n == nft.HookPrerouting || want.InInterface == "" {
			first.Add(wanted(f, want), nft.LimitPerSecond(perSecond), nft.Remember(
				followed(f).Name, nft.Concat{f.Saddr, nft.SPort}, remembered), nft.TraceOn)
		}
	}

	return p
}

// wanted matches the packets to trace.
func wanted(f *nft.Family, want *Filter) nft.Rule {
	var r nft.Rule
	if want.InInterface != "" {
		r = nft.IIFName.IsName(want.InInterface)
	}
	if want.Src.IsValid() {
		r = nft.Join(r, f.Saddr.IsAddr(want.Src))
	}
	r = nft.Join(r, f.Daddr.IsAddr(want.Dst.Addr()), nft.L4Proto.IsProtocol(want.Protocol))
	if want.SrcPort != 0 {
		r = nft.Join(r, nft.SPort.IsPort(want.SrcPort))
	}
	r = nft.Join(r, nft.DPort.IsPort(want.Dst.Port()))
	if want.Protocol == servicemodel.TCP {
		r = nft.Join(r, nft.TCPBegins)
	}
	return r
}
