package iptables

import (
	"cmp"
	"net/netip"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/servicemodel"
)

// rule is an iptables rule, restricted to the matches and targets that this package writes. Rules
// are values: equal values are the same rule, however the kernel or the tool that wrote them
// encodes them. The zero value matches every packet and does nothing.
type rule struct {
	src, dst       netip.Prefix // -s, -d; the zero prefix matches every address
	notSrc, notDst bool
	in             string // -i, a trailing "+" as in iptables
	notIn          bool
	proto          servicemodel.Protocol // -p
	ports          portRange             // --dport
	mark           markMatch             // -m mark
	srcLocal       bool                  // -m addrtype --src-type LOCAL
	dstLocal       bool                  // -m addrtype --dst-type LOCAL
	state          stateMatch            // -m conntrack --ctstate
	stat           statMatch             // -m statistic, -m bpf
	recent         recentMatch           // -m recent
	comment        string                // -m comment --comment

	target target
	chain  string         // of targetJump and targetGoto
	to     netip.AddrPort // of targetDNAT; with port 0, packets keep their ports
	shift  portRange      // of targetDNAT: if set, these ports are mapped to the ports from to
	set    markSet        // of targetMark

	// opaque says that parts of the kernel's rule could not be decoded. For same, an opaque rule is
	// never equal to a rule, not even to itself.
	opaque bool
}

// same reports whether a and b are the same rule.
func (a *rule) same(b *rule) bool { return !a.opaque && *a == *b }

// sameRules reports whether two chains have the same rules.
func sameRules(a, b []rule) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].same(&b[i]) {
			return false
		}
	}

	return true
}

// portRange is a range of destination ports, both ends included. The zero value is every port.
type portRange struct{ from, to uint16 }

func (r portRange) any() bool { return r == portRange{} }

func single(port uint16) portRange { return portRange{port, port} }

// stateMatch matches the state of a packet in conntrack.
type stateMatch struct {
	states ctState
	not    bool
}

// ctState is a set of the states of the conntrack match (XT_CONNTRACK_STATE_*,
// include/uapi/linux/netfilter/xt_conntrack.h).
type ctState uint16

const (
	ctInvalid     ctState = 1 << 0 // XT_CONNTRACK_STATE_INVALID
	ctEstablished ctState = 1 << 1 // XT_CONNTRACK_STATE_BIT(IP_CT_ESTABLISHED)
	ctRelated     ctState = 1 << 2 // XT_CONNTRACK_STATE_BIT(IP_CT_RELATED)
	ctNew         ctState = 1 << 3 // XT_CONNTRACK_STATE_BIT(IP_CT_NEW)
	ctSNAT        ctState = 1 << 6 // XT_CONNTRACK_STATE_SNAT
	ctDNAT        ctState = 1 << 7 // XT_CONNTRACK_STATE_DNAT
	ctUntracked   ctState = 1 << 8 // XT_CONNTRACK_STATE_UNTRACKED
)

// markMatch matches packets whose mark, under the mask, is the value. A zero mask matches every
// packet.
type markMatch struct {
	value, mask uint32
	not         bool
}

// statMatch matches a share of the packets. The zero value matches all.
type statMatch struct {
	kind statKind
	// prob is the share of statRandom and statHash in units of 1/2^31.
	prob uint32
	// every and packet: of every packets, statNth matches one: the packet with the number packet,
	// counted from 0.
	every, packet uint32
	// seed and port: statHash either always or never matches a client, depending on seed, and with
	// port also on the client's port.
	seed uint32
	port bool
}

type statKind uint8

const (
	statNone statKind = iota
	statRandom
	statNth
	statHash
)

// certain is the probability 1 in [statMatch].
const certain = 1 << 31

// recentMatch tests or changes a list of addresses that xt_recent keeps. The zero value does
// neither.
type recentMatch struct {
	kind    recentKind
	name    string // of the list
	seconds uint32 // of recentUpdate
	bits    uint8  // the number of bits of an address that are compared, 0 for all
}

// mask returns the mask of an address with n bits.
func (m *recentMatch) mask(n int) []byte {
	bits := cmp.Or(int(m.bits), n)
	mask := nft.PrefixMask(bits)
	return mask[:n/8]
}

type recentKind uint8

const (
	recentNone recentKind = iota
	recentSet             // --set: puts the source into the list, and matches
	// --update --seconds --reap: matches a source seen within that time, and renews its time;
	// removes older sources
	recentUpdate
)

// target is the action of a rule.
type target uint8

const (
	targetNone target = iota
	targetAccept
	targetDrop
	targetReturn
	targetJump
	targetGoto
	targetReject     // with ICMP port unreachable
	targetReset      // with a TCP reset; the rule matches TCP
	targetDNAT       // to rule.to
	targetMasquerade // with random ports (--random-fully)
	targetMark       // rule.set
)

// verdicts are the targets that are verdicts of nf_tables, each as iptables-save prints it.
var verdicts = [...]struct {
	code int32
	text string
}{
	targetAccept: {nft.VerdictAccept, "-j ACCEPT"},
	targetDrop:   {nft.VerdictDrop, "-j DROP"},
	targetReturn: {nft.VerdictReturn, "-j RETURN"},
	targetJump:   {nft.VerdictJump, "-j"},
	targetGoto:   {nft.VerdictGoto, "-g"},
}

// markSet changes the mark to (mark &^ mask) ^ value, as MARK --set-xmark value/mask does.
type markSet struct{ value, mask uint32 }
