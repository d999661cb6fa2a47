package manifest

import (
	"bytes"
	"errors"
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
	// AllowEmpty allows files without objects: empty files, comments, lists without items. By
	// default each such file is an error, because its writer may have failed early.
	AllowEmpty bool

	tracker *kube.Tracker
	decoder decoder
	maxSize int64
	result  Result

	file     string // the file that is being read
	document int
	found    int     // objects, valid or not
	objects  objects // the last version of each object
	forSet   bool    // the objects can be set again
}

// objects are the objects of a file by their names, such as "Service default/web".
type objects map[string]object

// object is a version of an object. Only the objects of a [Set] have functions.
type object struct {
	at          spot
	set, remove func(*kube.Tracker)
}

// located adds the places of the objects to their problems.
func (o objects) located(problems []kube.Problem) []kube.Problem {
	for i, p := range problems {
		problems[i] = o[p.Object].at.problem(p)
	}
	return problems
}

// spot is a place in the input.
type spot struct {
	file           string
	line, document int
}

// problem returns p with its place.
func (s spot) problem(p kube.Problem) kube.Problem {
	p.File, p.Line, p.Document = s.file, s.line, s.document
	return p
}

// warning returns a warning about a whole object.
func (s spot) warning(object, reason string) kube.Problem {
	return s.problem(kube.Problem{Warning: true,
		FieldError: &servicemodel.FieldError{Object: object, Reason: reason}})
}

// NewLoader returns a loader that gives the objects to t, which should be strict (see
// [kube.Config]).
func NewLoader(t *kube.Tracker) *Loader {
	return &Loader{
		tracker: t,
		decoder: decoder{names: map[reflect.Type]map[string][]int{}},
		maxSize: MaxSize,
		result:  Result{Skipped: map[string]int{}},
		objects: objects{},
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

// Read reads r to its end, as ReadFile does. Problems refer to the file as name.
func (l *Loader) Read(name string, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, l.maxSize+1))
	if err != nil {
		return fmt.Errorf("reading manifest %s: %w", name, err)
	}
	l.file, l.document = name, 0
	if before, reason := l.notText(data); reason != "" {
		l.problem(1+bytes.Count(data[:before], []byte("\n")), "", "", "", reason)
		return nil
	}

	found, problems := l.found, len(l.result.Problems)
	for i, d := range split(data) {
		l.document = i + 1
		values, err := parse(d)
		if wrong, ok := errors.AsType[*syntaxError](err); ok {
			l.problem(wrong.line, "", "", "", wrong.reason)
		}
		for _, v := range values {
			if v.kind != nullValue { // empty templates result in such values
				l.value(v, 0)
			}
		}
	}

	if l.found == found && len(l.result.Problems) == problems && !l.AllowEmpty {
		l.document = 0
		l.problem(1, "", "", "", "the file holds no object")
	}

	return nil
}

// Unmatched returns the warnings of [kube.Tracker.Unmatched] about objects that the loader read.
// Call it after you have read all files.
func (l *Loader) Unmatched() []kube.Problem { return l.objects.located(l.tracker.Unmatched()) }

// at returns a place in the document that is being read.
func (l *Loader) at(line int) spot { return spot{l.file, line, l.document} }

func (l *Loader) add(p kube.Problem) { l.result.Problems = append(l.result.Problems, p) }

// problem reports an error in a value that is not decoded yet and may be anything.
func (l *Loader) problem(line int, object, field, value, reason string) {
	l.add(l.at(line).problem(kube.Problem{FieldError: &servicemodel.FieldError{
		Object: object, Field: field, Value: show(value), Reason: reason}}))
}

// notText returns the reason why data cannot be the text of a manifest, and the number of bytes
// before the first fault.
func (l *Loader) notText(data []byte) (before int, reason string) {
	if int64(len(data)) > l.maxSize {
		return len(data), fmt.Sprintf("larger than %d bytes", l.maxSize)
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i, "not text: it contains a NUL byte"
	}
	if utf8.Valid(data) { // many times faster than decoding it
		return 0, ""
	}
	for n := 0; ; before += n {
		var r rune
		if r, n = utf8.DecodeRune(data[before:]); r == utf8.RuneError && n == 1 {
			return before, "not text: it is not valid UTF-8"
		}
	}
}

// parse parses the values of a document: one in YAML, any number in JSON.
func parse(d document) ([]*value, error) {
	text := bytes.TrimSpace(d.text)
	if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
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
