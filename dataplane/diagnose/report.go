package diagnose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane/livetrace"
	"github.com/kernlb/kernlb/dataplane/netns"
	"github.com/kernlb/kernlb/dataplane/silence"
	"github.com/kernlb/kernlb/servicemodel"
)

// Config says what to diagnose.
type Config struct {
	// NetNS names the network namespace of the node.
	NetNS netns.Namespace
	// From names the network namespace of the client, such as a pod's. Empty means that the node
	// itself is the client, so that no packet is forwarded to it. [FindNamespace] finds it from an
	// address.
	From netns.Namespace
	// Source is the client's address. If it is not set, the kernel chooses it.
	Source netip.Addr
	// To is the address, protocol and port of the service. It is required.
	To servicemodel.FrontendKey
	// Table is the table in the kernel. Here has the node's addresses. Both are required.
	Table *servicemodel.Table
	Here  servicemodel.Locality
	// Wanted is the desired table, if it is known: it says why a service has no endpoints.
	Wanted *servicemodel.Table
	// Drift describes objects of kernlb in the kernel that have changed since kernlb wrote them, as
	// in an observation. If they may be the cause of a fault, the report lists them first.
	Drift []string
	// Silent are the endpoints that a program ejected because they do not answer clients, and that
	// are therefore not in Table. Run also checks those that belong to the service.
	Silent []silence.Change
	// Direct says that flows in the conntrack table cannot direct packets to endpoints, as with
	// IPVS.
	Direct bool
	// Ours returns true for rules of kernlb. Nil means that no rules are kernlb's.
	Ours func(livetrace.Rule) bool
}

// Kind is a kind of fault.
type Kind string

// The kinds of faults, in the order in which a connection meets them.
const (
	Conflict       Kind = "conflict"        // the address belongs to another service
	NoService      Kind = "no-service"      // nothing answers at the address
	NotProgrammed  Kind = "not-programmed"  // the kernel does not match the desired state
	WrongPods      Kind = "pod-network"     // the node does not recognise the client as a pod
	Refused        Kind = "refuses"         // the service rejects or drops connections
	ClientRoute    Kind = "client-route"    // the packets do not reach this node
	ConntrackFull  Kind = "conntrack-full"  // the conntrack table is full
	ForeignRule    Kind = "foreign-rule"    // another program's rule drops the packet
	OwnRule        Kind = "own-rule"        // a rule of kernlb drops the packet against the table
	Routing        Kind = "routing"         // the kernel does not forward the packet
	NotMasqueraded Kind = "not-masqueraded" // the client's address is not masqueraded as required
	Hairpin        Kind = "hairpin"         // the same, and the client is the endpoint
	Elsewhere      Kind = "wrong-endpoint"  // the packet goes to an address that is no endpoint
	Duplicate      Kind = "duplicate"       // two machines have the address of an endpoint
	Neighbour      Kind = "neighbour"       // the link-layer address is unknown, or out of date
	NotListening   Kind = "not-listening"   // the endpoint refuses the connection
	Silent         Kind = "silent"          // the endpoint does not answer
	AnswerLost     Kind = "answer-lost"     // the answer does not reach the client
	FullSize       Kind = "full-size"       // small packets arrive, full-size ones do not
	StaleFlow      Kind = "stale-flow"      // a client's packets still go to a former endpoint
)

// Fault is a fault that was found.
type Fault struct {
	Kind Kind `json:"kind"`
	// Says describes the fault, and Do the remedy.
	Says string `json:"says"`
	Do   string `json:"do"`
}

// Endpoint is the result for an endpoint.
type Endpoint struct {
	Endpoint netip.AddrPort `json:"endpoint"`
	// Says is the result of a connection to the endpoint: "answers", or what is wrong.
	Says string `json:"says"`
	// Begun, Answered and Reset count the connections of other clients to the endpoint in the
	// conntrack table: unanswered, answered, and ended by a reset. Connections that this node
	// rejected or dropped are not included.
	Begun    int `json:"begun"`
	Answered int `json:"answered"`
	Reset    int `json:"reset"`
}

