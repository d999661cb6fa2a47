package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"text/tabwriter"

	"k8s.io/client-go/kubernetes"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/kubeproxy"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube/kubeapi"
)

// errDiffers ends the command compare with status 1.
var errDiffers = errors.New("kube-proxy and this program do not hold the same: see above")

// compare prints, for each address and port, the endpoints that kube-proxy has in the kernel and
// the endpoints of this program. It changes nothing.
func (s *settings) compare(ctx context.Context, client kubernetes.Interface, log *slog.Logger,
	out io.Writer) error {
	theirs, err := kubeproxy.Frontends(ctx, nil)
	if err != nil {
		return err
	}
	if len(theirs) == 0 {
		return errors.New("kube-proxy has no services in this kernel: there is nothing to compare")
	}
	notes, err := s.notes(ctx, client)
	if err != nil {
		return err
	}
	p, err := s.planned(ctx, client, log)
	if err != nil {
		return err
	}
	for _, r := range p.Refused {
		notes = append(notes, note{text: "mode " + string(s.mode) + " refuses " + r.String()})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	different := printComparison(w, theirs, p.Changes.New)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d addresses and ports of kube-proxy, %d of this program: %d differ\n",
		len(theirs), p.Changes.New.Len(), different)
	for _, n := range notes {
		fmt.Fprintln(out, "note:", n.text)
	}
	if different > 0 {
		return errDiffers
	}
	return nil
}

// planned returns the plan for an apply of the API server's objects.
func (s *settings) planned(ctx context.Context, client kubernetes.Interface, log *slog.Logger) (
	*dataplane.Preview, error) {
	source, err := kubeapi.New(client, &kubeapi.Config{Tracker: s.tracker, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	var state *servicemodel.State
	once, stop := context.WithCancel(ctx)
	defer stop()
	err = source.Run(once, func(now servicemodel.State) {
		state = &now
		stop()
	})
	if err != nil {
		return nil, err
	}
	if state == nil {
		return nil, ctx.Err()
	}
	b, err := s.open(s.mode, nil)
	if err != nil {
		return nil, fmt.Errorf("mode %s: %w", s.mode, err)
	}
	defer b.Close()
	return dataplane.New(b, nil).Plan(ctx, s.withAddress(*state))
}

// printComparison prints a line for each frontend, and returns the number of differences.
func printComparison(w io.Writer, theirs []kubeproxy.Frontend, ours *servicemodel.Table) int {
	different := 0
	line := func(verdict string, key servicemodel.FrontendKey, service, text string) {
		if verdict != "same" {
			different++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", verdict, key, service, text)
	}

	seen := map[servicemodel.FrontendKey]bool{}
	for _, f := range theirs {
		seen[f.Key] = true
		fe := ours.Frontend(f.Key)
		if fe == nil {
			line("only kube-proxy", f.Key, f.Service, list(f.Endpoints))
			continue
		}

		if l := endpointsOf(ours, fe); slices.Equal(l, f.Endpoints) {
			line("same", f.Key, fe.Service.String(), list(l))
		} else {
			line("different", f.Key, fe.Service.String(),
				"kube-proxy: "+list(f.Endpoints)+"; this program: "+list(l))
		}
	}

	for fe := range ours.Frontends() {
		if !seen[fe.Key] {
			line("only this program", fe.Key, fe.Service.String(), list(endpointsOf(ours, fe)))
		}
	}

	return different
}

// endpointsOf returns the endpoints of a frontend for clients outside the cluster, as
// [kubeproxy.Frontend] has them.
func endpointsOf(t *servicemodel.Table, fe *servicemodel.Frontend) (l []netip.AddrPort) {
	verdict := fe.External
	if fe.Kind == servicemodel.ClusterIP {
		verdict = fe.Internal
	}
	if id, ok := fe.Pool(verdict); ok {
		for _, slot := range t.Pool(id).Slots {
			l = append(l, slot.Endpoint)
		}
	}

	slices.SortFunc(l, netip.AddrPort.Compare)
	return l
}

func list(l []netip.AddrPort) string {
	text := fmt.Sprint(l)
	return cmp.Or(text[1:len(text)-1], "no endpoints") // without the brackets
}
