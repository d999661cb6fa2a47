package main

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/nftables"
)

// backendNames lists the backends, the default first.
func backendNames() []string { return []string{nftables.Name} }

// openBackend opens the backend of that name in the network namespace of the calling thread.
func openBackend(name, instance string) (dataplane.Backend, error) {
	switch name {
	case nftables.Name:
		return nftables.New(&nftables.Config{Table: instance})
	}
	return nil, fmt.Errorf("%w: no backend %q", errInvalid, name)
}

// withEngine runs f with an engine on the backend that was asked for.
func (p *program) withEngine(ctx context.Context, f func(context.Context, *dataplane.Engine) error) error {
	b, err := openBackend(p.opts.backend, p.opts.instance)
	if err != nil {
		return err
	}
	defer b.Close()
	return p.classify(f(ctx, dataplane.New(b, nil)))
}
