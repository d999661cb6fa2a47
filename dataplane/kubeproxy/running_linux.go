package kubeproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/threadns"
)

// dialLimit is how long a connection to a loopback address may take to open.
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

// rootListens reports whether a socket of root listens at the port of the metrics. It returns true
// if the kernel does not tell.
func (w within) rootListens() bool {
	found := false
	err := w.Do(func() error {
		for _, name := range []string{"tcp", "tcp6"} {
			f, err := os.Open("/proc/thread-self/net/" + name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // no IPv6
			}
			if err != nil {
				return err
			}
			found = found || listsRoot(f)
			_ = f.Close()
		}
		return nil
	})
	return found || err != nil
}

// listsRoot reports whether a list of sockets has one of root that listens at the port
// (Documentation/networking/proc_net_tcp.rst). Listening sockets come first, so listsRoot does not
// read the connections.
func listsRoot(list io.Reader) bool {
	lines := bufio.NewScanner(list)
	lines.Scan() // the heading
	for lines.Scan() {
		const port, listening = ":2809", "0A" // 10249
		f := strings.Fields(lines.Text())
		if len(f) < 8 || f[3] != listening {
			return false
		}
		if strings.HasSuffix(f[1], port) && f[7] == "0" {
			return true
		}
	}
	return false
}
