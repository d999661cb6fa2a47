package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

// fakeCandidate is a candidate on a kernel in memory. Its probe returns err.
type fakeCandidate struct {
	*memory.Backend
	name   string
	err    error // result of the probe
	cannot error // result of Check
	broken error // result of Open
	probed int
	opened int
}

func (f *fakeCandidate) Name() string { return f.name }

func (f *fakeCandidate) candidate() backends.Candidate {
	f.Backend = memory.New(nil)
	f.Refuse(func(*servicemodel.ChangeSet) error { return f.cannot })
	return backends.Candidate{
		Name:  f.name,
		Probe: func(context.Context) error { f.probed++; return f.err },
		Open: func() (backends.Backend, error) {
			if f.broken != nil {
				return nil, f.broken
			}
			f.opened++
			return f, nil
		},
	}
}

var (
	errModule = fmt.Errorf("%w nft_numgen", kernelerr.ErrMissingModule)
	errOne    = refused(1)
	errTwo    = errors.Join(refused(1), refused(2))
	errCannot = &backends.UnsupportedError{Backend: "nftables", Object: "node",
		Field: "localhostNodePorts", Value: "true"}
)

// refused is the error of a backend that cannot express service i.
func refused(i int) error {
	return &backends.UnsupportedError{Backend: "memory", Service: serviceName(i),
		Object: "service " + serviceName(i).String(), Field: "scheduler", Value: "lc"}
}

func TestProbeAsksEachInTheirOrder(t *testing.T) {
	t.Parallel()
	one, two := &fakeCandidate{name: "nftables", err: errModule}, &fakeCandidate{name: "iptables"}
	found := dataplane.Probe(t.Context(), one.candidate(), two.candidate())
	require.Equal(t, []dataplane.Support{{Backend: "nftables", Err: errModule},
		{Backend: "iptables"}}, found)
	require.Equal(t, "nftables: missing module nft_numgen", found[0].String())
	require.Equal(t, "iptables: supported", found[1].String())
	require.Zero(t, one.opened+two.opened)
	require.Empty(t, dataplane.Probe(t.Context()))
}

// choices are lists of candidates, and the candidate that is chosen.
var choices = []struct {
	name   string
	list   []*fakeCandidate
	want   string // the chosen backend, or ""
	errors []error
	cfg    dataplane.Config
}{
	{name: "all can", list: []*fakeCandidate{{name: "nftables"}, {name: "ipvs"}},
		want: "nftables"},
	{name: "the first cannot be opened",
		list: []*fakeCandidate{{name: "nftables", broken: errRefused}, {name: "ipvs"}},
		want: "ipvs"},
	{name: "none can be opened", list: []*fakeCandidate{{name: "nftables", broken: errRefused}},
		errors: []error{errRefused}},
	{name: "the kernel lacks something of the first",
		list: []*fakeCandidate{{name: "nftables", err: errModule}, {name: "iptables"}},
		want: "iptables"},
	{name: "only the last can express the state",
		list: []*fakeCandidate{{name: "nftables", cannot: errOne},
			{name: "iptables", cannot: errCannot}, {name: "ipvs"}}, want: "ipvs"},
	{name: "none can express all of it: the one that refuses the fewest",
		list: []*fakeCandidate{{name: "nftables", cannot: errTwo},
			{name: "iptables", cannot: errOne}, {name: "ipvs", cannot: errOne}},
		want: "iptables"},
	{name: "the first refuses the fewest",
		list: []*fakeCandidate{{name: "nftables", cannot: errOne},
			{name: "ipvs", cannot: errTwo}, {name: "iptables", err: errModule}},
		want: "nftables"},
	{name: "none can express all of it, for a strict engine",
		list: []*fakeCandidate{{name: "nftables", cannot: errOne},
			{name: "ipvs", err: kernelerr.ErrNoPermission}},
		errors: []error{errOne, backends.ErrUnsupported, kernelerr.ErrNoPermission},
		cfg:    dataplane.Config{Strict: true}},
	{name: "the node is what cannot be expressed",
		list: []*fakeCandidate{{name: "nftables", cannot: errCannot},
			{name: "ipvs", err: kernelerr.ErrNoPermission}},
		errors: []error{errCannot, backends.ErrUnsupported, kernelerr.ErrNoPermission}},
	{name: "none is supported",
		list: []*fakeCandidate{{name: "nftables", err: errModule},
			{name: "iptables", err: kernelerr.ErrKernelTooOld}},
		errors: []error{errModule, kernelerr.ErrMissingModule, kernelerr.ErrKernelTooOld}},
	{name: "there is none"},
}

