package page

import (
	"net/http"

	"github.com/kernlb/kernlb/dataplane"
)

// node shows the findings of the node's checks.
func (p *Page) node(r *http.Request, s *dataplane.Status) (any, error) {
	if p.cfg.Node == nil {
		return nil, &problem{http.StatusNotFound, "this program does not check the node"}
	}
	return p.cfg.Node(r.Context(), s.Held), nil
}
