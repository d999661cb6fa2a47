package main

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/iptables"
	"github.com/kernlb/kernlb/nftables"
)

// defaultInstance is the owner of the kernel objects if none is named.
const defaultInstance = "kernlb"

// backendNames lists the backends, the default first.
func backendNames() []string { return []string{nftables.Name, iptables.Name} }

// openBackend opens the backend of that name in the network namespace of the calling thread.
func openBackend(name, instance string) (dataplane.Backend, error) {
	switch name {
	case nftables.Name:
		return opened(nftables.New(&nftables.Config{Table: instance}))
	case iptables.Name:
		return opened(iptables.New(&iptables.Config{Prefix: chainPrefix(instance)}))
	}
	return nil, fmt.Errorf("%w: no backend %q", errInvalid, name)
}

// opened makes an interface of a backend, and nil of none.
func opened[B dataplane.Backend](b B, err error) (dataplane.Backend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// chainPrefix is what the names of an instance's chains begin with: kube-proxy's for the default instance, which administrators know, else
// seven characters, since a chain's name has room for no more.
func chainPrefix(instance string) string {
	if instance == defaultInstance {
		return iptables.DefaultPrefix
	}
	sum := sha256.Sum256([]byte(instance))
	return "K" + base32.StdEncoding.EncodeToString(sum[:])[:6]
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
