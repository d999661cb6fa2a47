package kubeproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/internal/threadns"
)

// answerLimit limits the time in which a kube-proxy must report its mode.
const answerLimit = 2 * time.Second

// modes are the modes that [Running] knows.
var modes = []string{"iptables", "ipvs", "nftables"}

// Replacement is the Server header of a program that answers at kube-proxy's metrics address in
// place of kube-proxy. [Running] does not count such a program as a kube-proxy.
const Replacement = "kernlb"

// Running returns the mode of the kube-proxy that is running in the network namespace, "iptables",
// "ipvs" or "nftables", or "" if none answers. Two programs must not write to the same chains: if
// the mode is iptables, set a different prefix in [github.com/kernlb/kernlb/iptables.Config], or
// stop kube-proxy.
//
// The objects in the kernel do not show whether kube-proxy is running. So Running sends a request
// to kube-proxy's metrics address: port 10249 of the loopback addresses, /proxyMode. It does not
// find a kube-proxy with a different metricsBindAddress. An answer counts only if root listens on
// that port, because any user can open it. To enter another network namespace, Running needs
// CAP_SYS_ADMIN.
func Running(ctx context.Context, cfg *Config) (mode string, err error) {
	ns, err := enter(cfg)
	if err != nil {
		return "", fmt.Errorf("look for a kube-proxy that runs: %w", kernelerr.Permission(err))
	}
	defer ns.Close()
	dial := func(ctx context.Context, addr string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", addr)
			return err
		})
		return conn, err
	}

	for _, addr := range []string{"127.0.0.1:10249", "[::1]:10249"} {
		if mode, err = ask(ctx, dial, addr); mode != "" || err != nil {
			break
		}
	}

	if mode != "" && !rootListens(ns) {
		return "", nil
	}
	return mode, err
}

// ask returns the mode that the server at an address reports, or "" if it is not a kube-proxy. The
// only error is the context's.
func ask(ctx context.Context, dial func(context.Context, string) (net.Conn, error),
	addr string) (string, error) {
	limited, stop := context.WithTimeout(ctx, answerLimit) // the limit includes the body
	defer stop()
	req, err := http.NewRequestWithContext(limited, http.MethodGet, "http://"+addr+"/proxyMode",
		nil)
	if err != nil {
		return "", err
	}

	// A transport that dials itself may dial after the request has ended, when the namespace is
	// closed.
	conn, err := dial(limited, addr)
	if err != nil {
		return "", ctx.Err()
	}
	defer conn.Close()
	t := &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return "", ctx.Err()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if err != nil {
		return "", ctx.Err()
	}
	if mode := strings.TrimSpace(string(text)); resp.StatusCode == http.StatusOK &&
		resp.Header.Get("Server") != Replacement && slices.Contains(modes, mode) {
		return mode, nil
	}

	return "", nil
}

// dialLimit limits the time to open a connection to a loopback address.
const dialLimit = time.Second

// enter opens the network namespace that a Config names.
func enter(cfg *Config) (*threadns.NS, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	return threadns.Open(cfg.NetNS)
}

// rootListens reports whether a socket of root listens at the port of the metrics. It returns true
// if the kernel does not list the sockets.
func rootListens(ns *threadns.NS) bool {
	found := false
	err := ns.Do(func() error {
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

// listsRoot reports whether a list of sockets has a socket of root that listens at the port
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
