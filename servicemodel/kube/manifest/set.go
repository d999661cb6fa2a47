package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, yet people have manifests with them

import (
	"io"
	"maps"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Set holds the objects of several manifests and keeps a tracker equal to them while they change.
// An object that is in several files counts as the last of them has it, in the order of their
// names.
type Set struct {
	tracker *kube.Tracker
	config  kube.Config
	files   map[string]file
	current map[key]string // the file whose object the tracker has
}

// file is what a file holds, and where.
type file struct {
	objects map[key]object
	seen    map[string]spot
}

// key names an object.
type key struct {
	kind string
	name servicemodel.Name
}

// object is what a file says of a key.
type object struct {
	set, remove func(*kube.Tracker)
}

// NewSet returns an empty set with a tracker that it makes from the configuration, which should be
// strict.
func NewSet(c kube.Config) *Set {
	return &Set{tracker: kube.NewTracker(c), config: c, files: map[string]file{},
		current: map[key]string{}}
}

// Tracker returns the tracker. Only the set may change it.
func (s *Set) Tracker() *kube.Tracker { return s.tracker }

// PutFile reads the file of that name, as Put does.
func (s *Set) PutFile(name string) (Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	return s.Put(name, f)
}

// Put takes what a file holds now, in place of what it held before. If something is wrong in it
// ([Result.Err]), or if it cannot be read, what it held before stays.
func (s *Set) Put(name string, r io.Reader) (Result, error) {
	objects := recorder{Tracker: kube.NewTracker(s.config), objects: map[key]object{}}
	l := NewLoader(objects)
	if err := l.Read(name, r); err != nil {
		return Result{}, err
	}
	if result := l.Result(); result.Err() != nil {
		return result, nil
	}
	keys := maps.Clone(objects.objects)
	maps.Copy(keys, s.files[name].objects)
	s.files[name] = file{objects.objects, l.seen}
	s.update(keys, name)
	return l.Result(), nil
}

// Remove forgets a file and what it held.
func (s *Set) Remove(name string) {
	before := s.files[name].objects
	delete(s.files, name)
	s.update(before, name)
}

// Unmatched returns the warnings of [kube.Tracker.Unmatched], about the objects of all files.
func (s *Set) Unmatched() []Problem {
	all := map[string]spot{}
	for _, name := range s.Files() {
		maps.Copy(all, s.files[name].seen)
	}
	return located(s.tracker.Unmatched(), all)
}

// Locate returns the file and the line where the service begins that counts, and false if no file
// has it. It is for problems that are found later, when the service is applied.
func (s *Set) Locate(n servicemodel.Name) (file string, line int, ok bool) {
	file, ok = s.current[key{"Service", n}]
	return file, s.files[file].seen["Service "+n.String()].line, ok
}

// Files returns the names of the files, sorted.
func (s *Set) Files() []string { return slices.Sorted(maps.Keys(s.files)) }

// update brings the tracker up to date with the objects of those keys, about which the file called
// changed says something else than before.
func (s *Set) update(keys map[key]object, changed string) {
	for k, was := range keys {
		last, found := "", false
		for name, f := range s.files {
			if _, ok := f.objects[k]; ok && (!found || name > last) {
				last, found = name, true
			}
		}
		switch {
		case !found:
			delete(s.current, k)
			was.remove(s.tracker)
		case s.current[k] != last || last == changed:
			s.current[k] = last
			s.files[last].objects[k].set(s.tracker)
		}
	}
}

// recorder notes the objects that a loader gives to its tracker.
type recorder struct {
	*kube.Tracker
	objects map[key]object
}

// keep notes an object.
func (r recorder) keep(kind, namespace, name string, set func(*kube.Tracker),
	remove func(*kube.Tracker, servicemodel.Name)) {
	k := key{kind, servicemodel.Name{Namespace: namespace, Name: name}}
	r.objects[k] = object{set: set, remove: func(t *kube.Tracker) { remove(t, k.name) }}
}

func (r recorder) SetService(v *corev1.Service) []kube.Problem {
	r.keep("Service", v.Namespace, v.Name, func(t *kube.Tracker) { t.SetService(v) },
		(*kube.Tracker).DeleteService)
	return r.Tracker.SetService(v)
}

func (r recorder) SetEndpoints(v *corev1.Endpoints) []kube.Problem {
	r.keep("Endpoints", v.Namespace, v.Name, func(t *kube.Tracker) { t.SetEndpoints(v) },
		(*kube.Tracker).DeleteEndpoints)
	return r.Tracker.SetEndpoints(v)
}

func (r recorder) SetEndpointSlice(v *discoveryv1.EndpointSlice) []kube.Problem {
	r.keep("EndpointSlice", v.Namespace, v.Name, func(t *kube.Tracker) { t.SetEndpointSlice(v) },
		(*kube.Tracker).DeleteEndpointSlice)
	return r.Tracker.SetEndpointSlice(v)
}

func (r recorder) SetNode(v *corev1.Node) []kube.Problem {
	r.keep("Node", "", v.Name, func(t *kube.Tracker) { t.SetNode(v) },
		func(t *kube.Tracker, n servicemodel.Name) { t.DeleteNode(n.Name) })
	return r.Tracker.SetNode(v)
}

func (r recorder) SetServiceCIDR(v *networkingv1.ServiceCIDR) []kube.Problem {
	r.keep("ServiceCIDR", "", v.Name, func(t *kube.Tracker) { t.SetServiceCIDR(v) },
		func(t *kube.Tracker, n servicemodel.Name) { t.DeleteServiceCIDR(n.Name) })
	return r.Tracker.SetServiceCIDR(v)
}
