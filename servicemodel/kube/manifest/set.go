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

// Set has the objects of several manifests, and keeps a tracker up to date while they change. If
// several files have an object, the last file in the order of their names wins.
type Set struct {
	// AllowEmpty works as in [Loader].
	AllowEmpty bool

	tracker *kube.Tracker
	config  kube.Config
	files   map[string]objects
	holders map[string][]string // the files that have the object, sorted: the last file wins
}

// NewSet returns an empty set with a new tracker that uses the configuration. The configuration
// should be strict. A nil *Config is the zero Config.
func NewSet(c *kube.Config) *Set {
	return &Set{tracker: kube.NewTracker(c), config: *cmp.Or(c, &kube.Config{}),
		files: map[string]objects{}, holders: map[string][]string{}}
}

// Tracker returns the tracker. Only the set may change it.
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

// Put replaces the objects of a file. If the file has an error ([Result.Err]) or cannot be read,
// the set keeps the file's earlier objects. An object that is also in another file causes a
// warning.
func (s *Set) Put(name string, r io.Reader) (Result, error) {
	l := NewLoader(kube.NewTracker(&s.config))
	l.forSet, l.AllowEmpty = true, s.AllowEmpty
	if err := l.Read(name, r); err != nil {
		return Result{}, err
	}
	result := l.Result()
	if result.Err() == nil {
		s.replace(name, l.objects)
		result.Problems = append(result.Problems, s.doubles(name)...)
	}

	return result, nil
}

// doubles returns a warning for each object of a file that is also in another file.
func (s *Set) doubles(name string) (l []kube.Problem) {
	for object, own := range s.files[name] {
		all := s.holders[object]
		for _, other := range all {
			if other != name {
				l = append(l, own.at.warning(object, fmt.Sprintf("is in %s:%d, too; that of %s "+
					"counts", other, s.files[other][object].at.line, all[len(all)-1])))
			}
		}
	}

	return inOrder(l)
}

// Doubles returns a warning for each object that has no effect because a later file also has it, in
// the order of the files' names.
func (s *Set) Doubles() (l []kube.Problem) {
	for name, all := range s.files {
		for object, own := range all {
			holders := s.holders[object]
			if last := holders[len(holders)-1]; last != name {
				l = append(l, own.at.warning(object, fmt.Sprintf("does not count: it is in "+
					"%s:%d, too", last, s.files[last][object].at.line)))
			}
		}
	}

	return inOrder(l)
}

// inOrder sorts problems by their places.
func inOrder(l []kube.Problem) []kube.Problem {
	slices.SortFunc(l, func(a, b kube.Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Object, b.Object), cmp.Compare(a.Reason, b.Reason))
	})

	return l
}

// Remove forgets a file and its objects.
func (s *Set) Remove(name string) {
	s.replace(name, nil)
	delete(s.files, name)
}

// Unmatched returns the warnings of [kube.Tracker.Unmatched] about the objects of all files.
func (s *Set) Unmatched() []kube.Problem {
	all := objects{}
	for _, name := range s.Files() {
		maps.Copy(all, s.files[name])
	}
	return all.located(s.tracker.Unmatched())
}

// Locate returns the winning file of a service and the line where the service begins, and false if
// no file has the service. It helps to explain problems that appear later, when the service is
// applied.
func (s *Set) Locate(n servicemodel.Name) (file string, line int, ok bool) {
	object := "Service " + n.String()
	files := s.holders[object]
	if len(files) == 0 {
		return "", 0, false
	}
	file = files[len(files)-1]
	return file, s.files[file][object].at.line, true
}

// Files returns the names of the files, sorted.
func (s *Set) Files() []string { return slices.Sorted(maps.Keys(s.files)) }

// replace replaces the objects of a file, and passes the objects that now win to the tracker.
func (s *Set) replace(name string, now objects) {
	before := s.files[name]
	s.files[name] = now
	for object, was := range before {
		if _, stays := now[object]; stays {
			continue
		}
		l := s.holders[object]
		i, _ := slices.BinarySearch(l, name)
		switch l = slices.Delete(l, i, i+1); {
		case len(l) == 0:
			delete(s.holders, object)
			was.remove(s.tracker)
			continue
		case i == len(l): // the file before it wins again
			s.files[l[i-1]][object].set(s.tracker)
		}

		s.holders[object] = l
	}

	for object, is := range now {
		l := s.holders[object]
		i, has := slices.BinarySearch(l, name)
		if !has {
			l = slices.Insert(l, i, name)
			s.holders[object] = l
		}

		if i == len(l)-1 {
			is.set(s.tracker)
		}
	}
}
