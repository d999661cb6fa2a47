package kubeproxy

import (
	"context"
	"net"
	"time"

	"github.com/kernlb/kernlb/internal/threadns"
)

// dialLimit is how long a connection to a loopback address may take.
const dialLimit = time.Second

// within is the network namespace that a Config names.
type within struct{ *threadns.NS }

func enter(cfg *Config) (within, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	fd, release, err := threadns.At(cfg.NetNS, cfg.NetNSPath)
	if err != nil {
		return within{}, err
	}
	defer release()
	ns, err := threadns.Open(fd)
	return within{ns}, err
}

// dial connects from inside the namespace.
func (w within) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = w.Do(func() error {
		conn, err = (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}
