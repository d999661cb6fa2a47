package kubeproxy

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kernlb/kernlb/internal/kernelerr"
)

// answerLimit is how long a kube-proxy may need to tell its mode.
const answerLimit = 2 * time.Second

// modes are the modes that [Running] knows.
var modes = []string{"iptables", "ipvs", "nftables"}

// Running returns the mode of the kube-proxy that runs in the network namespace, "iptables", "ipvs"
// or "nftables", or "" if none answers. Two programs must not write to the same chains: if the mode
// is iptables, give [github.com/kernlb/kernlb/iptables.Config] a prefix of its own, or stop
// kube-proxy.
//
// The objects in the kernel do not tell whether kube-proxy runs. So Running asks it at its metrics
// address: port 10249 of the loopback addresses, /proxyMode. It does not find a kube-proxy with
// another metricsBindAddress. An answer counts only if root listens at that port, because any user
// can open it. To enter another network namespace, Running needs CAP_SYS_ADMIN.
func Running(ctx context.Context, cfg *Config) (mode string, err error) {
	ns, err := enter(cfg)
	if err != nil {
		return "", fmt.Errorf("look for a kube-proxy that runs: %w", kernelerr.Permission(err))
	}
	defer ns.Close()
	t := &http.Transport{DialContext: ns.dial, DisableKeepAlives: true,
		ResponseHeaderTimeout: answerLimit}
	for _, addr := range []string{"127.0.0.1", "[::1]"} {
		if mode, err = ask(ctx, t, "http://"+addr+":10249/proxyMode"); mode != "" || err != nil {
			break
		}
	}
	if mode != "" && !ns.rootListens() {
		return "", nil
	}
	return mode, err
}

// ask returns the mode that the server at a URL reports, or "" if there is no server, or it is not
// kube-proxy. It returns the context's error.
func ask(ctx context.Context, t *http.Transport, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
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
		slices.Contains(modes, mode) {
		return mode, nil
	}
	return "", nil
}