func TestTheFirstThatCanIsChosen(t *testing.T) {
	t.Parallel()
	for _, tt := range choices {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var candidates []backends.Candidate
			for _, f := range tt.list {
				candidates = append(candidates, f.candidate())
			}
			c, err := dataplane.Choose(t.Context(), services(2), &tt.cfg, candidates...)
			requireOthers(t, tt.list, tt.want, c.Others)
			if tt.want == "" {
				require.ErrorContains(t, err, "no backend")
				for _, e := range tt.errors {
					require.ErrorIs(t, err, e)
				}
			} else {
				require.NoError(t, err)
				require.Equal(t, tt.want, c.Backend.Name())
			}

			for _, f := range tt.list {
				if f.opened > 0 && f.name != tt.want {
					require.Equal(t, 1, f.Calls(memory.CallClose), "%s was closed", f.name)
				}
				require.Zero(t, f.Calls(memory.CallCommit)+f.Calls(
					memory.CallObserve))
			}
		})
	}
}

// requireOthers requires a reason for each candidate that was asked but not chosen, up to the first
// candidate without a reason.
func requireOthers(t *testing.T, list []*fakeCandidate, taken string, got []dataplane.Support) {
	t.Helper()
	for _, f := range list {
		if f.name == taken || f.probed == 0 {
			continue
		}
		require.NotEmpty(t, got)
		require.Equal(t, f.name, got[0].Backend)
		for _, cause := range []error{f.err, f.broken, f.cannot} {
			if cause != nil {
				require.ErrorContains(t, got[0].Err, cause.Error())
				break
			}
		}

		require.Error(t, got[0].Err)
		got = got[1:]
	}

	require.Empty(t, got)
}

func TestAnInvalidStateAsksNobody(t *testing.T) {
	t.Parallel()
	f := &fakeCandidate{name: "nftables"}
	s := servicemodel.State{}.WithService(&servicemodel.Service{})
	_, err := dataplane.Choose(t.Context(), s, &dataplane.Config{Strict: true}, f.candidate())
	var field *servicemodel.FieldError
	require.ErrorAs(t, err, &field)
	require.Zero(t, f.probed)
}

func TestAnInvalidServiceIsNoReasonToChooseNobody(t *testing.T) {
	t.Parallel()
	f, s := &fakeCandidate{name: "nftables"}, services(1).WithService(invalid(2))
	c, err := dataplane.Choose(t.Context(), s, nil, f.candidate())
	require.NoError(t, err)
	require.Equal(t, "nftables", c.Backend.Name())
}

func TestChoosingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone home")
	one, two := &fakeCandidate{name: "nftables", err: errModule}, &fakeCandidate{name: "iptables"}
	cancel(gone)
	_, err := dataplane.Choose(ctx, servicemodel.State{}, nil, one.candidate(), two.candidate())
	require.ErrorIs(t, err, gone)
	require.Zero(t, two.probed)
}

// A program asks which backends the kernel supports, and opens the first that can express its
// state. A real program uses nftables.Candidate(nil), iptables.Candidate(nil) and
// ipvs.Candidate(nil).
func ExampleChoose() {
	old := &fakeCandidate{name: "nftables", err: errModule}
	good := &fakeCandidate{name: "iptables"}
	candidates := []backends.Candidate{old.candidate(), good.candidate()}
	for _, s := range dataplane.Probe(context.Background(), candidates...) {
		fmt.Println(s)
	}
	choice, err := dataplane.Choose(context.Background(), servicemodel.State{}, nil,
		candidates...)
	if err != nil {
		fmt.Println(err)
		return
	}

	defer choice.Backend.Close()
	fmt.Println("chosen:", choice.Backend.Name())
	fmt.Println("not chosen:", choice.Others)
	// Output:
	// nftables: missing module nft_numgen
	// iptables: supported
	// chosen: iptables
	// not chosen: [nftables: missing module nft_numgen]
}
