package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/kernlb/kernlb/dataplane/counters"
)

// addCounters reads the counters of a service's frontends, for one request at a time.
func (p *Page) addCounters(ctx context.Context, d *serviceData, l *listing, e *entry) error {
	if p.cfg.Counters == nil {
		return &problem{http.StatusNotFound, "this program does not look at counters"}
	}
	release, err := p.oneAtATime()
	if err != nil {
		return err
	}
	defer release()
	ctx, stop := context.WithTimeout(ctx, dumpTime)
	defer stop()
	here, err := p.cfg.Addresses()
	if err != nil {
		return fmt.Errorf("the addresses of this node: %w", err)
	}
	r, err := p.cfg.Counters.Read(ctx)
	if errors.Is(err, counters.ErrOff) {
		return &problem{http.StatusNotFound, "nothing is counted: counters are off"}
	}
	if err != nil {
		return err
	}
	sums := r.Of(l.Held, here)
	for _, f := range e.frontends {
		d.Counters = append(d.Counters, sums.Rows(l.Held, f)...)
	}
	d.OnlyConnections = r.OnlyConnections
	return nil
}