// Report is the result.
type Report struct {
	// Client is the source address of the packets, and To their destination.
	Client netip.Addr               `json:"client"`
	To     servicemodel.FrontendKey `json:"to"`
	// Steps lists the checks that passed, one line each, in order.
	Steps     []string   `json:"steps"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Fault is the first fault, or nil. More contains the other faults.
	Fault *Fault  `json:"fault,omitempty"`
	More  []Fault `json:"more,omitempty"`
	// Notes lists the checks that were skipped.
	Notes []string `json:"notes,omitempty"`
}

func (r *Report) ok(format string, args ...any) {
	r.Steps = append(r.Steps, fmt.Sprintf(format, args...))
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// add adds faults that are not nil. A fault that says the same as an earlier one adds nothing.
func (r *Report) add(faults ...*Fault) {
	for _, f := range faults {
		switch {
		case f == nil || r.Fault != nil && f.Says == r.Fault.Says:
		case r.Fault == nil:
			r.Fault = f
		default:
			r.More = append(r.More, *f)
		}
	}
}

// merge replaces the faults of a kind with a single fault, if several of the asked endpoints have
// it.
func (r *Report) merge(kind Kind, says string, endpoints []netip.AddrPort, asked int) {
	if len(endpoints) < 2 {
		return
	}
	f := Fault{Kind: kind}
	ofKind := func(g Fault) bool {
		if g.Kind == kind {
			f.Do = cmp.Or(f.Do, g.Do)
		}
		return g.Kind == kind
	}
	first := r.Fault != nil && ofKind(*r.Fault)
	at := slices.IndexFunc(r.More, ofKind)
	r.More = slices.DeleteFunc(r.More, ofKind)
	var names []string
	for _, e := range endpoints {
		names = append(names, e.String())
	}
	f.Says = fmt.Sprintf("%d of %d endpoints %s: %s", len(names), asked, says, some(names))
	if len(names) == asked {
		f.Do = "see what all endpoints share: program, node and network policies; then " + f.Do
	}
	if first {
		r.Fault = &f
	} else {
		r.More = slices.Insert(r.More, at, f)
	}
}

// some lists the first few names.
func some(l []string) string {
	const most = 5
	if n := len(l) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(l[:most], ", "), n)
	}
	return strings.Join(l, ", ")
}

// staleFlow is a kind of flows that are out of date: from one client to one destination, answered
// by one address.
type staleFlow struct {
	client    netip.Addr
	to, reply netip.AddrPort
}

func (s staleFlow) compare(o staleFlow) int {
	return cmp.Or(s.client.Compare(o.client), s.to.Compare(o.to), s.reply.Compare(o.reply))
}

func (s staleFlow) fault(p servicemodel.Protocol, n int) *Fault {
	what, goes := "connections", "go on"
	if p == servicemodel.UDP {
		what = "flows"
	}
	if n == 1 {
		what, goes = strings.TrimSuffix(what, "s"), "goes on"
	}
	says := fmt.Sprintf("%d %s of %v to %v %s, and the service does not use that endpoint now: "+
		"it is gone, or not ready", n, what, s.client, s.reply, goes)
	if s.reply == s.to {
		says = fmt.Sprintf("%d %s of %v to %v began while the kernel had no service there", n,
			what, s.client, s.to)
	}
	return &Fault{StaleFlow, says, fmt.Sprintf("kernlb flows lists them; kernlb apply and watch "+
		"delete stale flows when they change a service, and so does a new start of watch without "+
		"-keep-flows; conntrack -D -p %s --orig-dst %v --reply-src %v deletes these",
		strings.ToLower(p.String()), s.to.Addr(), s.reply.Addr())}
}

// ofEndpoint reports whether each known fault concerns only some endpoints.
func (r *Report) ofEndpoint() bool {
	return r.Fault == nil || slices.Contains([]Kind{Duplicate, Neighbour, NotListening, Silent,
		FullSize}, r.Fault.Kind)
}

// String returns the report as lines of text.
func (r *Report) String() string {
	var b strings.Builder
	from := "the client"
	if r.Client.IsValid() {
		from = r.Client.String()
	}
	fmt.Fprintf(&b, "from %s to %v\n", from, r.To)
	for _, s := range r.Steps {
		fmt.Fprintf(&b, "  ok     %s\n", s)
	}
	for _, e := range r.Endpoints {
		fmt.Fprintf(&b, "  %v: %s", e.Endpoint, e.Says)
		if e.Begun+e.Answered+e.Reset > 0 {
			fmt.Fprintf(&b, "; other clients in conntrack: %d answered, %d without an answer, "+
				"%d reset", e.Answered, e.Begun, e.Reset)
		}

		b.WriteByte('\n')
	}

	if r.Fault != nil {
		fmt.Fprintf(&b, "  WRONG  %s: %s\n  do     %s\n", r.Fault.Kind, r.Fault.Says, r.Fault.Do)
	}
	for _, f := range r.More {
		fmt.Fprintf(&b, "  also   %s: %s\n", f.Kind, f.Says)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note   %s\n", n)
	}
	return b.String()
}
