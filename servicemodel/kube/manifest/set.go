package manifest

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Set holds the objects of several manifests and keeps a tracker equal to them while they change.
// If several files have an object, the last file in the order of their names counts.
type Set struct {
	// AllowEmpty has the same meaning as in [Loader].
	AllowEmpty bool

	tracker *kube.Tracker
	config  kube.Config
	files   map[string]file
	holders map[key][]string // the files that have the object, sorted: the last one counts
}

// file has the objects of a file, and their places.
type file struct {
	objects map[key]object
	seen    map[string]spot
}

// key names an object.
type key struct {
	kind string
	name servicemodel.Name
}

// String returns "Service default/web" or "Node n1".
func (k key) String() string {
	if k.name.Namespace == "" {
		return k.kind + " " + k.name.Name
	}
	return k.kind + " " + k.name.String()
}

// object is a file's version of an object.
type object struct {
	set, remove func(*kube.Tracker)
}

// NewSet returns an empty set with a tracker that it makes from the configuration. The
// configuration should be strict.
func NewSet(c kube.Config) *Set {
	return &Set{tracker: kube.NewTracker(c), config: c, files: map[string]file{},
		holders: map[key][]string{}}
}

// Tracker returns the tracker, which only the set may change.
func (s *Set) Tracker() *kube.Tracker { return s.tracker }

// PutFile reads the named file, as Put does.
func (s *Set) PutFile(name string) (Result, error) {
	f, err := os.Open(name)
	if err != nil {
		return Result{}, err
	}
	defer f.Close()
	return s.Put(name, f)
}

// Put replaces the objects of a file. If something in it is wrong ([Result.Err]), or if it cannot
// be read, the file's earlier objects stay. An object that another file has, too, is a warning.
func (s *Set) Put(name string, r io.Reader) (Result, error) {
	l := NewLoader(kube.NewTracker(s.config))
	l.objects = map[key]object{}
	l.AllowEmpty = s.AllowEmpty
	if err := l.Read(name, r); err != nil {
		return Result{}, err
	}
	if result := l.Result(); result.Err() != nil {
		return result, nil
	}
	s.replace(name, file{l.objects, l.seen})
	result := l.Result()
	result.Problems = append(result.Problems, s.doubles(name)...)
	return result, nil
}

// doubles returns a warning for each object of a file that another file has, too.
func (s *Set) doubles(name string) (l []kube.Problem) {
	own := s.files[name]
	for k := range own.objects {
		at, all := own.seen[k.String()], s.holders[k]
		for _, other := range all {
			if other == name {
				continue
			}
			there := s.files[other].seen[k.String()]
			l = append(l, at.warning(k.String(), fmt.Sprintf(
				"is in %s:%d, too; that of %s counts", other, there.line, all[len(all)-1])))
		}
	}
	slices.SortStableFunc(l, func(a, b kube.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Reason, b.Reason))
	})
	return l
}

// Doubles returns a warning for each object that has no effect because a later file has it, too, in
// the order of the files' names.
func (s *Set) Doubles() (l []kube.Problem) {
	for _, name := range s.Files() {
		own := s.files[name]
		for k := range own.objects {
			all := s.holders[k]
			if last := all[len(all)-1]; last != name {
				at := own.seen[k.String()]
				l = append(l, at.warning(k.String(), fmt.Sprintf(
					"does not count: it is in %s:%d, too", last,
					s.files[last].seen[k.String()].line)))
			}
		}
	}
	slices.SortFunc(l, func(a, b kube.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return l
}

// Remove forgets a file and its objects.
func (s *Set) Remove(name string) {
	s.replace(name, file{})
	delete(s.files, name)
}

// Unmatched returns the warnings of [kube.Tracker.Unmatched] about the objects of all files.
func (s *Set) Unmatched() []kube.Problem {
	all := map[string]spot{}
	for _, name := range s.Files() {
		maps.Copy(all, s.files[name].seen)
	}
	return located(s.tracker.Unmatched(), all)
}

// Locate returns the file that counts for a service and the line where the service begins, and
// false if no file has it. It is for problems that appear later, when the service is applied.
func (s *Set) Locate(n servicemodel.Name) (file string, line int, ok bool) {
	files := s.holders[key{"Service", n}]
	if len(files) == 0 {
		return "", 0, false
	}
	file = files[len(files)-1]
	return file, s.files[file].seen["Service "+n.String()].line, true
}

// Files returns the names of the files, sorted.
func (s *Set) Files() []string { return slices.Sorted(maps.Keys(s.files)) }

// replace replaces the objects of a file, and tells the tracker the objects that count now.
func (s *Set) replace(name string, now file) {
	before := s.files[name].objects
	s.files[name] = now
	for k, was := range before {
		if _, stays := now.objects[k]; stays {
			continue
		}
		l := s.holders[k]
		i, _ := slices.BinarySearch(l, name)
		switch l = slices.Delete(l, i, i+1); {
		case len(l) == 0:
			delete(s.holders, k)
			was.remove(s.tracker)
			continue
		case i == len(l): // the file before it counts again
			s.files[l[i-1]].objects[k].set(s.tracker)
		}
		s.holders[k] = l
	}
	for k, is := range now.objects {
		l := s.holders[k]
		i, has := slices.BinarySearch(l, name)
		if !has {
			l = slices.Insert(l, i, name)
			s.holders[k] = l
		}
		if i == len(l)-1 {
			is.set(s.tracker)
		}
	}
}
