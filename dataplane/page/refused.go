package page

import (
	"net/http"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// refusedData is what of the state is not in the kernel, and why.
type refusedData struct {
	Refused   []dataplane.Refusal     `json:"refused"`
	Conflicts []servicemodel.Conflict `json:"conflicts"`
}

func (p *Page) refused(_ *http.Request, s *dataplane.Status) (any, error) {
	return &refusedData{append([]dataplane.Refusal{}, s.Refused...),
		append([]servicemodel.Conflict{}, s.Conflicts...)}, nil
}
