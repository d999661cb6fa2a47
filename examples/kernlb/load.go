package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// load reads the manifests into a state that is to be applied: one without services is an error.
func (p *program) load() (servicemodel.State, error) {
	s, err := p.read()
	if err == nil && s.Len() == 0 && !p.opts.empty {
		err = fmt.Errorf("%w: no service in %s: if all that the kernel has is to be removed, "+
			"say -allow-empty, or use cleanup", errInvalid, strings.Join(p.opts.files, ", "))
	}
	return s, err
}

// read reads the manifests into a state. It prints every error and keeps the warnings; if there is
// an error, there is no state, or with -keep-going one without that object.
func (p *program) read() (servicemodel.State, error) {
	tracker := kube.NewTracker(kube.Config{Node: p.opts.node, Annotations: p.opts.annotations,
		Strict: true})
	loader := manifest.NewLoader(tracker)
	files, err := expand(p.opts.files)
	if err != nil {
		return servicemodel.State{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	for _, name := range files {
		var err error
		if name == "-" {
			err = loader.Read("standard input", p.stdin)
		} else {
			err = loader.ReadFile(name)
		}
		if err != nil {
			return servicemodel.State{}, fmt.Errorf("%w: %w", errInvalid, err)
		}
	}
	r := loader.Result()
	for _, problem := range append(r.Problems, loader.Unmatched()...) {
		if problem.Severity == kube.Warning {
			p.warn("warning: %s", problem.Error())
			continue
		}
		fmt.Fprintf(p.stderr, "error: %s\n", problem.Error())
	}
	if s := r.SkippedKinds(); s != "" {
		p.warn("skipped: %s", s)
	}
	if r.Err() != nil {
		if !p.opts.goOn || slices.ContainsFunc(r.Problems, ofNoObject) {
			return servicemodel.State{}, fmt.Errorf("%w: see above", errInvalid)
		}
		p.incomplete = true
	}
	s := tracker.State()
	if n := s.Node(); len(n.Addresses) == 0 {
		n.Addresses = interfaceAddrs(p.opts.ipvs.Device)
		s = s.WithNode(n)
	}
	if p.opts.goOn {
		return s, nil // the engine finds what is invalid
	}
	return s, p.invalid(s.Validate())
}

// expand replaces directories by the manifests in them, in the order of their names.
func expand(files []string) ([]string, error) {
	var all []string
	for _, name := range files {
		if st, err := os.Stat(name); err != nil || !st.IsDir() {
			all = append(all, name) // what cannot be read is said when it is
			continue
		}
		names, err := manifestsIn(name)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			all = append(all, filepath.Join(name, n))
		}
	}
	return all, nil
}

// manifestsIn returns the names of the manifests in a directory, sorted. As kubectl does, it knows
// them by their suffix. Hidden files belong to editors and to volumes of Kubernetes.
func manifestsIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if isManifest(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// isManifest reports whether the file of a directory is a manifest by its name.
func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// ofNoObject reports whether a problem hides which objects there are, so that nothing can be left
// out for it.
func ofNoObject(p manifest.Problem) bool { return p.Severity == kube.Error && p.Object == "" }

// invalid prints every problem of a state and returns one error for them.
func (p *program) invalid(err error) error {
	if err == nil {
		return nil
	}
	var many interface{ Unwrap() []error }
	problems := []error{err}
	if errors.As(err, &many) {
		problems = many.Unwrap()
	}
	for _, e := range problems {
		fmt.Fprintf(p.stderr, "error: %v\n", e)
	}
	return fmt.Errorf("%w: see above", errInvalid)
}

// classify marks errors that are about the input.
func (p *program) classify(err error) error {
	var field *servicemodel.FieldError
	if errors.As(err, &field) || errors.Is(err, dataplane.ErrUnsupported) {
		return p.invalid(err)
	}
	return err
}

// interfaceAddrs returns the addresses of this network namespace that others can reach, without
// those of the device that holds service addresses.
func interfaceAddrs(holder string) []netip.Addr {
	l, err := net.Interfaces()
	if err != nil {
		// the node then has no primary address, which the rules that need one can live with
		return nil
	}
	var out []netip.Addr
	for _, i := range l {
		addrs, err := i.Addrs()
		if err != nil || i.Name == holder {
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().IsGlobalUnicast() {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out
}
