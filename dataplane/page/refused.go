package page

import (
	"net/http"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// refusedData lists the refused services with the reasons, settings without effect, and the
// problems of the program's input.
type refusedData struct {
	Problems  []string                `json:"problems"`
	Refused   []dataplane.Refusal     `json:"refused"`
	Conflicts []servicemodel.Conflict `json:"conflicts"`
	Warnings  servicemodel.Warnings   `json:"warnings"`
}

func (p *Page) refused(_ *http.Request, s *dataplane.Status) (any, error) {
	return &refusedData{append([]string{}, p.cfg.Problems()...),
		append([]dataplane.Refusal{}, s.Refused...),
		append([]servicemodel.Conflict{}, s.Conflicts...), s.Warnings}, nil
}
