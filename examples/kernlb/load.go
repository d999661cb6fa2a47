package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/nodeaddrs"
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
	s := p.withAddresses(tracker.State())
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

// withAddresses returns the state with the addresses that the node has, unless it says some. Where
// they cannot be listed, the node has no primary address, which the rules that need one can live
// with.
func (p *program) withAddresses(s servicemodel.State) servicemodel.State {
	addrs, err := p.nodeAddrs()
	if err != nil {
		return s
	}
	defer addrs.Close()
	n, err := addrs.Complete(context.Background(), s.Node()) // it does not wait
	if err != nil {
		return s
	}
	return s.WithNode(n)
}

// nodeAddrs knows the addresses of this network namespace, without those of the device that holds
// service addresses.
func (p *program) nodeAddrs() (*nodeaddrs.Source, error) {
	var cfg nodeaddrs.Config
	if holder := p.opts.ipvs.Device; holder != "" {
		cfg.Except = []string{holder}
	}
	return nodeaddrs.New(&cfg)
}
