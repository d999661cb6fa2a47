package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/kernlb/kernlb/conntrack/tuning"
	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/examples/kernelspace"
	"github.com/kernlb/kernlb/ipvs"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// settings control the program. They come from the fields of the configuration.
type settings struct {
	mode         v1alpha1.ProxyMode
	client       clientSettings
	tracker      kube.Config
	resync       time.Duration  // of the objects of the API server
	bindAddress  netip.Addr     // the configured primary address of the node; may be invalid
	healthzAt    netip.AddrPort // invalid: not served
	metricsAt    netip.AddrPort // invalid: not served
	hardFail     bool
	profiling    bool
	oomScoreAdj  int32
	conntrack    tuning.Config
	ipvs         ipvs.Config
	kernel       kernelspace.Config
	asService    bool // of Windows
	run          dataplane.RunOptions
	syncPeriod   time.Duration
	featureGates map[string]bool // the gates of logging
}

// clientSettings are the settings of the connection to the API server.
type clientSettings struct {
	kubeconfig, master              string
	acceptContentTypes, contentType string
	qps                             float32
	burst                           int
}

// valueError is an error about a field or flag.
type valueError struct {
	field string // as in the file; of a flag, "--NAME"
	err   error
}

func (e *valueError) Error() string { return e.field + ": " + e.err.Error() }
func (e *valueError) Unwrap() error { return e.err }

// newSettings makes settings of a configuration with defaults. It returns warnings, and joins a
// *valueError for each field whose value is not possible.
func newSettings(c *config) (*settings, []string, error) {
	s := &settings{tracker: kube.Config{Triggers: true}}
	var warnings []string
	var errs []error
	defaults := &config{}
	setDefaults(defaults)
	said := map[string]bool{} // a function for several fields is called for each
	for i := range fields {
		f := &fields[i]
		if f.field == "" {
			continue
		}
		if f.effect == honoured {
			if err := located(f.field, f.use(c, s)); err != nil && !said[err.Error()] {
				errs = append(errs, err)
				said[err.Error()] = true
			}
		} else if !reflect.DeepEqual(fieldAt(c, f.field).Interface(),
			fieldAt(defaults, f.field).Interface()) {
			warnings = append(warnings, f.field+" has no effect: "+f.text)
		}
	}
	more, err := checkGates(c)
	if err != nil {
		errs = append(errs, err)
	}
	return s, append(warnings, more...), errors.Join(errs...)
}

// located adds the field to an error, unless it already names one, which may be deeper.
func located(field string, err error) error {
	if v := (*valueError)(nil); err == nil || errors.As(err, &v) {
		return err
	}
	return &valueError{field, err}
}

// nodeName returns the name of the node: the configured one, or else the host's.
func nodeName(override string) (string, error) {
	name := strings.TrimSpace(override)
	if name == "" {
		if override != "" {
			return "", errors.New("is blank")
		}
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("ask for the host's name: %w", err)
		}
		name = strings.TrimSpace(host)
	}
	if name == "" {
		return "", errors.New("is empty, and the host has no name")
	}
	return strings.ToLower(name), nil
}

// withAddress makes the configured address the primary one of its family, before those of the Node
// object, as in kube-proxy.
func (s *settings) withAddress(state servicemodel.State) servicemodel.State {
	n := state.Node()
	if s.mode == modeKernel {
		n.ServiceCIDRs = nil // HNS cannot drop what no service has; nor does kube-proxy there
	}
	if !s.bindAddress.IsValid() {
		return state.WithNode(n)
	}
	addresses := []netip.Addr{s.bindAddress}
	for _, a := range n.Addresses {
		if a.Is4() != s.bindAddress.Is4() {
			addresses = append(addresses, a)
		}
	}
	n.Addresses = addresses
	return state.WithNode(n)
}
