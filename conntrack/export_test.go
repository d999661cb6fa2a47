package conntrack

import (
	"context"
)

// Unexported names for tests in other packages. These tests share their helpers with the tests of
// packages that import this one.
type (
	DumpRequest = dumpRequest
	Family      = nfFamily
	Scan        = scan
)

const (
	StatusConfirmed        = statusConfirmed
	StatusSrcNAT    Status = 1 << 4
	AnyFamily              = familyAny
	IPv4                   = familyIPv4
	IPv6                   = familyIPv6
	TCPClose               = tcpClose
	ICMP                   = protoICMP
	ScanAuto               = scanAuto
	ScanNarrow             = scanNarrow
	ScanProtocol           = scanProtocol
	ScanAll                = scanAll
)

var (
	WantAll      = wantAll
	ChooseScan   = chooseScan
	Explain      = explain
	CheckFlow    = checkFlow
	ParseFlow    = parseFlow
	AppendCreate = appendCreate
)

func (f Filter) Dumps() ([]DumpRequest, error) { return f.dumps() }

func (m *Matcher) Dumps(s Scan) []DumpRequest { return m.dumps(s) }

// With returns options that use a scan.
func (o CleanOptions) With(s Scan) CleanOptions {
	o.scan = s
	return o
}

// Classify returns the class of a flow.
func (m *Matcher) Classify(f *Flow) string { return string(m.classify(f)) }

func (m *Matcher) Empty() bool { return m.empty() }

func (f *Flow) Family() Family { return f.family() }

func (f *Flow) Masqueraded() bool { return f.masqueraded() }

func (t *Table) Scan(ctx context.Context, requests []DumpRequest, wants func(*Flow) bool,
	each func(*Flow) error) error {
	return t.scan(ctx, requests, wants, each)
}
