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
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/nodeaddrs"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// load reads the manifests into a state that is to be applied. A state without services is an
// error.
func (p *program) load() (servicemodel.State, error) {
	s, err := p.read()
	if err == nil && s.Len() == 0 && !p.opts.empty {
		err = fmt.Errorf("%w: no service in %s: if all that the kernel has is to be removed, "+
			"say -allow-empty, or use cleanup", errInvalid, strings.Join(p.opts.files, ", "))
	}

	return s, err
}

// read reads the manifests into a state. It prints every error and keeps the warnings. If there is
// an error, there is no state, or with -keep-going a state without the object concerned.
func (p *program) read() (servicemodel.State, error) {
	tracker := kube.NewTracker(&kube.Config{Node: p.opts.node, Annotations: p.opts.annotations,
		Strict: true})
	loader := manifest.NewLoader(tracker)
	loader.AllowEmpty = p.opts.empty
	files, err := expand(p.opts.files)
	if err != nil {
		return servicemodel.State{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	for _, name := range files {
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
		if problem.Warning {
			p.warn("warning: %s", problem.Error())
			continue
		}

		fmt.Fprintf(p.stderr, "error: %s\n", problem.Error())
	}

	if s := r.SkippedKinds(); s != "" {
		p.warn("skipped: %s", s)
	}
	if r.Err() != nil {
		// A problem without an object hides the names of objects: no object can be left out for it.
		if !p.opts.goOn || slices.ContainsFunc(r.Problems, func(p kube.Problem) bool {
			return !p.Warning && p.Object == ""
		}) {
			return servicemodel.State{}, fmt.Errorf("%w: see above", errInvalid)
		}

		p.incomplete = true
	}

	s := p.withAddresses(tracker.State())
	if p.opts.goOn {
		return s, nil // the engine finds invalid services
	}
	return s, p.invalid(s.Validate())
}

// expand replaces directories with their manifests, in the order of their names.
func expand(files []string) ([]string, error) {
	var all []string
	for _, name := range files {
		if st, err := os.Stat(name); err != nil || !st.IsDir() {
			all = append(all, name) // reading it returns the error
			continue
		}

		names, err := manifestsIn(name)
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			path := filepath.Join(name, n)
			if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
				return nil, notRegular(path) // reading a pipe might not end
			}
			all = append(all, path)
		}
	}

	return all, nil
}

// notRegular is the error for a directory entry that is named like a manifest but is not a regular
// file.
func notRegular(path string) error { return fmt.Errorf("%s is no regular file", path) }

// manifestsIn returns the sorted names of the manifests in a directory. Like kubectl, it knows them
// by their suffix. It skips hidden files, which belong to editors and to volumes of Kubernetes.
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

// isManifest reports whether a file of a directory is a manifest, by its name.
func isManifest(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}

	return false
}

// invalid prints every problem of a state, and returns one error for all.
func (p *program) invalid(err error) error {
	if err == nil {
		return nil
	}
	for _, problem := range dataplane.Problems(err) {
		fmt.Fprintf(p.stderr, "error: %v\n", problem.Err)
	}
	return fmt.Errorf("%w: see above", errInvalid)
}

// classify marks errors about the input.
func (p *program) classify(err error) error {
	var field *servicemodel.FieldError
	if errors.As(err, &field) || errors.Is(err, backends.ErrUnsupported) {
		return p.invalid(err)
	}
	return err
}

// withAddresses returns the state with the node's addresses, unless it already has some. If they
// cannot be listed, the state stays without them.
func (p *program) withAddresses(s servicemodel.State) servicemodel.State {
	addrs, err := p.nodeAddrs()
	if err != nil {
		return s
	}
	defer addrs.Close()
	n, err := addrs.Complete(context.Background(), s.Node()) // this does not wait
	if err != nil {
		return s
	}
	return s.WithNode(n)
}

// nodeAddrs returns a source of the addresses of this network namespace. It leaves out the device
// that holds service addresses.
func (p *program) nodeAddrs() (*nodeaddrs.Source, error) {
	var cfg nodeaddrs.Config
	if holder := p.opts.ipvs.Device; holder != "" {
		cfg.Except = []string{holder}
	}
	return nodeaddrs.New(&cfg)
}
