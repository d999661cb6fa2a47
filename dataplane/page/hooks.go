package page

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel/graph"
)

// hooksData is the chains that packets pass, by hook and in the order in which they do.
type hooksData struct {
	Chains []graph.Chain `json:"chains"`
}

func (p *Page) hooks(r *http.Request, _ *dataplane.Status) (any, error) {
	if p.cfg.Hooks == nil {
		return nil, &problem{http.StatusNotFound, "this program does not look at hooks"}
	}
	chains, err := p.cfg.Hooks(r.Context())
	if err != nil {
		return nil, err
	}
	chains = append([]graph.Chain{}, chains...)
	slices.SortStableFunc(chains, func(a, b graph.Chain) int {
		return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Priority, b.Priority))
	})
	return &hooksData{chains}, nil
}
