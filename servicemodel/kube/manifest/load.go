package manifest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"unicode/utf8"

	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Limits of the input, in bytes.
const (
	MaxSize = 256 << 20 // of a file
	maxYAML = 16 << 20  // of one YAML document
)

// Loader reads manifests into a tracker.
type Loader struct {
	// AllowEmpty allows files without objects: empty ones, comments, lists without items. By
	// default each such file is an error, because its writer may have failed after the beginning.
	AllowEmpty bool

	tracker *kube.Tracker
	objects map[key]object // of a [Set]: the last version of each object
	decoder decoder
	seen    map[string]spot // where each object was given last
	maxSize int64
	result  Result

	objectsSeen int // valid or not
}

// NewLoader returns a loader that gives the objects to t, which should be strict (see
// [kube.Config]).
func NewLoader(t *kube.Tracker) *Loader {
	return &Loader{
		tracker: t,
		decoder: decoder{names: map[reflect.Type]map[string][]int{}},
		seen:    map[string]spot{},
		maxSize: MaxSize,
		result:  Result{Skipped: map[string]int{}},
	}
}

// Result returns the result so far.
func (l *Loader) Result() Result { return l.result }

// ReadFile reads the named file. Problems in it become part of the [Result]. ReadFile returns an
// error only if it cannot read the file at all.
func (l *Loader) ReadFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("reading manifest: %w", err)
	}
	defer f.Close()
	return l.Read(name, f)
}

// Read reads r to its end, as ReadFile does. In problems, r is called name.
func (l *Loader) Read(name string, r io.Reader) error {
	var b bytes.Buffer
	if f, ok := r.(*os.File); ok {
		if st, err := f.Stat(); err == nil && st.Size() <= l.maxSize {
			b.Grow(int(st.Size()) + bytes.MinRead)
		}
	}
	if _, err := b.ReadFrom(io.LimitReader(r, l.maxSize+1)); err != nil {
		return fmt.Errorf("reading manifest %s: %w", name, err)
	}
	data := b.Bytes()
	if p, ok := l.notText(data); !ok {
		p.File = name
		l.result.Problems = append(l.result.Problems, p)
		return nil
	}
	objects, problems := l.objectsSeen, len(l.result.Problems)
	for i, d := range split(data) {
		at := place{name, i + 1}
		values, err := parse(d)
		if err != nil {
			l.unreadable(at, err)
			continue
		}
		for _, v := range values {
			if v.kind != nullValue { // empty templates leave such values
				l.value(at, v, 0)
			}
		}
	}
	if l.objectsSeen == objects && len(l.result.Problems) == problems && !l.AllowEmpty {
		l.problem(place{file: name}, 1, "", "", "", "the file holds no object")
	}
	return nil
}

// Unmatched returns the warnings of [kube.Tracker.Unmatched] about objects that were read. Call it
// after all files were read.
func (l *Loader) Unmatched() []kube.Problem { return located(l.tracker.Unmatched(), l.seen) }

// located adds the places of their objects to problems, by the objects' names.
func located(problems []kube.Problem, at map[string]spot) []kube.Problem {
	for i := range problems {
		problems[i] = at[problems[i].Object].problem(problems[i])
	}
	return problems
}

// place is the place of a value in the input.
type place struct {
	file     string
	document int
}

// spot is the place where an object begins.
type spot struct {
	place
	line int
}

// problem returns p with its place.
func (s spot) problem(p kube.Problem) kube.Problem {
	p.File, p.Line, p.Document = s.file, s.line, s.document
	return p
}

// notText returns a problem if data cannot be the text of a manifest.
func (l *Loader) notText(data []byte) (kube.Problem, bool) {
	at, reason := 0, ""
	if int64(len(data)) > l.maxSize {
		at, reason = len(data), fmt.Sprintf("larger than %d bytes", l.maxSize)
	} else if i := bytes.IndexByte(data, 0); i >= 0 {
		at, reason = i, "not text: it contains a NUL byte"
	} else if i := firstInvalid(data); i >= 0 {
		at, reason = i, "not text: it is not valid UTF-8"
	}
	return kube.Problem{Line: 1 + bytes.Count(data[:at], []byte("\n")),
		FieldError: &servicemodel.FieldError{Reason: reason}}, reason == ""
}

// firstInvalid returns the offset of the first byte of data that is not UTF-8, -1 if there is none.
func firstInvalid(data []byte) int {
	if utf8.Valid(data) { // many times faster
		return -1
	}
	i := 0
	for i < len(data) {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// parse parses the values of a document: one in YAML, any number in JSON.
func parse(d document) ([]*value, error) {
	text := bytes.TrimSpace(d.text)
	isJSON := len(text) > 0 && (text[0] == '{' || text[0] == '[')
	if isJSON {
		values, err := parseJSON(d)
		if err == nil {
			return values, nil
		}
		// YAML in flow style looks like JSON, except for the quote that begins each name.
		if rest := bytes.TrimSpace(text[1:]); len(rest) == 0 || rest[0] == '"' || rest[0] == '{' {
			return nil, err
		}
	}
	v, err := parseYAML(d)
	if v == nil || err != nil {
		return nil, err
	}
	return []*value{v}, nil
}
