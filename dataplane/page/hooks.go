package page

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/hooks"
)

// hooksData holds the chains that packets pass, by hook, in the order in which packets pass them.
type hooksData struct {
	Chains []hooks.Chain `json:"chains"`
}

// inOrder are the hooks in the kernel's order.
var inOrder = []hooks.Hook{hooks.Prerouting, hooks.Input, hooks.Forward, hooks.Output,
	hooks.Postrouting}

func (p *Page) hooks(r *http.Request, _ *dataplane.Status) (any, error) {
	if p.cfg.Hooks == nil {
		return nil, &problem{http.StatusNotFound, "this program does not look at hooks"}
	}
	chains, err := p.cfg.Hooks(r.Context())
	if err != nil {
		return nil, err
	}
	chains = append([]hooks.Chain{}, chains...)
	slices.SortStableFunc(chains, func(a, b hooks.Chain) int {
		return cmp.Or(slices.Index(inOrder, a.Hook)-slices.Index(inOrder, b.Hook),
			cmp.Compare(a.Priority, b.Priority))
	})

	return &hooksData{chains}, nil
}
